"""RunSupervisor: the actor that owns one run. It alone decides, and it decides by the engine.

Every answer from outside is folded, `decide` is asked until it has nothing more to say, and the whole
batch goes to the EventBus as one append. Calls begin only when the batch that opened them is durable.
When it dies it is restarted, folds the log and goes on: nothing that matters lives only here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Any

from actors import Actor, ChildSpec, OneForOne, Ref, Reply, Terminated, on, tracing
from agentflow import engine
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.moves import Moves
from agentflow.engine.state import OpenCall, RunState, Unit
from agentflow.errors import Fenced, OffsetConflict, RunNotFound, StoreError
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Draft, decode, micros
from agentflow.events.log import EventLog
from agentflow.events.tracing import RunTracer
from agentflow.runtime.admission import Admission
from agentflow.runtime.agent_actor import AgentActor
from agentflow.runtime.calls import model_call, tool_call
from agentflow.runtime.clock import Clock
from agentflow.runtime.messages import (
    Answer,
    Barrier,
    Cancel,
    CancelCall,
    Commit,
    CommitFailed,
    Committed,
    ModelCallFailure,
    ModelCallSuccess,
    Suspend,
    ToolCallFailure,
    ToolCallSuccess,
    Wake,
    WorkStopped,
)

__all__ = ["RunSupervisor"]

_PAGE = 512


class _Batch:
    """Appended and not yet acknowledged: what may begin, and who may go, once it is durable."""

    __slots__ = ("calls", "closed", "last")

    def __init__(self, last: int, calls: list[OpenCall], closed: list[str]) -> None:
        self.last = last
        self.calls = calls
        self.closed = closed


class RunSupervisor(Actor, mailbox=100_000):
    """One run. Children: one AgentActor for each execution of an agent that is at work."""

    supervise = OneForOne(max_restarts=1_000_000, within=1, decide=lambda error, history: "stop")

    def __init__(self, admission: Admission, bus: Ref[Any], log: EventLog, clock: Clock) -> None:
        self._admission = admission
        self._bus = bus
        self._log = log
        self._clock = clock
        self._state = RunState(admission.workflow_id, admission.plan, admission.bindings)
        self._tracer = RunTracer(admission.workflow_id)
        self._batches: deque[_Batch] = deque()
        self._workers: dict[str, Ref[Any]] = {}
        self._units: dict[Ref[Any], str] = {}
        self._direct: dict[str, tuple[str, Ref[Any]]] = {}  # calls of tool nodes, which have no agent
        self._armed: int | None = None
        self._replies: deque[tuple[int, Reply[str], str]] = deque()  # given once the offset is durable
        self._suspending: Suspend | None = None
        self._cancel: Cancel | None = None
        self._cancel_from = 0  # the offset of the request, which must be durable first

    # -- beginning ------------------------------------------------------------------------------

    def on_start(self) -> Awaitable[None] | None:
        started = self._admission.started
        if started is not None and not self._admission.accepted.done():
            self._advance([started])
            return None
        return self._fold()

    async def _fold(self) -> None:
        """Rebuild the state from the log, close what was interrupted, and go on."""
        state, offset = self._state, 0
        # An earlier incarnation of this actor may have appends on the way to the disk.
        await self._bus.ask(Barrier(workflow_id=state.workflow_id), timeout=60)
        try:
            while rows := await self._log.read(state.workflow_id, offset, _PAGE):
                for row in rows:
                    event = decode(row.body)
                    engine.evolve(state, event.data, event.offset, micros(event.timestamp))
                    self._tracer.take(event.data)
                offset = rows[-1].offset + 1
        except RunNotFound as error:
            self._admission.fail(error)
            raise
        state.take_fresh()
        state.take_closed()
        if not self._admission.accepted.done():
            self._admission.accepted.set_result(None)
        if state.terminal:
            self._rest()
            return
        if state.cancel_requested is not None:
            forced = state.cancel_requested.mode == "hard"
            self._advance(engine.cancel_finished(state, self._clock.now(), forced=forced))
            return
        if self._admission.cancel is not None:
            self._request_cancel(self._admission.cancel)
            return
        moves: Moves = []
        if state.status == "paused":
            moves.append(ev.WorkflowResumed(reason="resume", by=self._admission.by))
        moves += engine.interrupted(state, self._clock.now())
        if state.status == "waiting" and not moves:
            self._rest()
        self._advance(moves)

    # -- deciding -------------------------------------------------------------------------------

    def _advance(self, moves: Moves) -> None:
        """Fold what happened and what follows from it, and append it all as one batch."""
        state = self._state
        now = self._clock.now()
        first = state.next_offset
        drafts: list[Draft] = []
        self._take(moves, drafts, now)
        if self._suspending is None:
            while True:
                decided = engine.decide(state, now)
                if not decided:
                    break
                self._take(decided, drafts, now)
        if drafts:
            self._commit(first, drafts, now)
        self._arm(now)

    def _take(self, moves: Moves, drafts: list[Draft], now: int) -> None:
        state = self._state
        evolve, trace = engine.evolve, self._tracer.take
        for data in moves:
            evolve(state, data, state.next_offset, now)
            drafts.append(Draft(data, trace=trace(data)))

    def _commit(self, first: int, drafts: list[Draft], now: int) -> None:
        state = self._state
        begins = first == 0
        started = self._admission.started
        self._batches.append(_Batch(state.next_offset - 1, state.take_fresh(), state.take_closed()))
        self._bus.tell(
            Commit(
                workflow_id=state.workflow_id,
                epoch=self._admission.epoch,
                expected=first,
                ts=now,
                drafts=tuple(drafts),
                state=state.status,
                name=state.name if begins else None,
                definition_hash=started.definition.hash if begins and started else None,
                labels=started.labels if begins and started else {},
            )
        )

    @on(Committed)
    def committed(self, message: Committed) -> None:
        if not self._admission.accepted.done():
            self._admission.accepted.set_result(None)
        batches = self._batches
        while batches and batches[0].last <= message.offset:
            batch = batches.popleft()
            for key in batch.closed:
                self._dismiss(key)
            for call in batch.calls:
                self._launch(call)
        while self._replies and self._replies[0][0] <= message.offset:
            _, reply, value = self._replies.popleft()
            reply.set(value)
        if self._cancel is not None and self._cancel_from <= message.offset:
            self._carry_out_cancel()
        elif not batches:
            self._maybe_rest()

    def _maybe_rest(self) -> None:
        state = self._state
        if state.status in ("completed", "failed", "cancelled", "waiting"):
            self._rest()
        elif state.status == "paused" and not state.calls:
            self._rest()  # a pause lets what is in flight finish

    @on(CommitFailed)
    def commit_failed(self, message: CommitFailed) -> None:
        """The log refused: stop here and now, with nothing acknowledged. The log is the truth."""
        if message.kind == "internal_error":
            raise RuntimeError(message.error)  # supervision: fold the log and decide again
        # Somebody else appended, or owns the run: to whoever waits here the two are the same.
        lost = message.kind in (Fenced.code, OffsetConflict.code)
        self._admission.fail((Fenced if lost else StoreError)(message.error))
        self.ctx.self.kill()

    def _rest(self) -> None:
        """Nothing moves without somebody else: tell who waits, and end when the run has ended."""
        if not self._admission.rested.done():
            self._admission.rested.set_result(self._state)
        if self._state.status != "waiting":
            self.ctx.self.stop()

    # -- effects --------------------------------------------------------------------------------

    def _launch(self, call: OpenCall) -> None:
        if call.call_id not in self._state.calls or self._suspending is not None:
            return  # it was closed while its batch was on the way to the disk
        with tracing(self._tracer.call(call.call_id)):
            self._hand_on(call)

    def _hand_on(self, call: OpenCall) -> None:
        if call.kind == "model":
            self._worker(call.unit).tell(model_call(self._state, call))
            return
        message = tool_call(self._state, call)
        if call.unit.agent is not None:
            self._worker(call.unit).tell(message)
            return
        target = self._admission.directory.tool(message.service)
        self._direct[call.call_id] = (call.unit.key, target)
        self.ctx.watch(target)
        target.tell(message)

    def _worker(self, unit: Unit) -> Ref[Any]:
        key = unit.key
        ref = self._workers.get(key)
        if ref is None:
            factory = partial(AgentActor, self.ctx.self, self._admission.directory)
            ref = self.ctx.spawn_soon(
                ChildSpec(f"{key[1:].replace('/', ':')}@{unit.attempt}", factory, restart="temporary")
            )
            self._workers[key] = ref
            self._units[ref] = key
            self.ctx.watch(ref)
        return ref

    def on_stop(self) -> None:
        self._cancel_direct(None)

    def _cancel_direct(self, key: str | None) -> None:
        """Cancel the calls of one tool node, or of all of them."""
        for call_id, (unit_key, target) in list(self._direct.items()):
            if key is None or key == unit_key:
                del self._direct[call_id]
                target.tell(CancelCall(call_id=call_id))

    def _dismiss(self, key: str) -> None:
        if self._direct:
            self._cancel_direct(key)
        ref = self._workers.pop(key, None)
        if ref is not None:
            self._units.pop(ref, None)
            self.ctx.unwatch(ref)
            ref.kill()

    @on(Terminated)
    def worker_lost(self, signal: Terminated) -> None:
        """An agent's actor died of a bug: its open calls are closed as interrupted, and made anew by a
        fresh actor from the recorded conversation."""
        key = self._units.pop(signal.ref, None)
        if key is None:
            self._service_lost(signal.ref)
            return
        self._workers.pop(key, None)
        unit = self._state.open.get(key)
        if unit is not None:
            reason = f"the agent's actor died: {signal.error!r}"
            self._advance(engine.unit_lost(self._state, unit, reason, self._clock.now()))

    def _service_lost(self, ref: Ref[Any]) -> None:
        """The actor of a service is gone for good, and with it the calls of tool nodes that it had."""
        info = ErrorInfo(
            category="interrupted", code="interrupted", message=f"{ref.path} ended during the call"
        )
        for call_id, (_, target) in list(self._direct.items()):
            if target == ref:
                self.tool_failed(ToolCallFailure(call_id=call_id, error=info, duration_ms=0, unknown=True))

    # -- answers from outside -------------------------------------------------------------------

    @on(ModelCallSuccess)
    def model_answered(self, message: ModelCallSuccess) -> None:
        reply = message.reply
        self._advance(
            engine.model_completed(
                self._state,
                message.call_id,
                message=reply.message,
                finish_reason=reply.finish_reason,
                response_model=reply.response_model,
                response_id=reply.response_id,
                usage=reply.usage,
                duration_ms=message.duration_ms,
                first_token_ms=reply.first_token_ms,
            )
        )

    @on(ModelCallFailure)
    def model_failed(self, message: ModelCallFailure) -> None:
        self._advance(
            engine.model_failed(
                self._state,
                message.call_id,
                message.error,
                retry_after=message.retry_after,
                duration_ms=message.duration_ms,
                now=self._clock.now(),
                draw=self._clock.draw(),
                partial=message.partial,
            )
        )

    @on(ToolCallSuccess)
    def tool_answered(self, message: ToolCallSuccess) -> None:
        self._direct.pop(message.call_id, None)
        self._advance(
            engine.tool_completed(self._state, message.call_id, message.output, message.duration_ms)
        )
        self._after_tool()

    @on(ToolCallFailure)
    def tool_failed(self, message: ToolCallFailure) -> None:
        self._direct.pop(message.call_id, None)
        self._advance(
            engine.tool_failed(
                self._state,
                message.call_id,
                message.error,
                executed=message.executed,
                unknown=message.unknown,
                duration_ms=message.duration_ms,
                now=self._clock.now(),
                draw=self._clock.draw(),
            )
        )
        self._after_tool()

    @on(Answer)
    def answered(self, message: Answer) -> str | None:
        """The reply is `taken` once the answer is durable, or `unknown_request`. Validated by the caller."""
        request = self._state.requests.get(message.request_id)
        if request is None:
            return "unknown_request"
        offset = self._state.next_offset
        self._replies.append((offset, self.ctx.defer(), "taken"))
        data = request.data
        self._admission.reopen()
        self._advance(
            [
                ev.InputReceived(
                    step_id=data.step_id,
                    iteration=data.iteration,
                    activation=data.activation,
                    request_id=message.request_id,
                    value=message.value,
                    by=message.by,
                    via=message.via,  # type: ignore[arg-type]
                )
            ]
        )
        return None

    # -- time -----------------------------------------------------------------------------------

    def _arm(self, now: int) -> None:
        timers = self._state.timers
        if not timers:
            return
        due = min(timers.values())
        if due != self._armed:
            self._armed = due
            self.ctx.timers.start("wake", max(0.0, (due - now) / 1e6), Wake())

    @on(Wake)
    def woken(self, message: Wake) -> None:
        self._armed = None
        self._advance([])

    # -- parking and cancelling -----------------------------------------------------------------

    @on(Suspend)
    def suspend(self, message: Suspend) -> None:
        if self._state.terminal or self._suspending is not None:
            return
        if self._state.status == "waiting":
            self.ctx.self.stop()  # it is at rest already; the next answer finds it in the log
            return
        self._suspending = message
        self.ctx.timers.start("grace", message.grace, WorkStopped())
        self._after_tool()

    def _after_tool(self) -> None:
        if self._suspending is not None and not any(c.kind == "tool" for c in self._state.calls.values()):
            self.work_stopped(WorkStopped())

    @on(WorkStopped)
    def work_stopped(self, message: WorkStopped) -> None:
        """Nothing worth waiting for is at work, or the time for it is over: write down where it stopped."""
        self.ctx.timers.cancel("grace")
        if self._state.terminal or self._state.cancel_requested is not None:
            return  # the end is on its way to the log
        self._stop_work()
        if self._suspending is not None and self._state.status != "paused":
            moves = engine.interrupted(self._state, self._clock.now())
            moves.append(ev.WorkflowPaused(reason=self._suspending.reason, detail=None, by="local"))
            self._advance(moves)

    def _stop_work(self) -> None:
        for key in list(self._workers):
            self._dismiss(key)
        self._cancel_direct(None)

    @on(Cancel)
    def cancel(self, message: Cancel) -> str | None:
        """The reply is `accepted` once the request is durable, or `run_terminal`. Only then the work is
        stopped. A second cancel changes nothing."""
        if self._state.terminal:
            return "run_terminal"
        if self._state.cancel_requested is not None:
            return "accepted"
        self._replies.append((self._state.next_offset, self.ctx.defer(), "accepted"))
        self._request_cancel(message)
        return None

    def _request_cancel(self, message: Cancel) -> None:
        request = ev.WorkflowCancelRequested(
            mode="hard" if message.mode == "hard" else "soft",
            grace_ms=round(message.grace * 1000),
            reason=message.reason,
            by=message.by,
        )
        self._cancel, self._cancel_from = message, self._state.next_offset
        self._advance([request])

    def _carry_out_cancel(self) -> None:
        """The request is durable: stop the work, close what is open, end the log."""
        assert self._cancel is not None
        forced = self._cancel.mode == "hard"
        self._cancel = None
        self.ctx.timers.cancel("grace")
        self._stop_work()
        self._advance(engine.cancel_finished(self._state, self._clock.now(), forced=forced))
