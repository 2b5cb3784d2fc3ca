"""What drawings of a graph show, whatever their language: nodes, ways with labels, joins, inner graphs.

Pure; the same graph gives the same drawing. Names come from documents, which are not trusted: the languages
escape them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentflow.definition.ir import Edge, Node, Workflow
from agentflow.definition.kinds import kind_of, targets_of

__all__ = ["STATE_COLOURS", "DrawnWay", "inner_of", "joins_of", "nodes_of", "ways_of"]

STATE_COLOURS = {
    "pending": ("#ffffff", "#8a8a8a"),
    "running": ("#cfe8ff", "#1f6fb2"),
    "waiting": ("#fff3bf", "#b08900"),
    "succeeded": ("#d3f9d8", "#2b8a3e"),
    "failed": ("#ffe3e3", "#c92a2a"),
    "skipped": ("#f1f3f5", "#868e96"),
    "cancelled": ("#ffe8cc", "#d9480f"),
}
"""State of a step to the colours of its area and its line."""


class DrawnWay(NamedTuple):
    """A way from a node or join to another. `dashed`: it has a condition."""

    source: str
    target: str
    label: str | None = None
    dashed: bool = False


def nodes_of(workflow: Workflow) -> list[Node]:
    """Return the nodes in the order of their ids."""
    return sorted(workflow.nodes, key=lambda node: node.id.encode())


def inner_of(node: Node) -> Workflow | None:
    """Return the graph that a node runs, which is drawn inside it."""
    return kind_of(node).inner(node)


def joins_of(workflow: Workflow, prefix: str = "") -> list[str]:
    """Return the keys of the fan-ins of a graph, in order: `join_<target>`, with the group if one is named.

    They end in a NUL, so that none is the id of a node.
    """
    return sorted({_join_id(edge, prefix) for edge in workflow.edges if edge.kind == "fan_in"})


def ways_of(workflow: Workflow, prefix: str = "") -> Iterator[DrawnWay]:
    """Yield the ways of a graph: of target fields, of sources and `depends_on` by node, then of `edges[]`.

    Those of inner graphs follow, whose ids begin with `<node>/`.
    """
    nodes = nodes_of(workflow)
    for node in nodes:
        kind = kind_of(node)
        for port, target in targets_of(node):
            label = "error" if port == "on_error/next" else kind.label(node, port)
            yield DrawnWay(prefix + node.id, prefix + target, label)
    for node in nodes:
        for _, source in kind_of(node).references(node):
            yield DrawnWay(prefix + source, prefix + node.id, "source")
    for node in nodes:
        for dependency in node.depends_on:
            yield DrawnWay(prefix + dependency, prefix + node.id)
    yield from _edges(workflow, prefix)
    for node in nodes:
        inner = inner_of(node)
        if inner is not None:
            yield from ways_of(inner, f"{prefix}{node.id}/")


def _edges(workflow: Workflow, prefix: str) -> Iterator[DrawnWay]:
    """Yield the ways of `edges[]`; a fan-in is one way from each source to the join, and one onward."""
    for edge in workflow.edges:
        source, target = prefix + edge.source, prefix + edge.target
        if edge.kind == "fan_in":
            yield DrawnWay(source, _join_id(edge, prefix), edge.name)
        else:
            yield DrawnWay(source, target, _label(edge), dashed=edge.kind == "single" and _is_tested(edge))
    seen: set[str] = set()
    for edge in workflow.edges:
        join = _join_id(edge, prefix)
        if edge.kind == "fan_in" and join not in seen:
            seen.add(join)
            yield DrawnWay(join, prefix + edge.target)


def _is_tested(edge: Edge) -> bool:
    return edge.when is not None or edge.predicate is not None


def _label(edge: Edge) -> str | None:
    if edge.kind == "error":
        return "error"
    if edge.name is not None:
        return edge.name
    if edge.kind == "switch" and not _is_tested(edge):
        return "default"
    if edge.when is not None:
        return edge.when
    return _short(edge.predicate or edge.selection)


def _short(identity: str | None) -> str | None:
    """Return the name of a function without its module: `too_risky` of `claims:too_risky`."""
    return None if identity is None else identity.rpartition(":")[2] or identity


def _join_id(edge: Edge, prefix: str) -> str:
    return f"{prefix}join_{edge.target}{'' if edge.group is None else f'_{edge.group}'}\0"
