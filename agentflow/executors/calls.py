"""Calls of users' functions: on the loop if they are asynchronous, else in a worker thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agentflow.executors.payloads import Payloads

__all__ = ["caller_of", "in_thread"]


async def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a plain function in a worker thread, with the context variables of the caller.

    A thread cannot be cancelled: a call that is cancelled is left to end by itself, and its result dropped.
    """
    return await asyncio.to_thread(partial(function, *args))


def caller_of(
    function: Callable[..., Any], args: tuple[Any, ...], payloads: Payloads
) -> Callable[[], Awaitable[Any]]:
    """Return the call whose packed result is recorded."""

    async def call() -> Any:
        if inspect.iscoroutinefunction(function):
            found = await function(*args)
        else:
            found = await in_thread(function, *args)
            if inspect.isawaitable(found):
                found = await found
        return payloads.keep(found)

    return call
