"""What an ExecutorActor and the RunSupervisor say to each other about one handler."""

from __future__ import annotations

from typing import Any, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.engine import Outgoing, Question
from agentflow.events.tracing import SpanContext
from agentflow.executors.payloads import Encoded
from agentflow.runtime.messages import Message

__all__ = [
    "AddEvent",
    "BeginCall",
    "CallVerdict",
    "EndCall",
    "Handle",
    "HandlerDone",
    "HandlerFailed",
    "YieldOutput",
]


class Handle(Message, frozen=True, kw_only=True):
    """Handle this message. `types` has the type tags: one, or of a round one for each element.

    `request_id` is set for an answer, `request` is what was asked.
    """

    activation: str
    attempt: int
    value: Any
    types: tuple[str, ...]
    is_round: bool
    request_id: str | None
    request: Any
    sources: tuple[str, ...]
    missing: tuple[str, ...]
    superstep: int | None
    private: dict[str, Any]
    request_ids: Any


class HandlerDone(Message, frozen=True, kw_only=True):
    """The handler returned."""

    activation: str
    attempt: int
    messages: tuple[Outgoing, ...]
    """With the results of the code on the edges that may take them, as of version `judged_at` of the shared
    state."""
    judged_at: int
    private: dict[str, Any]
    shared: tuple[tuple[str, Any], ...]
    requests: tuple[Question, ...]


class HandlerFailed(Message, frozen=True, kw_only=True):
    """The handler raised."""

    activation: str
    attempt: int
    error: ErrorInfo


class YieldOutput(Message, frozen=True, kw_only=True):
    """Write an output, the `index`th of its attempt; answered when it is durable."""

    activation: str
    attempt: int
    index: int
    payload: Encoded


class AddEvent(Message, frozen=True, kw_only=True):
    """Write an event of the user's own; answered when it is durable."""

    activation: str
    attempt: int
    name: str
    data: Any


class BeginCall(Message, frozen=True, kw_only=True):
    """Ask whether to make a recorded call; answered with a CallVerdict when its start is durable."""

    activation: str
    attempt: int
    name: str
    parameters: Any
    side_effect: Any
    idempotent: bool
    service: str | None = None
    key: str | None = None


class CallVerdict(NamedTuple):
    """What a handler does about a recorded call: see `engine.Begun`."""

    verdict: str
    call_id: str = ""
    idempotency_key: str = ""
    output: Any = None
    trace: SpanContext | None = None
    """The span of the call."""
    error: ErrorInfo | None = None
    """Why it is not made, if it does not fit a budget."""


class EndCall(Message, frozen=True, kw_only=True):
    """Record what came of a call; answered when it is durable."""

    activation: str
    attempt: int
    call_id: str
    duration_ms: int
    output: Any = None
    error: ErrorInfo | None = None
    executed: bool = True
    unknown: bool = False
