"""CommandReceiver: applies commands to a run and replies once their change is durable.

Which events a command is stands in `command_handlers`; here is what goes with them: the start of work that
may go on, a cancel, and the wait for a store that takes nothing. Used by one RunSupervisor alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow import engine
from agentflow.events import catalogue as ev
from agentflow.runtime.command_handlers import check_offset, decide_command
from agentflow.runtime.command_messages import (
    Answer,
    Cancel,
    Command,
    DecideRequest,
    Done,
    ExecutePlan,
    Refusal,
    RejectPlan,
    ReportChild,
    Resume,
)

if TYPE_CHECKING:
    from agentflow.engine.decisions import Decisions
    from agentflow.runtime.call_dispatcher import CallDispatcher
    from agentflow.runtime.commit_watch import CommitWatch
    from agentflow.runtime.run_stepper import RunStepper, Settle
    from agentflow.runtime.run_stop import RunStop
    from agentflow.runtime.supervised_children import SupervisedChildren

__all__ = ["CommandReceiver"]


class CommandReceiver:
    """Commands to one run, in the order in which they come."""

    __slots__ = ("_children", "_dispatcher", "_run", "_stop", "_watch")

    def __init__(
        self,
        run: RunStepper,
        stop: RunStop,
        watch: CommitWatch,
        dispatcher: CallDispatcher,
        children: SupervisedChildren | None,
    ) -> None:
        self._run = run
        self._stop = stop
        self._watch = watch
        self._dispatcher = dispatcher
        self._children = children

    def receive(self, command: Command, settle: Settle) -> None:
        """Apply a command, or let it wait while the store is unavailable; none while the run is parked."""
        if self._run.suspending is not None:
            settle(Refusal(code="draining", message="the Runtime is being closed; nothing changed"))
        elif self._run.outbox.stalled:
            self._watch.hold(command, settle)
        else:
            self.apply(command, settle)

    def apply(self, command: Command, settle: Settle) -> None:
        """Append the events of a command; `settle` gets Done once they are durable, or Refusal."""
        run, now = self._run, self._run.now()
        if isinstance(command, Resume | ExecutePlan | DecideRequest):
            run.outside.forget_mode()
        try:
            decisions = self._decide(command, now)
        except engine.commands.Refused as refused:
            settle(Refusal(code=refused.code, message=refused.message, details=refused.details))
            return
        if self._children is not None and isinstance(command, ReportChild):
            self._children.reported(command.report)  # also if it only asks what is answered
        if not decisions:
            settle(Done(offset=run.state.next_offset - 1, changed=False))
            return
        if any(isinstance(data, ev.WorkflowResumed) for data in decisions):
            decisions += self._resume_work(now)
            if isinstance(command, Resume) and command.by != "runtime":
                self._dispatcher.forget_refusals()
        if any(isinstance(data, ev.PlanRejected) for data in decisions):
            assert isinstance(command, RejectPlan | Answer)
            cancel = Cancel(reason="plan_rejected", by=command.by)
            decisions += self._stop.decide_cancel(cancel, behind=len(decisions))
        run.launch.reopen()
        run.reply_when_durable(settle)
        run.advance(decisions)

    def _decide(self, command: Command, now: int) -> Decisions:
        state = self._run.state
        if isinstance(command, Cancel):
            check_offset(state, command)
            return self._stop.decide_cancel(command)
        return decide_command(state, command, now)

    def _resume_work(self, now: int) -> Decisions:
        """Let handlers and child runs go on with the run; return the ends of calls without a worker."""
        run = self._run
        if self._children is not None:
            self._children.start_all()
        run.effects += engine.open_handlers(run.state)
        if run.state.status == "paused" and not self._dispatcher.is_busy:
            return run.interrupted(now)  # open since the run was suspended
        return []

    def resume_when_due(self) -> bool:
        """Resume the run if its quota pause is over; return whether it was."""
        run = self._run
        if run.launch.queued or not engine.resume_is_due(run.state, run.now()):
            return False
        self.apply(Resume(by="runtime", reason="quota"), lambda answer: None)
        return True
