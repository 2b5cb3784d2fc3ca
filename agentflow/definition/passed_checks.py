"""Which nodes every way to a node has passed: W_MAYBE_UNSET warns of reads of the others (page 003 §5).

Forward data flow over bit masks: what a node has surely passed is what all its ways have in common; a node
that joins branches, or waits for others, has passed what any of them has.
"""

from __future__ import annotations

from agentflow.definition.connections import Connections, Way, waits_by_rule
from agentflow.definition.expression_checks import Read
from agentflow.definition.ir import Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import kind_of
from agentflow.definition.report import shown
from agentflow.definition.way_checks import Regions

__all__ = ["check_passed"]

_EXEMPT = frozenset({"count", "visits"})
_AFTERWARDS = ("set_globals", "update_globals")

Alternatives = list[tuple[str, ...]]
"""The ways to a node: of each, the nodes that have all ended when it is taken."""


def check_passed(
    workflow: Workflow, found: Connections, regions: Regions, reads: list[Read], report: IrReport
) -> None:
    """Warn of each read of a node that some way to the reader does not pass."""
    wanted = [read for read in reads if _is_judged(read, found)]
    if not wanted:
        return
    passed = _passed(workflow, found, regions)
    for read in wanted:
        reader, name = str(read.node_id), read.members[0]
        own = 1 << found.order[name]
        after = reader == name and read.where.split(".")[0] in _AFTERWARDS
        if after or (passed[reader] & own and reader != name):
            continue
        message = f'"{shown(reader)}" may read "{shown(name)}" before it has an output: it is null then'
        hint = None if reader == name else f'some way to "{shown(reader)}" does not pass it'
        report.report.warning("W_MAYBE_UNSET", message, read.place, read.path, hint)


def _is_judged(read: Read, found: Connections) -> bool:
    if read.root != "nodes" or not read.members or read.node_id not in found.by_id:
        return False
    if read.members[0] not in found.by_id:
        return False
    return len(read.members) < 2 or read.members[1] not in _EXEMPT


def _passed(workflow: Workflow, found: Connections, regions: Regions) -> dict[str, int]:
    """Return for each node those that were surely passed before it begins, as a mask over `order`."""
    ways = _ways_to(workflow, found, regions)
    bit = {node_id: 1 << index for node_id, index in found.order.items()}
    everything = sum(bit.values())
    before = dict.fromkeys(found.by_id, everything)
    before |= dict.fromkeys(found.begins, 0)
    after: dict[str, list[str]] = {node_id: [] for node_id in found.by_id}
    for target, alternatives in ways.items():
        for ended in alternatives:
            for source in ended:
                after[source].append(target)
    todo = list(found.by_id)
    while todo:
        node_id = todo.pop()
        if node_id in found.begins or not ways[node_id]:
            continue
        mask = everything
        for ended in ways[node_id]:
            common = 0
            for source in ended:
                common |= before[source] | bit[source]
            mask &= common
        if mask != before[node_id]:
            before[node_id] = mask
            todo += after[node_id]
    return before


def _ways_to(workflow: Workflow, found: Connections, regions: Regions) -> dict[str, Alternatives]:
    ways: dict[str, Alternatives] = {node_id: [] for node_id in found.by_id}
    inside: set[tuple[str, str]] = set()
    for opener in dict.fromkeys(way.source for way in found.ways if way.opens):
        _join_branches(opener, found, regions, ways, inside)
    fans: dict[tuple[str, str | None], tuple[str, ...]] = {}
    for edge in workflow.edges:
        if edge.kind == "fan_in" and edge.source in ways and edge.target in ways:
            fans[edge.target, edge.group] = (*fans.get((edge.target, edge.group), ()), edge.source)
            inside.add((edge.source, edge.target))
    for (target, _), sources in fans.items():
        ways[target].append(sources)
    for way in found.ways:
        if (way.source, way.target) not in inside:
            ways[way.target].append((way.source,))
    for node in found.by_id.values():
        if waits_by_rule(node):
            ways[node.id] = [tuple(found.waits[node.id] or found.begins)]
    for end in found.ends:
        ways[end] += [(node_id,) for node_id in found.ending]
    return ways


def _join_branches(
    opener: str,
    found: Connections,
    regions: Regions,
    ways: dict[str, Alternatives],
    inside: set[tuple[str, str]],
) -> None:
    """Enter the way behind a group: its opener, and the last node of each branch that has surely ended."""
    node = found.by_id[opener]
    joined = dict(kind_of(node).ports(node)).get("next")
    if joined not in found.by_id:
        return
    target = found.by_id[joined]
    all_end = not kind_of(node).iterates and kind_of(target).gathers(target)
    ended = [opener]
    inside.add((opener, joined))
    for way in found.ways:
        if way.opens and way.source == opener:
            last = _last_nodes(way, joined, found, regions)
            inside |= {(source, joined) for source in last}
            if all_end and len(last) == 1:
                ended += last
    ways[joined].append(tuple(ended))


def _last_nodes(way: Way, joined: str, found: Connections, regions: Regions) -> list[str]:
    """Return the nodes after which a branch ends."""
    nodes = regions.nodes_of(way)
    onward = found.onward(opening=False)
    return [n for n in nodes if not onward[n] or joined in onward[n]]
