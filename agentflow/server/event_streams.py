"""Streams of the events of one run, and of all runs. What both share is in `stream`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.all_runs import PAGE
from agentflow.events.deltas import DeltaReader
from agentflow.events.envelope import StoredEvent
from agentflow.events.pages import SharedPage
from agentflow.events.rows import VERIFY_HINT
from agentflow.logs import get_logger
from agentflow.server.connection import HIGH_WATER
from agentflow.server.frames import Frames, Sse
from agentflow.server.problems import Refusal
from agentflow.server.stream import Plan, Stream
from agentflow.server.stream_registry import StreamRegistry

__all__ = ["AllStream", "RunStream", "parse_place", "parts"]

_log = get_logger("agentflow.server")

_encode = msgspec.json.Encoder().encode

_LARGEST_SHARED = 1 << 20
"""Bytes of a page of which the frames are kept for other streams."""
_DELTA_INTERVAL_S = 0.1
"""Text of an answer that a model writes within this time is sent as one frame."""
_SLOW_CLIENT_INTERVAL_S = 1.0
"""How often the stream looks whether a slow client has room for text."""
_DRAIN_WAIT_S = 0.25
"""How long a stream waits for a slow client before it lets its events go and reads them again later."""


class RunStream(Stream):
    """The events of one run."""

    def __init__(
        self, streams: StreamRegistry, plan: Plan, headers: dict[str, str], workflow_id: str, first: int
    ) -> None:
        super().__init__(streams, plan, headers)
        self._workflow_id = workflow_id
        self._position = first - 1
        self._stop: int | None = None  # the last offset to send, when the stream does not follow
        self._deltas: DeltaReader | None = None
        self._delta_timer: asyncio.TimerHandle | None = None
        self._deltas_sent = 0.0

    async def follow(self) -> None:
        if not (self.plan.deltas and self.plan.follow):
            await self._follow()
            return
        with self.streams.deltas.follow(self._workflow_id, self._deltas_wait) as self._deltas:
            try:
                await self._follow()
            finally:
                if self._delta_timer is not None:
                    self._delta_timer.cancel()

    async def _follow(self) -> None:
        plan, hub, run = self.plan, self.streams.hub, self._workflow_id
        if not plan.follow:
            self._stop = await self.streams.log.last(run)
        while True:
            async with aclosing(hub.batches(run, self._position, follow=plan.follow)) as batches:
                async for batch in batches:
                    if not await self._take(batch):
                        break
                    if self.left == 0 or (self._stop is not None and self._position >= self._stop):
                        return
                else:
                    return
            # A client that is slow for long holds no events: it goes on from the log when it has room.
            await self.drained()

    async def _take(self, batch: Sequence[StoredEvent]) -> bool:
        """Send a batch; False when the client did not take all of it and the rest was let go."""
        plan, wanted = self.plan, self.plan.wanted
        if self._stop is not None and batch[-1].offset > self._stop:
            batch = batch[: self._stop - batch[0].offset + 1]
        shared = wanted.everything and self.left is None and not plan.expand
        for part, data in encoded(batch, plan.frames) if shared else ((part, b"") for part in parts(batch)):
            shown = part if wanted.everything else [event for event in part if wanted(event)]
            shown = self.cut(shown)
            # Text of an answer comes before the event that has all of it.
            ahead = b"" if self._deltas is None else self._delta_frames()
            if shown:
                data = data or plan.frames.events(shown, whole=plan.expand)
                await self.emit(ahead + data, len(shown))
            elif ahead:
                await self.put(ahead)
            self._position = part[-1].offset
            if self._deltas is not None:
                self._deltas.forget(self._position)
                if self._deltas.held:
                    self._deltas_wait()
            if self.left == 0:
                return True
            if not await self.drained(_DRAIN_WAIT_S):
                return self._position == batch[-1].offset
        return True

    # -- answers while they are written

    def _deltas_wait(self) -> None:
        if self._delta_timer is not None:
            return
        due = self._deltas_sent + _DELTA_INTERVAL_S - time.monotonic()
        self._delta_timer = asyncio.get_running_loop().call_later(max(due, 0), self._deltas_due)

    def _deltas_due(self) -> None:
        self._delta_timer = None
        self._deltas_sent = time.monotonic()
        if self.busy or self.slow:  # the text gathers, and is sent as one frame
            self._delta_timer = asyncio.get_running_loop().call_later(
                _SLOW_CLIENT_INTERVAL_S, self._deltas_due
            )
        else:
            self.put_aside(self._send_deltas())

    async def _send_deltas(self) -> None:
        # The text is taken from the reader when it is sent, not before: an event that is sent meanwhile sends
        # the text ahead of itself, and text must never follow the event that has all of it.
        if data := self._delta_frames():
            await self.put(data)

    def _delta_frames(self) -> bytes:
        """Return what was written in calls whose beginning the client has seen."""
        if self._deltas is None:
            return b""
        frames, step = self.plan.frames, self.plan.step
        found = self._deltas.take(self._position)
        return b"".join([frames.aside(d.type, _encode(d)) for d in found if step is None or d.step == step])

    def place(self) -> dict[str, Any]:
        return {"workflow_id": self._workflow_id, "offset": self._position}

    @property
    def workflow_id(self) -> str:
        return self._workflow_id


class AllStream(Stream):
    """The events of all runs, in the order of their commits. A place is the cursor of a page of the log and
    the number of events of that page that were sent."""

    def __init__(
        self,
        streams: StreamRegistry,
        plan: Plan,
        place: tuple[str | None, int],
        types: list[str] | None,
        times: tuple[int | None, int | None],
    ) -> None:
        super().__init__(streams, plan, {})
        self._cursor: str | None = place[0]
        self._skip: int = place[1]
        self._types = types
        self._since, self._until = times
        self._reported: set[str] = set()

    async def follow(self) -> None:
        reading = self.streams.hub.read_all(
            self._types, since=self._since, until=self._until, follow=self.plan.follow
        )
        with reading as reader:
            while not self.streams.closing:
                found = await reader.read(self._cursor)
                if found is None:
                    return
                await self._tell_gaps(found.damaged)
                if found.cursor != self._cursor:
                    self._cursor, self._skip = found.cursor, found.seen
                events, following = [item.event for item in found.items[self._skip :]], found.next_cursor
                del found
                if not await self._take(events):
                    continue  # the rest was let go: the page is read again
                if self.left == 0:
                    return
                self._cursor, self._skip = following, 0
                await asyncio.sleep(0)

    async def _take(self, events: list[StoredEvent]) -> bool:
        """Send the rest of a page; return False if some of it was let go.

        A client that takes nothing for 250 ms holds the part that is being sent (about 128 KiB) and no page.
        """
        end = self._skip + len(events)
        for part in parts(events):
            shown = self.cut(part)
            letting_go = asyncio.get_running_loop().call_later(_DRAIN_WAIT_S, events.clear)
            try:
                await self.emit(self._frames(shown), len(shown))
                self._skip += len(shown)
                await self.drained()
            finally:
                letting_go.cancel()
            if self.left == 0:
                return True
        return self._skip == end

    async def _tell_gaps(self, damaged: Sequence[str]) -> None:
        """Name the runs of which something is missing on this page, ahead of what it has."""
        for workflow_id in damaged:
            if workflow_id not in self._reported:
                self._reported.add(workflow_id)
                _log.warning("events_missing", workflow_id=workflow_id, hint=VERIFY_HINT)
        if damaged:
            frames = self.plan.frames
            await self.put(b"".join([frames.gap(workflow_id, LogCorrupt.code) for workflow_id in damaged]))

    def _frames(self, events: Sequence[StoredEvent]) -> bytes:
        frames = self.plan.frames
        if not isinstance(frames, Sse):
            return frames.events(events)
        cursor, sent = self._cursor or "", self._skip
        return b"".join(
            frames.marked(event.type, event.wire, f"{cursor}.{sent + i}") for i, event in enumerate(events, 1)
        )

    def place(self) -> dict[str, Any]:
        return {"cursor": f"{self._cursor or ''}.{self._skip}"}

    def daemon_stops(self) -> None:
        self.end_now()


def parse_place(text: str | None) -> tuple[str | None, int]:
    """Return the place of a stream of all runs: a cursor, and how many events of its page were sent. Raises
    Refusal."""
    if not text:
        return None, 0
    cursor, dot, sent = text.rpartition(".")
    if not dot or not sent.isdecimal() or int(sent) > PAGE:
        raise Refusal("invalid_position", "the cursor is not one that a stream of all runs has given")
    return cursor or None, int(sent)


def encoded(events: Sequence[StoredEvent], frames: Frames) -> Iterable[tuple[Sequence[StoredEvent], bytes]]:
    """Return the parts of events with their frames; those of a page that several streams read are made once,
    unless they are large."""
    if not isinstance(events, SharedPage) or events.size > _LARGEST_SHARED:
        return ((part, frames.events(part)) for part in parts(events))
    found = events.made.get(frames.form)
    if found is None:
        found = events.made[frames.form] = [(part, frames.events(part)) for part in parts(events)]
    return found


def parts(events: Sequence[StoredEvent]) -> Iterator[Sequence[StoredEvent]]:
    """Split events into parts of about 128 KiB at most, the limit of a client's backlog."""
    size = start = 0
    for index, event in enumerate(events):
        size += event.size
        if size >= HIGH_WATER:
            yield events[start : index + 1]
            start, size = index + 1, 0
    if start < len(events):
        yield events[start:] if start else events
