"""What handlers of executors gave, as events: outputs, completions and failures (page 002 §3, §7, §8, §10).

A completion is atomic: messages, writes and requests stand in one append with its `workflow.step_completed`.
Routing and retries are decided here, once; afterwards they stand in the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.call_results import attempt_failed
from agentflow.engine.decisions import (
    Decisions,
    due,
    elapsed_ms,
    scope_fields,
    size_of,
    step_failed,
    step_fields,
    undelivered,
)
from agentflow.engine.globals import written
from agentflow.engine.grants import denied_write
from agentflow.engine.ids import derive
from agentflow.engine.mail import MAX_QUEUED, MAX_SENT
from agentflow.engine.messages import Outgoing, route_messages
from agentflow.engine.recorded_calls import calls_left_open
from agentflow.engine.shared_state import SharedView, Writes
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev

__all__ = [
    "INPUT_TIMEOUT",
    "Question",
    "handler_completed",
    "handler_failed",
    "handler_output",
    "input_expired",
    "request_id_of",
    "shared_of",
    "unanswered",
]

INPUT_TIMEOUT = "input_timeout"
OUTCOME_UNKNOWN = "outcome_unknown"
"""A recorded call may have been made, and must not be repeated."""

_MISUSE = frozenset(
    {"message_type_undeclared", "unknown_target", "no_response_handler", "message_not_encodable"}
)
"""Codes of mistakes that another attempt would repeat (page 002 §16)."""


_NOTHING_WRITTEN = ev.StateWrites()


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request that a handler staged: what is asked, the type and schema of the answer, and until when.

    `timeout` is in seconds; `on_timeout` is the answer that counts then, without one the node fails.
    """

    request: Any
    response_type: str
    response_schema: Any = True
    timeout: float | None = None
    on_timeout: Any = UNSET


def request_id_of(state: RunState, activation: Activation, ordinal: int) -> str:
    """Return the id of the request that an attempt makes as the `ordinal`th, counted from 0."""
    started = activation.attempt_started
    return derive("req_", started, state.workflow_id, activation.key, activation.attempt, ordinal)


def shared_of(state: RunState, activation_key: str) -> SharedView:
    """Return the shared state that a handler reads: as it was when its activation began."""
    return SharedView(state.shared, state.mail.open[activation_key].local.base)


def handler_output(
    state: RunState,
    activation_key: str,
    attempt: int,
    *,
    type: str,
    value: Any,
    kind: Literal["output", "intermediate"] = "output",
    index: int | None = None,
) -> Decisions:
    """Return the event of a value that a handler yields: the `index`th of its attempt, from 0.

    Empty if this attempt is over, and if the log has the value already: a handler whose process died begins
    its attempt once more.
    """
    activation = _at_work(state, activation_key, attempt)
    if activation is None:
        return []
    given = state.mail.outputs.get(activation_key, [])
    if index is None:
        index = len(given)
    elif index < len(given):
        before = given[index][3]
        if (before.type, before.value) == (type, value):
            return []
    return [ev.Output(**scope_fields(activation), kind=kind, index=index, type=type, value=value)]


def handler_completed(
    state: RunState,
    activation_key: str,
    attempt: int,
    *,
    now: int,
    messages: Sequence[Outgoing] = (),
    private: Mapping[str, Any] | None = None,
    shared: Sequence[tuple[str, Any]] = (),
    requests: Sequence[Question] = (),
    output: Any = None,
) -> Decisions:
    """Return the end of an activation whose handler returned; empty if this attempt is over."""
    activation = _at_work(state, activation_key, attempt)
    if activation is None:
        return []
    left = calls_left_open(state, activation, now)
    error = _too_many(state, activation, messages)
    if shared and error is None:
        writes = Writes(activation.node.id, activation.visit, activation.path.key, tuple(shared))
        error = denied_write(activation, [key for key, _ in shared])
        error = error or state.graph.policy.conflict(state, writes, activation.local.base)
    if error is not None:
        return left + step_failed(activation, error, now)
    sent = route_messages(activation.node, messages, state.shared.values)
    if isinstance(sent, ErrorInfo):
        return left + step_failed(activation, sent, now)
    written_globals = None
    if activation.node.writes is not None and activation.iteration is None:
        written_globals = written(state, activation, output, None)
        if isinstance(written_globals, ErrorInfo):
            return left + step_failed(activation, written_globals, now)
    asked = [_requested(state, activation, question, i, now) for i, question in enumerate(requests)]
    moves: Decisions = left + [event for event in asked if not _is_asked(state, event)]
    kept: ev.StateWrites | UnsetType = UNSET
    if private or shared or written_globals is not None:
        kept = ev.StateWrites(
            private=dict(private or {}),
            shared=tuple(ev.SharedWrite(key=key, value=value) for key, value in shared),
            globals={} if written_globals is None else written_globals.values,
            appended={} if written_globals is None else written_globals.appended,
        )
    moves.append(
        ev.WorkflowStepCompleted(
            **step_fields(activation),
            duration_ms=elapsed_ms(activation.started, now),
            output=output,
            output_size=size_of(output),
            messages=sent,
            state=UNSET if kept == _NOTHING_WRITTEN else kept,
        )
    )
    return [*moves, *undelivered(activation, sent)]


def handler_failed(
    state: RunState, activation_key: str, attempt: int, error: ErrorInfo, *, now: int, draw: float
) -> Decisions:
    """Try a handler that raised again by the policy of its node, or fail; empty if this attempt is over."""
    activation = _at_work(state, activation_key, attempt)
    if activation is None:
        return []
    left = calls_left_open(state, activation, now)
    if error.code in _MISUSE:
        return left + step_failed(activation, error, now)
    if error.code == OUTCOME_UNKNOWN:
        return left + step_failed(activation, error, now, outcome="unknown")
    return left + attempt_failed(activation, error, now, draw)


def _at_work(state: RunState, activation_key: str, attempt: int) -> Activation | None:
    activation = state.mail.open.get(activation_key)
    return activation if activation is not None and activation.attempt == attempt else None


def _too_many(state: RunState, activation: Activation, messages: Sequence[Outgoing]) -> ErrorInfo | None:
    if len(messages) > MAX_SENT:
        text = f"{activation.node.id} sent {len(messages)} messages, the limit is {MAX_SENT}"
        return _limit("message_limit_exceeded", text, MAX_SENT)
    waiting = len(state.mail.queue) + len(state.activations) - len(state.open)
    if messages and waiting + len(messages) > MAX_QUEUED:
        text = f"{waiting} messages wait and {len(messages)} come, the limit is {MAX_QUEUED}"
        return _limit("pending_limit_exceeded", text, MAX_QUEUED)
    return None


def _limit(code: str, message: str, limit: int) -> ErrorInfo:
    return ErrorInfo(category="agent", code=code, message=message, details={"limit": limit})


def _requested(
    state: RunState, activation: Activation, question: Question, ordinal: int, now: int
) -> ev.InputRequested:
    return ev.InputRequested(
        **scope_fields(activation),
        request_id=request_id_of(state, activation, ordinal),
        request_type=question.response_type,
        request=question.request,
        response_schema=question.response_schema,
        deadline=UNSET if question.timeout is None else due(now, question.timeout)[1],
        on_timeout=question.on_timeout,
    )


def _is_asked(state: RunState, event: ev.InputRequested) -> bool:
    """Return whether the log has a question already: it ends between it and the completion of its sender."""
    known = state.requests.get(event.request_id)
    data = None if known is None else known.data
    return isinstance(data, ev.InputRequested) and (data.request, data.request_type) == (
        event.request,
        event.request_type,
    )


def input_expired(state: RunState, request_id: str) -> Decisions:
    """Answer an overdue question with its `on_timeout`, or fail the node that asked."""
    request = state.requests.get(request_id)
    if request is None or not isinstance(request.data, ev.InputRequested):
        return []
    fields = scope_fields(request.activation)
    if request.data.on_timeout is UNSET:
        return [ev.InputCancelled(**fields, request_id=request_id, reason=INPUT_TIMEOUT)]
    value = request.data.on_timeout
    return [ev.InputReceived(**fields, request_id=request_id, value=value, by="system", via="deadline")]


def unanswered(request: OpenRequest) -> ErrorInfo:
    """Return the error of a node whose question had no answer in time."""
    message = f"{request.request_id} of {request.activation.node.id} had no answer in time"
    details = {"request_id": request.request_id}
    return ErrorInfo(category="timeout", code=INPUT_TIMEOUT, message=message, details=details)
