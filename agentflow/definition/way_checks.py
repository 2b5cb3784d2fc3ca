"""The ways through a graph: what is reached, what leads to an end, what goes round (page 003 §5)."""

from __future__ import annotations

import msgspec

from agentflow.definition.connections import Connections, Links, Way, circles, reachable, waits_by_rule
from agentflow.definition.cycles import shortest_cycle
from agentflow.definition.ir import Node, Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import kind_of
from agentflow.definition.report import shown

__all__ = [
    "Regions",
    "check_branches",
    "check_choices",
    "check_loops",
    "check_missing_next",
    "check_waits",
    "check_ways",
]


_SHOWN_CYCLE = 12


class _Path(msgspec.Struct, eq=False):
    """A path of the run, or the child path that a way opens: it ends where it would enter `stop`."""

    way: Way | None = None
    parent: _Path | None = None
    stop: str | None = None
    has_item: bool = False


class Regions:
    """The path that each node belongs to, found in one pass, outer paths before inner ones.

    A child path ends when it would enter the `next` of its opener, or after a node without a way on.
    `problems` are branches that reach an end, or a node of another path: a sibling's, or one outside.
    """

    def __init__(self, found: Connections) -> None:
        self._found = found
        self._links = found.onward(opening=False)
        self._opening: dict[str, list[Way]] = {}
        for way in found.ways:
            if way.opens:
                self._opening.setdefault(way.source, []).append(way)
        self.problems: list[tuple[Way, str, _Path | None]] = []
        root = _Path()
        self._owner = dict.fromkeys(found.begins, root)
        todo = [(root, found.begins)]
        for path, begins in todo:
            if path.way is not None:
                begins = self._enter(path, begins)
            todo += self._walk(path, list(begins))

    def _walk(self, path: _Path, begins: list[str]) -> list[tuple[_Path, list[str]]]:
        """Give nodes to a path; return the child paths that begin on it."""
        opened: list[tuple[_Path, list[str]]] = []
        while begins:
            node_id = begins.pop()
            node = self._found.by_id[node_id]
            if node_id in self._opening:
                kind = kind_of(node)
                stop = dict(kind.ports(node)).get("next")
                has_item = path.has_item or kind.iterates
                opened += [(_Path(w, path, stop, has_item), [w.target]) for w in self._opening[node_id]]
            begins += self._enter(path, self._links[node_id])
        return opened

    def _enter(self, path: _Path, targets: list[str]) -> list[str]:
        """Give these nodes to a path; return those that it has now and had not before."""
        entered: list[str] = []
        for target in targets:
            owner = self._owner.get(target)
            if target == path.stop or owner is path:
                continue
            is_end = path.way is not None and kind_of(self._found.by_id[target]).is_end
            if owner is None and not is_end:
                self._owner[target] = path
                entered.append(target)
            elif path.way is not None:
                self.problems.append((path.way, target, None if is_end else owner))
        return entered

    @property
    def branch_only(self) -> set[str]:
        """The nodes of child paths."""
        return {node_id for node_id, path in self._owner.items() if path.way is not None}

    def nodes_of(self, way: Way) -> list[str]:
        """Return the nodes of the child path that a way opens, without those of child paths in it."""
        return [node_id for node_id, path in self._owner.items() if path.way is way]

    def has_item(self, node_id: str) -> bool:
        """Return True for a node on a child path of a map."""
        return node_id in self._owner and self._owner[node_id].has_item

    def is_inside(self, node_id: str, opener: str) -> bool:
        """Return True for a node on a child path of an opener, or below one."""
        path = self._owner.get(node_id)
        while path is not None and (path.way is None or path.way.source != opener):
            path = path.parent
        return path is not None


def check_branches(found: Connections, regions: Regions, report: IrReport) -> None:
    """Report branches that leave their group or meet, and sources of merges that lie elsewhere."""
    told: set[str] = set()
    for way, target, owner in regions.problems:
        if way.pointer in told:
            continue
        told.add(way.pointer)
        about = f'the branch "{way.target}" of "{way.source}"'
        other = owner.way if owner is not None else None
        if owner is None:
            message = f'{about} reaches the end "{target}"'
            hint = "lead it to next, or let it end without a next"
            report.error("E_END_IN_BRANCH", message, way.pointer, hint)
        elif other is not None and other.source == way.source:
            if target != way.target or other.target != way.target:
                message = f'"{target}" is on two branches of "{way.source}": the last output wins'
                report.warning("W_BRANCH_OVERLAP", message, way.pointer)
        else:
            message = f'{about} leaves its group: it reaches "{target}"'
            report.error("E_BRANCH_ESCAPE", message, way.pointer, "let it leave through next alone")
    for opener in dict.fromkeys(way.source for way in found.ways if way.opens):
        _check_sources(opener, found, regions, report)


def _check_sources(opener: str, found: Connections, regions: Regions, report: IrReport) -> None:
    """Warn of sources of a merge that closes a group, which are on none of its branches."""
    joined = dict(kind_of(found.by_id[opener]).ports(found.by_id[opener])).get("next")
    node = found.by_id.get(joined or "")
    if node is None or not kind_of(node).closes_groups:
        return
    for field, source in kind_of(node).references(node):
        if not regions.is_inside(source, opener):
            message = f'"{source}" is on no branch of "{opener}", which "{node.id}" joins'
            pointer = f"/nodes/{found.order[node.id]}/{field}"
            report.warning("W_MERGE_SOURCE_OUTSIDE_BRANCHES", message, pointer)


def check_missing_next(workflow: Workflow, found: Connections, regions: Regions, report: IrReport) -> None:
    """Report nodes that lead nowhere. The last node of a branch, one that others wait for and one that may
    end a path need no way on."""
    awaited = {dependency for waiting in found.waits.values() for dependency in waiting}
    leads_on = found.leads_on | regions.branch_only
    for i, node in enumerate(workflow.nodes):
        kind = kind_of(node)
        exempt = kind.is_border or kind.may_end or waits_by_rule(node) or node.id in awaited
        if not exempt and node.id not in leads_on:
            hint = "set next, or let it wait by depends_on"
            report.error("E_MISSING_NEXT", f'"{node.id}" leads nowhere', f"/nodes/{i}", hint)


def check_waits(found: Connections, report: IrReport) -> None:
    """Report each cycle of dependencies once, at its first node."""
    for circle in circles(found.waits, found.order):
        cycle = shortest_cycle(found.waits, circle[0], set(circle))
        if len(cycle) > _SHOWN_CYCLE:
            cycle = [*cycle[: _SHOWN_CYCLE - 2], "…", cycle[-1]]
        message = f"{report.origin.words.node}s form a cycle: {' → '.join(cycle)}"
        pointer = f"/nodes/{found.order[circle[0]]}"
        report.error("E_CYCLE", message, pointer, "remove one of these dependencies")


def check_ways(workflow: Workflow, found: Connections, regions: Regions, report: IrReport) -> None:
    """Report nodes that lie on no way from the start to an end. All nodes that are named exist."""
    (start,) = found.begins
    onward = found.onward()
    for node_id in found.ending:
        onward[node_id] += found.ends
    reached = reachable([start], onward)
    if not reached & set(found.ends):
        message, hint = "no way leads from the start to an end", "set next of the StartNode"
        report.error("E_NO_PATH_TO_END", message, f"/nodes/{found.order[start]}", hint)
    back: Links = {node_id: [] for node_id in onward}
    for source, targets in onward.items():
        for target in targets:
            back[target].append(source)
    leading = reachable(found.ends, back) | regions.branch_only
    for i, node in enumerate(workflow.nodes):
        if node.id not in reached:
            message = f'no way leads from the start to "{node.id}"'
            report.error("E_UNREACHABLE_NODE", message, f"/nodes/{i}")
        elif node.id not in leading and node.id != start:
            report.error("E_DEAD_END", f'no way leads from "{node.id}" to an end', f"/nodes/{i}")


def check_loops(workflow: Workflow, found: Connections, report: IrReport) -> None:
    """Warn of ways on which a token comes back for ever. A limit, a wait, a person or a condition on an edge
    bounds the ways through it."""
    tokens: Links = {node_id: [] for node_id in found.by_id}
    for way in found.ways:
        if not way.bounded:
            tokens[way.source].append(way.target)
    for circle in circles(tokens, found.order):
        message = shown(f"nothing bounds the way round {', '.join(circle)}", 200)
        hint = f"the run fails after {workflow.options.max_steps:,} steps: options.max_steps"
        report.warning("W_UNBOUNDED_CYCLE", message, f"/nodes/{found.order[circle[0]]}", hint)


def check_choices(workflow: Workflow, found: Connections, report: IrReport) -> None:
    """Warn of choices without an alternative, and of loop bodies that do not come back."""
    onward = found.onward()
    for i, node in enumerate(workflow.nodes):
        _check_choice(node, f"/nodes/{i}", onward, report)


def _check_choice(node: Node, pointer: str, onward: Links, report: IrReport) -> None:
    kind = kind_of(node)
    ports = dict(kind.ports(node))
    chooses = kind.routing is not None and (bool(kind.routing(node)) or len(ports) > 1)
    if chooses and len(set(ports.values())) == 1:
        message = f'every way of "{node.id}" leads to "{next(iter(ports.values()))}"'
        report.warning("W_GATE_WITHOUT_ALTERNATE", message, pointer, "give its outcomes targets of their own")
    elif kind.returns is not None:
        port = kind.returns(node)
        if node.id not in reachable([ports[port]], onward):
            message = f'no way leads from {port} "{ports[port]}" back to "{node.id}": it runs once'
            report.warning("W_LOOP_BODY_NO_RETURN", message, f"{pointer}/{port}", "let its end lead back")
