"""SyncClient: the same client for code without asyncio. Each call blocks until the daemon has answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import ExitStack
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from agentflow.client.client import Client
from agentflow.client.follow import PATIENCE
from agentflow.client.run import RemoteRun
from agentflow.errors import AgentflowError
from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Event
from agentflow.runtime.records import RunResult

__all__ = ["SyncClient", "SyncRun"]

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """The method of Client as one that blocks; arguments, result and exceptions stay."""

    @wraps(method)
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(partial(method, self.client, *args, **kwargs))

    return call


def _run(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, RemoteRun]],
) -> Callable[Concatenate[SyncClient, P], SyncRun]:
    """The same for a method that gives a run."""

    @wraps(method)
    def call(self: SyncClient, *args: P.args, **kwargs: P.kwargs) -> SyncRun:
        remote = self.wait(partial(method, self.client, *args, **kwargs))
        return SyncRun(self, remote.workflow_id)

    return call


class SyncClient:
    """A daemon; arguments as of Client. A thread of its own does the talking, so it works inside a running
    event loop too. Use it as a context manager, from any thread."""

    def __init__(
        self, url: str | None = None, *, token: str | None = None, patience: float = PATIENCE
    ) -> None:
        self.client = Client(url, token=token, patience=patience)
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

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine in the client's loop; blocks."""
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
    signal = _run(Client.signal)
    decide = _run(Client.decide)
    answer = _run(Client.answer)
    answer_all = _run(Client.answer_all)
    withdraw = _run(Client.withdraw)

    run = _blocking(Client.run)
    validate = _blocking(Client.validate)
    resume_all = _blocking(Client.resume_all)
    rest = _blocking(Client.rest)
    result = _blocking(Client.result)
    record = _blocking(Client.record)
    list = _blocking(Client.list)
    records = _blocking(Client.records)
    summaries = _blocking(Client.summaries)
    requests = _blocking(Client.requests)
    history = _blocking(Client.history)
    state = _blocking(Client.state)
    step = _blocking(Client.step)
    context = _blocking(Client.context)
    definition = _blocking(Client.definition)
    graph = _blocking(Client.graph)
    drawing = _blocking(Client.drawing)
    blob = _blocking(Client.blob)
    tools = _blocking(Client.tools)
    delete = _blocking(Client.delete)
    health = _blocking(Client.health)
    version = _blocking(Client.version)
    drain = _blocking(Client.drain)
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
        """As `Client.events`."""
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
    ) -> Generator[bytes]:
        """As `Client.event_lines`."""
        lines = self.client.event_lines(
            workflow_id, after, follow=follow, types=types, step=step, limit=limit, deltas=deltas
        )
        return self._iterate(lines)

    def deltas(self, workflow_id: str) -> Generator[ModelDelta]:
        """As `Client.deltas`."""
        return self._iterate(self.client.deltas(workflow_id))

    def export(self, workflow_id: str) -> Generator[bytes]:
        """As `Client.export`."""
        return self._iterate(self.client.export(workflow_id))

    def _iterate(self, items: AsyncIterator[T]) -> Generator[T]:
        async def step() -> tuple[T] | None:
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


class SyncRun:
    """One run of the daemon, as whoever submitted it holds it."""

    def __init__(self, client: SyncClient, workflow_id: str) -> None:
        self._client = client
        self.workflow_id = workflow_id

    def result(self) -> RunResult:
        """Where the run has come to rest: terminal, paused, or waiting."""
        return self._client.rest(self.workflow_id)

    def events(self, after: int | None = None, *, follow: bool = True) -> Generator[Event[Any]]:
        """Events behind offset `after` (None: all that are left), with `follow` until the terminal one."""
        return self._client.events(self.workflow_id, after, follow=follow)

    def deltas(self) -> Generator[ModelDelta]:
        """The text of the run's model calls while they are made, until the run has ended."""
        return self._client.deltas(self.workflow_id)

    def cancel(self, reason: str | None = None, *, mode: Literal["soft", "hard"] = "soft") -> None:
        """End the run. Returns when the request is durable; `result` tells when it is carried out."""
        self._client.cancel(self.workflow_id, reason, mode=mode)

    def answer(self, request_id: str, value: Any) -> None:
        """Answer an open request of the run."""
        self._client.answer(self.workflow_id, request_id, value)
