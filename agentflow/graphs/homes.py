"""Where runs live: one Runtime for each event loop and store (page 002 §16).

A Runtime is opened at its first use and shared by all workflows that name its store. A task of the loop keeps
it: when the loop cancels its tasks at the end, the Runtime is closed, and runs in flight pause.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast
from weakref import WeakKeyDictionary

from agentflow.errors import AgentflowError
from agentflow.events.log import EventLog
from agentflow.events.open import store_path
from agentflow.records.checkpoint_storage import CheckpointStorage
from agentflow.runtime import Runtime

__all__ = ["Storage", "close_runtimes", "runtime_of"]

Storage = str | EventLog | Runtime | CheckpointStorage | None


class _Home:
    """A Runtime that a task keeps open until it is cancelled."""

    def __init__(self, store: str | EventLog) -> None:
        self.opened: asyncio.Future[Runtime] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self.task = asyncio.create_task(self._keep(store), name=f"agentflow runtime {store}")

    async def _keep(self, store: str | EventLog) -> None:
        try:
            async with Runtime(store) as runtime:
                self.opened.set_result(runtime)
                with contextlib.suppress(asyncio.CancelledError):
                    await self._closing.wait()
        except BaseException as error:
            if self.opened.done():
                raise
            self.opened.set_exception(error)
            self.opened.exception()  # retrieved by all that wait for it, if any

    async def close(self) -> None:
        """Close the Runtime; return when it is closed."""
        self._closing.set()
        await asyncio.gather(self.task, return_exceptions=True)


_homes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, _Home]] = WeakKeyDictionary()


async def runtime_of(storage: Storage) -> Runtime:
    """Return the Runtime of a store in the running loop, opened if it is not. None is `memory:`.

    Raises ConfigurationError if `storage` is no URL of a store, and StoreError if it cannot be opened.
    """
    if isinstance(storage, CheckpointStorage):
        return await runtime_of(cast("Storage", storage.store))
    if isinstance(storage, Runtime):
        return storage
    store = "memory:" if storage is None else storage
    key = _resolved(store) if isinstance(store, str) else store
    homes = _homes.setdefault(asyncio.get_running_loop(), {})
    home = homes.get(key)
    if home is None or home.task.done():
        home = homes[key] = _Home(store)
    try:
        return await asyncio.shield(home.opened)
    except AgentflowError:
        if homes.get(key) is home:
            del homes[key]
        raise


async def close_runtimes() -> None:
    """Close all Runtimes that workflows opened in the running loop; runs in flight pause."""
    homes = _homes.pop(asyncio.get_running_loop(), {})
    for home in homes.values():
        await home.close()


def _resolved(url: str) -> str:
    """Return the URL with an absolute path, so that two ways to write a file are one store."""
    if url == "memory:":
        return url
    scheme, path = store_path(url)
    return f"{scheme}:{path.resolve()}"
