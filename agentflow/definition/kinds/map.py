"""`map`: one child path for each element of an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.kinds.tool import check_tool_name
from agentflow.definition.node import Binds, Needed, NodeBase

if TYPE_CHECKING:
    from agentflow.definition.graph import Options
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget", "policy", "dependency"})
ITERATES = True
STRUCTURAL = frozenset({"next", "on_error", "body"})


class MapNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="map"):
    """Calls `tool`, or opens a child path at the node `body`, for each element.

    At most `max_in_flight` are at work at once. `input` is a template for each item; unset, the input is the
    item. The output is an array in item order. With `exchange` the array is the message that arrives, and the
    results go on as a message with the types that the bodies sent.
    `on_item_error`: `fail` fails the node, `collect` leaves a null, `skip` leaves the item out.
    """

    items_path: str
    next: str | None = None
    max_in_flight: int = 8
    tool: str | None = None
    body: str | None = None
    input: Any = msgspec.UNSET
    on_item_error: Literal["fail", "collect", "skip"] = "fail"
    exchange: bool = False


Spec = MapNode


def ports(spec: MapNode) -> tuple[tuple[str, str], ...]:
    """Return the way on and the body."""
    pairs = (("next", spec.next), ("body", spec.body))
    return tuple((port, target) for port, target in pairs if target is not None)


def opens(spec: MapNode) -> tuple[str, ...]:
    """Return the port at which child paths begin."""
    return () if spec.body is None else ("body",)


def spreads(spec: MapNode) -> bool:
    """Return whether it calls a tool: then each call is an iteration."""
    return spec.tool is not None


def at_once(spec: MapNode, options: Options) -> int:
    """Return how many items may be at work at once."""
    return min(spec.max_in_flight, options.scheduler_max_in_flight)


def binds(spec: MapNode) -> Binds:
    """Return the function that it calls for each item, if it calls one."""
    return Binds() if spec.tool is None else Binds(tools=(Needed("tool", spec.tool),))


def check(spec: MapNode, at: NodeReport) -> None:
    """Check the path, what is done for each item, and its input."""
    at.path("items_path", spec.items_path)
    at.at_least_one(spec, "", "max_in_flight")
    at.template("input", spec.input, item=True)
    if spec.tool is not None:
        check_tool_name(spec.tool, at)
    if spec.tool is not None and spec.for_each is not None:
        at.conflict("for_each", f'"{spec.id}" calls a tool for each of its items', "write a body")
    if spec.tool is None and spec.body is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has neither tool nor body', "tool")
    elif spec.tool is not None and spec.body is not None:
        at.conflict("body", f'"{spec.id}" calls a tool for each item', "keep tool or body")
    elif spec.body is not None and spec.policy is not None:
        at.conflict("policy", f'"{spec.id}" calls nothing itself', "set it on the nodes of its body")
