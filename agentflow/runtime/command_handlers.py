"""The decisions of the engine that carry out each command to a run.

The RunSupervisor asks for them when it receives a command; `Cancel` is decided by `RunStop`, which also
closes what is at work.
"""

from __future__ import annotations

from agentflow.engine import commands, plan_commands
from agentflow.engine.decisions import Decisions
from agentflow.engine.state import RunState
from agentflow.records.commands import OffsetBody
from agentflow.runtime.command_messages import (
    Answer,
    Attach,
    Command,
    DecideRequest,
    EditPlan,
    ExecutePlan,
    Pause,
    RejectPlan,
    ReportChild,
    Resume,
    RetryStep,
    Signal,
    Withdraw,
)

__all__ = ["check_offset", "decide_command"]


def check_offset(state: RunState, command: Command) -> None:
    """Reject a stale command: raises `Refused` if the log is longer than `expected_offset`."""
    last, expected = state.next_offset - 1, None
    if isinstance(command, OffsetBody):
        expected = command.expected_offset
    if expected is not None and last > expected:
        message = f"{state.workflow_id} is at offset {last}, not at {expected}"
        raise commands.Refused("offset_mismatch", message, last_offset=last)


def decide_command(state: RunState, command: Command, now: int) -> Decisions:
    """Return the events of a command, none if it changes nothing. Raises `Refused`."""
    check_offset(state, command)
    match command:
        case Attach():
            return []
        case Pause(by=by, cause=cause, reason=detail, in_flight=in_flight):
            return commands.pause(state, now, reason=cause, detail=detail, in_flight=in_flight, by=by)
        case Resume(by=by, reason=reason, budget=budget, definition_hash=other):
            return commands.resume(state, now, reason=reason, budget=budget, by=by, definition_hash=other)
        case RetryStep(by=by, step_id=step_id, action=action, output=output):
            return commands.retry(state, now, step_id, action=action, output=output, by=by)
        case DecideRequest():
            return commands.decide_request(
                state,
                request_id=command.request_id,
                step_id=command.step_id,
                granted=command.granted == "grant",
                by=command.by,
                via=command.via,
                reason=command.reason,
                digest=command.digest,
                claimed_actor=command.claimed_actor,
                response=command.response,
            )
        case Answer(by=by, via=via, responses=responses, claimed_actor=claimed):
            return commands.answer(state, responses, by=by, via=via, claimed_actor=claimed)
        case Withdraw(by=by, request_id=request_id, reason=reason):
            return commands.withdraw(state, request_id, reason=reason, by=by)
        case EditPlan(by=by, plan=plan, plan_digest=digest):
            return plan_commands.edit_plan(state, plan, plan_digest=digest, by=by)
        case ExecutePlan(by=by, via=via, plan=plan, plan_digest=digest):
            return plan_commands.execute_plan(state, plan_digest=digest, plan=plan, by=by, via=via)
        case RejectPlan(by=by, via=via, reason=reason):
            return plan_commands.reject_plan(state, reason=reason, by=by, via=via)
        case Signal(signal_id=str(signal_id), name=name, data=data):
            return commands.signal(state, signal_id, name, data)
        case ReportChild(report=report):
            return commands.report_child(state, report, now)
        case _:
            raise TypeError(f"{type(command).__name__} is not a command of the engine")
