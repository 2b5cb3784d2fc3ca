"""Keys of caches and gates: texts, evaluated when a token comes."""

from __future__ import annotations

from typing import Any

from agentflow.definition.expressions import EvaluationError, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error

__all__ = ["key_of"]


def key_of(state: RunState, activation: Activation, key: Any, field: str) -> str | ErrorInfo:
    """Return what the expression or template `key` of this field gives, or why that is no key."""
    try:
        value = key.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, f"/{field}")
    if isinstance(value, str):
        return value
    message = f"{field} of {activation.node.id} gave {json_type_of(value)}, not a string"
    return ErrorInfo(category="invalid_input", code="cache_key_not_string", message=message)
