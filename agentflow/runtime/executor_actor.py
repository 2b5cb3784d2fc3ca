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

from actors import Actor, ActorStopped, Ref, current_trace, on
from agentflow import known_secrets
from agentflow.definition.failure import describe_exception
from agentflow.engine import Outgoing, Question
from agentflow.engine.grants import denied_read
from agentflow.errors import ScopeAccessDenied
from agentflow.events.tracing import SpanContext, active
from agentflow.executors.callables import Callables
from agentflow.executors.context import Sent, Staged, Surroundings, Unfolded, WorkflowContext
from agentflow.executors.executor import Executor
from agentflow.executors.handlers import HandlerSpec
from agentflow.executors.payloads import Payloads
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

__all__ = ["ExecutorActor", "Place"]

STATE_KEY = "$state"
"""The private key under which the snapshot of an executor is kept."""


class Place(NamedTuple):
    """What an ExecutorActor knows of the graph: its node, and the code of the run."""

    workflow_id: str
    node: str
    make: Callable[[], Executor]
    payloads: Payloads
    targets: frozenset[str]
    reducers: Mapping[str, Any]
    own_reducers: frozenset[str]
    """The shared keys whose reducers users wrote."""
    shared: Callable[[str], Mapping[str, Any]]
    """The shared state that an activation reads, by its key."""
    committed: SharedState
    """The shared state now."""
    grants: tuple[Capabilities, ...]
    """Of the node and of what is around it."""
    graph_node: Node
    code: Callables
    directory: Directory


class ExecutorActor(Actor, mailbox=1_000, handler_timeout=None):
    """The copy of one executor for one run. Killed, it cancels the handler at work and waits for its end."""

    def __init__(self, supervisor: Ref[Any], place: Place) -> None:
        self._supervisor = supervisor
        self._place = place
        self._executor: Executor | None = None
        self._saved: bytes | None = None

    @on(Handle)
    async def handle(self, message: Handle) -> None:
        key, attempt = message.activation, message.attempt
        try:
            staged = await self._attempt(message)
            version, messages = await self._routed(staged.messages)
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
                activation=key,
                attempt=attempt,
                messages=messages,
                judged_at=version,
                private=staged.private,
                shared=tuple(staged.shared),
                requests=tuple(Question(**asked._asdict()) for asked in staged.requests),
            )
            self._supervisor.tell(done)

    async def _routed(self, sent: list[Sent]) -> tuple[int, tuple[Outgoing, ...]]:
        """Return the messages with the results of the code on the edges, and the version of the shared state
        that it read."""
        messages = [
            Outgoing(
                type=one.payload.tag, payload=one.payload.value, target=one.target, bases=one.payload.bases
            )
            for one in sent
        ]
        return await evaluate(self._place.graph_node, messages, self._place.code, self._place.committed)

    def _failed(self, message: Handle, error: BaseException) -> None:
        self._executor = None  # the next attempt begins with the state that was kept
        info = known_secrets.hide_error(error_of(self._place.node, error))
        failed = HandlerFailed(activation=message.activation, attempt=message.attempt, error=info)
        self._supervisor.tell(failed)

    async def _attempt(self, message: Handle) -> Staged:
        place = self._place
        executor = await self._copy(message)
        spec, arguments = choose_handler(executor, message, place.payloads, place.node)
        context = self._context(message, executor, spec)
        if spec.accepts_ctx:
            arguments = (*arguments, context)
        if spec.method:
            arguments = (executor, *arguments)
        try:
            with active(current_trace()):
                if spec.is_async:
                    result = await spec.function(*arguments)
                else:
                    result = await in_thread(partial(spec.function, *arguments), place.node)
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
        await self._save(executor, staged)
        return staged

    async def _try_reducers(self, unfolded: list[Unfolded]) -> None:
        """Fold the updates of this attempt once before they are recorded: what a reducer does not take, or
        not in time, fails the attempt. Raises ReducerFailed."""
        for key, before, updates in unfolded:
            fold = partial(reduce, self._place.reducers[key], updates, before)
            try:
                if key in self._place.own_reducers:
                    await call_in_time(fold, f"reducer of {key}")
                else:
                    fold()
            except TimeoutError:
                why = f"did not return within {edge_code.EDGE_CODE_LIMIT_S:g} s"
                raise ReducerFailed.of(key, self._place.node, why) from None
            except Exception as error:
                raise ReducerFailed.of(
                    key, self._place.node, f"raised {describe_exception(error)}"
                ) from error

    # -- the copy of the run, and its state ----------------------------------------------------------

    async def _copy(self, message: Handle) -> Executor:
        """Return the run's copy; a new one takes up the state that was kept."""
        if self._executor is not None:
            return self._executor
        executor = self._place.make()
        kept = message.private.get(STATE_KEY, UNSET)
        self._saved = None
        if kept is not UNSET:
            self._saved = _bytes(kept)
            value = self._place.payloads.unpack(kept)
            restore = getattr(executor, "restore_state", None)
            if restore is not None:
                found = restore(value)
                if inspect.isawaitable(found):
                    await found
            else:
                executor.state = value  # type: ignore[attr-defined]
        elif (snapshot := await _snapshot(executor)) is not UNSET:
            self._saved = _bytes(self._place.payloads.keep(snapshot))
        self._executor = executor
        return executor

    async def _save(self, executor: Executor, staged: Staged) -> None:
        """Stage the state of the executor if its bytes have changed."""
        value = await _snapshot(executor)
        if value is UNSET:
            return
        kept = self._place.payloads.keep(value)
        found = _bytes(kept)
        if found != self._saved:
            self._saved = found
            staged.private[STATE_KEY] = kept

    def _context(self, message: Handle, executor: Executor, spec: HandlerSpec) -> WorkflowContext[Any, Any]:
        place, span = self._place, current_trace()
        around = Surroundings(
            workflow_id=place.workflow_id,
            activation=message.activation,
            attempt=message.attempt,
            superstep=message.superstep,
            sources=message.sources,
            missing=message.missing,
            private=message.private,
            shared=place.shared(message.activation),
            targets=place.targets,
            reducers=place.reducers,
            span=span if isinstance(span, SpanContext) else None,
            check_read=partial(_check_read, place) if place.grants else None,
        )
        port = HandlerPort(
            self._supervisor, message, place.workflow_id, place.node, place.directory, place.grants
        )
        return WorkflowContext(around, port, spec, executor.handlers, place.payloads, place.node)


def _check_read(place: Place, key: str) -> None:
    if (denied := denied_read(place.grants, place.node, key)) is not None:
        hint = "add it to capabilities.read of the node"
        raise ScopeAccessDenied(denied.message, hint=hint, details=denied.details)


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
