"""JSON Schema, Draft 2020-12: are schemas valid, and do values satisfy them (page 001 §5.5).

`schema_problems` looks at schemas, `schema_validator` judges values, `schema_cost` bounds what that takes,
`schema_errors` says why a value is refused.
"""

from __future__ import annotations

from agentflow.definition.schema_problems import (
    DIALECT,
    TYPES,
    SchemaProblem,
    check_applicable,
    check_schema,
)
from agentflow.definition.schema_validator import (
    SchemaIssue,
    Validator,
    answer_aside,
    is_costly,
    validate,
    validator,
)

__all__ = [
    "DIALECT",
    "TYPES",
    "SchemaIssue",
    "SchemaProblem",
    "Validator",
    "answer_aside",
    "check_applicable",
    "check_schema",
    "is_costly",
    "validate",
    "validator",
]
