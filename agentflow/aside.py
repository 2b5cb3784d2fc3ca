"""One thread at a time for Python that computes for long: loading documents, decoding and checking values.

The interpreter runs one thread. Each thread that computes delays the event loop by one switch interval
whenever the loop wants to go on, so that sixteen of them hold it sixteen times as long. Here they queue, in
FIFO order. What waits for a disk or a process belongs into `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

__all__ = ["compute_aside", "free_in_slices", "import_aside", "is_small"]

P = ParamSpec("P")
T = TypeVar("T")

_FREED_AT_ONCE: Final = 500
_SMALL_NODES: Final = 2_000
_SMALL_CHARACTERS: Final = 64 * 1024

_imported: set[str] = set()
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def compute_aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread while no other call of this event loop computes; return its result.

    A caller that is cancelled goes at once; the next call begins only when the thread is done.
    """
    loop = asyncio.get_running_loop()
    turn = _turns.get(loop)
    if turn is None:
        turn = _turns[loop] = asyncio.Semaphore(1)
    await turn.acquire()
    try:
        done = loop.run_in_executor(None, copy_context().run, partial(function, *args, **kwargs))
    except BaseException:
        turn.release()
        raise
    done.add_done_callback(lambda _: turn.release())
    try:
        return await asyncio.shield(done)
    finally:
        del done  # its exception refers to this frame: a cycle that only the garbage collector would free


def free_in_slices(items: list[Any]) -> None:
    """Empty a list that holds the last references to its items; for `compute_aside`.

    The interpreter is kept while a list is freed: 60 ms for 100,000 decoded events. Here it may be left after
    each 500.
    """
    while items:
        del items[-_FREED_AT_ONCE:]


async def import_aside(*names: str) -> None:
    """Import modules in a thread, so that a later `import` of them on the event loop finds them.

    A name that no module has is left to that import. `sys.modules` does not say whether a module that
    another thread imports is complete; whether it is here does.
    """
    missing = [name for name in names if name not in _imported]
    if missing:
        await compute_aside(_import_all, missing)


def _import_all(names: list[str]) -> None:
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
    _imported.update(names)


def is_small(value: object) -> bool:
    """Return whether a JSON value has at most 2,000 nodes and 64 Ki characters; takes at most 0.3 ms."""
    nodes = characters = 0
    todo: list[Any] = [value]
    while todo:
        part = todo.pop()
        nodes += 1
        if isinstance(part, str):
            characters += len(part)
        elif isinstance(part, dict | list | tuple):
            members = cast("dict[Any, Any] | list[Any]", part)
            if nodes + len(members) > _SMALL_NODES:
                return False
            if isinstance(members, dict):
                todo += members
                todo += members.values()
            else:
                todo += members
        if nodes > _SMALL_NODES or characters > _SMALL_CHARACTERS:
            return False
    return True
