"""Plain calls: the most frequent turn of a run, folded as one.

The function of a tool node returns, its step ends, and the steps behind it begin: four events that `decide`
and `evolve` would find in five rounds. For a plain call (`Kind.makes_plain_call`) in a state where nothing
else can come first they are made here at once, with the same events and the same state. Where it is not that
simple nothing is done and the caller asks `decide`. A test compares both on seeded graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from agentflow.definition.conversation import ToolCall
from agentflow.definition.expressions import EvaluationError
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.arrivals import leave, route
from agentflow.engine.decisions import size_of
from agentflow.engine.effects import Effect, StartCall
from agentflow.engine.folds.common import use_tool
from agentflow.engine.folds.steps import show
from agentflow.engine.ids import derive
from agentflow.engine.state import OpenCall, RunState
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.path import NodeState

__all__ = ["begin_visit", "complete_plain_call", "end_visit", "has_more", "is_plain"]


def complete_plain_call(
    state: RunState, call_id: str, output: Any, duration_ms: int, now: int, effects: list[Effect]
) -> list[ev.RunEvent] | None:
    """Fold the result of a call and what follows from it; return the events and add their effects.

    Returns None, with nothing changed, unless the call is plain and nothing else can come first. More may
    follow from the state if no slot of the run is taken then. There is no Release: the only call of the
    activation has its result.
    """
    call = state.calls.get(call_id)
    if call is None or not call.activation.node.plain_call or state.has_mail or not is_plain(state, now):
        return None
    activation = call.activation
    record = activation.tool
    if record is None or record.call.id != call_id or activation.path.opener is not None:
        return None
    if record.info is None or record.info.output_schema is not None:
        return None
    events: list[ev.RunEvent] = []
    _end(state, activation, record, output, duration_ms, now, events)
    ready = state.ready
    while (
        (ready.alone or ready.nodes)
        and state.running < state.max_parallel
        and not (state.arrived or state.changed or state.settled or state.root.stopped)
        and _begin(state, now, events, effects)
    ):
        pass
    return events


def has_more(state: RunState) -> bool:
    """Return whether `decide` may say something after what is plain; if not, it need not be asked."""
    mail = state.mail
    return bool(
        not (state.running or mail.is_at_work)
        or (state.has_mail and (mail.inbox or mail.untold or mail.untimed or mail.fatal is not None))
        or state.arrived
        or state.changed
        or state.settled
        or state.root.stopped
        or (state.running < state.max_parallel and state.ready)
    )


def is_plain(state: RunState, now: int) -> bool:
    """Return whether nothing comes before the end of a step whose work is done, or after it but a start;
    messages are not looked at."""
    return not (
        state.status != "running"
        or (state.timers and (state.timers.earliest() or now) <= now)
        or state.changed
        or state.settled
        or state.arrived
        or state.held_steps
        or state.denied
        or state.returning
        or state.call_queue
        or state.budget
        or state.step_budgets
        or state.has_failed
        or state.graph.uses_last
        or state.pipeline is not None
        or state.cancel_requested is not None
        or state.root.stopped
        or now < state.last_ts
    )


def _end(
    state: RunState,
    activation: Activation,
    record: ToolRecord,
    output: Any,
    duration_ms: int,
    now: int,
    events: list[ev.RunEvent],
) -> None:
    """Add and fold `tool.call_completed` and `workflow.step_completed`."""
    node, offset = activation.node, state.next_offset + 1
    size = size_of(output)
    completed = ev.WorkflowStepCompleted(
        step_id=node.id,
        iteration=None,
        activation=activation.base_key,
        step_index=node.index,
        attempt=activation.attempt,
        path="",
        visit=activation.visit,
        clock=activation.clock,
        superstep=activation.superstep or UNSET,
        duration_ms=max(0, now - activation.started) // 1000,
        output=output,
        output_size=size,
    )
    events += (
        ev.ToolCallCompleted(
            step_id=node.id,
            iteration=None,
            activation=activation.base_key,
            tool_call_id=record.call.id,
            tool_name=record.name,
            duration_ms=duration_ms,
            status="success_no_data" if output is None else "success",
            output=output,
            output_size=size,
        ),
        completed,
    )
    del state.calls[record.call.id]
    record.state, record.executed, record.output, record.output_size = "done", True, output, size
    activation.interruptions = 0
    activation.result_ready = True
    activation.has_slot = False
    state.running -= 1
    place = end_visit(state, activation, output, offset, now)
    if node.join.takes_tokens:
        route(state, activation, "next", output)
    leave(state, activation, place)


def end_visit(state: RunState, activation: Activation, output: Any, offset: int, now: int) -> NodeState:
    """Fold what is common to all plain ends, at the offset of `workflow.step_completed`; the caller brings
    on what follows, then lets the activation leave."""
    node, path, key = activation.node, activation.path, activation.key
    activation.output, activation.status = output, "succeeded"
    activation.touched = offset
    del state.activations[key]
    del state.open[key]
    state.next_offset, state.last_ts = offset + 1, now
    state.steps_done["succeeded"] += 1
    place = path.nodes[node.id]
    frame = path.frame
    if frame.is_read or node.kind.shows_more:
        outputs = {"status": "success", "result": output}
        show(state, activation, place, "succeeded", outputs, None, output, offset)
    else:
        place.status, place.output, place.error, place.ended = "succeeded", output, None, offset
        frame.nodes[node.name] = {
            "output": output,
            "status": "succeeded",
            "error": None,
            "visits": place.visits,
        }
        if not node.join.takes_tokens:
            frame.steps[node.name] = {
                "outputs": {"status": "success", "result": output},
                "status": "success",
                "error": None,
            }
    return place


def _begin(state: RunState, now: int, events: list[ev.RunEvent], effects: list[Effect]) -> bool:
    """Add and fold `workflow.step_started` and `tool.call_started` of the activation whose turn it is; return
    False, with nothing changed, if `decide` has to be asked about it."""
    activation = state.ready.sole() or next(state.ready.in_turn())
    node, path = activation.node, activation.path
    if not node.plain_call or path.opener is not None or state.clock >= state.graph.max_steps:
        return False
    binding = state.bindings.steps.get(node.id)
    if binding is None or not binding.tools or activation.snapshot is not None:
        return False
    name, info = next(iter(binding.tools.items()))
    if not info.self_checked or info.needs_approval:
        return False
    template, input = node.program, activation.input
    if template is not None:
        if node.rare_roots or path.item_path is not None:
            scope = state.scope(activation)
        else:
            frame, given = path.frame, path.input
            scope = {"steps": frame.steps, "nodes": frame.nodes, "inputs": given, "input": given}
        try:
            input = template.evaluate(scope)
        except EvaluationError:
            return False
    if input.__class__ is not dict:
        return False
    key, place = activation.key, path.nodes[node.id]
    taken, offset, attempt = activation.taken, state.next_offset, activation.attempt
    run_id, clock = state.workflow_id, state.clock
    call_id = derive("call_", now, run_id, key)
    started = ev.WorkflowStepStarted(
        step_id=node.id,
        iteration=None,
        activation=key,
        step_index=node.index,
        attempt=attempt,
        path="",
        visit=activation.visit,
        clock=clock,
        superstep=activation.superstep or UNSET,
        kind=node.kind.name,
        input=input,
        depends_on=node.dependencies or UNSET,
        sources=UNSET if taken is None else taken.sources or UNSET,
        missing=UNSET if taken is None else taken.missing or UNSET,
    )
    called = ev.ToolCallStarted(
        step_id=node.id,
        iteration=None,
        activation=key,
        tool_call_id=call_id,
        tool_name=name,
        service=info.service,
        parameters=input,
        agent_name=None,
        side_effect=info.side_effect,
        idempotency_key=f"{run_id}/{node.id}//{call_id}",
    )
    events += (started, called)
    state.ready.remove(activation, place)
    begin_visit(state, activation, place, input, offset, now)
    activation.touched = offset + 1
    state.ready.last_slot = node.index
    activation.has_slot = True
    state.running += 1
    record = activation.tool = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
    record.info, record.parameters, record.safe = info, input, info.safe
    record.state, record.tries = "open", 1
    activation.tool_calls += 1
    activation.due_at = None
    use_tool(state, activation)
    if not record.safe:
        activation.unsafe = True
    state.calls[call_id] = OpenCall("tool", call_id, activation, offset + 1)
    state.next_offset = offset + 2
    effects.append(StartCall(call_id))
    return True


def begin_visit(
    state: RunState, activation: Activation, place: NodeState, input: Any, offset: int, now: int
) -> None:
    """Fold what is common to all plain starts: `workflow.step_started` at this offset."""
    activation.path.steps += 1
    if place.visits <= activation.visit:
        place.visits = activation.visit + 1
    place.attempt, place.next_attempt, place.status = activation.attempt, 1, "running"
    activation.status, activation.phase, activation.input = "running", "open", input
    activation.started = activation.attempt_started = now
    activation.first_offset = activation.touched = offset
    clock = activation.clock = state.clock
    state.clock = clock + 1
    state.open[activation.key] = activation
