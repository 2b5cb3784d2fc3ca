"""ToolActor: one for each service; executes its functions, a bounded number at once.

A caller asks, and cancels a call by ceasing to wait or with CancelCall.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from actors import Actor, current_trace, on
from agentflow import known_secrets
from agentflow.definition.failure import ErrorInfo
from agentflow.events.tracing import SpanContext, active
from agentflow.runtime.messages import HANDLER_LIMIT_S, Message
from agentflow.tools import Service, ToolContext, ToolError

__all__ = ["CallTool", "CancelCall", "ToolActor", "ToolCallFailure", "ToolCallSuccess"]


class CallTool(Message, frozen=True, kw_only=True):
    """Execute this function, once. `context` goes to the function and never to a model."""

    call_id: str
    service: str
    function: str
    parameters: Any
    context: Any
    workflow_id: str
    step_id: str
    iteration: int | None
    attempt: int
    idempotency_key: str
    timeout: float


class CancelCall(Message, frozen=True, kw_only=True):
    """Cancel this call of a tool node."""

    workflow_id: str
    call_id: str


class ToolCallSuccess(Message, frozen=True, kw_only=True):
    """The function's result."""

    call_id: str
    output: Any
    duration_ms: int


class ToolCallFailure(Message, frozen=True, kw_only=True):
    """The function failed. `executed` False: it was never entered. `unknown`: it may have had its effect."""

    call_id: str
    error: ErrorInfo
    duration_ms: int
    executed: bool = True
    unknown: bool = False


class ToolActor(Actor, mailbox=10_000, handler_timeout=HANDLER_LIMIT_S):
    """A function that raises is an answer, never a failure of the actor.

    One that goes on after its time limit is answered for as `unknown` at that moment. It keeps its place
    while it is being cancelled, since it may still do what the limit of the service protects from.
    """

    def __init__(self, service: Service, call_started: Callable[[str], None]) -> None:
        self._service = service
        self._work_began = call_started

    def on_start(self) -> None:
        self._limiter = self.ctx.limiter(self._service.spec.max_concurrency)

    @on(CallTool)
    def call(self, message: CallTool) -> None:
        self._limiter.submit(
            partial(self._answer, message),
            # A fork has the calls of its base under the same ids: the id alone would cancel the other run's.
            key=(message.workflow_id, message.call_id),
            timeout=message.timeout,
            on_timeout=partial(_timed_out, message),
        )

    async def on_stop(self) -> None:
        await self._service.aclose()

    async def on_restart(self, exc: BaseException) -> None:
        await self._service.aclose()

    @on(CancelCall)
    def cancel_call(self, message: CancelCall) -> None:
        self._limiter.cancel((message.workflow_id, message.call_id))

    async def _answer(self, message: CallTool) -> ToolCallSuccess | ToolCallFailure:
        """Execute the function; no error that leaves this actor holds a known secret."""
        result = await self._execute(message)
        if isinstance(result, ToolCallFailure):
            result = msgspec.structs.replace(result, error=known_secrets.hide_error(result.error))
        return result

    async def _execute(self, message: CallTool) -> ToolCallSuccess | ToolCallFailure:
        self._work_began(message.workflow_id)
        began = time.perf_counter()
        tool = self._service.tools.get(message.function)
        if tool is None:
            return ToolCallFailure(
                call_id=message.call_id,
                duration_ms=0,
                executed=False,
                error=ErrorInfo(
                    category="policy",
                    code="tool_not_found",
                    message=f"service {message.service} has no function {message.function} any more",
                ),
            )
        trace = current_trace()
        span = trace if isinstance(trace, SpanContext) else None
        context = ToolContext(
            context=message.context,
            workflow_id=message.workflow_id,
            step_id=message.step_id,
            iteration=message.iteration,
            call_id=message.call_id,
            idempotency_key=message.idempotency_key,
            attempt=message.attempt,
            traceparent=None if span is None else span.traceparent,
            tracestate=None if span is None else span.tracestate,
        )
        try:
            with active(trace):
                output = await self._service.call(tool, message.parameters, context)
        except ToolError as error:
            return ToolCallFailure(
                call_id=message.call_id,
                error=error.info,
                duration_ms=_since(began),
                executed=error.executed,
                unknown=error.unknown,
            )
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as error:  # a function's own kind of exception is its own affair too
            info = ErrorInfo(
                category="tool",
                code="tool_execution_failed",
                message=f"{tool.name} raised {type(error).__name__}: {error}",
            )
            return ToolCallFailure(call_id=message.call_id, error=info, duration_ms=_since(began))
        return ToolCallSuccess(call_id=message.call_id, output=output, duration_ms=_since(began))


def _timed_out(message: CallTool) -> ToolCallFailure:
    return ToolCallFailure(
        call_id=message.call_id,
        duration_ms=round(message.timeout * 1000),
        unknown=True,
        error=ErrorInfo(
            category="timeout",
            code="tool_timeout",
            message=f"{message.service}.{message.function} did not answer within {message.timeout:g} s",
            retryable=True,
        ),
    )


def _since(began: float) -> int:
    return round((time.perf_counter() - began) * 1000)
