"""What the outside world answered, as events: results and failures of model and tool calls.

Retry decisions are made here, once, with the drawn jitter as data; afterwards they stand in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.definition.policy import MAX_SECONDS, RetryPolicy
from agentflow.definition.schemas import validate
from agentflow.engine.activation import Activation
from agentflow.engine.agents.failure import agent_failed
from agentflow.engine.agents.progress import AgentProgress, ToolRecord, model_of
from agentflow.engine.bindings import ModelTerms, StepBinding
from agentflow.engine.decisions import Decisions, due, retrying, scope_fields, size_of, step_failed
from agentflow.engine.reservations import charge, most_output, output_limit, terms_of
from agentflow.engine.state import OpenCall, RunState
from agentflow.events import catalogue as ev

__all__ = ["attempt_failed", "model_completed", "model_failed", "tool_completed", "tool_failed"]


def model_completed(
    state: RunState,
    call_id: str,
    *,
    message: Message,
    finish_reason: str,
    response_model: str,
    response_id: str | None,
    usage: Usage,
    duration_ms: int,
    first_token_ms: float | None,
) -> Decisions:
    """Return what follows from a model's answer; empty if the call is closed."""
    call = state.calls.get(call_id)
    if call is None:
        return []
    activation = call.activation
    terms = terms_of(state.bindings.of_node(activation.node), call.model)
    wrote = bool(message.content or message.tool_calls)
    charged = charge(call, terms, usage, wrote=wrote) or usage
    if finish_reason == "length" and _cut_by_budget(call, terms):
        return [_cut(call, message.content, charged, duration_ms, terms)]
    return [
        ev.ModelCallCompleted(
            **scope_fields(activation),
            model_call_id=call_id,
            agent_name=activation.node.agent_name,
            duration_ms=duration_ms,
            first_token_ms=UNSET if first_token_ms is None else round(first_token_ms),
            message=message,
            finish_reason=finish_reason,
            response_model=response_model,
            response_id=UNSET if response_id is None else response_id,
            usage=charged,
        )
    ]


def _cut_by_budget(call: OpenCall, terms: ModelTerms) -> bool:
    """Return whether the call was sent with a limit because of a budget, and would be with a larger one."""
    progress = call.activation.agent
    assert progress is not None
    asked = model_of(progress).parameters
    return call.parameters != asked and output_limit(call.parameters, terms) < most_output(asked, terms)


def _cut(call: OpenCall, partial: str | None, usage: Usage, duration_ms: int, terms: ModelTerms) -> Any:
    """Close a call whose answer was cut off at a limit that the budget set: it is made again with a larger
    one, and while there is no room for that the budget is exceeded."""
    limit = output_limit(call.parameters, terms)
    text = f"the answer was cut off at {limit:,} tokens, the limit that the budget set"
    activation = call.activation
    return ev.ModelCallFailed(
        **scope_fields(activation),
        model_call_id=call.call_id,
        agent_name=activation.node.agent_name,
        duration_ms=duration_ms,
        error=ErrorInfo(category="budget", code="output_truncated", message=text),
        will_retry=True,
        partial=partial or UNSET,
        usage=usage,
    )


def model_failed(
    state: RunState,
    call_id: str,
    error: ErrorInfo,
    *,
    retry_after: float | None,
    duration_ms: int,
    now: int,
    draw: float,
    partial: str | None = None,
    usage: Usage | None = None,
    uncharged: bool = False,
) -> Decisions:
    """Repeat a failed model call, use the next model, pause, or fail (page 000 §9). `uncharged`: it
    cannot have cost anything, since the provider never worked on it."""
    call = state.calls.get(call_id)
    if call is None:
        return []
    activation = call.activation
    progress = activation.agent
    assert progress is not None
    policy = activation.node.retry
    failures = progress.failed_calls + 1
    lost = error.category == "interrupted"  # not the model's fault: made again, and not counted
    delay = _delay(policy, error, failures, progress.first_failure, retry_after, now, draw)
    binding = state.bindings.of_node(activation.node)
    following = _fallback(progress, error, binding)
    if error.code == "circuit_open" and following is not None:
        delay = None  # the next model may answer at once
    terms = terms_of(binding, call.model)
    charged = usage if uncharged else charge(call, terms, usage, wrote=bool(partial), error=error)
    if error.code == "output_truncated":
        end = _truncated(call, error, partial, charged, duration_ms, terms)
        if end is not None:
            return [end]
    failed = ev.ModelCallFailed(
        **scope_fields(activation),
        model_call_id=call_id,
        agent_name=activation.node.agent_name,
        duration_ms=duration_ms,
        error=error,
        will_retry=lost or delay is not None,
        partial=UNSET if partial is None else partial,
        usage=UNSET if charged is None else charged,
    )
    if lost:
        return [failed]
    if delay is not None:
        return [failed, *retrying(activation, "model", error, delay, now)]
    if following is not None:
        return [failed, *retrying(activation, "fallback", error, 0, now, model=following.name)]
    if error.category in ("quota", "rate_limited"):
        # A limit that outlasts the retries is a quota: the run stands still, nothing is lost.
        failed = msgspec.structs.replace(failed, will_retry=True)
        return [failed, *_pause(state, error, retry_after, now)]
    return [failed, *agent_failed(activation, error, now, closed=[failed])]


def _truncated(
    call: OpenCall,
    error: ErrorInfo,
    partial: str | None,
    usage: Usage | None,
    duration_ms: int,
    terms: ModelTerms,
) -> Any:
    """Return the end of a call whose answer was cut off, if it is no plain failure: the agent accepts what
    there is, or the budget set the limit."""
    activation = call.activation
    if not (partial and _accepts_truncated(activation)):
        if usage is not None and _cut_by_budget(call, terms):
            return _cut(call, partial, usage, duration_ms, terms)
        return None
    return ev.ModelCallCompleted(
        **scope_fields(activation),
        model_call_id=call.call_id,
        agent_name=activation.node.agent_name,
        duration_ms=duration_ms,
        message=Message(role="assistant", content=partial),
        finish_reason=(error.details or {}).get("finish_reason", "length"),
        response_model=call.model.partition(":")[2],
        usage=usage or Usage(model_calls=1),
    )


def _pause(state: RunState, error: ErrorInfo, retry_after: float | None, now: int) -> Decisions:
    """Return the pause for a quota, until `retry_after` if the run resumes by itself."""
    if state.status == "paused" and not state.draining:
        return []  # the pause of the first of several calls holds
    after: str | UnsetType = UNSET
    resumes = state.pipeline is None or state.pipeline.settings.get("quota_auto_resume", True)
    if retry_after is not None and resumes and state.status != "paused":  # an operator's pause stays
        after = due(now, min(retry_after, MAX_SECONDS))[1]
    detail = error.message
    if state.pipeline is not None:
        detail = f"{error.provider or 'delegate'}, {error.code}: {detail}"
    return [ev.WorkflowPaused(reason="quota", detail=detail, resume_after=after)]


def _retry_after(error: ErrorInfo) -> float | None:
    """Return the seconds that a delegate asked to wait."""
    found = (error.details or {}).get("retry_after")
    return float(found) if isinstance(found, int | float) and found >= 0 else None


def _accepts_truncated(activation: Activation) -> bool:
    spec = activation.node.agent
    return spec is not None and spec.accept_truncated


def _fallback(progress: AgentProgress, error: ErrorInfo, binding: StepBinding) -> ModelRef | None:
    """Return the model that takes over, None if there is none: the next one, or after a prompt that was too
    long the next one that may have more room for it."""
    left = progress.models[progress.model_index + 1 :]
    if error.code == "context_length_exceeded":
        had = terms_of(binding, model_of(progress).name).context_tokens
        return next((ref for ref in left if _has_more_room(terms_of(binding, ref.name), had)), None)
    return left[0] if left and error.category != "invalid_input" else None


def _has_more_room(terms: ModelTerms, than: int | None) -> bool:
    return than is None or terms.context_tokens is None or terms.context_tokens > than


def _delay(
    policy: RetryPolicy,
    error: ErrorInfo,
    failures: int,
    first_failure: int | None,
    retry_after: float | None,
    now: int,
    draw: float,
) -> float | None:
    """Return the seconds until the next attempt; None if there is none."""
    if failures >= policy.max_attempts or not policy.covers(error.category, error.code):
        return None
    delay = policy.backoff.delay(failures) * (1 + policy.jitter * draw)
    if retry_after is not None:
        delay = max(delay, retry_after)
    since_first = (now - first_failure) / 1e6 if first_failure is not None else 0.0
    return delay if since_first + delay <= policy.max_elapsed else None


def _breach(record: ToolRecord, output: Any) -> ErrorInfo | None:
    """Return the error of a result that breaks the schema that the node declares for it."""
    schema = None if record.info is None else record.info.output_schema
    issues = [] if schema is None else validate(schema, output)
    if not issues:
        return None
    return ErrorInfo(
        category="invalid_output",
        code="invalid_tool_output",
        message=f"the result of {record.name} does not satisfy its output_schema",
        details={"errors": [{"path": i.path, "message": i.message} for i in issues[:10]]},
    )


def tool_completed(
    state: RunState,
    call_id: str,
    output: Any,
    duration_ms: int,
    *,
    now: int = 0,
    draw: float = 0.0,
    usage: Usage | UnsetType = UNSET,
) -> Decisions:
    """Return what follows from a tool's answer; empty if the call is closed. `now` and `draw` are those of a
    failure that the answer tells of. `usage` is that of the run which the call began."""
    call = state.calls.get(call_id)
    if call is None:
        return []
    activation = call.activation
    record = _tool(activation, call_id)
    error = _breach(record, output)
    if error is None and activation.node.kind.judges_calls:
        error = activation.node.kind.judge_answer(activation, output)
    if error is not None:
        return tool_failed(
            state,
            call_id,
            error,
            executed=True,
            unknown=False,
            duration_ms=duration_ms,
            now=now,
            draw=draw,
            usage=usage,
        )
    return [
        ev.ToolCallCompleted(
            step_id=activation.node.id,
            iteration=activation.iteration,
            activation=activation.base_key,
            tool_call_id=call_id,
            tool_name=record.name,
            duration_ms=duration_ms,
            status="success_no_data" if output is None else "success",
            output=output,
            output_size=size_of(output),
            usage=usage,
        )
    ]


def tool_failed(
    state: RunState,
    call_id: str,
    error: ErrorInfo,
    *,
    executed: bool,
    unknown: bool,
    duration_ms: int,
    now: int,
    draw: float,
    usage: Usage | UnsetType = UNSET,
) -> Decisions:
    """Return what follows from a tool that raised, timed out or was lost. `unknown`: it may have happened.

    Of an agent the error goes to the agent; a tool node repeats the call by its policy when that is safe.
    """
    call = state.calls.get(call_id)
    if call is None:
        return []
    activation = call.activation
    record = _tool(activation, call_id)
    kind = activation.node.kind
    if kind.judges_calls:
        error = kind.classified(error)
        unknown = unknown or kind.is_unknown(activation, error)
    outcome: Literal["not_started", "failed", "unknown"] = "failed" if executed else "not_started"
    if executed and unknown and not record.safe:
        outcome = "unknown"
    is_known = outcome != "unknown"
    lost = error.category == "interrupted" and is_known
    delay = None
    if record is activation.tool and is_known and not lost and (record.safe or not unknown):
        failures, first = activation.failures + 1, activation.first_failure
        policy = kind.call_policy(activation)
        delay = _delay(policy, error, failures, first, _retry_after(error), now, draw)
    repairs = kind.judges_calls and is_known and kind.repairs(activation, error)
    if repairs:
        delay = 0.0
    is_limited = kind.judges_calls and delay is None and error.category in ("quota", "rate_limited")
    failed = ev.ToolCallFailed(
        **scope_fields(activation),
        tool_call_id=call_id,
        tool_name=record.name,
        duration_ms=duration_ms,
        error=error,
        executed=executed,
        outcome=outcome,
        will_retry=lost or delay is not None or (is_limited and is_known),
        usage=usage,
    )
    if lost:
        return [failed]
    if delay is not None:
        return [failed, *retrying(activation, "repair" if repairs else "tool", error, delay, now)]
    if is_limited:
        return [failed, *_pause(state, error, _retry_after(error), now)]
    if record is activation.tool and is_known and not kind.takes_calls:
        return [failed, *step_failed(activation, kind.failure(activation, error), now)]
    return [failed]


def attempt_failed(
    activation: Activation,
    error: ErrorInfo,
    now: int,
    draw: float,
    closed: Sequence[Any] = (),
) -> Decisions:
    """Start an agent's failed attempt over with a fresh context, or fail (page 001 §5.7).

    Never starts over once an unsafe tool call is recorded, which would repeat it.
    """
    if activation.node.kind.sends or (activation.agent is not None and not activation.unsafe):
        policy = activation.node.kind.retry_of(activation.node)
        delay = _delay(policy, error, activation.failures + 1, activation.first_failure, None, now, draw)
        if delay is not None:
            return retrying(activation, "restart", error, delay, now)
    return agent_failed(activation, error, now, closed=closed)


def _tool(activation: Activation, call_id: str) -> ToolRecord:
    record = activation.node.kind.call(activation, call_id)
    assert record is not None
    return record
