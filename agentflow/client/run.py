"""RemoteRun: one run of the daemon, as whoever submitted it holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Event
from agentflow.runtime.records import RunResult

if TYPE_CHECKING:
    from agentflow.client.client import Client

__all__ = ["RemoteRun"]


class RemoteRun:
    """One run. Dropping it, or the client, changes nothing for the run."""

    def __init__(self, client: Client, workflow_id: str) -> None:
        self._client = client
        self.workflow_id = workflow_id

    async def result(self) -> RunResult:
        """Where the run has come to rest: terminal, paused, or waiting. Raises Unreachable."""
        return await self._client.rest(self.workflow_id)

    def events(self, after: int | None = None, *, follow: bool = True) -> AsyncIterator[Event[Any]]:
        """Events behind offset `after` (None: all that are left), with `follow` until the terminal one."""
        return self._client.events(self.workflow_id, after, follow=follow)

    def deltas(self) -> AsyncIterator[ModelDelta]:
        """The text of the run's model calls while they are made, until the run has ended."""
        return self._client.deltas(self.workflow_id)

    async def cancel(self, reason: str | None = None, *, mode: Literal["soft", "hard"] = "soft") -> None:
        """End the run. Returns when the request is durable; `result` tells when it is carried out."""
        await self._client.cancel(self.workflow_id, reason, mode=mode)

    async def answer(self, request_id: str, value: Any) -> None:
        """Answer an open request of the run."""
        await self._client.answer(self.workflow_id, request_id, value)
