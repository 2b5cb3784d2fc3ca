"""RunSupervisor: the actor that owns one run. It alone decides, and it decides by the engine.

Every answer from outside is folded, `decide` is asked until it has nothing more to say, and the whole
batch goes to the EventBus as one append. Calls begin only when the batch that opened them is durable.
When it dies it is restarted, folds the log and goes on: nothing that matters lives only here. A run that
only waits has no supervisor; the next command or deadline starts one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from actors import Actor, OneForOne, Reply, Restarted, Terminated, on
from agentflow import engine, known_secrets
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.decisions import Decisions
from agentflow.engine.effect_replay import Replayer, call_of
from agentflow.engine.effects import EFFECTFUL
from agentflow.engine.state import RunState
from agentflow.errors import (
    AgentflowError,
    Fenced,
    OffsetConflict,
    RunExists,
    RunNotFound,
    StorageUnavailable,
    StoreError,
)
from agentflow.events import catalogue as ev
from agentflow.events.log import EventLog
from agentflow.events.tracing import RunTracer
from agentflow.runtime.call_dispatcher import CallDispatcher
from agentflow.runtime.clock import Clock, monotonic_of
from agentflow.runtime.command_handlers import (
    Attach,
    Cancel,
    Command,
    Done,
    Pause,
    Refusal,
    ReportChild,
    Resume,
    check_offset,
    decide_command,
)
from agentflow.runtime.crash_ledger import Trial
from agentflow.runtime.edge_judge import EdgeJudge, EdgesJudged
from agentflow.runtime.event_bus import Barrier, Commit, CommitFailed, Committed, Republish
from agentflow.runtime.handler_calls import (
    AddEvent,
    BeginCall,
    CallVerdict,
    EndCall,
    HandlerDone,
    HandlerFailed,
    YieldOutput,
)
from agentflow.runtime.handler_dispatcher import BeginHandler
from agentflow.runtime.handler_messages import HandlerMessages
from agentflow.runtime.handler_models import BeginModelCall, EndModelCall, ModelVerdict
from agentflow.runtime.log_replay import Fold, fold
from agentflow.runtime.messages import HANDLER_LIMIT_S, Message
from agentflow.runtime.model_calls import ModelCallFailure, ModelCallSuccess, model_warnings
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.result_cache import KeepResult, ResultCache
from agentflow.runtime.run_launch import RunLaunch
from agentflow.runtime.run_outbox import Batch, RunOutbox
from agentflow.runtime.shared_store import SharedStore
from agentflow.runtime.supervised_children import SupervisedChildren
from agentflow.runtime.tool_actor import CallsMissing, ToolCallFailure, ToolCallSuccess

__all__ = [
    "Answered",
    "AskAgain",
    "CheckAcknowledged",
    "ChildGone",
    "HandlersStopped",
    "LogEnd",
    "LookedUp",
    "RunSupervisor",
    "SendAgain",
    "Suspend",
    "Wake",
    "WorkStopped",
]


class CheckAcknowledged(Message, frozen=True, kw_only=True):
    """Has the batch at `expected`, the oldest of the outbox when this was set, been acknowledged?"""

    expected: int


class LogEnd(Message, frozen=True, kw_only=True):
    """Where the run's log ends, and at which epoch, while the batch at `expected` was not acknowledged."""

    expected: int
    epoch: int
    last: int


class LookedUp(Message, frozen=True, kw_only=True):
    """Whether the result of an activation is kept."""

    activation_key: str
    hit: Any
    """A CacheHit or None; of a Probe the files."""


class Answered(Message, frozen=True, kw_only=True):
    """The store has answered an access; `failed`: it could not be asked, and is asked again."""

    answer_key: str
    answer: Any
    failed: bool = False


class AskAgain(Message, frozen=True, kw_only=True):
    """The store may be asked again what it could not answer."""

    answer_key: str


class Suspend(Message, frozen=True, kw_only=True):
    """Park the run: model calls are cut off, tools may finish within `grace` seconds."""

    reason: str
    grace: float


class Wake(Message, frozen=True, kw_only=True):
    """A deadline or a retry may be due."""


class SendAgain(Message, frozen=True, kw_only=True):
    """The store may take the refused batch now."""


class HandlersStopped(Message, frozen=True, kw_only=True):
    """The time that cancelled handlers have to end is over."""


class ChildGone(Message, frozen=True, kw_only=True):
    """A child run that was cancelled has ended."""

    workflow_id: str


class WorkStopped(Message, frozen=True, kw_only=True):
    """The grace for calls at work is over."""


Settle = Callable[[Done | Refusal], object]

_ACK_CHECK_S = 1.0
_STORE_RETRY_S = 0.5
HANDLERS_END_S = 5.0
"""How long the end of a cancelled run waits for handlers that go on after their cancellation."""
_LOST = "the run belongs to another process now"
_COMMAND_WAIT_US = 10_000_000
"""How long a command waits for a store that takes nothing."""


def _answered(key: str, answer: Any) -> Answered:
    return Answered(answer_key=key, answer=answer)


def _unanswered(key: str, error: BaseException) -> Answered:
    return Answered(answer_key=key, answer=None, failed=True)


def _identity(message: LogEnd) -> LogEnd:
    return message


class RunSupervisor(Actor, mailbox=100_000, handler_timeout=HANDLER_LIMIT_S):
    """One run. Children: one AgentActor for each execution of an agent that is at work."""

    supervise = OneForOne(max_restarts=1_000_000, within=1, decide=lambda error, history: "stop")

    def __init__(
        self,
        launch: RunLaunch,
        bus: PermanentActor,
        log: EventLog,
        clock: Clock,
        store: SharedStore | None = None,
    ) -> None:
        self._launch = launch
        self._bus = bus
        self._log = log
        self._clock = clock
        self._monotonic = monotonic_of(clock)
        self._timeline = launch.timeline
        run_id = launch.workflow_id
        fold = launch.take_fold()
        if fold is None or launch.replay is not None:  # a Replayer has to see all events
            fold = Fold(RunState(run_id, launch.plan, launch.bindings), RunTracer(run_id), 0)
        self._state, self._tracer = fold.state, fold.tracer
        self._outbox = RunOutbox(bus)
        self._armed_for: int | None = None
        self._decided_at = -1  # the time at which `decide` last had nothing more to say (µs)
        self._replies: deque[tuple[int, Settle]] = deque()  # given once the offset is durable
        self._model_calls: list[tuple[BeginModelCall, Reply[Any]]] = []  # of handlers, that wait for room
        self._suspending: Suspend | None = None
        self._warned: set[str] = set()  # of the adapters' warnings, those that are recorded
        self._cancel: Cancel | None = None
        self._cancel_from = 0  # the offset of the request, which must be durable first
        self._storage_failed = False
        self._waiting_commands: deque[tuple[int, Command, Settle]] = (
            deque()
        )  # until the store takes something again
        self._results = ResultCache(log, clock)
        self._results_to_keep: list[KeepResult] = []
        self._ack_timer_set = False  # whether a look at the outbox is due
        self._effects: list[engine.Effect] = []  # of the events that are not on their way to the log yet
        self._store = SharedStore(log) if store is None else store
        self._accesses: deque[tuple[int, engine.StoreAccess]] = deque()  # made once the offset is durable
        self._lookups: dict[str, Any] = {}  # answers of the cache, the store and code
        nodes = launch.plan.all_nodes.values()
        replay = launch.replay
        self._replayer = None if replay is None else Replayer(replay.recording, replay.policy, launch.plan)
        self._replay_error: ErrorInfo | None = None  # ends the run once its events are durable
        self._serving = False
        self._caches = any(node.spec.cache is not None or node.kind.uses_store for node in nodes)
        self._judged: list[str] = []
        self._waits_for_handlers = False  # the end of a cancel waits until they have ended
        self._forced = False
        self._children: SupervisedChildren | None = None

    # -- beginning ------------------------------------------------------------------------------

    def on_start(self) -> Awaitable[None] | None:
        launch = self._launch
        clock = self._clock
        self._dispatcher = CallDispatcher(self.ctx, self._state, launch.directory, self._tracer, clock.now)
        self._edges = EdgeJudge(self.ctx, self._state, launch.directory.code)
        self._handlers = HandlerMessages(self._state, self._dispatcher.handlers, self._edges, clock)
        if launch.child_links is not None:
            me = self.ctx.self
            self._children = SupervisedChildren(
                self._state,
                self._tracer,
                launch.child_links,
                lambda run_id: me.tell(ChildGone(workflow_id=run_id)),
                self._serves_work,
            )
        if not launch.is_new:
            return self._replay()
        if launch.first_batch_sent:
            return self._start_or_replay()
        self._start_new()
        return None

    async def _start_or_replay(self) -> None:
        """Start a new run, unless a supervisor that died made its first events durable."""
        launch = self._launch
        await self._bus.ask(Barrier(workflow_id=launch.workflow_id), timeout=60)
        try:
            row = await self._log.run(launch.workflow_id)
        except RunNotFound:
            self._start_new()
            return
        if row.owner != launch.owner:
            launch.reject(RunExists(f"{launch.workflow_id} exists already"))
            self.ctx.self.kill()
            return
        launch.accepted.set_result(None)
        await self._replay()

    def _start_new(self) -> None:
        """Write the first events of a new run, and what follows from them unless it has to queue."""
        launch, state = self._launch, self._state
        now = self._now()
        events: list[ev.RunEvent] = []
        state.base = launch.base
        self._record(launch.first_events, events, now)
        if launch.base:
            self._effects.clear()
            self._record(engine.interrupted(state, now), events, now)
            self._effects += engine.open_handlers(state)
            if not launch.queued:
                self._effects += [engine.StartChild(key) for key in engine.open_children(state)]
        if not launch.queued:
            self._decide(events, now)
        launch.first_batch_sent = True
        self._commit(0, events, now)
        if not launch.queued:
            self._arm_wake_timer(now)

    async def _replay(self) -> None:
        """Rebuild the state from the log, close what was interrupted, and go on."""
        state, launch = self._state, self._launch
        # An earlier incarnation of this actor may have appends on the way to the disk.
        await self._bus.ask(Barrier(workflow_id=state.workflow_id), timeout=60)
        try:
            see = self._timeline.following(state, self._tracer.take)
            await fold(self._log, state, see=see if self._replayer is None else self._following(see))
        except RunNotFound as error:
            launch.reject(error)
            raise
        self._timeline.taken_up(state, self._clock.now())
        if self._children is not None:
            self._children.find()
        if not launch.accepted.done():
            launch.accepted.set_result(None)
        command, now = launch.command, self._now()
        if state.terminal:
            if command is not None:
                self._apply_command(command, launch.set_reply)
            self._rest()
        elif state.cancel_requested is not None:
            forced = state.cancel_requested.mode == "hard"
            if not self._cancel_children(state.cancel_requested.mode, 0.0):
                self._advance(engine.cancel_finished(state, now, forced=forced))
            if command is not None:
                self._apply_command(command, launch.set_reply)
        else:
            self._continue_run(command, now)

    def _continue_run(self, command: Command | None, now: int) -> None:
        """Go on where the log ends. Neither a cancel nor a pause starts work first."""
        state, launch = self._state, self._launch
        begun = engine.open_handlers(state)  # of those that follow the start is not durable yet
        still = isinstance(command, Cancel | Pause) or state.status == "paused" or launch.queued
        if isinstance(command, Pause):  # no call is at work in this process
            command = msgspec.structs.replace(command, in_flight="suspend")
        elif not isinstance(command, Cancel):
            self._advance([*self._storage_notices(), *([] if still else self._interrupted(now))])
        for effect in [] if still else begun:
            if not self._serves_work(effect.activation_key):
                self._dispatcher.execute(effect)
        if self._children is not None and isinstance(command, Attach | Resume) and not still:
            self._children.start_all()
        if command is not None:
            self._apply_command(command, launch.set_reply)
        if launch.trial is not None:
            launch.trial.begin(state)
        self._resume_when_due()
        if not self._outbox and not self._serve_next():
            self._maybe_rest()

    def _storage_notices(self) -> Decisions:
        """Return the events that record what opening the store repaired; nothing acknowledged was lost."""
        notices, self._launch.notices = self._launch.notices, []
        return [
            ev.SystemError(
                error=ErrorInfo(category="system", code="torn_tail", message=text),
                severity="warning",
                component="log",
                fatal=False,
            )
            for text in notices
        ]

    def _now(self) -> int:
        """Return the wall time, with the state moved by the step that the clock may have made."""
        now = self._clock.now()
        self._timeline.move(self._state, now, self._monotonic)
        if self._replayer is not None:
            self._replayer.align(self._state, now)
        return now

    # -- deciding -------------------------------------------------------------------------------

    def _advance(self, decisions: Decisions) -> None:
        """Apply what happened and what follows from it, and append it all as one batch."""
        now = self._now()
        first = self._state.next_offset
        events: list[ev.RunEvent] = []
        self._record(decisions, events, now)
        self._decide(events, now)
        if events:
            self._commit(first, events, now)
        if not self._outbox:
            self._ask_store(self._state.next_offset)
        self._arm_wake_timer(now)
        if self._replayer is not None and not self._outbox and not self._serving:
            self._serve_next()
        if self._model_calls:
            self._admit_model_calls()

    def _decide(self, events: list[ev.RunEvent], now: int) -> None:
        if self._suspending is not None:
            return
        # Without a place nothing begins, but what is too late is.
        if self._launch.queued:
            while decided := engine.expire(self._state, now):
                self._record(decided, events, now)
        else:
            while decided := engine.decide(self._state, now, self._lookups):
                if decided[0].__class__ is engine.Lookup:
                    self._look_up(decided[0])
                elif decided[0].__class__ is engine.Probe:
                    self._probe(decided[0])
                elif decided[0].__class__ is engine.StoreAccess:
                    self._lookups[decided[0].answer_key] = "asked"
                    self._accesses.append((self._state.next_offset - 1, decided[0]))
                elif decided[0].__class__ is engine.Judgement:
                    self._judge(decided[0])
                else:
                    self._record(decided, events, now)
                    while self._judged:
                        del self._lookups[self._judged.pop()]
        self._decided_at = now

    def _record(self, decisions: Decisions, events: list[ev.RunEvent], now: int) -> None:
        state = self._state
        evolve, effect_of = engine.evolve, engine.effect_of
        for data in decisions:
            if self._caches and data.__class__ is ev.WorkflowStepCompleted:
                self._keep_result(data)
            if self._replayer is not None:
                data = self._replayer.mark(state, data)
                self._replayer.take(data, state.next_offset, now)
            evolve(state, data, state.next_offset, now)
            if self._replayer is not None:
                self._replayer.credit(state, data)
            if data.__class__ in EFFECTFUL and (effect := effect_of(data)) is not None:
                self._effects.append(effect)
            events.append(data)

    def _keep_result(self, data: ev.WorkflowStepCompleted) -> None:
        """Cache the result of a step once its event is durable."""
        name = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
        activation = self._state.open.get(name)
        self._lookups.pop(name, None)
        for answer in [key for key in self._lookups if key.startswith(engine.answer_prefix(name))]:
            del self._lookups[answer]
        cache = None if activation is None else activation.node.spec.cache
        if (
            activation is not None
            and cache is not None
            and data.cached is UNSET
            and (key := engine.result_key(self._state, activation)) is not None
        ):
            kept = KeepResult(
                key=key, workflow_id=self._state.workflow_id, offset=self._state.next_offset, ttl=cache.ttl
            )
            self._results_to_keep.append(kept)

    def _judge(self, asked: engine.Judgement) -> None:
        """Evaluate the code on the edges of a message; the next decision records the routes."""
        self._lookups[asked.key] = "asked"

        def found(_: int, messages: tuple[engine.Outgoing, ...]) -> None:
            self._lookups[asked.key] = messages[0]
            self._judged.append(asked.key)
            self._advance([])

        self._edges.ask(asked.node, [asked.message], found)

    @on(EdgesJudged)
    def edges_judged(self, message: EdgesJudged) -> None:
        self._edges.answered(message)

    def _look_up(self, lookup: engine.Lookup) -> None:
        key = lookup.activation_key
        self._lookups[key] = "asked"
        if self._replayer is not None and self._replayer.serves_lookup(lookup):
            return

        def found(hit: engine.CacheHit | None) -> LookedUp:
            return LookedUp(activation_key=key, hit=hit)

        def failed(error: BaseException) -> LookedUp:
            return LookedUp(activation_key=key, hit=None)  # an unreadable cache is a miss

        self.ctx.pipe(self._results.find(lookup.key), found, failed)

    def _probe(self, probe: engine.Probe) -> None:
        """Look at the expected files of a step before it starts."""
        import asyncio

        from agentflow.runtime.file_snapshots import snapshot_files

        key = probe.activation_key
        self._lookups[key] = "asked"

        def found(files: Any) -> LookedUp:
            return LookedUp(activation_key=key, hit=files)

        def failed(error: BaseException) -> LookedUp:
            return LookedUp(activation_key=key, hit={})

        looking = asyncio.to_thread(snapshot_files, probe.workspace, probe.names)
        self.ctx.pipe(looking, found, failed)

    @on(LookedUp)
    def looked_up(self, message: LookedUp) -> None:
        self._lookups[message.activation_key] = message.hit
        self._advance([])

    def _ask_store(self, offset: int) -> None:
        """Make the accesses of decisions that are durable up to `offset`."""
        while self._accesses and self._accesses[0][0] <= offset:
            _, access = self._accesses.popleft()
            key = access.answer_key
            if self._replayer is not None and self._is_served(self._replayer.serves_access(access)):
                continue
            answered = partial(_answered, key)
            self.ctx.pipe(self._store.access(access), answered, partial(_unanswered, key))

    @on(Answered)
    def answered(self, message: Answered) -> None:
        if message.failed:
            again = AskAgain(answer_key=message.answer_key)
            self.ctx.timers.start(f"store {message.answer_key}", _STORE_RETRY_S, again)
            return
        self._lookups[message.answer_key] = message.answer
        self._advance([])

    @on(AskAgain)
    def ask_again(self, message: AskAgain) -> None:
        self._lookups.pop(message.answer_key, None)
        self._advance([])

    def _commit(self, first: int, events: list[ev.RunEvent], now: int) -> None:
        state, launch = self._state, self._launch
        started = launch.started if first == 0 else None
        commit = Commit(
            workflow_id=state.workflow_id,
            epoch=launch.epoch,
            expected=first,
            ts=now,
            events=tuple(events),
            tracer=self._tracer,
            state=state.status,
            name=state.name if started else None,
            definition_hash=started.definition.hash if started else None,
            labels=launch.labels if started else {},
        )
        results, self._results_to_keep = self._results_to_keep, []
        effects, self._effects = self._effects, []
        self._outbox.put(Batch(commit, effects, results))
        if not self._ack_timer_set:
            self._watch_acknowledgement()

    @on(Committed)
    def committed(self, message: Committed) -> None:
        launch = self._launch
        if not launch.accepted.done():
            launch.accepted.set_result(None)
        for batch in self._outbox.durable(message.offset):
            self._tracer.acknowledge(batch.commit.expected)
            for effect in batch.effects:
                if isinstance(effect, engine.StartCall | engine.StartHandler):
                    if self._suspending is None:
                        if isinstance(effect, engine.StartCall):
                            self._start_call(effect)
                        elif not self._serves_work(effect.activation_key):
                            self._dispatcher.execute(effect)
                    continue
                if isinstance(effect, engine.StartChild | engine.PassOn):
                    self._execute_for_child(effect)
                    continue
                self._dispatcher.execute(effect)
                if self._children is not None and isinstance(effect, engine.Release):
                    self._children.release(effect.activation_key)
                if launch.trial is not None and isinstance(effect, engine.Release):
                    self._end_trial_of(effect.activation_key, launch.trial)
            for kept in batch.results:
                if self.ctx.parent is not None:  # this actor may have ended before it is kept
                    self.ctx.parent.tell(kept)
        self._ask_store(message.offset)
        while self._replies and self._replies[0][0] <= message.offset:
            offset, settle = self._replies.popleft()
            settle(Done(offset=offset, changed=True))
        if self._outbox.stalled:
            self._outbox.recovered()
            while self._waiting_commands:
                _, command, settle = self._waiting_commands.popleft()
                self._apply_command(command, settle)
        if self._cancel is not None and self._cancel_from <= message.offset:
            self._execute_cancel(self._cancel)
        elif not self._outbox:
            if self._storage_failed:
                self._record_stall()
            if not self._serve_next():
                self._maybe_rest()

    def _start_call(self, call: engine.StartCall) -> None:
        """Make a call, unless it is answered from the record of another run."""
        if call.call_id not in self._state.calls:
            return
        if self._replayer is None or not self._is_served(self._replayer.serves_call(call.call_id)):
            self._dispatcher.execute(call)

    # -- answers from a recorded run --------------------------------------------------------------

    def _serves_work(self, key: str) -> bool:
        """Return whether a child run or a handler is not started, because a record says what comes of it."""
        replayer = self._replayer
        if replayer is None or key not in self._state.open:
            return False
        return self._is_served(replayer.serves_work(key))

    def _following(self, see: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return `see` for a fold of the log that the Replayer follows too."""
        state, replayer = self._state, self._replayer
        assert replayer is not None

        def following(data: Any) -> None:
            see(data)
            replayer.take(data, state.next_offset - 1, state.last_ts)
            replayer.credit(state, data)
            replayer.align(state, state.last_ts)

        return following

    def _is_served(self, answer: bool | ErrorInfo) -> bool:
        """Return whether an effect must not be executed. An error ends the run once it is at rest."""
        if isinstance(answer, ErrorInfo):
            self._replay_error = self._replay_error or answer
            return True
        return answer

    def _interrupted(self, now: int, *, stopped: bool = False) -> Decisions:
        """Return the ends of the calls that no process makes any more. One that a record answers was never
        made, so that it stays open and its outcome is not unknown."""
        closed = engine.interrupted(self._state, now, stopped=stopped)
        if (replayer := self._replayer) is None:
            return closed
        return [data for data in closed if not self._is_served(replayer.serves_call(call_of(data)))]

    def _serve_next(self) -> bool:
        """Tell the run what its record says next; return whether that changed anything.

        Called when all that was decided is durable, so that results come in the recorded order.
        """
        replayer, state = self._replayer, self._state
        if replayer is None or self._suspending is not None or self._launch.queued or state.terminal:
            return False
        self._serving = True
        try:
            while not self._outbox:
                if self._replay_error is not None:
                    return self._end_replay(self._replay_error)
                step = replayer.next(state, self._now())
                if step is None:
                    return False
                if isinstance(step, ErrorInfo):
                    return self._end_replay(step)
                self._lookups.update(step.found)
                self._advance(step.decisions)
            return True
        finally:
            self._serving = False

    def _end_replay(self, error: ErrorInfo) -> bool:
        """End the run with all that is open: the record does not fit. Nothing was sent."""
        state, now = self._state, self._now()
        first = state.next_offset
        events: list[ev.RunEvent] = []
        while not state.terminal:
            self._record(engine.end_run(state, error, now), events, now)
        self._commit(first, events, now)
        return True

    def _execute_for_child(self, effect: engine.StartChild | engine.PassOn) -> None:
        if self._children is None:
            return
        if isinstance(effect, engine.PassOn):
            self._children.pass_on(effect)
        elif self._suspending is None:
            self._children.start(effect.activation_key)

    def _end_trial_of(self, activation_key: str, trial: Trial) -> None:
        if activation_key not in self._state.open:
            trial.end(activation_key)

    def _maybe_rest(self) -> None:
        state = self._state
        if self._children is not None and self._children.are_leaving:
            return  # a run ends after its children
        if self._launch.queued and engine.resume_is_due(state, self._now()):
            self.ctx.self.stop()  # its pause is over; it comes back when there is a place for it
        elif state.status in ("completed", "failed", "cancelled", "waiting"):
            self._rest()
        elif state.status == "paused" and not self._dispatcher.is_busy:
            self._rest()  # a pause lets what is in flight finish
        elif self._launch.queued:
            self.ctx.self.stop()  # its log has begun; it comes back when there is a place for it

    def _rest(self) -> None:
        """Stop this actor: the run is terminal, paused or waits for input. Resolves `rested`; the next
        deadline is left in `alarm`, which RunsSupervisor watches."""
        launch = self._launch
        self._timeline.end = self._state.next_offset
        if not self._state.terminal:
            resting = self._state.status in ("waiting", "paused")
            launch.alarm = engine.next_due(self._state, self._decided_at) if resting else None
            if not self._outbox:
                launch.fold = Fold(self._state, self._tracer, self._state.next_offset)
        if not launch.rested.done():
            launch.rested.set_result(self._state)
        self.ctx.self.stop()

    # -- an acknowledgement that does not come ----------------------------------------------------

    def _watch_acknowledgement(self) -> None:
        oldest = self._outbox.oldest
        self._ack_timer_set = oldest is not None
        if oldest is not None:
            check = CheckAcknowledged(expected=oldest.commit.expected)
            self.ctx.timers.start("acknowledged", _ACK_CHECK_S, check)

    @on(CheckAcknowledged)
    def check_acknowledged(self, message: CheckAcknowledged) -> None:
        """Look for a batch, or its acknowledgement, that a failure of the EventBus may have lost.

        A slow disk loses neither: once the bus has nothing of this run on its way, the end of the log tells.
        """
        oldest = self._outbox.oldest
        if oldest is None or self._outbox.stalled or oldest.commit.expected != message.expected:
            self._watch_acknowledgement()
            return

        def failed(error: BaseException) -> CheckAcknowledged:
            # The bus has just been made anew, or the store cannot be read: look again after a while.
            return CheckAcknowledged(expected=-1)

        self.ctx.pipe(self._log_end(message.expected), _identity, failed)

    async def _log_end(self, expected: int) -> LogEnd:
        run_id = self._state.workflow_id
        await self._bus.ask(Barrier(workflow_id=run_id), timeout=math.inf)
        try:
            row = await self._log.run(run_id)
        except RunNotFound:
            return LogEnd(expected=expected, epoch=self._launch.epoch, last=-1)
        return LogEnd(expected=expected, epoch=row.epoch, last=row.last_offset)

    @on(LogEnd)
    def log_ends(self, message: LogEnd) -> None:
        oldest = self._outbox.oldest
        self._watch_acknowledgement()
        if oldest is None or self._outbox.stalled or oldest.commit.expected != message.expected:
            return
        if message.epoch != self._launch.epoch:
            self.commit_failed(CommitFailed(expected=message.expected, error=_LOST, kind=Fenced.code))
        elif message.last >= oldest.last:
            self._bus.tell(Republish(workflow_id=self._state.workflow_id, first=message.expected))
            self.committed(Committed(offset=message.last))
        elif message.last == message.expected - 1:
            self._outbox.send_all_again()
        else:
            raise RuntimeError(f"the log ends at {message.last}, inside a batch from {message.expected} on")

    # -- a store that refuses -------------------------------------------------------------------

    @on(CommitFailed)
    def commit_failed(self, message: CommitFailed) -> None:
        """Retry after a transient failure. Any other failure ends this actor at once, with nothing
        acknowledged: the log is the truth."""
        if self._outbox.follows(message):
            return
        if message.transient and message.expected > 0:
            wait = self._outbox.refused(message)
            if wait is not None:
                self._storage_failed = True
                self.ctx.timers.start("store", wait, SendAgain())
            return
        if message.kind == "internal_error":
            raise RuntimeError(message.error)  # supervision: fold the log and decide again
        # Another process appended, or owns the run: the same for callers here.
        lost = message.kind in (Fenced.code, OffsetConflict.code)
        kind: type[AgentflowError] = StorageUnavailable if message.transient else StoreError
        if lost:
            kind = RunExists if message.expected == 0 else Fenced
        self._launch.reject(kind(message.error))
        self.ctx.self.kill()

    @on(SendAgain)
    def send_again(self, message: SendAgain) -> None:
        self._outbox.send_again()
        refusal = Refusal(
            code=StorageUnavailable.code, message="the store takes nothing now; nothing changed"
        )
        while self._waiting_commands and self._waiting_commands[0][0] <= self._monotonic():
            self._waiting_commands.popleft()[2](refusal)

    def _record_stall(self) -> None:
        self._storage_failed = False
        if self._state.status == "running" and self._suspending is None:
            self._advance(
                [
                    ev.WorkflowPaused(reason="storage", detail="the store took nothing for a while"),
                    ev.WorkflowResumed(reason="storage"),
                ]
            )

    # -- work that was lost ---------------------------------------------------------------------

    def on_stop(self) -> None:
        self._dispatcher.cancel_all()

    @on(Terminated)
    def worker_lost(self, signal: Terminated) -> None:
        """Close the open calls of an agent whose actor died of a bug, and of a service whose actor ended, as
        interrupted; a new actor makes them again from what is recorded."""
        if self._dispatcher.handlers.knows(signal.ref):
            self._advance(self._handlers.lost(signal.ref, signal.error, self._now()))
            self._continue_cancel()
            if not self._outbox:
                self._maybe_rest()  # a pause waits for the ends of handlers
            return
        for failure in self._dispatcher.service_ended(signal.ref):
            self.tool_failed(failure)
        key = self._dispatcher.remove_worker(signal.ref)
        activation = None if key is None else self._state.open.get(key)
        if activation is not None:
            reason = known_secrets.hide(f"the agent's actor died: {signal.error!r}")
            self._advance(engine.activation_lost(self._state, activation, reason, self._now()))

    @on(Restarted)
    def service_restarted(self, signal: Restarted) -> None:
        self._dispatcher.check_calls(signal.ref)

    @on(CallsMissing)
    def calls_missing(self, message: CallsMissing) -> None:
        for failure in self._dispatcher.lost(message.call_ids):
            self.tool_failed(failure)

    # -- answers from outside -------------------------------------------------------------------

    @on(ModelCallSuccess)
    def model_answered(self, message: ModelCallSuccess) -> None:
        reply = message.reply
        decisions = engine.model_completed(
            self._state,
            message.call_id,
            message=reply.message,
            finish_reason=reply.provider_finish_reason or reply.finish_reason,
            response_model=reply.response_model,
            response_id=reply.response_id,
            usage=reply.usage,
            duration_ms=message.duration_ms,
            first_token_ms=reply.first_token_ms,
        )
        new = [text for text in reply.warnings if text not in self._warned] if decisions else []
        self._warned.update(new)
        self._advance([*model_warnings(new), *decisions])

    @on(ModelCallFailure)
    def model_failed(self, message: ModelCallFailure) -> None:
        self._advance(
            engine.model_failed(
                self._state,
                message.call_id,
                message.error,
                retry_after=message.retry_after,
                duration_ms=message.duration_ms,
                now=self._now(),
                draw=self._clock.draw(),
                partial=message.partial,
                usage=message.usage,
                uncharged=message.uncharged,
            )
        )
        self._continue_stop()

    @on(ToolCallSuccess)
    def tool_answered(self, message: ToolCallSuccess) -> None:
        self._dispatcher.call_ended(message.call_id)
        self._advance(
            engine.tool_completed(self._state, message.call_id, message.output, message.duration_ms)
        )
        self._continue_stop()

    @on(ToolCallFailure)
    def tool_failed(self, message: ToolCallFailure) -> None:
        self._dispatcher.call_ended(message.call_id)
        self._advance(
            engine.tool_failed(
                self._state,
                message.call_id,
                message.error,
                executed=message.executed,
                unknown=message.unknown,
                duration_ms=message.duration_ms,
                now=self._now(),
                draw=self._clock.draw(),
            )
        )
        self._continue_stop()

    # -- handlers of executors ------------------------------------------------------------------

    @on(BeginHandler)
    def begin_handler(self, message: BeginHandler) -> None:
        if self._suspending is None and self._state.status != "paused":
            self._dispatcher.execute(engine.StartHandler(message.activation, message.attempt))

    @on(HandlerDone)
    def handler_done(self, message: HandlerDone) -> None:
        if (node := self._handlers.outdated(message)) is not None:

            def found(version: int, messages: tuple[engine.Outgoing, ...]) -> None:
                self.handler_done(msgspec.structs.replace(message, messages=messages, judged_at=version))

            self._edges.ask(node, message.messages, found)
            return
        self._advance(self._handlers.done(message, self._now()))
        self._continue_stop()

    @on(HandlerFailed)
    def handler_failed(self, message: HandlerFailed) -> None:
        self._advance(self._handlers.failed(message, self._now()))
        self._continue_stop()

    @on(YieldOutput)
    def yield_output(self, message: YieldOutput) -> None:
        self._answer_when_durable(self._handlers.output(message))

    @on(AddEvent)
    def add_event(self, message: AddEvent) -> None:
        self._answer_when_durable(self._handlers.event(message))

    @on(BeginCall)
    def begin_call(self, message: BeginCall) -> None:
        begun = self._handlers.begin_call(message)

        def verdict() -> CallVerdict:
            trace = self._tracer.call(begun.call_id)
            return CallVerdict(begun.verdict, begun.call_id, begun.idempotency_key, begun.output, trace)

        self._answer_when_durable(begun.decisions, verdict)

    @on(EndCall)
    def end_call(self, message: EndCall) -> None:
        self._answer_when_durable(self._handlers.end_call(message))
        self._continue_stop()

    @on(BeginModelCall)
    def begin_model_call(self, message: BeginModelCall) -> None:
        """Answer a ModelVerdict; a call that has to wait for open ones is asked about again when one ends."""
        self._model_calls.append((message, self.ctx.defer()))
        self._admit_model_calls()

    def _admit_model_calls(self) -> None:
        waiting, self._model_calls = self._model_calls, []
        for message, reply in waiting:
            begun = self._handlers.begin_model_call(message)
            if begun.verdict == "wait":
                self._model_calls.append((message, reply))
                continue
            verdict = ModelVerdict(
                begun.verdict, begun.call_id, begun.output, begun.error, self._state.next_offset
            )
            if not begun.decisions:
                reply.set(verdict)
                continue
            self._replies.append((self._state.next_offset, partial(_answer, reply, verdict)))
            self._advance(begun.decisions)

    @on(EndModelCall)
    def end_model_call(self, message: EndModelCall) -> None:
        self._answer_when_durable(self._handlers.end_model_call(message))
        self._continue_stop()

    def _answer_when_durable(self, decisions: Decisions, value: Callable[[], Any] = lambda: None) -> None:
        """Answer a handler when what it asked for is in the log; at once if there is nothing to write."""
        reply = self.ctx.defer()
        if decisions:
            self._replies.append((self._state.next_offset, lambda _: reply.set(value())))
            self._advance(decisions)
        else:
            reply.set(value())

    # -- commands -------------------------------------------------------------------------------

    @on(Command)
    def receive_command(self, command: Command) -> None:
        """Reply Done once the change is durable, or Refusal. While the store is unavailable the command waits
        for up to 10 s."""
        settle = self.ctx.defer().set
        if isinstance(command, ReportChild):

            def judged(report: engine.ChildReport) -> None:
                self._take_command(msgspec.structs.replace(command, report=report), settle)

            self._edges.judge_report(command.report, judged)
        else:
            self._take_command(command, settle)

    def _take_command(self, command: Command, settle: Settle) -> None:
        if self._suspending is not None:
            settle(Refusal(code="draining", message="the Runtime is being closed; nothing changed"))
        elif self._outbox.stalled:
            self._waiting_commands.append((self._monotonic() + _COMMAND_WAIT_US, command, settle))
        else:
            self._apply_command(command, settle)

    def _apply_command(self, command: Command, settle: Settle) -> None:
        state, now = self._state, self._now()
        try:
            if isinstance(command, Cancel):
                check_offset(state, command)
                decisions = self._decide_cancel(command)
            else:
                decisions = decide_command(state, command, now)
        except engine.commands.Refused as refused:
            settle(Refusal(code=refused.code, message=refused.message, details=refused.details))
            return
        if not decisions:
            settle(Done(offset=state.next_offset - 1, changed=False))
            return
        resumes = any(isinstance(move, ev.WorkflowResumed) for move in decisions)
        if self._children is not None and isinstance(command, ReportChild):
            self._children.reported(command.report)
        if resumes and self._children is not None:
            self._children.start_all()
        if resumes and state.status == "paused" and not self._dispatcher.is_busy:
            # Calls that were open when the run was suspended have no worker any more.
            decisions += self._interrupted(now)
        if resumes:
            self._effects += engine.open_handlers(state)
        if any(isinstance(move, ev.PlanRejected) for move in decisions):
            cancel = Cancel(reason="plan_rejected", by=command.by)
            decisions += self._decide_cancel(cancel, behind=len(decisions))
        self._launch.reopen()
        self._replies.append((state.next_offset, settle))
        self._advance(decisions)

    def _decide_cancel(self, command: Cancel, behind: int = 0) -> Decisions:
        """Return the request to cancel; work stops once it is durable. A second one can only make it hard.

        `behind`: how many events of the same append stand before it.
        """
        state = self._state
        if state.terminal:
            raise engine.commands.Refused("run_terminal", f"{state.workflow_id} has ended ({state.status})")
        if state.cancel_requested is not None:
            if command.mode == "hard" and self._cancel is None:
                self._finish_cancel(forced=True)
            elif command.mode == "hard":
                self._cancel = command
            return []
        self._cancel, self._cancel_from = command, state.next_offset + behind
        return [
            ev.WorkflowCancelRequested(
                mode=command.mode,
                grace_ms=round(command.grace * 1000),
                reason=command.reason,
                by=command.by,
            )
        ]

    def _execute_cancel(self, cancel: Cancel) -> None:
        """Stop the work, because the request is durable. Tool calls at work get the grace to complete."""
        self._cancel = None
        if self._cancel_children(cancel.mode, cancel.grace):
            self._dispatcher.cancel_all(but={c.activation.key for c in self._state.calls.values()})
            self.ctx.timers.start("grace", cancel.grace, WorkStopped())
            return
        busy = [c for c in self._state.calls.values() if c.kind == "tool"]
        if cancel.mode == "hard" or not busy or not self._dispatcher.is_busy or cancel.grace <= 0:
            self._finish_cancel(forced=cancel.mode == "hard")
            return
        keep = {call.activation.key for call in busy}
        self._dispatcher.cancel_all(but=keep)
        self.ctx.timers.start("grace", cancel.grace, WorkStopped())

    def _cancel_children(self, mode: Literal["soft", "hard"], grace: float) -> bool:
        """Cancel the child runs; return whether there is one to wait for."""
        if self._children is None:
            return False
        request = self._state.cancel_requested
        reason = None if request is None else request.reason
        return self._children.cancel_all(Cancel(mode=mode, grace=grace, reason=reason, by="parent"))

    @on(ChildGone)
    def child_gone(self, message: ChildGone) -> None:
        if self._children is None:
            return
        self._children.gone(message.workflow_id)
        self._continue_stop()
        if not self._outbox:
            self._maybe_rest()

    def _finish_cancel(self, *, forced: bool) -> None:
        self.ctx.timers.cancel("grace")
        self._dispatcher.cancel_all()
        self._forced = forced
        if not self._dispatcher.handlers.is_ending:
            self._advance(engine.cancel_finished(self._state, self._now(), forced=forced))
        elif not self._waits_for_handlers:
            self._waits_for_handlers = True
            self.ctx.timers.start("handlers", HANDLERS_END_S, HandlersStopped())

    def _continue_cancel(self) -> None:
        """Finish cancelling once the last cancelled handler has ended."""
        if self._waits_for_handlers and not self._dispatcher.handlers.is_ending:
            self.handlers_stopped(HandlersStopped())

    @on(HandlersStopped)
    def handlers_stopped(self, message: HandlersStopped) -> None:
        """End the cancelled run: its handlers have ended, or have had their time."""
        self.ctx.timers.cancel("handlers")
        if self._waits_for_handlers:
            self._waits_for_handlers = False
            self._advance(engine.cancel_finished(self._state, self._now(), forced=self._forced))

    # -- time -----------------------------------------------------------------------------------

    def _arm_wake_timer(self, now: int) -> None:
        """Set the timer of the next deadline ahead.

        `decide` has just seen all that have passed: one that is left moves nothing now (the run has ended, is
        paused or is being cancelled), so that waking up for it again would only spin.
        """
        state = self._state
        if not state.timers or state.terminal or self._launch.queued:
            return
        due = engine.next_due(state, now)
        if due is not None and due != self._armed_for:
            self._armed_for = due
            self.ctx.timers.start("wake", (due - now) / 1e6, Wake())

    @on(Wake)
    def woken(self, message: Wake) -> None:
        self._armed_for = None
        if not self._resume_when_due():
            self._advance([])

    def _resume_when_due(self) -> bool:
        """Resume the run if its quota pause is over; return whether it was."""
        if self._launch.queued or not engine.resume_is_due(self._state, self._now()):
            return False
        self._apply_command(Resume(by="runtime", reason="quota"), lambda answer: None)
        return True

    # -- parking --------------------------------------------------------------------------------

    @on(Suspend)
    def suspend(self, message: Suspend) -> None:
        if self._children is not None:
            self._children.leave()
        if self._state.terminal and not self._outbox:
            self._maybe_rest()
        if self._state.terminal or self._suspending is not None:
            return
        self._suspending = message
        self.ctx.timers.start("grace", message.grace, WorkStopped())
        self._continue_stop()

    def _continue_stop(self) -> None:
        """Finish suspending or cancelling once no tool call is open."""
        state = self._state
        if self._suspending is None and state.cancel_requested is None:
            return
        if any(c.kind == "tool" for c in state.calls.values()) or state.terminal:
            return
        if self._suspending is None and self._children is not None and self._children.are_leaving:
            return
        if self._suspending is not None:
            self.work_stopped(WorkStopped())
        elif state.cancel_requested is not None and self._cancel is None:
            self._finish_cancel(forced=False)

    @on(WorkStopped)
    def work_stopped(self, message: WorkStopped) -> None:
        """Record where the run stopped: no call is worth waiting for, or the grace is over."""
        self.ctx.timers.cancel("grace")
        state = self._state
        if state.terminal:
            return  # the end is on its way to the log
        if state.cancel_requested is not None:
            if self._children is not None and self._children.are_leaving:
                self._dispatcher.cancel_all()  # the children have the same grace, and are waited for
            elif self._cancel is None:
                self._finish_cancel(forced=False)
            return
        self._dispatcher.cancel_all()
        if self._suspending is None:
            return
        if state.status == "paused":
            if not self._outbox:
                self._rest()
        else:
            decisions = self._interrupted(self._now(), stopped=True)
            decisions.append(ev.WorkflowPaused(reason=self._suspending.reason, detail=None, by="local"))
            self._advance(decisions)


def _answer(reply: Reply[Any], value: Any, _: object) -> None:
    reply.set(value)
