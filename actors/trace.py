"""Trace context: the one value of a sender's context that a message carries.

The library never looks into it: an OpenTelemetry context, a request id, anything. `tracing(value)` sets it
for the messages sent inside the block, `current_trace()` reads it, in handlers and outside. This module also
holds the frame, by which code that runs in a task knows for which actor it runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
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


@contextmanager
def tracing(trace: Any) -> Generator[None]:
    """Messages sent inside this block carry `trace`."""
    scheduler = next((s for s in SCHEDULERS.get(threading.get_ident(), ()) if s.running is not None), None)
    if scheduler is not None:  # a plain handler: give it a frame for the time of the block
        cell, scheduler.running = scheduler.running, None
        token = FRAME.set((cell, trace, None, None, False))
        try:
            yield
        finally:
            FRAME.reset(token)
            scheduler.running = cell
        return
    frame = FRAME.get()
    token = FRAME.set((None, trace, None, None, False) if frame is None else (frame[0], trace, *frame[2:]))
    try:
        yield
    finally:
        FRAME.reset(token)
