"""`executor`: Python code with typed handlers, reached by messages (page 002)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget", "policy", "dependency"})
MAY_END = True


class ExecutorNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="executor"):
    """Code that is registered as `executor`. Its messages go along `edges[]`; one without edges ends a path.

    `accepts` and `emits` are type tags; empty, any type.
    """

    executor: str
    accepts: tuple[str, ...] = ()
    emits: tuple[str, ...] = ()


Spec = ExecutorNode


def ports(spec: ExecutorNode) -> tuple[tuple[str, str], ...]:
    """Return nothing: its messages go along `edges[]`."""
    return ()


def check(spec: ExecutorNode, at: NodeReport) -> None:
    """Check the names."""
    at.not_blank("executor", spec.executor)
    for field in ("accepts", "emits"):
        for i, tag in enumerate(getattr(spec, field)):
            at.not_blank(f"{field}/{i}", tag)
