"""Listeners: functions of users that get the durable events of all runs at least once, by stored cursors.

A listener reads the log behind the writer: one that is slow or fails costs the runs nothing, and what it has
not taken waits in the log, across restarts. It never sees an event that is not durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

from agentflow.errors import AgentflowError, ConfigurationError, LogClosed, LogCorrupt
from agentflow.events.envelope import Event, decode
from agentflow.events.log import EventLog
from agentflow.events.rows import VERIFY_HINT
from agentflow.logs import get_logger
from agentflow.threads import in_thread

__all__ = ["Listener", "Listeners"]

_log = get_logger("agentflow.runtime")

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_PAGE: Final = 128
_IDLE_S: Final = (0.05, 1.0)
_RETRY_S: Final = (0.5, 60.0)


class Listener(NamedTuple):
    """A function that gets events, for `Runtime(listeners=[...])`: `handle(workflow_id, event)`.

    `types` are event types, `tool.*` is all of a family, None is all. `name` is that of its stored cursor:
    the first time on a store it begins with what is committed from then on, later where it stood. Events
    come in the order of their commits, one after another. An event comes again if the process ended, or the
    cursor could not be stored, before its page of at most 128 events was done. A call that raises is a
    warning in the log and is repeated after 0.5 s, then at growing intervals of up to 60 s; later events
    wait. A plain function runs in a thread. Processes that share a store and use one name share the cursor.
    """

    name: str
    handle: Callable[[str, Event[Any]], Awaitable[object] | object]
    types: tuple[str, ...] | None = None


class Listeners:
    """The listeners of a Runtime. Raises ConfigurationError for a name that is none or is used twice."""

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners = list(listeners)
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        names = [listener.name for listener in self._listeners]
        for name in names:
            if not _NAME.fullmatch(name):
                hint = "use lower-case letters, digits, `.`, `_` and `-`, at most 64"
                raise ConfigurationError(f'"{name[:80]}" is no name of a listener', hint=hint)
            if names.count(name) > 1:
                raise ConfigurationError(f'two listeners have the name "{name}"')

    async def start(self, log: EventLog) -> None:
        """Find the place of each, durably, and begin."""
        for listener in self._listeners:
            cursor = await log.load_cursor(_consumer(listener))
            if cursor is None:
                cursor = await log.latest_cursor()
                await log.save_cursor(_consumer(listener), cursor)
            following = self._follow(log, listener, cursor)
            self._tasks.append(asyncio.create_task(following, name=f"listener-{listener.name}"))

    async def aclose(self, deadline: float = 5.0) -> None:
        """Hand over what is committed by now, for at most `deadline` seconds, and end. The rest comes next
        time."""
        self._closing.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=deadline)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, log: EventLog, listener: Listener, cursor: str) -> None:
        types = None if listener.types is None else list(listener.types)
        idle, reported = _IDLE_S[0], set[str]()
        while True:
            last = self._closing.is_set()  # a page that was read before may lack what was committed meanwhile
            try:
                page = await log.query(types, cursor=cursor, limit=_PAGE)
                for workflow_id in set(page.damaged) - reported:
                    reported.add(workflow_id)
                    _log.warning("events_missing", workflow_id=workflow_id, hint=VERIFY_HINT)
                for workflow_id, stored in page.items:
                    try:
                        event = decode(stored.body)
                    except LogCorrupt:
                        continue  # the run is named by `verify`; waiting would not mend it
                    if not await self._hand_over(listener, workflow_id, event):
                        return
                if page.next_cursor is not None and page.next_cursor != cursor:
                    await log.save_cursor(_consumer(listener), page.next_cursor)
                    cursor = page.next_cursor
                busy = bool(page.items)
            except LogClosed:
                return
            except AgentflowError as error:  # the store fails for now
                _log.warning("listener_not_served", listener=listener.name, error=str(error))
                busy = False
            if busy:
                idle = _IDLE_S[0]
            elif last:
                return
            else:
                await self._rest(idle)
                idle = min(_IDLE_S[1], idle * 2)

    async def _hand_over(self, listener: Listener, workflow_id: str, event: Event[Any]) -> bool:
        """Call the function until it returns; False if that is left to the next start."""
        wait = _RETRY_S[0]
        while True:
            try:
                await _called(listener, workflow_id, event)
            except Exception as error:
                _log.warning(
                    "listener_failed",
                    listener=listener.name,
                    workflow_id=workflow_id,
                    offset=event.offset,
                    error=f"{type(error).__name__}: {error}",
                )
            else:
                return True
            if self._closing.is_set():
                return False
            await self._rest(wait)
            wait = min(_RETRY_S[1], wait * 2)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()


async def _called(listener: Listener, workflow_id: str, event: Event[Any]) -> None:
    handle: Any = listener.handle
    if inspect.iscoroutinefunction(handle):
        await handle(workflow_id, event)
        return
    result = await in_thread(lambda: handle(workflow_id, event), f"listener {listener.name}")
    if inspect.isawaitable(result):
        await result


def _consumer(listener: Listener) -> str:
    return f"listener:{listener.name}"
