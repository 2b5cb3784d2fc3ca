"""Recorded calls: what a handler does once, though it may run several times (page 002 §3).

Such a call is in the log as a call of a function, by the rules of page 000 §4: a later attempt gets the
recorded result, and a call whose outcome is unknown is repeated only if that is harmless.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.approvals import withdrawn
from agentflow.engine.budgets import (
    Exceeded,
    budget_error,
    fails,
    is_about_call,
    tool_calls_exceed,
    wait_for_room,
)
from agentflow.engine.decisions import Decisions, elapsed_ms, idempotency_key, scope_fields, size_of
from agentflow.engine.ids import derive
from agentflow.engine.lost_outcomes import ask_outcome
from agentflow.engine.reservations import charge, terms_of
from agentflow.engine.state import OpenCall, RunState
from agentflow.events import catalogue as ev

__all__ = [
    "HANDLER_ENDED",
    "Begun",
    "call_begun",
    "call_ended",
    "call_reported",
    "calls_left_open",
    "without_room",
]


HANDLER_ENDED = "handler_ended"
"""Code of calls, and reason of questions, that a handler left open when it ended."""


class Begun(NamedTuple):
    """What a handler is told that wants to make a call: make it (`run`), here is the record (`done`), it is
    under way already (`open`), its outcome was lost for good (`unknown`), the attempt is over (`over`), a
    person is to say what came of it or there is no room for it in a budget yet (`wait`), or never will be
    (`exceeded`).
    """

    verdict: Literal["run", "done", "open", "unknown", "over", "wait", "exceeded"]
    call_id: str = ""
    idempotency_key: str = ""
    output: Any = None
    decisions: Decisions = []  # noqa: RUF012  (never changed)
    error: ErrorInfo | None = None


def call_begun(
    state: RunState,
    activation_key: str,
    attempt: int,
    *,
    name: str,
    parameters: Any,
    side_effect: Literal["none", "read", "write", "external", "irreversible"],
    idempotent: bool,
    service: str | None = None,
    key: str | None = None,
    now: int,
) -> Begun:
    """Return whether a handler makes this call at the time `now`. `key`, by default `name`, tells its calls
    apart."""
    activation = state.mail.open.get(activation_key)
    if activation is None or activation.attempt != attempt:
        return Begun("over")
    started, origin = activation.local.origin
    call_id = derive("call_", started, origin, key or name)  # the same in a fork of the run
    stable = idempotency_key(state, activation, call_id)
    record = activation.node.kind.call(activation, call_id)
    if record is None:
        record = _inherited(state, activation, name, parameters, key)
    if record is not None:
        if record.state == "done":
            return Begun("done", call_id, stable, record.output)
        if record.state == "open":
            return Begun("open", call_id, stable)
        if record.denied is not None:
            return Begun("unknown", call_id, stable)
        if record.state == "unknown" and not idempotent:
            return _without_outcome(state, activation, record, call_id, now)
    else:  # one that is made again has counted
        over = tool_calls_exceed(state, activation, 1)
        if over is not None:
            return without_room(state, activation, call_id, over, now)
    begins = ev.ToolCallStarted(
        **scope_fields(activation),
        tool_call_id=call_id,
        tool_name=name,
        service=UNSET if service is None else service,
        parameters=parameters,
        agent_name=None,
        side_effect=side_effect,
        idempotency_key=stable,
    )
    return Begun("run", call_id, stable, decisions=[begins])


def without_room(state: RunState, activation: Activation, call_id: str, found: Exceeded, now: int) -> Begun:
    """Return what a handler does about a call that does not fit a budget: wait until it does, or fail."""
    if fails(activation, found):
        return Begun("exceeded", call_id, error=budget_error(found))
    return Begun("wait", call_id, decisions=wait_for_room(state, activation, found, now))


def _inherited(
    state: RunState, activation: Activation, name: str, parameters: Any, key: str | None
) -> ToolRecord | None:
    """Return the record of a call in the run that this one was forked from, where it had another id: that of
    equal parameters, of several the one that stands where this call does."""
    if state.begin is None or state.begin.forked_from is UNSET:
        return None
    number = "" if key is None else key.rpartition(" ")[2]
    ordinal = int(number) - 1 if number.isdecimal() else 0
    calls: dict[str, ToolRecord] = activation.local.calls
    equal = [record for record in calls.values() if (record.name, record.parameters) == (name, parameters)]
    found = equal[ordinal] if ordinal < len(equal) else None
    is_settled = found is not None and (found.state in ("done", "unknown") or found.denied is not None)
    return found if is_settled else None


def _without_outcome(
    state: RunState, activation: Activation, record: ToolRecord, call_id: str, now: int
) -> Begun:
    """Return what a handler does about a call whose outcome was lost: wait for a person, or fail (page 000
    §11 rule 4)."""
    if state.on_unknown == "fail":
        return Begun("unknown", call_id)
    is_asked = any(
        request.activation is activation and request.call_id == record.call.id
        for request in state.requests.values()
    )
    return Begun("wait", call_id, decisions=[] if is_asked else ask_outcome(state, activation, record, now))


def call_ended(
    state: RunState,
    activation_key: str,
    attempt: int,
    call_id: str,
    *,
    duration_ms: int,
    output: Any = None,
    error: ErrorInfo | None = None,
    executed: bool = True,
    unknown: bool = False,
) -> Decisions:
    """Record what came of a call. Empty if it is closed, or its attempt is over.

    Not `executed`: it was never begun. `unknown`: it may have had its effect all the same.
    """
    activation = state.mail.open.get(activation_key)
    if activation is None or activation.attempt != attempt or call_id not in state.calls:
        return []
    record = _record(activation, call_id)
    if error is not None:
        outcome = "unknown" if unknown and not record.safe else "failed" if executed else "not_started"
        return [_failed(activation, record, error, duration_ms, outcome=outcome)]
    return [
        ev.ToolCallCompleted(
            **scope_fields(activation),
            tool_call_id=call_id,
            tool_name=record.name,
            duration_ms=duration_ms,
            status="success_no_data" if output is None else "success",
            output=output,
            output_size=size_of(output),
        )
    ]


def call_reported(state: RunState, call_id: str, report: Any, now: int) -> Decisions:
    """Return the record of a call that a delegate has made (`name`, `parameters`, `output`, `side_effect`,
    `error`); empty if the task that it works on, the open call `call_id`, is over."""
    open_call = state.calls.get(call_id)
    if open_call is None or not open_call.activation.node.kind.judges_calls:
        return []
    activation = open_call.activation
    number = len(activation.local.calls)
    reported = derive("call_", now, state.workflow_id, activation.key, call_id, number)
    common: dict[str, Any] = {
        **scope_fields(activation),
        "tool_call_id": reported,
        "tool_name": report.name,
    }
    begun = ev.ToolCallStarted(
        **common,
        parameters=report.parameters,
        agent_name=activation.node.agent_name,
        side_effect=report.side_effect,
        idempotency_key=idempotency_key(state, activation, reported),
    )
    if report.error is not None:
        error = ErrorInfo(category="tool", code="tool_execution_failed", message=report.error)
        failed = ev.ToolCallFailed(
            **common, duration_ms=0, error=error, executed=True, outcome="failed", will_retry=False
        )
        return [begun, failed]
    completed = ev.ToolCallCompleted(
        **common,
        duration_ms=0,
        status="success_no_data" if report.output is None else "success",
        output=report.output,
        output_size=size_of(report.output),
    )
    return [begun, completed]


def calls_left_open(state: RunState, activation: Activation, now: int) -> Decisions:
    """Close the calls that a handler left open when it ended, and what was asked about them: their results
    will not come."""
    if not (state.calls or state.requests):
        return []
    error = ErrorInfo(
        category="interrupted",
        code=HANDLER_ENDED,
        message=f"the handler of {activation.node.id} ended while this call was open",
    )
    spent = elapsed_ms(activation.attempt_started, now)
    moves: Decisions = []
    for request in state.requests.values():
        if request.activation is activation and is_about_call(request.data):
            moves += withdrawn(request, error.code)
    for call in state.calls.values():
        if call.activation is not activation:
            continue
        if call.kind == "model":
            moves.append(_model_left_open(state, call, error, spent))
            continue
        record = _record(activation, call.call_id)
        outcome: Literal["failed", "unknown"] = "failed" if record.safe else "unknown"
        moves.append(_failed(activation, record, error, spent, outcome=outcome))
    return moves


def _model_left_open(state: RunState, call: OpenCall, error: ErrorInfo, duration_ms: int) -> Any:
    activation = call.activation
    terms = terms_of(state.bindings.of_node(activation.node), call.model)
    charged = charge(call, terms, None, wrote=False, error=error)
    return ev.ModelCallFailed(
        **scope_fields(activation),
        model_call_id=call.call_id,
        agent_name=None,
        duration_ms=duration_ms,
        error=error,
        will_retry=False,
        usage=UNSET if charged is None else charged,
    )


def _record(activation: Activation, call_id: str) -> ToolRecord:
    record = activation.node.kind.call(activation, call_id)
    assert record is not None
    return record


def _failed(
    activation: Activation,
    record: ToolRecord,
    error: ErrorInfo,
    duration_ms: int,
    *,
    outcome: Literal["failed", "unknown", "not_started"],
) -> Any:
    return ev.ToolCallFailed(
        **scope_fields(activation),
        tool_call_id=record.call.id,
        tool_name=record.name,
        duration_ms=duration_ms,
        error=error,
        executed=outcome != "not_started",
        outcome=outcome,
        will_retry=False,
    )
