"""At the limit of connections idle ones make room; if none is idle the next is told so (daemon D3)."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from agentflow.server import descriptors
from agentflow.server.limits import Limits
from tests.unit.server.kit import serving
from tests.unit.server.logs import Writer

GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
STREAM = b"GET /workflows/wf_log/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def served(tmp_path):
    limits = Limits(check_s=0.02, refusal_s=0.1)
    async with serving(tmp_path, max_connections=4, limits=limits) as found:
        await Writer(found.runtime, "wf_log").write(1)
        yield found


@pytest.fixture
async def dial(served) -> AsyncGenerator[Any]:
    """Open connections that are closed at the end."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(data: bytes = b"", *, unix: bool = False) -> asyncio.StreamReader:
        if unix:
            reader, writer = await asyncio.open_unix_connection(str(served.socket))
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writers.append(writer)
        writer.write(data)
        return reader

    yield connect
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def status(reader: asyncio.StreamReader) -> bytes:
    return (await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)).split()[1]


async def ended(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 5)
    return True


@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
async def test_idle_clients_make_room(served, dial, unix):
    """However many there are, each new client is served: the oldest idle connection goes."""
    idle = [await dial(unix=unix) for _ in range(20)]
    assert await status(await dial(GET, unix=unix)) == b"200"
    assert len(served.server.connections) <= 4
    for reader in idle[:16]:
        assert await ended(reader)


async def test_connections_with_a_request_in_progress_stay(served, dial):
    streams = [await dial(STREAM) for _ in range(3)]
    for reader in streams:
        assert await status(reader) == b"200"
    for _ in range(10):
        await dial()
    assert await status(await dial(GET)) == b"200"
    assert served.app.service.metrics.streams_open == 3


async def test_one_that_never_asked_goes_before_one_that_did(served, dial):
    asked = await dial(GET)
    assert await status(asked) == b"200"
    silent = await dial()
    for _ in range(2):
        assert await status(await dial(STREAM)) == b"200"
    assert await status(await dial(STREAM)) == b"200"
    assert await ended(silent)
    assert len(served.server.connections) == 4  # the one that had asked is among them
    assert not asked.at_eof()


async def test_a_client_in_the_rest_of_a_refused_body_makes_room(served, dial):
    """An early answer leaves a body to be read: that is no request in progress."""
    body = b"POST /workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for _ in range(4):
        assert await status(await dial(body + b"Content-Length: 99999999\r\n\r\n{")) == b"413"
    assert await status(await dial(GET)) == b"200"


@pytest.mark.parametrize(
    "data", [b"", GET, b"POST /workflows HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000]
)
@pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
async def test_without_an_idle_connection_the_next_is_refused_at_once(served, dial, data, unix):
    streams = [await dial(STREAM) for _ in range(4)]
    for reader in streams:
        assert await status(reader) == b"200"
    for _ in range(50):  # more than are kept until they have read why
        refused = await dial(data, unix=unix)
    answer = await asyncio.wait_for(refused.readuntil(b"}"), 5)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5\r\n" in answer
    assert b'"code":"too_many_connections"' in answer
    assert await ended(refused)
    assert served.app.service.metrics.streams_open == 4


class TestDescriptors:
    @pytest.mark.parametrize(
        ("soft", "most"), [(128, 64), (1_024, 768), (4_096, 3_072), (65_536, 4_096), (1 << 20, 4_096)]
    )
    def test_a_quarter_is_kept_for_runs(self, monkeypatch, soft, most):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
        found = descriptors.connection_limit(4_096)
        assert 8 <= found <= most
        assert soft - found >= min(soft // 4, 1_024)

    def test_few_are_always_left(self, monkeypatch):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (16, 16))
        assert descriptors.connection_limit(4_096) == 8

    def test_the_soft_limit_is_raised(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
            assert descriptors.raise_descriptor_limit() == min(hard, 1 << 20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
