"""ModelActor: one for each provider key, shared by all runs; keeps the limits of that key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, cast

import msgspec

from actors import Actor, current_trace, on
from agentflow import known_secrets
from agentflow.definition.failure import ErrorInfo, describe_exception
from agentflow.definition.ir import canonical_json
from agentflow.definition.type_errors import undecodable
from agentflow.engine.agents.conversation import parse
from agentflow.engine.ids import derive
from agentflow.events.deltas import DeltaHub
from agentflow.events.tracing import active
from agentflow.json_numbers import costly_numbers
from agentflow.models import ModelError, ModelProvider, ModelReply
from agentflow.models.base import DeltaSink
from agentflow.models.parameters import sent_parameters
from agentflow.runtime.circuit_breaker import Circuit, CircuitOpen
from agentflow.runtime.clock import Clock, monotonic_of
from agentflow.runtime.key_limits import KeyLimits, KeyRefused, LimitedCall
from agentflow.runtime.messages import HANDLER_LIMIT_S
from agentflow.runtime.model_calls import (
    CallModel,
    Complete,
    ForgetRefusal,
    ModelCallFailure,
    ModelCallSuccess,
    expected_tokens,
    failure_of,
    incomplete,
    judge_reply,
)

__all__ = ["ModelActor"]


_SHORTEST_WAIT_S = 0.001


class ModelActor(Actor, mailbox=10_000, handler_timeout=HANDLER_LIMIT_S):
    """Makes single attempts; whether a failed call is made again is decided by the engine."""

    def __init__(
        self,
        limit: int,
        providers: Mapping[str, ModelProvider],
        deltas: DeltaHub,
        call_started: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._limit = limit
        self._providers = providers  # those that share this key's limit, by name
        self._deltas = deltas
        self._circuit = Circuit()
        self._admitted: dict[str, LimitedCall] = {}  # by call, until it is noted how it ended
        self._work_began = call_started
        self._clock = clock
        self._monotonic = monotonic_of(clock)

    def on_start(self) -> None:
        self._limits = KeyLimits()
        self._limiter = self.ctx.limiter(self._limit, pace=self)

    @property
    def queued(self) -> int:
        """Number of calls that wait for a slot."""
        return self._limiter.waiting

    @property
    def health(self) -> int:
        """State of the provider by its last calls: 0 unavailable, 1 degraded, 2 healthy."""
        return self._circuit.health

    @on(Complete)
    def complete(self, message: Complete) -> None:
        call = message.call
        self._limiter.submit(
            partial(self._answer, message),
            group=call.workflow_id,
            cost=call,
            timeout=call.timeout,
            on_timeout=partial(_timed_out, call, self._address(call)),
        )

    @on(ForgetRefusal)
    def forget_refusal(self, message: ForgetRefusal) -> None:
        self._limits.forget_refusal()

    def admit(self, call: CallModel) -> float:
        """Return the seconds until the limits of the key have room for the call; it counts after 0."""
        limits, now = self._limits, self._seconds()
        limits.restrict(getattr(self._providers.get(call.ref.provider), "rate_limits", None))
        tokens = expected_tokens(call.request) if limits.counts_tokens else 0
        wait = limits.wait(tokens, now)
        if wait <= 0 and limits.refused(now) is None:
            self._admitted[call.call_id] = limits.begin(tokens, now)
        # Clocks count microseconds: what is left below one would be asked about again and again.
        return wait if wait <= 0 else max(wait, _SHORTEST_WAIT_S)

    def leave(self, call: CallModel) -> None:
        """Count a call that ended before it was noted how."""
        admitted = self._admitted.pop(call.call_id, None)
        if admitted is not None:
            self._limits.end(admitted, self._seconds(), conclusive=False)

    def _seconds(self) -> float:
        return self._monotonic() / 1e6

    def _address(self, call: CallModel) -> str:
        """Return where the provider's server is, for errors; empty if its adapter does not say it."""
        address: object = getattr(self._providers.get(call.ref.provider), "address", None)
        return address if isinstance(address, str) else ""

    async def _answer(self, message: Complete) -> ModelCallSuccess | ModelCallFailure:
        """Make the attempt; no error that leaves this actor holds a known secret, whatever its adapter is."""
        result = await self._attempt(message)
        if isinstance(result, ModelCallFailure):
            result = msgspec.structs.replace(
                result,
                error=known_secrets.hide_error(result.error),
                partial=None if result.partial is None else known_secrets.hide(result.partial),
            )
        return result

    async def _attempt(self, message: Complete) -> ModelCallSuccess | ModelCallFailure:
        """Make one call through the limits and the circuit breaker of the provider's key."""
        limited = self._admitted.get(message.call_id)
        if limited is None:
            return _not_made(message.call, self._limits.refused(self._seconds()))
        try:
            admitted = await self._circuit.admit()
        except CircuitOpen as is_open:
            return _kept_back(message.call, is_open)
        try:
            result = await self._call(message)
        except BaseException:
            self._circuit.record(admitted, None, conclusive=False)
            raise
        error = result.error if isinstance(result, ModelCallFailure) else None
        conclusive = error is None or error.code != "agent_error"
        self._circuit.record(admitted, error, conclusive=conclusive)
        if self._admitted.pop(message.call_id, None) is limited:
            self._note(limited, result, conclusive=conclusive)
        return result

    def _note(
        self, limited: LimitedCall, result: ModelCallSuccess | ModelCallFailure, *, conclusive: bool
    ) -> None:
        """Tell the limits of the key what a call's end says of them."""
        failed = isinstance(result, ModelCallFailure)
        usage = result.usage if failed else result.reply.usage
        used = None if usage is None else usage.input_tokens + usage.output_tokens
        self._limits.end(
            limited,
            self._seconds(),
            error=result.error if failed else None,
            retry_after=result.retry_after if failed else None,
            conclusive=conclusive,
            tokens=used or None,
            limits=() if failed else result.reply.limits,
        )

    async def _call(self, message: Complete) -> ModelCallSuccess | ModelCallFailure:
        call = message.call
        self._work_began(call.workflow_id)
        began = self._monotonic()
        number = count()

        def new_call_id() -> str:
            return derive("call_", self._clock.now(), call.id_seed, next(number))

        def passed() -> int:
            return (self._monotonic() - began + 500) // 1000

        try:
            provider = self._providers[call.ref.provider]
            showing = self._deltas.writing(call.workflow_id, call.step_id, call.call_id, call.offset)
            with active(current_trace()), showing as sink:
                parameters, extra = sent_parameters(call.request.parameters)
                request = msgspec.structs.replace(call.request, parameters=parameters, extra=extra)
                shown = sink if call.shown == "text" else None
                reply = await provider.complete(request, new_call_id=new_call_id, on_delta=shown)
                if call.shown == "lines":
                    _show_lines(reply, sink)
            reply = _checked(reply)
            await judge_reply(request, reply)
        except ModelError as error:
            return failure_of(call, error, passed())
        except TimeoutError:  # the adapter's own limit, not ours
            error_info = _late(call, "did not answer in time")
            return ModelCallFailure(call_id=call.call_id, error=error_info, duration_ms=passed())
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            info = ErrorInfo(
                category="agent",
                code="agent_error",
                message=f"the adapter of {call.ref.provider} cancelled itself",
                provider=call.ref.provider,
            )
            return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=passed())
        except _BadReply as error:
            info = ErrorInfo(
                category="agent",
                code="invalid_response",
                message=f"{call.ref.name}: {error}",
                provider=call.ref.provider,
            )
            return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=passed())
        except Exception as error:  # an adapter's bug ends one call, not the provider for all runs
            info = ErrorInfo(
                category="agent",
                code="agent_error",
                message=f"the adapter of {call.ref.provider} raised {describe_exception(error)}",
                provider=call.ref.provider,
            )
            return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=passed())
        if reply.end != "complete":
            return incomplete(call, reply, passed())
        return ModelCallSuccess(call_id=call.call_id, reply=reply, duration_ms=passed())


def _show_lines(reply: ModelReply, sink: DeltaSink) -> None:
    """Show an answer that is a JSON object as lines `key: value`, and any other one as it is."""
    found, value = parse(reply.message.content.strip())
    if not found or not isinstance(value, dict):
        sink("output", reply.message.content)
        return
    for key, item in cast("dict[str, Any]", value).items():
        shown = item if isinstance(item, str) else canonical_json(item).decode()
        sink("output", f"{key}: {shown}\n")


def _timed_out(call: CallModel, address: str) -> ModelCallFailure:
    assert call.timeout is not None
    place = f"at {address} " if address else ""
    info = _late(call, f"{place}did not answer within {call.timeout:g} s; raise `retry.timeout` of the step")
    return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=round(call.timeout * 1000))


def _kept_back(call: CallModel, is_open: CircuitOpen) -> ModelCallFailure:
    info = ErrorInfo(
        category="transient",
        code="circuit_open",
        message=f"{call.ref.provider} was {is_open}",
        retryable=True,
        provider=call.ref.provider,
    )
    return ModelCallFailure(call_id=call.call_id, error=info, duration_ms=0, retry_after=is_open.retry_after)


def _not_made(call: CallModel, refused: KeyRefused | None) -> ModelCallFailure:
    """Return the failure of a call that was not made because the refusal of another one holds."""
    if refused is None:  # it has just ended: the call is made again
        refused = KeyRefused(_RATE_LIMITED, 0.0)
    # What refused one call refuses all: without a time it is no matter of retries any more (page 000 §9).
    category = refused.error.category if refused.retry_after is not None else "quota"
    info = msgspec.structs.replace(
        refused.error,
        category=category,
        retryable=category == "rate_limited",
        provider=call.ref.provider,
        details={"kept_back": True},
    )
    return ModelCallFailure(
        call_id=call.call_id, error=info, duration_ms=0, retry_after=refused.retry_after, uncharged=True
    )


_RATE_LIMITED = ErrorInfo(
    category="rate_limited", code="rate_limited", message="the provider refused other calls", retryable=True
)


def _late(call: CallModel, what: str) -> ErrorInfo:
    return ErrorInfo(
        category="timeout",
        code="response_timeout",
        message=f"{call.ref.name} {what}",
        retryable=True,
        provider=call.ref.provider,
    )


class _BadReply(ValueError):
    """The adapter gave what is no reply."""


def _checked(reply: object) -> ModelReply:
    """Return the reply if an event can hold it: a malformed one must not reach the log writer."""
    if not isinstance(reply, ModelReply):
        raise _BadReply(f"the adapter gave {type(reply).__name__}, not a ModelReply")
    try:
        written = msgspec.json.encode(reply)
        costly = costly_numbers(written) or costly_numbers((reply.message.content or "").encode())
        if costly is not None:
            raise _BadReply(f"the reply holds {costly}, which take too long to read again")
        return _decode(written)
    except UnicodeEncodeError:
        raise _BadReply("the answer holds half a surrogate pair") from None
    except (msgspec.MsgspecError, TypeError) as error:
        found = undecodable(error, ModelReply) if isinstance(error, msgspec.MsgspecError) else str(error)
        raise _BadReply(f"the reply is malformed: {found}") from None


_decode = msgspec.json.Decoder(ModelReply).decode
