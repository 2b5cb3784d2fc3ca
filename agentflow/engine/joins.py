"""Joins: when a node is activated by what comes along its edges. A join is a value of the target node.

`any` makes one activation for each token. The joins of dependencies make one, when every dependency is
settled: it has ended, or it takes tokens and none can reach it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agentflow.engine.graph import Edge, Graph, Node
    from agentflow.engine.path import Path

__all__ = ["JOINS", "SETTLED", "Fan", "Join", "Skip", "Window", "fans_of"]

SETTLED = "settled"
"""The port of dependencies: taken by every end of a node that has dependents."""


class Skip(NamedTuple):
    """Why a step will not run: the reason of page 000 §6.1, the expression, and the steps that decided it."""

    reason: str
    detail: str | None = None
    caused_by: tuple[str, ...] = ()


class Fan:
    """`round`: a fan-in, which brings one list for each round of its sources (page 002 §5). `name` is that of
    its target, with the group if one is named; a target may have several."""

    __slots__ = ("edges", "index", "name", "on_missing", "quorum", "sources", "target", "timeout")

    def __init__(self, index: int, name: str, edges: tuple[Edge, ...]) -> None:
        spec = edges[0].spec
        assert spec is not None
        self.index = index
        self.name = name
        self.edges = edges
        self.target: Node = edges[0].target
        self.sources = tuple(dict.fromkeys(e.source.id for e in edges if e.source is not None))
        self.on_missing = spec.on_missing
        self.quorum = spec.quorum
        self.timeout = spec.timeout


def fans_of(edges: Iterable[Edge]) -> tuple[Fan, ...]:
    """Return the fan-ins that these edges form, in the order of their names; each edge gets its own."""
    groups: dict[str, list[Edge]] = {}
    for edge in edges:
        if edge.spec is not None and edge.spec.kind == "fan_in":
            group = edge.spec.group
            groups.setdefault(edge.target.id if group is None else f"{edge.target.id}/{group}", []).append(
                edge
            )
    found: list[Fan] = []
    for name in sorted(groups):
        fan = Fan(len(found), name, tuple(sorted(groups[name], key=lambda edge: edge.index)))
        found.append(fan)
        for edge in fan.edges:
            assert edge.terms is not None
            edge.terms.fan = fan
    return tuple(found)


class Join:
    """`any`: one activation a token."""

    takes_tokens = True
    gathers = False
    """True if a token may be taken in by an activation that another one made."""

    def watched_sources(self, graph: Graph, node: Node) -> tuple[str, ...]:
        """Return the sources of which must be known whether they can still arrive."""
        return ()

    def skip(self, path: Path, node: Node) -> Skip | None:
        """Return why the node does not run, given how its dependencies ended; None if it does."""
        return None


class AllTerminal(Join):
    """`all_terminal`: once all dependencies are settled, however they ended."""

    takes_tokens = False

    def watched_sources(self, graph: Graph, node: Node) -> tuple[str, ...]:
        """Return the dependencies that take tokens: nothing says that they are ever reached."""
        return tuple(d for d in node.dependencies if graph.nodes[d].join.takes_tokens)


class AllSucceeded(AllTerminal):
    """`all_succeeded`: skipped unless all dependencies succeeded (page 001 §5.2)."""

    def skip(self, path: Path, node: Node) -> Skip | None:
        """Return the gravest of the reasons, with all dependencies that share it."""
        by_status: dict[str, list[str]] | None = None
        for dependency in node.dependencies:
            place = path.nodes[dependency]
            status = place.status
            if status != "succeeded" and not (place.excused and status == "failed"):
                by_status = {} if by_status is None else by_status
                by_status.setdefault(status, []).append(dependency)
        if by_status is None:
            return None
        for status, reason in _REASONS:
            if status in by_status:
                return Skip(reason, None, tuple(by_status[status]))
        return None


_REASONS = (
    ("failed", "dependency_failed"),
    ("cancelled", "dependency_cancelled"),
    ("skipped", "dependency_skipped"),
)


class Window(Join):
    """`window`: one activation for the tokens of a key that come until it closes (batch, page 003 §4)."""

    gathers = True

    def watched_sources(self, graph: Graph, node: Node) -> tuple[str, ...]:
        """Return the nodes that send it tokens: the window closes when none of them can any more."""
        found: dict[str, None] = {}
        for other in graph.nodes.values():
            for edges in other.out.values():
                if other is not node and any(edge.target is node for edge in edges):
                    found[other.id] = None
        return tuple(found)


JOINS: dict[str, Join] = {"any": Join(), "all_succeeded": AllSucceeded(), "all_terminal": AllTerminal()}
