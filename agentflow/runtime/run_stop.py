"""RunStop: how a run that is cancelled, or parked by the end of the Runtime, stops its work.

Tool calls at work get a grace to complete; then their tasks are cancelled. A cancelled run ends after its
child runs and its handlers. Used by one RunSupervisor alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from agentflow import engine
from agentflow.engine.decisions import Decisions
from agentflow.events import catalogue as ev
from agentflow.runtime.command_messages import Cancel
from agentflow.runtime.supervisor_messages import HandlersStopped, Suspend, WorkStopped

if TYPE_CHECKING:
    from agentflow.runtime.call_dispatcher import CallDispatcher
    from agentflow.runtime.run_stepper import RunStepper
    from agentflow.runtime.supervised_children import SupervisedChildren

__all__ = ["HANDLERS_END_S", "RunStop"]

HANDLERS_END_S = 5.0
"""How long the end of a cancelled run waits for handlers that go on after their cancellation."""


class RunStop:
    """`rest` stops the supervisor of a run that has nothing left to write."""

    __slots__ = (
        "_cancel",
        "_cancel_from",
        "_children",
        "_dispatcher",
        "_forced",
        "_rest",
        "_run",
        "_waits_for_handlers",
    )

    def __init__(
        self,
        run: RunStepper,
        dispatcher: CallDispatcher,
        children: SupervisedChildren | None,
        rest: Callable[[], None],
    ) -> None:
        self._run = run
        self._dispatcher = dispatcher
        self._children = children
        self._rest = rest
        self._cancel: Cancel | None = None
        self._cancel_from = 0  # the offset of the request, which must be durable first
        self._waits_for_handlers = False  # the end of a cancel waits until they have ended
        self._forced = False

    @property
    def _handlers_end(self) -> bool:
        handlers = self._dispatcher.used_handlers
        return handlers is not None and handlers.is_ending

    # -- cancel -----------------------------------------------------------------------------------

    def decide_cancel(self, command: Cancel, behind: int = 0) -> Decisions:
        """Return the request to cancel; work stops once it is durable. A second one can only make it hard.

        `behind`: how many events of the same append stand before it.
        """
        state = self._run.state
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

    def execute_durable_cancel(self, offset: int) -> bool:
        """Stop the work if a request to cancel is durable up to `offset`; return whether one was."""
        cancel = self._cancel
        if cancel is None or self._cancel_from > offset:
            return False
        self._cancel = None
        busy = [call for call in self._run.state.calls.values() if call.kind == "tool"]
        if self._cancel_children(cancel.mode, cancel.grace):
            keep = {call.activation.key for call in self._run.state.calls.values()}
        elif cancel.mode == "hard" or not busy or not self._dispatcher.is_busy or cancel.grace <= 0:
            self._finish_cancel(forced=cancel.mode == "hard")
            return True
        else:
            keep = {call.activation.key for call in busy}
        self._dispatcher.cancel_all(but=keep)
        self._run.ctx.timers.start("grace", cancel.grace, WorkStopped())
        return True

    def continue_requested(self, request: ev.WorkflowCancelRequested) -> None:
        """Go on with a cancel that the log asks for: no work is under way in this process."""
        run = self._run
        if not self._cancel_children(request.mode, 0.0):
            run.advance(engine.cancel_finished(run.state, run.now(), forced=request.mode == "hard"))

    def _cancel_children(self, mode: Literal["soft", "hard"], grace: float) -> bool:
        """Cancel the child runs; return whether there is one to wait for."""
        if self._children is None:
            return False
        request = self._run.state.cancel_requested
        reason = None if request is None else request.reason
        return self._children.cancel_all(Cancel(mode=mode, grace=grace, reason=reason, by="parent"))

    def _finish_cancel(self, *, forced: bool) -> None:
        run = self._run
        run.ctx.timers.cancel("grace")
        self._dispatcher.cancel_all()
        self._forced = forced
        if not self._handlers_end:
            run.advance(engine.cancel_finished(run.state, run.now(), forced=forced))
        elif not self._waits_for_handlers:
            self._waits_for_handlers = True
            run.ctx.timers.start("handlers", HANDLERS_END_S, HandlersStopped())

    def handler_ended(self) -> None:
        """Finish cancelling once the last cancelled handler has ended."""
        if not self._handlers_end:
            self.handlers_stopped()

    def handlers_stopped(self) -> None:
        """End the cancelled run: its handlers have ended, or have had their time."""
        if not self._waits_for_handlers:
            return
        run = self._run
        run.ctx.timers.cancel("handlers")
        self._waits_for_handlers = False
        run.advance(engine.cancel_finished(run.state, run.now(), forced=self._forced))

    # -- parking ----------------------------------------------------------------------------------

    def suspend(self, message: Suspend) -> None:
        """Park the run: nothing begins any more; calls of functions have `grace` seconds to complete."""
        run = self._run
        if run.state.terminal or run.suspending is not None:
            return
        run.suspending = message
        run.ctx.timers.start("grace", message.grace, WorkStopped())
        self.call_ended()

    def call_ended(self) -> None:
        """Finish suspending or cancelling once no tool call is being made."""
        run, state = self._run, self._run.state
        if run.suspending is None and state.cancel_requested is None:
            return
        making = self._dispatcher.is_making
        if state.terminal or any(call.kind == "tool" and making(call) for call in state.calls.values()):
            return
        if run.suspending is not None:
            self.work_stopped()
        elif not self._waits_for_children() and self._cancel is None:
            self._finish_cancel(forced=False)

    def _waits_for_children(self) -> bool:
        return self._children is not None and self._children.are_leaving

    def work_stopped(self) -> None:
        """Record where the run stopped: no call is worth waiting for, or the grace is over."""
        run, state = self._run, self._run.state
        run.ctx.timers.cancel("grace")
        if state.terminal:
            return  # the end is on its way to the log
        if state.cancel_requested is not None:
            if self._waits_for_children():
                self._dispatcher.cancel_all()  # the children have the same grace, and are waited for
            elif self._cancel is None:
                self._finish_cancel(forced=False)
            return
        self._dispatcher.cancel_all()
        if run.suspending is None:
            return
        if state.status == "paused":
            if not run.outbox:
                self._rest()
        else:
            decisions = run.interrupted(run.now(), stopped=True)
            decisions.append(ev.WorkflowPaused(reason=run.suspending.reason, detail=None, by="local"))
            run.advance(decisions)
