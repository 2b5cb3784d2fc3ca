"""`condition`: one of two ways, by an expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "expression", "on_true", "on_false"})

_LABELS = {"on_true": "true", "on_false": "false"}


class ConditionNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="condition"):
    """Sends its token to `on_true` or `on_false`; its output is the boolean."""

    expression: str
    on_true: str
    on_false: str


Spec = ConditionNode


def ports(spec: ConditionNode) -> tuple[tuple[str, str], ...]:
    """Return both ways."""
    return ("on_true", spec.on_true), ("on_false", spec.on_false)


def label(spec: ConditionNode, port: str) -> str | None:
    """Return `true` or `false`."""
    return _LABELS[port]


def routing(spec: ConditionNode) -> dict[str, str]:
    """Return the expression that chooses the way."""
    return {"condition": spec.expression}


def check(spec: ConditionNode, at: NodeReport) -> None:
    """Check the expression."""
    at.expression("expression", spec.expression)
