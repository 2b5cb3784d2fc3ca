"""Trace context: the one value of a sender's context that a message carries.

The library never looks into it: an OpenTelemetry context, a request id, anything. `tracing(value)` sets it
for the messages sent inside the block, `current_trace()` reads it, in handlers and outside. This module also
holds the frame, by which code that runs in a task knows for which actor it runs.
"""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any, Protocol
from weakref import ReferenceType

from actors.question import Question

__all__ = ["current_trace", "tracing"]


class Turn(Protocol):
    """A scheduler, as far as it matters here: whose plain handler runs at this moment."""

    running: Any


Frame = tuple[Any, Any, Question | None, "ReferenceType[asyncio.Task[Any]] | None", bool]
"""The actor that this code works for, the trace, the question in hand, the task to which this belongs, and
whether the actor waits for that task. Tasks and callbacks begun in it inherit the frame, and are not it."""

FRAME: ContextVar[Frame | None] = ContextVar("actors.frame", default=None)

# Plain handlers run without a frame (setting a context variable costs as much as a hop); `Scheduler.running`
# names their actor. These are the open schedulers by thread, for the two functions below.
SCHEDULERS: dict[int, list[Turn]] = {}


def owns_task(frame: Frame) -> bool:
    """Return true if this code runs in the frame's own task, not in one that only inherited the frame."""
    own = frame[3]
    return own is not None and own() is asyncio.current_task()


def current_trace() -> Any:
    """Return the trace context of the message in hand, or what `tracing` set; None if there is none."""
    for scheduler in SCHEDULERS.get(threading.get_ident(), ()):
        if scheduler.running is not None:
            return scheduler.running.hand[2]
    frame = FRAME.get()
    return None if frame is None else frame[1]


class tracing:  # noqa: N801 — a context manager; a class costs each message less than a generator
    """Messages sent inside this block carry `trace`."""

    __slots__ = ("_cell", "_scheduler", "_token", "_trace")

    def __init__(self, trace: Any) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        for scheduler in SCHEDULERS.get(threading.get_ident(), ()):
            cell = scheduler.running
            if cell is not None:  # a plain handler: give it a frame for the time of the block
                scheduler.running = None
                self._scheduler, self._cell = scheduler, cell
                self._token = FRAME.set((cell, self._trace, None, None, False))
                return
        self._scheduler = None
        frame = FRAME.get()
        own = (None, self._trace, None, None, False)
        self._token = FRAME.set(own if frame is None else (frame[0], self._trace, *frame[2:]))

    def __exit__(self, *_: object) -> None:
        FRAME.reset(self._token)
        if self._scheduler is not None:
            self._scheduler.running = self._cell
