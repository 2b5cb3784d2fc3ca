"""ExecutorActor: one for each run and executor; handles one message at a time (page 002 §1).

It owns the run's copy of the executor. What a handler does at once (outputs, events, recorded calls) is asked
of the RunSupervisor, whose answer means that it is durable; everything else goes with the completion. A
handler that raises is an answer, never a failure of the actor.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from actors import Actor, ActorStopped, Ref, on
from agentflow import known_secrets
from agentflow.definition.failure import describe_exception
from agentflow.engine import Outgoing, Question
from agentflow.engine.grants import denied_read
from agentflow.errors import ScopeAccessDenied
from agentflow.events.tracing import SpanContext, active
from agentflow.executors.callables import Callables
from agentflow.executors.context import Staged, Unfolded, WorkflowContext
from agentflow.executors.executor import Executor
from agentflow.runtime import edge_code
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.edge_code import call_in_time, evaluate
from agentflow.runtime.handler_calls import Handle, HandlerDone, HandlerFailed
from agentflow.runtime.handler_choice import choose_handler
from agentflow.runtime.handler_errors import ReducerFailed, error_of
from agentflow.runtime.handler_port import HandlerPort
from agentflow.threads import in_thread

if TYPE_CHECKING:
    from agentflow.definition.ir import Capabilities
    from agentflow.engine.graph import Node
    from agentflow.engine.shared_state import SharedState

__all__ = ["ExecutorActor", "Place", "RunPlace"]

STATE_KEY = "$state"
"""The private key under which the snapshot of an executor is kept."""


class RunPlace(NamedTuple):
    """What all ExecutorActors of a run know: its code and its shared state."""

    workflow_id: str
    code: Callables
    reducers: Mapping[str, Any]
    own_reducers: frozenset[str]
    """The shared keys whose reducers users wrote."""
    shared: Callable[[str], Mapping[str, Any]]
    """The shared state that an activation reads, by its key."""
    committed: SharedState
    """The shared state now."""
    directory: Directory


class Place(NamedTuple):
    """What an ExecutorActor knows of its run and its node, and how its copy of the executor is made."""

    run: RunPlace
    node: Node
    make: Callable[[], Executor]
    grants: tuple[Capabilities, ...]
    """Of the node and of what is around it."""


class _Attempt:
    """An attempt at work: what its context sees of the run and asks of it, found when it is asked for."""

    __slots__ = ("_message", "_place", "_port", "_supervisor", "_trace", "shared")

    def __init__(self, place: Place, message: Handle, supervisor: Ref[Any], trace: Any) -> None:
        self._place = place
        self._message = message
        self._supervisor = supervisor
        self._trace = trace
        self._port: HandlerPort | None = None
        self.shared = place.run.shared(message.activation)  # now: a handler may outlive its activation

    @property
    def workflow_id(self) -> str:
        return self._place.run.workflow_id

    @property
    def activation(self) -> str:
        return self._message.activation

    @property
    def attempt(self) -> int:
        return self._message.attempt

    @property
    def superstep(self) -> int | None:
        return self._message.superstep

    @property
    def sources(self) -> tuple[str, ...]:
        return self._message.sources

    @property
    def missing(self) -> tuple[str, ...]:
        return self._message.missing

    @property
    def private(self) -> Mapping[str, Any]:
        return self._message.private

    @property
    def targets(self) -> frozenset[str]:
        return frozenset(edge.target.id for route in self._place.node.routes for edge in route.edges)

    @property
    def reducers(self) -> Mapping[str, Any]:
        return self._place.run.reducers

    @property
    def span(self) -> SpanContext | None:
        return self._trace if isinstance(self._trace, SpanContext) else None

    @property
    def port(self) -> HandlerPort:
        if self._port is None:
            run, node = self._place.run, self._place.node
            self._port = HandlerPort(
                self._supervisor, self._message, run.workflow_id, node.id, run.directory, self._place.grants
            )
        return self._port

    def check_read(self, key: str) -> None:
        place = self._place
        denied = denied_read(place.grants, place.node.id, key) if place.grants else None
        if denied is not None:
            hint = "add it to capabilities.read of the node"
            raise ScopeAccessDenied(denied.message, hint=hint, details=denied.details)


class ExecutorActor(Actor, mailbox=1_000, handler_timeout=None):
    """The copy of one executor for one run. Killed, it cancels the handler at work and waits for its end."""

    def __init__(self, supervisor: Ref[Any], place: Place) -> None:
        self._supervisor = supervisor
        self._place = place
        self._payloads = place.run.code.payloads
        self._judges = place.node.ways is None and edge_code.has_code(place.node)
        self._executor: Executor | None = None
        self._saved: bytes | None = None

    @on(Handle)
    async def handle(self, message: Handle) -> None:
        run = self._place.run
        try:
            staged = await self._attempt(message)
            version, messages = run.committed.version, self._messages_of(staged)
            if self._judges:
                version, messages = await evaluate(self._place.node, messages, run.code, run.committed)
        except asyncio.CancelledError as error:
            if self.ctx.interrupted:
                raise
            await _forget_cancellation()
            self._failed(message, error)  # raised by the handler, or asked for by it
        except (KeyboardInterrupt, ActorStopped):
            raise
        except BaseException as error:
            self._failed(message, error)
        else:
            done = HandlerDone(
                activation=message.activation,
                attempt=message.attempt,
                messages=messages,
                judged_at=version,
                private=staged.private,
                shared=tuple(staged.shared),
                requests=tuple([Question(**asked._asdict()) for asked in staged.requests]),
            )
            self.ctx.tell_after(self._supervisor, done)

    def _messages_of(self, staged: Staged) -> tuple[Outgoing, ...]:
        return tuple(
            [
                Outgoing(type=payload.tag, payload=payload.value, target=target, bases=payload.bases)
                for payload, target in staged.messages
            ]
        )

    def _failed(self, message: Handle, error: BaseException) -> None:
        self._executor = None  # the next attempt begins with the state that was kept
        info = known_secrets.hide_error(error_of(self._place.node.id, error))
        failed = HandlerFailed(activation=message.activation, attempt=message.attempt, error=info)
        self._supervisor.tell(failed)

    async def _attempt(self, message: Handle) -> Staged:
        place, trace = self._place, self.ctx.trace
        node = place.node.id
        executor = self._executor
        if executor is None:
            executor = self._executor = await self._copy(message)
        spec, arguments = choose_handler(executor, message, self._payloads, node)
        around = _Attempt(place, message, self._supervisor, trace)
        context: WorkflowContext[Any, Any] = WorkflowContext(
            around, spec, executor.handlers, self._payloads, node
        )
        if spec.accepts_ctx:
            arguments = (*arguments, context)
        if spec.method:
            arguments = (executor, *arguments)
        try:
            with active(trace):
                if spec.is_async:
                    result = await spec.function(*arguments)
                else:
                    result = await in_thread(partial(spec.function, *arguments), node)
                    if inspect.isawaitable(result):  # a wrapper around an asynchronous function
                        result = await result
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # or the next await, perhaps of the next message, ends
                raise asyncio.CancelledError("it cancelled its own task")
            if result is not None:
                context._stage(result)  # pyright: ignore[reportPrivateUsage]
        finally:
            staged = context._close()  # pyright: ignore[reportPrivateUsage]
        if staged.unfolded:
            await self._try_reducers(staged.unfolded)
        if _keeps_state(executor):
            await self._save(executor, staged)
        return staged

    async def _try_reducers(self, unfolded: list[Unfolded]) -> None:
        """Fold the updates of this attempt once before they are recorded: what a reducer does not take, or
        not in time, fails the attempt. Raises ReducerFailed."""
        for key, before, updates in unfolded:
            fold = partial(reduce, self._place.run.reducers[key], updates, before)
            try:
                if key in self._place.run.own_reducers:
                    await call_in_time(fold, f"reducer of {key}")
                else:
                    fold()
            except TimeoutError:
                why = f"did not return within {edge_code.EDGE_CODE_LIMIT_S:g} s"
                raise ReducerFailed.of(key, self._place.node.id, why) from None
            except Exception as error:
                raise ReducerFailed.of(
                    key, self._place.node.id, f"raised {describe_exception(error)}"
                ) from error

    # -- the copy of the run, and its state ----------------------------------------------------------

    async def _copy(self, message: Handle) -> Executor:
        """Return a new copy, which takes up the state that was kept."""
        executor = self._place.make()
        kept = message.private.get(STATE_KEY, UNSET)
        self._saved = None
        if kept is not UNSET:
            self._saved = _bytes(kept)
            value = self._payloads.unpack(kept)
            restore = getattr(executor, "restore_state", None)
            if restore is not None:
                found = restore(value)
                if inspect.isawaitable(found):
                    await found
            else:
                executor.state = value  # type: ignore[attr-defined]
        elif _keeps_state(executor) and (snapshot := await _snapshot(executor)) is not UNSET:
            self._saved = _bytes(self._payloads.keep(snapshot))
        return executor

    async def _save(self, executor: Executor, staged: Staged) -> None:
        """Stage the state of the executor if its bytes have changed."""
        value = await _snapshot(executor)
        if value is UNSET:
            return
        kept = self._payloads.keep(value)
        found = _bytes(kept)
        if found != self._saved:
            self._saved = found
            staged.private[STATE_KEY] = kept


def _keeps_state(executor: Executor) -> bool:
    """Return whether an executor has a state that outlives restarts."""
    return hasattr(executor, "state") or hasattr(executor, "snapshot_state")


async def _snapshot(executor: Executor) -> Any:
    """Return the state that an executor keeps over restarts; UNSET if it keeps none."""
    snapshot = getattr(executor, "snapshot_state", None)
    if snapshot is not None:
        found = snapshot()
        return await found if inspect.isawaitable(found) else found
    return getattr(executor, "state", UNSET)


async def _forget_cancellation() -> None:
    """Let the task of a handler that cancelled it go on with the next message."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # until 3.13 `uncancel` leaves a cancellation that was not delivered yet
    while task.cancelling():
        task.uncancel()


def _bytes(value: Any) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
