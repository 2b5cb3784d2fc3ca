"""Blocking code beside the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from agentflow.forked_child import end_forked_child

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(call: Callable[[], T], name: str) -> T:
    """Run `call` in a daemon thread with a copy of the caller's context variables.

    When the caller is cancelled the thread is left behind, since a thread cannot be stopped. It is not one of
    a pool: a function that never returns must neither take a place from the calls of others
    nor hold up the end of the process, which waits for the threads of pools. A child that `call` forks, and
    that comes back from it, ends here.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[bool, Any]] = loop.create_future()
    context = contextvars.copy_context()
    process = os.getpid()

    def settle(outcome: tuple[bool, Any]) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        failure: BaseException | None = None
        try:
            outcome = True, context.run(call)
        except BaseException as error:
            failure = error
            outcome = False, error
        if os.getpid() != process:
            end_forked_child(failure)
        with suppress(RuntimeError):  # the loop has ended: no caller waits
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name=name, daemon=True).start()
    succeeded, result = await done
    if succeeded:
        return result
    raise result
