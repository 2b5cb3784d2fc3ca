"""Which runs are at work in this process: they are taken up one at a time each, at most so many at once.

Runs beyond the limit wait their turn with their logs begun; runs that wait for a person are nowhere here and
are taken up again by the command that moves them. It decides nothing about a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from actors import ActorStopped, ActorSystem, ChildSpec, Ref
from agentflow import engine
from agentflow.engine.state import RunState
from agentflow.errors import AgentflowError, DefinitionError, Fenced, QueueFull, RunTerminal, refused
from agentflow.events.log import FIRST_EPOCH, EventLog
from agentflow.events.owner import Owner
from agentflow.runtime.admission import Admission
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.binding import Bound
from agentflow.runtime.clock import Clock
from agentflow.runtime.messages import Cancel, Command, Done, Look, Pause, Refusal, Resume, StartRun
from agentflow.runtime.runs import Runs

__all__ = ["Keeper"]

_log = logging.getLogger("agentflow.runtime")

Prepare = Callable[[str, bool], Awaitable[tuple[engine.Plan, Bound]]]
"""The graph of a stored run and what it is bound to; unbound when nothing of it is to be carried out. Raises
DefinitionError when its models or functions are not here."""

_ASK = 60.0
_LOOK = Look(by="runtime")


class Keeper:
    """The runs of one Runtime. All methods are for the loop of its actor system."""

    def __init__(
        self,
        log: EventLog,
        clock: Clock,
        owner: Owner,
        *,
        prepare: Prepare,
        directory: Callable[[Bound], Directory],
        limit: int,
        queue: int,
    ) -> None:
        self._log = log
        self._clock = clock
        self._owner = owner
        self._prepare = prepare
        self._directory = directory
        self._limit = limit
        self._queue = queue
        self.admissions: dict[str, Admission] = {}
        self.live: dict[str, Ref[Any]] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._pending: dict[str, asyncio.Future[None]] = {}
        self._order: deque[tuple[str, Command]] = deque()
        self._reserved = 0  # places that runs on their way have
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._notices = [notice.text for notice in log.notices if notice.kind == "torn_tail"]
        self._noticed: set[str] = set()
        for notice in log.notices:
            if notice.kind != "rebuilt":
                _log.warning("%s: %s", log.url, notice.text)

    async def start(self, system: ActorSystem, bus: Ref[Any]) -> None:
        """Start the actor that holds the supervisors."""
        runs = partial(
            Runs,
            self.admissions,
            self.live,
            bus,
            self._log,
            self._clock,
            self._owner,
            gone=self._make_room,
            overdue=lambda run_id: self._later(self._wake(run_id)),
        )
        self._runs = await system.spawn(ChildSpec("runs", runs, shutdown=30.0))

    def close(self) -> None:
        """Refuse new runs; what is queued stays in the log as it is."""
        self._closing = True
        for run_id in list(self._pending):
            self._forget(run_id)
        for task in self._tasks:
            task.cancel()

    # -- one at a time ----------------------------------------------------------------------------

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncGenerator[None]:
        """Commands that take a run up come one after another."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    async def at_work(self, workflow_id: str) -> Admission | None:
        """The run's admission when its supervisor is here to stay; waits for one that is about to end."""
        live = self.admissions.get(workflow_id)
        while live is not None and live.leaving:
            await asyncio.shield(live.gone)
            live = self.admissions.get(workflow_id)
        return live

    # -- beginning --------------------------------------------------------------------------------

    async def begin(
        self,
        workflow_id: str,
        plan: engine.Plan,
        bound: Bound,
        first_events: Sequence[Any],
        *,
        base: Sequence[engine.BaseEvent] = (),
        labels: dict[str, str],
    ) -> Admission:
        """Begin a run; returns once its first event is durable. QueueFull, StoreError."""
        self._must_be_open()
        queued = self._full
        if queued and len(self._order) >= self._queue:
            raise QueueFull(f"{self._queue} runs wait already")
        admission = Admission(
            workflow_id,
            plan,
            bound.bindings,
            self._directory(bound),
            epoch=FIRST_EPOCH,
            first_events=first_events,
            base=base,
            labels=labels,
            queued=queued,
        )
        if queued:
            self._enqueue(workflow_id, _LOOK)
        try:
            await self._admit(admission)
        except BaseException:
            self._forget(workflow_id)
            raise
        return admission

    async def _admit(self, admission: Admission) -> None:
        self._must_be_open()
        self.admissions[admission.workflow_id] = admission
        self._runs.tell(StartRun(workflow_id=admission.workflow_id))
        await asyncio.shield(admission.accepted)

    def _must_be_open(self) -> None:
        if self._closing:
            raise AgentflowError("the Runtime is closed; nothing was begun")

    # -- places -----------------------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        at_work = sum(not a.queued for a in self.admissions.values())
        return bool(self._order) or at_work + self._reserved >= self._limit

    def _enqueue(self, workflow_id: str, command: Command) -> None:
        if workflow_id not in self._pending:
            self._pending[workflow_id] = asyncio.get_running_loop().create_future()
            self._order.append((workflow_id, command))

    def _forget(self, workflow_id: str) -> None:
        self._order = deque(item for item in self._order if item[0] != workflow_id)
        waiting = self._pending.pop(workflow_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _make_room(self, _: str) -> None:
        while self._order and not self._closing:
            at_work = sum(not a.queued for a in self.admissions.values())
            if at_work + self._reserved >= self._limit:
                return
            self._reserved += 1
            self._later(self._next(*self._order.popleft()))

    async def _next(self, workflow_id: str, command: Command) -> None:
        try:
            await self.take_up(workflow_id, command)
        finally:
            self._reserved -= 1
            waiting = self._pending.pop(workflow_id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
            self._make_room(workflow_id)

    def _later(self, work: Any) -> None:
        """Work that nobody waits for: it ends with this Keeper, and its errors are logged."""
        if self._closing:
            work.close()
            return
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a run could not be taken up: %s", error)

    # -- going on ---------------------------------------------------------------------------------

    async def take_up(self, workflow_id: str, command: Command) -> Done | Refusal | None:
        """Go on with a run, and tell it `command`; None when it has ended. One whose models or functions are
        not here is paused and says so, unless somebody asked for this run: then DefinitionError."""
        async with self.alone(workflow_id):
            return await self._told(workflow_id, command, patient=True)

    async def command(self, workflow_id: str, command: Command) -> Done:
        """Tell a run something, taking it up for that if need be. Returns once it is durable.

        RunNotFound, RunTerminal, Fenced, DefinitionError, CommandRefused with the code of page 000 §8.2.
        """
        async with self.alone(workflow_id):
            answer = await self._told(workflow_id, command, patient=False)
        if answer is None:
            row = await self._log.run(workflow_id)
            raise RunTerminal(f"{workflow_id} has ended ({row.state})")
        if isinstance(answer, Refusal):
            raise refused(answer.code, answer.message, answer.details)
        return answer

    async def _told(self, workflow_id: str, command: Command, *, patient: bool) -> Done | Refusal | None:
        while (await self.at_work(workflow_id)) is not None:
            try:
                return await self.live[workflow_id].ask(command, timeout=_ASK)
            except (ActorStopped, KeyError):  # it came to rest first
                admission = self.admissions.get(workflow_id)
                if admission is not None:
                    await asyncio.shield(admission.gone)
        row = await self._log.run(workflow_id)
        if row.ended:
            return None
        idle = isinstance(command, Cancel)  # its models and functions need not be here
        try:
            plan, bound = await self._prepare(workflow_id, not idle)
        except DefinitionError as error:
            if not patient:
                raise
            command = Pause(
                by="runtime", reason="definition_unavailable", detail=str(error.diagnostics[0].message)
            )
            plan, bound = await self._prepare(workflow_id, False)
        epoch = await self._log.claim(workflow_id, self._owner)
        notices = [] if workflow_id in self._noticed else self._notices
        if notices:
            self._noticed.add(workflow_id)
        admission = Admission(
            workflow_id,
            plan,
            bound.bindings,
            self._directory(bound),
            epoch=epoch,
            command=command,
            notices=notices,
        )
        await self._admit(admission)
        return await asyncio.wait_for(asyncio.shield(admission.obeyed), _ASK)

    async def _wake(self, workflow_id: str) -> None:
        try:
            await self.take_up(workflow_id, _LOOK)
        except Fenced:
            return  # another process has it

    def recover(self, runs: Sequence[tuple[str, bool]]) -> None:
        """Take up runs that no process works on, as there are places for them; `True`: resume it too."""
        for workflow_id, paused in runs:
            self._enqueue(workflow_id, Resume(by="runtime", reason="drain") if paused else _LOOK)
        self._make_room("")

    async def rest(self, workflow_id: str, known: Admission | None) -> RunState | None:
        """Wait until the run is terminal, paused or waits. None: it is not at work here; see the log."""
        while True:
            pending = self._pending.get(workflow_id)
            if pending is not None:
                await asyncio.shield(pending)
            live = self.admissions.get(workflow_id)
            if live is None:
                if workflow_id in self._pending:
                    continue
                return self._known(known)
            if not live.queued:
                return await asyncio.shield(live.rested)
            await asyncio.shield(live.gone)

    def _known(self, known: Admission | None) -> RunState | None:
        """How a run that began here came to its end, or where it stood when this Keeper was closed; raises
        why it did not get there. Between the two another process may have moved it on."""
        if known is None or not known.rested.done():
            return None
        state = known.rested.result()
        return state if state.terminal or self._closing else None
