"""ToolActor: one for each service; executes its functions, a bounded number at once.

An AgentActor asks, and cancels a call by ceasing to wait. A RunSupervisor tells, which spares each call a
question and a future, and cancels with CancelCall. Both ends of a told call watch each other: the caller
finds what an instance that failed has lost with CheckCalls, and the calls of a caller that was killed or
restarted are cancelled here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from actors import Actor, ActorStopped, Ref, Restarted, Terminated, on
from agentflow import known_secrets
from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo, describe_exception
from agentflow.events.deltas import DeltaHub, ProgressData, ToolProgress
from agentflow.events.tracing import SpanContext, work_in
from agentflow.runtime.clock import Clock, monotonic_of
from agentflow.runtime.messages import HANDLER_LIMIT_S, Message
from agentflow.tools import Service, ToolContext, ToolError
from agentflow.tools.invoke import invoke_late
from agentflow.tools.output import progress_value
from agentflow.tools.tool import CallReport, CallSignals, PythonTool, Tool

__all__ = [
    "CallTool",
    "CallsMissing",
    "CancelCall",
    "CheckCalls",
    "RecordCall",
    "ToolActor",
    "ToolCallFailure",
    "ToolCallSuccess",
    "lost_call",
]


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


class RecordCall(Message, frozen=True, kw_only=True):
    """Record a call that the delegate at work for `call_id` has made; answered when it is durable."""

    call_id: str
    report: CallReport


class CancelCall(Message, frozen=True, kw_only=True):
    """Cancel this call of a tool node."""

    workflow_id: str
    call_id: str


class CheckCalls(Message, frozen=True, kw_only=True):
    """Tell the sender with CallsMissing which of its calls are neither waiting nor at work.

    Those that the mailbox kept over a restart have arrived before this message.
    """

    workflow_id: str
    call_ids: tuple[str, ...]


class CallsMissing(Message, frozen=True, kw_only=True):
    """Calls that were answered before this message, or lost with the instance that had taken them."""

    call_ids: tuple[str, ...]


class ToolCallSuccess(Message, frozen=True, kw_only=True):
    """The function's result."""

    call_id: str
    output: Any
    duration_ms: int
    usage: Usage | UnsetType = UNSET
    """Of the run that the call began."""


class ToolCallFailure(Message, frozen=True, kw_only=True):
    """The function failed. `executed` False: it was never entered. `unknown`: it may have had its effect."""

    call_id: str
    error: ErrorInfo
    duration_ms: int
    executed: bool = True
    unknown: bool = False
    usage: Usage | UnsetType = UNSET


class ToolActor(Actor, mailbox=10_000, handler_timeout=HANDLER_LIMIT_S):
    """A function that raises is an answer, never a failure of the actor.

    One that goes on after its time limit is answered for as `unknown` at that moment. It keeps its place
    while it is being cancelled, since it may still do what the limit of the service protects from.
    """

    def __init__(
        self, service: Service, deltas: DeltaHub, call_started: Callable[[str], None], clock: Clock
    ) -> None:
        self._service = service
        self._deltas = deltas
        self._clock = clock
        self._work_began = call_started
        self._monotonic = monotonic_of(clock)
        self._calls_python = type(service).call is Service.call  # no kind of service of its own
        self._callers: dict[Ref[Any], str] = {}  # that told calls, and the run of each
        self.health = 2
        """2 healthy; 1 degraded: the last call had no answer in time, or failed on its way."""

    def on_start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._limiter = self.ctx.limiter(self._service.spec.max_concurrency)

    @property
    def queued(self) -> int:
        """Number of calls that wait for a slot."""
        return self._limiter.waiting

    @on(CallTool)
    def call(self, message: CallTool) -> None:
        ctx = self.ctx
        caller = None if ctx.asked else ctx.sender
        if caller is not None and caller not in self._callers:
            self._callers[caller] = message.workflow_id
            self.ctx.watch(caller)
        try:
            self._limiter.submit(
                partial(self._answer, message, caller, ctx.trace),
                # A fork has the calls of its base under the same ids: the id alone would cancel those.
                key=(message.workflow_id, message.call_id),
                timeout=message.timeout,
                on_timeout=partial(self._timed_out, message),
                tell_back=True,
                on_error=partial(_failed, message),
            )
        except Exception as error:  # an asker gets it from the kernel
            if caller is not None:
                caller.tell(_failed(message, error))
            raise

    async def on_stop(self) -> None:
        await self._service.aclose()

    async def on_restart(self, exc: BaseException) -> None:
        await self._service.aclose()

    @on(CancelCall)
    def cancel_call(self, message: CancelCall) -> None:
        self._limiter.cancel((message.workflow_id, message.call_id))

    @on(CheckCalls)
    def check_calls(self, message: CheckCalls) -> None:
        known = self._limiter.keys
        missing = tuple(i for i in message.call_ids if (message.workflow_id, i) not in known)
        caller = self.ctx.sender
        if missing and caller is not None:
            caller.tell(CallsMissing(call_ids=missing))

    @on(Terminated, Restarted)
    def caller_lost(self, signal: Terminated | Restarted) -> None:
        """Cancel the told calls of a caller that was killed or failed. One that stops has cancelled them."""
        workflow_id = self._callers.get(signal.ref)
        if isinstance(signal, Terminated):
            self._callers.pop(signal.ref, None)
            if signal.reason == "stopped":
                return
        keys: list[Any] = list(self._limiter.keys)
        for key in keys:
            if key[0] == workflow_id:
                self._limiter.cancel(key)

    async def _answer(
        self, message: CallTool, caller: Ref[Any] | None, trace: Any
    ) -> ToolCallSuccess | ToolCallFailure:
        """Execute the function; no error that leaves this actor holds a known secret."""
        self._work_began(message.workflow_id)
        began = self._monotonic()
        tool = self._service.tools.get(message.function)
        if tool is None:
            error = ErrorInfo(
                category="policy",
                code="tool_not_found",
                message=f"service {message.service} has no function {message.function} any more",
            )
            return self._failure(message, error, None, executed=False)
        work_in(trace)
        made: list[ToolContext] = []

        def context() -> ToolContext:
            if not made:
                made.append(self._context(message, tool, caller, trace))
            return made[0]

        try:
            if self._calls_python and isinstance(tool, PythonTool):
                output = await invoke_late(tool, message.parameters, context)
            else:
                output = await self._service.call(tool, message.parameters, context())
        except ToolError as error:
            failed = self._failure(message, error.info, began, executed=error.executed, unknown=error.unknown)
            return msgspec.structs.replace(failed, usage=made[0].signals.usage) if made else failed
        except (KeyboardInterrupt, asyncio.CancelledError):
            if made:
                made[0].signals.cancelled = True
            raise
        except BaseException as error:  # a function's own kind of exception is its own affair too
            info = ErrorInfo(
                category="tool",
                code="tool_execution_failed",
                message=f"{tool.name} raised {describe_exception(error)}",
            )
            return self._failure(message, info, began)
        self.health = 2
        duration_ms = (self._monotonic() - began + 500) // 1000
        usage = made[0].signals.usage if made else UNSET
        return ToolCallSuccess(call_id=message.call_id, output=output, duration_ms=duration_ms, usage=usage)

    def _failure(
        self,
        message: CallTool,
        error: ErrorInfo,
        began: int | None,
        *,
        executed: bool = True,
        unknown: bool = False,
    ) -> ToolCallFailure:
        self.health = 1 if error.category in ("transient", "timeout") else 2
        return ToolCallFailure(
            call_id=message.call_id,
            error=known_secrets.hide_error(error),
            duration_ms=0 if began is None else (self._monotonic() - began + 500) // 1000,
            executed=executed,
            unknown=unknown,
        )

    def _timed_out(self, message: CallTool) -> ToolCallFailure:
        self.health = 1
        return _timed_out(message)

    def _context(self, message: CallTool, tool: Tool, caller: Ref[Any] | None, trace: Any) -> ToolContext:
        span = trace if isinstance(trace, SpanContext) else None
        deadline = self._clock.now() + round(message.timeout * 1e6)
        return ToolContext(
            signals=CallSignals(deadline, partial(self._show_progress, message, tool)),
            context=message.context,
            workflow_id=message.workflow_id,
            step_id=message.step_id,
            iteration=message.iteration,
            call_id=message.call_id,
            idempotency_key=message.idempotency_key,
            attempt=message.attempt,
            traceparent=None if span is None else span.traceparent,
            tracestate=None if span is None else span.tracestate,
            recorder=None if caller is None else partial(_record, caller, message.call_id),
        )

    def _show_progress(self, message: CallTool, tool: Tool, index: int, value: Any) -> None:
        """Show progress of a call, from any thread. That of a sensitive function is kept to itself."""
        made = progress_value(tool, value)
        if tool.sensitive:
            return
        data = ProgressData(call_id=message.call_id, index=index, value=made)
        progress = ToolProgress(workflow_id=message.workflow_id, step=message.step_id, data=data)
        with suppress(RuntimeError):  # the loop is closed, and with it all readers
            self._loop.call_soon_threadsafe(self._deltas.show_progress, progress)


async def _record(caller: Ref[Any], call_id: str, report: CallReport) -> str | None:
    try:
        return await caller.ask(RecordCall(call_id=call_id, report=report), timeout=math.inf)
    except ActorStopped:  # the run rests, so the call is over
        return None


def _failed(message: CallTool, error: BaseException) -> ToolCallFailure:
    """Return the answer to a told call that failed inside this actor, or whose work cancelled itself."""
    info = lost_call("tool", error)
    return ToolCallFailure(call_id=message.call_id, error=info, duration_ms=0, unknown=True)


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


def lost_call(kind: str, error: BaseException, *, again: bool = False) -> ErrorInfo:
    """Return why a call has no answer: its actor ended (interrupted, so made again), or has a bug.

    `again`: report a bug as an interruption too, because the call is safe to make again.
    """
    if isinstance(error, ActorStopped):
        message = f"the {kind} call was lost: {error}"
        return ErrorInfo(category="interrupted", code="worker_lost", message=message)
    message = f"the {kind} call failed inside the runtime: {type(error).__name__}: {error}"
    message = known_secrets.hide(message)
    if again:
        return ErrorInfo(category="interrupted", code="worker_lost", message=message)
    return ErrorInfo(category="system", code="internal_error", message=message)
