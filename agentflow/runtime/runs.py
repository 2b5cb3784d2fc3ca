"""The supervisor of all runs of a process: it starts, restarts and counts their supervisors.

A run whose supervisor keeps dying without getting further is left alone, so that it cannot take the
others with it; its log stays as it is and `resume` tries again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from actors import Actor, Backoff, ChildSpec, History, OneForOne, Ref, Terminated, on
from actors.supervision import Action
from agentflow.errors import AgentflowError, StoreError
from agentflow.events.log import EventLog
from agentflow.events.owner import Owner
from agentflow.runtime.admission import Admission
from agentflow.runtime.clock import Clock
from agentflow.runtime.messages import StartRun
from agentflow.runtime.run_supervisor import RunSupervisor

__all__ = ["Runs"]

_MAX_RESTARTS = 5


def _decide(error: BaseException, history: History) -> Action:
    """A run is restarted five times in a row; a store that refuses is no reason to try again."""
    if isinstance(error, StoreError) or history.failures > _MAX_RESTARTS:
        return "stop"
    return "restart"


def _nothing(_: object) -> None:
    """A release that fails harms nobody: the owner's death is seen by the next claim."""


class Runs(Actor, mailbox=100_000):
    """Children: one RunSupervisor for each run that is at work in this process."""

    supervise = OneForOne(
        max_restarts=1_000_000, within=60, backoff=Backoff(0.01, 1, jitter=0.2), decide=_decide
    )

    def __init__(
        self,
        admissions: dict[str, Admission],
        live: dict[str, Ref[Any]],
        bus: Ref[Any],
        log: EventLog,
        clock: Clock,
        owner: Owner,
    ) -> None:
        self._admissions = admissions  # put there by the Runtime before it sends StartRun
        self._live = live
        self._bus = bus
        self._log = log
        self._clock = clock
        self._owner = owner
        self._ids: dict[Ref[Any], str] = {}

    @on(StartRun)
    def start(self, message: StartRun) -> None:
        run_id = message.workflow_id
        admission = self._admissions[run_id]
        factory = partial(RunSupervisor, admission, self._bus, self._log, self._clock)
        ref = self.ctx.spawn_soon(ChildSpec(run_id, factory, restart="transient", shutdown=10.0))
        self._live[run_id] = ref
        self._ids[ref] = run_id
        self.ctx.watch(ref)

    @on(Terminated)
    def ended(self, signal: Terminated) -> None:
        run_id = self._ids.pop(signal.ref, None)
        if run_id is None:
            return
        if self._live.get(run_id) == signal.ref:
            del self._live[run_id]
            admission = self._admissions.pop(run_id)
            # Another process may go on with it from here on.
            self.ctx.pipe(self._log.release(run_id, self._owner), _nothing, _nothing)
            admission.gone.set_result(None)
            cause = f": {signal.error!r}" if signal.error is not None else ""
            admission.fail(AgentflowError(f"run {run_id} stopped before it came to rest{cause}"))
