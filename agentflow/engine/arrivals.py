"""How activations are made and let go: tokens go along edges, joins are settled, paths begin and end.

These functions are called by folds alone. They follow from the log: folding it again gives the same
activations with the same keys, in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.engine.activation import Activation
from agentflow.engine.gates import verdict_of
from agentflow.engine.path import NodeState, Path
from agentflow.engine.state import RunState

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = [
    "activate",
    "begin_path",
    "deliver",
    "dispatched",
    "drop",
    "end_path",
    "enqueue",
    "leave",
    "mirror",
    "prepare_path",
    "reached_end",
    "retry_in_place",
    "route",
    "stop_path",
]


def dispatched(state: RunState, ts: int) -> None:
    """Take note that a pending or waiting run begins to move, or moves again."""
    if state.status in ("pending", "waiting"):
        state.status = "running"
        if state.dispatched_at is None:
            state.dispatched_at = ts


def mirror(state: RunState, activation: Activation, place: NodeState) -> None:
    """Let readers see in the nodes of the run where a node of a child path stands."""
    if activation.path.opener is not None:
        seen = state.nodes[activation.node.id]
        seen.status, seen.attempt = place.status, place.attempt
        seen.visits = max(seen.visits, place.visits)


def begin_path(state: RunState, path: Path, payload: Any) -> None:
    """Activate the nodes of a graph that wait for nothing, and send the input along those of its starts."""
    prepare_path(path)
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


def prepare_path(path: Path) -> None:
    """Set up what a path keeps from its beginning: the sources of its joins, and counts that are 0."""
    if path.graph.has_watchers:
        _count_watched(path)
    for node_id in path.graph.counted:
        path.frame.nodes[node_id] = {"output": None, "status": None, "error": None, "visits": 0, "count": 0}


def deliver(
    state: RunState, path: Path, target: Node, payload: Any, sender: Activation | None = None
) -> None:
    """Bring a token to a node.

    One that comes to a silent end of the graph, or to the node behind the opener of a child path, is what
    the path has reached.
    """
    if path.stopped and path.opener is not None:
        return
    if target.id in path.stop_at:
        path.output, path.terminal = payload, target
    elif target.is_silent:
        reached_end(state, path, target, payload)
    elif target.join.gathers:
        target.kind.gather(state, path, target, payload)
    else:
        activation = activate(state, path, target, payload)
        if sender is not None and sender.paths is not None:
            target.kind.entered(activation, sender)


def reached_end(state: RunState, path: Path, end: Node, payload: Any) -> None:
    """Note what a path has reached. An end that does not wait for the other tokens stops the path."""
    path.output, path.terminal = payload, end
    if end.kind.stops(end):
        stop_path(state, path)


def stop_path(state: RunState, path: Path) -> None:
    """Give up what is left on a path: what has not begun is dropped here, `decide` ends what has."""
    path.stopped = True
    if path.opener is None or path.ended:
        return
    for key, activation in list(path.work.items()):
        if key in state.activations and key not in state.open and key not in state.awaiting_approval:
            drop(state, activation)
    if path.live:
        state.changed[path.opener.key] = path.opener


def drop(state: RunState, activation: Activation) -> None:
    """Forget an activation that has not begun; the log has no event of it."""
    path, place = activation.path, state.node_of(activation)
    del state.activations[activation.key]
    path.work.pop(activation.key, None)
    if activation in state.arrived:
        state.arrived.remove(activation)
    else:
        state.ready.remove(activation, place)
    if place.windows is not None:
        place.windows = {key: open for key, open in place.windows.items() if open is not activation}
    place.live -= 1
    path.live -= 1


def route(state: RunState, activation: Activation, port: str, payload: Any) -> None:
    """Send a token along every edge of a port. On a child path a port without edges ends the token's way."""
    edges, path = activation.node.targets(port), activation.path
    for edge in edges:
        deliver(state, path, edge.target, payload, activation)
    if not edges and path.opener is not None and not path.stopped:
        path.output, path.terminal = payload, activation.node


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
    if path.opener is not None:
        path.work[activation.key] = activation
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
    if activation.verdict is not None or consent or node.iterates or not node.kind.takes_slot:
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
    if path.opener is not None:
        path.work.pop(activation.key, None)
    if node.dependents and not path.is_branch:
        for edge in node.dependents:
            target = path.node(edge.target)
            if node.join.takes_tokens and target.sources.pop(node.id, None) is None:
                continue  # its first end has settled the dependency
            _settle(state, path, target, place)
    if place.live == 0 and node.watchers:
        _watch(path, node, -1)
        _close_windows(state, path, node)
        if not path.is_branch:
            _settle_unreachable(state, path)
    if path.live == 0 and path.opener is not None:
        end_path(state, path)


def end_path(state: RunState, path: Path) -> None:
    """Tell the opener of a child path that nothing is left on it."""
    opener = path.opener
    assert opener is not None
    if path.ended or opener.paths is None or opener.paths.get(path.index) is not path:
        return
    path.ended = True
    del opener.paths[path.index]
    del state.paths[path.key]
    opener.node.kind.path_ended(state, opener, path)


def _settle(state: RunState, path: Path, target: NodeState, source: NodeState) -> None:
    failed = source.status == "failed" and not source.excused
    target.upstream_failed |= failed or source.upstream_failed
    target.upstream_cancelled |= source.status == "cancelled" or source.upstream_cancelled
    target.awaited -= 1
    if target.awaited == 0:
        activate(state, path, target.node)


# -- sources that may not come any more -----------------------------------------------------------


def _count_watched(path: Path) -> None:
    for node in path.graph.watching:
        for source in node.join.watched_sources(path.graph, node):
            path.node(node).sources[source] = 0


def _watch(path: Path, node: Node, change: int) -> None:
    """Count a node that became live, or stopped being so, at every join that it can still reach."""
    for join_id, source in node.watchers:
        sources = path.node(path.graph.nodes[join_id]).sources
        if source in sources:
            sources[source] += change


def _close_windows(state: RunState, path: Path, node: Node) -> None:
    """Close the windows to which this node was the last that could send a token."""
    for join_id, _ in node.watchers:
        place = path.nodes.get(join_id)
        if place is not None and place.windows and not any(place.sources.values()):
            for window in place.windows.values():
                window.node.kind.close_window(state, window)


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
