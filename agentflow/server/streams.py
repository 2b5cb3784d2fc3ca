"""Streams of events to clients (page 000 §8.1).

A stream is a position in a log that everybody shares: no queue of its own, no copy of an event. Everything
that is pending goes out as one chunk; while the client does not take it the position stays where it is, the
writer goes on, and the client catches up from the log. A client that goes away ends its stream and nothing
else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentflow.errors import AgentflowError
from agentflow.events.envelope import StoredEvent, iso
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog
from agentflow.server.connection import HIGH_WATER, Link, link_of
from agentflow.server.frames import Frames, Sse, expand, pieces
from agentflow.server.metrics import Metrics
from agentflow.server.positions import EventFilter, Heartbeat
from agentflow.server.problems import Refusal

__all__ = ["Plan", "Streams"]

_DEAD_AFTER = 30.0
_POLL = 0.2
_PATIENCE = 0.25
_PAGE = 256


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one client asked for. `limit` events at most; `timeout` seconds without an event end it."""

    frames: Frames
    wanted: EventFilter
    follow: bool = True
    limit: int | None = None
    timeout: float | None = None
    expand: bool = False
    heartbeat: float | None = 15.0
    heartbeat_form: Heartbeat = "line"


class Streams:
    """All open streams of a daemon. A socket that takes nothing for `dead_after` seconds is closed."""

    def __init__(
        self,
        hub: Hub,
        log: EventLog,
        metrics: Metrics,
        limit: int,
        dead_after: float = _DEAD_AFTER,
    ) -> None:
        self.hub = hub
        self.log = log
        self.metrics = metrics
        self.dead_after = dead_after
        self._limit = limit
        self._open: set[_Stream] = set()
        self._watch: asyncio.TimerHandle | None = None
        self.closing = False

    def of_run(self, workflow_id: str, first: int, plan: Plan, headers: dict[str, str]) -> Response:
        """The events of a run from offset `first` on. Refusal `too_many_streams`."""
        self._admit()
        return _RunStream(self, plan, headers, workflow_id, first)

    def of_all(
        self,
        place: str | None,
        plan: Plan,
        types: list[str] | None,
        times: tuple[int | None, int | None],
    ) -> Response:
        """The events of all runs behind `place`, in the order of their commits. Refusal."""
        self._admit()
        cursor, skip = parse_place(place)
        return _AllStream(self, plan, cursor, skip, types, times)

    def _admit(self) -> None:
        if len(self._open) >= self._limit:
            raise Refusal("too_many_streams", f"{self._limit} streams are open already")

    def enter(self, stream: _Stream) -> None:
        """A stream begins."""
        self._open.add(stream)
        self.metrics.streams_open = len(self._open)
        if self._watch is None:
            self._look_later()

    def leave(self, stream: _Stream) -> None:
        """A stream has ended."""
        self._open.discard(stream)
        self.metrics.streams_open = len(self._open)

    def close(self) -> None:
        """End the streams of all runs where they are; those of single runs end with the hub."""
        self.closing = True
        for stream in list(self._open):
            stream.daemon_stops()

    # One timer looks after all sockets: a thousand idle streams cost nothing else.

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self.dead_after / 6, self._look)

    def _look(self) -> None:
        self._watch = None
        now = time.monotonic()
        for stream in list(self._open):
            if stream.is_dead(now, self.dead_after):
                self.metrics.streams_stalled += 1
                stream.abort()
        if self._open:
            self._look_later()


class _Stream(Response):
    """The response that is one stream. Sent once, by the request's own task."""

    def __init__(self, streams: Streams, plan: Plan, headers: dict[str, str]) -> None:
        self.status_code = 200
        self.background = None
        # What is sent is never kept by anybody on the way, and never held back by a proxy.
        common = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": plan.frames.media}
        self.init_headers({**common, **headers})
        self._streams = streams
        self._plan = plan
        self._link: Link | None = None
        self._send: Send | None = None
        self._deadline: asyncio.Timeout | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._sending = False
        self._leaving = False
        self._last_sent = 0.0
        self._left = plan.limit
        self._written = 0
        self._taken = -1
        self._taken_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream to its end."""
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self._link, self._send = link_of(scope), send
        gone = asyncio.ensure_future(_disconnected(receive))
        self._streams.enter(self)
        try:
            async with asyncio.timeout(None) as self._deadline:
                gone.add_done_callback(self._client_left)
                await self._run()
        except TimeoutError:
            pass
        finally:
            self._leaving = True
            self._streams.leave(self)
            left = gone.done()
            await self._tidy(gone)
        if not left:
            # The end of the body is how a client learns that this was all.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tidy(self, gone: asyncio.Future[None]) -> None:
        if self._beat is not None:
            self._beat.cancel()
        pending: list[asyncio.Future[Any]] = [gone]
        if self._beating is not None:
            pending.append(self._beating)
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)

    def _client_left(self, gone: asyncio.Future[None]) -> None:
        if not gone.cancelled():
            self._end_now()

    def _end_now(self) -> None:
        if self._deadline is not None and not self._leaving:
            self._leaving = True
            self._deadline.reschedule(asyncio.get_running_loop().time())

    def daemon_stops(self) -> None:
        """The daemon is about to stop; streams of one run end when its hub closes."""

    # -- the stream itself

    async def _run(self) -> None:
        begin = self._plan.frames.begin()
        if begin:
            await self._put(begin)
        self._count_silence()
        self._start_beating()
        # Trimmed, deleted or closed under the reader: it learns more when it comes back.
        with suppress(AgentflowError):
            await self._follow()

    async def _follow(self) -> None:
        """Send what is wanted, to the end of the stream."""
        raise NotImplementedError

    def _place(self) -> dict[str, Any]:
        """Where the stream is, for signs of life."""
        raise NotImplementedError

    async def _emit(self, data: bytes, count: int) -> None:
        """Send `count` events."""
        self._deadline_at(None)
        self._streams.metrics.stream_events += count
        await self._put(data)
        self._count_silence()

    async def _put(self, data: bytes) -> None:
        assert self._send is not None
        self._sending = True
        for piece in pieces(data):
            self._written += len(piece)
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._sending = False
        self._streams.metrics.stream_bytes += len(data)
        self._last_sent = time.monotonic()

    async def _drained(self, within: float | None = None) -> bool:
        """Wait until the client has taken most of what was sent; False if that takes longer than `within`."""
        if self._link is None or self._link.buffered < HIGH_WATER:
            return True
        assert self._send is not None
        self._deadline_at(None)  # it is the client that is slow: this is no silence of the run
        try:
            async with asyncio.timeout(within):
                await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        except TimeoutError:
            return False
        self._count_silence()
        return True

    def _cut(self, events: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
        """At most as many as are left of the limit."""
        if self._left is None:
            return events
        events = events[: self._left]
        self._left -= len(events)
        return events

    def _count_silence(self) -> None:
        if self._plan.timeout is not None:
            self._deadline_at(asyncio.get_running_loop().time() + self._plan.timeout)

    def _deadline_at(self, when: float | None) -> None:
        if self._plan.timeout is not None and self._deadline is not None and not self._leaving:
            self._deadline.reschedule(when)

    # -- signs of life

    def _start_beating(self) -> None:
        self._last_sent = time.monotonic()
        if self._plan.heartbeat is not None:
            self._beat_later(self._plan.heartbeat)

    def _beat_later(self, after: float) -> None:
        self._beat = asyncio.get_running_loop().call_later(after, self._maybe_beat)

    def _maybe_beat(self) -> None:
        interval = self._plan.heartbeat
        assert interval is not None
        silent = time.monotonic() - self._last_sent
        if silent < interval - 0.005:
            self._beat_later(interval - silent)
            return
        if not self._sending and (self._beating is None or self._beating.done()):
            self._beating = asyncio.ensure_future(self._send_beat())
        self._beat_later(interval)

    async def _send_beat(self) -> None:
        event = None
        if self._plan.heartbeat_form == "event":
            stamp = iso(time.time_ns() // 1000)
            event = msgspec.json.encode({"type": "heartbeat", **self._place(), "timestamp": stamp})
        await self._put(self._plan.frames.heartbeat(event))

    # -- sockets that take nothing

    def is_dead(self, now: float, after: float) -> bool:
        """Whether something is buffered and the socket has taken nothing for `after` seconds."""
        if self._link is None:
            return False
        buffered = self._link.buffered
        taken = self._written - buffered
        if not buffered or taken > self._taken:
            self._taken, self._taken_at = max(taken, self._taken), now
        return now - self._taken_at >= after

    def abort(self) -> None:
        """Give the connection up: waiting for its buffer would be waiting for ever."""
        if self._link is not None:
            self._link.abort()


class _RunStream(_Stream):
    """The events of one run."""

    def __init__(
        self, streams: Streams, plan: Plan, headers: dict[str, str], workflow_id: str, first: int
    ) -> None:
        super().__init__(streams, plan, headers)
        self._workflow_id = workflow_id
        self._position = first - 1
        self._stop: int | None = None  # the last offset to send, when the stream does not follow

    async def _follow(self) -> None:
        plan, hub, run = self._plan, self._streams.hub, self._workflow_id
        if not plan.follow:
            self._stop = await self._streams.log.last(run)
        while True:
            async with aclosing(hub.batches(run, self._position, follow=plan.follow)) as batches:
                async for batch in batches:
                    if not await self._take(batch):
                        break
                    if self._left == 0 or (self._stop is not None and self._position >= self._stop):
                        return
                else:
                    return
            # A client that is slow for long holds no events: it goes on from the log when it has room.
            await self._drained()

    async def _take(self, batch: Sequence[StoredEvent]) -> bool:
        """Send a batch; False when the client did not take all of it and the rest was let go."""
        plan, wanted = self._plan, self._plan.wanted
        if self._stop is not None and batch[-1].offset > self._stop:
            batch = batch[: self._stop - batch[0].offset + 1]
        for part in parts(batch):
            shown = part if wanted.everything else [event for event in part if wanted(event)]
            shown = self._cut(shown)
            if plan.expand:
                shown = [await self._expanded(event) for event in shown]
            if shown:
                await self._emit(plan.frames.events(shown), len(shown))
            self._position = part[-1].offset
            if self._left == 0:
                return True
            if not await self._drained(_PATIENCE):
                return self._position == batch[-1].offset
        return True

    async def _expanded(self, event: StoredEvent) -> StoredEvent:
        body = await expand(event.body, self._streams.log.get_blob)
        return event if body is event.body else StoredEvent(event.offset, event.ts, event.type, body)

    def _place(self) -> dict[str, Any]:
        return {"workflow_id": self._workflow_id, "offset": self._position}


class _AllStream(_Stream):
    """The events of all runs, in the order of their commits. A place is the cursor of a page of the log and
    the number of events of that page that were sent."""

    def __init__(
        self,
        streams: Streams,
        plan: Plan,
        cursor: str | None,
        skip: int,
        types: list[str] | None,
        times: tuple[int | None, int | None],
    ) -> None:
        super().__init__(streams, plan, {})
        self._cursor = cursor
        self._skip = skip
        self._types = types
        self._since, self._until = times

    async def _follow(self) -> None:
        log = self._streams.log
        while not self._streams.closing:
            page = await log.query(
                self._types, since=self._since, until=self._until, cursor=self._cursor, limit=_PAGE
            )
            for part in parts(self._cut([item.event for item in page.items[self._skip :]])):
                await self._emit(self._frames(part), len(part))
                self._skip += len(part)
                await self._drained()
            if self._left == 0:
                return
            self._cursor, self._skip = page.next_cursor, 0
            if page.items:
                await asyncio.sleep(0)
            elif self._plan.follow:
                await asyncio.sleep(_POLL)
            else:
                return

    def _frames(self, events: Sequence[StoredEvent]) -> bytes:
        frames = self._plan.frames
        if not isinstance(frames, Sse):
            return frames.events(events)
        cursor, sent = self._cursor or "", self._skip
        return b"".join(
            frames.marked(event.type, event.body, f"{cursor}.{sent + i}") for i, event in enumerate(events, 1)
        )

    def _place(self) -> dict[str, Any]:
        return {"cursor": f"{self._cursor or ''}.{self._skip}"}

    def daemon_stops(self) -> None:
        self._end_now()


def parse_place(text: str | None) -> tuple[str | None, int]:
    """The place of a stream of all runs: a cursor, and how many events of its page were sent. Refusal."""
    if not text:
        return None, 0
    cursor, dot, sent = text.rpartition(".")
    if not dot or not sent.isdecimal() or int(sent) > _PAGE:
        raise Refusal("invalid_position", "the cursor is not one that a stream of all runs has given")
    return cursor or None, int(sent)


def parts(events: Sequence[StoredEvent]) -> Iterator[Sequence[StoredEvent]]:
    """Events in runs of at most about 128 KiB: what a client may have in front of it at once."""
    size = start = 0
    for index, event in enumerate(events):
        size += len(event.body)
        if size >= HIGH_WATER:
            yield events[start : index + 1]
            start, size = index + 1, 0
    if start < len(events):
        yield events[start:] if start else events


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
