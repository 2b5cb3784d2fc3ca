"""One stream of events to one client (page 000 §8.1).

A stream is a position in a shared log: it has no queue and no copy of an event. All pending events are sent
as one chunk; while the client does not take it the position stays where it is, the writer goes on, and the
client catches up from the log. A client that goes away ends its stream and nothing else. `event_streams` has
the streams of one run and of all runs, `stream_registry` counts them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentflow.errors import AgentflowError, LogCorrupt
from agentflow.events.envelope import StoredEvent, iso
from agentflow.events.rows import VERIFY_HINT
from agentflow.logs import get_logger
from agentflow.server.connection import HIGH_WATER, Link, link_of
from agentflow.server.frames import Frames, pieces
from agentflow.server.positions import EventFilter, Heartbeat
from agentflow.server.stream_registry import StreamRegistry

__all__ = ["Plan", "Stream"]

_log = get_logger("agentflow.server")


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
    deltas: bool = False
    step: str | None = None


class Stream(Response):
    """The response that is one stream. Sent once, by the request's own task."""

    def __init__(self, streams: StreamRegistry, plan: Plan, headers: dict[str, str]) -> None:
        self.status_code = 200
        self.background = None
        # No cache may store the response, and no proxy may buffer it.
        common = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no", "Content-Type": plan.frames.media}
        self.init_headers({**common, **headers})
        self.streams = streams
        self.plan = plan
        self._link: Link | None = None
        self._send: Send | None = None
        self._deadline: asyncio.Timeout | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._asides: set[asyncio.Task[None]] = set()  # what is being sent beside the events
        self.busy = False
        """True while a chunk is being sent."""
        self._turns: deque[asyncio.Future[None]] = deque()  # senders that wait for it, FIFO
        self._leaving = False
        self._last_sent = 0.0
        self.left = plan.limit
        """Events that may still be sent; None without a limit."""
        self._written = 0  # bytes given to the socket
        self._taken = -1  # bytes that the client had taken at the last look
        self._taken_at = time.monotonic()  # when that number last grew

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream to its end."""
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        # A server may hold back the head until the first piece of the body: an empty piece sends it now.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        self._link, self._send = link_of(scope), send
        gone = asyncio.ensure_future(self._client_gone(receive))
        self.streams.enter(self)
        try:
            async with asyncio.timeout(None) as self._deadline:
                gone.add_done_callback(self._client_left)
                await self._run()
        except TimeoutError:
            pass
        finally:
            self._leaving = True
            self.streams.leave(self)
            left = gone.done()
            await self._tidy(gone)
        if not left:
            # The end of the body tells the client that the stream is complete.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tidy(self, gone: asyncio.Future[None]) -> None:
        if self._beat is not None:
            self._beat.cancel()
        pending: list[asyncio.Future[Any]] = [gone]
        pending += self._asides
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)

    def _client_left(self, gone: asyncio.Future[None]) -> None:
        if not gone.cancelled():
            self.end_now()

    async def _client_gone(self, receive: Receive) -> None:
        """Return when the client has gone. One that only sends nothing more still reads (page 000 §8.1)."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if self._link is not None and self._link.half_closed:
            # TCP tells the two apart only by what follows: a client that is gone resets the connection.
            self.put_aside(self._send_beat())
            await self._link.wait_closed()

    def end_now(self) -> None:
        if self._deadline is not None and not self._leaving:
            self._leaving = True
            self._deadline.reschedule(asyncio.get_running_loop().time())

    def daemon_stops(self) -> None:
        """Note that the daemon is about to stop; streams of one run end when its hub closes."""

    # -- the stream itself

    async def _run(self) -> None:
        begin = self.plan.frames.begin()
        if begin:
            await self.put(begin)
        self._count_silence()
        self._start_beating()
        # The run was trimmed or deleted, or the log closed: the next request of the client says which.
        with suppress(AgentflowError):
            try:
                await self.follow()
            except LogCorrupt as error:  # the end of the body alone would say that this was all
                _log.warning("stream_ended_at_damage", **self.place(), error=str(error), hint=VERIFY_HINT)
                await self.put(self.plan.frames.gap(self.workflow_id, error.code))

    async def follow(self) -> None:
        """Send what is wanted, to the end of the stream."""
        raise NotImplementedError

    @property
    def workflow_id(self) -> str | None:
        """The run that this is a stream of; None: all runs."""
        return None

    def place(self) -> dict[str, Any]:
        """Return the place of the stream, for heartbeats."""
        raise NotImplementedError

    async def emit(self, data: bytes, count: int) -> None:
        """Send `count` events."""
        self._deadline_at(None)
        self.streams.metrics.stream_events += count
        await self.put(data)
        self._count_silence()

    async def put(self, data: bytes) -> None:
        """Send bytes that are no event."""
        assert self._send is not None
        if self.busy:  # nothing comes between the pieces
            await self._wait_turn()
        self.busy = True
        try:
            for piece in pieces(data):
                self._written += len(piece)
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            self._pass_turn()
        self.streams.metrics.stream_bytes += len(data)
        self._last_sent = time.monotonic()

    # By hand: an uncontended asyncio.Lock takes a fifth of the time of an event.

    async def _wait_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was ours by then
                self._pass_turn()
            raise

    def _pass_turn(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)  # FIFO: it stays busy, so no later caller gets in between
                return
        self.busy = False

    async def drained(self, within: float | None = None) -> bool:
        """Wait until the client has taken most of what was sent; False if that takes longer than `within`."""
        if not self.slow:
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

    def cut(self, events: Sequence[StoredEvent]) -> Sequence[StoredEvent]:
        """Return as many events as the limit leaves."""
        if self.left is None:
            return events
        events = events[: self.left]
        self.left -= len(events)
        return events

    def _count_silence(self) -> None:
        if self.plan.timeout is not None:
            self._deadline_at(asyncio.get_running_loop().time() + self.plan.timeout)

    def _deadline_at(self, when: float | None) -> None:
        if self.plan.timeout is not None and self._deadline is not None and not self._leaving:
            self._deadline.reschedule(when)

    # -- what is sent beside the events

    @property
    def slow(self) -> bool:
        """Whether the client has yet to take most of what was sent."""
        return self._link is not None and self._link.buffered >= HIGH_WATER

    def put_aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Send something in a task that ends with the stream."""
        task = asyncio.ensure_future(work)
        self._asides.add(task)
        task.add_done_callback(self._sent_aside)

    def _sent_aside(self, task: asyncio.Task[None]) -> None:
        self._asides.discard(task)
        if not task.cancelled():
            task.exception()  # the connection has gone: the stream learns that for itself

    # -- signs of life

    def _start_beating(self) -> None:
        self._last_sent = time.monotonic()
        if self.plan.heartbeat is not None:
            self._beat_later(self.plan.heartbeat)

    def _beat_later(self, after: float) -> None:
        self._beat = asyncio.get_running_loop().call_later(after, self._maybe_beat)

    def _maybe_beat(self) -> None:
        interval = self.plan.heartbeat
        assert interval is not None
        silent = time.monotonic() - self._last_sent
        if silent < interval - 0.005:
            self._beat_later(interval - silent)
            return
        if not self.busy:
            self.put_aside(self._send_beat())
        self._beat_later(interval)

    async def _send_beat(self) -> None:
        event = None
        if self.plan.heartbeat_form == "event":
            stamp = iso(time.time_ns() // 1000)
            event = msgspec.json.encode({"type": "heartbeat", **self.place(), "timestamp": stamp})
        await self.put(self.plan.frames.heartbeat(event))

    # -- sockets that take nothing

    def is_dead(self, now: float, after: float) -> bool:
        """Return whether something is buffered and the socket has taken nothing for `after` seconds."""
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
