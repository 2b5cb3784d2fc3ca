"""What most actors never need, made on first use, so that an idle actor costs a few hundred bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from actors.supervision import Intensity, Streak

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from actors.cell import Cell
    from actors.groups import Group
    from actors.limiter import Limiter
    from actors.question import Question
    from actors.timers import Idle, Pipe, Timer

__all__ = ["Envelope", "Extras", "Failure"]

Envelope = tuple[object, "Cell | None", Any, Any]
"""message, sender, trace, and the `Question` of an ask (in the signal lane: what makes the item
conditional)."""


class Failure:
    """An item of the signal lane that makes the actor fail, as if a handler had raised: owned work raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Extras:
    """What most actors never need; made on first use, so that an idle actor costs a few hundred bytes."""

    __slots__ = (
        "closing",
        "deferred",
        "ended",
        "failure",
        "grace",
        "group",
        "groups",
        "halted",
        "idle",
        "intensity",
        "leftover",
        "limiters",
        "links",
        "muted",
        "pipes",
        "reserved",
        "stack",
        "stash",
        "streak",
        "timers",
        "waiters",
        "wake",
        "watchers",
        "watching",
    )

    def __init__(self) -> None:
        self.closing: asyncio.Task[Any] | None = None
        self.deferred: dict[Question, None] = {}
        self.ended: dict[asyncio.Future[None], None] = {}
        self.failure: BaseException | None = None
        self.grace: asyncio.TimerHandle | None = None
        self.group: deque[tuple[Cell, BaseException]] | None = None
        self.groups: dict[Group, None] = {}
        self.halted: asyncio.Future[None] | None = None
        self.idle: Idle | None = None
        self.intensity: Intensity | None = None
        self.leftover: deque[Envelope] | None = None
        self.limiters: list[Limiter] = []
        self.links: dict[Cell, None] = {}
        self.muted: set[Cell] = set()
        self.pipes: dict[Pipe, None] = {}
        self.reserved = 0
        self.stack: AsyncExitStack | None = None
        self.stash: deque[Envelope] = deque()
        self.streak: Streak | None = None
        self.timers: dict[Any, Timer] = {}
        self.waiters: deque[asyncio.Future[None]] = deque()
        self.wake: asyncio.Future[None] | None = None
        self.watchers: dict[Cell, None] = {}
        self.watching: dict[Cell, None] = {}
