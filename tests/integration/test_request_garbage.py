"""A request leaves no garbage: its memory is free without the cyclic collector (daemon D1).

A refused body is 8 MiB that the collector does not see: it counts objects, and these bytes are few of them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import pytest

from agentflow.server.exchange import Exchange
from agentflow.server.operations import MAX_BODY
from agentflow.server.problems import Refusal
from tests.unit.server.kit import serving, tokens

LARGE = b"x" * (MAX_BODY + 1)

REQUESTS: dict[str, tuple[int, str, str, dict]] = {
    "too large by its length": (413, "POST", "/workflows", {"content": LARGE}),
    "too large in chunks": (413, "POST", "/workflows", {"content": None}),
    "no JSON": (400, "POST", "/workflows", {"content": b"{" * 100_000}),
    "of another type": (400, "POST", "/workflows", {"json": {"labels": [1]}}),
    "unknown member": (400, "POST", "/workflows", {"json": {"x": "y" * 100_000}}),
    "bad definition": (422, "POST", "/workflows", {"json": {"definition": {"agents": [{}] * 100}}}),
    "bad YAML": (422, "POST", "/workflows", {"json": {"definition": "a: [" * 100}}),
    "unknown template": (404, "POST", "/workflows", {"json": {"definition_ref": "none"}}),
    "unknown run": (404, "GET", "/workflows/wf_none", {}),
    "unknown run's events": (404, "GET", "/workflows/wf_none/events", {}),
    "unknown path": (404, "GET", "/none", {}),
    "other method": (405, "DELETE", "/workflows", {}),
    "media type": (415, "POST", "/workflows", {"content": b"x", "headers": {"Content-Type": "text/plain"}}),
    "no place to begin": (400, "GET", "/events?after=%20", {}),
    "a page": (200, "GET", "/workflows", {}),
    "health": (200, "GET", "/healthz", {}),
}


async def in_chunks():
    for _ in range(MAX_BODY // 65_536 + 2):
        yield b"x" * 65_536


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # of another component, which has no event for it
            await asyncio.sleep(0.01)


@contextmanager
def without_collector() -> Generator[None]:
    gc.disable()
    gc.freeze()  # what was there before is not searched, which takes a tenth of the time
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def left() -> list[object]:
    return [found for found in gc.get_objects() if isinstance(found, Refusal | Exchange)]


async def nothing_left() -> None:
    # A worker thread may hold what it raised some milliseconds longer; a reference cycle holds it for good.
    with suppress(TimeoutError):
        await wait_until(lambda: not left())
    assert left() == []


@pytest.mark.parametrize("name", list(REQUESTS))
async def test_an_answered_request_is_free_without_the_collector(tmp_path, name):
    status, method, path, more = REQUESTS[name]
    async with serving(tmp_path) as served, served.http() as http:
        with without_collector():
            for _ in range(2):
                sent = {**more, "content": in_chunks()} if more.get("content", b"") is None else more
                if "content" in sent:
                    sent = {"headers": {"Content-Type": "application/json"}, **sent}
                assert (await http.request(method, path, **sent)).status_code == status
            await http.get("/version")
            await nothing_left()


async def test_a_refused_token_is_free_without_the_collector(tmp_path):
    given, _ = tokens(owner=("admin",))
    async with serving(tmp_path, given=given, kind="remote") as served, served.http(tcp=True) as http:
        with without_collector():
            for headers in ({}, {"Authorization": "Bearer none"}):
                answer = await http.post("/workflows", content=LARGE, headers=headers)
                assert answer.status_code == 401
            await http.get("/healthz")
            await nothing_left()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /workflows HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 8000000\r\n\r\n" + b"x" * 4_000_000,
        b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
    ],
    ids=["in a body", "in a stream", "in a stream with another behind it"],
)
async def test_a_request_cut_off_is_free_without_the_collector(tmp_path, request_bytes):
    async with serving(tmp_path) as served, served.http() as http:
        with without_collector():
            _, writer = await asyncio.open_unix_connection(str(served.socket))
            writer.write(request_bytes)
            await writer.drain()
            await wait_until(lambda: len(served.server.tasks) == 1)
            writer.transport.abort()
            await wait_until(lambda: not served.server.tasks)
            await http.get("/version")
            await nothing_left()
