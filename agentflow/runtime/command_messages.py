"""Commands to a run, as RunRegistry sends them to its RunSupervisor.

Members, route, verbs and events of a command stand in `records.commands`. A message has these members and
says beside them who gives the command; which decisions of the engine carry it out stands in
`command_handlers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.records.commands import (
    ApprovalBody,
    CancelBody,
    ExecuteBody,
    InputsBody,
    PauseBody,
    PlanBody,
    RejectBody,
    ResumeBody,
    RetryBody,
    SignalBody,
    WithdrawBody,
)
from agentflow.runtime.messages import Message

if TYPE_CHECKING:
    from agentflow.engine import ChildReport

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
]


class Command(Message, frozen=True, kw_only=True):
    """A request to a run. Each has `by`: who gives it. It has no member, so that a subclass can have those of
    a body beside it."""


class Attach(Command, frozen=True, kw_only=True):
    """Go on as the log says; a paused run stays paused."""

    by: str


class ReportChild(Command, frozen=True, kw_only=True):
    """Where a child run stands, for the step that waits for it."""

    by: str
    report: ChildReport


class Cancel(CancelBody, Command, frozen=True, kw_only=True):
    """End the run."""

    by: str


class Pause(PauseBody, Command, frozen=True, kw_only=True):
    """Start nothing new until a Resume. `cause` is the reason of the event, `reason` its detail."""

    by: str
    cause: str = "operator"


class Resume(ResumeBody, Command, frozen=True, kw_only=True):
    """Go on after a pause, or with the code of another definition of an equal graph."""

    by: str
    definition_hash: str | None = None


class RetryStep(RetryBody, Command, frozen=True, kw_only=True):
    """Decide about a step that is held after its failure."""

    by: str


class DecideRequest(ApprovalBody, Command, frozen=True, kw_only=True):
    """Grant or deny an approval."""

    by: str
    via: str = "api"


class Answer(InputsBody, Command, frozen=True, kw_only=True):
    """Answers to open inputs, all or none."""

    by: str
    via: str = "api"


class Withdraw(WithdrawBody, Command, frozen=True, kw_only=True):
    """Withdraw an open request."""

    by: str
    request_id: str


class EditPlan(PlanBody, Command, frozen=True, kw_only=True):
    """Replace the plan of a request."""

    by: str


class ExecutePlan(ExecuteBody, Command, frozen=True, kw_only=True):
    """Execute the plan of a request, or an edited one."""

    by: str
    via: str = "api"


class RejectPlan(RejectBody, Command, frozen=True, kw_only=True):
    """Reject the plan of a request; its run is cancelled."""

    by: str
    via: str = "api"


class Signal(SignalBody, Command, frozen=True, kw_only=True):
    """Deliver a signal. Its id is known: that of the caller, or a new one."""

    by: str


class Done(Message, frozen=True, kw_only=True):
    """The command is durable. Not `changed`: its effect held already, and nothing was written."""

    offset: int
    changed: bool


class Refusal(Message, frozen=True, kw_only=True):
    """The command does not fit the run. `code` as in page 000 §8.2."""

    code: str
    message: str
    details: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
