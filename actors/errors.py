"""The exception tree of `actors`.

ActorError
├── Reject             raised by a handler: the asker's fault; it goes to the asker and the actor lives
├── Unhandled          the actor has no handler for this message
├── MailboxFull        `tell` found no free slot
├── StashFull          `ctx.stash` found no free slot
├── AskTimeout         no answer within the deadline (also a TimeoutError)
├── ActorStopped       the actor is gone, or went before it answered
├── DeadlockError      a cycle of asks
├── HookTimeout        `on_start`, `on_stop` or `on_restart` took too long (also a TimeoutError)
├── HandlerCancelled   a handler was cancelled by someone other than the runtime
├── HandlerTimeout     a handler awaited longer than `handler_timeout=` (also a TimeoutError)
├── Finished           a permanent actor called `ctx.finish()`; its supervisor restarts it
├── LinkBroken         a linked actor failed or was killed
├── NameTaken          a living sibling has this name
├── SpecError          an actor class, a child spec or a strategy is declared wrongly
├── WrongThread        debug mode: the system was used from another thread
└── ShutdownTimeout    actors would not end; lists them
"""

from __future__ import annotations

__all__ = [
    "ActorError",
    "ActorStopped",
    "AskTimeout",
    "DeadlockError",
    "Finished",
    "HandlerCancelled",
    "HandlerTimeout",
    "HookTimeout",
    "LinkBroken",
    "MailboxFull",
    "NameTaken",
    "Reject",
    "ShutdownTimeout",
    "SpecError",
    "StashFull",
    "Unhandled",
    "WrongThread",
]


class ActorError(Exception):
    """Something went wrong in an actor system."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else type(self).__doc__)


class Reject(ActorError):
    """The message was rejected; correct it and send it again. The actor lives on."""


class Unhandled(ActorError):
    """The actor has no handler for this type of message; declare one with `@on(Type)`."""


class MailboxFull(ActorError):
    """The mailbox is full; wait with `await ref.send(...)`, slow down, or enlarge it (`mailbox=`)."""


class StashFull(ActorError):
    """The stash is full; handle or reject messages earlier, or enlarge it (`stash=`)."""


class AskTimeout(ActorError, TimeoutError):
    """No answer came before the deadline; the question is dropped if its handler has not started."""


class ActorStopped(ActorError):
    """The actor has stopped, or stopped before it answered."""


class DeadlockError(ActorError):
    """These actors would wait for each other for ever; use `ctx.pipe` or `tell` in one of them."""


class HookTimeout(ActorError, TimeoutError):
    """A hook took more than its time limit; see `start_timeout=` and `stop_timeout=` of the class."""


class HandlerCancelled(ActorError):
    """The handler was cancelled by someone other than the actor runtime."""


class HandlerTimeout(ActorError, TimeoutError):
    """A handler awaited longer than the limit of its class; see `handler_timeout=`."""


class Finished(ActorError):
    """A permanent actor finished; its supervisor restarts it."""


class LinkBroken(ActorError):
    """A linked actor failed or was killed."""


class NameTaken(ActorError):
    """A living sibling has this name; wait for `ref.terminated()` or choose another name."""


class SpecError(ActorError):
    """An actor class, a child spec or a strategy is declared wrongly."""


class WrongThread(ActorError):
    """An actor system belongs to one thread; from others use `ref.tell_threadsafe(...)`."""


class ShutdownTimeout(ActorError):
    """Some actors did not end although they were killed; look for handlers that swallow cancellation."""
