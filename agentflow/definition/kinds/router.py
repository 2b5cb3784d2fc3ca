"""`router`: the first of several ways whose expression is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "diamond"
TAKES = frozenset({"approval"})
STRUCTURAL = frozenset({"next", "on_error", "routes", "default"})


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One way: `next` is taken if `when` is true and no earlier route was."""

    when: str
    next: str


class RouterNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="router"):
    """Sends its token along the first true route, else to `default`. Later routes are not evaluated."""

    routes: tuple[Route, ...]
    default: str


Spec = RouterNode


def ports(spec: RouterNode) -> tuple[tuple[str, str], ...]:
    """Return the routes in declared order, and the default."""
    routes = ((f"routes/{i}/next", route.next) for i, route in enumerate(spec.routes))
    return *routes, ("default", spec.default)


def label(spec: RouterNode, port: str) -> str | None:
    """Return `route1`, `route2`, … or `default`."""
    return port if port == "default" else f"route{int(port.split('/')[1]) + 1}"


def routing(spec: RouterNode) -> dict[str, str]:
    """Return the expressions that choose the way."""
    return {f"route{i}": route.when for i, route in enumerate(spec.routes, 1)}


def check(spec: RouterNode, at: NodeReport) -> None:
    """Check that there are routes, and their expressions."""
    if not spec.routes:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has no routes', "routes", "add a route, or use next instead")
    for i, route in enumerate(spec.routes):
        at.expression(f"routes/{i}/when", route.when)
