"""RunsSupervisor: the parent of all RunSupervisors of a process.

It starts and restarts them. A run whose supervisor dies 6 times without progress is paused, so that it cannot
take the others with it; `resume` tries again. The deadlines of waiting runs, which have no supervisor, are
kept by this actor. After its own failure or kill it starts every registered run again from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from actors import Actor, Backoff, ChildSpec, History, OneForOne, Ref, Terminated, on
from actors.supervision import Action
from agentflow.errors import AgentflowError, StoreError
from agentflow.events.catalogue import WorkflowPaused
from agentflow.events.log import EventLog
from agentflow.events.owner import Owner
from agentflow.runtime.clock import Clock
from agentflow.runtime.event_bus import Barrier, Commit, CommitFailed, Committed
from agentflow.runtime.messages import HANDLER_LIMIT_S, Message
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.result_cache import KeepResult, ResultCache
from agentflow.runtime.run_launch import RunLaunch, RunTable
from agentflow.runtime.run_supervisor import RunSupervisor
from agentflow.runtime.shared_store import SharedStore

__all__ = ["Alarms", "Overdue", "RunsSupervisor", "StartRun"]


class StartRun(Message, frozen=True, kw_only=True):
    """Start the supervisor of a registered launch."""

    workflow_id: str


class Alarms(Message, frozen=True, kw_only=True):
    """Deadlines (µs) of waiting runs without a supervisor; one that is set already is kept."""

    due: dict[str, int]


class Overdue(Message, frozen=True, kw_only=True):
    """The deadline of a waiting run has passed; without a run, the horizon of the index is reached."""

    workflow_id: str


_log = logging.getLogger("agentflow.runtime")

_MAX_RESTARTS = 5


def _restart_or_stop(error: BaseException, history: History) -> Action:
    """Restart a supervisor up to 5 times in a row; do not restart it after a StoreError."""
    if isinstance(error, StoreError) or history.failures > _MAX_RESTARTS:
        return "stop"
    return "restart"


def _ignore(_: object) -> None:
    """Ignore the outcome. A release that fails is harmless: the next claim sees that the owner is dead."""


def _stopped_error(run_id: str, error: BaseException | None) -> AgentflowError:
    cause = f": {error!r}" if error is not None else ""
    return AgentflowError(f"run {run_id} stopped before it came to rest{cause}")


class RunsSupervisor(Actor, mailbox=100_000, handler_timeout=HANDLER_LIMIT_S):
    """Children: one RunSupervisor for each run that is at work in this process. `on_ended` is called with the
    launch of a run whose supervisor has ended, `on_overdue` with the id of one whose deadline has come,
    `on_horizon` when deadlines that only the store has may be next.
    `table` outlives an instance, so that its successor goes on with the same runs.
    """

    supervise = OneForOne(
        max_restarts=1_000_000, within=60, backoff=Backoff(0.01, 1, jitter=0.2), decide=_restart_or_stop
    )

    def __init__(
        self,
        table: RunTable,
        bus: PermanentActor,
        log: EventLog,
        clock: Clock,
        owner: Owner,
        *,
        on_ended: Callable[[RunLaunch], None],
        on_overdue: Callable[[str], None],
        on_horizon: Callable[[], None],
    ) -> None:
        self._table = table
        self._bus = bus
        self._log = log
        self._clock = clock
        self._owner = owner
        self._on_ended = on_ended
        self._on_overdue = on_overdue
        self._on_horizon = on_horizon
        self._results = ResultCache(log, clock)
        self._store = SharedStore(log)
        self._ids: dict[Ref[Any], str] = {}
        self._alarms = table.alarms
        self._armed: tuple[float, str] | None = None
        """Time and run of the alarm that has the timer; the horizon of the index has no run."""

    def on_start(self) -> None:
        """Start the supervisors that an earlier instance had. A run with which that fails ends here, because
        a second attempt would fail all the others with it."""
        self._table.remove_all_supervisors()
        for run_id, launch in list(self._table.launches.items()):
            try:
                if launch.rested.done():
                    self._settle_launch(run_id, None)
                else:
                    self._start(run_id)
            except Exception as error:
                _log.exception("%s cannot be taken up after a failure of RunsSupervisor", run_id)
                self._table.remove(run_id)
                launch.end(_stopped_error(run_id, error))
        self._arm()

    @on(StartRun)
    def start(self, message: StartRun) -> None:
        """Start the supervisor of a registered run, unless `on_start` has."""
        if message.workflow_id in self._table.launches and message.workflow_id not in self._table.supervisors:
            self._start(message.workflow_id)

    def _start(self, run_id: str) -> None:
        self._clear_alarm(run_id)
        launch = self._table.launches[run_id]
        factory = partial(RunSupervisor, launch, self._bus, self._log, self._clock, self._store)
        ref = self.ctx.spawn_soon(ChildSpec(run_id, factory, restart="transient", shutdown=10.0))
        self._table.set_supervisor(run_id, ref)
        self._ids[ref] = run_id
        self.ctx.watch(ref)

    @on(Terminated)
    def ended(self, signal: Terminated) -> None:
        run_id = self._ids.pop(signal.ref, None)
        if run_id is None or self._table.supervisors.get(run_id) != signal.ref:
            return
        self._table.remove_supervisor(run_id)
        launch = self._table.launches[run_id]
        if signal.reason == "killed" and not launch.rested.done() and launch.kills < _MAX_RESTARTS:
            launch.kills += 1
            self._start(run_id)
            return
        self._settle_launch(run_id, signal.error)

    def _settle_launch(self, run_id: str, error: BaseException | None) -> None:
        """Settle the launch of a run whose supervisor has ended for good."""
        launch = self._table.launches[run_id]
        begun = launch.first_batch_sent or not launch.is_new
        lost = error is not None and not isinstance(error, StoreError)
        outcome = error if isinstance(error, StoreError) else _stopped_error(run_id, error)
        pausing = error is not None and lost and begun and launch.rest_state is None
        if error is not None and pausing:
            self.ctx.pipe(self._pause_failed_run(run_id, launch, error, outcome), _ignore, _ignore)
        elif launch.rest_state is None or not launch.rest_state.terminal:
            # Released, so that another process may go on with it. A terminal run needs no release.
            self.ctx.pipe(self._log.release(run_id, self._owner), _ignore, _ignore)
        if launch.alarm is not None:
            self._set_alarm(run_id, launch.alarm)
        self._table.remove(run_id)
        if not pausing:
            launch.end(outcome)
        self._on_ended(launch)

    def on_stop(self) -> None:
        for run_id, launch in self._table.launches.items():
            launch.end(_stopped_error(run_id, None))

    async def _pause_failed_run(
        self, run_id: str, launch: RunLaunch, error: BaseException, outcome: BaseException
    ) -> None:
        """Write the pause that the supervisor of the run cannot write any more, then tell its callers.

        A caller that is told of the failure finds the pause in the log.
        """
        detail = f"the supervisor of the run died {_MAX_RESTARTS + 1} times: {type(error).__name__}"
        try:
            last = await self._log.last(run_id)
            paused = WorkflowPaused(reason="recovery_limit", detail=detail)
            commit = Commit(
                workflow_id=run_id,
                epoch=launch.epoch,
                expected=last + 1,
                ts=self._clock.now(),
                events=(paused,),
                state="paused",
            )
            self._bus.tell(commit)
            await self._bus.ask(Barrier(workflow_id=run_id), timeout=60)
            await self._log.release(run_id, self._owner)
        finally:
            launch.end(outcome)

    @on(Committed, CommitFailed)
    def pause_written(self, message: Committed | CommitFailed) -> None:
        """Ignore the outcome: the pause is written, or another process owns the run."""

    @on(KeepResult)
    def keep(self, message: KeepResult) -> None:
        work = self._results.keep(message.key, message.workflow_id, message.offset, message.ttl)
        self.ctx.pipe(work, _ignore, _ignore)  # one that could not be kept is made again

    def _set_alarm(self, run_id: str, due: int) -> None:
        delay = max(0.0, (due - self._clock.now()) / 1e6)
        self._alarms.set(run_id, asyncio.get_running_loop().time() + delay)
        self._arm()

    def _clear_alarm(self, run_id: str) -> None:
        self._alarms.remove(run_id)
        if self._armed is not None and self._armed[1] == run_id:
            self._arm()

    def _arm(self) -> None:
        """Start one timer, for the first alarm or the horizon of the index, in the place of the last one: a
        timer takes several times the memory of an alarm."""
        first, horizon = self._alarms.first(), self._alarms.horizon
        if horizon is not None and (first is None or first[0] >= horizon):
            first = (horizon, "")
        if first == self._armed:
            return
        if self._armed is not None:
            self.ctx.timers.cancel("alarm")
        self._armed = first
        if first is not None:
            delay = max(0.0, first[0] - asyncio.get_running_loop().time())
            self.ctx.timers.start("alarm", delay, Overdue(workflow_id=first[1]))

    @on(Alarms)
    def alarms(self, message: Alarms) -> None:
        """Set alarms, except for a run that has a supervisor or an alarm of its own."""
        for run_id, due in message.due.items():
            if run_id not in self._table.supervisors and run_id not in self._alarms:
                self._set_alarm(run_id, due)

    @on(Overdue)
    def overdue(self, message: Overdue) -> None:
        run_id = message.workflow_id
        if self._armed is not None and self._armed[1] == run_id:
            self._armed = None
        if run_id:
            self._alarms.remove(run_id)
        else:
            self._alarms.forget_horizon()
            self._on_horizon()
        self._arm()
        if run_id and run_id not in self._table.supervisors:
            self._on_overdue(run_id)
