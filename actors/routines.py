"""Routines: how the runtime does things that may have to wait.

A routine is a generator that yields awaitables which never raise. `drive` runs it in place for as long as
nothing waits, and in a task of its own from then on. User code never runs in that task but in one that
`hook` makes, so that killing an actor cancels its hooks and handlers and never the routine that cleans up
after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from actors.errors import ActorStopped, HandlerCancelled
from actors.states import COROUTINE, FAIL, KILL

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.dispatch import Scheduler

__all__ = ["Routine", "caught", "done", "drive", "fault_of", "hook", "outcome", "thrown_away", "within"]

Routine = Generator[Awaitable[object], None, None]


def drive(scheduler: Scheduler, routine: Routine) -> None:
    """Run a routine in place, and in a task from its first wait on."""
    try:
        awaited = next(routine)
    except StopIteration:
        return
    except BaseException as exc:
        scheduler.crash(exc)
        return
    scheduler.control(_proceed(scheduler, routine, awaited))


async def _proceed(scheduler: Scheduler, routine: Routine, awaited: Awaitable[object]) -> None:
    try:
        while True:
            await awaited
            awaited = next(routine)
    except StopIteration:
        pass
    except Exception as exc:
        scheduler.crash(exc)


async def caught(coroutine: Coroutine[Any, Any, object]) -> BaseException | None:
    try:
        await coroutine
    except BaseException as exc:
        if thrown_away(exc, None):
            raise
        return exc
    return None


def outcome(task: asyncio.Task[BaseException | None]) -> BaseException | None:
    """What went wrong in a task that runs `caught`."""
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()  # an exception: it was ended by force


def thrown_away(exc: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether a coroutine is being closed unfinished, by its loop or the garbage collector, and not by code
    in it that raises GeneratorExit. `task` is the one that runs it, None for that of the caller."""
    if not isinstance(exc, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task if task is not None else asyncio.current_task() is None
    except RuntimeError:
        return True


async def done(task: asyncio.Task[Any], timeout: float | None = None) -> None:
    await asyncio.wait((task,), timeout=timeout)


async def within(future: asyncio.Future[None], timeout: float | None) -> None:
    await asyncio.wait((future,), timeout=timeout)


def hook(
    cell: Cell, hook: Callable[..., Any], *arguments: object
) -> Generator[Awaitable[object], None, BaseException | None]:
    """Call a hook, in a task if it awaits; returns what it raised."""
    scheduler = cell.scheduler
    try:
        result = scheduler.call(cell, hook, *arguments)
    except BaseException as exc:
        return fault_of(cell, exc)
    if type(result) is not COROUTINE:
        return None
    cell.task = task = scheduler.task(caught(result), cell.name, cell)
    yield done(task)
    cell.task = None
    result.close()  # a task that was cancelled before its first step never began it
    fault = outcome(task)
    return None if fault is None else fault_of(cell, fault)


def fault_of(cell: Cell, exc: BaseException) -> BaseException:
    """What a hook's exception means."""
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        cell.scheduler.crash(exc)
        cell.order |= KILL
        return ActorStopped("the system is stopping")
    if isinstance(exc, asyncio.CancelledError):
        if cell.order & FAIL:
            cell.order &= ~FAIL
            extras = cell.extra()
            failure, extras.failure = extras.failure, None
            if failure is not None:
                return failure
        cancelled = HandlerCancelled(f"{cell.path}: a hook was cancelled")
        cancelled.__cause__ = exc
        return cancelled
    return exc
