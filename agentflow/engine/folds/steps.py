"""How the events of steps change the state: starts, ends, skips, iterations."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.engine.budgets import time_limit
from agentflow.engine.folds.common import settle, unit_of
from agentflow.engine.state import EXPRESSION_STATUS, NodeState, RunState, StepStatus, Token, Unit
from agentflow.events import catalogue as ev

__all__ = ["FOLDS", "dispatched", "take_unit"]


def _step_started(state: RunState, data: ev.WorkflowStepStarted, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        dispatched(state, ts)
    node = state.nodes[data.step_id]
    node.attempt = data.attempt
    if data.iteration is None:
        unit = take_unit(state, node, data.visit)
        node.visits = data.visit + 1
        node.next_attempt = 1
        node.status = "running"
        state.clock = data.clock + 1
    else:
        unit = node.units[data.iteration]
        _leave_due(state, unit)
        node.slots += 1
    unit.status = "running"
    unit.input = data.input
    unit.started = unit.attempt_started = ts
    unit.first_offset = offset
    unit.clock = data.clock
    state.open[unit.key] = unit
    plan = node.plan
    if data.iteration is None and plan.for_each is not None:
        _open_items(state, node, unit, data.input)
        return
    state.running += 1
    state.granted = plan.index
    state.stirred[unit.key] = unit
    _limit_time(state, unit)


def _limit_time(state: RunState, unit: Unit) -> None:
    limit = time_limit(state, unit)
    if limit is not None:
        state.timers[f"deadline {unit.key}"] = unit.started + round(limit * 1e6)


def dispatched(state: RunState, ts: int) -> None:
    """The run begins to move, or moves again."""
    state.status = "running"
    if state.dispatched_at is None:
        state.dispatched_at = ts


def take_unit(state: RunState, node: NodeState, visit: int) -> Unit:
    """The unit that this event starts: from the due queue, else from what would have become due."""
    if node.plan.id in state.holding:
        del state.holding[node.plan.id]
        return node.unit(visit)
    parked = state.parked.pop(f"/{node.plan.id}#{visit}", None)
    if parked is not None:
        state.refused.pop(parked.key, None)
        return parked
    waiting = state.due.get(node.plan.id)
    if waiting:
        unit = waiting.popleft()
        if not waiting:
            del state.due[node.plan.id]
        return unit
    unit = node.unit(visit)
    if node.plan.join_any:
        for token in state.tokens:
            if token.target == node.plan.id:
                state.tokens.remove(token)
                break
    else:
        state.frontier.remove(node.plan.id)
    return unit


def _open_items(state: RunState, node: NodeState, outer: Unit, items: list[Any]) -> None:
    kept = node.units if outer.attempt > 1 else {}
    node.outer = outer
    node.items = items
    node.open_items = len(items)
    plan = node.plan
    _limit_time(state, outer)
    queue: deque[Unit] = deque()
    node.units = {}
    for i, item in enumerate(items):
        earlier = kept.get(i)
        if earlier is not None and earlier.status in ("succeeded", "skipped") and earlier.item == item:
            node.units[i] = earlier  # a held step that is tried again keeps what was done
            node.open_items -= 1
            continue
        unit = Unit(plan, outer.visit, i)
        unit.item, unit.clock = item, outer.clock
        node.units[i] = unit
        queue.append(unit)
    if queue:
        state.due[plan.id] = queue
    else:
        settle(state, outer)


def _leave_due(state: RunState, unit: Unit) -> None:
    queue = state.due.get(unit.node.id)
    if queue:
        if queue[0] is unit:
            queue.popleft()
        elif unit in queue:
            queue.remove(unit)
        if not queue:
            del state.due[unit.node.id]


def _step_completed(state: RunState, data: ev.WorkflowStepCompleted, offset: int, ts: int) -> None:
    unit = _close(state, data)
    unit.status, unit.output = "succeeded", data.output
    if data.iteration is not None:
        _item_done(state, unit)
        return
    node = state.nodes[data.step_id]
    state.steps_done["succeeded"] += 1
    outputs: dict[str, Any] = {"status": "success", "result": data.output}
    if node.plan.for_each is not None:
        outputs["items"] = _items_view(node)
    _step_ended(state, node, "succeeded", outputs, None, data.output)
    if node.plan.join_any:
        port = data.next
        targets = node.plan.next if port is UNSET or port is None else [node.plan.ports.get(port, port)]
        source = node.plan.agent.name if node.plan.agent else node.plan.id
        payload = unit.input if node.plan.kind == "condition" else data.output
        state.tokens.extend(Token(t, payload, source) for t in targets)


def _step_failed(state: RunState, data: ev.WorkflowStepFailed, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        dispatched(state, ts)
    final = data.step_id in state.holding
    unit = _close(state, data)
    unit.error = data.error
    status: StepStatus = "cancelled" if data.error.category == "cancelled" else "failed"
    unit.status = status
    if data.iteration is not None:
        _item_done(state, unit)
        return
    node = state.nodes[data.step_id]
    if status == "failed" and node.plan.required and state.on_failure == "hold" and not final:
        node.status = status
        unit.status = status
        state.holding[data.step_id] = unit  # a person decides what follows from it
        return
    state.steps_done[status] += 1
    if status == "failed" and node.plan.required:
        state.has_failed = True
        state.failed_steps.append(data.step_id)
    outputs = None
    if node.outer is not None:
        results = [u.output if u.status == "succeeded" else None for u in _units(node)]
        outputs = {"status": "failed", "result": results, "items": _items_view(node)}
    _step_ended(state, node, status, outputs, data.error, None)


def _step_skipped(state: RunState, data: ev.WorkflowStepSkipped, offset: int, ts: int) -> None:
    if state.status in ("pending", "waiting"):
        dispatched(state, ts)
    unit = _close(state, data)
    unit.status = "skipped"
    if data.iteration is not None:
        _item_done(state, unit)
        return
    node = state.nodes[data.step_id]
    state.steps_done["skipped"] += 1
    state.skipped.append(data.step_id)
    _step_ended(state, node, "skipped", None, None, None)


def _step_retrying(state: RunState, data: ev.WorkflowStepRetrying, offset: int, ts: int) -> None:
    held = state.holding.pop(data.step_id, None) if data.iteration is None else None
    if held is not None:
        _try_again(state, held, data.next_attempt)
        return
    unit = unit_of(state, data)
    unit.attempt = data.next_attempt
    state.nodes[data.step_id].attempt = data.next_attempt
    unit.failures += 1
    unit.first_failure = unit.first_failure or ts
    unit.error = None
    unit.due_at = ts + round(data.delay_ms * 1000)
    state.timers[f"retry {unit.key}"] = unit.due_at
    state.timers.pop(f"attempt {unit.key}", None)
    state.stirred[unit.key] = unit


def _try_again(state: RunState, held: Unit, attempt: int) -> None:
    """A held step goes back to where it was before it was dispatched."""
    node = state.nodes[held.node.id]
    node.status, node.next_attempt = "pending", attempt
    if held.node.join_any:
        state.tokens.appendleft(Token(held.node.id, held.input, held.node.previous_agent))
    else:
        state.frontier.appendleft(held.node.id)


def _close(state: RunState, data: Any) -> Unit:
    """Take the unit that ends out of every agenda. One that never started is made for its record."""
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    unit = state.open.pop(key, None)
    if unit is None:
        node = state.nodes[data.step_id]
        if data.iteration is not None:
            unit = node.units[data.iteration]
            _leave_due(state, unit)
        else:
            unit = take_unit(state, node, data.visit)
            node.visits = data.visit + 1
        return unit
    state.closed.append(key)
    outer = unit.iteration is None and unit.node.for_each is not None
    if not outer:
        if unit.status != "waiting":
            state.running -= 1  # a step that waits for a person holds no slot
            if unit.iteration is not None:
                state.nodes[unit.node.id].slots -= 1
    else:
        state.due.pop(unit.node.id, None)  # items that never began
    state.stirred.pop(key, None)
    state.call_queue.pop(key, None)
    if state.settled:
        state.settled.pop(key, None)
    if state.timers:
        for kind in ("deadline", "attempt", "retry"):
            state.timers.pop(f"{kind} {key}", None)
    return unit


def _item_done(state: RunState, unit: Unit) -> None:
    node = state.nodes[unit.node.id]
    node.open_items -= 1
    if node.open_items == 0 and node.outer is not None:
        settle(state, node.outer)


def _step_ended(
    state: RunState, node: NodeState, status: StepStatus, outputs: Any, error: Any, output: Any
) -> None:
    node.status = status
    plan = node.plan
    shown: dict[str, Any] | None = msgspec.to_builtins(error) if error is not None else None
    state.nodes_view[plan.id] = {
        "output": output,
        "status": status,
        "error": shown,
        "visits": node.visits,
    }
    if plan.join_any:
        return
    brief = None if shown is None else {k: shown[k] for k in ("category", "code", "message")}
    state.steps_view[plan.id] = {"outputs": outputs, "status": EXPRESSION_STATUS[status], "error": brief}
    for dependent in plan.dependents:
        waiting = state.nodes[dependent]
        waiting.waiting_for -= 1
        if waiting.waiting_for == 0:
            state.frontier.append(dependent)


def _units(node: NodeState) -> list[Unit]:
    return [node.units[i] for i in range(len(node.items))]


def _items_view(node: NodeState) -> list[dict[str, Any]]:
    return [
        {
            "index": u.iteration,
            "status": EXPRESSION_STATUS.get(u.status, u.status),
            "result": u.output if u.status == "succeeded" else None,
            "error": msgspec.to_builtins(u.error) if u.error is not None else None,
        }
        for u in _units(node)
    ]


FOLDS: dict[type, Any] = {
    ev.WorkflowStepStarted: _step_started,
    ev.WorkflowStepCompleted: _step_completed,
    ev.WorkflowStepFailed: _step_failed,
    ev.WorkflowStepSkipped: _step_skipped,
    ev.WorkflowStepRetrying: _step_retrying,
}
