"""A small HTTP/1.1 server whose every answer is written by the test, down to the bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple


class Seen(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Exchange:
    """One request that waits for its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Seen) -> None:
        self.reader, self.writer, self.seen = reader, writer, seen

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        await self.send(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def start_stream(self) -> None:
        await self.head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})

    async def client_gone(self) -> None:
        """Returns when the client has closed its side."""
        while await self.reader.read(1024):
            pass


Answer = Callable[[Exchange], Awaitable[None]]


class WireServer:
    """Answers requests in order with `answers`; the last one serves all that follow."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[Seen] = []
        self.connections = 0
        self._ending = False

    async def __aenter__(self) -> WireServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._ending = True
        # A connection that was accepted just now becomes a task within a few turns of the loop; a server that
        # is closed before drops it without closing its socket. So: accept no more, let them come, then close.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await _turns()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        await _turns()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                seen = await self._read(reader)
                answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
                self.requests.append(seen)
                await answer(Exchange(reader, writer, seen))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            if self._ending:
                # `close` would wait for a client that may have stopped reading.
                writer.transport.abort()
            else:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Seen:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Seen(first.split()[1], headers, json.loads(body))


async def _turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def delta(finish: str | None = None, **members: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": members, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "m-2025", "choices": [choice]}


USAGE = {
    "id": "chatcmpl-1",
    "model": "m-2025",
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 40},
        "completion_tokens_details": {"reasoning_tokens": 5},
    },
}
DONE = b"data: [DONE]\n\n"


def stream(*payloads: object, done: bool = True) -> Answer:
    """An event stream of JSON payloads (bytes are sent as they are), ended well."""

    async def answer(exchange: Exchange) -> None:
        await exchange.start_stream()
        for payload in payloads:
            await exchange.chunk(payload if isinstance(payload, bytes) else event(payload))
        if done:
            await exchange.chunk(DONE)
        await exchange.send(b"0\r\n\r\n")

    return answer


def plain(status: int, body: object, headers: dict[str, str] | None = None) -> Answer:
    """A JSON answer (bytes are sent as they are)."""

    async def answer(exchange: Exchange) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        await exchange.head(status, {**length, **(headers or {})})
        await exchange.send(data)

    return answer


def refusal(status: int, headers: dict[str, str] | None = None, **error: Any) -> Answer:
    return plain(status, {"error": error}, headers)


def cut_after(*payloads: object) -> Answer:
    """A stream whose connection closes before it ends."""

    async def answer(exchange: Exchange) -> None:
        await exchange.start_stream()
        for payload in payloads:
            await exchange.chunk(event(payload))
        exchange.writer.close()
        raise ConnectionResetError

    return answer


def sending(body: bytes, pieces: int = 0) -> Answer:
    """A stream of these bytes, whole or one piece of `pieces` bytes after the other, closed at its end."""

    async def answer(exchange: Exchange) -> None:
        await exchange.head(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        step = pieces or max(len(body), 1)
        for begin in range(0, len(body), step):
            await exchange.send(body[begin : begin + step])
        exchange.writer.close()
        raise ConnectionResetError

    return answer
