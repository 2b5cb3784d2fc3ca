"""RunRegistry: the runs at work in this process, each with one supervisor, at most so many at once.

Runs beyond the limit queue with the start of their log written; runs that wait for a request are started
again by the next command. A start completes even if its caller is cancelled. It decides nothing about a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from actors import ActorStopped, ActorSystem, AskTimeout, ChildSpec, Ref
from agentflow import engine
from agentflow.engine.state import RunState
from agentflow.errors import (
    AgentflowError,
    DefinitionError,
    Fenced,
    OffsetTrimmed,
    QueueFull,
    RunExists,
    RunGone,
    RunNotFound,
    RunTerminal,
    StorageUnavailable,
    StoreError,
    refused,
)
from agentflow.events.log import FIRST_EPOCH, EventLog, RunRow, StoredEvent
from agentflow.events.owner import Owner
from agentflow.records.runs import CONCURRENCY_KEY_LABEL
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.alarm_index import MAX_ALARMS
from agentflow.runtime.background_tasks import BackgroundTasks
from agentflow.runtime.bound import Bound
from agentflow.runtime.clock import Clock, Timeline
from agentflow.runtime.command_handlers import decide_command
from agentflow.runtime.command_messages import (
    Attach,
    Cancel,
    Command,
    Done,
    Pause,
    Refusal,
    Resume,
)
from agentflow.runtime.concurrency_keys import ConcurrencyKeys, key_of
from agentflow.runtime.crash_ledger import QUEUE_LIMIT_S, ROW_ENDS_AFTER_S, RecoveryLedger, Trial
from agentflow.runtime.log_replay import PAGE_EVENTS, FoldCache, fold
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.run_launch import QueuedLaunches, RunLaunch, RunTable, shares_slot
from agentflow.runtime.run_queue import RunQueue
from agentflow.runtime.runs_supervisor import Alarms, RunsSupervisor, StartRun

if TYPE_CHECKING:
    from agentflow.executors.callables import Callables
    from agentflow.runtime.child_runs import ChildLinks

__all__ = ["RunRegistry"]

_log = logging.getLogger("agentflow.runtime")

Prepare = Callable[[str, bool, Sequence[StoredEvent]], Awaitable[tuple[engine.Graph, Bound]]]
"""The graph of a stored run and what it is bound to; unbound when nothing of it is to be carried out. The
events are the first of its log, or none to have them read. Raises DefinitionError when its models or
functions are not here."""

_REPLY_TIMEOUT_S = 60.0
_ATTACH = Attach(by="runtime")
_RETRY_INTERVAL_S = 1.0
_RESTART_WAIT_S = 0.05


class RunRegistry:
    """The runs of one Runtime. All methods are for the loop of its actor system. No actor, because its
    methods raise to the caller and many starts await the store at the same time, serialized per run."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        owner: Owner,
        *,
        prepare: Prepare,
        directory: Callable[[Bound], Directory],
        find_code: Callable[[str], Callables | None],
        is_child: Callable[[RunRow], Awaitable[bool]],
        find_deadlines: Callable[[], Awaitable[None]],
        limit: int,
        queue: int,
        on_launch: Callable[[RunLaunch], None] = lambda launch: None,
    ) -> None:
        self._log = log
        self._on_launch = on_launch
        self._clock = clock
        self._owner = owner
        self._prepare = prepare
        self._directory = directory
        self._find_code = find_code
        self._is_child = is_child
        self._find_deadlines = find_deadlines
        self.child_links: ChildLinks | None = None
        """Given to every run's supervisor; set before the first run starts."""
        self._table = RunTable()
        self.launches = self._table.launches
        self.live = self._table.supervisors
        self._queue = RunQueue(limit, queue, lambda: self._table.running)
        self._tasks = BackgroundTasks()
        self._keys = ConcurrencyKeys(
            log, self._queue, self._tasks, cancel=self._cancel_for_key, start=self._start_queued
        )
        self._folds = FoldCache()
        self._queued_launches = QueuedLaunches()
        self._timelines: dict[str, Timeline] = {}
        """Of the runs with a time limit that came to rest last; the others have the wall clock alone."""
        self.ledger = RecoveryLedger(log, owner)
        self._trial: Trial | None = None
        self._streak_timer: asyncio.TimerHandle | None = None
        self._notices = [notice.text for notice in log.notices if notice.kind == "torn_tail"]
        self._noticed: set[str] = set()
        for notice in log.notices:
            if notice.kind != "rebuilt":
                _log.warning("%s: %s", log.url, notice.text)

    async def start(self, system: ActorSystem, bus: PermanentActor) -> None:
        """Start the actor that holds the supervisors."""
        runs = partial(
            RunsSupervisor,
            self._table,
            bus,
            self._log,
            self._clock,
            self._owner,
            on_ended=self._supervisor_ended,
            on_overdue=lambda run_id: self._tasks.start_soon(self._start_with_retry(run_id, _ATTACH)),
            on_horizon=lambda: self._tasks.start_soon(self._retry_until_stored(self._find_deadlines)),
        )
        self._runs = PermanentActor(system, ChildSpec("runs", runs, shutdown=30.0))
        await self._runs.start()
        system.on_shutdown("flush_log", self._runs.close)

    async def close(self) -> None:
        """Reject new runs and commands. Queued runs stay in the log as they are."""
        if self._streak_timer is not None:
            self._streak_timer.cancel()
        self._keys.close()
        self._queue.clear()
        self._folds.clear()
        self._queued_launches.clear()
        await self._tasks.close()

    @property
    def queued(self) -> int:
        """Number of runs that wait for a slot."""
        return len(self._queue)

    @property
    def closed(self) -> bool:
        """True if no run can be started any more."""
        return self._tasks.closed

    def _supervisor_ended(self, launch: RunLaunch) -> None:
        if self._tasks.closed or not self._queued_launches.keep(launch):
            if launch.fold is not None and not self._tasks.closed:
                self._folds.keep(launch.fold)
            launch.fold = None
        state = launch.rest_state
        if state is not None and self.child_links is not None and not self._tasks.closed:
            report = engine.report_of(state)
            if report is not None and state.begin is not None and state.begin.parent is not UNSET:
                self.child_links.report(state.begin.parent.workflow_id, report)
        timed = state is not None and not state.terminal and (state.timers or state.timers.paused)
        if timed or (state is None and launch.timeline.stepped):
            self._keep_timeline(launch.workflow_id, launch.timeline)
        if not self._tasks.closed:
            self._keys.ended(launch)
        self._start_queued()

    async def _cancel_for_key(self, workflow_id: str, reason: str) -> None:
        await self.command(workflow_id, Cancel(by="runtime", reason=reason))

    def _check_open(self) -> None:
        if self._tasks.closed:
            raise AgentflowError("the Runtime is closed; nothing was begun")

    def exclusive(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a key, such as the id of a run: one block at a time, FIFO."""
        return self._tasks.exclusive(key)

    # -- beginning --------------------------------------------------------------------------------

    async def begin(
        self,
        workflow_id: str,
        plan: engine.Graph,
        bound: Bound,
        first_events: Sequence[Any],
        *,
        base: Sequence[engine.BaseEvent] = (),
        labels: dict[str, str],
    ) -> RunLaunch:
        """Start a run; return once its first event is durable.

        A run with a `concurrency_key` goes on when it holds it. Raises RunExists, ConcurrencyRejected,
        QueueFull or StoreError.
        """
        started: Any = first_events[0]
        key = key_of(started)
        if key is None:
            return await self._begin(workflow_id, plan, bound, first_events, base=base, labels=labels)
        async with self._keys.exclusive(key):
            if started.options.get("on_conflict") == "reject":
                await self._keys.check_free(key)
            launch = await self._begin(
                workflow_id,
                plan,
                bound,
                first_events,
                base=base,
                labels={**labels, CONCURRENCY_KEY_LABEL: key},
                key=key,
            )
        self._keys.look(key)
        return launch

    async def _begin(
        self,
        workflow_id: str,
        plan: engine.Graph,
        bound: Bound,
        first_events: Sequence[Any],
        *,
        base: Sequence[engine.BaseEvent],
        labels: dict[str, str],
        key: str | None = None,
    ) -> RunLaunch:
        self._check_open()
        if workflow_id in self.launches or workflow_id in self._queue:
            raise RunExists(f"{workflow_id} exists already")
        started: Any = first_events[0]
        is_child = shares_slot(started)
        queued = key is not None or (self._queue.must_wait and not is_child)
        if queued and self._queue.is_at_capacity:
            raise QueueFull("too many runs wait for a place already")
        launch = RunLaunch(
            workflow_id,
            plan,
            bound.bindings,
            self._directory(bound),
            epoch=FIRST_EPOCH,
            first_events=first_events,
            base=base,
            labels=labels,
            queued=queued,
            owner=self._owner,
            is_child=is_child,
            replay=bound.replay,
        )
        if key is not None:
            self._keys.hold(workflow_id, key)
        elif queued:
            self._queue.enqueue(workflow_id, _ATTACH)
        self._register(launch)
        try:
            await launch.accepted.wait()
        except AgentflowError:
            self._queue.remove(workflow_id)
            raise
        launch.base = []  # its events are in the log
        return launch

    def start_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that concerns several runs; it is cancelled when the registry is closed."""
        self._tasks.start_soon(work)

    def _register(self, launch: RunLaunch) -> None:
        launch.child_links = self.child_links
        self._table.add(launch)
        self._on_launch(launch)
        self._runs.tell(StartRun(workflow_id=launch.workflow_id))

    # -- places -----------------------------------------------------------------------------------

    def recover(self, runs: Sequence[tuple[str, bool]], suspects: Sequence[tuple[str, bool]] = ()) -> None:
        """Start runs that no process works on, as slots become free; `True`: resume it too.

        `suspects` have open units. After a second crash in a row they start one at a time, those with the
        lowest counts first, and those over the limit are paused; else they start like the others.
        """
        self._check_open()
        paused = dict(self.ledger.over_limit(run_id for run_id, _ in suspects))
        for run_id, detail in paused.items():
            _log.warning("%s is paused: %s", run_id, detail)
            pause = Pause(by="runtime", cause="recovery_limit", reason=detail, in_flight="suspend")
            self._queue.enqueue(run_id, pause)
        left = [run for run in suspects if run[0] not in paused]
        if self.ledger.serial and left:
            left.sort(key=lambda run: self.ledger.count(run[0]))
            _log.warning(
                "%d crashes in a row: %d runs are taken up one at a time", self.ledger.crashes, len(left)
            )
        wait = self._queue.enqueue_suspect if self.ledger.serial else self._queue.enqueue
        for run_id, resumes in left:
            wait(run_id, _start_command(resumes))
        for run_id, resumes in runs:
            self._queue.enqueue(run_id, _start_command(resumes))
        if self.ledger.crashes and self._streak_timer is None:
            self._streak_timer = asyncio.get_running_loop().call_later(
                ROW_ENDS_AFTER_S, self._end_crash_streak
            )
        self._start_queued()

    def _end_crash_streak(self) -> None:
        """End the streak of crashes, because this life has lasted; wait longer while a trial is open or
        queued."""
        self._streak_timer = None
        if self._queue.suspects or self._trial is not None:
            self._streak_timer = asyncio.get_running_loop().call_later(
                ROW_ENDS_AFTER_S, self._end_crash_streak
            )
        else:
            self._tasks.start_soon(self.ledger.end_row())

    def expect(self, due: Sequence[tuple[RunRow, int]]) -> None:
        """Set alarms for runs that only wait: each starts when it falls due (µs, wall clock of its log)."""
        self._check_open()
        now = self._clock.now()
        for row, _ in due:
            if row.workflow_id not in self.launches and row.workflow_id not in self._timelines:
                self._keep_timeline(row.workflow_id, Timeline.at_rest(self._clock, row))
        # A clock that is behind the end of the log was set back by so much at least.
        self._runs.tell(Alarms(due={row.workflow_id: at + min(0, now - row.updated_at) for row, at in due}))

    def _keep_timeline(self, workflow_id: str, timeline: Timeline) -> None:
        self._timelines[workflow_id] = timeline
        if len(self._timelines) > MAX_ALARMS:
            del self._timelines[next(iter(self._timelines))]

    def _start_queued(self) -> None:
        while not self._tasks.closed and (following := self._queue.dequeue()) is not None:
            self._tasks.start_soon(self._start_from_queue(*following))

    async def _start_from_queue(self, workflow_id: str, command: Command) -> None:
        if workflow_id == self._queue.on_trial:
            await self._start_on_trial(workflow_id, command)
            return
        try:
            await self._start_with_retry(workflow_id, command, has_slot=True)
            if isinstance(command, Pause):
                await self._retry_until_stored(partial(self.ledger.forget, workflow_id))
        finally:
            self._queue.finish_turn(workflow_id)
            self._start_queued()

    async def _start_on_trial(self, workflow_id: str, command: Command) -> None:
        """Start a run alone. The next follows when the units of this one have ended, when it rests, or when
        its first call has gone on for `trial_s`: one long call must not delay all others. A call that gets no
        slot of its provider or service within 60 s is not waited for."""
        self._trial = trial = Trial(workflow_id)
        try:
            try:
                await self._retry_until_stored(partial(self.ledger.put_on_trial, workflow_id))
                await self._start_with_retry(workflow_id, command, has_slot=True)
            finally:
                self._queue.finish_turn(workflow_id)
                self._start_queued()
            launch = self.launches.get(workflow_id)
            if launch is not None and launch.trial is trial:
                await self._wait_for_trial(trial, launch)
        finally:
            if not self.closed:  # the ledger is closed with a clean end by itself
                await self._retry_until_stored(self.ledger.acquit)
            self._trial = self._queue.on_trial = None
            self._start_queued()

    async def _wait_for_trial(self, trial: Trial, launch: RunLaunch) -> None:
        """Wait until the run on trial can be trusted."""
        over = (trial.over, launch.ended.settled(), launch.rested.settled())
        waits = (*over, trial.began)
        await asyncio.wait(waits, timeout=QUEUE_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if trial.began.done():
            await asyncio.wait(over, timeout=self.ledger.trial_s, return_when=asyncio.FIRST_COMPLETED)

    def call_started(self, workflow_id: str) -> None:
        """Record that a call of this run is being made."""
        if self._trial is not None and self._trial.workflow_id == workflow_id:
            self._trial.call_started()

    async def _retry_until_stored(self, write: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await write()
            except StorageUnavailable:
                await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _start_with_retry(self, workflow_id: str, command: Command, *, has_slot: bool = False) -> None:
        """Start a run without a caller. Retries every second while the store is unavailable. A run whose
        models or functions cannot be resolved is paused, with the reason in its log."""
        while True:
            try:
                async with self.exclusive(workflow_id):
                    await self._deliver(workflow_id, command, pauses_unbound=True, has_slot=has_slot)
                return
            except StorageUnavailable:
                await asyncio.sleep(_RETRY_INTERVAL_S)
            except (Fenced, RunNotFound, RunGone):
                return  # another process has it, or it never began

    # -- going on ---------------------------------------------------------------------------------

    async def command(self, workflow_id: str, command: Command) -> Done:
        """Send a command to a run, starting its supervisor if needed. Returns once it is durable.

        Raises RunNotFound, RunTerminal, Fenced, StorageUnavailable, DefinitionError, or CommandRefused with
        the code of page 000 §8.2.
        """
        self._check_open()
        answer = await self._tasks.run_shielded(self._deliver_exclusively(workflow_id, command))
        if answer is None:
            row = await self._log.run(workflow_id)
            raise RunTerminal(f"{workflow_id} has ended ({row.state})")
        if isinstance(answer, Refusal):
            if answer.code == StorageUnavailable.code:
                raise StorageUnavailable(answer.message)
            raise refused(answer.code, answer.message, answer.details)
        return answer

    async def _deliver_exclusively(self, workflow_id: str, command: Command) -> Done | Refusal | None:
        async with self.exclusive(workflow_id):
            return await self._deliver(workflow_id, command)

    async def _deliver(
        self, workflow_id: str, command: Command, *, pauses_unbound: bool = False, has_slot: bool = False
    ) -> Done | Refusal | None:
        """Return the reply of the run, None if it has ended. `has_slot`: a slot is reserved for it."""
        while (found := await self._find_supervisor(workflow_id)) is not None:
            supervisor, launch = found
            try:
                return await supervisor.ask(command, timeout=_REPLY_TIMEOUT_S)
            except ActorStopped:  # it rested first, or is being restarted
                await asyncio.wait((launch.ended.settled(),), timeout=_RESTART_WAIT_S)
            except AskTimeout:
                raise _unconfirmed(workflow_id) from None
            except Exception as error:  # its supervisor has a bug, and is restarted
                raise AgentflowError(f"{workflow_id} failed at what it was told: {error!r}") from error
        self._check_open()
        launch = await self._admit(workflow_id, command) if has_slot else None
        if launch is not None:
            return await self._wait_for_reply(launch)
        row = await self._log.run(workflow_id)
        if row.ended:
            return await self._reply_after_end(workflow_id, command)
        key = row.labels.get(CONCURRENCY_KEY_LABEL)
        if key is not None and await self._keys.may_start(workflow_id, key):
            key = None
        with self._tasks.cancellable():
            launch = await self._start_run(
                row, command, pauses_unbound=pauses_unbound, has_slot=has_slot, held_by=key
            )
        answer = await self._wait_for_reply(launch)
        if key is not None:
            self._keys.look(key)
        return answer

    async def _find_supervisor(self, workflow_id: str) -> tuple[Ref[Any], RunLaunch] | None:
        """Return the supervisor of a run unless it is about to end; waits for one that starts or ends."""
        while (launch := self.launches.get(workflow_id)) is not None:
            ref = self.live.get(workflow_id)
            if launch.ended.done():
                raise AgentflowError("the Runtime is closed")
            if launch.is_leaving:
                await launch.ended.wait()
            elif ref is None or not launch.accepted.done():
                either = (launch.accepted.settled(), launch.ended.settled())
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            else:
                return ref, launch
        return None

    async def _admit(self, workflow_id: str, command: Command) -> RunLaunch | None:
        """Start the supervisor of a run that has queued since it was submitted here, without reading its log;
        None if that may hold more by now, or the run is to have other code."""
        known = self._queued_launches.take(workflow_id)
        if known is None or not isinstance(command, Attach):
            return None
        if self._find_code(workflow_id) is not known.directory.code:
            return None
        with self._tasks.cancellable():
            epoch = await self._claim(workflow_id)
        if epoch > known.epoch + 1:
            return None  # another process had it meanwhile
        launch = RunLaunch(
            workflow_id,
            known.plan,
            known.bindings,
            known.directory,
            epoch=epoch,
            command=command,
            notices=self._take_notices(workflow_id),
            fold=known.take_fold(),
            fold_is_whole=True,
            timeline=known.timeline,
        )
        launch.rested = known.rested  # its callers wait for that
        self._timelines.pop(workflow_id, None)
        self._register(launch)
        self._queue.release_reservation(workflow_id)
        return launch

    async def _claim(self, workflow_id: str) -> int:
        try:
            epoch = await self._log.claim(workflow_id, self._owner)
            self._check_open()
        except BaseException:
            with suppress(StoreError):
                await self._log.release(workflow_id, self._owner)
            raise
        return epoch

    def _take_notices(self, workflow_id: str) -> Sequence[str]:
        """Return what the store had to mend when it was opened, once for each run."""
        if not self._notices or workflow_id in self._noticed:
            return ()
        self._noticed.add(workflow_id)
        return self._notices

    async def _start_run(
        self,
        row: RunRow,
        command: Command,
        *,
        pauses_unbound: bool,
        has_slot: bool,
        held_by: str | None = None,
    ) -> RunLaunch:
        """Start a supervisor that applies the command, and goes on if a slot is free. `held_by`: the
        concurrency key that another run holds."""
        workflow_id = row.workflow_id
        self._queued_launches.take(workflow_id)
        idle = isinstance(command, Cancel | Pause)  # models and functions need not be here
        page = await self._log.read(workflow_id, 0, 1 if workflow_id in self._folds else PAGE_EVENTS)
        try:
            plan, bound = await self._prepare(workflow_id, not idle, page)
        except DefinitionError as error:
            if not pauses_unbound:
                raise
            message = error.diagnostics[0].message
            command, idle = Pause(by="runtime", cause="definition_unavailable", reason=message), True
            plan, bound = await self._prepare(workflow_id, False, page)
        is_child = await self._is_child(row)
        epoch = await self._claim(workflow_id)
        waits = (self._queue.must_wait and not is_child) or self._queue.is_suspect(workflow_id)
        queued = idle or held_by is not None or (not has_slot and waits)
        if queued and not idle:
            if held_by is not None:
                self._keys.hold(workflow_id, held_by)
            else:
                self._queue.enqueue(workflow_id, _ATTACH)
        launch = RunLaunch(
            workflow_id,
            plan,
            bound.bindings,
            self._directory(bound),
            epoch=epoch,
            command=command,
            queued=queued,
            notices=() if queued else self._take_notices(workflow_id),
            fold=self._folds.take(workflow_id, plan, bound.bindings),
            trial=self._trial if self._trial is not None and self._trial.workflow_id == workflow_id else None,
            timeline=self._timelines.pop(workflow_id, None),
            is_child=is_child,
            replay=bound.replay,
            page=page,
        )
        self._register(launch)
        self._queue.release_reservation(workflow_id)
        return launch

    async def _wait_for_reply(self, launch: RunLaunch) -> Done | Refusal:
        try:
            answer = await asyncio.wait_for(launch.reply.wait(), _REPLY_TIMEOUT_S)
        except TimeoutError:
            raise _unconfirmed(launch.workflow_id) from None
        if launch.queued:
            await launch.ended.wait()
            state = launch.rest_state
            if state is not None:  # there is nothing to do for it at its turn
                self._queue.remove(launch.workflow_id, only=None if state.terminal else Attach)
        return answer

    async def _reply_after_end(self, workflow_id: str, command: Command) -> Done | Refusal | None:
        """Reply to a repeated command after the end of its run as before it."""
        if isinstance(command, Cancel | Attach):
            return None
        plan, _ = await self._prepare(workflow_id, False, ())
        state = RunState(workflow_id, plan, engine.Bindings())
        try:
            await fold(self._log, state)
            moves = decide_command(state, command, self._clock.now())
        except OffsetTrimmed:
            return None
        except engine.commands.Refused as error:
            return Refusal(code=error.code, message=error.message, details=error.details)
        return None if moves else Done(offset=state.next_offset - 1, changed=False)

    # -- resting ----------------------------------------------------------------------------------

    def has(self, workflow_id: str) -> bool:
        """Return whether the run is at work here or queued."""
        return workflow_id in self.launches or workflow_id in self._queue

    async def rest(self, workflow_id: str, known: RunLaunch | None) -> RunState | None:
        """Wait until the run is terminal, paused or waits. Returns None if it is not at work here; see the
        log."""
        while True:
            live = self.launches.get(workflow_id)
            if live is not None and not live.queued:
                return await live.rested.wait()
            if live is not None and not live.ended.done():
                await live.ended.wait()
                if live.rest_state is not None:
                    return live.rest_state
                continue
            turn = self._queue.turn(workflow_id)
            if turn is None:
                return self._known_end(known)
            await asyncio.shield(turn)

    def _known_end(self, known: RunLaunch | None) -> RunState | None:
        """Return how a run that began here ended, or where it stood when the registry was closed.

        Raises the error that kept it from resting. Between the two another process may have moved it on.
        """
        if known is None or not known.rested.done():
            return None
        state = known.rested.result()
        return state if state.terminal or self._tasks.closed else None


def _start_command(resumes: bool) -> Command:
    return Resume(by="runtime", reason="drain") if resumes else _ATTACH


def _unconfirmed(workflow_id: str) -> StorageUnavailable:
    message = (
        f"{workflow_id} did not reply within {_REPLY_TIMEOUT_S:g} s; the command may still take effect, "
        f"see `agentflow show {workflow_id}`"
    )
    return StorageUnavailable(message)
