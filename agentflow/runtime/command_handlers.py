"""Commands to a run, and the decisions of the engine that carry each out.

RunRegistry sends a command, the RunSupervisor receives it and asks `decide_command` here for its events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.runtime.messages import Message

if TYPE_CHECKING:
    from agentflow.engine import ChildReport, RunState
    from agentflow.engine.decisions import Decisions

__all__ = [
    "Answer",
    "Attach",
    "Cancel",
    "Command",
    "DecideRequest",
    "Done",
    "EditPlan",
    "ExecutePlan",
    "Pause",
    "Refusal",
    "RejectPlan",
    "ReportChild",
    "Resume",
    "RetryStep",
    "Signal",
    "Withdraw",
    "check_offset",
    "decide_command",
]


class Command(Message, frozen=True, kw_only=True):
    """A request to a run. Rejected if its log is longer than `expected_offset`, if given."""

    by: str
    expected_offset: int | None = None


class Cancel(Command, frozen=True, kw_only=True):
    """End the run. `grace` in seconds is for functions that are at work (soft only)."""

    mode: Literal["soft", "hard"] = "soft"
    reason: str | None = None
    grace: float = 5.0


class Attach(Command, frozen=True, kw_only=True):
    """Go on as the log says; a paused run stays paused."""


class Pause(Command, frozen=True, kw_only=True):
    """Start nothing new until a Resume."""

    reason: str = "operator"
    detail: str | None = None
    in_flight: Literal["drain", "suspend"] = "drain"


class Resume(Command, frozen=True, kw_only=True):
    """Go on after a pause."""

    reason: str | None = None
    budget: dict[str, Any] | None = None


class RetryStep(Command, frozen=True, kw_only=True):
    """Decide about a step that is held after its failure."""

    step_id: str
    action: Literal["retry", "skip", "done", "fail"] = "retry"
    output: Any = None


class DecideRequest(Command, frozen=True, kw_only=True):
    """Grant or deny an approval."""

    granted: bool
    request_id: str | None = None
    step_id: str | None = None
    reason: str | None = None
    digest: str | None = None
    claimed_actor: str | None = None
    via: str = "api"
    response: Any = None


class Answer(Command, frozen=True, kw_only=True):
    """Answers to open inputs, all or none."""

    responses: dict[str, Any]
    claimed_actor: str | None = None
    via: str = "api"


class Withdraw(Command, frozen=True, kw_only=True):
    """Withdraw an open request."""

    request_id: str
    reason: str


class EditPlan(Command, frozen=True, kw_only=True):
    """Replace the plan of a request."""

    plan: Any
    plan_digest: str | None = None


class ExecutePlan(Command, frozen=True, kw_only=True):
    """Execute the plan of a request, or an edited one."""

    plan: Any = None
    plan_digest: str | None = None
    via: str = "api"


class RejectPlan(Command, frozen=True, kw_only=True):
    """Reject the plan of a request; its run is cancelled."""

    reason: str | None = None
    via: str = "api"


class Signal(Command, frozen=True, kw_only=True):
    """Deliver a signal."""

    signal_id: str
    name: str
    data: Any


class ReportChild(Command, frozen=True, kw_only=True):
    """Where a child run stands, for the step that waits for it."""

    report: ChildReport


class Done(Message, frozen=True, kw_only=True):
    """The command is durable. Not `changed`: its effect held already, and nothing was written."""

    offset: int
    changed: bool


class Refusal(Message, frozen=True, kw_only=True):
    """The command does not fit the run. `code` as in page 000 §8.2."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def check_offset(state: RunState, command: Command) -> None:
    """Reject a stale command: raises `Refused` if the log is longer than `expected_offset`."""
    from agentflow import engine

    last = state.next_offset - 1
    if command.expected_offset is not None and last > command.expected_offset:
        raise engine.commands.Refused(
            "offset_mismatch",
            f"{state.workflow_id} is at offset {last}, not at {command.expected_offset}",
            last_offset=last,
        )


def decide_command(state: RunState, command: Command, now: int) -> Decisions:
    """Return the events of a command, none if it changes nothing. Raises `Refused`."""
    from agentflow import engine

    check_offset(state, command)
    match command:
        case Attach():
            return []
        case Pause():
            return engine.commands.pause(
                state,
                now,
                reason=command.reason,
                detail=command.detail,
                in_flight=command.in_flight,
                by=command.by,
            )
        case Resume():
            return engine.commands.resume(
                state, now, reason=command.reason, budget=command.budget, by=command.by
            )
        case RetryStep():
            return engine.commands.retry(
                state, now, command.step_id, action=command.action, output=command.output, by=command.by
            )
        case DecideRequest():
            return engine.commands.decide_request(
                state,
                request_id=command.request_id,
                step_id=command.step_id,
                granted=command.granted,
                by=command.by,
                via=command.via,
                reason=command.reason,
                digest=command.digest,
                claimed_actor=command.claimed_actor,
                response=command.response,
            )
        case Answer():
            return engine.commands.answer(
                state,
                command.responses,
                by=command.by,
                via=command.via,
                claimed_actor=command.claimed_actor,
            )
        case Withdraw():
            return engine.commands.withdraw(state, command.request_id, reason=command.reason, by=command.by)
        case EditPlan():
            return engine.plan_commands.edit_plan(
                state, command.plan, plan_digest=command.plan_digest, by=command.by
            )
        case ExecutePlan():
            return engine.plan_commands.execute_plan(
                state,
                plan_digest=command.plan_digest,
                plan=command.plan,
                by=command.by,
                via=command.via,
            )
        case RejectPlan():
            return engine.plan_commands.reject_plan(
                state, reason=command.reason, by=command.by, via=command.via
            )
        case Signal():
            return engine.commands.signal(state, command.signal_id, command.name, command.data)
        case ReportChild():
            return engine.commands.report_child(state, command.report, now)
        case _:
            raise TypeError(f"{type(command).__name__} is not a command of the engine")
