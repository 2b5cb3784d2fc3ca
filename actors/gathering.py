"""Several awaitables together: all, the first n, or each with its outcome; never a task left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import copy_context
from inspect import iscoroutine
from typing import Any
from weakref import ReferenceType

from actors.handle import LocalRef
from actors.trace import FRAME, owns_task

__all__ = ["gather"]

_ASK = LocalRef.ask.__code__


async def gather(
    awaitables: Iterable[Awaitable[Any]], *, first: int | None, collect: bool, timeout: float | None
) -> list[Any]:
    """See `Context.gather`. The tasks inherit the caller's context, and with it deadline and ask chain."""
    if first is not None and collect:
        raise ValueError("gather: `first` and `collect` exclude each other")
    tasks = [_begin(awaitable) for awaitable in awaitables]
    if first is not None and not 0 <= first <= len(tasks):
        await _cancel(tasks)
        raise ValueError(f"gather: cannot have the first {first} of {len(tasks)}")
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    try:
        if first is None and not collect:
            results = await _all(tasks, deadline)
        else:
            results = await _outcome(tasks, first, collect, deadline)
    except BaseException:
        await _cancel(tasks)
        raise
    if first is not None or collect:
        await _cancel(tasks)
    return results


async def _all(tasks: Sequence[asyncio.Future[Any]], deadline: float | None) -> list[Any]:
    """Wait for all of them, or for the first failure; a fan-out of thousands costs one callback each."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    pending = [task for task in tasks if not task.done()]
    if not pending or len(pending) < len(tasks):
        _raise_first(tasks)
    left = len(pending)

    def settled(task: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if (not left or task.cancelled() or task.exception() is not None) and not waiter.done():
            waiter.set_result(None)

    for task in pending:
        task.add_done_callback(settled)
    if pending:
        handle = None if deadline is None else loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            if handle is not None:
                handle.cancel()
    if left:
        _raise_first(pending)
        late = sum(not task.done() for task in tasks)
        raise TimeoutError(f"gather: {late} of {len(tasks)} took too long")
    return [task.result() for task in tasks]


def _raise_first(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Raise the error of the first task that has failed, if any."""
    for task in tasks:
        if task.done():
            task.result()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _begin(awaitable: Awaitable[Any]) -> asyncio.Future[Any]:
    """Start one of the awaitables; a handler that awaits them all waits for it as if it did so itself."""
    if not iscoroutine(awaitable):
        return asyncio.ensure_future(awaitable)
    begun = awaitable.cr_suspended or awaitable.cr_running
    if awaitable.cr_code is _ASK and not begun and awaitable.cr_frame is not None:
        # An ask that has not begun needs no task: the future of its answer is enough.
        asked = awaitable.cr_frame.f_locals
        awaitable.close()
        ref: LocalRef[Any] = asked["self"]
        return ref.question(asked["message"], asked["timeout"], True)
    frame = FRAME.get()
    if frame is None or not owns_task(frame):
        return asyncio.ensure_future(awaitable)
    context = copy_context()
    task = asyncio.Task(awaitable, loop=asyncio.get_running_loop(), context=context)
    context.run(FRAME.set, (*frame[:3], ReferenceType(task), frame[4]))
    return task


async def _outcome(
    tasks: Sequence[asyncio.Future[Any]], first: int | None, collect: bool, deadline: float | None
) -> list[Any]:
    results: list[Any] = []
    failures = 0
    pending = set(tasks)
    wanted = len(tasks) if first is None else first
    while pending and len(results) < wanted:
        done = await _some(pending, deadline)
        if not done:
            if collect:
                break
            raise TimeoutError(f"gather: {len(pending)} of {len(tasks)} took too long")
        pending -= done
        for task in [task for task in tasks if task in done]:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if collect:
                continue
            if error is None:
                results.append(task.result())
                continue
            failures += 1
            if len(tasks) - failures < wanted:
                raise error
    if collect:
        return [_settled(task) for task in tasks]
    return results[:wanted] if first is not None else [task.result() for task in tasks]


async def _some(pending: set[asyncio.Future[Any]], deadline: float | None) -> set[asyncio.Future[Any]]:
    timeout = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    done, _ = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return done


def _settled(task: asyncio.Future[Any]) -> Any:
    if not task.done():
        return TimeoutError("gather: took too long")
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    return task.result() if error is None else error


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what runs and wait for its end, even if this very wait is cancelled."""
    for task in tasks:
        task.cancel()
    running: list[asyncio.Future[Any]] = [task for task in tasks if not task.done()]
    cancelled: asyncio.CancelledError | None = None
    while running:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as exc:
            cancelled = exc
        running = [task for task in running if not task.done()]
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that the loop does not complain
    if cancelled is not None:
        raise cancelled
