"""`filter`: the elements of an array for which an expression is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase, next_port

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval"})


class FilterNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="filter"):
    """Keeps, in order, the elements for which `expression` is true; it reads `item` and `index`."""

    items_path: str
    expression: str
    next: str | None = None


Spec = FilterNode
ports = next_port


def check(spec: FilterNode, at: NodeReport) -> None:
    """Check the path of the array, and the expression with the item that it may read."""
    at.path("items_path", spec.items_path)
    at.expression("expression", spec.expression, item=True)
