"""What can be told to a run: each command with its members, its method, its route, its verbs and its events.

The daemon makes its routes and their part of the OpenAPI document from `COMMANDS`, clients their requests;
the messages to a RunSupervisor (`runtime.command_messages`) have the members of these bodies.
Runtime, clients and their handles have a method of the name and with the members of each command; the command
line has its verbs. A test compares all of them with the table (page 000 §8, §11).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agentflow.events import catalogue as ev
from agentflow.records.fields import Name, Offset, RunId, Seconds, StepId, Text

__all__ = [
    "COMMANDS",
    "ApprovalBody",
    "CancelBody",
    "Command",
    "CommandBody",
    "ExecuteBody",
    "ForkBody",
    "InputsBody",
    "OffsetBody",
    "PauseBody",
    "PlanBody",
    "RejectBody",
    "ReplayBody",
    "ResumeAllBody",
    "ResumeBody",
    "Resumed",
    "RetryBody",
    "SignalBody",
    "UnresumedRun",
    "WithdrawBody",
]


class UnresumedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that stays paused, and why; `code` as in page 000 §8.2."""

    workflow_id: str
    code: str
    message: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that go on, and those that could not, oldest first."""

    resumed: list[str]
    failed: list[UnresumedRun]


# -- members: fields have the names of the arguments of the method, and are renamed on the wire


class CommandBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The members of a command, as they are sent. A member that it does not know is refused."""

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the method of this command."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @classmethod
    def on_the_wire(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the members that say these arguments; None is left out, as what is absent means the same."""
        names = dict(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
        return {names[name]: value for name, value in arguments.items() if value is not None}


class OffsetBody(CommandBody, frozen=True, kw_only=True, omit_defaults=True):
    """`expected_offset`: do nothing when the log is longer than the caller knew."""

    expected_offset: Offset | None = None


class CancelBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True, rename={"grace": "grace_s"}):
    """`soft` lets work in flight finish within `grace_s`; `hard` ends it at once."""

    mode: Literal["soft", "hard"] = "soft"
    grace: Seconds = 5.0
    reason: Text | None = None


class PauseBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """`drain` lets steps in flight finish, `suspend` only their functions."""

    reason: Text | None = None
    in_flight: Literal["drain", "suspend"] = "drain"


class ResumeBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """`budget` raises limits."""

    budget: dict[str, Any] | None = None
    reason: Text | None = None


class ResumeAllBody(CommandBody, frozen=True, kw_only=True, omit_defaults=True):
    """Which paused runs are to go on: those that paused for `reason`. `budget` raises the limits of each."""

    reason: Text
    budget: dict[str, Any] | None = None


class RetryBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of a step that is held after its failure; `output` is the result of one that is `done`."""

    step_id: StepId
    action: Literal["retry", "skip", "done", "fail"] = "retry"
    output: Any = None


_OF_A_DEFINITION = ("definition", "definition_ref", "format", "file", "folder")


class ForkBody(
    CommandBody,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"from_failure": "from", "as_id": "workflow_id"},
):
    """Where a new run goes on: at an offset, before a step, or before what failed. `edits` {input, outputs,
    shared, state, messages} stand in place of what was there. `definition` or `definition_ref`, as of a
    submission, stand in place of the definition: with the same steps and edges."""

    offset: Offset | None = None
    from_step: StepId | None = None
    from_failure: Literal["failure"] | None = None
    as_id: RunId | None = None
    labels: dict[str, str] | None = None
    edits: Any = None
    definition: Any = None
    definition_ref: Any = None
    format: Name | None = None
    file: Text | None = None
    folder: Text | None = None

    def arguments(self) -> dict[str, Any]:
        """Return what `CommandBody.arguments` does, without the members that say which definition is
        meant."""
        given = {**super().arguments(), "from_failure": self.from_failure == "failure"}
        return {name: value for name, value in given.items() if name not in _OF_A_DEFINITION}

    @classmethod
    def on_the_wire(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what `CommandBody.on_the_wire` does, with these arguments in their form in JSON."""
        return super().on_the_wire(
            arguments | {"from_failure": "failure" if arguments["from_failure"] else None}
        )


class ReplayBody(CommandBody, frozen=True, kw_only=True, omit_defaults=True, rename={"as_id": "workflow_id"}):
    """How a recorded run is run again: served from its record, anew, or both; with another input or
    definition."""

    policy: Literal["Always", "Refresh", "Mixed"] = "Refresh"
    input: Any = None
    definition: Any = None
    as_id: RunId | None = None


class SignalBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """One with a known `signal_id` changes nothing."""

    name: Name
    data: Any = None
    signal_id: Name | None = None


class ApprovalBody(
    OffsetBody,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename={"granted": "decision", "claimed_actor": "actor"},
):
    """A decision; with `digest` only what was seen is granted. `actor` is kept as a claim of the caller.
    `response` is what a person says beside it: any JSON value, for the step that asked.
    """

    granted: Literal["grant", "deny"]
    request_id: Name | None = None
    step_id: StepId | None = None
    digest: Name | None = None
    reason: Text | None = None
    claimed_actor: Name | None = None
    response: Any = None

    def arguments(self) -> dict[str, Any]:
        """Return what `CommandBody.arguments` does, with `granted` as a boolean."""
        return {**super().arguments(), "granted": self.granted == "grant"}

    @classmethod
    def on_the_wire(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return what `CommandBody.on_the_wire` does, with `granted` as `grant` or `deny`."""
        return super().on_the_wire(arguments | {"granted": "grant" if arguments["granted"] else "deny"})


class InputsBody(
    OffsetBody, frozen=True, kw_only=True, omit_defaults=True, rename={"claimed_actor": "actor"}
):
    """Answers by request id: all of them are taken, or none. `actor` is kept as a claim of the caller."""

    responses: Annotated[dict[str, Any], Meta(min_length=1, max_length=1000)]
    claimed_actor: Name | None = None


class PlanBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """The whole plan in place of the stored one; `plan_digest` is that of the plan which was seen."""

    plan: dict[str, Any]
    plan_digest: Name | None = None


class ExecuteBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """Without `plan` the stored one is executed; `plan_digest` is that of the plan which was seen."""

    plan: dict[str, Any] | None = None
    plan_digest: Name | None = None


class RejectBody(OffsetBody, frozen=True, kw_only=True, omit_defaults=True):
    """Why the plan is not executed."""

    reason: Text | None = None


class WithdrawBody(CommandBody, frozen=True, kw_only=True, omit_defaults=True):
    """Why the question is taken back."""

    reason: Text = "withdrawn"


# -- the table


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command to a run. All have a method of this `name` on Runtime and Client and on their handles."""

    name: str
    body: type[CommandBody]
    path: str
    """Of its route, without the leading slash."""
    summary: str
    verbs: tuple[str, ...]
    """Of the command line; none if only programs use it."""
    events: tuple[type[ev.RunEvent], ...]
    """What it appends first, one of them; nothing if its effect holds already."""
    operation: str
    """The operationId of the OpenAPI document."""
    method: Literal["POST", "PUT", "DELETE"] = "POST"
    statuses: tuple[int, ...] = (200,)
    """Of success. With 202 and 200, the second says that the effect held already."""
    problems: tuple[str, ...] = ()
    """Codes beside those that every command has."""
    needs_body: bool = True
    scope: Literal["run", "approve"] = "run"
    tag: Literal["commands", "requests"] = "commands"
    is_open_only: bool = False
    """True if the route refuses it for a run that has ended."""
    checks_trust: bool = False
    """True if the daemon checks that the caller could have submitted the run."""
    has_via: bool = False
    """True if its event says by which way it came."""

    def on_the_wire(self, **arguments: Any) -> dict[str, Any]:
        """Return the body of a request that gives this command."""
        return self.body.on_the_wire(arguments)


_TAKEN = (202, 200)


def _on_run(
    name: str, body: type[CommandBody], summary: str, *events: type[ev.RunEvent], **more: Any
) -> Command:
    """Return a command to one run; route, verb and operation have its name unless `more` says otherwise."""
    path = f"workflows/{{id}}/{more.pop('at', name)}"
    given: dict[str, Any] = {"verbs": (name,), "operation": name, "path": path, **more}
    return Command(name=name, body=body, summary=summary, events=events, **given)


_ALL = (
    Command(
        name="resume_all",
        body=ResumeAllBody,
        path="workflows/resume",
        summary="Let all runs go on that are paused for one reason",
        verbs=("resume",),
        events=(ev.WorkflowResumed, ev.WorkflowStepRetrying),
        operation="resume_all",
        checks_trust=True,
    ),
    _on_run(
        "cancel",
        CancelBody,
        "End a run",
        ev.WorkflowCancelRequested,
        statuses=_TAKEN,
        needs_body=False,
        is_open_only=True,
    ),
    _on_run(
        "pause", PauseBody, "Let a run stand still", ev.WorkflowPaused, statuses=_TAKEN, needs_body=False
    ),
    _on_run(
        "resume",
        ResumeBody,
        "Let a run go on",
        ev.WorkflowResumed,
        ev.WorkflowStepRetrying,
        problems=("budget_too_small",),
        needs_body=False,
        is_open_only=True,
        checks_trust=True,
    ),
    _on_run(
        "retry",
        RetryBody,
        "Decide about a step that failed",
        *(ev.WorkflowStepRetrying, ev.WorkflowStepSkipped, ev.WorkflowStepCompleted, ev.WorkflowStepFailed),
        problems=("step_not_found", "not_failed"),
        checks_trust=True,
    ),
    _on_run(
        "fork",
        ForkBody,
        "A new run from a point of this one",
        ev.WorkflowStarted,  # of the new run
        statuses=(201,),
        problems=(
            *("step_not_found", "not_failed", "run_exists", "invalid_edit", "graph_signature_mismatch"),
            "queue_full",
        ),
        checks_trust=True,
    ),
    _on_run(
        "replay",
        ReplayBody,
        "A new run of this recorded one",
        ev.WorkflowStarted,  # of the new run
        statuses=(201,),
        problems=("run_exists", "queue_full", "invalid_parameter"),
        needs_body=False,
        checks_trust=True,
    ),
    _on_run("signal", SignalBody, "Send a signal", ev.SignalReceived, at="signals", statuses=_TAKEN),
    _on_run(
        "decide",
        ApprovalBody,
        "Grant or deny an approval",
        *(ev.ApprovalGranted, ev.ApprovalDenied),
        at="approvals",
        verbs=("approve", "deny"),
        operation="approve",
        problems=(
            "step_not_found",
            "unknown_request",
            "decision_conflict",
            "digest_mismatch",
            "request_closed",
            "approval_not_open",
            "self_approval",
        ),
        scope="approve",
        tag="requests",
        has_via=True,
    ),
    _on_run(
        "answer_all",
        InputsBody,
        "Answer questions, all or none",
        ev.InputReceived,
        at="inputs",
        verbs=("answer",),
        operation="answer",
        problems=("unknown_request", "already_answered", "request_closed", "invalid_response"),
        scope="approve",
        tag="requests",
        has_via=True,
    ),
    _on_run(
        "edit_plan",
        PlanBody,
        "Replace the plan of a request",
        ev.PlanEdited,
        at="plan",
        verbs=("plan",),
        method="PUT",
        operation="put_plan",
        problems=("no_plan", "digest_mismatch", "plan_invalid"),
        tag="requests",
    ),
    _on_run(
        "execute",
        ExecuteBody,
        "Execute the plan of a request",
        *(ev.InputReceived, ev.PlanEdited),
        statuses=_TAKEN,
        needs_body=False,
        problems=("digest_mismatch", "plan_invalid"),
        tag="requests",
        has_via=True,
    ),
    _on_run(
        "reject",
        RejectBody,
        "Reject the plan of a request; its run is cancelled",
        ev.InputReceived,
        needs_body=False,
        tag="requests",
        has_via=True,
    ),
    _on_run(
        "withdraw",
        WithdrawBody,
        "Take a question back",
        *(ev.ApprovalDenied, ev.InputCancelled),
        at="requests/{request_id}",
        verbs=(),
        method="DELETE",
        statuses=(204,),
        problems=("unknown_request", "already_answered", "request_closed"),
        needs_body=False,
        scope="approve",
        tag="requests",
    ),
)

COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}
"""By name of their method."""
