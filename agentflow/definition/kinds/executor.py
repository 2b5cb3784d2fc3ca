"""`executor`: Python code with typed handlers, reached by messages (page 002)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import Binds, Needed, NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget", "policy", "dependency"})
MAY_END = True
IS_HANDLED = True


class ExecutorNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="executor"):
    """Code that is registered as `executor`. Its messages go along `edges[]`; one without edges ends a path.

    `accepts` and `emits` are type tags; empty, any type. `answers` are those of the answers that its response
    handlers take: such a node may wait for a person. `intermediate`: what its handlers yield is shown as
    progress, and is no output of the run.
    """

    executor: str
    accepts: tuple[str, ...] = ()
    emits: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    intermediate: bool = False


Spec = ExecutorNode
STRUCTURAL = frozenset({"accepts", "emits", "answers"})


def structure(spec: ExecutorNode) -> dict[str, tuple[str, ...]]:
    """Return the types of its messages, which are part of how nodes are joined."""
    types = {"accepts": spec.accepts, "emits": spec.emits, "answers": spec.answers}
    return {field: tuple(sorted(tags)) for field, tags in types.items()}


def ports(spec: ExecutorNode) -> tuple[tuple[str, str], ...]:
    """Return nothing: its messages go along `edges[]`."""
    return ()


def binds(spec: ExecutorNode) -> Binds:
    """Return the name of its code."""
    return Binds(callables=(Needed("executor", spec.executor),))


def bounded(spec: ExecutorNode) -> tuple[str, ...]:
    """Return the port of its messages, if it may ask a person, or answers what a nested workflow asks: that
    bounds a cycle through it."""
    return ("next",) if spec.answers or "SubWorkflowRequest" in spec.accepts else ()


def check(spec: ExecutorNode, at: NodeReport) -> None:
    """Check the names."""
    at.not_blank("executor", spec.executor)
    for field in ("accepts", "emits", "answers"):
        for i, tag in enumerate(getattr(spec, field)):
            at.not_blank(f"{field}/{i}", tag)
