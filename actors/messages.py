"""What travels between actors: the typed base of messages, the signals, and dead letters.

A message may be an object of any class. Deriving it from `Message[Reply]` adds nothing at run time; it tells
a type checker what an `ask` returns and that the actor's declared protocol takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from typing import Self

    from actors.ref import Ref

__all__ = [
    "Action",
    "Asks",
    "DeadLetter",
    "DeadLetterReason",
    "EndReason",
    "Failed",
    "Message",
    "ReceiveTimeout",
    "Restarted",
    "Terminated",
]

R = TypeVar("R")
M_co = TypeVar("M_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)

Action = Literal["restart", "resume", "stop", "escalate"]
EndReason = Literal["stopped", "killed", "failed"]
DeadLetterReason = Literal["stopped", "unknown", "full", "expired", "late", "duplicate", "unhandled"]


class Message(Generic[R]):
    """Optional base of a message whose answer is an `R`: `class Research(Struct, Message[Report],
    frozen=True)`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __ask__(self) -> tuple[Self, R]: ...


class Asks(Protocol[M_co, R_co]):
    """For type checkers: a message of the type `M_co` that is answered by an `R_co`."""

    def __ask__(self) -> tuple[M_co, R_co]: ...


class Failed(msgspec.Struct, frozen=True):
    """Signal to the parent: a child raised `error`, and the strategy took `action`."""

    ref: Ref[Any]
    error: BaseException
    action: Action


class Restarted(msgspec.Struct, frozen=True):
    """Signal to the parent: a child lives again, with a new state, the same ref and the same mailbox."""

    ref: Ref[Any]
    restarts: int


class Terminated(msgspec.Struct, frozen=True):
    """Signal to the parent and to every watcher: the actor is gone. Each of them gets it exactly once."""

    ref: Ref[Any]
    reason: EndReason
    error: BaseException | None = None


class ReceiveTimeout(msgspec.Struct, frozen=True):
    """Signal to the actor itself: no message came for `after` seconds (`ctx.receive_timeout`)."""

    after: float


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that nobody handled.

    `reason`: `stopped` (the addressee is gone), `unknown` (no such path), `full` (dropped by the mailbox's
    policy), `expired` (the asker no longer waits), `late` (an answer after the deadline), `duplicate` (a
    second answer), `unhandled` (no handler, or rejected with nobody to tell). `target` is the addressee,
    `path` where it was sought.
    """

    reason: DeadLetterReason
    message: Any
    target: Ref[Any] | None
    sender: Ref[Any] | None
    trace: Any = None
    path: str = ""


SIGNALS = (Failed, Restarted, Terminated, ReceiveTimeout)
