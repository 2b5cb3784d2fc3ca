"""What the actors of the product say to each other. Every message is a frozen, tagged Struct."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.events.envelope import Draft
from agentflow.models import ModelReply, ModelRequest

__all__ = [
    "Answer",
    "Barrier",
    "CallModel",
    "CallTool",
    "Cancel",
    "CancelCall",
    "Commit",
    "CommitFailed",
    "Committed",
    "Complete",
    "ModelCallFailure",
    "ModelCallSuccess",
    "StartRun",
    "Suspend",
    "ToolCallFailure",
    "ToolCallSuccess",
    "Wake",
    "WorkStopped",
]


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


class CommitFailed(Message, frozen=True, kw_only=True):
    """The batch was not appended; the supervisor's state is ahead of the log and must be folded anew."""

    error: str
    kind: str


# AgentActor <-> ModelActor, ToolActor; AgentActor -> RunSupervisor


class CallModel(Message, frozen=True, kw_only=True):
    """Make this model call, once."""

    call_id: str
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
    """The call came to nothing. `retry_after` in seconds."""

    call_id: str
    error: ErrorInfo
    duration_ms: int
    retry_after: float | None = None
    partial: str | None = None
    usage: Usage | None = None


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
    """Nobody wants the result of this call, which was told and not asked, any more."""

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


# Runtime -> RunSupervisor, and what it says to itself


class Cancel(Message, frozen=True, kw_only=True):
    """End the run. `grace` in seconds (soft only)."""

    mode: str
    reason: str | None
    by: str
    grace: float = 5.0


class StartRun(Message, frozen=True, kw_only=True):
    """Begin, or go on with, a run whose admission was prepared."""

    workflow_id: str


class Suspend(Message, frozen=True, kw_only=True):
    """Park the run: model calls are cut off, tools may finish within `grace` seconds."""

    reason: str
    grace: float


class Answer(Message, frozen=True, kw_only=True):
    """A person's answer to an open request; the reply says whether it was taken."""

    request_id: str
    value: Any
    by: str
    via: str


class Wake(Message, frozen=True, kw_only=True):
    """A deadline or a retry may be due."""


class WorkStopped(Message, frozen=True, kw_only=True):
    """The time for work in flight to end is over."""
