"""A Runtime for the time of one command, and what Ctrl-C means meanwhile.

The first interrupt lets the command leave in order: the Runtime parks its runs, so that they can be
resumed. The second ends the process at once, which the log survives: nothing is acted on before it is
durable.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import ExportedRun
from agentflow.errors import ConfigurationError, RunNotFound
from agentflow.signal_handlers import SignalHandlers

if TYPE_CHECKING:
    from agentflow.cli.target import Where
    from agentflow.config import Config
    from agentflow.events.log import EventLog
    from agentflow.runtime import Runtime

__all__ = [
    "Interrupted",
    "Interrupts",
    "open_runtime",
    "open_store",
    "require_named_store",
    "run_async",
    "store_exists",
]

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h"


class Interrupted(Exception):
    """The user wants to leave."""


class Interrupts:
    """While entered, SIGINT and SIGTERM come here. For the main thread and one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handlers = SignalHandlers(_SIGNALS, self._interrupted)

    def __enter__(self) -> Interrupts:
        self._handlers.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._handlers.__exit__(*raised)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; it is cancelled, and Interrupted raised, at the first interrupt."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Interrupted
        finally:
            for pending in (task, stop):
                pending.cancel()
            await asyncio.wait({task, stop})

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            _stop_at_once()
        self._event.set()
        self._loop.call_soon_threadsafe(_nothing)  # wakes a loop that waits for I/O


def _nothing() -> None:
    """Do nothing: only the wake-up is wanted."""


def _stop_at_once() -> None:
    """End the process without another look at anything; only the terminal is put right."""
    if sys.stderr.isatty():
        os.write(2, _SHOW_CURSOR)
    os.write(2, b"\nstopped; the log holds all that was done\n")
    os._exit(Exit.INTERRUPTED)


def run_async(work: Callable[[Interrupts], Awaitable[Exit]]) -> Exit:
    """Run the asynchronous part of a command to its exit code."""

    async def within() -> Exit:
        with Interrupts() as interrupts:
            try:
                return await work(interrupts)
            except Interrupted:
                return Exit.INTERRUPTED

    return asyncio.run(within())


@asynccontextmanager
async def open_runtime(config: Config, *, run_id: str | None = None) -> AsyncGenerator[Runtime]:
    """Open a Runtime on the configured store. With `run_id` the command is about a run that exists: raises
    RunNotFound rather than make a store in order to find nothing in it."""
    _require_store(config, run_id)
    from agentflow import logs
    from agentflow.models import Models
    from agentflow.runtime import Runtime

    logs.configure()
    services: list[Any] = []
    if config.toolsets.enabled or config.pipeline.get("delegates"):
        from agentflow.pipeline.assembly import assemble

        services = assemble(config, folder=Path.cwd()).services()
    models = Models(config=config.for_models())
    async with AsyncExitStack() as opened:
        store: str | EventLog = config.store
        if config.archive is not None:
            from agentflow.events.open import open_log

            store = open_log(config.store, archive=config.archive)
            opened.push_async_callback(store.close)
        runtime = await opened.enter_async_context(Runtime(store, models=models, services=services))
        if run_id is not None:
            await runtime.log.run(run_id)
        yield runtime


@asynccontextmanager
async def open_store(
    config: Config, *, run_id: str | None = None, read_only: bool = False
) -> AsyncGenerator[EventLog]:
    """Open the configured store to read; `run_id` as for `open_runtime`. A run in a file is read there."""
    from agentflow import logs

    logs.configure()
    if isinstance(run_id, ExportedRun):
        from agentflow.cli.output import printable, say
        from agentflow.records.export import open_export

        opened = await open_export(Path(run_id.path))
        if opened.warning is not None:
            say(printable(f"warning: {run_id.path}: {opened.warning}"))
        yield opened.log
        return
    _require_store(config, run_id)
    from agentflow.events.open import open_log

    log = open_log(config.store, read_only=read_only, archive=config.archive)
    try:
        if run_id is not None:
            await log.run(run_id)
        yield log
    finally:
        await log.close()


def _require_store(config: Config, run_id: str | None) -> None:
    if run_id is not None and not store_exists(config.store):
        raise RunNotFound(
            f"no run {run_id}: there is no store {config.store}", hint="name it with --store URL"
        )


def require_named_store(where: Where) -> None:
    """Raise CommandError if --store names a file that is not there: a slip of the pen has no runs to list.

    Raises ConfigurationError if --read-only is given for a store in memory.
    """
    if where.read_only and where.config().store == "memory:":
        raise ConfigurationError(
            "--read-only: a store in memory is empty when it is opened, so there is nothing to read",
            hint="name a store in files with --store: `sqlite:FILE` or `file:DIR`",
        )
    if where.store is not None and not store_exists(where.config().store) and where.store != "memory:":
        raise CommandError(
            Exit.NOT_FOUND, "store_not_found", f"there is no store {where.store}", "`agentflow run` makes one"
        )


def store_exists(url: str) -> bool:
    """Return whether there may be runs: a file or directory that is not there has none."""
    scheme, _, rest = url.partition(":")
    if scheme not in ("sqlite", "file") or not rest:
        return scheme != "memory"
    return Path(rest[2:] if rest.startswith("///") else rest).exists()
