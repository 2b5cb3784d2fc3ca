"""RunHandle: one run, as whoever submitted or resumed it holds it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Event
from agentflow.runtime.admission import Admission
from agentflow.runtime.records import RunResult

if TYPE_CHECKING:
    from agentflow.runtime.runtime import Runtime

__all__ = ["RunHandle"]


class RunHandle:
    """One run of this Runtime. Dropping the handle changes nothing for the run."""

    def __init__(
        self, runtime: Runtime, workflow_id: str, admission: Admission | None, *, created: bool = False
    ) -> None:
        self._runtime = runtime
        self.workflow_id = workflow_id
        self.created = created
        """True if the call that returned this handle appended the first event of the run."""
        self._admission = admission

    async def result(self) -> RunResult:
        """Where the run has come to rest: terminal, paused, or waiting for a person.

        Raises StoreError when the log refused an append, AgentflowError when the run was abandoned.
        """
        return await self._runtime.rest(self.workflow_id, self._admission)

    def events(self, after: int = -1, *, follow: bool = True) -> AsyncIterator[Event[Any]]:
        """Events behind offset `after`, each once and in order; with `follow` until the terminal one."""
        return self._runtime.events(self.workflow_id, after, follow=follow)

    def deltas(self) -> AsyncIterator[ModelDelta]:
        """The text of the run's model calls while they are made here, until the run has ended."""
        return self._runtime.deltas(self.workflow_id)

    async def cancel(self, reason: str | None = None, *, mode: Literal["soft", "hard"] = "soft") -> None:
        """End the run. Returns when the request is durable; `result` tells when it is carried out."""
        await self._runtime.cancel(self.workflow_id, reason, mode=mode)

    async def answer(self, request_id: str, value: Any) -> None:
        """Answer an open request of the run."""
        await self._runtime.answer(self.workflow_id, request_id, value)
