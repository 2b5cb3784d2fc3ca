"""The states of a cell, by which the runtime's parts agree about who serves it and what was asked of it."""

from types import CoroutineType
from typing import Any

COROUTINE: type[Any] = CoroutineType
"""What a handler returns that awaits (the plain name would narrow to a type of unknown parts)."""

IDLE, QUEUED, BUSY, HELD, PARKED = range(5)
"""`Cell.mode`, who serves the cell: no one, the run queue, a pump task, a routine. A parked cell waits for a
routine that is busy with others, or for its supervisor's fate: an order to end takes it from there."""

STARTING, RUNNING, RESTARTING, FAILED, STOPPING, DEAD = range(6)
"""`Cell.phase`; FAILED waits for the fate of its supervisor."""

PHASES = ("starting", "running", "restarting", "failed", "stopping", "dead")

DRAIN, FAIL, STOP, KILL, START, HALT = 1, 2, 4, 8, 16, 32
"""Bits of `Cell.order`: what was asked of the cell and is not carried out yet."""

ENDING = STOP | KILL

CLOSED = -1
"""`Cell.limit` of an actor that takes no more messages."""

BURST = 64
"""Messages that an actor handles in one turn."""

NESTED = 16
"""Turns in place within one another, as of a pipeline whose actors tell the next at once; a deeper one goes
by the run queue, which needs no stack."""

BLOCKED = 0.25
"""Seconds that plain handlers may hold up the loop before the log says so."""

CLOSE_TIME = 5.0
"""Seconds that the context managers of a killed actor may take to close before they are cancelled."""

GRACE = 0.01
"""Seconds by which a limit is met late, so that what ends exactly at its limit has ended in time."""

HOOK_TIME = 30.0
"""Seconds that `on_start` may take, and `on_stop` and `on_restart` of a child without a shutdown time."""

SLICE = 0.002
"""Seconds of one turn of the run queue."""

NOTHING: tuple[Any, Any, Any, Any] = (None, None, None, None)
"""`Cell.hand` between two messages."""
