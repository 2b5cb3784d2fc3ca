"""`transform`: a value made of others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from agentflow.definition.node import NodeBase, next_port

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval"})


class TransformNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="transform"):
    """Gives the value of `expression`, or `value` with its templates filled in.

    An `expression` that parses as JSON is that literal.
    """

    expression: str | None = None
    value: Any = msgspec.UNSET
    next: str | None = None


Spec = TransformNode
ports = next_port


def literal(text: str) -> Any:
    """Return the JSON value that a text is, UNSET if it is none. Integers stay exact."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return msgspec.UNSET


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is beyond all numbers")
    return value


def check(spec: TransformNode, at: NodeReport) -> None:
    """Check that there is an expression or a value, and what it reads."""
    at.template("value", spec.value)
    if spec.expression is None:
        if spec.value is msgspec.UNSET:
            at.error("E_EMPTY_FIELD", f'"{spec.id}" has neither expression nor value', "expression")
        return
    if spec.value is not msgspec.UNSET:
        at.conflict("value", f'"{spec.id}" has an expression', "keep expression or value")
    if not spec.expression.strip():
        at.not_blank("expression", spec.expression)
    elif literal(spec.expression) is msgspec.UNSET:
        at.expression("expression", spec.expression)
