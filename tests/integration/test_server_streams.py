"""Streams, rule by rule (page 000 §8.1), over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
import tracemalloc
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import httpx
import pytest

from agentflow.client import Client
from agentflow.config import ServerConfig
from agentflow.events.blobs import LARGE_BYTES, blob_hash
from agentflow.events.envelope import stored_event
from tests.unit.server.kit import ECHO, STEPS, serving
from tests.unit.server.logs import Writer

NDJSON, SSE = "application/x-ndjson", "text/event-stream"


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path) as found:
        yield found


@pytest.fixture
async def http(served):
    async with served.http() as client:
        yield client


@pytest.fixture
async def log(served):
    """A run of five events that goes on."""
    writer = Writer(served.runtime, "wf_log")
    await writer.write(5)
    return writer


PATH = "/workflows/wf_log/events"


def lines_of(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.split(b"\n") if line]


async def offsets(http, query="", headers=None, path=PATH) -> list[int]:
    """What a stream that ends by itself gives."""
    answer = await http.get(f"{path}?{query}", headers=headers or {})
    assert answer.status_code == 200, answer.text
    return [event["offset"] for event in lines_of(answer.content)]


def frames_of(text: str) -> list[dict[str, str]]:
    """The frames of a stream of Server-Sent Events, by the rules of its standard."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line)
        if fields:
            found.append(fields)
    return found


class Reader:
    """Reads lines of an open stream one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def line(self) -> str:
        return await asyncio.wait_for(anext(self._lines), 10)

    async def event(self) -> dict:
        return json.loads(await self.line())


@asynccontextmanager
async def stream(http, query="", path=PATH, **more):
    async with http.stream("GET", f"{path}?{query}", **more) as response:
        assert response.status_code == 200, await response.aread()
        yield Reader(response)


class TestForms:
    async def test_ndjson_is_the_default(self, http, log):
        for accept in (None, "*/*", NDJSON, "application/*"):
            headers = {} if accept is None else {"accept": accept}
            request = http.build_request("GET", f"{PATH}?follow=false", headers=headers)
            if accept is None:
                del request.headers["accept"]
            answer = await http.send(request)
            assert answer.headers["content-type"] == NDJSON
            assert answer.headers["transfer-encoding"] == "chunked"
            assert len(lines_of(answer.content)) == 5
            assert answer.content.endswith(b"}\n")

    async def test_lines_are_the_stored_bytes(self, served, http, log):
        answer = await http.get(f"{PATH}?follow=false")
        rows = await served.runtime.log.read("wf_log")
        assert answer.content == b"".join(row.body + b"\n" for row in rows)

    @pytest.mark.parametrize("how", [{"headers": {"accept": SSE}}, {"params": {"format": "sse"}}])
    async def test_sse(self, http, log, how):
        params = {"follow": "false", **how.get("params", {})}
        answer = await http.get(PATH, params=params, headers=how.get("headers"))
        assert answer.headers["content-type"] == SSE
        first, *frames = frames_of(answer.text)
        assert first == {"retry": "3000"}
        assert [(f["id"], f["event"]) for f in frames] == [(str(i), "agent.processing") for i in range(5)]
        assert [json.loads(f["data"])["offset"] for f in frames] == list(range(5))

    async def test_sse_without_names(self, http, log):
        answer = await http.get(f"{PATH}?follow=false&format=sse&named=false")
        assert all("event" not in frame for frame in frames_of(answer.text))

    @pytest.mark.parametrize("accept", ["text/html", "application/json", "image/png, text/html;q=0.5"])
    async def test_other_forms_are_refused(self, http, log, accept):
        assert (await http.get(PATH, headers={"accept": accept})).status_code == 406

    async def test_headers_say_where_the_log_stands(self, http, log):
        for method in ("GET", "HEAD"):
            answer = await http.request(method, f"{PATH}?follow=false")
            assert answer.headers["agentflow-earliest-offset"] == "0"
            assert answer.headers["agentflow-next-offset"] == "5"
            assert answer.headers["agentflow-state"] == "running"
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["x-accel-buffering"] == "no"


class TestPositions:
    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("", [0, 1, 2, 3, 4]),
            ("offset=0", [0, 1, 2, 3, 4]),
            ("offset=1", [2, 3, 4]),
            ("offset=4", []),
            ("offset=99", []),
            ("after=-1", [0, 1, 2, 3, 4]),
            ("after=0", [1, 2, 3, 4]),
            ("from=0", [0, 1, 2, 3, 4]),
            ("from=3", [3, 4]),
            ("offset=latest", []),
        ],
    )
    async def test_where_a_stream_begins(self, http, log, query, expected):
        assert await offsets(http, f"follow=false&{query}") == expected

    @pytest.mark.parametrize(("given", "expected"), [("0", [1, 2, 3, 4]), ("3", [4]), ("4", [])])
    @pytest.mark.parametrize("query", ["", "offset=2", "from=0"])
    async def test_the_last_event_id_wins(self, http, log, given, expected, query):
        assert await offsets(http, f"follow=false&{query}", {"Last-Event-ID": given}) == expected

    @pytest.mark.parametrize(
        "query",
        [
            "offset=1&after=1",
            "after=1&from=1",
            "offset=-1",
            "after=-2",
            "from=-1",
            "offset=x",
            "offset=1.0",
            "offset=",
            "offset=+1",
            "offset=1e3",
            "after=latest",
            "offset=99999999999999999999",
            "offset=%D9%A3",
        ],
    )
    async def test_positions_that_are_none(self, http, log, query):
        answer = await http.get(f"{PATH}?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_position")

    @pytest.mark.parametrize("given", ["x", "-1", "1 2"])
    async def test_a_last_event_id_that_is_none(self, http, log, given):
        answer = await http.get(PATH, headers={"Last-Event-ID": given})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_position")

    async def test_latest_shows_what_comes_next(self, http, log):
        async with stream(http, "offset=latest") as reader:
            await log.write(2)
            assert [(await reader.event())["offset"] for _ in range(2)] == [5, 6]

    async def test_beyond_the_end_waits(self, http, log):
        async with stream(http, "after=6") as reader:
            await log.write(4)
            assert (await reader.event())["offset"] == 7

    async def test_trimmed_events(self, served, http, log):
        await log.end()
        await served.runtime.log.trim("wf_log", 3)
        assert await offsets(http) == [3, 4, 5]
        assert await offsets(http, "offset=0") == [3, 4, 5]
        assert await offsets(http, "from=3") == [3, 4, 5]
        for query, wanted in (("after=-1", 0), ("from=2", 2), ("offset=1", 2)):
            answer = await http.get(f"{PATH}?{query}")
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (410, "offset_trimmed")
            assert (problem["earliest_offset"], problem["requested"]) == (3, wanted)


class TestEnds:
    async def test_after_the_terminal_event(self, http, log):
        async with stream(http) as reader:
            for _ in range(5):
                await reader.event()
            await log.end()
            assert (await reader.event())["type"] == "workflow.completed"
            with pytest.raises(StopAsyncIteration):
                await reader.line()

    async def test_at_once_when_the_position_is_past_it(self, http, log):
        await log.end()
        assert await offsets(http, "after=5") == []
        assert await offsets(http, "after=99") == []
        for query in ("after=5", "offset=5", "from=6", "offset=latest"):
            answer = await http.get(f"{PATH}?{query}&format=sse")
            assert (answer.status_code, answer.content) == (204, b"")

    async def test_without_following_at_the_present_end(self, http, log):
        assert await offsets(http, "follow=false") == [0, 1, 2, 3, 4]

    async def test_without_following_the_end_does_not_move(self, served, tmp_path):
        log = Writer(served.runtime, "wf_log")
        await log.write(2000, pad=400)
        async with served.http() as http, stream(http, "follow=false") as reader:
            await reader.event()
            await log.write(500)
            rest = [json.loads(line)["offset"] async for line in reader._lines if line]
            assert rest == list(range(1, 2000))

    async def test_after_so_many_events(self, http, log):
        assert await offsets(http, "limit=2") == [0, 1]
        assert await offsets(http, "limit=2&from=4&timeout=0.05") == [4]
        assert await offsets(http, "limit=1&type=workflow.*&timeout=0.05") == []

    async def test_after_silence(self, http, log):
        began = time.monotonic()
        assert await offsets(http, "timeout=0.2") == [0, 1, 2, 3, 4]
        assert 0.15 < time.monotonic() - began < 5

    async def test_heartbeats_are_silence(self, http, log):
        answer = await http.get(f"{PATH}?timeout=2.5&heartbeat=1")
        assert answer.content.count(b"\n\n") >= 1
        assert len(lines_of(answer.content)) == 5

    async def test_hidden_events_are_silence(self, http, log):
        async def keep_writing():
            while True:
                await log.write(1)
                await asyncio.sleep(0.02)

        task = asyncio.ensure_future(keep_writing())
        try:
            assert await offsets(http, "timeout=0.3&type=workflow.*") == []
        finally:
            task.cancel()

    async def test_with_the_daemon_and_then_it_goes_on_elsewhere(self, served, http, log):
        async with stream(http) as reader:
            for _ in range(5):
                await reader.event()
            served.runtime.hub.close()
            with pytest.raises(StopAsyncIteration):
                await reader.line()

    async def test_a_client_that_leaves_stops_nothing(self, served, http):
        record = (await http.post("/workflows", json={"definition": STEPS, "input": {"text": "a"}})).json()
        async with stream(http, path=record["links"]["events"]) as reader:
            await reader.event()
        async with served.client() as client:
            assert (await client.rest(record["workflow_id"])).state == "completed"
        await until(lambda: served.app.service.metrics.streams_open == 0)
        assert served.runtime.hub.followed == 0


async def until(condition, seconds=10.0):
    """Looks again each time the loop has gone round, so that no state is slept for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.005)


async def offsets_from(reader: asyncio.StreamReader, count: int) -> list[int]:
    """Take a chunked answer apart until it has given so many events."""
    await reader.readuntil(b"\r\n\r\n")
    data = b""
    while data.count(b"\n") < count:
        data += (await reader.readexactly(int(await reader.readline(), 16) + 2))[:-2]
    return [event["offset"] for event in lines_of(data) if "offset" in event]


class TestFilters:
    @pytest.fixture
    async def mixed(self, log):
        await log.write(1, type="tool.call_started", step="b")
        await log.write(1, type="tool.call_completed", step="b")
        await log.write(1, type="agent.completed", step="b")
        await log.write(1, type="workflow.step_completed", step="b")
        await log.write(1, type="custom.mine", step=None)
        return log  # offsets 5 to 9

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("type=tool.*", [5, 6]),
            ("type=tool.*,agent.completed", [5, 6, 7]),
            ("type=*", list(range(10))),
            ("type=agent.completed", [7]),
            ("step=b", [5, 6, 7, 8]),
            ("step=b&type=tool.*", [5, 6]),
            ("step=none", []),
            ("view=workflow", [8, 9]),
            ("view=all", list(range(10))),
            ("since=2999-01-01T00:00:00Z", []),
            ("until=2000-01-01T00:00:00Z", []),
            ("since=2000-01-01T00:00:00Z", list(range(10))),
        ],
    )
    async def test_history(self, http, mixed, query, expected):
        assert await offsets(http, f"follow=false&{query}") == expected

    async def test_the_same_live(self, http, log):
        async with stream(http, "type=tool.*&step=b&offset=latest") as reader:
            await log.write(1, type="tool.call_started", step="a")
            await log.write(1, type="agent.processing", step="b")
            await log.write(1, type="tool.call_started", step="b")
            assert (await reader.event())["offset"] == 7

    async def test_times(self, http, served, log):
        middle = (await served.runtime.log.read("wf_log", 2, 1))[0]
        stamp = json.loads(middle.body)["timestamp"]
        assert (await offsets(http, f"follow=false&since={stamp}"))[0] <= 2
        assert all(o < 2 for o in await offsets(http, f"follow=false&until={stamp}"))

    @pytest.mark.parametrize(
        "query",
        [
            "type=*.x",
            "type=",
            "view=none",
            "since=x",
            "until=2026-01-01",
            "limit=0",
            "limit=x",
            "timeout=0",
            "follow=perhaps",
            "heartbeat=0",
            "heartbeat=301",
            "heartbeat=x",
            "format=xml",
        ],
    )
    async def test_what_cannot_be_asked_for(self, http, log, query):
        answer = await http.get(f"{PATH}?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")


class TestHeartbeats:
    async def test_an_empty_line(self, http, log):
        async with stream(http, "heartbeat=1&offset=latest") as reader:
            assert await reader.line() == ""
            await log.write(1)
            assert (await reader.event())["offset"] == 5

    async def test_off(self, http, log):
        answer = await http.get(f"{PATH}?heartbeat=off&timeout=1.3&offset=latest")
        assert answer.content == b""

    async def test_as_an_event_that_moves_the_position(self, served, http, log, monkeypatch):
        monkeypatch.setattr("agentflow.server.positions.DEFAULT_HEARTBEAT", 0.1)
        async with stream(http, "heartbeat=event&type=tool.*") as reader:
            event = await reader.event()
            assert event.pop("timestamp")
            assert event == {"type": "heartbeat", "workflow_id": "wf_log", "offset": 4}
            await log.write(3)
            while (await reader.event())["offset"] != 7:
                pass

    async def test_in_sse_without_an_id(self, http, log, monkeypatch):
        monkeypatch.setattr("agentflow.server.positions.DEFAULT_HEARTBEAT", 0.1)
        answer = await http.get(f"{PATH}?format=sse&timeout=0.35&offset=latest")
        beats = [frame for frame in frames_of(answer.text) if frame.get("event") == "heartbeat"]
        assert beats
        assert all("id" not in beat for beat in beats)


class TestExpand:
    async def test_blobs_in_their_place(self, served, http):
        value = "x" * LARGE_BYTES
        writer = Writer(served.runtime, "wf_blob")
        original = writer._event

        def with_blob(*args):
            event = original(*args)
            body = event.body.replace(b'"pad":""', b'"pad":"%s"' % value.encode())
            return stored_event(event.offset, event.ts, event.type, body)

        writer._event = with_blob
        await writer.write(1)
        name = blob_hash(json.dumps(value).encode())
        for path in ("events?follow=false", "events?follow=false&format=sse"):
            answer = await http.get(f"/workflows/wf_blob/{path}")
            data = answer.text.rpartition("data: ")[2] if "sse" in path else answer.text
            pad = json.loads(data)["data"]["pad"]
            assert pad == {"$blob": name, "size": len(value) + 2, "type": "json"}
        assert (await http.get(f"/blobs/{name}")).json() == value
        for path in ("events?follow=false&expand=true", "log?expand=true"):
            (event,) = lines_of((await http.get(f"/workflows/wf_blob/{path}")).content)
            assert event["data"]["pad"] == value


class TestSeam:
    async def test_a_hundred_reconnects_lose_and_repeat_nothing(self, served, tmp_path):
        """A reader that is cut off at random places while the run goes on."""
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        chance = random.Random(7)
        total = 3_000

        async def keep_writing():
            while log.next < total:
                await log.write(chance.randint(1, 20), pad=chance.choice((0, 0, 500)))
                await asyncio.sleep(0)
            await log.end()

        task = asyncio.ensure_future(keep_writing())
        seen: list[int] = []
        connects = 0
        async with served.http() as http:
            while True:
                connects += 1
                position = seen[-1] if seen else -1
                form = chance.choice(("ndjson", "sse"))
                async with http.stream("GET", f"{PATH}?after={position}&format={form}") as response:
                    if response.status_code == 204:
                        break
                    cut = chance.randint(1, 40) if connects <= 100 else 10**9
                    done = False
                    async for line in response.aiter_lines():
                        data = line.removeprefix("data: ")
                        if not data.startswith("{"):
                            continue
                        event = json.loads(data)
                        seen.append(event["offset"])
                        done = event["type"] == "workflow.completed"
                        cut -= 1
                        if cut == 0:
                            break
                if done:
                    break
        await task
        assert connects >= 100
        assert seen == list(range(log.next))

    async def test_the_client_reconnects_by_itself(self, served, log):
        async with served.client() as client:
            lines = client.event_lines("wf_log")
            async with aclosing(lines):
                seen = [json.loads(await anext(lines))["offset"] for _ in range(3)]
                for _ in range(5):
                    for connection in list(served.server.connections):
                        connection.transport.abort()
                    await log.write(2)
                    seen += [json.loads(await anext(lines))["offset"] for _ in range(2)]
                await log.end()
                seen += [json.loads(line)["offset"] async for line in lines]
            assert seen == list(range(log.next))


class TestSlowClients:
    async def test_a_client_that_never_reads_holds_nobody_up(self, served):
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        served.app.service.streams.dead_after = 0.6
        with socket.socket(socket.AF_UNIX) as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(str(served.socket))
            lazy.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await until(lambda: served.app.service.metrics.streams_open == 1)
            (connection,) = served.server.connections
            largest = 0

            async def keep_writing():
                nonlocal largest
                for _ in range(400):
                    await log.write(50, pad=400)
                    largest = max(largest, connection.transport.get_write_buffer_size())
                    await asyncio.sleep(0)

            began = time.monotonic()
            await keep_writing()
            assert time.monotonic() - began < 15
            assert 64 * 1024 < largest <= 256 * 1024
            # It lets go of the events that it could not send, so that the log keeps them alone.
            await until(lambda: served.runtime.hub.followed == 0)
            await until(lambda: served.app.service.metrics.streams_open == 0)
        assert served.app.service.metrics.streams_stalled == 1

    async def test_clients_that_never_read_all_runs_hold_no_page_of_events(self, tmp_path):
        """daemon D1's relative: each kept the page of 256 events that it could not send, of any size."""
        clients, allowed = 10, 768 * 1024  # bytes each: a part, its frames and pieces, the socket's buffer
        async with (
            serving(tmp_path, store=f"sqlite:{tmp_path / 'runs.db'}") as served,
            AsyncExitStack() as open_,
        ):
            log = Writer(served.runtime, "wf_log")
            await log.write(256, pad=16 * 1024)  # 4 MiB: one page
            streams = served.app.service.streams
            tracemalloc.start()
            open_.callback(tracemalloc.stop)
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(clients):
                lazy = open_.enter_context(socket.socket(socket.AF_UNIX))
                lazy.connect(str(served.socket))
                lazy.sendall(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: sum(stream.slow for stream in streams._open) == clients)
            await until(lambda: tracemalloc.get_traced_memory()[0] - before < clients * allowed)
            # One that begins to read gets everything, and nothing twice.
            reader, writer = await asyncio.open_connection(sock=lazy.dup(), limit=1 << 20)
            try:
                seen = await offsets_from(reader, 256)
            finally:
                writer.close()
            assert seen == list(range(256))

    async def test_a_limit_holds_for_a_client_that_reads_late(self, tmp_path, monkeypatch):
        """What was let go is not counted as sent."""
        monkeypatch.setattr("agentflow.server.event_streams._DRAIN_WAIT_S", 0)
        async with serving(tmp_path, store=f"sqlite:{tmp_path / 'runs.db'}") as served:
            await Writer(served.runtime, "wf_log").write(256, pad=16 * 1024)
            reader, writer = await asyncio.open_unix_connection(str(served.socket), limit=64 * 1024)
            writer.write(b"GET /events?limit=100 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await until(lambda: any(stream.slow for stream in served.app.service.streams._open))
            (stream,) = served.app.service.streams._open
            await until(lambda: stream.left is not None and 0 < stream.left < 100)
            try:
                assert await offsets_from(reader, 100) == list(range(100))
                assert (await reader.read()).endswith(b"0\r\n\r\n")
            finally:
                writer.close()

    async def test_a_slow_client_gets_everything(self, served):
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        reader, writer = await asyncio.open_unix_connection(str(served.socket), limit=4096)
        writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(60):
            await log.write(50, pad=400)
        await log.end()
        content = bytearray()
        while chunk := await reader.read(3000):
            content += chunk
            if len(content) % 7 == 0:
                await asyncio.sleep(0.001)
        writer.close()
        await writer.wait_closed()
        body = unchunk(bytes(content))
        assert [event["offset"] for event in lines_of(body)] == list(range(log.next))

    async def test_a_silent_run_closes_nothing(self, served, http, log):
        served.app.service.streams.dead_after = 0.1
        async with stream(http, "offset=latest") as reader:
            await asyncio.sleep(0.5)  # five times as long as a dead socket would be given
            await log.write(1)
            assert (await reader.event())["offset"] == 5

    async def test_a_line_larger_than_all_buffers(self, http, log):
        await log.write(1, pad=3_000_000)
        await log.end()
        answer = await http.get(PATH)
        assert [event["offset"] for event in lines_of(answer.content)] == list(range(7))
        assert len(answer.content) > 3_000_000


def unchunk(data: bytes) -> bytes:
    """The body of a chunked answer."""
    body = bytearray()
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        body += data[:length]
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
    return bytes(body)


class TestMany:
    async def test_more_streams_than_there_may_be(self, tmp_path):
        async with serving(tmp_path, config=ServerConfig(max_streams=3)) as served, served.http() as http:
            log = Writer(served.runtime, "wf_log")
            await log.write(1)
            async with stream(http) as one, stream(http) as two, stream(http) as three:
                for reader in (one, two, three):
                    await reader.event()
                answer = await http.get(PATH)
                assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")
                assert answer.headers["retry-after"]
            await until(lambda: served.app.service.metrics.streams_open == 0)
            assert await offsets(http, "follow=false") == [0]

    async def test_five_hundred_streams_at_once(self, served):
        log = Writer(served.runtime, "wf_log")
        await log.write(3)
        count = 500

        async def read_all() -> list[int]:
            reader, writer = await asyncio.open_unix_connection(str(served.socket))
            writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            content = await reader.read()
            writer.close()
            await writer.wait_closed()
            body = unchunk(content.partition(b"\r\n\r\n")[2])
            return [event["offset"] for event in lines_of(body)]

        reading = [asyncio.ensure_future(read_all()) for _ in range(count)]
        await until(lambda: served.app.service.metrics.streams_open == count, 30)
        for _ in range(20):
            await log.write(10)
            await asyncio.sleep(0)
        await log.end()
        for found in await asyncio.gather(*reading):
            assert found == list(range(log.next))


class TestAllRuns:
    async def test_the_events_of_all_runs_in_order(self, served, http):
        one, two = Writer(served.runtime, "wf_one"), Writer(served.runtime, "wf_two")
        for _ in range(3):
            await one.write(1)
            await two.write(2)
        events = lines_of((await http.get("/events?follow=false")).content)
        assert [(e["workflow_id"][3:], e["offset"]) for e in events] == [
            *(("one", 0), ("two", 0), ("two", 1)),
            *(("one", 1), ("two", 2), ("two", 3)),
            *(("one", 2), ("two", 4), ("two", 5)),
        ]

    async def test_live_and_filtered(self, served, http):
        one = Writer(served.runtime, "wf_one")
        await one.write(2)
        async with stream(http, "cursor=latest&type=tool.*", path="/events") as reader:
            await one.write(1)
            await one.write(1, type="tool.call_started")
            assert (await reader.event())["offset"] == 3

    async def test_every_id_of_sse_goes_on_behind_its_event(self, served, http):
        one, two = Writer(served.runtime, "wf_one"), Writer(served.runtime, "wf_two")
        for _ in range(5):
            await one.write(3)
            await two.write(1)
        everything = frames_of((await http.get("/events?follow=false&format=sse")).text)[1:]
        assert len(everything) == 20
        for index, frame in enumerate(everything):
            rest = await http.get("/events?follow=false&format=sse", headers={"Last-Event-ID": frame["id"]})
            assert [f["data"] for f in frames_of(rest.text)[1:]] == [
                f["data"] for f in everything[index + 1 :]
            ]

    @pytest.mark.parametrize("cursor", ["x", "x.1", ".x", "nonsense.0", ".999"])
    async def test_cursors_that_are_none(self, http, cursor):
        answer = await http.get("/events", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_position")

    async def test_ends(self, served, http):
        one = Writer(served.runtime, "wf_one")
        await one.write(5)
        assert await offsets(http, "limit=2", path="/events") == [0, 1]
        assert await offsets(http, "timeout=0.1", path="/events") == [0, 1, 2, 3, 4]
        async with stream(http, "cursor=latest", path="/events") as reader:
            served.app.service.streams.close()
            with pytest.raises(StopAsyncIteration):
                await reader.line()


class TestRealRuns:
    async def test_the_order_of_a_run_live(self, served):
        async with served.client() as client:
            run = await client.submit(ECHO, "hi")
            types = [event.type async for event in run.events()]
        assert types == [
            "workflow.started",
            "workflow.step_started",
            "agent.initialized",
            "agent.processing",
            "model.call_started",
            "model.call_completed",
            "agent.completed",
            "system.state_saved",
            "workflow.step_completed",
            "workflow.completed",
        ]

    async def test_a_filtered_follower_learns_of_the_end(self, served: object):
        async with Client(served.unix_url) as client:  # type: ignore[attr-defined]
            run = await client.submit(ECHO, "hi")
            found = [e.type async for e in client.events(run.workflow_id, types=["agent.completed"])]
            assert found == ["agent.completed"]
