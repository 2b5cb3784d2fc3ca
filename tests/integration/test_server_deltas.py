"""The text of answers while they are written (page 000 §8.1): over real sockets, and embedded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing

import pytest

from agentflow import Runtime
from agentflow.client import Client
from agentflow.definition.conversation import Message
from agentflow.errors import StoreError
from agentflow.events.deltas import DeltaHub
from agentflow.events.hub import Hub
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelProfile, ModelReply, ModelRequest
from agentflow.runtime.run_reader import RunReader
from agentflow.server.event_streams import RunStream
from agentflow.server.frames import Ndjson
from agentflow.server.metrics import Metrics
from agentflow.server.positions import EventFilter
from agentflow.server.stream import Plan
from agentflow.server.stream_registry import StreamRegistry
from tests.unit.server.kit import STEPS, agents, serving

ONE = agents("write")
NDJSON = "application/x-ndjson"


class Typist:
    """A model that writes what the test dictates. `None` ends the answer."""

    name = limiter_key = "scripted"
    max_concurrency = 8

    def __init__(self) -> None:
        self.calls: asyncio.Queue[asyncio.Queue[tuple[str, str] | None]] = asyncio.Queue()

    def profile(self, model: str) -> ModelProfile:
        return ModelProfile(input_price=0.0, output_price=0.0)

    async def complete(
        self, request: ModelRequest, *, new_call_id: Callable[[], str], on_delta=None
    ) -> ModelReply:
        dictated: asyncio.Queue[tuple[str, str] | None] = asyncio.Queue()
        self.calls.put_nowait(dictated)
        text = ""
        while (piece := await dictated.get()) is not None:
            on_delta(*piece)
            text += piece[1] if piece[0] == "output" else ""
        message = Message(role="assistant", content=text)
        return ModelReply(message=message, finish_reason="stop", response_model=request.model)

    async def aclose(self) -> None:
        pass


class Pen:
    """One call of the typist."""

    def __init__(self, dictated: asyncio.Queue[tuple[str, str] | None]) -> None:
        self._dictated = dictated

    def write(self, *words: str, kind: str = "output") -> None:
        for word in words:
            self._dictated.put_nowait((kind, word))

    def end(self) -> None:
        self._dictated.put_nowait(None)


@pytest.fixture
def typist() -> Typist:
    return Typist()


@pytest.fixture
async def served(tmp_path, typist):
    async with serving(tmp_path, model=typist) as found:
        yield found


@pytest.fixture
async def http(served):
    async with served.http() as client:
        yield client


async def pen_of(typist: Typist) -> Pen:
    return Pen(await asyncio.wait_for(typist.calls.get(), 10))


async def submit(http, definition=ONE, input="x") -> str:
    answer = await http.post("/workflows", json={"definition": definition, "input": input})
    assert answer.status_code == 201, answer.text
    return answer.json()["workflow_id"]


class Lines:
    """An open stream, line by line."""

    def __init__(self, response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict:
        while not (line := await asyncio.wait_for(anext(self._lines), 10)):
            pass
        return json.loads(line)

    async def until(self, kind: str) -> list[dict]:
        """All up to the first line of this type."""
        found = [await self.next()]
        while found[-1]["type"] != kind:
            found.append(await self.next())
        return found

    async def rest(self) -> list[dict]:
        return [json.loads(line) async for line in self._lines if line]


def text_of(lines: list[dict], kind: str = "output") -> str:
    deltas = [line["data"] for line in lines if line["type"] == "model.delta"]
    return "".join(delta["text"] for delta in deltas if delta["token_kind"] == kind)


async def test_deltas_come_between_the_events_of_their_call(http, typist):
    run = await submit(http)
    async with http.stream("GET", f"/workflows/{run}/events?deltas=true") as response:
        lines = Lines(response)
        pen = await pen_of(typist)
        seen = await lines.until("model.call_started")
        pen.write("Once ", "upon ")
        first = await lines.next()
        pen.write("a time")
        second = await lines.next()
        pen.write(".")
        pen.end()
        rest = await lines.rest()
    call = seen[-1]["data"]["model_call_id"]
    assert first["type"] == second["type"] == "model.delta"
    assert set(first) == {"type", "workflow_id", "step", "data"}
    assert (first["workflow_id"], first["step"]) == (run, "agent_0")
    data = {"model_call_id": call, "index": 0, "token_kind": "output", "text": "Once upon "}
    assert first["data"] == data
    assert second["data"] == {**data, "index": len("Once upon "), "text": "a time"}
    kinds = [line["type"] for line in rest]
    assert text_of([first, second, *rest]) == "Once upon a time."
    assert "model.delta" not in kinds[kinds.index("model.call_completed") :]
    events = [line["offset"] for line in [*seen, *rest] if line["type"] != "model.delta"]
    assert events == list(range(len(events)))


async def test_without_the_parameter_none_come(http, typist):
    run = await submit(http)
    pen = await pen_of(typist)
    async with http.stream("GET", f"/workflows/{run}/events") as response:
        lines = Lines(response)
        await lines.until("model.call_started")
        pen.write("hello")
        pen.end()
        assert "model.delta" not in [line["type"] for line in await lines.rest()]


async def test_what_is_written_at_once_is_sent_as_one(http, typist):
    run = await submit(http)
    pen = await pen_of(typist)
    async with http.stream("GET", f"/workflows/{run}/events?deltas=true") as response:
        lines = Lines(response)
        await lines.until("model.call_started")
        words = [f"{n} " for n in range(2_000)]
        pen.write(*words)
        pen.end()
        rest = await lines.rest()
    assert text_of(rest) == "".join(words)
    assert len([line for line in rest if line["type"] == "model.delta"]) < 20


async def test_a_late_reader_first_gets_the_text_so_far(http, typist):
    run = await submit(http)
    pen = await pen_of(typist)
    async with http.stream("GET", f"/workflows/{run}/events?deltas=true") as early:
        early_lines = Lines(early)
        pen.write("What was ", "before")
        await early_lines.until("model.delta")
        async with http.stream("GET", f"/workflows/{run}/events?deltas=true") as late:
            lines = Lines(late)
            seen = await lines.until("model.delta")
            assert "model.call_started" in [line["type"] for line in seen]
            assert text_of(seen) == "What was before"
            pen.write(", and after")
            pen.end()
            rest = await lines.rest()
            assert text_of(rest) == ", and after"
            index = next(line["data"]["index"] for line in rest if line["type"] == "model.delta")
            assert index == len("What was before")


async def test_thinking_is_told_apart(http, typist):
    run = await submit(http)
    pen = await pen_of(typist)
    pen.write("hm", "mm", kind="thinking")
    pen.write("yes")
    pen.write("?", kind="thinking")
    async with http.stream("GET", f"/workflows/{run}/events?deltas=true") as response:
        lines = Lines(response)
        await lines.until("model.call_started")
        found = [(await lines.next())["data"] for _ in range(3)]
        pen.end()
        rest = await lines.rest()
    told = [(data["token_kind"], data["index"], data["text"]) for data in found]
    assert told == [("thinking", 0, "hmmm"), ("output", 0, "yes"), ("thinking", 4, "?")]
    assert rest[-1]["data"]["output"] == "yes"


async def test_sse_frames_have_no_id(http, typist):
    run = await submit(http)
    pen = await pen_of(typist)
    for named in ("true", "false"):
        url = f"/workflows/{run}/events?deltas=true&format=sse&named={named}"
        async with http.stream("GET", url) as response:
            pen.write("word")
            frame: list[str] = []
            async for line in response.aiter_lines():
                if line:
                    frame.append(line)
                elif any('"model.delta"' in part for part in frame):
                    break
                else:
                    frame.clear()
        fields = [part.partition(":")[0] for part in frame]
        assert fields == (["event", "data"] if named == "true" else ["data"])
    pen.end()


async def test_step_filters_deltas_and_type_does_not(http, typist):
    run = await submit(http, STEPS, {"text": "x"})
    query = "deltas=true&step=second&type=workflow.completed"
    async with (
        http.stream("GET", f"/workflows/{run}/events?{query}") as second,
        http.stream("GET", f"/workflows/{run}/events?deltas=true&type=workflow.completed") as both,
    ):
        for word in ('"one"', '"two"'):
            pen = await pen_of(typist)
            pen.write(word)
            pen.end()
        assert text_of(await Lines(second).rest()) == '"two"'
        rest = await Lines(both).rest()
        assert text_of(rest) == '"one""two"'
        assert [line["type"] for line in rest if line["type"] != "model.delta"] == ["workflow.completed"]


async def test_the_client_iterates_over_deltas(served, http, typist):
    async with served.client() as client:
        run = await client.submit(ONE, "x")
        pen = await pen_of(typist)
        pen.write("some ")
        told = ""
        async with aclosing(run.deltas()) as deltas:
            async for delta in deltas:
                told += delta.data.text
                if told == "some ":
                    pen.write("text")
                    pen.end()
        assert told == "some text"
        assert (await run.result()).output == "some text"
        assert [delta async for delta in run.deltas()] == []


async def test_a_connection_that_breaks_repeats_no_character(served, typist):
    async with served.client() as client:
        run = await client.submit(ONE, "x")
        pen = await pen_of(typist)
        pen.write("before ")
        told = ""
        async with aclosing(run.deltas()) as deltas:
            async for delta in deltas:
                assert delta.data.index == len(told)
                told += delta.data.text
                if told == "before ":
                    for open_stream in list(served.app.service.streams._open):
                        open_stream.abort()
                    pen.write("after")
                    pen.end()
        assert told in ("before ", "before after")  # the call may be over before the client is back
        assert (await run.result()).output == "before after"


async def test_a_break_in_the_middle_of_an_answer(served, typist):
    async with served.client() as client:
        run = await client.submit(ONE, "x")
        pen = await pen_of(typist)
        pen.write("before ")
        told, broken = "", False
        async with aclosing(run.deltas()) as deltas:
            async for delta in deltas:
                assert delta.data.index == len(told)
                told += delta.data.text
                if not broken:
                    broken = True
                    for open_stream in list(served.app.service.streams._open):
                        open_stream.abort()
                    pen.write("meanwhile ")
                elif told == "before meanwhile ":
                    pen.write("after")
                    pen.end()
        assert told in ("before meanwhile ", "before meanwhile after")


async def test_an_embedded_run_gives_the_same(typist):
    async with Runtime(models=[typist]) as runtime:
        run = await runtime.submit(ONE, "x")
        pen = await pen_of(typist)
        pen.write("some ")
        told = ""
        async with aclosing(run.deltas()) as deltas:
            async for delta in deltas:
                told += delta.data.text
                if told == "some ":
                    pen.write("text")
                    pen.end()
        assert told == "some text"


async def test_a_run_of_two_answers_that_are_written_side_by_side(http, typist):
    document = """
version: "1.0"
workflow:
  steps:
    - {type: run, id: a, agent: &a {systemPrompt: s, input: x, attachedFunctions: none, model: "scripted:m",
                                    resultSchema: {type: string}}}
    - {type: run, id: b, agent: *a}
"""
    run = await submit(http, document, {})
    async with http.stream("GET", f"/workflows/{run}/events?deltas=true") as response:
        pens = [await pen_of(typist), await pen_of(typist)]
        for n, pen in enumerate(pens):
            pen.write(f'"{n}')
        for pen in reversed(pens):
            pen.write('"')
            pen.end()
        rest = await Lines(response).rest()
    by_step = {step: [r for r in rest if r.get("step") == step] for step in ("a", "b")}
    assert {text_of(lines) for lines in by_step.values()} == {'"0"', '"1"'}
    assert rest[-1]["type"] == "workflow.completed"


class OneRun:
    """A run of a log in memory whose events the test writes, and one stream of it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.hub = Hub(self.log)
        self.deltas = DeltaHub()
        self.sent = b""
        self.came = asyncio.Condition()
        self.next = 0
        plan = Plan(frames=Ndjson(), wanted=EventFilter(), deltas=True, heartbeat=None)
        streams = StreamRegistry(self.hub, self.deltas, self.log, Metrics(), 10)
        self.stream = RunStream(streams, plan, {}, "wf_a", 0)

    async def write(self, kind: str) -> int:
        offset = self.next
        body = json.dumps({"type": kind, "offset": offset}).encode()
        event = StoredEvent(offset, 1, kind, body)
        meta = RunMeta(name="r", definition_hash="d", created_at=1) if offset == 0 else None
        state = "completed" if kind == "workflow.completed" else "running"
        await self.log.append(Append("wf_a", 1, offset, [event], state, meta))
        self.next += 1
        self.hub.publish("wf_a", [event])
        return offset

    async def send(self, message) -> None:
        async with self.came:
            self.sent += message.get("body", b"")
            self.came.notify_all()

    async def has_sent(self, text: bytes) -> None:
        async with self.came:
            await self.came.wait_for(lambda: text in self.sent)

    async def receive(self):
        return await asyncio.get_running_loop().create_future()


async def test_text_does_not_overtake_the_event_that_has_all_of_it():
    run = OneRun()
    await run.write("workflow.started")
    scope = {"type": "http", "method": "GET"}
    streaming = asyncio.ensure_future(run.stream(scope, run.receive, run.send))
    await run.has_sent(b"workflow.started")
    offset = await run.write("model.call_started")
    await run.has_sent(b"model.call_started")
    with run.deltas.writing("wf_a", "s", "mcl_1", offset) as sink:
        sink("output", "begun, ")
        await run.has_sent(b"begun")
        sink("output", "ended")
    await run.write("model.call_completed")
    await asyncio.sleep(0)  # the stream is about to take the event, and just now the text falls due
    run.stream._deltas_due()
    await run.write("workflow.completed")
    await streaming
    kinds = [json.loads(line)["type"] for line in run.sent.splitlines()]
    calls = ["model.call_started", "model.delta", "model.delta", "model.call_completed"]
    assert kinds == ["workflow.started", *calls, "workflow.completed"]


async def test_what_is_sent_at_the_same_time_takes_turns():
    """Also when one that waits, or that has just been given its turn, is cancelled."""
    run = OneRun()
    sent: list[bytes] = []
    room = asyncio.Semaphore(0)

    async def send(message) -> None:
        await room.acquire()
        sent.append(message["body"][:1])

    run.stream._send = send
    size = 300 * 1024  # three pieces
    puts = [asyncio.ensure_future(run.stream.put(name * size)) for name in (b"a", b"b", b"c", b"d", b"e")]
    await asyncio.sleep(0)
    puts[1].cancel()  # waits
    for _ in range(3):
        room.release()
    await puts[0]
    puts[2].cancel()  # has been given its turn
    for _ in range(6):
        room.release()
    assert [type(one) for one in await asyncio.gather(*puts, return_exceptions=True)] == [
        type(None),
        asyncio.CancelledError,
        asyncio.CancelledError,
        type(None),
        type(None),
    ]
    assert b"".join(sent) == b"aaadddeee"
    assert not run.stream.busy


async def test_an_embedded_reader_learns_that_the_log_cannot_be_read():
    run = OneRun()
    await run.write("workflow.started")

    class Reader(RunReader):
        hub, delta_hub, log = run.hub, run.deltas, run.log

    async def last(workflow_id):
        raise StoreError("no longer")

    run.log.last = last
    with pytest.raises(StoreError, match="no longer"):
        async for _ in Reader().deltas("wf_a"):
            pass


async def test_a_slow_client_is_seldom_looked_at():
    run = OneRun()
    run.stream.busy = True
    run.stream._deltas_due()
    timer = run.stream._delta_timer
    assert timer.when() - asyncio.get_running_loop().time() > 0.5
    timer.cancel()


async def test_a_sign_of_life_that_comes_late_repeats_no_event():
    line = b'{"type":"%b","offset":%d}\n'
    asked: list[str] = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        query = head.decode().split(" ")[1].partition("?")[2]
        asked.append(dict(pair.split("=") for pair in query.split("&")).get("after", "-1"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n")
        if len(asked) == 1:
            for offset in range(5):
                writer.write(line % (b"custom.x", offset))
            writer.write(line % (b"heartbeat", 2))
        else:
            for offset in range(int(asked[-1]) + 1, 6):
                writer.write(line % (b"workflow.completed" if offset == 5 else b"custom.x", offset))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Client(f"http://127.0.0.1:{port}") as client:
        seen = [json.loads(text)["offset"] async for text in client.event_lines("wf_x")]
    assert seen == list(range(6))
    assert asked == ["-1", "4"]
