"""Actors on asyncio."""

from __future__ import annotations

from actors.actor import Actor, on
from actors.context import Context
from actors.errors import (
    ActorError,
    ActorStopped,
    AskTimeout,
    DeadlockError,
    Finished,
    HandlerCancelled,
    LinkBroken,
    MailboxFull,
    NameTaken,
    Reject,
    ShutdownTimeout,
    SpecError,
    StashFull,
    Unhandled,
    WrongThread,
)
from actors.groups import Group
from actors.interceptor import Interceptor
from actors.introspection import ActorInfo
from actors.messages import DeadLetter, Failed, Message, ReceiveTimeout, Restarted, Terminated
from actors.pool import Pool
from actors.question import Reply
from actors.ref import Ref
from actors.supervision import Backoff, ChildSpec, History, OneForAll, OneForOne, RestForOne, Strategy
from actors.system import ActorSystem
from actors.timers import Pipe
from actors.trace import current_trace, tracing

__all__ = [
    "Actor",
    "ActorError",
    "ActorInfo",
    "ActorStopped",
    "ActorSystem",
    "AskTimeout",
    "Backoff",
    "ChildSpec",
    "Context",
    "DeadLetter",
    "DeadlockError",
    "Failed",
    "Finished",
    "Group",
    "HandlerCancelled",
    "History",
    "Interceptor",
    "LinkBroken",
    "MailboxFull",
    "Message",
    "NameTaken",
    "OneForAll",
    "OneForOne",
    "Pipe",
    "Pool",
    "ReceiveTimeout",
    "Ref",
    "Reject",
    "Reply",
    "RestForOne",
    "Restarted",
    "ShutdownTimeout",
    "SpecError",
    "StashFull",
    "Strategy",
    "Terminated",
    "Unhandled",
    "WrongThread",
    "current_trace",
    "on",
    "tracing",
]
