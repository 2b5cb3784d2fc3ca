"""Model calls that a handler makes: recorded like its other calls, and bounded by budgets (page 002 §3).

They are in the log as calls of a model without an agent. A later attempt and a restart get the recorded
answer; a call that came to nothing is made again. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef, canonical_json
from agentflow.engine.bindings import ModelTerms
from agentflow.engine.budgets import Exceeded
from agentflow.engine.call_queue import fit_budgets
from agentflow.engine.decisions import Decisions, scope_fields
from agentflow.engine.ids import derive
from agentflow.engine.recorded_calls import Begun, without_room
from agentflow.engine.reservations import charge, need_of_request, with_output_limit
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["model_call_begun", "model_call_ended"]


def model_call_begun(
    state: RunState,
    activation_key: str,
    attempt: int,
    *,
    ref: ModelRef,
    messages: tuple[Message, ...],
    schema: Any,
    terms: ModelTerms,
    key: str,
    now: int,
) -> Begun:
    """Return whether a handler makes this call at the time `now`. `key` tells its calls apart."""
    activation = state.mail.open.get(activation_key)
    if activation is None or activation.attempt != attempt:
        return Begun("over")
    begun, origin = activation.local.origin
    call_id = derive("mcl_", begun, origin, key)  # the same in a fork of the run
    record = activation.node.kind.call(activation, call_id)
    if record is not None:
        if record.state == "done":
            return Begun("done", call_id, output=record.output)
        if record.state == "open":
            return Begun("open", call_id)
    need = need_of_request(messages, schema, ref, terms)
    output = fit_budgets(state, activation, need)
    if isinstance(output, Exceeded):
        return without_room(state, activation, call_id, output, now)
    if output is None:
        return Begun("wait", call_id)
    parameters = ref.parameters
    if output != need.output:
        parameters = with_output_limit(parameters, output)
    started = ev.ModelCallStarted(
        **scope_fields(activation),
        model_call_id=call_id,
        agent_name=None,
        provider=ref.provider,
        model=ref.model,
        turn=attempt,
        parameters=parameters,
        messages_from=0,
        messages=messages,
        request_hash=_digest(ref, parameters, messages),
        reserved=ev.Reserved(tokens=need.tokens(output), cost_usd=need.cost(output)),
    )
    return Begun("run", call_id, output=parameters, decisions=[started])


def _digest(ref: ModelRef, parameters: dict[str, Any], messages: tuple[Message, ...]) -> str:
    body = canonical_json([ref.provider, ref.model, parameters, messages])
    return "sha256:" + hashlib.sha256(body).hexdigest()


def model_call_ended(
    state: RunState,
    activation_key: str,
    attempt: int,
    call_id: str,
    *,
    terms: ModelTerms,
    duration_ms: int,
    message: Message | None = None,
    finish_reason: str = "",
    response_model: str = "",
    response_id: str | None = None,
    first_token_ms: float | None = None,
    usage: Usage | None = None,
    error: ErrorInfo | None = None,
    partial: str | None = None,
    uncharged: bool = False,
) -> Decisions:
    """Record the answer of a model, or why there is none. Empty if the call is closed, or its attempt is."""
    activation = state.mail.open.get(activation_key)
    call = state.calls.get(call_id)
    if activation is None or activation.attempt != attempt or call is None:
        return []
    fields: dict[str, Any] = {**scope_fields(activation), "model_call_id": call_id, "agent_name": None}
    if message is None or error is not None:
        charged = usage if uncharged else charge(call, terms, usage, wrote=bool(partial), error=error)
        assert error is not None
        return [
            ev.ModelCallFailed(
                **fields,
                duration_ms=duration_ms,
                error=error,
                will_retry=False,
                partial=msgspec.UNSET if partial is None else partial,
                usage=msgspec.UNSET if charged is None else charged,
            )
        ]
    wrote = bool(message.content or message.tool_calls)
    return [
        ev.ModelCallCompleted(
            **fields,
            duration_ms=duration_ms,
            first_token_ms=msgspec.UNSET if first_token_ms is None else round(first_token_ms),
            message=message,
            finish_reason=finish_reason,
            response_model=response_model,
            response_id=msgspec.UNSET if response_id is None else response_id,
            usage=charge(call, terms, usage, wrote=wrote) or usage or Usage(),
        )
    ]
