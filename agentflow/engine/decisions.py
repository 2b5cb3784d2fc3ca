"""The events of steps, built in one place: every builder fills the fields that page 000 §6.1 asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json
from agentflow.engine.activation import Activation
from agentflow.engine.globals import Written, written
from agentflow.engine.judging import Judgement, Unjudged, has_code
from agentflow.engine.messages import NO_EDGE, Outgoing, route_messages, undelivered_reason
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso
from agentflow.events.families.base import Reference

__all__ = [
    "Decisions",
    "due",
    "elapsed_ms",
    "idempotency_key",
    "retrying",
    "skipped",
    "step_completed",
    "step_failed",
    "undelivered",
]

Decisions = list[Any]
"""Event data, in order. The caller folds them before it asks for the next decision."""


def elapsed_ms(since: int, now: int) -> int:
    """Return the whole milliseconds between two times in microseconds; 0 if the clock stepped back."""
    return max(0, now - since) // 1000


def due(now: int, delay: float) -> tuple[int, str]:
    """Return a delay in seconds as (milliseconds, RFC 3339 time when it is over)."""
    ms = round(delay * 1000)
    return ms, iso(now + ms * 1000)


def scope_fields(activation: Activation) -> dict[str, Any]:
    """Return the fields that every event of a step has."""
    return {
        "step_id": activation.node.id,
        "iteration": activation.iteration,
        "activation": activation.base_key,
    }


def step_fields(activation: Activation, clock: int | None = None) -> dict[str, Any]:
    """Return the fields that every `workflow.step_*` has; `clock` for an activation that has not begun."""
    fields = {
        "step_id": activation.node.id,
        "iteration": activation.iteration,
        "activation": activation.base_key,
        "step_index": activation.node.index,
        "attempt": activation.attempt,
        "path": activation.path.key,
        "visit": activation.visit,
        "clock": activation.clock if clock is None else clock,
    }
    if activation.superstep:
        fields["superstep"] = activation.superstep
    return fields


def idempotency_key(state: RunState, activation: Activation, call_id: str) -> str:
    """Return a key that all attempts of a call share (page 000 §4)."""
    iteration = "" if activation.iteration is None else activation.iteration
    return f"{state.workflow_id}/{activation.node.id}/{iteration}/{call_id}"


def size_of(value: Any) -> int:
    """Return the length of a value as canonical JSON, in bytes."""
    return len(canonical_json(value))


def step_completed(
    state: RunState,
    activation: Activation,
    now: int,
    *,
    output: Any,
    next_port: str | None = None,
    items: Any = msgspec.UNSET,
    global_writes: Written | None = None,
    judged: Outgoing | None = None,
    messages: Sequence[Outgoing] | None = None,
    first: int = 0,
    cached: Reference | msgspec.UnsetType = msgspec.UNSET,
    clock: int | None = None,
) -> Decisions:
    """Return the end of a step that succeeded; for an agent its state record goes before (page 000 §5).

    `global_writes`: those of its child paths; what the node itself writes comes on top. `judged`: its message
    with the results of the code on its edges; without it, a node with such edges gives an Unjudged.
    `messages`: what goes along its edges, already judged; None for what its kind makes of the output.
    `first`: the index of the first of them, behind those that it sent before its end.
    `cached`: the result that served, of an activation that begins and ends at once, at this `clock`.
    """
    node = activation.node
    if messages is None and node.routes and activation.iteration is None and next_port in (None, "next"):
        message = judged or node.kind.message(activation, output)
        if judged is None and has_code(node):

            def complete(found: Outgoing) -> Decisions:
                return step_completed(
                    state,
                    activation,
                    now,
                    output=output,
                    next_port=next_port,
                    items=items,
                    global_writes=global_writes,
                    judged=found,
                    cached=cached,
                    clock=clock,
                )

            route = Judgement(f"route {activation.key} {activation.attempt}", node, message)
            return [Unjudged(route, complete)]
        messages = (message,)
    sent = None if messages is None else route_messages(node, messages, state.shared.values, first)
    if isinstance(sent, ErrorInfo):
        return step_failed(activation, sent, now, clock=clock)
    writes = global_writes
    if node.writes is not None and activation.iteration is None:
        writes = written(state, activation, output, writes)
        if isinstance(writes, ErrorInfo):
            return step_failed(activation, writes, now, clock=clock)
    moves: Decisions = []
    if activation.agent is not None and node.agent_name is not None:
        moves.append(_state_saved(state, activation, output, now))
    ref = moves[0].ref if moves else msgspec.UNSET
    if node.kind.announces_end and cached is msgspec.UNSET:
        moves += node.kind.before_end(state, activation, output, now)
    end = _end_of_success(activation, now, output, next_port, items, writes, sent, ref)
    if cached is not msgspec.UNSET:
        end = msgspec.structs.replace(
            end, cached=cached, clock=end.clock if clock is None else clock, duration_ms=0
        )
    moves.append(end)
    if sent:
        moves += undelivered(activation, sent)
    return moves


def _end_of_success(
    activation: Activation,
    now: int,
    output: Any,
    next_port: str | None,
    items: Any,
    writes: Written | None,
    sent: tuple[ev.SentMessage, ...] | None,
    state_ref: str | msgspec.UnsetType,
) -> ev.WorkflowStepCompleted:
    tool = activation.tool
    is_result = tool is not None and output is tool.output and tool.output_size > 0
    return ev.WorkflowStepCompleted(
        step_id=activation.node.id,
        iteration=activation.iteration,
        activation=activation.base_key,
        step_index=activation.node.index,
        attempt=activation.attempt,
        path=activation.path.key,
        visit=activation.visit,
        clock=activation.clock,
        superstep=activation.superstep or msgspec.UNSET,
        duration_ms=elapsed_ms(activation.started, now),
        output=output,
        output_size=tool.output_size if tool is not None and is_result else size_of(output),
        state_ref=state_ref,
        items=items,
        next=msgspec.UNSET if next_port is None else next_port,
        messages=msgspec.UNSET if sent is None else sent,
        state=_state_writes(writes),
        usage=activation.usage if activation.agent is not None else msgspec.UNSET,
    )


def _state_writes(writes: Written | None) -> ev.StateWrites | msgspec.UnsetType:
    if writes is None or not (writes.values or writes.appended):
        return msgspec.UNSET
    return ev.StateWrites(globals=writes.values, appended=writes.appended)


def _state_saved(state: RunState, activation: Activation, output: Any, now: int) -> ev.SystemStateSaved:
    """Return the event of the state record of an agent's step."""
    body = canonical_json(state_record(state, activation, output, now))
    return ev.SystemStateSaved(
        kind="step",
        step_id=activation.node.id,
        step_index=activation.node.index,
        iteration=activation.iteration,
        activation=activation.base_key,
        ref=f"state:{activation.key}",
        schema_version=1,
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
    )


def undelivered(activation: Activation, messages: Sequence[ev.SentMessage]) -> list[ev.MessageUndelivered]:
    """Return `message.undelivered` for each message that no edge delivered, or that came after its round."""
    moves: list[ev.MessageUndelivered] = []
    late = _late_joins(activation) if activation.path.rounds else ()
    for message in messages:
        if not late and any(d.status in ("delivered", "buffered") for d in message.deliveries):
            continue
        reason = undelivered_reason(message)
        taken = [d for d in message.deliveries if d.status in ("delivered", "buffered")]
        if taken and all(d.status == "buffered" and f"{d.edge}>{d.target}" in late for d in taken):
            reason = "join_closed"
        if reason == NO_EDGE and message.index == 0 and activation.path.opener is not None:
            continue  # what a child path ends with is its result
        if reason is not None:
            moves.append(
                ev.MessageUndelivered(
                    **scope_fields(activation), index=message.index, type=message.type, reason=reason
                )
            )
    return moves


def _late_joins(activation: Activation) -> frozenset[str]:
    """Return the edges to joins whose round has closed without this activation."""
    node, rounds = activation.node, activation.path.rounds
    return frozenset(
        f"{edge.name}>{edge.target.id}"
        for edge in node.targets("next")
        if edge.fan is not None and rounds[edge.fan.index].charged[node.id]
    )


def state_record(state: RunState, activation: Activation, output: Any, now: int) -> dict[str, Any]:
    """Return the record of a finished agent step (page 000 §5): a view of the log."""
    agent = activation.node.agent
    return {
        "schema_version": 1,
        "workflow_id": state.workflow_id,
        "step_id": activation.node.id,
        "step_index": activation.node.index,
        "iteration": activation.iteration,
        "attempt": activation.attempt,
        "state": "succeeded" if activation.error is None else "failed",
        "input": activation.input,
        "data": output,
        "metadata": {
            "agent_name": agent.name if agent else None,
            "timestamp": iso(now),
            "duration_ms": elapsed_ms(activation.started, now),
        },
        "event_offsets": {"first": activation.first_offset, "last": state.next_offset - 1},
        "error": msgspec.to_builtins(activation.error) if activation.error is not None else None,
    }


def step_failed(
    activation: Activation,
    error: ErrorInfo,
    now: int,
    *,
    outcome: Literal["failed", "unknown"] = "failed",
    items: Any = msgspec.UNSET,
    clock: int | None = None,
) -> Decisions:
    """Return the end of a step that failed, or was cancelled (category `cancelled`)."""
    return [
        ev.WorkflowStepFailed(
            **step_fields(activation, clock),
            duration_ms=elapsed_ms(activation.started, now) if activation.started else 0,
            error=error,
            attempts=activation.attempt,
            outcome=outcome,
            items=items,
        )
    ]


def skipped(
    activation: Activation,
    reason: Any,
    detail: str | None,
    caused_by: tuple[str, ...],
    *,
    clock: int | None = None,
) -> Decisions:
    """Return the end of a step, or of one item of it, that will not run."""
    fields = step_fields(activation, clock)
    return [ev.WorkflowStepSkipped(**fields, reason=reason, detail=detail, caused_by=caused_by)]


def retrying(
    activation: Activation, kind: Any, error: ErrorInfo, delay: float, now: int, **more: Any
) -> Decisions:
    """`agent.retrying` of an agent, else `workflow.step_retrying`. The delay is drawn once and stored."""
    delay_ms, due_at = due(now, delay)
    agent = activation.agent
    name = activation.node.agent_name
    if agent is None or name is None:
        return [
            ev.WorkflowStepRetrying(
                **step_fields(activation),
                kind=kind,
                error=error,
                next_attempt=activation.attempt + 1,
                delay_ms=delay_ms,
                due_at=due_at,
            )
        ]
    if kind == "restart":
        next_attempt = activation.attempt + 1
    elif kind == "repair":
        next_attempt = agent.repairs + 2
    elif kind == "model":
        next_attempt = agent.failed_calls + 2  # the failure of this one is not folded yet
    else:
        next_attempt = 1
    return [
        ev.AgentRetrying(
            **scope_fields(activation),
            agent_name=name,
            context_id=agent.context_id,
            kind=kind,
            next_attempt=next_attempt,
            delay_ms=delay_ms,
            due_at=due_at,
            category=error.category,
            error=error,
            **more,
        )
    ]
