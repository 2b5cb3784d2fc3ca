"""The expression and template language `${{ }}` (page 001 §6): pure, typed, bounded.

    parse, parse_whole           text -> Expression, or ExpressionError with code, offset and hint
    compile_template             JSON value -> Template
    Expression.evaluate          roots -> value, or EvaluationError
    Template.evaluate            roots -> JSON value, or EvaluationError

There is no clock, no I/O, no arithmetic, no user code, and no way to run without bounds.
"""

from agentflow.definition.expressions.errors import EvaluationError, ExpressionError
from agentflow.definition.expressions.expression import Expression, parse, parse_whole, unwrapped
from agentflow.definition.expressions.nodes import Node
from agentflow.definition.expressions.nodes import unparse as _unparse
from agentflow.definition.expressions.references import Reference
from agentflow.definition.expressions.run import StatusView
from agentflow.definition.expressions.template import Template, compile_template, escape_braces
from agentflow.definition.expressions.values import json_type_of, to_text

__all__ = [
    "EvaluationError",
    "Expression",
    "ExpressionError",
    "Reference",
    "StatusView",
    "Template",
    "compile_template",
    "escape_braces",
    "json_type_of",
    "parse",
    "parse_whole",
    "to_text",
    "unparse",
    "unwrapped",
]


def unparse(expression: Expression | Node) -> str:
    """Return the canonical text of an expression: parsing it gives the same expression, offsets apart."""
    return _unparse(expression.tree if isinstance(expression, Expression) else expression)
