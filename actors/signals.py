"""Messages of the runtime itself: the signals to actors, and dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from actors.ref import Ref
from actors.supervision import Action

__all__ = [
    "SIGNALS",
    "DeadLetter",
    "DeadLetterReason",
    "EndReason",
    "Failed",
    "ReceiveTimeout",
    "Restarted",
    "Terminated",
]

EndReason = Literal["stopped", "killed", "failed"]
DeadLetterReason = Literal["stopped", "unknown", "full", "expired", "late", "duplicate", "unhandled"]


@dataclass(frozen=True, slots=True)
class Failed:
    """Signal to the parent: a child raised `error`, and the strategy took `action`."""

    ref: Ref[Any]
    error: BaseException
    action: Action


@dataclass(frozen=True, slots=True)
class Restarted:
    """Signal to the parent and to every watcher: the actor lives again, with a new state, the same ref and
    the same mailbox."""

    ref: Ref[Any]
    restarts: int


@dataclass(frozen=True, slots=True)
class Terminated:
    """Signal to the parent and to every watcher: the actor is gone. Each of them gets it exactly once."""

    ref: Ref[Any]
    reason: EndReason
    error: BaseException | None = None
    """What it failed by; None for a watcher that came after the end."""


@dataclass(frozen=True, slots=True)
class ReceiveTimeout:
    """Signal to the actor itself: no message came for `after` seconds (`ctx.receive_timeout`)."""

    after: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was not handled.

    `reason`: `stopped` (the addressee is gone), `unknown` (no such path), `full` (dropped by the mailbox's
    policy), `expired` (the asker no longer waits), `late` (an answer after the deadline), `duplicate` (a
    second answer), `unhandled` (no handler, or rejected without an asker). `target` is the addressee, `path`
    where it was sought.
    """

    reason: DeadLetterReason
    message: Any
    target: Ref[Any] | None
    sender: Ref[Any] | None
    trace: Any = None
    path: str = ""


SIGNALS = (Failed, Restarted, Terminated, ReceiveTimeout)
