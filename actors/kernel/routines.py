"""Routines: how the runtime does things that may have to wait.

A routine is a generator that yields awaitables which never raise. `drive` runs it in place for as long as
nothing waits, and in a task of its own from then on. User code never runs in that task but in one that
`hook` makes, so that killing an actor cancels its hooks and handlers and never the routine that cleans up
after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from inspect import isawaitable, iscoroutine
from math import inf
from typing import Any, TypeVar

from actors.behaviour import Behaviour
from actors.errors import ActorStopped, HandlerCancelled, HookTimeout
from actors.kernel.cell import Cell
from actors.kernel.scheduler import Scheduler
from actors.states import FAIL, GRACE, KILL

__all__ = [
    "Routine",
    "awaiting",
    "caught",
    "drive",
    "fault_of",
    "hook",
    "outcome",
    "settled",
    "thrown_away",
    "within",
]

Routine = Generator[Awaitable[object], None, None]
T = TypeVar("T")


def drive(scheduler: Scheduler[Cell], routine: Routine) -> None:
    """Run a routine in place, and in a task from its first wait on."""
    try:
        awaited = next(routine)
    except StopIteration:
        return
    except BaseException as exc:
        scheduler.crash(exc)
        return
    scheduler.control(_proceed(scheduler, routine, awaited))


async def _proceed(scheduler: Scheduler[Cell], routine: Routine, awaited: Awaitable[object]) -> None:
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
    """Return what went wrong in a task that runs `caught`."""
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()  # an exception: it was ended by force


def thrown_away(exc: BaseException, task: asyncio.Future[Any] | None) -> bool:
    """Return whether a coroutine is being closed unfinished, by its loop or the garbage collector, and not by
    code in it that raises GeneratorExit. `task` is the one that runs it, None for that of the caller."""
    if not isinstance(exc, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task if task is not None else asyncio.current_task() is None
    except RuntimeError:
        return True


async def settled(
    scheduler: Scheduler[Cell], task: asyncio.Future[Any], timeout: float | None = None
) -> None:
    """Wait until the task is done, or was given up because it survives even being closed by force."""
    given_up = scheduler.given_up.get(task)
    if given_up is None:
        given_up = scheduler.given_up[task] = scheduler.loop.create_future()
    await asyncio.wait((task, given_up), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if task.done() or given_up.done():
        scheduler.given_up.pop(task, None)


async def within(future: asyncio.Future[None], timeout: float | None) -> None:
    await asyncio.wait((future,), timeout=timeout)


def hook(
    cell: Cell, limit: float, actor: Behaviour[Any], name: str, *arguments: object
) -> Generator[Awaitable[object], None, BaseException | None]:
    """Call the hook of this name, in a task if it awaits; return what it raised.

    After `limit` seconds it is cancelled, as by a kill, and the result is `HookTimeout`.
    """
    scheduler = cell.scheduler
    try:
        result = scheduler.call(cell, getattr(actor, name), *arguments)
    except BaseException as exc:
        return fault_of(cell, exc)
    if not isawaitable(result):
        return None
    coroutine: Coroutine[Any, Any, object] = result if iscoroutine(result) else awaiting(result)
    cell.task = task = scheduler.task(caught(coroutine), cell.name, cell)
    if cell.order & KILL:  # the plain part of the hook gave the order
        scheduler.cancel(task)
    yield settled(scheduler, task, None if limit == inf else limit + GRACE)
    late = not task.done()
    if late:
        scheduler.cancel(task)
        yield settled(scheduler, task)
    cell.task = None
    if task.done():
        coroutine.close()  # a task that was cancelled before its first step never began it
    if late and not cell.order & (KILL | FAIL):
        return HookTimeout(f"{cell.path}: {name} took more than {limit:g} s and was cancelled")
    fault = outcome(task) if task.done() else asyncio.CancelledError()
    return None if fault is None else fault_of(cell, fault)


async def awaiting(awaitable: Awaitable[T]) -> T:
    """Await a future or another awaitable that is not a coroutine."""
    return await awaitable


def fault_of(cell: Cell, exc: BaseException) -> BaseException:
    """Return what a hook's exception means."""
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
