"""Clients that mean harm, or know no better: whatever they send, the daemon answers and goes on."""

from __future__ import annotations

import asyncio
import json

import httpx
import msgspec
import pytest

from agentflow.config import ServerConfig
from tests.unit.server.kit import ECHO, STEPS, Gate, agents, holding_model, serving
from tests.unit.server.logs import Writer


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path, store=f"sqlite:{tmp_path / 'runs.db'}") as found:
        yield found
        async with found.http() as http:
            assert (await http.get("/healthz")).json()["status"] == "ok"
            text = (await http.get("/metrics")).text
        assert 'status="500"' not in text, [line for line in text.splitlines() if '"500"' in line]


@pytest.fixture
async def http(served):
    async with served.http() as client:
        yield client


def nested(depth: int, open_: str = "[", close: str = "]") -> str:
    return open_ * depth + "1" + close * depth


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            nested(50),
            nested(400),
            nested(900),
            nested(5_000),
            nested(900, '{"a":', "}"),
            '"\\ud800"',
            '"\\udfff\\ud800"',
            '"\\u0000"',
            '"\\ud83d\\ude00"',
            "1" * 400,
            "-" + "9" * 5000,
            "1e308",
            "1e999",
            "-0.0",
            "0.1e-400",
            '{"$blob":"sha256:' + "0" * 64 + '"}',
            '{"$secret":"OPENAI_API_KEY"}',
            '{"":"","__proto__":{}}',
            '{"a":1,"a":2}',
        ],
    )
    async def test_inputs(self, http, value):
        body = f'{{"definition": {json.dumps(ECHO)}, "input": {value}}}'.encode()
        answer = await http.post(
            "/workflows?wait=20", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code < 500, answer.text
        if answer.status_code == 201:
            path = answer.json()["links"]["self"]
            for view in ("", "/history", "/state", "/log", "/events", "/context/agent_0"):
                assert (await http.get(path + view)).status_code == 200, view

    @pytest.mark.parametrize(
        "definition",
        [
            "",
            "\x00",
            "{",
            "- [",
            "a: &a [*a]",
            "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]\n" * 1,
            "!!python/object/apply:os.system [echo]",
            "%YAML 9.9\n---\n{}",
            "agents: " + "[" * 2000,
            "agents:\n" + "  - {name: a, system_prompt: b}\n" * 2_000,
            STEPS.replace("${{ inputs.text }}", "${{ " + "(" * 5000 + " }}"),
            STEPS.replace("first", "f" * 100_000),
            "\ufeff" + STEPS,
            "9" * 10_000,
        ],
    )
    async def test_definitions(self, http, definition):
        for path in ("/workflows", "/validate", "/definitions"):
            answer = await http.post(
                path,
                json={"definition": definition, "input": {"text": "x"}}
                if path != "/definitions"
                else {"definition": definition},
            )
            assert answer.status_code < 500, answer.text

    async def test_names_and_labels(self, http):
        for labels in (
            {"x" * 50_000: "y"},
            {"agentflow.idempotency_key": "mine"},
            {"": ""},
            {"a\x00": "b\n"},
        ):
            answer = await http.post("/workflows", json={"definition": ECHO, "labels": labels})
            assert answer.status_code < 500
        for name in ("x" * 100_000, "\x00", "a\nb", "\u202e"):
            answer = await http.post("/workflows", json={"definition": {**ECHO, "name": name}})
            assert answer.status_code < 500
        assert (await http.get("/workflows?limit=500")).status_code == 200

    async def test_a_key_of_another_cannot_be_taken_over(self, http):
        """The index of keys is a label of the store: a client must not write it."""
        first = await http.post(
            "/workflows", json={"definition": ECHO, "input": "a"}, headers={"Idempotency-Key": "k"}
        )
        forged = await http.post(
            "/workflows",
            json={"definition": ECHO, "input": "evil", "labels": {"agentflow.idempotency_key": "k2"}},
        )
        assert forged.status_code == 400
        second = await http.post(
            "/workflows", json={"definition": ECHO, "input": "a"}, headers={"Idempotency-Key": "k2"}
        )
        assert second.status_code == 201, second.text
        assert second.json()["workflow_id"] != first.json()["workflow_id"]
        run = second.json()["links"]["self"]
        forked = await http.post(f"{run}/fork", json={"labels": {"agentflow.idempotency_key": "k"}})
        assert forked.status_code == 400

    async def test_a_large_input_is_taken_and_one_too_large_is_not(self, http):
        answer = await http.post("/workflows?wait=20", json={"definition": ECHO, "input": "x" * 3_000_000})
        assert answer.status_code < 500
        answer = await http.post("/workflows", json={"definition": ECHO, "input": "x" * (9 << 20)})
        assert answer.status_code == 413


class TestTiming:
    async def test_a_run_that_is_deleted_while_it_is_read(self, served, http):
        log = Writer(served.runtime, "wf_log")
        await log.write(3)
        async with http.stream("GET", "/workflows/wf_log/events") as response:
            lines = response.aiter_lines()
            for _ in range(3):
                await anext(lines)
            await log.end()
            await served.runtime.log.delete("wf_log", 1)
            rest = [line async for line in lines]
        assert len(rest) <= 1
        assert (await http.get("/workflows/wf_log/events")).status_code == 410

    async def test_who_waits_and_leaves_leaves_nothing_behind(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.http() as http,
        ):
            waiting = [
                asyncio.ensure_future(http.post("/workflows?wait=600", json={"definition": gate.document()}))
                for _ in range(10)
            ]
            await gate.entered.wait()
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            async with asyncio.timeout(5):
                while served.server.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            gate.leave.set()

    async def test_everybody_at_once(self, served, http):
        limits = httpx.Limits(max_connections=100)
        transport = httpx.AsyncHTTPTransport(uds=str(served.socket), limits=limits, verify=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=50) as many:
            answers = await asyncio.gather(
                *(many.post("/workflows", json={"definition": ECHO, "input": str(i)}) for i in range(100)),
                *(
                    many.get(path)
                    for path in ("/workflows", "/inbox", "/metrics", "/openapi.json")
                    for _ in range(20)
                ),
            )
        assert {answer.status_code for answer in answers} == {200, 201}
        async with served.client() as client:
            for answer in answers:
                if answer.status_code == 201:
                    assert (await client.rest(answer.json()["workflow_id"])).state == "completed"

    async def test_commands_that_contradict_each_other(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.http() as http,
        ):
            run = (await http.post("/workflows", json={"definition": gate.document()})).json()
            await gate.entered.wait()
            path = run["links"]["self"]
            answers = await asyncio.gather(
                *(
                    http.post(f"{path}/{command}")
                    for _ in range(10)
                    for command in ("pause", "resume", "cancel")
                )
            )
            assert all(answer.status_code in (200, 202, 409) for answer in answers)
            async with served.client() as client:
                assert (await client.rest(run["workflow_id"])).state == "cancelled"
                types = [event.type async for event in client.events(run["workflow_id"])]
            assert types.count("workflow.cancelled") == 1
            assert types[-1] == "workflow.cancelled"
            gate.leave.set()

    async def test_streams_of_runs_that_are_not_there_take_no_place(self, tmp_path):
        async with serving(tmp_path, config=ServerConfig(max_streams=2)) as served, served.http() as http:
            for _ in range(10):
                assert (await http.get("/workflows/wf_none/events")).status_code == 404
                assert (await http.head("/events")).status_code == 200
            assert served.app.service.metrics.streams_open == 0

    async def test_a_request_behind_a_stream(self, served):
        """On one connection the second request waits for the first; leaving ends both."""
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        reader, writer = await asyncio.open_unix_connection(str(served.socket))
        one = b"GET /workflows/wf_log/events HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(one + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b'"offset":0')
        await log.end()
        rest = await reader.readuntil(b'"agentflow"')
        assert b"HTTP/1.1 200 OK" in rest
        writer.close()
        await writer.wait_closed()


async def test_a_store_that_refuses_is_told_as_it_is(tmp_path, monkeypatch):
    from agentflow.errors import LogCorrupt, StorageUnavailable
    from agentflow.events.memory import MemoryLog

    async with serving(tmp_path) as served, served.http() as http:
        run = (await http.post("/workflows?wait=10", json={"definition": ECHO})).json()

        def refuse(kind):
            def raising(*args, **kwargs):
                raise kind("the disk is tired")

            return raising

        monkeypatch.setattr(MemoryLog, "put_definition", refuse(StorageUnavailable))
        answer = await http.post("/workflows", json={"definition": agents("new")})
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert answer.headers["retry-after"]
        monkeypatch.setattr(MemoryLog, "run", refuse(LogCorrupt))
        answer = await http.get(run["links"]["self"])
        assert (answer.status_code, answer.json()["code"]) == (500, "log_corrupt")
        assert msgspec.json.decode(answer.content)["detail"] == "the disk is tired"
