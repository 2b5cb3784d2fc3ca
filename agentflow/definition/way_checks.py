"""The ways through a graph: what is reached, what leads to an end, what goes round (page 003 §5)."""

from __future__ import annotations

from agentflow.definition.connections import Connections, Links, Way, circles, reachable, waits_by_rule
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


class Regions:
    """The nodes of child paths: for each way that opens one, what it reaches before the opener's `next`.

    A path ends when it would enter `next`, or after a node without a way on. An end, and a node that other
    ways reach too, are not members: `leaving` has the first of them on each opening way.
    """

    def __init__(self, found: Connections) -> None:
        self.inside: dict[str, set[str]] = {}
        self.leaving: dict[str, str] = {}
        self.branch_only: set[str] = set()
        by_opener: dict[str, list[Way]] = {}
        for way in found.ways:
            if way.opens:
                by_opener.setdefault(way.source, []).append(way)
        if not by_opener:
            return
        whole, plain = found.onward(), found.onward(opening=False)
        for opener, ways in by_opener.items():
            outside = reachable(found.begins, {**whole, opener: plain[opener]})
            stop = dict(kind_of(found.by_id[opener]).ports(found.by_id[opener])).get("next")
            for way in ways:
                self.inside[way.pointer] = self._region(way, whole, outside, stop, found)
        self.branch_only = set().union(*self.inside.values()) - reachable(found.begins, plain)

    def _region(
        self, way: Way, whole: Links, outside: set[str], stop: str | None, found: Connections
    ) -> set[str]:
        region: set[str] = set()
        todo = [way.target]
        while todo:
            node_id = todo.pop()
            if node_id in region or node_id == stop:
                continue
            if node_id in outside or kind_of(found.by_id[node_id]).is_end:
                self.leaving.setdefault(way.pointer, node_id)
            else:
                region.add(node_id)
                todo += whole[node_id]
        return region


def check_branches(found: Connections, regions: Regions, report: IrReport) -> None:
    """Report branches that leave their group or meet, and sources of merges that lie elsewhere."""
    by_opener: dict[str, list[Way]] = {}
    for way in found.ways:
        if way.opens:
            by_opener.setdefault(way.source, []).append(way)
    for opener, ways in by_opener.items():
        for i, way in enumerate(ways):
            _check_leaving(way, found, regions, report)
            meets = next((n for w in ways[:i] for n in found.by_id if n in _both(regions, w, way)), None)
            if meets is not None and way.target not in {w.target for w in ways[:i]}:
                message = f'"{meets}" is on two branches of "{opener}": the last output wins'
                report.warning("W_BRANCH_OVERLAP", message, way.pointer)
    _check_sources(found, by_opener, regions, report)


def _both(regions: Regions, one: Way, other: Way) -> set[str]:
    return regions.inside[one.pointer] & regions.inside[other.pointer]


def _check_leaving(way: Way, found: Connections, regions: Regions, report: IrReport) -> None:
    target = regions.leaving.get(way.pointer)
    if target is None:
        return
    if kind_of(found.by_id[target]).is_end:
        message = f'the branch "{way.target}" of "{way.source}" reaches the end "{target}"'
        report.error("E_END_IN_BRANCH", message, way.pointer, "lead it to next, or let it end without a next")
    else:
        message = f'the branch "{way.target}" of "{way.source}" leaves its group: it reaches "{target}"'
        report.error("E_BRANCH_ESCAPE", message, way.pointer, "let it leave through next alone")


def _check_sources(
    found: Connections, by_opener: dict[str, list[Way]], regions: Regions, report: IrReport
) -> None:
    """Warn of sources of a merge that closes a group, which are on none of its branches."""
    for opener, ways in by_opener.items():
        joined = dict(kind_of(found.by_id[opener]).ports(found.by_id[opener])).get("next")
        node = found.by_id.get(joined or "")
        inside = {n for way in ways for n in regions.inside[way.pointer]}
        for field, source in kind_of(node).references(node) if node is not None else ():
            if source not in inside:
                message = f'"{source}" is on no branch of "{opener}", which "{node.id if node else ""}" joins'
                pointer = f"/nodes/{found.order[node.id if node else '']}/{field}"
                report.warning("W_MERGE_SOURCE_OUTSIDE_BRANCHES", message, pointer)


def check_missing_next(workflow: Workflow, found: Connections, regions: Regions, report: IrReport) -> None:
    """Report nodes that lead nowhere. The last node of a branch, one that others wait for and one that may
    end a path need no way on."""
    awaited = {dependency for waiting in found.waits.values() for dependency in waiting}
    for i, node in enumerate(workflow.nodes):
        kind = kind_of(node)
        exempt = kind.is_border or kind.may_end or waits_by_rule(node) or node.id in awaited
        if not exempt and node.id not in found.leads_on | regions.branch_only:
            hint = "set next, or let it wait by depends_on"
            report.error("E_MISSING_NEXT", f'"{node.id}" leads nowhere', f"/nodes/{i}", hint)


def check_waits(found: Connections, report: IrReport) -> None:
    """Report nodes that wait for each other."""
    for circle in circles(found.waits, found.order):
        message = shown(f"nodes wait for each other: {', '.join(circle)}", 200)
        report.error("E_CYCLE", message, f"/nodes/{found.order[circle[0]]}")


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
    leading = reachable(found.ends, back)
    for i, node in enumerate(workflow.nodes):
        if node.id not in reached:
            message = f'no way leads from the start to "{node.id}"'
            report.error("E_UNREACHABLE_NODE", message, f"/nodes/{i}")
        elif node.id not in leading | regions.branch_only and node.id != start:
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
    if kind.routing is not None and len(set(ports.values())) == 1:
        message = f'every way of "{node.id}" leads to "{next(iter(ports.values()))}"'
        report.warning("W_GATE_WITHOUT_ALTERNATE", message, pointer, "give its outcomes targets of their own")
    elif kind.returns is not None:
        port = kind.returns(node)
        if node.id not in reachable([ports[port]], onward):
            message = f'no way leads from {port} "{ports[port]}" back to "{node.id}": it runs once'
            report.warning("W_LOOP_BODY_NO_RETURN", message, f"{pointer}/{port}", "let its end lead back")
