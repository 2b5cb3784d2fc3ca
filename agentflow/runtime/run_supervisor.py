"""RunSupervisor: the actor that owns one run. It alone decides, and it decides by the engine.

Every answer from outside is folded, `decide` is asked until it has nothing more to say, and the whole
batch goes to the EventBus as one append. Calls begin only when the batch that opened them is durable.
When it dies it is restarted, folds the log and goes on: nothing that matters lives only here. A run that
only waits has no supervisor; the next command or deadline starts one.

| part | module |
|---|---|
| folds, decides, appends | run_stepper |
| asks outside what a decision needs | outside_lookups |
| executes effects of durable events | effect_launcher, call_dispatcher, supervised_children |
| applies commands | command_receiver, command_handlers |
| answers handlers of executors | handler_replies, handler_messages |
| stops for a cancel or the end of the Runtime | run_stop |
| retries appends, finds lost acknowledgements | commit_watch, run_outbox |
| serves a replay from its record | recorded_answers |
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from functools import cached_property

import msgspec

from actors import Actor, OneForOne, Restarted, Terminated, on
from agentflow import engine, known_secrets
from agentflow.aside import compute_aside
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.decisions import Decisions
from agentflow.errors import LogCorrupt, RunExists, RunNotFound
from agentflow.events import catalogue as ev
from agentflow.events.log import EventLog
from agentflow.runtime.call_dispatcher import CallDispatcher
from agentflow.runtime.clock import Clock
from agentflow.runtime.command_messages import Attach, Cancel, Command, Pause, ReportChild, Resume
from agentflow.runtime.command_receiver import CommandReceiver
from agentflow.runtime.commit_watch import CommitWatch
from agentflow.runtime.edge_judge import EdgesJudged
from agentflow.runtime.effect_launcher import EffectLauncher
from agentflow.runtime.event_bus import Barrier, CommitFailed, Committed
from agentflow.runtime.handler_calls import (
    AddEvent,
    BeginCall,
    EndCall,
    HandlerDone,
    HandlerFailed,
    YieldOutput,
)
from agentflow.runtime.handler_dispatcher import BeginHandler
from agentflow.runtime.handler_messages import HandlerMessages
from agentflow.runtime.handler_models import BeginModelCall, EndModelCall
from agentflow.runtime.handler_replies import HandlerReplies
from agentflow.runtime.log_replay import LONG_BASE, Fold, fold
from agentflow.runtime.messages import HANDLER_LIMIT_S
from agentflow.runtime.model_calls import ModelCallFailure, ModelCallSuccess, model_warnings
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.run_launch import RunLaunch
from agentflow.runtime.run_stepper import RunStepper
from agentflow.runtime.run_stop import RunStop
from agentflow.runtime.shared_store import SharedStore
from agentflow.runtime.supervised_children import SupervisedChildren
from agentflow.runtime.supervisor_messages import (
    Answered,
    AskAgain,
    CallNotMade,
    CheckAcknowledged,
    ChildGone,
    HandlersStopped,
    LogEnd,
    LookedUp,
    SendAgain,
    Suspend,
    Wake,
    WorkStopped,
)
from agentflow.runtime.tool_actor import CallsMissing, RecordCall, ToolCallFailure, ToolCallSuccess

__all__ = ["RunSupervisor"]


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
        self._store = store
        self._warned: dict[str, None] = {}  # of the adapters' warnings, those that are recorded

    # -- beginning ------------------------------------------------------------------------------

    def on_start(self) -> Awaitable[None] | None:
        self._assemble()
        if not self._launch.is_new:
            return self._go_on() if self._is_folded else self._replay()
        if self._launch.first_batch_sent:
            return self._start_or_replay()
        if len(self._launch.base) > LONG_BASE:
            return self._start_long_fork()
        self._start_new()
        return None

    def _assemble(self) -> None:
        """Make the parts of this supervisor; none of them does anything yet."""
        launch, clock, directory = self._launch, self._clock, self._launch.directory
        run = RunStepper(self.ctx, launch, self._bus, self._log, clock, self._store)
        state, tracer = run.state, run.tracer
        self._run, self._state = run, state
        self._watch = run.watch = CommitWatch(run, self._bus, self._log, self.committed)
        self._dispatcher = CallDispatcher(self.ctx, state, directory, tracer, clock.now, self._parked)
        self._children: SupervisedChildren | None = None
        if launch.child_links is not None:
            self._children = SupervisedChildren(
                state, tracer, launch.child_links, self._child_left, self._serves_work
            )
        self._launcher = run.launcher = EffectLauncher(run, self._dispatcher, self._children)

    # Parts that few runs need are made when they are first needed.

    @cached_property
    def _handlers(self) -> HandlerMessages:
        return HandlerMessages(self._state, self._dispatcher.handlers, self._run.edges, self._clock)

    @cached_property
    def _replies(self) -> HandlerReplies:
        return HandlerReplies(self._run, self._handlers)

    @cached_property
    def _stop(self) -> RunStop:
        return RunStop(self._run, self._dispatcher, self._children, self._rest)

    @cached_property
    def _commands(self) -> CommandReceiver:
        return CommandReceiver(self._run, self._stop, self._watch, self._dispatcher, self._children)

    def _parked(self) -> Collection[str]:
        return self._replies.parked

    def _child_left(self, run_id: str) -> None:
        self.ctx.self.tell(ChildGone(workflow_id=run_id))

    def _serves_work(self, key: str) -> bool:
        recorded = self._run.recorded
        return recorded is not None and recorded.serves_work(key)

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
        events: list[ev.RunEvent] = []
        now = self._run.now()
        self._state.base = self._launch.base
        self._run.validate_trace(self._launch.first_events[0])
        try:
            self._run.record(self._launch.first_events, events, now)
        except engine.IllegalEvent as illegal:
            self._reject_base(illegal)
            return
        self._write_first(events, now)

    def _reject_base(self, illegal: engine.IllegalEvent) -> None:
        """Refuse a fork of a log that the engine could not have written; nothing of the fork is stored."""
        self._launch.reject(LogCorrupt(f"{self._launch.workflow_id} cannot begin with its base: {illegal}"))
        self.ctx.self.kill()

    async def _start_long_fork(self) -> None:
        """Do as `_start_new`, with the base folded in a thread: it would hold the loop for 10 µs an event."""
        events: list[ev.RunEvent] = []
        now = self._run.now()
        self._state.base = self._launch.base
        self._run.validate_trace(self._launch.first_events[0])
        try:
            await compute_aside(self._run.record, self._launch.first_events, events, now)
        except engine.IllegalEvent as illegal:
            self._reject_base(illegal)
            return
        self._write_first(events, now)

    def _write_first(self, events: list[ev.RunEvent], now: int) -> None:
        launch, run, state = self._launch, self._run, self._state
        if launch.base:
            run.effects.clear()
            run.record(engine.interrupted(state, now), events, now)
            run.effects += engine.open_handlers(state)
            if not launch.queued:
                run.effects += [engine.StartChild(key) for key in engine.open_children(state)]
        if not launch.queued:
            run.decide(events, now)
        launch.first_batch_sent = True
        run.commit(0, events, now)
        run.arm_wake_timer(now)

    async def _replay(self) -> None:
        """Rebuild the state from the log, close what was interrupted, and go on."""
        run, state, launch = self._run, self._state, self._launch
        # An earlier incarnation of this actor may have appends on the way to the disk.
        await self._bus.ask(Barrier(workflow_id=state.workflow_id), timeout=60)
        try:
            see = run.following(launch.timeline.following(state, run.tracer.take))
            see = see if run.recorded is None else run.recorded.following(see)
            await fold(self._log, state, see=see, page=launch.take_page())
        except RunNotFound as error:
            launch.reject(error)
            raise
        self._go_on()

    @property
    def _is_folded(self) -> bool:
        """True if the state is what the whole log of a run that had to queue gives. A fold is taken once: a
        supervisor that is restarted reads the log."""
        return self._launch.fold_is_whole and self._state.next_offset > 0

    def _go_on(self) -> None:
        """Apply the command, and go on with the state of the log."""
        run, state, launch = self._run, self._state, self._launch
        launch.timeline.taken_up(state, self._clock.now())
        if self._children is not None:
            self._children.find()
        if not launch.accepted.done():
            launch.accepted.set_result(None)
        command, now = launch.command, run.now()
        if not state.terminal and state.cancel_requested is None:
            self._continue_run(command, now)
            return
        if state.cancel_requested is not None and not state.terminal:
            self._stop.continue_requested(state.cancel_requested)
        if command is not None:
            self._commands.apply(command, launch.set_reply)
        if state.terminal and not run.outbox:
            self._rest()

    def _continue_run(self, command: Command | None, now: int) -> None:
        """Go on where the log ends. Neither a cancel nor a pause starts work first."""
        run, state, launch = self._run, self._state, self._launch
        begun = engine.open_handlers(state)  # of those that follow the start is not durable yet
        still = isinstance(command, Cancel | Pause) or state.status == "paused" or launch.queued
        if isinstance(command, Pause):  # no call is at work in this process
            command = msgspec.structs.replace(command, in_flight="suspend")
        elif not isinstance(command, Cancel):
            run.advance([*self._storage_notices(), *([] if still else run.interrupted(now))])
        for effect in [] if still else begun:
            self._launcher.start_handler(effect)
        if self._children is not None and isinstance(command, Attach | Resume) and not still:
            self._children.start_all()
        if command is not None:
            self._commands.apply(command, launch.set_reply)
        if launch.trial is not None:
            launch.trial.begin(state)
        self._commands.resume_when_due()
        self._rest_or_serve()

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

    # -- the log --------------------------------------------------------------------------------

    @on(Committed)
    def committed(self, message: Committed) -> None:
        """Execute the effects of what is durable now, and give the replies that waited for it."""
        run, launch = self._run, self._launch
        if not launch.accepted.done():
            launch.accepted.set_result(None)
        for batch in run.outbox.durable(message.offset):
            run.tracer.acknowledge(batch.commit.expected)
            if batch.effects:
                self._launcher.execute_all(batch.effects)
            for kept in batch.results:
                if self.ctx.parent is not None:  # this actor may have ended before it is kept
                    self.ctx.parent.tell(kept)
        if run.outside.accesses:
            run.outside.ask_store(message.offset)
        if run.replies:
            run.settle_replies(message.offset)
        if run.outbox.stalled:
            self._watch.recovered(self._commands.apply)
        if self._state.cancel_requested is not None and self._stop.execute_durable_cancel(message.offset):
            return
        if run.outbox.count:
            return
        self._watch.record_stall()
        if self._state.status != "running" or launch.queued or run.recorded is not None:
            self._rest_or_serve()

    @on(CommitFailed)
    def commit_failed(self, message: CommitFailed) -> None:
        self._watch.failed(message)

    @on(CheckAcknowledged)
    def check_acknowledged(self, message: CheckAcknowledged) -> None:
        self._watch.check(message)

    @on(LogEnd)
    def log_ends(self, message: LogEnd) -> None:
        self._watch.log_ends(message)

    @on(SendAgain)
    def send_again(self, message: SendAgain) -> None:
        self._watch.send_again()

    # -- rest -----------------------------------------------------------------------------------

    def _rest_or_serve(self) -> None:
        """Once all is durable, serve what a record says next, or stop if the run does not move by itself."""
        run = self._run
        if not run.outbox.count and (run.recorded is None or not run.recorded.serve_next()):
            self._maybe_rest()

    def _maybe_rest(self) -> None:
        state = self._state
        if state.status == "running" and not self._launch.queued:
            return
        if self._children is not None and self._children.are_leaving:
            return  # a run ends after its children
        if self._launch.queued and engine.resume_is_due(state, self._run.now()):
            self._queue()  # its pause is over
        elif state.status in ("completed", "failed", "cancelled", "waiting"):
            self._rest()
        elif state.status == "paused" and not self._dispatcher.is_busy:
            self._rest()  # a pause lets what is in flight finish
        elif self._launch.queued:
            self._queue()  # its log has begun

    def _queue(self) -> None:
        """Stop this actor: the run comes back when there is a place for it."""
        run = self._run
        if not run.outbox:
            self._launch.fold = Fold(self._state, run.tracer, self._state.next_offset)
        self.ctx.self.stop()

    def _rest(self) -> None:
        """Stop this actor: the run is terminal, paused or waits for input. Resolves `rested`; the next
        deadline is left in `alarm`, which RunsSupervisor watches."""
        launch, run, state = self._launch, self._run, self._state
        launch.timeline.end = state.next_offset
        if not state.terminal:
            resting = state.status in ("waiting", "paused")
            launch.alarm = engine.next_due(state, run.decided_at) if resting else None
            if not run.outbox:
                launch.fold = Fold(state, run.tracer, state.next_offset)
        if not launch.rested.done():
            launch.rested.set_result(state)
        if (handlers := self._dispatcher.used_handlers) is not None:
            handlers.release_all()  # one that waits for a larger budget would not end by itself
        self.ctx.self.stop()

    def on_stop(self) -> None:
        self._dispatcher.cancel_all()
        self._take_apart()

    def _take_apart(self) -> None:
        """Let the parts of this supervisor go, which know each other: the state of a run that has ended is
        freed at once, not when the garbage collector finds it."""
        self._run.take_apart()
        del self._watch, self._dispatcher, self._children, self._launcher
        for part in ("_handlers", "_replies", "_stop", "_commands"):
            self.__dict__.pop(part, None)

    @on(Suspend)
    def suspend(self, message: Suspend) -> None:
        if self._children is not None:
            self._children.leave()
        if self._state.terminal and not self._run.outbox:
            self._maybe_rest()
        self._stop.suspend(message)

    @on(WorkStopped)
    def work_stopped(self, message: WorkStopped) -> None:
        self._stop.work_stopped()

    @on(HandlersStopped)
    def handlers_stopped(self, message: HandlersStopped) -> None:
        self._stop.handlers_stopped()

    @on(ChildGone)
    def child_gone(self, message: ChildGone) -> None:
        if self._children is None:
            return
        self._children.gone(message.workflow_id)
        self._stop.call_ended()
        if not self._run.outbox:
            self._maybe_rest()

    # -- commands and time ----------------------------------------------------------------------

    @on(Command)
    def receive_command(self, command: Command) -> None:
        """Reply Done once the change is durable, or Refusal. While the store is unavailable the command waits
        for up to 10 s."""
        settle = self.ctx.defer().set
        if isinstance(command, ReportChild):

            def judged(report: engine.ChildReport) -> None:
                self._commands.receive(msgspec.structs.replace(command, report=report), settle)

            self._run.edges.judge_report(command.report, judged)
        else:
            self._commands.receive(command, settle)

    @on(Wake)
    def woken(self, message: Wake) -> None:
        self._run.woken()
        if not self._commands.resume_when_due():
            self._run.advance([])

    # -- answers from outside -------------------------------------------------------------------

    @on(EdgesJudged)
    def edges_judged(self, message: EdgesJudged) -> None:
        self._run.edges.answered(message)

    @on(LookedUp)
    def looked_up(self, message: LookedUp) -> None:
        self._run.outside.found[message.activation_key] = message.hit
        self._run.advance([])

    @on(Answered)
    def answered(self, message: Answered) -> None:
        self._run.outside.answered(message)

    @on(AskAgain)
    def ask_again(self, message: AskAgain) -> None:
        self._run.outside.found.pop(message.answer_key, None)
        self._run.advance([])

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
        self._warned.update(dict.fromkeys(new))
        self._run.advance([*model_warnings(new), *decisions] if new else decisions, in_turn=True)
        self._take_receipt()

    @on(ModelCallFailure)
    def model_failed(self, message: ModelCallFailure) -> None:
        self._run.advance(
            engine.model_failed(
                self._state,
                message.call_id,
                message.error,
                retry_after=message.retry_after,
                duration_ms=message.duration_ms,
                now=self._run.now(),
                draw=self._clock.draw(),
                partial=message.partial,
                usage=message.usage,
                uncharged=message.uncharged,
            )
        )
        self._stop.call_ended()

    @on(ToolCallSuccess)
    def tool_answered(self, message: ToolCallSuccess) -> None:
        self._dispatcher.call_ended(message.call_id)
        self._run.complete_call(message.call_id, message.output, message.duration_ms, message.usage)
        self._work_ended()

    def _work_ended(self) -> None:
        """Go on behind the end of a call or a handler, for which a stop of the run may wait."""
        if self._run.suspending is not None or self._state.cancel_requested is not None:
            self._stop.call_ended()
        self._take_receipt()

    def _take_receipt(self) -> None:
        """Go on behind batches that were sent in turn, if they are durable already."""
        committed = self._run.outbox.take_receipt()
        if committed is not None:
            self.committed(committed)

    @on(CallNotMade)
    def call_not_made(self, message: CallNotMade) -> None:
        self._dispatcher.not_made(message.call_id)
        self._stop.call_ended()

    @on(ToolCallFailure)
    def tool_failed(self, message: ToolCallFailure) -> None:
        self._dispatcher.call_ended(message.call_id)
        self._run.advance(
            engine.tool_failed(
                self._state,
                message.call_id,
                message.error,
                executed=message.executed,
                unknown=message.unknown,
                duration_ms=message.duration_ms,
                now=self._run.now(),
                draw=self._clock.draw(),
                usage=message.usage,
            )
        )
        self._stop.call_ended()

    @on(RecordCall)
    def record_call(self, message: RecordCall) -> None:
        """Record a call of a delegate; reply with the id of the record, None if the task is over."""
        recorded = engine.call_reported(self._state, message.call_id, message.report, self._run.now())
        self._replies.when_durable(recorded, lambda: recorded[0].tool_call_id if recorded else None)
        self._take_receipt()

    # -- handlers of executors ------------------------------------------------------------------

    @on(BeginHandler)
    def begin_handler(self, message: BeginHandler) -> None:
        if self._run.suspending is None and self._state.status != "paused":
            self._dispatcher.execute(engine.StartHandler(message.activation, message.attempt))

    @on(HandlerDone)
    def handler_done(self, message: HandlerDone) -> None:
        if (node := self._handlers.outdated(message)) is not None:

            def found(version: int, messages: tuple[engine.Outgoing, ...]) -> None:
                self.handler_done(msgspec.structs.replace(message, messages=messages, judged_at=version))

            self._run.edges.ask(node, message.messages, found)
            return
        handlers, run = self._dispatcher.handlers, self._run
        handlers.ended(message.activation, message.attempt)
        now = run.now()
        if run.complete_handler(message, now):
            handlers.forget(message.activation)
        else:
            run.advance(self._handlers.done(message, now), now, in_turn=True)
        self._work_ended()

    @on(HandlerFailed)
    def handler_failed(self, message: HandlerFailed) -> None:
        self._run.advance(self._handlers.failed(message, self._run.now()), in_turn=True)
        self._work_ended()

    @on(YieldOutput)
    def yield_output(self, message: YieldOutput) -> None:
        self._replies.when_durable(self._handlers.output(message))
        self._take_receipt()

    @on(AddEvent)
    def add_event(self, message: AddEvent) -> None:
        self._replies.when_durable(self._handlers.event(message))
        self._take_receipt()

    @on(BeginCall, BeginModelCall)
    def begin_call(self, message: BeginCall | BeginModelCall) -> None:
        self._replies.begin(message)
        if self._state.status == "paused":
            self._rest_or_serve()  # a pause waits for no handler that waits for a larger budget

    @on(EndCall)
    def end_call(self, message: EndCall) -> None:
        self._replies.when_durable(self._handlers.end_call(message))
        self._work_ended()

    @on(EndModelCall)
    def end_model_call(self, message: EndModelCall) -> None:
        self._replies.when_durable(self._handlers.end_model_call(message))
        self._work_ended()

    # -- work that was lost ---------------------------------------------------------------------

    @on(Terminated)
    def worker_lost(self, signal: Terminated) -> None:
        """Close the open calls of an agent whose actor died of a bug, and of a service whose actor ended, as
        interrupted; a new actor makes them again from what is recorded.

        What ends without an error while the system ends, as by a KeyboardInterrupt in a handler, has not
        failed: the log keeps its work open, and the run is parked.
        """
        is_closing = signal.error is None and self.ctx.system.ending
        handlers = self._dispatcher.used_handlers
        if handlers is not None and handlers.knows(signal.ref):
            lost = self._handlers.lost(signal.ref, signal.error, self._run.now(), is_closing=is_closing)
            self._run.advance(lost)
            self._stop.handler_ended()
            if not self._run.outbox:
                self._maybe_rest()  # a pause waits for the ends of handlers
            return
        for failure in self._dispatcher.service_ended(signal.ref):
            self.tool_failed(failure)
        key = self._dispatcher.remove_worker(signal.ref)
        activation = None if key is None else self._state.open.get(key)
        if activation is not None:
            reason = known_secrets.hide(f"the agent's actor died: {signal.error!r}")
            self._run.advance(engine.activation_lost(self._state, activation, reason, self._run.now()))

    @on(Restarted)
    def service_restarted(self, signal: Restarted) -> None:
        self._dispatcher.check_calls(signal.ref)

    @on(CallsMissing)
    def calls_missing(self, message: CallsMissing) -> None:
        for failure in self._dispatcher.lost(message.call_ids):
            self.tool_failed(failure)
