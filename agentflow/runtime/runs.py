"""The supervisor of all runs of a process: it starts, restarts and counts their supervisors.

A run whose supervisor keeps dying without getting further is paused, so that it cannot take the others
with it; `resume` tries again. The deadlines of runs that only wait, and so have no supervisor, are timers of
this actor. After its own failure or kill it takes every admitted run up again from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from actors import Actor, Backoff, ChildSpec, History, OneForOne, Ref, Terminated, on
from actors.supervision import Action
from agentflow.errors import AgentflowError, StoreError
from agentflow.events.catalogue import WorkflowPaused
from agentflow.events.envelope import Draft
from agentflow.events.log import EventLog
from agentflow.events.owner import Owner
from agentflow.runtime.admission import Admission
from agentflow.runtime.clock import Clock
from agentflow.runtime.messages import (
    HANDLER_LIMIT_S,
    Alarms,
    Barrier,
    Commit,
    CommitFailed,
    Committed,
    KeepResult,
    Overdue,
    StartRun,
)
from agentflow.runtime.permanent import PermanentActor
from agentflow.runtime.results import Results
from agentflow.runtime.run_supervisor import RunSupervisor

__all__ = ["Runs"]

_log = logging.getLogger("agentflow.runtime")

_MAX_RESTARTS = 5


def _decide(error: BaseException, history: History) -> Action:
    """A run is restarted five times in a row; a store that refuses is no reason to try again."""
    if isinstance(error, StoreError) or history.failures > _MAX_RESTARTS:
        return "stop"
    return "restart"


def _nothing(_: object) -> None:
    """A release that fails harms nobody: the owner's death is seen by the next claim."""


def _stopped(run_id: str, error: BaseException | None) -> AgentflowError:
    cause = f": {error!r}" if error is not None else ""
    return AgentflowError(f"run {run_id} stopped before it came to rest{cause}")


class Runs(Actor, mailbox=100_000, handler_timeout=HANDLER_LIMIT_S):
    """Children: one RunSupervisor for each run that is at work in this process. `gone` is called with the
    admission of a run whose supervisor has ended, `overdue` with the id of one whose deadline has come.
    `admissions`, `live` and `alarms` outlive an instance, so that its successor goes on with the same runs.
    """

    supervise = OneForOne(
        max_restarts=1_000_000, within=60, backoff=Backoff(0.01, 1, jitter=0.2), decide=_decide
    )

    def __init__(
        self,
        admissions: dict[str, Admission],
        live: dict[str, Ref[Any]],
        alarms: dict[str, int],
        bus: PermanentActor,
        log: EventLog,
        clock: Clock,
        owner: Owner,
        *,
        gone: Callable[[Admission], None],
        overdue: Callable[[str], None],
    ) -> None:
        self._admissions = admissions  # put there by the Runtime before it sends StartRun
        self._live = live
        self._alarms = alarms  # deadlines (µs) of runs without a supervisor, by id
        self._bus = bus
        self._log = log
        self._clock = clock
        self._owner = owner
        self._gone = gone
        self._overdue = overdue
        self._results = Results(log, clock)
        self._ids: dict[Ref[Any], str] = {}

    def on_start(self) -> None:
        """Take up what an earlier instance was at, as the restart of each supervisor would. A run with which
        that fails ends here, because a second attempt would fail all the others with it."""
        self._live.clear()
        for run_id, admission in list(self._admissions.items()):
            try:
                if admission.rested.done():
                    self._over(run_id, None)
                else:
                    self._start(run_id)
            except Exception as error:
                _log.exception("%s cannot be taken up after a failure of Runs", run_id)
                self._admissions.pop(run_id, None)
                admission.end(_stopped(run_id, error))
        for run_id, due in list(self._alarms.items()):
            self._arm(run_id, due)

    @on(StartRun)
    def start(self, message: StartRun) -> None:
        """Start the supervisor of an admitted run, unless `on_start` has."""
        if message.workflow_id in self._admissions and message.workflow_id not in self._live:
            self._start(message.workflow_id)

    def _start(self, run_id: str) -> None:
        self._disarm(run_id)
        admission = self._admissions[run_id]
        factory = partial(RunSupervisor, admission, self._bus, self._log, self._clock)
        ref = self.ctx.spawn_soon(ChildSpec(run_id, factory, restart="transient", shutdown=10.0))
        self._live[run_id] = ref
        self._ids[ref] = run_id
        self.ctx.watch(ref)

    @on(Terminated)
    def ended(self, signal: Terminated) -> None:
        run_id = self._ids.pop(signal.ref, None)
        if run_id is None or self._live.get(run_id) != signal.ref:
            return
        del self._live[run_id]
        admission = self._admissions[run_id]
        if signal.reason == "killed" and not admission.rested.done() and admission.kills < _MAX_RESTARTS:
            admission.kills += 1
            self._start(run_id)
            return
        self._over(run_id, signal.error)

    def _over(self, run_id: str, error: BaseException | None) -> None:
        """Settle an admission whose supervisor has ended for good."""
        admission = self._admissions[run_id]
        begun = admission.begun or not admission.begins
        lost = error is not None and not isinstance(error, StoreError)
        if error is not None and lost and begun and admission.at_rest is None:
            self.ctx.pipe(self._give_up(run_id, admission.epoch, error), _nothing, _nothing)
        elif admission.at_rest is None or not admission.at_rest.terminal:
            # Another process may go on with it from here on; with one that has ended nobody will.
            self.ctx.pipe(self._log.release(run_id, self._owner), _nothing, _nothing)
        if admission.alarm is not None:
            self._arm(run_id, admission.alarm)
        del self._admissions[run_id]
        admission.end(error if isinstance(error, StoreError) else _stopped(run_id, error))
        self._gone(admission)

    def on_stop(self) -> None:
        for run_id, admission in self._admissions.items():
            admission.end(_stopped(run_id, None))

    async def _give_up(self, run_id: str, epoch: int, error: BaseException) -> None:
        """Write down that the run stands still, which its own supervisor cannot any more."""
        detail = f"the supervisor of the run died {_MAX_RESTARTS + 1} times: {type(error).__name__}"
        last = await self._log.last(run_id)
        paused = WorkflowPaused(reason="recovery_limit", detail=detail)
        commit = Commit(
            workflow_id=run_id,
            epoch=epoch,
            expected=last + 1,
            ts=self._clock.now(),
            drafts=(Draft(paused),),
            state="paused",
        )
        self._bus.tell(commit)
        await self._bus.ask(Barrier(workflow_id=run_id), timeout=60)
        await self._log.release(run_id, self._owner)

    @on(Committed, CommitFailed)
    def given_up(self, message: Committed | CommitFailed) -> None:
        """The pause is written, or somebody else has the run already."""

    @on(KeepResult)
    def keep(self, message: KeepResult) -> None:
        work = self._results.keep(message.key, message.workflow_id, message.offset, message.ttl)
        self.ctx.pipe(work, _nothing, _nothing)  # one that could not be kept is made again

    def _arm(self, run_id: str, due: int) -> None:
        self._alarms[run_id] = due
        delay = max(0.0, (due - self._clock.now()) / 1e6)
        self.ctx.timers.start(run_id, delay, Overdue(workflow_id=run_id))

    def _disarm(self, run_id: str) -> None:
        self._alarms.pop(run_id, None)
        self.ctx.timers.cancel(run_id)

    @on(Alarms)
    def alarms(self, message: Alarms) -> None:
        """A run that moved meanwhile has set its own, or will."""
        for run_id, due in message.due.items():
            if run_id not in self._live and run_id not in self.ctx.timers:
                self._arm(run_id, due)

    @on(Overdue)
    def overdue(self, message: Overdue) -> None:
        self._alarms.pop(message.workflow_id, None)
        if message.workflow_id not in self._live:
            self._overdue(message.workflow_id)
