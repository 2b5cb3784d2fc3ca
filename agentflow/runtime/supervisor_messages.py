"""What the timers, lookups and pipes of a RunSupervisor tell it, and `Suspend`, which the Runtime sends."""

from __future__ import annotations

from typing import Any

from agentflow.runtime.messages import Message

__all__ = [
    "Answered",
    "AskAgain",
    "CallNotMade",
    "CheckAcknowledged",
    "ChildGone",
    "HandlersStopped",
    "LogEnd",
    "LookedUp",
    "SendAgain",
    "Suspend",
    "Wake",
    "WorkStopped",
]


class CallNotMade(Message, frozen=True, kw_only=True):
    """No actor takes this call any more, because the Runtime is being closed; it stays open in the log."""

    call_id: str


class CheckAcknowledged(Message, frozen=True, kw_only=True):
    """Has the batch at `expected`, the oldest of the outbox when this was set, been acknowledged?"""

    expected: int


class LogEnd(Message, frozen=True, kw_only=True):
    """Where the run's log ends, and at which epoch, while the batch at `expected` was not acknowledged."""

    expected: int
    epoch: int
    last: int


class LookedUp(Message, frozen=True, kw_only=True):
    """Whether the result of an activation is kept."""

    activation_key: str
    hit: Any
    """A CacheHit or None; of a Probe what was found, of a graph its bindings."""


class Answered(Message, frozen=True, kw_only=True):
    """The store has answered an access; `failed`: it could not be asked, and is asked again."""

    answer_key: str
    answer: Any
    failed: bool = False


class AskAgain(Message, frozen=True, kw_only=True):
    """The store may be asked again what it could not answer."""

    answer_key: str


class Suspend(Message, frozen=True, kw_only=True):
    """Park the run: model calls are cut off, tools may finish within `grace` seconds."""

    reason: str
    grace: float


class Wake(Message, frozen=True, kw_only=True):
    """A deadline or a retry may be due."""


class SendAgain(Message, frozen=True, kw_only=True):
    """The store may take the refused batch now."""


class HandlersStopped(Message, frozen=True, kw_only=True):
    """The time that cancelled handlers have to end is over."""


class ChildGone(Message, frozen=True, kw_only=True):
    """A child run that was cancelled has ended."""

    workflow_id: str


class WorkStopped(Message, frozen=True, kw_only=True):
    """The grace for calls at work is over."""
