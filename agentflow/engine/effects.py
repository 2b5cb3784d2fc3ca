"""What the world outside has to do after an event, by a table of types.

An effect is carried out once its event is durable, by the actors of the runtime; its outcome comes back as an
event (`call_results`). A call that was closed meanwhile is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import UNSET

from agentflow.engine.activation import Activation
from agentflow.engine.kinds import KINDS
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

__all__ = [
    "EFFECTFUL",
    "Effect",
    "PassOn",
    "Release",
    "ReleaseIdle",
    "StartCall",
    "StartChild",
    "StartHandler",
    "answered_handler",
    "effect_of",
    "open_handlers",
]


class StartCall(NamedTuple):
    """Make the open call of this id: of a model or of a function."""

    call_id: str


class StartHandler(NamedTuple):
    """Run the handler of this activation; after a backoff, not before `due_at` (an RFC 3339 time).

    An attempt is begun once, however often it is asked for: `attempt` tells it from the last one.
    """

    activation_key: str
    attempt: int
    due_at: str | None = None


class StartChild(NamedTuple):
    """Begin the run that does the work of this activation, or find it begun."""

    activation_key: str


class PassOn(NamedTuple):
    """Tell the other side of a parent and its child run how this request was closed."""

    activation_key: str
    data: Any


class Release(NamedTuple):
    """Stop the workers of this activation: it has ended, or its attempt has."""

    activation_key: str


class ReleaseIdle(NamedTuple):
    """Stop the workers of all agents that have no call under way."""


Effect = StartCall | StartChild | StartHandler | PassOn | Release | ReleaseIdle


def _key(data: Any) -> str:
    return data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"


def _release(data: Any) -> Effect:
    return Release(_key(data))


def _retrying(data: ev.AgentRetrying) -> Effect | None:
    return Release(_key(data)) if data.kind == "restart" else None


def _paused(data: ev.WorkflowPaused) -> Effect | None:
    return ReleaseIdle() if data.in_flight == "suspend" else None


def _started(data: ev.WorkflowStepStarted) -> Effect | None:
    if data.child is not UNSET and "workflow_id" in data.child:
        return StartChild(_key(data))
    return StartHandler(_key(data), data.attempt) if KINDS[data.kind].sends else None


def _repeated(data: ev.WorkflowStepRetrying) -> Effect | None:
    return StartHandler(_key(data), data.next_attempt, data.due_at) if data.kind == "restart" else None


def _closed(data: Any) -> Effect | None:
    return None if data.activation is UNSET else PassOn(_key(data), data)


_EFFECTS: dict[type, Callable[[Any], Effect | None]] = {
    ev.ModelCallStarted: lambda data: StartCall(data.model_call_id),
    ev.ToolCallStarted: lambda data: StartCall(data.tool_call_id),
    ev.WorkflowStepStarted: _started,
    ev.WorkflowStepRetrying: _repeated,
    ev.WorkflowStepCompleted: _release,
    ev.WorkflowStepFailed: _release,
    ev.WorkflowStepSkipped: _release,
    ev.AgentRetrying: _retrying,
    ev.WorkflowPaused: _paused,
    ev.ApprovalGranted: _closed,
    ev.ApprovalDenied: _closed,
    ev.InputReceived: _closed,
    ev.InputCancelled: _closed,
}


EFFECTFUL = frozenset(_EFFECTS)
"""The types of events that may have an effect: asked first, since most have none."""


def open_handlers(state: RunState) -> list[StartHandler]:
    """Return the handlers that must run again when a process takes the run up: they have no end, and wait for
    no person."""
    return [
        _start_of(activation) for activation in state.mail.open.values() if activation.status != "waiting"
    ]


def answered_handler(state: RunState, data: PassOn) -> StartHandler | None:
    """Return the handler whose question about a budget is closed, and that goes on; None without one."""
    activation = state.mail.open.get(data.activation_key)
    if activation is None or activation.status == "waiting" or state.status == "paused":
        return None
    return _start_of(activation)


def _start_of(activation: Activation) -> StartHandler:
    due = activation.local.due_at
    return StartHandler(activation.key, activation.attempt, iso(due) if due else None)


def effect_of(data: Any) -> Effect | None:
    """Return what is to be done once this event is durable; None if nothing is."""
    found = _EFFECTS.get(data.__class__)
    return None if found is None else found(data)
