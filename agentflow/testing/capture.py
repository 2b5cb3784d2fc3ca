"""What a run did, as a test looks at it: requests to models, their answers, events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agentflow.events.envelope import Event
from agentflow.models.base import DeltaSink, ModelProfile, ModelProvider, ModelReply, ModelRequest
from agentflow.runtime import Runtime

__all__ = ["Captured", "capture"]


class Captured:
    """What happened between the beginning of `capture` and now.

    `requests` are those to models in order of arrival, with the provider's name; `replies` their answers in
    order of arrival, an exception for a call that failed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.requests: list[tuple[str, ModelRequest]] = []
        self.replies: list[ModelReply | BaseException] = []

    async def events(self, workflow_id: str) -> list[Event[Any]]:
        """Return the events of a run so far. Raises RunNotFound."""
        return [event async for event in self._runtime.events(workflow_id, follow=False)]

    async def types(self, workflow_id: str) -> list[str]:
        """Return the types of the run's events so far. Raises RunNotFound."""
        return [event.type for event in await self.events(workflow_id)]


@asynccontextmanager
async def capture(runtime: Runtime) -> AsyncGenerator[Captured]:
    """Note every request to a model that a run of this Runtime makes which is submitted inside the block."""
    seen = Captured(runtime)

    def wrap(provider: ModelProvider) -> ModelProvider:
        return _Noted(provider, seen)

    runtime.models.wrappers.append(wrap)
    try:
        yield seen
    finally:
        runtime.models.wrappers.remove(wrap)


class _Noted:
    """A provider whose calls are noted."""

    def __init__(self, provider: ModelProvider, seen: Captured) -> None:
        self._provider = provider
        self._seen = seen

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def max_concurrency(self) -> int:
        return self._provider.max_concurrency

    @property
    def limiter_key(self) -> str:
        return self._provider.limiter_key

    def profile(self, model: str) -> ModelProfile:
        return self._provider.profile(model)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        self._seen.requests.append((self._provider.name, request))
        try:
            reply = await self._provider.complete(request, new_call_id=new_call_id, on_delta=on_delta)
        except BaseException as error:
            self._seen.replies.append(error)
            raise
        self._seen.replies.append(reply)
        return reply

    async def aclose(self) -> None:
        await self._provider.aclose()
