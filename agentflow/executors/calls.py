"""Calls of users' functions: on the loop if they are asynchronous, else in a worker thread."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from agentflow.executors.payloads import Payloads
from agentflow.threads import in_thread

__all__ = ["caller_of"]


def caller_of(
    function: Callable[..., Any], args: tuple[Any, ...], payloads: Payloads
) -> Callable[[], Awaitable[Any]]:
    """Return the call whose packed result is recorded."""

    async def call() -> Any:
        if inspect.iscoroutinefunction(function):
            found = await function(*args)
        else:
            found = await in_thread(partial(function, *args), "run_once")
            if inspect.isawaitable(found):
                found = await found
        return payloads.keep(found)

    return call
