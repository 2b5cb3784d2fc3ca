"""How the events of steps change the state: starts, ends, skips, retries and iterations."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Usage
from agentflow.definition.node import handles_error
from agentflow.engine.activation import EXPRESSION_STATUS, Activation, StepStatus
from agentflow.engine.arrivals import dispatched, leave, mirror, reached_end, retry_in_place, route
from agentflow.engine.budgets import time_limit
from agentflow.engine.child_requests import keep_routed
from agentflow.engine.folds.common import settle, use, wake, wake_after
from agentflow.engine.folds.messages import bring_messages, messages_sent, sender_failed
from agentflow.engine.folds.slots import give_back, stand_still, take
from agentflow.engine.globals import fold_writes
from agentflow.engine.machine import activation_of
from agentflow.engine.path import NodeState
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["FOLDS", "show"]


def _step_started(state: RunState, data: ev.WorkflowStepStarted, offset: int, ts: int) -> None:
    activation = activation_of(state, data)
    node = activation.node
    place = state.node_of(activation)
    place.attempt = data.attempt
    _leave_queues(state, activation, place)
    if data.iteration is None:
        activation.path.steps += 1
        if place.visits <= activation.visit:
            place.visits = activation.visit + 1
        place.next_attempt = 1
        place.status = "running"
        state.clock = data.clock + 1
    if activation.path.opener is not None:
        mirror(state, activation, place)
    if state.status != "running":
        dispatched(state, ts)
    activation.status, activation.phase = "running", "open"
    activation.input = data.input
    activation.started = activation.attempt_started = ts
    activation.first_offset = activation.touched = offset
    activation.clock = data.clock
    state.open[activation.key] = activation
    if activation.is_for_each:
        _open_iterations(state, activation, place, data.input)
        return
    if node.kind.takes_slot or data.iteration is not None:
        take(state, activation)
    state.changed[activation.key] = activation
    if node.timeout is not None or state.step_budgets:
        _limit_time(state, activation)
    if node.kind.folds_start:
        node.kind.started(state, activation, data, ts)


def _leave_queues(state: RunState, activation: Activation, place: NodeState) -> None:
    if state.awaiting_approval.pop(activation.key, None) is not None:
        state.denied.pop(activation.key, None)
    elif activation.node.kind.one_at_a_time and place.turns is not None and place.turns.current is activation:
        state.mail.begin(activation)
    elif activation in state.arrived:
        state.arrived.remove(activation)
    else:
        state.ready.remove(activation, place)


def _limit_time(state: RunState, activation: Activation) -> None:
    limit = time_limit(state, activation)
    if limit is not None:
        state.timers[f"deadline {activation.key}"] = activation.started + round(limit * 1e6)


def _open_iterations(state: RunState, outer: Activation, place: NodeState, items: list[Any]) -> None:
    earlier = place.outer.children if place.outer is not None and outer.attempt > 1 else {}
    place.outer = outer
    outer.children = {}
    if outer.path.opener is not None:
        state.nodes[outer.node.id].outer = outer
    _limit_time(state, outer)
    for i, item in enumerate(items):
        kept = earlier.get(i)
        if kept is not None and kept.status in ("succeeded", "skipped") and kept.item == item:
            outer.children[i] = kept  # a held step that is tried again keeps what was done
            continue
        iteration = Activation(outer.node, outer.path, outer.visit, outer, i)
        iteration.item, iteration.clock = item, outer.clock
        outer.children[i] = iteration
        outer.open_children += 1
        state.activations[iteration.key] = iteration
        state.ready.add(iteration, place)
    if not outer.open_children:
        settle(state, outer)


def _step_completed(state: RunState, data: ev.WorkflowStepCompleted, offset: int, ts: int) -> None:
    activation, place, was_held = _ending(state, data, ts)
    if state.status == "waiting":
        dispatched(state, ts)  # a child run has ended
    if activation.node.kind.starts_run and data.usage is not UNSET:
        use(state, activation, data.usage)
    activation.status, activation.output = "succeeded", data.output
    node, path = activation.node, activation.path
    if data.state is not UNSET:
        fold_writes(activation, data.state)
    if activation.outer is not None:
        _iteration_ended(state, activation)
        return
    state.steps_done["succeeded"] += 1
    if node.kind.remembers and not was_held:  # the output that a person gives is none of its decisions
        node.kind.remember(state, activation, data, ts)
    outputs: dict[str, Any] = {"status": "success", "result": data.output}
    if activation.is_for_each:
        outputs["items"] = _items_view(activation)
    if (state.graph.uses_last or path.graph.uses_last) and node.kind.said is not None:
        path.frame.set("last", node.kind.said, data.output)
    if node.kind.keeps_end:
        node.kind.ended(activation, place, data)
    show(state, activation, place, "succeeded", outputs, None, data.output, offset)
    if data.messages is not UNSET:
        messages_sent(state, activation, data, ts)
    elif node.join.takes_tokens:
        port = "next" if data.next is UNSET or data.next is None else data.next
        if node.kind.is_end:
            reached_end(state, path, node, data.output)
        else:
            route(state, activation, port, node.kind.payload(activation))
    leave(state, activation, place)


def _step_failed(state: RunState, data: ev.WorkflowStepFailed, offset: int, ts: int) -> None:
    activation, place, was_held = _ending(state, data, ts)
    dispatched(state, ts)
    node, path = activation.node, activation.path
    activation.error = data.error
    if node.kind.starts_run and data.error.details is not None and "usage" in data.error.details:
        use(state, activation, msgspec.convert(data.error.details["usage"], Usage))
    status: StepStatus = "cancelled" if data.error.category == "cancelled" else "failed"
    activation.status = status
    if activation.outer is not None:
        _iteration_ended(state, activation)
        return
    absorbed = status == "failed" and node.kind.absorbs(node)
    handled = not absorbed and status == "failed" and node.on_error is not None
    handled = handled and handles_error(node.spec, data.error.code)
    counts = status == "failed" and node.required and not (absorbed or handled)
    if counts and path.opener is None and state.on_failure == "hold" and not was_held:
        place.status = status
        activation.phase = "held"
        state.held_steps.setdefault(data.step_id, []).append(activation)  # a person decides what follows
        return
    state.steps_done[status] += 1
    if counts and path.opener is None:
        state.has_failed = True
        state.failed_steps.append(data.step_id)
        if state.first_failure is None:
            state.first_failure = (data.activation, data.error)
    outputs = None
    if activation.children:
        results = [c.output if c.status == "succeeded" else None for c in _children(activation)]
        outputs = {"status": "failed", "result": results, "items": _items_view(activation)}
    place.excused = handled
    if node.kind.keeps_end:
        node.kind.ended(activation, place, data)
    show(state, activation, place, status, outputs, data.error, None, offset)
    if node.out:
        sender_failed(state, activation, data.error)
    if handled and node.join.takes_tokens:
        port = "next" if node.on_error == "skip" else "on_error/next"
        route(state, activation, port, node.kind.payload(activation))
    elif path.opener is not None and not path.stopped and (counts or status == "cancelled"):
        path.opener.node.kind.path_failed(state, path, data.error)
    leave(state, activation, place)


def _step_skipped(state: RunState, data: ev.WorkflowStepSkipped, offset: int, ts: int) -> None:
    activation, place, _ = _ending(state, data, ts)
    dispatched(state, ts)
    activation.status = "skipped"
    if state.pipeline is not None:
        state.pipeline.skips[activation.node.name] = (data.reason, data.detail, data.caused_by)
    if activation.outer is not None:
        _iteration_ended(state, activation)
        return
    state.steps_done["skipped"] += 1
    state.skipped.append(data.step_id)
    show(state, activation, place, "skipped", None, None, None, offset)
    leave(state, activation, place)


def _step_retrying(state: RunState, data: ev.WorkflowStepRetrying, offset: int, ts: int) -> None:
    if (held := _take_held(state, data)) is not None:
        retry_in_place(state, held, data.next_attempt)
        return
    activation = activation_of(state, data)
    activation.attempt = data.next_attempt
    place = state.node_of(activation)
    place.attempt = data.next_attempt
    mirror(state, activation, place)
    activation.failures += 1
    activation.first_failure = activation.first_failure or ts
    activation.error = None
    activation.due_at = ts + round(data.delay_ms * 1000)
    state.timers[f"retry {activation.key}"] = activation.due_at
    state.timers.disarm(f"attempt {activation.key}")
    wake_after(state, activation, data.delay_ms)
    activation.node.kind.retried(state, activation, data, ts)


def _step_waiting(state: RunState, data: ev.WorkflowStepWaiting, offset: int, ts: int) -> None:
    if data.for_ == "child":
        activation = activation_of(state, data)
        state.awaited[activation.key] = f"child {data.ref}"
        stand_still(state, activation, ts)
        if data.messages is not UNSET:
            dispatched(state, ts)
            bring_messages(state, activation, data, data.messages, ts)
            keep_routed(state, activation, data.messages, offset, ts)
    if data.iteration is None:
        activation = activation_of(state, data)
        place = state.node_of(activation)
        place.status = "waiting"
        mirror(state, activation, place)
        if activation.node.kind.is_passive and activation.phase == "open":  # asked: it has not begun to wait
            activation.node.kind.fold(state, activation, data, ts)
            wake(state, activation)


def _ending(state: RunState, data: Any, ts: int) -> tuple[Activation, NodeState, bool]:
    """Return the activation that ends, taken out of every queue, and whether it was held after a failure."""
    if (held := _take_held(state, data)) is not None:
        place = state.node_of(held)
        place.arrived = place.visits = max(place.arrived, data.visit + 1)
        return held, place, True
    activation = activation_of(state, data)
    place = state.node_of(activation)
    _close(state, activation, place, ts)
    return activation, place, False


def _take_held(state: RunState, data: Any) -> Activation | None:
    """Return the visit that a person decided about, no more held: the oldest of its step. None if the event
    is about another visit, which is at work while the run is paused."""
    if not state.held_steps or data.iteration is not None or data.activation in state.activations:
        return None
    visits = state.held_steps.get(data.step_id)
    if visits is None:
        return None
    held = visits.pop(0)
    if not visits:
        del state.held_steps[data.step_id]
    return held


def _close(state: RunState, activation: Activation, place: NodeState, ts: int) -> None:
    """Take an activation that ends out of every queue."""
    key = activation.key
    del state.activations[key]
    if state.open.pop(key, None) is None:  # it never started
        _leave_queues(state, activation, place)
        state.mail.end_turn(activation, place)
        if activation.iteration is None:
            place.visits = max(place.visits, activation.visit + 1)
            place.next_attempt = 1
        return
    kind = activation.node.kind
    if activation.is_for_each:
        for iteration in state.ready.drop_below(activation, place):
            del state.activations[iteration.key]
    else:
        if activation.has_slot or state.returning:
            give_back(state, activation, ts)
        if kind.folds_end:
            kind.closed(state, activation)
    state.changed.pop(key, None)
    state.call_queue.pop(key, None)
    if state.settled:
        state.settled.pop(key, None)
    if state.timers or state.timers.paused:
        for kind in ("deadline", "attempt", "retry"):
            state.timers.disarm(f"{kind} {key}")


def _iteration_ended(state: RunState, activation: Activation) -> None:
    outer = activation.outer
    assert outer is not None
    outer.open_children -= 1
    if outer.key not in state.open:
        return
    if outer.open_children == 0 or (
        outer.node.kind.iterates and outer.node.kind.item_ended(state, outer, activation)
    ):
        settle(state, outer)


def show(
    state: RunState,
    activation: Activation,
    place: NodeState,
    status: StepStatus,
    outputs: Any,
    error: Any,
    output: Any,
    offset: int,
) -> None:
    """Let expressions see the end of a step."""
    place.status = status
    path, node = activation.path, activation.node
    shown: dict[str, Any] | None = msgspec.to_builtins(error) if error is not None else None
    place.output, place.error, place.ended = output, shown, offset
    view: dict[str, Any] = {
        "output": output,
        "status": status,
        "error": shown,
        "visits": place.visits,
    }
    if node.kind.shows_more:
        view |= node.kind.view(activation, place)
    frame = path.frame
    if frame.is_read:
        frame.set("nodes", node.name, view)
    else:
        frame.nodes[node.name] = view
    if not node.join.takes_tokens:
        brief = None if shown is None else {k: shown[k] for k in ("category", "code", "message")}
        view = {"outputs": outputs, "status": EXPRESSION_STATUS[status], "error": brief}
        if frame.is_read:
            frame.set("steps", node.name, view)
        else:
            frame.steps[node.name] = view
    if path.opener is not None:
        mirror(state, activation, place)
        seen = state.nodes[node.id]
        seen.output, seen.error = place.output, place.error


def _children(outer: Activation) -> list[Activation]:
    return [outer.children[i] for i in range(len(outer.children))]


def _items_view(outer: Activation) -> list[dict[str, Any]]:
    return [
        {
            "index": c.iteration,
            "status": EXPRESSION_STATUS.get(c.status, c.status),
            "result": c.output if c.status == "succeeded" else None,
            "error": msgspec.to_builtins(c.error) if c.error is not None else None,
        }
        for c in _children(outer)
    ]


FOLDS: dict[type, Any] = {
    ev.WorkflowStepStarted: _step_started,
    ev.WorkflowStepCompleted: _step_completed,
    ev.WorkflowStepFailed: _step_failed,
    ev.WorkflowStepSkipped: _step_skipped,
    ev.WorkflowStepRetrying: _step_retrying,
    ev.WorkflowStepWaiting: _step_waiting,
}
