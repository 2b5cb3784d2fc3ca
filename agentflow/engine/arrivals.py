"""How activations are made and let go: tokens go along edges, joins are settled, paths begin and end.

These functions are called by folds alone. They follow from the log: folding it again gives the same
activations with the same keys, in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.engine.activation import Activation
from agentflow.engine.gates import verdict_of
from agentflow.engine.mail import Taken
from agentflow.engine.path import NodeState, Path
from agentflow.engine.rounds import Closing, Round, begin_rounds, count_live
from agentflow.engine.state import RunState
from agentflow.events.catalogue import MessageRef

if TYPE_CHECKING:
    from agentflow.definition.failure import ErrorInfo
    from agentflow.engine.graph import Node

__all__ = [
    "activate",
    "begin_path",
    "begun",
    "close_round",
    "close_rounds",
    "count_queued",
    "deliver",
    "dispatched",
    "drop",
    "end_path",
    "enqueue",
    "forget",
    "leave",
    "leave_path",
    "limit_round",
    "make_activation",
    "mirror",
    "prepare_path",
    "reached_end",
    "release",
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
    policy = path.graph.policy
    for node in path.graph.roots:
        policy.deliver(state, path, node)
    for start in path.graph.starts:
        if start.is_silent:
            for edge in start.targets("next"):
                deliver(state, path, edge.target, payload)
        else:
            policy.deliver(state, path, start, payload)


def begun(state: RunState, path: Path) -> None:
    """Settle what can reach nothing, now that the first tokens of a path have been delivered: a window to
    which no other node sends is closed, and a dependency that no token reaches is skipped."""
    if path.graph.has_watchers:
        for join in path.graph.watching:
            _close_unreached(state, path, join.id)
        if not path.is_branch:
            _settle_unreachable(state, path)


def prepare_path(path: Path) -> None:
    """Set up what a path keeps from its beginning: sources of joins, rounds of fan-ins, counts that are 0."""
    if path.graph.has_watchers:
        _count_watched(path)
    if path.graph.fans:
        begin_rounds(path)
    for node_id in path.graph.counted:
        path.frame.nodes[node_id] = {"output": None, "status": None, "error": None, "visits": 0, "count": 0}


def deliver(
    state: RunState,
    path: Path,
    target: Node,
    payload: Any,
    taken: Taken | None = None,
    order: tuple[int, ...] = (),
    sender: Activation | None = None,
) -> None:
    """Bring a token to a node, when the policy says.

    One that comes to a silent end of the graph, or to the node behind the opener of a child path, is what
    the path has reached. `order` decides among the messages of one superstep.
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
        path.graph.policy.deliver(state, path, target, payload, taken, order, sender=sender)


def reached_end(state: RunState, path: Path, end: Node, payload: Any) -> None:
    """Note what a path has reached. An end that does not wait for the other tokens stops the path."""
    if path.terminal is None or not path.terminal.kind.fails(path.terminal):  # a failure is not outrun
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
    forget(state, path)
    if path.live:
        state.changed[path.opener.key] = path.opener


def forget(state: RunState, path: Path) -> None:
    """Drop the messages that wait for a superstep on a child path which is given up."""
    mail = state.mail
    waiting = [queued for queued in mail.queue if queued.path is path]
    if waiting:
        mail.queue = [queued for queued in mail.queue if queued.path is not path]
        for queued in waiting:
            path.node(queued.node).live -= 1
            path.live -= 1


def drop(state: RunState, activation: Activation) -> None:
    """Forget an activation that has not begun; the log has no event of it."""
    path, place = activation.path, state.node_of(activation)
    del state.activations[activation.key]
    path.work.pop(activation.key, None)
    if activation in state.arrived:
        state.arrived.remove(activation)
    elif place.turns is not None:
        state.mail.end_turn(activation, place)
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
        deliver(state, path, edge.target, payload, None, (1, edge.index, activation.visit), activation)
    if not edges and path.opener is not None and not path.stopped:
        path.output, path.terminal = payload, activation.node


def activate(
    state: RunState,
    path: Path,
    node: Node,
    payload: Any = None,
    *,
    front: bool = False,
    taken: Taken | None = None,
    problem: ErrorInfo | None = None,
) -> Activation:
    """Make the next activation of a node and put it where it is decided about.

    One that must not start, asks first, or needs no slot is decided at once; the others wait for a slot.
    """
    return make_activation(
        state, path, count_queued(path, node), node, payload, front=front, taken=taken, problem=problem
    )


def count_queued(path: Path, node: Node) -> NodeState:
    """Count one more thing that makes a node live: an activation, a queued message, or an open request."""
    place = path.node(node)
    path.live += 1
    place.live += 1
    if place.live == 1:
        if node.watchers:
            _watch(path, node, 1)
        if node.fan_watchers:
            count_live(path, node, 1)
    return place


def make_activation(
    state: RunState,
    path: Path,
    place: NodeState,
    node: Node,
    payload: Any,
    *,
    front: bool = False,
    taken: Taken | None = None,
    problem: ErrorInfo | None = None,
) -> Activation:
    """Make an activation that is counted already. With a `problem` it fails before it begins."""
    activation = Activation(node, path, place.arrived, None, None)
    place.arrived += 1
    activation.attempt = place.next_attempt
    activation.input = payload
    activation.taken = taken
    activation.superstep = state.mail.superstep
    state.activations[activation.key] = activation
    if path.opener is not None:
        path.work[activation.key] = activation
    if problem is not None:
        activation.verdict = problem
    elif node.has_gate or not node.join.takes_tokens:
        activation.verdict = verdict_of(state, activation, place)
    enqueue(state, activation, place, front=front)
    return activation


def enqueue(state: RunState, activation: Activation, place: NodeState, *, front: bool = False) -> None:
    """Put a pending activation among those that are decided at once, or those that wait for a slot."""
    node = activation.node
    if node.only_queues and activation.verdict is None and not front:
        state.ready.add(activation, place)
        return
    consent = node.asks and activation.snapshot is None
    if activation.verdict is not None or consent or node.iterates or not node.kind.takes_slot:
        is_due = activation.verdict is not None or consent or node.iterates
        if node.kind.one_at_a_time and not is_due:
            state.mail.wait_turn(activation, place, front=front)
        elif front:
            state.arrived.insert(0, activation)
        else:
            state.arrived.append(activation)
        return
    state.ready.add(activation, place)
    if front and place.ready is not None and len(place.ready) > 1:
        place.ready.rotate(1)


def retry_in_place(state: RunState, held: Activation, attempt: int) -> None:
    """Make a held step anew, before all others of its node; what it had kept is in its children."""
    place = state.node_of(held)
    place.status, place.next_attempt = "pending", attempt
    payload = held.input if held.node.join.takes_tokens else None
    again = activate(state, held.path, held.node, payload, front=True, taken=held.taken)
    if held.node.kind.sends:
        again.local = held.local  # what is recorded is not repeated
    state.mail.outputs.pop(held.key, None)
    held.path.live -= 1
    place.live -= 1


def leave(state: RunState, activation: Activation, place: NodeState) -> None:
    """Let go of an activation that has ended: its dependents, joins and its path take note."""
    node, path = activation.node, activation.path
    if path.opener is not None:
        path.work.pop(activation.key, None)
    if node.dependents and not path.is_branch:
        for edge in node.dependents:
            target = path.node(edge.target)
            if node.join.takes_tokens and target.sources.pop(node.id, None) is None:
                continue  # its first end has settled the dependency
            _settle(state, path, target, place)
    release(state, path, node, place)


def release(state: RunState, path: Path, node: Node, place: NodeState) -> None:
    """Count one thing less that makes a node live; joins and the path take note of the last one."""
    place.live -= 1
    path.live -= 1
    if place.live == 0:
        if node.watchers:
            _watch(path, node, -1)
            _close_windows(state, path, node)
            if not path.is_branch:
                _settle_unreachable(state, path)
        if node.fan_watchers:
            count_live(path, node, -1)
    if path.due:
        path.graph.policy.examine(state, path)
    if path.live == 0 and path.opener is not None and not path.due:
        end_path(state, path)


def end_path(state: RunState, path: Path) -> None:
    """Tell the opener of a child path that nothing is left on it."""
    opener = path.opener
    assert opener is not None
    if path.ended or opener.paths is None or opener.paths.get(path.index) is not path:
        return
    path.ended = True
    del opener.paths[path.index]
    leave_path(state, path)
    opener.node.kind.path_ended(state, opener, path)


def leave_path(state: RunState, path: Path) -> None:
    """Let go of a child path; what is left in the buffers of its fan-ins is told when the run ends."""
    del state.paths[path.key]
    state.mail.since_outside.pop(path.key, None)
    for held in path.rounds.values():
        state.mail.left += held.left()
        held.buffers.clear()
        limit_round(state, path, held)


def _settle(state: RunState, path: Path, target: NodeState, source: NodeState) -> None:
    failed = source.status == "failed" and not source.excused
    target.upstream_failed |= failed or source.upstream_failed
    target.upstream_cancelled |= source.status == "cancelled" or source.upstream_cancelled
    target.awaited -= 1
    if target.awaited == 0:
        path.graph.policy.deliver(state, path, target.node)


# -- rounds of fan-ins ----------------------------------------------------------------------------


def close_rounds(state: RunState, path: Path, closings: list[Closing]) -> None:
    """Bring the lists of rounds that close to their targets; one that must not close ends the run."""
    path.due.clear()
    if path.stopped and path.opener is not None:
        return
    for closing in closings:
        close_round(state, path, closing)


def close_round(state: RunState, path: Path, closing: Closing, *, first: bool = False) -> None:
    """Bring the list of one round: declared source order, then send order. `first`: before other messages."""
    if closing.error is not None:
        state.mail.fatal = state.mail.fatal or closing.error
        return
    fan, held = closing.fan, path.rounds[closing.fan.index]
    number = held.closed
    held.take()
    limit_round(state, path, held)
    messages = [(entry.activation, m) for entry in closing.entries for m in entry.messages]
    sources = tuple(MessageRef(activation=a, edge=m.edge.name, index=m.number) for a, m in messages)
    order = (0 if first else 1, fan.edges[0].index, number, 0)
    taken = Taken("list", sources, closing.missing, types=tuple(m.type for _, m in messages))
    deliver(state, path, fan.target, [m.payload for _, m in messages], taken, order)


def limit_round(state: RunState, path: Path, held: Round) -> None:
    """Take note of a round whose timer is to be armed, or is not needed any more."""
    if held.fan.timeout is None:
        return
    name = f"join {path.key}|{held.fan.index}"
    if held.is_armed:
        state.mail.untimed.pop(name, None)
    else:
        state.mail.untimed[name] = held


# -- sources that may not come any more -----------------------------------------------------------


def _count_watched(path: Path) -> None:
    for node in path.graph.watching:
        sources = dict.fromkeys(node.join.watched_sources(path.graph, node), 0)
        if sources:
            path.node(node).sources = sources


def _watch(path: Path, node: Node, change: int) -> None:
    """Count a node that became live, or stopped being so, at every join that it can still reach."""
    for join_id, source in node.watchers:
        sources = path.node(path.graph.nodes[join_id]).sources
        if source in sources:
            sources[source] += change


def _close_windows(state: RunState, path: Path, node: Node) -> None:
    """Close the windows to which this node was the last that could send a token."""
    for join_id, _ in node.watchers:
        _close_unreached(state, path, join_id)


def _close_unreached(state: RunState, path: Path, join_id: str) -> None:
    place = path.nodes.get(join_id)
    if place is not None and place.windows and not any(place.sources.values()):
        for window in place.windows.values():
            window.node.kind.close_window(state, window)


def _settle_unreachable(state: RunState, path: Path) -> None:
    """Settle as skipped the dependencies on nodes of tokens that no live node can reach any more. What is
    freed by that takes no tokens, and can make none of them live again."""
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
