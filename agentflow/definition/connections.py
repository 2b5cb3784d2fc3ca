"""How the nodes of a graph are connected: where tokens go, who waits for whom, where child paths begin.

What names no node, or leads where no token enters, is reported and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from agentflow.definition.cycles import components
from agentflow.definition.ir import Edge, Node, Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import kind_of, targets_of
from agentflow.definition.report import shown

__all__ = ["Ancestors", "Connections", "Links", "Way", "circles", "connect", "reachable", "waits_by_rule"]

Links = dict[str, list[str]]
"""Node to nodes."""

_CONDITIONAL = ("switch", "multi")


class Way(msgspec.Struct, frozen=True):
    """One way of tokens. `opens`: it begins a child path. `bounded`: it cannot be taken for ever."""

    source: str
    target: str
    pointer: str
    opens: bool = False
    bounded: bool = False


class Ancestors(msgspec.Struct, frozen=True):
    """A set of nodes: bit i of `mask` stands for the node whose `order` is i."""

    mask: int
    order: dict[str, int]

    def __contains__(self, node_id: str) -> bool:
        index = self.order.get(node_id)
        return index is not None and bool(self.mask >> index & 1)


class Connections(msgspec.Struct):
    """The connections of one graph. `ancestors`: for each node those that it waits for, directly or not, as a
    bit mask over `order`; `unsure`: pointers of nodes whose dependencies are wrong."""

    by_id: dict[str, Node]
    order: dict[str, int]
    ways: list[Way]
    waits: Links
    leads_on: set[str]
    begins: list[str]
    ends: list[str]
    ancestors: dict[str, int] = {}
    unsure: set[str] = set()

    def onward(self, *, opening: bool = True) -> Links:
        """Return where each node leads by tokens and by dependencies; without `opening`, no child paths."""
        onward: Links = {node_id: [] for node_id in self.by_id}
        for way in self.ways:
            if opening or not way.opens:
                onward[way.source].append(way.target)
        for node in self.by_id.values():
            if waits_by_rule(node):
                for dependency in self.waits[node.id] or self.begins:
                    onward[dependency].append(node.id)
        return onward

    def before(self, node: Node) -> Ancestors:
        """Return the nodes before a node, also of one whose id is used twice."""
        return Ancestors(self._mask(d for d in node.depends_on if d in self.waits), self.order)

    def close(self) -> None:
        """Fill `ancestors`; the nodes of a cycle are before each other."""
        for component in components(self.waits):
            mask = self._mask(d for node_id in component for d in self.waits[node_id])
            self.ancestors.update(dict.fromkeys(component, mask))

    def _mask(self, dependencies: Iterable[str]) -> int:
        mask = 0
        for dependency in dependencies:
            mask |= self.ancestors.get(dependency, 0) | 1 << self.order[dependency]
        return mask

    @property
    def ending(self) -> list[str]:
        """The nodes after which a path may end without an edge: the end of the run then follows."""
        awaited = {dependency for waiting in self.waits.values() for dependency in waiting}
        return [
            node.id
            for node in self.by_id.values()
            if kind_of(node).may_end or (waits_by_rule(node) and node.id not in awaited)
        ]


def waits_by_rule(node: Node) -> bool:
    """Return True for a node of a dependency graph, which tokens neither enter nor leave."""
    return node.join != "any" and "dependency" in kind_of(node).takes


def reachable(begin: Iterable[str], links: Links) -> set[str]:
    """Return these nodes and all that their links lead to."""
    todo = list(begin)
    found = set(todo)
    while todo:
        for target in links[todo.pop()]:
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def circles(links: Links, order: dict[str, int]) -> Iterator[list[str]]:
    """Yield the groups of nodes that lead back to themselves, each in declared order."""
    for group in components(links):
        if len(group) > 1 or group[0] in links[group[0]]:
            yield sorted(group, key=order.__getitem__)


def connect(workflow: Workflow, by_id: dict[str, Node], report: IrReport) -> Connections:
    """Return the connections of a graph; `by_id` has the first node of each id."""
    found = Connections(
        by_id=by_id,
        order={node.id: i for i, node in reversed(list(enumerate(workflow.nodes)))},
        ways=[],
        waits={node_id: [] for node_id in by_id},
        leads_on=set(),
        begins=[node.id for node in by_id.values() if kind_of(node).is_start],
        ends=[node.id for node in by_id.values() if kind_of(node).is_end],
    )
    for i, node in enumerate(workflow.nodes):
        _connect_fields(node, f"/nodes/{i}", found, report)
    _connect_edges(workflow.edges, found, report)
    found.close()
    return found


def _connect_fields(node: Node, pointer: str, found: Connections, report: IrReport) -> None:
    kind = kind_of(node)
    opens, bounded = kind.opens(node), kind.bounded(node)
    asks = node.approval is not None and node.approval.before == "step"
    for port, target in targets_of(node):
        if port not in opens and _is_regular(node, port):
            found.leads_on.add(node.id)
        path = f"{pointer}/{port}"
        if not _exists(target, path, found, report) or waits_by_rule(node):
            continue
        if _entered(node, found.by_id[target], path, report):
            way = Way(node.id, target, path, opens=port in opens, bounded=asks or port in bounded)
            found.ways.append(way)
    for field, named in kind.references(node):
        _exists(named, f"{pointer}/{field}", found, report)
    waiting = not kind.is_border and found.by_id[node.id] is node
    for j, dependency in enumerate(node.depends_on):
        path = f"{pointer}/depends_on/{j}"
        if dependency not in found.by_id or dependency in report.origin.hidden:
            found.unsure.add(pointer)
            _report_unknown(node, dependency, path, found, report)
        elif kind_of(found.by_id[dependency]).is_end:
            report.error("E_VALUE", f'nothing comes after the end "{dependency}"', path)
        elif waiting and not kind_of(found.by_id[dependency]).is_start:
            found.waits[node.id].append(dependency)


def _report_unknown(node: Node, dependency: str, path: str, found: Connections, report: IrReport) -> None:
    known, names = report.report, [n for n in found.by_id if n and n not in report.origin.hidden]
    if not report.origin.is_excused(dependency, lambda: known.nearest(dependency, names) is not None):
        word = report.origin.words.node
        message = f'"{shown(node.id) or f"a {word}"}" depends on unknown {word} "{shown(dependency)}"'
        report.error("E_UNKNOWN_DEPENDENCY", message, path, known.did_you_mean(dependency, names))


def _connect_edges(edges: tuple[Edge, ...], found: Connections, report: IrReport) -> None:
    by_field = {(way.source, way.target) for way in found.ways}
    seen: set[tuple[str, str, str | None, bool]] = set()  # failures go along edges of their own
    for i, edge in enumerate(edges):
        path = f"/edges/{i}"
        if not all(
            [
                _exists(edge.source, f"{path}/source", found, report),
                _exists(edge.target, f"{path}/target", found, report),
            ]
        ):
            continue
        key = (edge.source, edge.target, edge.name, edge.kind == "error")
        if key in seen or (edge.name is None and edge.kind == "single" and key[:2] in by_field):
            message = f'the edge from "{edge.source}" to "{edge.target}" is repeated'
            hint = "give each a name of its own" if edge.kind != "single" or _is_conditional(edge) else None
            report.error("E_DUPLICATE_EDGE", message, path, hint)
            continue
        seen.add(key)
        if edge.kind != "error":
            found.leads_on.add(edge.source)
        source = found.by_id[edge.source]
        if _followed(edge, source, found.by_id[edge.target], path, report):
            asks = source.approval is not None and source.approval.before == "step"
            bounded = asks or _is_conditional(edge) or edge.kind in _CONDITIONAL
            bounded = bounded or "next" in kind_of(source).bounded(source)
            found.ways.append(Way(edge.source, edge.target, path, bounded=bounded))


def _is_regular(node: Node, port: str) -> bool:
    """Return whether a port is a way that the node takes as a rule, not in a case that the port names."""
    if "next" not in node.__struct_fields__:
        return port != "on_error/next"
    return port in ("next", "on_approve", "on_reject")


def _is_conditional(edge: Edge) -> bool:
    return edge.when is not None or edge.predicate is not None


def _exists(target: str, path: str, found: Connections, report: IrReport) -> bool:
    if target in found.by_id:
        return True
    hint = report.report.nearest_or_all(target, list(found.by_id))
    report.error("E_UNKNOWN_TARGET", f'there is no node "{shown(target)}"', path, hint)
    return False


def _followed(edge: Edge, source: Node, target: Node, path: str, report: IrReport) -> bool:
    """Return True if tokens go along an edge; report one that nothing would ever follow. Those of the start
    and to the end may be written out also where nodes wait for each other."""
    hint = None
    kind = kind_of(source)
    if kind.is_end:
        message = f'nothing comes after the end "{source.id}"'
    elif kind.is_start and edge.kind == "error":
        message = f'the start "{source.id}" does no work that could fail'
    elif kind.routing is not None and edge.kind != "error":
        ports = " and ".join(port for port, _ in kind.ports(source))
        message = f'the {kind.name} "{source.id}" has {ports} alone'
    elif waits_by_rule(source):
        if kind_of(target).is_end and edge.kind == "single":
            return False
        message = f'"{source.id}" sends nothing along edges: it waits by rule {source.join}'
        hint = f'let "{target.id}" depend on it'
    else:
        return _entered(source, target, path, report)
    report.error("E_CONFLICTING_FIELDS", message, path, hint)
    return False


def _entered(source: Node, target: Node, path: str, report: IrReport) -> bool:
    """Return True if tokens enter the target; report where they never would."""
    hint = None
    if kind_of(target).is_start:
        message = f'nothing leads to the start "{target.id}"'
    elif not waits_by_rule(target):
        return True
    elif kind_of(source).is_start and not target.depends_on:
        return False
    else:
        message = f'"{target.id}" is not entered by edges: it waits by rule {target.join}'
        hint = f'add "{source.id}" to its depends_on'
    report.error("E_CONFLICTING_FIELDS", message, path, hint)
    return False
