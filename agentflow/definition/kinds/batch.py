"""`batch`: an array in parts, or tokens gathered to arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase, next_port
from agentflow.definition.policy import MAX_SECONDS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval"})


class BatchNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="batch"):
    """With `items_path`: the array at once, or arrays of at most `size`. Without it: a window of tokens.

    A window of the key at `key_path` goes on as one array when it holds `size` tokens, when `max_wait`
    seconds have passed since its first, or when nothing live can reach the node any more.
    """

    items_path: str | None = None
    next: str | None = None
    size: int | None = None
    max_wait: float | None = None
    key_path: str | None = None


Spec = BatchNode
ports = next_port


def check(spec: BatchNode, at: NodeReport) -> None:
    """Check the paths and the bounds of the window."""
    at.at_least_one(spec, "", "size")
    if spec.max_wait is not None:
        at.range("max_wait", spec.max_wait, above=0, most=MAX_SECONDS)
    if spec.items_path is None:
        if spec.key_path is not None:
            at.path("key_path", spec.key_path)
        return
    at.path("items_path", spec.items_path)
    for field in ("max_wait", "key_path"):
        if getattr(spec, field) is not None:
            at.conflict(field, f'"{spec.id}" reads an array, and has no window', "leave items_path out")
