"""SyncClient: the same client for code without asyncio. Each call blocks until the daemon has answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentflow.client.client import Client
from agentflow.client.follow import RECONNECT_TIMEOUT_S
from agentflow.client.run import RemoteRun
from agentflow.errors import AgentflowError
from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Event
from agentflow.records.bound_run import bound
from agentflow.records.runs import RunResult, T

__all__ = ["SyncClient", "SyncRun"]

P = ParamSpec("P")
M = TypeVar("M")
R = TypeVar("R")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    """Return the method of Client as one that blocks; arguments, result and exceptions stay."""

    @wraps(method)
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.wait(partial(method, self.client, *args, **kwargs))

    return call


def _run(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, RemoteRun[M]]],
) -> Callable[Concatenate[SyncClient, P], SyncRun[M]]:
    """Return the same for a method that gives a run."""

    @wraps(method)
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> SyncRun[M]:
        remote = self.wait(partial(method, self.client, *args, **kwargs))
        return SyncRun(self, remote.workflow_id, output_type=remote.output_type)

    return call


class SyncClient:
    """A daemon; arguments as of Client. A thread of its own does the talking, so it works inside a running
    event loop too. Use it as a context manager, from any thread."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        reconnect_timeout: float = RECONNECT_TIMEOUT_S,
    ) -> None:
        self.client = Client(url, token=token, reconnect_timeout=reconnect_timeout)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> SyncClient:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self.client))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal = None
        self._stack.close()

    @property
    def url(self) -> str:
        """Where the daemon is."""
        return self.client.url

    def wait(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine in the client's loop and return its result; blocks."""
        if self._portal is None:
            raise AgentflowError("the client is not open: use `with SyncClient(...)`")
        return self._portal.call(work)

    submit = _run(Client.submit)
    attach = _run(Client.attach)
    cancel = _run(Client.cancel)
    pause = _run(Client.pause)
    resume = _run(Client.resume)
    retry = _run(Client.retry)
    fork = _run(Client.fork)
    replay = _run(Client.replay)
    signal = _run(Client.signal)
    decide = _run(Client.decide)
    answer = _run(Client.answer)
    answer_all = _run(Client.answer_all)
    edit_plan = _run(Client.edit_plan)
    execute = _run(Client.execute)
    reject = _run(Client.reject)
    withdraw = _run(Client.withdraw)

    run = _blocking(Client.run)
    validate = _blocking(Client.validate)
    request = _blocking(Client.request)
    classify = _blocking(Client.classify)
    run_template = _blocking(Client.run_template)
    templates = _blocking(Client.templates)
    toolsets = _blocking(Client.toolsets)
    resume_all = _blocking(Client.resume_all)
    rest = _blocking(Client.rest)
    result = _blocking(Client.result)
    plan = _blocking(Client.plan)
    final = _blocking(Client.final)
    record = _blocking(Client.record)
    list = _blocking(Client.list)
    records = _blocking(Client.records)
    summaries = _blocking(Client.summaries)
    requests = _blocking(Client.requests)
    history = _blocking(Client.history)
    state = _blocking(Client.state)
    step = _blocking(Client.step)
    compact = _blocking(Client.compact)
    compare = _blocking(Client.compare)
    context = _blocking(Client.context)
    closed_requests = _blocking(Client.closed_requests)
    model_call = _blocking(Client.model_call)
    timeline = _blocking(Client.timeline)
    checkpoints = _blocking(Client.checkpoints)
    trace = _blocking(Client.trace)
    definition = _blocking(Client.definition)
    graph = _blocking(Client.graph)
    drawing = _blocking(Client.drawing)
    blob = _blocking(Client.blob)
    tools = _blocking(Client.tools)
    delete = _blocking(Client.delete)
    health = _blocking(Client.health)
    version = _blocking(Client.version)
    drain = _blocking(Client.drain)
    session_code = _blocking(Client.session_code)
    gc = _blocking(Client.gc)

    def events(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        step: str | None = None,
    ) -> Generator[Event[Any]]:
        """Yield as `Client.events`."""
        return self._iterate(self.client.events(workflow_id, after, follow=follow, types=types, step=step))

    def event_lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        step: str | None = None,
        limit: int | None = None,
        deltas: bool = False,
        whole: bool = False,
    ) -> Generator[bytes]:
        """Yield as `Client.event_lines`."""
        lines = self.client.event_lines(
            workflow_id, after, follow=follow, types=types, step=step, limit=limit, deltas=deltas, whole=whole
        )
        return self._iterate(lines)

    def deltas(self, workflow_id: str) -> Generator[ModelDelta]:
        """Yield as `Client.deltas`."""
        return self._iterate(self.client.deltas(workflow_id))

    def export(self, workflow_id: str) -> Generator[bytes]:
        """Yield as `Client.export`."""
        return self._iterate(self.client.export(workflow_id))

    def _iterate(self, items: AsyncIterator[R]) -> Generator[R]:
        async def step() -> tuple[R] | None:
            async for item in items:
                return (item,)
            return None

        async def close() -> None:
            close: Any = getattr(items, "aclose", None)
            if close is not None:
                await close()

        try:
            while (found := self.wait(step)) is not None:
                yield found[0]
        finally:
            if self._portal is not None:
                self.wait(close)


class SyncRun(Generic[T]):
    """One run of the daemon; its methods are those of SyncClient without the id of the run. Each blocks."""

    def __init__(self, client: SyncClient, workflow_id: str, *, output_type: type[T] | None = None) -> None:
        self._home = client
        self.workflow_id = workflow_id
        self.output_type = output_type

    def typed(self, output_type: type[M]) -> SyncRun[M]:
        """Return the same handle for results whose output is an `output_type`. See `SyncClient.result`."""
        return SyncRun(self._home, self.workflow_id, output_type=output_type)

    def __repr__(self) -> str:
        return f"<SyncRun {self.workflow_id}>"

    @overload
    def result(self, *, raise_on_failure: bool = True) -> RunResult[T]: ...

    @overload
    def result(self, *, raise_on_failure: bool = True, output_type: type[M]) -> RunResult[M]: ...

    def result(self, *, raise_on_failure: bool = True, output_type: Any = None) -> RunResult[Any]:
        """Wait until the run rests, as `Client.result`; `output_type` defaults to that of the submission."""
        wanted: Any = output_type or self.output_type
        return self._home.result(self.workflow_id, raise_on_failure=raise_on_failure, output_type=wanted)

    answer = bound(SyncClient.answer)
    answer_all = bound(SyncClient.answer_all)
    cancel = bound(SyncClient.cancel)
    checkpoints = bound(SyncClient.checkpoints)
    compact = bound(SyncClient.compact)
    compare = bound(SyncClient.compare)
    context = bound(SyncClient.context)
    decide = bound(SyncClient.decide)
    definition = bound(SyncClient.definition)
    delete = bound(SyncClient.delete)
    deltas = bound(SyncClient.deltas)
    drawing = bound(SyncClient.drawing)
    event_lines = bound(SyncClient.event_lines)
    edit_plan = bound(SyncClient.edit_plan)
    events = bound(SyncClient.events)
    execute = bound(SyncClient.execute)
    export = bound(SyncClient.export)
    final = bound(SyncClient.final)
    fork = bound(SyncClient.fork)
    reject = bound(SyncClient.reject)
    replay = bound(SyncClient.replay)
    graph = bound(SyncClient.graph)
    history = bound(SyncClient.history)
    pause = bound(SyncClient.pause)
    plan = bound(SyncClient.plan)
    record = bound(SyncClient.record)
    requests = bound(SyncClient.requests)
    rest = bound(SyncClient.rest)
    resume = bound(SyncClient.resume)
    retry = bound(SyncClient.retry)
    signal = bound(SyncClient.signal)
    state = bound(SyncClient.state)
    step = bound(SyncClient.step)
    closed_requests = bound(SyncClient.closed_requests)
    model_call = bound(SyncClient.model_call)
    timeline = bound(SyncClient.timeline)
    trace = bound(SyncClient.trace)
    withdraw = bound(SyncClient.withdraw)
