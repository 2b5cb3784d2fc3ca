"""RunStepper: folds what happened to a run, decides what follows, and appends it all as one batch.

The only part of a RunSupervisor that changes the state of its run, and always by `evolve`. Nothing here
executes an effect: those wait in the outbox with their batch. Used by that actor alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from actors import Context
from agentflow import engine
from agentflow.definition.conversation import Usage
from agentflow.engine.decisions import Decisions
from agentflow.engine.effect_replay import Replayer
from agentflow.engine.effects import EFFECTFUL
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.tracing import RunTracer
from agentflow.runtime.clock import Clock, monotonic_of
from agentflow.runtime.command_messages import Done, Refusal
from agentflow.runtime.edge_judge import EdgeJudge
from agentflow.runtime.event_bus import Commit
from agentflow.runtime.log_replay import Fold
from agentflow.runtime.outside_lookups import OutsideLookups
from agentflow.runtime.recorded_answers import RecordedAnswers
from agentflow.runtime.run_launch import RunLaunch
from agentflow.runtime.run_outbox import Batch, RunOutbox
from agentflow.runtime.supervisor_messages import Suspend, Wake

if TYPE_CHECKING:
    from agentflow.events.log import EventLog
    from agentflow.runtime.commit_watch import CommitWatch
    from agentflow.runtime.effect_launcher import EffectLauncher
    from agentflow.runtime.handler_calls import HandlerDone
    from agentflow.runtime.permanent_actor import PermanentActor
    from agentflow.runtime.result_cache import KeepResult
    from agentflow.runtime.shared_store import SharedStore
    from agentflow.runtime.trace_validation import TraceValidation

__all__ = ["RunStepper", "Settle"]

Settle = Callable[[Done | Refusal], object]

_QUESTIONS = frozenset({engine.Lookup, engine.Probe, engine.BindGraph, engine.StoreAccess, engine.Judgement})


class RunStepper:
    """State of one run, and the batches of it that are on their way to the log."""

    __slots__ = (
        "_armed_for",
        "_edges",
        "_results",
        "after_advance",
        "clock",
        "ctx",
        "decided_at",
        "effects",
        "launch",
        "launcher",
        "monotonic",
        "outbox",
        "outside",
        "recorded",
        "replies",
        "state",
        "suspending",
        "tracer",
        "validation",
        "watch",
    )

    def __init__(
        self,
        ctx: Context,
        launch: RunLaunch,
        bus: PermanentActor,
        log: EventLog,
        clock: Clock,
        store: SharedStore | None,
    ) -> None:
        self.ctx = ctx
        self.launch = launch
        self.clock = clock
        self.monotonic = monotonic_of(clock)
        run_id, replay = launch.workflow_id, launch.replay
        fold = launch.take_fold()
        if fold is None or replay is not None or is_validated(fold.state.begin):  # all events must be seen
            fold = Fold(RunState(run_id, launch.plan, launch.bindings), RunTracer(run_id), 0)
        self.state, self.tracer = fold.state, fold.tracer
        self.outbox = RunOutbox(bus)
        self.outside = OutsideLookups(self, log, store)
        self.recorded: RecordedAnswers | None = None
        """Of a run that is a replay of another one."""
        if replay is not None:
            replayer = Replayer(replay.recording, replay.policy, launch.plan, run_id)
            self.recorded = RecordedAnswers(self, replayer)
        self.validation: TraceValidation | None = None
        """Of a run whose trace is checked at its end."""
        self._edges: EdgeJudge | None = None
        self.watch: CommitWatch
        self.launcher: EffectLauncher
        """Begins calls, some before their batch is durable. These two are set by the supervisor."""
        self.effects: list[engine.Effect] = []
        """Of the events that are not on their way to the log yet."""
        self.suspending: Suspend | None = None
        """Set while the run is being parked: nothing is decided any more."""
        self.decided_at = -1
        """The time at which `decide` last had nothing more to say (µs)."""
        self.after_advance: Callable[[], None] | None = None
        """Called at the end of each `advance`, while something waits for a change of the state."""
        self._armed_for: int | None = None
        self.replies: list[tuple[int, Settle]] = []
        self._results: list[KeepResult] = []

    def take_apart(self) -> None:
        """Let go of what knows this stepper; called when its supervisor has stopped."""
        self.after_advance = self.recorded = self.validation = self._edges = None
        del self.launcher, self.watch, self.outside
        if self.state.terminal:
            self.state.forget_iterations()

    @property
    def edges(self) -> EdgeJudge:
        """Evaluates the code of users on edges."""
        if self._edges is None:
            self._edges = EdgeJudge(self.ctx, self.state, self.launch.directory.code)
        return self._edges

    def validate_trace(self, begin: ev.WorkflowStarted) -> None:
        """Check the trace of the run at its end if its options say so; called with its first event."""
        if is_validated(begin):
            from agentflow.runtime.trace_validation import TraceValidation

            self.validation = TraceValidation(self.state)

    def following(self, see: Callable[[Any], object]) -> Callable[[Any], object]:
        """Return `see` for a fold of the log, which the validation of its trace follows too."""

        def following(data: Any) -> None:
            see(data)
            if data.__class__ is ev.WorkflowStarted:
                self.validate_trace(data)
            if self.validation is not None:
                self.validation.take(data, self.state.next_offset - 1, self.state.last_ts)

        return following

    def now(self) -> int:
        """Return the wall time, with the state moved by the step that the clock may have made."""
        now = self.clock.now()
        self.launch.timeline.move(self.state, now, self.monotonic)
        if self.recorded is not None:
            self.recorded.replayer.align(self.state, now)
        return now

    def advance(self, decisions: Decisions, decided_at: int | None = None, *, in_turn: bool = False) -> None:
        """Apply what happened and what follows from it, and append it all as one batch. `decided_at` is the
        time of the decisions, if it was just looked at. `in_turn`: an idle bus takes the batch before this
        returns; the caller then looks for the receipt."""
        now = self.now() if decided_at is None else decided_at
        first = self.state.next_offset
        events: list[ev.RunEvent] = []
        self.record(decisions, events, now)
        self.decide(events, now)
        self._append(first, events, now, in_turn=in_turn)

    def complete_call(
        self, call_id: str, output: Any, duration_ms: int, usage: Usage | UnsetType = UNSET
    ) -> None:
        """Apply the result of a call, and append it with what follows from it as one batch."""
        now, first = self.now(), self.state.next_offset
        if usage is UNSET and self._is_plain():
            events = engine.complete_plain_call(self.state, call_id, output, duration_ms, now, self.effects)
            if events is not None:
                self._go_on(first, events, now)
                return
        draw = self.clock.draw()
        self.advance(
            engine.tool_completed(self.state, call_id, output, duration_ms, now=now, draw=draw, usage=usage),
            now,
            in_turn=True,
        )

    def complete_handler(self, done: HandlerDone, now: int) -> bool:
        """Apply the end of a plain handler, and append it with what follows from it as one batch; return
        False, with nothing changed, if it is not plain."""
        if done.requests or not self._is_plain():
            return False
        first = self.state.next_offset
        events = engine.complete_plain_handler(
            self.state,
            done.activation,
            done.attempt,
            done.messages,
            done.private,
            done.shared,
            now,
            self.effects,
        )
        if events is None:
            return False
        self._go_on(first, events, now)
        return True

    def _is_plain(self) -> bool:
        """Return whether what follows from an event is in no way recorded, looked up, kept or held back."""
        outside, launch = self.outside, self.launch
        return not (
            self.recorded
            or self.suspending is not None
            or self.validation is not None
            or outside.found
            or outside.keeps_results
            or launch.queued
            or launch.trial
        )

    def _go_on(self, first: int, events: list[ev.RunEvent], now: int) -> None:
        """Decide what follows from plain events, if anything does, and append it all in this turn."""
        if engine.has_more(self.state):
            self.decide(events, now)
        self.decided_at = now
        self._append(first, events, now, in_turn=True)

    def _append(self, first: int, events: list[ev.RunEvent], now: int, *, in_turn: bool = False) -> None:
        """Send a batch to the log, if there is any, and see to what may go on."""
        if events:
            self.commit(first, events, now, in_turn=in_turn)
        if self.outside.accesses and not self.outbox.count:
            self.outside.ask_store(self.state.next_offset)
        if self.state.timers:
            self.arm_wake_timer(now)
        if self.recorded is not None and not self.outbox:
            self.recorded.serve_next()
        if self.after_advance is not None:
            self.after_advance()

    def decide(self, events: list[ev.RunEvent], now: int) -> None:
        """Add to `events` what follows from the state, until nothing more does."""
        if self.suspending is not None:
            return
        state, outside = self.state, self.outside
        # Without a place nothing begins, but what is too late is.
        if self.launch.queued:
            while decided := engine.expire(state, now):
                self.record(decided, events, now)
        else:
            while decided := engine.decide(state, now, outside.found):
                if decided[0].__class__ in _QUESTIONS:
                    outside.ask(decided[0])
                else:
                    self.record(decided, events, now)
                    outside.forget_judgements()
        self.decided_at = now

    def record(self, decisions: Decisions, events: list[ev.RunEvent], now: int) -> None:
        """Fold these decisions and add them to `events`; their effects wait for the commit."""
        state, outside = self.state, self.outside
        evolve, effect_of = engine.evolve, engine.effect_of
        replayer = None if self.recorded is None else self.recorded.replayer
        if replayer is None and self.validation is None and not (outside.keeps_results or outside.found):
            effects = self.effects
            for data in decisions:
                evolve(state, data, state.next_offset, now)
                if data.__class__ in EFFECTFUL and (effect := effect_of(data)) is not None:
                    effects.append(effect)
            events += decisions
            return
        for data in decisions:
            if data.__class__ is ev.ApprovalRequested:
                outside.found.pop(data.activation, None)  # looked at again when it starts
            if outside.keeps_results and data.__class__ is ev.WorkflowStepCompleted:
                kept = outside.result_to_keep(data)
                if kept is not None:
                    self._results.append(kept)
            if replayer is not None:
                data = replayer.mark(state, data)
                replayer.take(data, state.next_offset, now)
            if self.validation is not None:
                problem = self.validation.judge(data, state.next_offset, now)
                if problem is not None:
                    evolve(state, problem, state.next_offset, now)
                    events.append(problem)
            evolve(state, data, state.next_offset, now)
            if replayer is not None:
                replayer.credit(state, data)
            if data.__class__ in EFFECTFUL and (effect := effect_of(data)) is not None:
                self.effects.append(effect)
            events.append(data)

    def commit(self, first: int, events: list[ev.RunEvent], now: int, *, in_turn: bool = False) -> None:
        """Send a batch that begins at offset `first` to the log, with the effects gathered so far."""
        state, launch = self.state, self.launch
        effects, self.effects = self.effects, []
        # Before the first batch nothing of the run is durable.
        early = self.launcher.take_early(effects) if first else None
        commit = Commit(
            workflow_id=state.workflow_id,
            epoch=launch.epoch,
            expected=first,
            ts=now,
            events=tuple(events),
            tracer=self.tracer,
            state=state.status,
            lazy=bool(early) and not (effects or self.replies or self.outside.accesses),
            receipt=self.outbox.receipt if in_turn else None,
        )
        started = launch.started if first == 0 else None
        if started is not None:
            commit = msgspec.structs.replace(
                commit, name=state.name, definition_hash=started.definition.hash, labels=launch.labels
            )
        results, self._results = self._results, []
        batch = Batch(commit, effects, results)
        if in_turn:
            self.outbox.put_in_turn(batch)
        else:
            self.outbox.put(batch)
        self.watch.batch_sent()
        if early:
            self.launcher.launch(early)

    def interrupted(self, now: int, *, stopped: bool = False) -> Decisions:
        """Return the ends of the calls that no process makes any more."""
        closed = engine.interrupted(self.state, now, stopped=stopped)
        return closed if self.recorded is None else self.recorded.without_served(closed)

    # -- what waits for the log -------------------------------------------------------------------

    def reply_when_durable(self, settle: Settle) -> None:
        """Settle with Done once the event that is decided next is durable."""
        self.replies.append((self.state.next_offset, settle))

    def settle_replies(self, offset: int) -> None:
        """Give the replies that waited for the events up to `offset`."""
        while self.replies and self.replies[0][0] <= offset:
            at, settle = self.replies.pop(0)
            settle(Done(offset=at, changed=True))

    # -- time -------------------------------------------------------------------------------------

    def arm_wake_timer(self, now: int) -> None:
        """Set the timer of the next deadline ahead.

        `decide` has just seen all that have passed: one that is left moves nothing now (the run has ended, is
        paused or is being cancelled), so that waking up for it again would only spin.
        """
        state = self.state
        if not state.timers or state.terminal or self.launch.queued:
            return
        due = engine.next_due(state, now)
        if due is not None and due != self._armed_for:
            self._armed_for = due
            self.ctx.timers.start("wake", (due - now) / 1e6, Wake())

    def woken(self) -> None:
        """Note that the timer of the next deadline has fired."""
        self._armed_for = None


def is_validated(begin: ev.WorkflowStarted | None) -> bool:
    """Return whether the options of a run have its trace checked at its end."""
    return begin is not None and "replay_mode" in begin.options
