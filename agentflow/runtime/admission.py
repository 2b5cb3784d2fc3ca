"""Admission: all that a run needs before its supervisor exists, and how those who wait hear of it."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import engine
from agentflow.engine.state import RunState
from agentflow.events.catalogue import WorkflowStarted
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.messages import Cancel

__all__ = ["Admission"]


class Admission:
    """All that a run needs to begin or to go on, prepared before its supervisor exists.

    `started` is the event that begins a new run, None for one that is in the log already. `accepted` is
    done once the run's first append (or the fold of its log) is; `rested` when the run is terminal,
    paused or waits for a person, with its state. `cancel`: the run is taken up only to be cancelled.
    """

    def __init__(
        self,
        workflow_id: str,
        plan: engine.Plan,
        bindings: engine.Bindings,
        directory: Directory,
        *,
        epoch: int,
        started: WorkflowStarted | None,
        by: str,
        cancel: Cancel | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.workflow_id = workflow_id
        self.plan = plan
        self.bindings = bindings
        self.directory = directory
        self.epoch = epoch
        self.started = started
        self.by = by
        self.cancel = cancel
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.rested: asyncio.Future[RunState] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()  # the supervisor has ended
        for future in (self.accepted, self.rested):
            future.add_done_callback(_retrieve)  # nobody has to wait for it

    @property
    def leaving(self) -> bool:
        """Whether the supervisor is about to end, so that a new one must take the run up."""
        if not self.rested.done() or self.rested.cancelled():
            return False
        return self.rested.exception() is not None or self.rested.result().status != "waiting"

    def reopen(self) -> None:
        """The run moves again: whoever asks for its result from now on waits for its next rest."""
        if self.rested.done():
            self.rested = asyncio.get_running_loop().create_future()
            self.rested.add_done_callback(_retrieve)

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that the run cannot go on here."""
        for future in (self.accepted, self.rested):
            if not future.done():
                future.set_exception(error)


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
