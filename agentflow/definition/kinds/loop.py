"""`loop`: a body that leads back here, as long as an expression is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "condition", "body", "on_limit"})

_LABELS = {"body": "continue", "next": "done"}


class LoopNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="loop"):
    """Evaluates `condition` at each arrival: true → `body`, false → `next`, and the count begins anew.

    On arrival `max_iterations` + 1 that is still true: → `on_limit`, or the node fails with
    `loop_iteration_limit_exceeded`.
    """

    condition: str
    body: str
    next: str | None = None
    max_iterations: int | None = None
    on_limit: str | None = None


Spec = LoopNode


def ports(spec: LoopNode) -> tuple[tuple[str, str], ...]:
    """Return the body, the way on and the way at the limit."""
    pairs = (("body", spec.body), ("next", spec.next), ("on_limit", spec.on_limit))
    return tuple((port, target) for port, target in pairs if target is not None)


def label(spec: LoopNode, port: str) -> str | None:
    """Return `continue`, `done`, or None for the way at the limit."""
    return _LABELS.get(port)


def routing(spec: LoopNode) -> dict[str, str]:
    """Return the expression that chooses the way."""
    return {"condition": spec.condition}


def returns(spec: LoopNode) -> str:
    """Return the port whose way should lead back here."""
    return "body"


def bounded(spec: LoopNode) -> tuple[str, ...]:
    """Return the body, if its iterations are limited."""
    return () if spec.max_iterations is None else ("body",)


def check(spec: LoopNode, at: NodeReport) -> None:
    """Check the expression and the limit."""
    at.expression("condition", spec.condition)
    at.at_least_one(spec, "", "max_iterations")
    if spec.on_limit is not None and spec.max_iterations is None:
        at.conflict("on_limit", f'"{spec.id}" has no limit', "add max_iterations, or leave on_limit out")
