"""What the actors of the product say to each other. Every message is a frozen, tagged Struct."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.engine import CacheHit
from agentflow.events.envelope import Draft
from agentflow.models import ModelReply, ModelRequest

__all__ = [
    "HANDLER_LIMIT_S",
    "Alarms",
    "Answer",
    "Attach",
    "Barrier",
    "CallModel",
    "CallTool",
    "Cancel",
    "CancelCall",
    "CheckAcknowledged",
    "Command",
    "Commit",
    "CommitFailed",
    "Committed",
    "Complete",
    "DecideRequest",
    "Done",
    "KeepResult",
    "LogEnd",
    "LookedUp",
    "ModelCallFailure",
    "ModelCallSuccess",
    "Overdue",
    "Pause",
    "Refusal",
    "Republish",
    "Resume",
    "RetryStep",
    "SendAgain",
    "Signal",
    "StartRun",
    "Suspend",
    "ToolCallFailure",
    "ToolCallSuccess",
    "Wake",
    "Withdraw",
    "WorkStopped",
]


HANDLER_LIMIT_S = 10.0
"""Seconds after which a handler that awaits fails its actor. No handler here awaits: only a bug hangs."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The base of all messages."""


# RunSupervisor <-> EventBus


class Commit(Message, frozen=True, kw_only=True):
    """Append these drafts at `expected` at the time `ts`; answered by Committed or CommitFailed.

    `state` is the run's state after the batch, `name` and `labels` go with the first batch of a run.
    """

    workflow_id: str
    epoch: int
    expected: int
    ts: int
    drafts: tuple[Draft, ...]
    state: str
    definition_hash: str | None = None
    name: str | None = None
    labels: dict[str, str] = {}


class Barrier(Message, frozen=True, kw_only=True):
    """Asks the bus to answer once every earlier batch of this run is settled."""

    workflow_id: str


class Committed(Message, frozen=True, kw_only=True):
    """Everything up to `offset` is durable and was published."""

    offset: int


class Republish(Message, frozen=True, kw_only=True):
    """Show readers the durable events from `first` on, whose publication was lost."""

    workflow_id: str
    first: int


class CommitFailed(Message, frozen=True, kw_only=True):
    """The batch at `expected` was not appended. `transient`: the store may take the same batch later."""

    expected: int
    error: str
    kind: str
    transient: bool = False


# AgentActor <-> ModelActor, ToolActor; AgentActor -> RunSupervisor


class CallModel(Message, frozen=True, kw_only=True):
    """Make this model call, once. `offset` is that of its model.call_started."""

    call_id: str
    workflow_id: str
    step_id: str
    offset: int
    ref: ModelRef
    request: ModelRequest
    id_seed: str
    timeout: float | None


class Complete(Message, frozen=True, kw_only=True):
    """A request to the actor of one provider; answered by ModelCallSuccess or ModelCallFailure."""

    call: CallModel

    @property
    def call_id(self) -> str:
        return self.call.call_id


class ModelCallSuccess(Message, frozen=True, kw_only=True):
    """The model's answer."""

    call_id: str
    reply: ModelReply
    duration_ms: int


class ModelCallFailure(Message, frozen=True, kw_only=True):
    """The call came to nothing. `retry_after` in seconds; `uncharged`: it cannot have cost anything."""

    call_id: str
    error: ErrorInfo
    duration_ms: int
    retry_after: float | None = None
    partial: str | None = None
    usage: Usage | None = None
    uncharged: bool = False


class CallTool(Message, frozen=True, kw_only=True):
    """Execute this function, once. `context` goes to the function and never to a model."""

    call_id: str
    service: str
    function: str
    parameters: Any
    context: Any
    workflow_id: str
    step_id: str
    iteration: int | None
    attempt: int
    idempotency_key: str
    timeout: float


class CancelCall(Message, frozen=True, kw_only=True):
    """Cancel this call of a tool node."""

    workflow_id: str
    call_id: str


class ToolCallSuccess(Message, frozen=True, kw_only=True):
    """The function's result."""

    call_id: str
    output: Any
    duration_ms: int


class ToolCallFailure(Message, frozen=True, kw_only=True):
    """The function failed. `executed` False: it was never entered. `unknown`: it may have had its effect."""

    call_id: str
    error: ErrorInfo
    duration_ms: int
    executed: bool = True
    unknown: bool = False


# Runtime -> RunSupervisor: commands, each answered by Done or Refusal


class Command(Message, frozen=True, kw_only=True):
    """What somebody wants of a run. Refused when the log is longer than `expected_offset`, if given."""

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
    """Stand still."""

    reason: str = "operator"
    detail: str | None = None
    in_flight: Literal["drain", "suspend"] = "drain"


class Resume(Command, frozen=True, kw_only=True):
    """Go on after a pause."""

    reason: str | None = None
    budget: dict[str, Any] | None = None


class RetryStep(Command, frozen=True, kw_only=True):
    """What is to become of a step that is held after its failure."""

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


class Answer(Command, frozen=True, kw_only=True):
    """Answers to open inputs, all or none."""

    responses: dict[str, Any]
    claimed_actor: str | None = None
    via: str = "api"


class Withdraw(Command, frozen=True, kw_only=True):
    """Take a question back."""

    request_id: str
    reason: str


class Signal(Command, frozen=True, kw_only=True):
    """A signal from outside."""

    signal_id: str
    name: str
    data: Any


class Done(Message, frozen=True, kw_only=True):
    """The command is durable. Not `changed`: its effect held already, and nothing was written."""

    offset: int
    changed: bool


class Refusal(Message, frozen=True, kw_only=True):
    """The command does not fit the run. `code` as in page 000 §8.2."""

    code: str
    message: str
    details: dict[str, Any] = {}


# Runtime -> RunSupervisor, and what it says to itself


class CheckAcknowledged(Message, frozen=True, kw_only=True):
    """Has the batch at `expected`, the oldest of the outbox when this was set, been acknowledged?"""

    expected: int


class LogEnd(Message, frozen=True, kw_only=True):
    """Where the run's log ends, and at which epoch, while the batch at `expected` was not acknowledged."""

    expected: int
    epoch: int
    last: int


class StartRun(Message, frozen=True, kw_only=True):
    """Begin, or go on with, a run whose launch was prepared."""

    workflow_id: str


class KeepResult(Message, frozen=True, kw_only=True):
    """The durable `workflow.step_completed` at `offset` may serve again under `key` for `ttl` seconds."""

    key: str
    workflow_id: str
    offset: int
    ttl: float


class LookedUp(Message, frozen=True, kw_only=True):
    """Whether the result of an activation is kept."""

    activation_key: str
    hit: CacheHit | None


class Alarms(Message, frozen=True, kw_only=True):
    """When waiting runs that nobody works on fall due (µs), as far as it is not known better already."""

    due: dict[str, int]


class Overdue(Message, frozen=True, kw_only=True):
    """A run that nobody works on has a deadline that is due now."""

    workflow_id: str


class Suspend(Message, frozen=True, kw_only=True):
    """Park the run: model calls are cut off, tools may finish within `grace` seconds."""

    reason: str
    grace: float


class Wake(Message, frozen=True, kw_only=True):
    """A deadline or a retry may be due."""


class SendAgain(Message, frozen=True, kw_only=True):
    """The store may take the refused batch now."""


class WorkStopped(Message, frozen=True, kw_only=True):
    """The time for work in flight to end is over."""
