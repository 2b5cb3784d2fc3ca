"""How messages, supersteps and outputs change the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.arrivals import close_round, count_queued, deliver, dispatched, limit_round, release
from agentflow.engine.decisions import undelivered
from agentflow.engine.illegal import IllegalEvent
from agentflow.engine.machine import at_work
from agentflow.engine.mail import Taken
from agentflow.engine.messages import type_of
from agentflow.engine.policies import begin_superstep, complete_superstep
from agentflow.engine.rounds import Arrived, Entry, expired_round
from agentflow.engine.shared_state import Writes
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros

if TYPE_CHECKING:
    from agentflow.engine.graph import Edge

__all__ = [
    "FOLDS",
    "add_to_rounds",
    "bring_message",
    "bring_messages",
    "message_answered",
    "message_asked",
    "messages_sent",
    "round_timed",
    "sender_failed",
]


def messages_sent(state: RunState, activation: Activation, data: ev.WorkflowStepCompleted, ts: int) -> None:
    """Bring the messages of an activation where its completion says, and commit what it wrote."""
    path = activation.path
    assert data.messages is not UNSET
    is_taken = bring_messages(state, activation, data, data.messages, ts)
    if not is_taken and path.opener is not None and not path.stopped:
        first = data.messages[0] if data.messages else None
        path.output = data.output if first is None else first.payload
        path.output_type = type_of(data.output) if first is None else first.type
        path.terminal = activation.node
    if data.state is not UNSET:
        _write(state, activation, data.state)


def bring_messages(
    state: RunState, activation: Activation, data: Any, messages: Sequence[ev.SentMessage], ts: int
) -> bool:
    """Bring messages where their deliveries say; return whether an edge took one of them."""
    node = activation.node
    leaving = node.targets("next")
    only = leaving[0] if len(leaving) == 1 else None
    edges = {} if only is not None else {(edge.name, edge.target.id): edge for edge in leaving}
    buffered: dict[int, Entry] = {}
    is_taken = False
    for lost in undelivered(activation, messages):
        state.mail.untold[lost.activation, lost.index] = lost
    for message in messages:
        for delivery in message.deliveries:
            if delivery.status not in ("delivered", "buffered"):
                continue
            edge = only or edges.get((delivery.edge, delivery.target))
            if edge is None or (edge.name, edge.target.id) != (delivery.edge, delivery.target):
                raise IllegalEvent(data, f"{node.id} has no edge {delivery.edge} to {delivery.target}")
            is_taken = True
            bring_message(state, activation, message, edge, delivery.edge, buffered, ts)
    if buffered:
        add_to_rounds(state, activation, buffered)
    return is_taken


def bring_message(
    state: RunState,
    activation: Activation,
    message: ev.SentMessage,
    edge: Edge,
    name: str,
    buffered: dict[int, Entry],
    ts: int,
) -> None:
    """Bring a message along an edge of this name; `buffered` gets what waits for a round."""
    fan = edge.fan
    if fan is not None:
        entry = buffered.get(fan.index)
        if entry is None:
            entry = buffered[fan.index] = Entry(activation.key, [], ts)
        entry.messages.append(Arrived(edge, message.index, message.type, message.payload))
        return
    source = ev.MessageRef(activation=activation.key, edge=name, index=message.index)
    order = (1, edge.index, activation.visit, message.index)
    taken = Taken(message.type, (source,))
    deliver(state, activation.path, edge.target, message.payload, taken, order, activation)


def add_to_rounds(state: RunState, activation: Activation, buffered: dict[int, Entry]) -> None:
    """Add what an activation sent to the fan-ins, by their index."""
    path = activation.path
    for index, entry in buffered.items():
        held = path.rounds[index]
        if held.add(activation.node.id, entry):
            path.due[index] = None
            limit_round(state, path, held)


def _write(state: RunState, activation: Activation, writes: ev.StateWrites) -> None:
    node, path = activation.node, activation.path
    if writes.private:
        state.shared.private.setdefault(node.id, {}).update(writes.private)
    if writes.shared:
        pairs = tuple((write.key, write.value) for write in writes.shared)
        path.graph.policy.commit(state, Writes(node.id, activation.visit, path.key, pairs))


def sender_failed(state: RunState, activation: Activation, error: ErrorInfo) -> None:
    """Send NodeFailure along the error edges of a node that failed; what it owes to closed rounds lapses."""
    node, path = activation.node, activation.path
    for edge in node.targets("next"):
        if edge.fan is not None:
            path.rounds[edge.fan.index].charged[node.id] = 0
    if error.category == "cancelled" or _ends_run(state, error):
        return
    failure = {
        "activation": activation.key,
        "error": msgspec.to_builtins(error),
        "input": activation.input,
    }
    for edge in node.targets("error"):
        source = ev.MessageRef(activation=activation.key, edge=edge.name, index=0)
        taken = Taken("NodeFailure", (source,))
        deliver(state, path, edge.target, failure, taken, (1, edge.index, activation.visit, 0))


def _ends_run(state: RunState, error: ErrorInfo) -> bool:
    """Return whether a step was ended with its run, so that nothing follows from its failure."""
    if error.code == "state_conflict":
        return state.graph.policy.keeps_messages
    if error.code == "budget_exceeded":
        return (error.details or {}).get("limit") == "max_steps"
    return error.code in _RUN_ENDS


_RUN_ENDS = frozenset(
    {
        "join_incomplete",
        "max_iterations_exceeded",
        "message_undelivered",
        "reducer_failed",
        "run_deadline",
        "step_limit_exceeded",
    }
)

# -- requests: the answer is a message to the node that asked (page 002 §10) ------------------------


def message_asked(activation: Activation) -> None:
    """Keep the node that asked live: its activation ends, and the answer is yet to come."""
    count_queued(activation.path, activation.node)


def message_answered(
    state: RunState, request: OpenRequest, value: Any, problem: ErrorInfo | None, *, is_withdrawn: bool
) -> None:
    """Bring an answer to the node that asked, before other messages; none if the question was withdrawn."""
    asking = request.activation
    node, path = asking.node, asking.path
    if not is_withdrawn and not (path.stopped and path.opener is not None):
        data = request.data
        assert isinstance(data, ev.InputRequested)
        source = ev.MessageRef(activation=asking.key, edge="", index=request.offset)
        asked = () if data.request_type is UNSET else (data.request_type,)
        taken = Taken("response", (source,), (), request.request_id, data.request, asked)
        path.graph.policy.deliver(state, path, node, value, taken, (0, request.offset), problem)
    release(state, path, node, path.node(node))


# -- rounds, supersteps, outputs --------------------------------------------------------------------


def round_timed(state: RunState, data: ev.TimerScheduled | ev.TimerFired | ev.TimerCancelled) -> None:
    """Fold the timer of a round; one that fires closes it."""
    name = data.timer_id
    path_key, _, index = name.removeprefix("join ").rpartition("|")
    path = state.paths.get(path_key)
    held = state.mail.untimed.get(name) if path is None else path.rounds[int(index)]
    if held is None:
        raise IllegalEvent(data, f"{name} is no timer of a round")
    held.armed = data if isinstance(data, ev.TimerScheduled) else None
    if held.armed is None:
        state.timers.disarm(name)
    else:
        state.timers[name] = micros(data.due_at)
    if path is None:
        state.mail.untimed.pop(name)
        return
    closing = expired_round(held) if isinstance(data, ev.TimerFired) else None
    if closing is not None:
        close_round(state, path, closing, first=True)
    limit_round(state, path, held)


def _superstep_started(state: RunState, data: ev.SuperstepStarted, offset: int, ts: int) -> None:
    if state.mail.stepping or data.superstep != state.mail.superstep + 1:
        raise IllegalEvent(data, f"superstep {state.mail.superstep} is the latest")
    dispatched(state, ts)
    if tuple(begin_superstep(state)) != data.activations:
        raise IllegalEvent(data, "other activations wait")


def _superstep_completed(state: RunState, data: ev.SuperstepCompleted, offset: int, ts: int) -> None:
    if not state.mail.stepping or data.superstep != state.mail.superstep:
        raise IllegalEvent(data, f"superstep {data.superstep} is not under way")
    complete_superstep(state)


def _undelivered(state: RunState, data: ev.MessageUndelivered, offset: int, ts: int) -> None:
    state.mail.told[data.activation, data.index] = None
    state.mail.untold.pop((data.activation, data.index), None)
    if state.graph.options.on_undelivered == "fail" and data.reason not in ("join_incomplete", "join_closed"):
        state.mail.fatal = state.mail.fatal or _nobody_took(state, data)


def _nobody_took(state: RunState, data: ev.MessageUndelivered) -> ErrorInfo:
    """Return why the run fails: the message, the edges that could have taken it, and what to do."""
    node = state.graph.all_nodes.get(data.step_id or "")
    edges = [edge for route in node.routes for edge in route.edges] if node is not None else []
    ways = [
        f'{edge.name} to "{edge.target.id}", which takes '
        + (" | ".join(getattr(edge.target.spec, "accepts", ())) or "Any")
        for edge in edges
    ]
    targets = list(dict.fromkeys(edge.target.id for edge in edges))
    first = targets[0] if targets else "a node"
    hints = {
        "type_mismatch": f'add a handler of {data.type} to "{first}", or an edge to a node that takes it',
        "condition_false": "add an edge without a condition, or a Default to the switch",
        "not_selected": "let the selection return a target for it",
        "target_mismatch": "leave target_id out, or name a node that takes it",
    }
    return ErrorInfo(
        category="agent",
        code="message_undelivered",
        message=(
            f"no edge delivered message {data.index} of {data.activation}, of type {data.type}"
            f" ({data.reason}): {'; '.join(ways) or 'there is none'};"
            f" {hints.get(data.reason, 'add an edge that takes it')}"
        ),
        details={"activation": data.activation, "index": data.index, "reason": data.reason},
    )


def _output(state: RunState, data: ev.Output, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    given = (offset, activation.superstep, activation.visit, data)
    outputs = state.mail.outputs.setdefault(data.activation, [])
    del outputs[data.index :]  # of a handler that began its attempt once more, and gives another value
    outputs.append(given)


FOLDS: dict[type, Any] = {
    ev.SuperstepStarted: _superstep_started,
    ev.SuperstepCompleted: _superstep_completed,
    ev.MessageUndelivered: _undelivered,
    ev.Output: _output,
}
