"""Expressions and templates of a graph, with its roots and braces, and what their failures become."""

from __future__ import annotations

from typing import Any

from agentflow.definition.expressions import (
    EvaluationError,
    Expression,
    Template,
    compile_template,
    parse_whole,
)
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.paths import parse_path

__all__ = [
    "BRACES",
    "ROOTS",
    "expression",
    "expression_error",
    "is_true",
    "path_expression",
    "text_template",
    "value_template",
    "whole_expression",
]

ROOTS = frozenset(
    {
        "steps",
        "inputs",
        "item",
        "index",
        "input",
        "nodes",
        "globals",
        "state",
        "last_llm_output",
        "last_tool_output",
        "map_item",
        "map_index",
        "item_index",
    }
)
BRACES = ("${{", "{{")


def expression(text: str, room: int | None, roots: frozenset[str] = ROOTS) -> Expression:
    """Return the expression that `text` is, bare or in `${{ }}`; `room` is what it may read, in bytes.

    Raises ExpressionError.
    """
    return parse_whole(text, bare=True, roots=roots).within(room)


def whole_expression(text: str) -> Expression:
    """Return the expression that `text` holds in `${{ }}`. Raises ExpressionError."""
    return parse_whole(text, bare=False, roots=ROOTS)


def path_expression(text: str) -> Expression:
    """Return the expression of a `*_path` field. Raises ExpressionError."""
    return parse_path(text, ROOTS)


def value_template(value: Any) -> Template:
    """Return the template of a JSON value; a whole `${{ }}` keeps its type."""
    return compile_template(value, braces=BRACES, roots=ROOTS)


def text_template(value: Any) -> Template:
    """Return the template of a text, or of a value whose members are texts."""
    return compile_template(value, braces=BRACES, text=True, roots=ROOTS)


def is_true(value: Any) -> bool:
    """Return the truth of a JSON value: null, false, 0 and "" are false, all else is true (page 001 §6.3)."""
    return not (value is None or value == "" or (isinstance(value, int | float) and value == 0))


def expression_error(error: EvaluationError, field: str) -> ErrorInfo:
    """Return the error of a step one of whose expressions cannot be evaluated; `field` is a JSON pointer."""
    details = {
        "path": field,
        "expression": error.expression,
        "offset": error.offset,
        "reason": error.reason,
    }
    if error.reason == "scope":
        code = "expression_scope_limit_exceeded"
        return ErrorInfo(category="agent", code=code, message=str(error), details=details)
    return ErrorInfo(category="expression", code="expression_error", message=str(error), details=details)
