"""How activations are made and let go: tokens go along edges, joins are settled, paths begin and end.

These functions are called by folds alone. They follow from the log: folding it again gives the same
activations with the same keys, in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.engine.activation import Activation
from agentflow.engine.gates import verdict_of
from agentflow.engine.joins import SETTLED
from agentflow.engine.path import NodeState, Path
from agentflow.engine.state import RunState

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["activate", "begin_path", "dispatched", "enqueue", "leave", "retry_in_place", "route"]


def dispatched(state: RunState, ts: int) -> None:
    """Take note that a pending or waiting run begins to move, or moves again."""
    if state.status in ("pending", "waiting"):
        state.status = "running"
        if state.dispatched_at is None:
            state.dispatched_at = ts


def begin_path(state: RunState, path: Path, payload: Any) -> None:
    """Activate the nodes of a graph that wait for nothing, and send the input along those of its starts."""
    if path.graph.has_watchers:
        _count_watched(path)
    for node in path.graph.roots:
        activate(state, path, node)
    for start in path.graph.starts:
        if start.is_silent:
            for edge in start.targets("next"):
                deliver(state, path, edge.target, payload)
        else:
            activate(state, path, start, payload)
    if path.graph.has_watchers:
        _settle_unreachable(state, path)


def deliver(state: RunState, path: Path, target: Node, payload: Any) -> None:
    """Bring a token to a node. One that comes to a silent end of the graph is what the path has reached."""
    if target.is_silent:
        path.output = payload
        path.stopped = path.stopped or target.kind.stops(target)
    else:
        activate(state, path, target, payload)


def route(state: RunState, activation: Activation, port: str, payload: Any) -> None:
    """Send a token along every edge of a port."""
    for edge in activation.node.targets(port):
        deliver(state, activation.path, edge.target, payload)


def activate(
    state: RunState, path: Path, node: Node, payload: Any = None, *, front: bool = False
) -> Activation:
    """Make the next activation of a node and put it where it is decided about.

    One that must not start, asks first, or needs no slot is decided at once; the others wait for a slot.
    """
    place = path.node(node)
    activation = Activation(node, path, place.arrived, None, None)
    place.arrived += 1
    activation.attempt = place.next_attempt
    activation.input = payload
    state.activations[activation.key] = activation
    path.live += 1
    place.live += 1
    if place.live == 1 and node.watchers:
        _watch(path, node, 1)
    if node.has_gate or not node.join.takes_tokens:
        activation.verdict = verdict_of(state, activation, place)
    enqueue(state, activation, place, front=front)
    return activation


def enqueue(state: RunState, activation: Activation, place: NodeState, *, front: bool = False) -> None:
    """Put a pending activation among those that are decided at once, or those that wait for a slot."""
    node = activation.node
    consent = node.asks and activation.snapshot is None
    if activation.verdict is not None or consent or node.for_each is not None or not node.kind.takes_slot:
        if front:
            state.arrived.appendleft(activation)
        else:
            state.arrived.append(activation)
        return
    state.ready.add(activation, place)
    if front and len(place.ready) > 1:
        place.ready.rotate(1)


def retry_in_place(state: RunState, held: Activation, attempt: int) -> None:
    """Make a held step anew, before all others of its node; what it had kept is in its children."""
    place = state.node_of(held)
    place.status, place.next_attempt = "pending", attempt
    activate(state, held.path, held.node, held.input if held.node.join.takes_tokens else None, front=True)
    held.path.live -= 1
    place.live -= 1


def leave(state: RunState, activation: Activation, place: NodeState) -> None:
    """Let go of an activation that has ended: its dependents, joins and its path take note."""
    node, path = activation.node, activation.path
    place.live -= 1
    path.live -= 1
    for edge in node.out.get(SETTLED, ()):
        target = path.node(edge.target)
        if node.join.takes_tokens and target.sources.pop(node.id, None) is None:
            continue  # its first end has settled the dependency
        _settle(state, path, target, place)
    if place.live == 0 and node.watchers:
        _watch(path, node, -1)
        _settle_unreachable(state, path)
    if path.live == 0 and path.opener is not None:
        path.opener.node.kind.path_ended(state, path.opener, path)


def _settle(state: RunState, path: Path, target: NodeState, source: NodeState) -> None:
    target.upstream_failed |= source.status == "failed" or source.upstream_failed
    target.upstream_cancelled |= source.status == "cancelled" or source.upstream_cancelled
    target.awaited -= 1
    if target.awaited == 0:
        activate(state, path, target.node)


# -- sources that may not come any more -----------------------------------------------------------


def _count_watched(path: Path) -> None:
    for node in path.graph.nodes.values():
        for source in node.join.watched_sources(path.graph, node):
            path.node(node).sources[source] = 0


def _watch(path: Path, node: Node, change: int) -> None:
    """Count a node that became live, or stopped being so, at every join that it can still reach."""
    for join_id, source in node.watchers:
        sources = path.node(path.graph.nodes[join_id]).sources
        if source in sources:
            sources[source] += change


def _settle_unreachable(state: RunState, path: Path) -> None:
    """Settle as skipped the dependencies that no live node can reach any more; those may free others."""
    found = True
    while found:
        found = False
        for node in path.graph.dependency_nodes:
            target = path.nodes.get(node.id)
            if target is None or not target.sources:
                continue
            for source in [s for s, live in target.sources.items() if live == 0]:
                del target.sources[source]
                place = path.node(path.graph.nodes[source])
                if place.status == "pending":
                    place.status = "skipped"
                _settle(state, path, target, place)
                found = True
