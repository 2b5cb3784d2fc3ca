"""ModelActor: one for each provider key, shared by all runs; keeps the provider's limit of open calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, cast

import msgspec

from actors import Actor, current_trace, on
from agentflow import known_secrets
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json
from agentflow.definition.type_errors import undecodable
from agentflow.engine.agents.conversation import parse
from agentflow.engine.ids import derive
from agentflow.events.deltas import DeltaHub
from agentflow.events.tracing import active
from agentflow.models import ModelError, ModelProvider, ModelReply
from agentflow.models.base import DeltaSink
from agentflow.models.parameters import sent_parameters
from agentflow.runtime.circuit_breaker import Circuit, CircuitOpen
from agentflow.runtime.clock import Clock, monotonic_of
from agentflow.runtime.messages import HANDLER_LIMIT_S
from agentflow.runtime.model_calls import (
    CallModel,
    Complete,
    ModelCallFailure,
    ModelCallSuccess,
    failure_of,
    incomplete,
    judge_reply,
)

__all__ = ["ModelActor"]


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
        self._work_began = call_started
        self._clock = clock
        self._monotonic = monotonic_of(clock)

    def on_start(self) -> None:
        self._limiter = self.ctx.limiter(self._limit)

    @on(Complete)
    def complete(self, message: Complete) -> None:
        call = message.call
        self._limiter.submit(
            partial(self._answer, message),
            timeout=call.timeout,
            on_timeout=partial(_timed_out, call, self._address(call)),
        )

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
        """Make one call through the circuit breaker of the provider's key."""
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
        self._circuit.record(admitted, error, conclusive=error is None or error.code != "agent_error")
        return result

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
                message=f"the adapter of {call.ref.provider} raised {type(error).__name__}: {error}",
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
        return _decode(msgspec.json.encode(reply))
    except UnicodeEncodeError:
        raise _BadReply("the answer holds half a surrogate pair") from None
    except (msgspec.MsgspecError, TypeError) as error:
        found = undecodable(error, ModelReply) if isinstance(error, msgspec.MsgspecError) else str(error)
        raise _BadReply(f"the reply is malformed: {found}") from None


_decode = msgspec.json.Decoder(ModelReply).decode
