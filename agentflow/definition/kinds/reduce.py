"""`reduce`: an array becomes one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentflow.definition.node import NodeBase, next_port

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "source"})

Operation = Literal["count", "sum", "min", "max", "avg", "concat", "merge", "first", "last"]


class ReduceNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="reduce"):
    """Folds the array that the node `source` gave, or that stands at `items_path`.

    `count` and `sum` of an empty array are 0, all else of it is null. Integers stay exact.
    """

    operation: Operation
    source: str | None = None
    items_path: str | None = None
    next: str | None = None


Spec = ReduceNode
ports = next_port


def references(spec: ReduceNode) -> tuple[tuple[str, str], ...]:
    """Return the node whose output it reads; that is no edge, and is drawn as `source`."""
    return () if spec.source is None else (("source", spec.source),)


def check(spec: ReduceNode, at: NodeReport) -> None:
    """Check that there is one array."""
    if spec.items_path is not None:
        at.path("items_path", spec.items_path)
        if spec.source is not None:
            at.conflict("items_path", f'"{spec.id}" reads a source', "keep source or items_path")
    elif spec.source is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has neither source nor items_path', "source")
