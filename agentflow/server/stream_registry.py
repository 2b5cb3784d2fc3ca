"""The open streams of a daemon: limits their number, and closes those whose socket has died."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from agentflow.events.deltas import DeltaHub
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog
from agentflow.server.metrics import Metrics
from agentflow.server.problems import Refusal

__all__ = ["OpenStream", "StreamRegistry"]

_DEAD_AFTER_S = 30.0


class OpenStream(Protocol):
    """A stream that is being sent."""

    def is_dead(self, now: float, after: float) -> bool:
        """Return whether its socket has taken nothing for `after` seconds although data was waiting."""
        ...

    def abort(self) -> None:
        """Give its connection up."""
        ...

    def daemon_stops(self) -> None:
        """Note that the daemon is about to stop."""
        ...


class StreamRegistry:
    """The open streams of a daemon. A socket that takes nothing for `dead_after` seconds is closed.

    `limit` streams may be open at once; `admit` raises beyond it.
    """

    def __init__(
        self,
        hub: Hub,
        deltas: DeltaHub,
        log: EventLog,
        metrics: Metrics,
        limit: int,
        dead_after: float = _DEAD_AFTER_S,
    ) -> None:
        self.hub = hub
        self.deltas = deltas
        self.log = log
        self.metrics = metrics
        self.dead_after = dead_after
        self.limit = limit
        self._open: set[OpenStream] = set()
        self._watch: asyncio.TimerHandle | None = None
        self.closing = False

    def admit(self) -> None:
        """Raise Refusal `too_many_streams` if the limit is reached."""
        if len(self._open) >= self.limit:
            raise Refusal("too_many_streams", f"{self.limit} streams are open already")

    def enter(self, stream: OpenStream) -> None:
        """Register a stream that begins."""
        self._open.add(stream)
        self.metrics.streams_open = len(self._open)
        if self._watch is None:
            self._look_later()

    def leave(self, stream: OpenStream) -> None:
        """Remove a stream that has ended."""
        self._open.discard(stream)
        self.metrics.streams_open = len(self._open)

    def close(self) -> None:
        """End the streams of all runs where they are; those of single runs end with the hub."""
        self.closing = True
        for stream in list(self._open):
            stream.daemon_stops()

    # One timer for all sockets: 1,000 idle streams cost no timers of their own.

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
