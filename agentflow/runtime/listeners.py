"""Listeners: functions of users that get the durable events of all runs at least once, by stored cursors.

A listener reads the log behind the writer: one that is slow or fails costs the runs nothing, and what it has
not taken waits in the log, across restarts. It never sees an event that is not durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from agentflow.errors import AgentflowError, ConfigurationError, LogClosed, LogCorrupt
from agentflow.events.envelope import Event, decode
from agentflow.events.log import EventLog
from agentflow.events.owner import Owner, this_process
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
    wait. A plain function runs in a thread. One Runtime of a store serves a name at a time: another one with
    the name raises ConfigurationError when it is opened.
    """

    name: str
    handle: Callable[[str, Event[Any]], Awaitable[object] | object]
    types: tuple[str, ...] | None = None


class Listeners:
    """The listeners of a Runtime. Raises ConfigurationError for a name that is none or is used twice.

    Beside its cursor each name has a record of the process that serves it, which holds as long as the store
    knows that process as live.
    """

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._listeners = list(listeners)
        self._owner = msgspec.structs.replace(this_process(), token=secrets.token_hex(8))
        self._served: list[Listener] = []
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
        """Find the place of each, durably, and begin.

        Raises ConfigurationError if another Runtime serves one of the names; then none has begun.
        """
        self._log = log
        await log.register(self._owner)
        _at_work.add(self._owner.token)
        try:
            for listener in self._listeners:
                await self._take(log, listener)
        except BaseException:
            await self._give_up()
            raise
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
        try:
            _, late = await asyncio.wait(self._tasks, timeout=deadline)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            await self._give_up()

    async def _take(self, log: EventLog, listener: Listener) -> None:
        holder = await self._holder(log, listener)
        if holder is not None and holder != self._owner and _is_live(log, holder):
            who = "of this process" if holder.pid == os.getpid() else f"in process {holder.pid}"
            raise ConfigurationError(
                f'another Runtime {who} serves the listener "{listener.name}" on this store',
                hint="close that one, or give this listener another name: each has a cursor of its own",
            )
        await log.save_cursor(_served_by(listener), msgspec.json.encode(self._owner).decode())
        self._served.append(listener)

    async def _give_up(self) -> None:
        """Let another process serve the names. Without this it may do so once this process has ended."""
        _at_work.discard(self._owner.token)
        with contextlib.suppress(AgentflowError):
            for listener in self._served:
                if await self._holder(self._log, listener) == self._owner:
                    await self._log.drop_cursor(_served_by(listener))

    async def _holder(self, log: EventLog, listener: Listener) -> Owner | None:
        known = await log.load_cursor(_served_by(listener))
        return None if known is None else msgspec.json.decode(known, type=Owner)

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
                    if await self._holder(log, listener) != self._owner:  # two began in the same moment
                        _log.warning("listener_taken_over", listener=listener.name)
                        return
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


_at_work: set[str] = set()
"""The tokens of the listeners that are served in this process, which no lock tells apart."""


def _served_by(listener: Listener) -> str:
    return f"served:{listener.name}"


def _is_live(log: EventLog, holder: Owner) -> bool:
    mine = this_process()
    if (holder.pid, holder.started, holder.lock) == (mine.pid, mine.started, mine.lock):
        return holder.token in _at_work
    return log.is_alive(holder)
