"""Shutdown of a system: its phases, the end of the actors among them, and the last resorts.

Whatever fails or takes too long is logged, and the rest goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Literal, get_args

from actors.errors import ShutdownTimeout
from actors.kernel import life, orders
from actors.kernel.cell import Cell
from actors.kernel.scheduler import Scheduler

__all__ = ["Callback", "Phase", "Shutdown"]

log = logging.getLogger("actors")

Phase = Literal["stop_listening", "stop_admitting", "drain", "flush_log", "flush_telemetry"]
"""The phases of a shutdown, in order. The actors end in `drain`, after its callbacks: what is flushed and
closed after that is used by none of them any more."""

Callback = Callable[[], Awaitable[object] | None]

DEAF = 1.0
"""Seconds that a callback which was cancelled may take to end, before it is ended by force."""

FORCE = 10
"""Attempts to close, one after the other, what swallows its cancellation at the end of a system."""


class Shutdown:
    """The end of one system; see the module. `failure` is what is to leave the block, if anything."""

    def __init__(self, name: str, seconds: float) -> None:
        self.failure: BaseException | None = None
        self.hurry = asyncio.Event()
        self._name = name
        self._seconds = seconds
        self._callbacks: dict[Phase, list[tuple[Callback, float, bool]]] = {}

    def add(self, phase: Phase, callback: Callback, timeout: float, raises: bool) -> None:
        """See `ActorSystem.on_shutdown`."""
        if phase not in get_args(Phase):
            raise ValueError(f"{phase!r} is no phase of a shutdown: {', '.join(get_args(Phase))}")
        self._callbacks.setdefault(phase, []).append((callback, timeout, raises))

    async def run(self, scheduler: Scheduler[Cell], root: Cell) -> None:
        """Run all phases. Raises `ShutdownTimeout`, at the end, when actors had to be ended by force."""
        hurry = scheduler.task(self.hurry.wait(), "actors-hurry")
        impatient: asyncio.Task[Any] | None = hurry
        stuck: ShutdownTimeout | None = None
        try:
            for phase in get_args(Phase):
                for callback, timeout, raises in self._callbacks.get(phase, ()):
                    fault = await self._call(scheduler, phase, callback, timeout, impatient)
                    if raises and self.failure is None:
                        self.failure = fault
                if phase == "drain":
                    stuck = await self._end_actors(scheduler, root, hurry)
                    impatient = None
        finally:
            scheduler.close()
        if stuck is not None:
            raise stuck

    async def _call(
        self,
        scheduler: Scheduler[Cell],
        phase: str,
        callback: Callback,
        timeout: float,
        hurry: asyncio.Task[Any] | None,
    ) -> BaseException | None:
        task = scheduler.task(_called(callback), f"{self._name}-{phase}")
        await asyncio.wait(
            (task,) if hurry is None else (task, hurry), timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=DEAF)
            scheduler.abort(task)
            late = "was cut short" if hurry is not None and hurry.done() else f"took more than {timeout:g} s"
            log.error("shutdown, %s: %r %s", phase, callback, late)
            return ShutdownTimeout(f"shutdown, {phase}: {callback!r} {late}")
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is not None:
            log.error("shutdown, %s: %r failed", phase, callback, exc_info=fault)
        return fault

    async def _end_actors(
        self, scheduler: Scheduler[Cell], root: Cell, hurry: asyncio.Task[Any]
    ) -> ShutdownTimeout | None:
        orders.stop(root)
        ended = life.ended_future(root)
        await asyncio.wait((ended, hurry), timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not ended.done():
            log.warning("shutdown: %s; killing them", self._stuck(root))
            orders.kill(root)
            await asyncio.wait((ended,), timeout=self._seconds)
        if ended.done():
            return None
        stuck = f"{self._stuck(root)}, though killed; look for what swallows its cancellation there"
        for _ in range(FORCE):  # what was in the way of one may show another
            for task in [task for cell in _subtree(root) for task in _tasks(cell)]:
                scheduler.abort(task)
            await asyncio.wait((ended,), timeout=0.1)
            if ended.done():
                break
        return ShutdownTimeout(stuck)

    def _stuck(self, root: Cell) -> str:
        paths = [cell.path for cell in _subtree(root) if _tasks(cell)]
        return f"{', '.join(paths[:10]) or 'actors'} would not end within {self._seconds:g} s"


def _subtree(root: Cell) -> list[Cell]:
    cells = [root]
    for cell in cells:  # grows meanwhile
        cells.extend((cell.children or {}).values())
    return cells


def _tasks(cell: Cell) -> list[asyncio.Task[Any]]:
    """Return the tasks that run user code for an actor."""
    extras = cell.extras
    tasks = [cell.task]
    if extras is not None:
        works = [pipe.task for pipe in extras.pipes]
        tasks += [extras.closing, *(task for task in works if isinstance(task, asyncio.Task))]
    return [task for task in tasks if task is not None]


async def _called(callback: Callback) -> None:
    result = callback()
    if isawaitable(result):
        await result
