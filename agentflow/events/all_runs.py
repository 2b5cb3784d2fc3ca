"""The live end of the order of all runs: what is committed is read once, for all readers that follow it.

Publication only says that something was committed. The events are read from the store, because its cursors
are the order. A reader holds a cursor; one that is not at the live end reads the log by itself until it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence, Set

import msgspec

from agentflow.errors import AgentflowError
from agentflow.events.cursors import decode_cursor
from agentflow.events.filters import TypeFilter
from agentflow.events.log import EventLog
from agentflow.events.rows import LoggedEvent, Page
from agentflow.events.waiters import Waiters

__all__ = ["PAGE", "AllRuns", "AllRunsReader", "Found"]

PAGE = 256
"""Events of a page at most."""
_WINDOW_EVENTS = 1_024
_WINDOW_BYTES = 1 << 20


class Found(msgspec.Struct, frozen=True):
    """Events that come after `cursor`; the first `seen` of them the reader has had already."""

    cursor: str | None
    items: Sequence[LoggedEvent]
    seen: int
    damaged: tuple[str, ...]
    next_cursor: str | None


class _Live(msgspec.Struct, frozen=True):
    """A page of the window: the cursor before it, both positions, and its size in bytes."""

    cursor: str
    begin: tuple[int, ...]
    end: tuple[int, ...]
    page: Page[LoggedEvent]
    size: int


class AllRuns:
    """A window of the newest events of all runs. It is empty while no reader follows. For one event loop.

    `on_follow` is called when a reader begins to follow.
    """

    def __init__(self, log: EventLog, on_follow: Callable[[], None]) -> None:
        self._log = log
        self._on_follow = on_follow
        self._pages: deque[_Live] = deque()
        self._by_cursor: dict[str, _Live] = {}
        self._end: str | None = None
        self._stale = False
        self._reading: asyncio.Task[None] | None = None
        self._waiters = Waiters()
        self.followers = 0
        self.commits = 0
        """How often something was committed, as far as it was told."""
        self.closed = False

    def committed(self) -> None:
        """Note that something was committed, or may have been. Never waits."""
        self.commits += 1
        if self.followers and self._end is not None:
            self._stale = True
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._read())

    def close(self) -> None:
        """Let every reader end where it is. Idempotent."""
        self.closed = True
        self._waiters.wake()

    def enter(self) -> None:
        """Register a reader that follows."""
        self.followers += 1
        self._on_follow()

    def leave(self) -> None:
        """Remove a reader. The last one leaves nothing in memory."""
        self.followers -= 1
        if not self.followers:
            self._empty()
            if self._reading is not None:
                self._reading.cancel()

    def begin_at(self, cursor: str) -> None:
        """Let the window begin behind `cursor`, unless it has begun."""
        if self._end is None:
            self._end = cursor

    @property
    def begun(self) -> bool:
        """True if the window has a place in the log."""
        return self._end is not None

    def is_at_end(self, position: tuple[int, ...]) -> bool:
        """Return whether the window has nothing behind a position."""
        return self._end is not None and position >= position_of(self._end)

    def page_after(self, cursor: str) -> _Live | None:
        """Return the page that begins at a cursor."""
        return self._by_cursor.get(cursor)

    def page_around(self, position: tuple[int, ...]) -> _Live | None:
        """Return the page in which a position lies, behind its beginning."""
        return next((live for live in self._pages if live.begin < position < live.end), None)

    async def wait(self) -> None:
        """Wait until the window has moved."""
        await self._waiters.wait()

    async def _read(self) -> None:
        try:
            while self._stale and self._end is not None:
                self._stale = False
                page = await self._log.query(cursor=self._end, limit=PAGE)
                if page.items or page.damaged:
                    self._add(page)
                    self._stale = self._stale or len(page.items) == PAGE
        except AgentflowError:
            self._empty()  # the readers ask the log themselves, and meet the same
            self._waiters.wake()
        finally:
            self._reading = None

    def _add(self, page: Page[LoggedEvent]) -> None:
        assert self._end is not None
        assert page.next_cursor is not None
        size = sum([item.event.size for item in page.items])
        begin, end = position_of(self._end), position_of(page.next_cursor)
        live = _Live(self._end, begin, end, page, size)
        self._pages.append(live)
        self._by_cursor[live.cursor] = live
        self._end = page.next_cursor
        while len(self._pages) > 1 and (
            sum(len(one.page.items) for one in self._pages) > _WINDOW_EVENTS
            or sum(one.size for one in self._pages) > _WINDOW_BYTES
        ):
            del self._by_cursor[self._pages.popleft().cursor]
        self._waiters.wake()

    def _empty(self) -> None:
        self._pages.clear()
        self._by_cursor.clear()
        self._end = None


class AllRunsReader:
    """One reader of all runs. It keeps no event, so the same place can be read again.

    Use it as a context manager; without `follow` it ends with what the log has.
    """

    def __init__(
        self,
        window: AllRuns,
        log: EventLog,
        types: Sequence[str] | None = None,
        *,
        since: int | None = None,
        until: int | None = None,
        follow: bool = True,
    ) -> None:
        self._window = window
        self._log = log
        self._types = types
        self._wanted = None if types is None else TypeFilter(types)
        self._since, self._until = since, until
        self._follow = follow
        # Of what was read past the window: where that began, what came, and where it ended. The page of the
        # window in which it ended has events that the reader had.
        self._first: str | None = None
        self._had: deque[tuple[str, int]] = deque(maxlen=PAGE)
        self._last: tuple[str, list[tuple[str, int]]] | None = None

    def __enter__(self) -> AllRunsReader:
        if self._follow:
            self._window.enter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._follow:
            self._window.leave()

    async def read(self, cursor: str | None) -> Found | None:
        """Return what comes after a cursor, as soon as there is something; it may be nothing that is wanted.

        The answer may begin before the cursor, with `seen` events of it. None: there is no more, or the
        window was closed. Raises StoreError, LogCorrupt or LogClosed if the log cannot be read.
        """
        window = self._window
        while self._follow and cursor is not None and not window.closed:
            live = window.page_after(cursor)
            if live is not None:
                self._forget()
                return self._shown(live, frozenset())
            position = position_of(cursor)
            live = window.page_around(position)
            if live is not None and self._continues(cursor, live):
                found = self._shown(live, set(self._had))
                self._forget()
                return found
            if live is not None or not window.is_at_end(position):
                break
            await window.wait()
        return None if window.closed else await self._read_log(cursor)

    async def _read_log(self, cursor: str | None) -> Found | None:
        window = self._window
        if self._last is None or self._last[0] != cursor:
            self._forget()
            self._first = cursor
        else:
            self._had.extend(self._last[1])
        commits = window.commits
        page = await self._log.query(
            self._types, since=self._since, until=self._until, cursor=cursor, limit=PAGE
        )
        following = page.next_cursor
        assert following is not None
        self._last = following, [(item.workflow_id, item.event.offset) for item in page.items]
        if not page.items and not page.damaged:
            if not self._follow:
                return None
            if not window.begun and window.commits == commits:
                window.begin_at(following)
        return Found(cursor, page.items, 0, page.damaged, following)

    def _continues(self, cursor: str, live: _Live) -> bool:
        """Return whether everything of a page up to a cursor within it was read past the window."""
        if self._last is None or self._last[0] != cursor or self._first is None:
            return False
        if live.begin < position_of(self._first):
            return False
        self._had.extend(self._last[1])
        self._last = cursor, []
        return True

    def _forget(self) -> None:
        self._first = self._last = None
        self._had.clear()

    def _shown(self, live: _Live, had: Set[tuple[str, int]]) -> Found:
        wanted, since, until, items = self._wanted, self._since, self._until, live.page.items
        if wanted is not None or since is not None or until is not None:
            items = [
                item
                for item in items
                if (wanted is None or wanted(item.event.type))
                and (since is None or item.event.ts >= since)
                and (until is None or item.event.ts < until)
            ]
        # What it had are the first ones: the page and the log have the same order.
        seen = len([item for item in items if had and (item.workflow_id, item.event.offset) in had])
        return Found(live.cursor, items, seen, live.page.damaged, live.page.next_cursor)


def position_of(cursor: str) -> tuple[int, ...]:
    """Return the position of a cursor of `EventLog.query`; those of one store are ordered like its events."""
    return decode_cursor(cursor, tuple[int, ...])
