"""Following the events of a run over connections that may break: each line once and in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import msgspec

from agentflow.client.errors import Unavailable
from agentflow.client.transport import Transport
from agentflow.errors import LogCorrupt
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.rows import VERIFY_HINT

__all__ = ["RECONNECT_TIMEOUT_S", "follow_lines"]

RECONNECT_TIMEOUT_S = 300.0
"""Seconds for which a stream that broke tries to come back."""

_SILENCE_S = 45.0  # three heartbeats of 15 s that did not come: the connection is dead
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_ENDED = frozenset(name.partition(".")[2] for name in TERMINAL_TYPES)


class _Line(msgspec.Struct):
    type: str
    workflow_id: str | None = None
    offset: int | None = None


_line_decoder = msgspec.json.Decoder(_Line)


async def follow_lines(
    transport: Transport,
    path: str,
    after: int | None = None,
    *,
    follow: bool = True,
    types: Sequence[str] | None = None,
    step: str | None = None,
    limit: int | None = None,
    deltas: bool = False,
    whole: bool = False,
    reconnect_timeout: float = RECONNECT_TIMEOUT_S,
) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream of events behind offset `after` (None: all that are left). Comes back by
    itself at the last offset. With `deltas` also lines of type model.delta, which have no offset and begin
    again after a break, and of type tool.progress.

    Ends after the terminal event; without `follow` also at the end that the log has now. Raises what the
    daemon says, LogCorrupt where the log is damaged, Unreachable when the daemon is not there at first, or
    not again within `reconnect_timeout` seconds.
    """
    position, began, lost_at, delay = after, False, 0.0, _FIRST_DELAY
    while True:
        query: dict[str, Any] = {
            "after": position,
            "follow": follow,
            "type": None if types is None else ",".join(types),
            "step": step,
            "limit": limit,
            "heartbeat": "event",
            "deltas": deltas or None,
            "expand": whole or None,
        }
        try:
            async with transport.stream(path, query=query, timeout=_SILENCE_S) as response:
                over = response.headers.get("Agentflow-State") in _ENDED
                began, lost_at, delay = True, 0.0, _FIRST_DELAY
                async for line in _lines(response):
                    seen = _line_decoder.decode(line)
                    if seen.type == "gap":
                        raise LogCorrupt(f"{seen.workflow_id} is damaged from here on", hint=VERIFY_HINT)
                    if seen.offset is None:  # no event: a piece of an answer, or progress
                        yield line
                        continue
                    if seen.type == "heartbeat":  # never back: it may have waited behind events
                        position = seen.offset if position is None else max(position, seen.offset)
                        continue
                    position = seen.offset
                    yield line
                    if limit is not None:
                        limit -= 1
                    if seen.type in TERMINAL_TYPES or limit == 0:
                        return
            if over or not follow:
                return  # whatever there was had been written when the stream began
            wait = _FIRST_DELAY  # the daemon stopped, or the client was too slow: begin again there
        except (httpx.HTTPError, Unavailable) as error:
            failure = transport.unreachable(error) if isinstance(error, httpx.HTTPError) else error
            now = time.monotonic()
            lost_at = lost_at or now
            absent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)) and not began
            if absent or now - lost_at >= reconnect_timeout:
                raise failure from error
            wait = error.retry_after if isinstance(error, Unavailable) else delay
            delay = min(delay * 2, _LONGEST_DELAY)
        await asyncio.sleep(wait)


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes]:
    """Whole lines without their ends; empty ones are signs of life. A line that is cut off is none."""
    parts: list[bytes] = []
    async for chunk in response.aiter_raw():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            if parts:
                parts.append(end)
                end, parts = b"".join(parts), []
            if end:
                yield end
        if rest:
            parts.append(rest)
