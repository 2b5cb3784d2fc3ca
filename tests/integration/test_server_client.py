"""The client beside the embedded Runtime: the same names, arguments, results and exceptions."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from contextlib import aclosing

import msgspec
import pytest
import yaml

from agentflow import Client as PublicClient
from agentflow import DefinitionError, Runtime, SyncClient, WorkflowCancelled, WorkflowFailed
from agentflow.client import Client, NotAuthorised, ProblemError, Unavailable, Unreachable
from agentflow.client.errors import error_of
from agentflow.config import ServerConfig
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    ConfigurationError,
    IdempotencyConflict,
    OffsetTrimmed,
    OutputNotReady,
    RunExists,
    RunGone,
    RunNotFound,
    RunNotTerminal,
    RunTerminal,
    UnknownRequest,
)
from agentflow.models import ModelError
from agentflow.records.read_model import ReadModel
from agentflow.records.runs import StepNotFound
from agentflow.testing import ScriptedModel
from tests.unit.server.kit import APPROVAL, ECHO, STEPS, Gate, agents, echo, holding_model, serving, tokens
from tests.unit.server.logs import Writer

# Who asks is known to the daemon; how an answer came is too.
OWN = {"asked", "by", "code", "trusted", "via"}
SHARED = (
    *("submit", "run", "attach", "cancel", "pause", "resume", "resume_all", "retry", "fork", "signal"),
    "requests",
    *("decide", "answer", "answer_all", "withdraw", "record", "result", "rest", "list", "events", "graph"),
)


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path) as found:
        yield found


@pytest.fixture
async def client(served):
    async with served.client() as found:
        yield found


class TestSurface:
    @pytest.mark.parametrize("name", SHARED)
    def test_methods_have_the_arguments_of_the_runtime(self, name):
        wanted = inspect.signature(getattr(Runtime, name)).parameters
        given = inspect.signature(getattr(Client, name)).parameters
        for parameter in wanted.values():
            if parameter.name in OWN or parameter.name == "admission":
                continue
            assert parameter.name in given
            found = given[parameter.name]
            assert (found.kind, found.default) == (parameter.kind, parameter.default)

    @pytest.mark.parametrize(
        "name",
        [
            *("record", "state", "history", "step", "context", "compare", "trace", "timeline"),
            *("definition", "graph"),
        ],
    )
    def test_views_have_the_arguments_of_the_views(self, name):
        wanted = inspect.signature(getattr(ReadModel, name))
        given = inspect.signature(getattr(Client, name))
        assert list(given.parameters) == list(wanted.parameters)
        assert given.return_annotation == wanted.return_annotation

    def test_the_blocking_one_has_all_methods(self):
        def public(kind):
            return {name for name, value in vars(kind).items() if callable(value) and name[0] != "_"}

        wanted = set().union(*(public(kind) for kind in Client.__mro__[:-1]))
        assert len(wanted) > 30
        assert wanted <= public(SyncClient)

    def test_it_is_exported(self):
        assert PublicClient is Client


DOCUMENTS = {"agents": (ECHO, "hi"), "steps": (STEPS, {"text": "a"})}


class TestOneLine:
    @pytest.mark.parametrize("document", DOCUMENTS)
    async def test_the_same_code_embedded_and_on_the_daemon(self, served, tmp_path, document):
        definition, value = DOCUMENTS[document]
        if isinstance(definition, str):
            (tmp_path / "steps.yaml").write_text(definition)
            definition = tmp_path / "steps.yaml"

        async def work(runtime):
            handle = await runtime.submit(definition, value, labels={"a": "b"}, workflow_id="wf_same")
            events = [event.type async for event in handle.events()]
            result = await handle.result()
            record = await runtime.record("wf_same")
            (listed,) = await runtime.list(state="completed")
            assert listed.workflow_id == "wf_same"
            return result, events, record, await runtime.graph("wf_same")

        async with Runtime(models=[echo()]) as embedded:
            one = await work(embedded)
        async with Client(served.unix_url) as remote:
            two = await work(remote)
        for a, b in ((one[0], two[0]), (one[2], two[2])):
            assert type(a) is type(b)
            assert (a.state, a.output, a.steps, a.usage) == (b.state, b.output, b.steps, b.usage)
        assert one[1] == two[1]
        assert one[3] == two[3]

    async def test_failures_are_the_same(self, tmp_path):
        broken = ScriptedModel(
            lambda _: ModelError(ErrorInfo(category="auth", code="authentication_failed", message="no key"))
        )

        async def work(runtime):
            with pytest.raises(WorkflowFailed, match="no key") as caught:
                await runtime.run(ECHO, "x")
            assert caught.value.result.state == "failed"
            assert (
                await runtime.run(ECHO, "x", raise_on_failure=False)
            ).error.code == "authentication_failed"

        async with Runtime(models=[broken]) as embedded:
            await work(embedded)
        async with serving(tmp_path, model=broken) as served, served.client() as remote:
            await work(remote)

    async def test_a_cancelled_run(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.client() as client,
        ):
            handle = await client.submit(gate.document())
            waiting = asyncio.ensure_future(client.run(gate.document(), workflow_id=handle.workflow_id))
            await gate.entered.wait()
            await handle.cancel("enough", mode="hard")
            assert (await handle.rest()).state == "cancelled"
            with pytest.raises(WorkflowCancelled):
                await waiting
            await handle.cancel()  # a run that has ended is left alone
            await client.resume(handle.workflow_id)

    @pytest.mark.parametrize("kind", ["embedded", "remote"])
    async def test_exceptions_are_the_same(self, served, kind):
        async with Runtime(models=[echo()]) as embedded, Client(served.unix_url) as remote:
            runtime = embedded if kind == "embedded" else remote
            with pytest.raises(RunNotFound):
                await runtime.record("wf_none")
            with pytest.raises(RunNotFound):
                await runtime.attach("wf_none")
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit({"agents": []})
            assert caught.value.diagnostics[0].code == "E_NO_AGENTS"
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit("/no/such/file.yaml")
            assert caught.value.diagnostics[0].code == "E_FILE"
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit(ECHO, options={"nonsense": 1})
            assert caught.value.diagnostics[0].path == "/options/nonsense"
            await runtime.submit(ECHO, "a", workflow_id="wf_taken")
            with pytest.raises(RunExists):
                await runtime.submit(ECHO, "b", workflow_id="wf_taken")
            await runtime.submit(ECHO, "a", idempotency_key="k")
            with pytest.raises(IdempotencyConflict):
                await runtime.submit(ECHO, "b", idempotency_key="k")
            asking = await runtime.submit(ASKING)
            assert (await asking.result()).state == "waiting"
            with pytest.raises(OutputNotReady):
                await runtime.submit(ECHO, input_from={"workflow_id": asking.workflow_id})
            with pytest.raises(UnknownRequest):
                await runtime.answer(asking.workflow_id, "req_none", 1)
            await runtime.rest("wf_taken")
            with pytest.raises(RunTerminal):
                await runtime.pause("wf_taken")
            with pytest.raises(CommandRefused) as refused:
                await runtime.fork("wf_taken", from_step="none")
            assert refused.value.code == "step_not_found"
            with pytest.raises(CommandRefused) as refused:
                await runtime.fork("wf_taken", from_failure=True)
            assert refused.value.code == "not_failed"
            with pytest.raises(CommandRefused) as refused:
                await runtime.pause(asking.workflow_id, expected_offset=0)
            assert refused.value.code == "offset_mismatch"

    async def test_what_only_the_log_raises(self, served, client):
        await client.run(ECHO, "x", workflow_id="wf_gone")
        waiting = await client.submit(ASKING)
        assert (await waiting.result()).state == "waiting"
        with pytest.raises(RunNotTerminal):
            await client.delete(waiting.workflow_id)
        await client.delete("wf_gone")
        with pytest.raises(RunGone) as gone:
            await client.record("wf_gone")
        assert gone.value.tombstone.workflow_id == "wf_gone"
        writer = Writer(served.runtime, "wf_old")
        await writer.write(4)
        await writer.end()
        await served.runtime.log.trim("wf_old", 2)
        with pytest.raises(OffsetTrimmed) as trimmed:
            [line async for line in client.event_lines("wf_old", -1)]
        assert (trimmed.value.earliest_offset, trimmed.value.requested) == (2, 0)
        assert len([line async for line in client.event_lines("wf_old")]) == 3


class TestReading:
    async def test_everything_of_a_run(self, client):
        handle = await client.submit(STEPS_FILE_FREE, {"text": "a"})
        assert (await handle.result()).output == {"second": "a!!"}
        run = handle.workflow_id
        assert [s.step_id for s in (await client.history(run)).steps] == ["first", "second"]
        assert (await client.state(run)).steps["first"].output == "a!"
        assert (await client.state(run, 0)).state == "pending"
        assert (await client.step(run, "second")).data == "a!!"
        assert (await client.context(run, "second")).messages[-1].content == "a!!"
        assert (await client.definition(run)).ir == await client.graph(run)
        assert (await client.drawing(run)).startswith("flowchart TD")
        assert "digraph" in await client.drawing(run, "dot")
        with pytest.raises(StepNotFound):
            await client.step(run, "none")
        with pytest.raises(StepNotFound):
            await client.context(run, "first", attempt=9)
        page = await client.summaries(limit=1)
        assert [item.workflow_id for item in page.items] == [run]
        assert page.next_cursor is None

    async def test_questions(self, client, tmp_path):
        (tmp_path / "ask.yaml").write_text(APPROVAL)
        handle = await client.submit(tmp_path / "ask.yaml")
        assert (await handle.result()).state == "waiting"
        (request,) = await client.requests()
        assert await client.requests(handle.workflow_id, kind="step") == [request]
        assert await client.requests(kind="input") == []
        with pytest.raises(CommandRefused) as refused:
            await client.decide(handle.workflow_id, granted=True, step_id="ask", digest="sha256:other")
        assert refused.value.code == "digest_mismatch"
        await client.decide(handle.workflow_id, granted=True, step_id="ask", reason="fine")
        assert (await handle.result()).state == "completed"

    async def test_a_question_is_taken_back(self, client, tmp_path):
        (tmp_path / "ask.yaml").write_text(APPROVAL)
        handle = await client.submit(tmp_path / "ask.yaml")
        await handle.result()
        (request,) = await client.requests()
        await client.withdraw(handle.workflow_id, request.request_id, "old")
        assert (await handle.rest()).state == "failed"

    async def test_pauses_and_signals(self, tmp_path):
        gate = Gate()
        async with (
            serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served,
            served.client() as client,
        ):
            handle = await client.submit(gate.document())
            await gate.entered.wait()
            await client.pause(handle.workflow_id, reason="lunch")
            await client.signal(handle.workflow_id, "go", {"a": 1}, signal_id="one")
            gate.leave.set()
            await client.resume(handle.workflow_id)
            assert (await handle.result()).state == "completed"
            forked = await client.fork(handle.workflow_id, as_id="wf_forked")
            assert forked.workflow_id == "wf_forked"
            record = await client.record("wf_forked")
            assert record.forked_from.workflow_id == handle.workflow_id

    async def test_validation(self, client):
        assert (await client.validate(agents("x"))).valid
        found = await client.validate(STEPS_FILE_FREE, {})
        assert not found.valid
        assert found.diagnostics

    async def test_blobs(self, served, client):
        name = await served.runtime.log.put_blob(b"[1]")
        assert await client.blob(name) == b"[1]"
        assert await client.blob("sha256:" + "0" * 64) is None

    async def test_the_daemon(self, client):
        assert (await client.health()).status == "ok"
        assert (await client.version()).name == "agentflow"
        with pytest.raises(ProblemError) as refused:
            await client.drain()
        assert (refused.value.code, refused.value.status) == ("not_found", 404)


ASKING = yaml.safe_load(APPROVAL)
STEPS_FILE_FREE = {
    "version": "1.0",
    "workflow": {
        "steps": [
            {
                "type": "run",
                "id": name,
                "agent": {
                    "systemPrompt": name,
                    "input": source,
                    "attachedFunctions": "none",
                    "model": "scripted:m",
                    "resultSchema": {"type": "string"},
                },
                **({"depends_on": ["first"]} if name == "second" else {}),
            }
            for name, source in (
                ("first", "${{ inputs.text }}"),
                ("second", "${{ steps.first.outputs.result }}"),
            )
        ]
    },
}


class TestConnection:
    async def test_nobody_there(self, tmp_path):
        for url in (f"unix:{tmp_path / 'none'}", "http://127.0.0.1:1"):
            async with Client(url) as client:
                with pytest.raises(Unreachable, match="no daemon answers"):
                    await client.version()
                with pytest.raises(Unreachable):
                    [event async for event in client.events("wf_x")]

    @pytest.mark.parametrize("url", ["", "nonsense", "ftp://x", "unix:", "http://", "/var/run/x.sock"])
    def test_urls_that_are_none(self, url, monkeypatch):
        monkeypatch.delenv("AGENTFLOW_URL", raising=False)
        if url:
            with pytest.raises(ConfigurationError):
                Client(url)
        else:
            assert Client(None).url.startswith("unix:")

    async def test_not_open(self):
        with pytest.raises(AgentflowError, match="async with"):
            await Client("http://127.0.0.1:1").version()

    async def test_tokens(self, tmp_path, monkeypatch):
        given, secrets = tokens(reader=("read",))
        async with serving(tmp_path, given=given, config=ServerConfig(require_token=True)) as served:
            async with served.client(tcp=True) as client:
                with pytest.raises(NotAuthorised) as refused:
                    await client.list()
                assert refused.value.code == "unauthorized"
            async with served.client(tcp=True, token=secrets["reader"]) as client:
                assert await client.list() == []
                with pytest.raises(NotAuthorised) as refused:
                    await client.submit(ECHO)
                assert refused.value.code == "forbidden"
            monkeypatch.setenv("AGENTFLOW_TOKEN", secrets["reader"])
            async with served.client(tcp=True) as client:
                assert await client.list() == []

    async def test_a_draining_daemon(self, served, client):
        served.app.service.draining = True
        with pytest.raises(Unavailable) as refused:
            await client.submit(ECHO)
        assert (refused.value.code, refused.value.retry_after) == ("draining", 5.0)

    async def test_following_waits_until_there_is_room(self, tmp_path):
        async with serving(tmp_path, config=ServerConfig(max_streams=1)) as served:
            writer = Writer(served.runtime, "wf_log")
            await writer.write(1)
            async with served.client() as client:
                first = client.event_lines("wf_log")
                async with aclosing(first):
                    await anext(first)
                    second = client.event_lines("wf_log")
                    with pytest.raises(Unavailable):
                        await asyncio.wait_for(anext(client_of(served, reconnect_timeout=0.0)), 10)
                    waiting = asyncio.ensure_future(anext(second))
                    await asyncio.sleep(0)
                assert b'"offset":0' in await asyncio.wait_for(waiting, 20)
                await second.aclose()

    async def test_the_end_of_a_daemon_in_the_middle_of_a_line(self):
        """A line that was cut off is not an event: it comes again, whole."""
        line = b'{"id":"e","offset":%d,"timestamp":"t","type":"custom.x","workflow_id":"wf_x","data":{}}\n'
        end = (line % 3).replace(b"custom.x", b"workflow.completed")
        asked: list[str] = []

        async def serve(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            query = head.decode().split(" ")[1].partition("?")[2]
            asked.append(dict(pair.split("=") for pair in query.split("&")).get("after", "-1"))
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"
            )
            after = int(asked[-1])
            if after < 1:
                writer.write(line % 0 + line % 1 + (line % 2)[:30])
            else:
                writer.write(line % 2 + end)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"http://127.0.0.1:{port}") as client:
            seen = [line async for line in client.event_lines("wf_x")]
        assert len(seen) == 4
        assert asked == ["-1", "1"]

    def test_answers_that_are_no_problems(self):
        error = error_of(502, b"<html>Bad Gateway</html>")
        assert isinstance(error, ProblemError)
        assert "is this the daemon?" in str(error)
        assert isinstance(error_of(500, b'{"code": "log_corrupt", "detail": "x"}'), AgentflowError)
        assert error_of(418, b'{"code": "teapot", "title": "I am"}').code == "teapot"
        assert isinstance(error_of(410, b'{"code": "run_gone", "detail": "x"}'), ProblemError)


async def client_of(served, **more):
    async with served.client(**more) as client:
        async for line in client.event_lines("wf_log"):
            yield line


class TestSync:
    def call(self, served, work):
        """`work(SyncClient)` in a thread: the daemon's loop is this one."""
        result: list = []

        def run():
            try:
                with SyncClient(served.unix_url) as client:
                    result.append(work(client))
            except BaseException as error:
                result.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, result

    async def test_without_asyncio(self, served):
        def work(client):
            run = client.submit(ECHO, "hi")
            types = [event.type for event in run.events()]
            assert types[0] == "workflow.started"
            assert types[-1] == "workflow.completed"
            stream = client.events(run.workflow_id)
            assert next(stream).offset == 0
            stream.close()
            assert run.result().output == "hi!"
            assert client.run(ECHO, "a").output == "a!"
            assert len(list(client.event_lines(run.workflow_id, limit=2))) == 2
            assert [r.state for r in client.list()] == ["completed", "completed"]
            with pytest.raises(RunNotFound):
                client.record("wf_none")
            return "done"

        thread, result = self.call(served, work)
        await asyncio.to_thread(thread.join)
        assert result == ["done"]

    def test_not_open(self):
        with pytest.raises(AgentflowError, match="with SyncClient"):
            SyncClient("http://127.0.0.1:1").version()

    def test_inside_a_running_loop(self, tmp_path):
        async def within():
            with SyncClient(f"unix:{tmp_path / 'none'}") as client, pytest.raises(Unreachable):
                client.version()

        asyncio.run(within())


def test_importing_the_client_needs_no_web_framework():
    import subprocess
    import sys

    code = "import sys, agentflow.client; print([m for m in ('starlette', 'uvicorn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "[]", done.stderr


async def test_the_registered_functions_with_their_side_effects(tmp_path):
    gate = Gate()
    async with serving(tmp_path, services=(gate.service(),)) as served, served.client() as client:
        (tool,) = await client.tools()
        assert (tool.service, tool.name, tool.side_effect) == ("gate", "gate__hold", "read")
        assert tool.input_schema["type"] == "object"
        words = (sys.executable, "-m", "agentflow", "tools", "--url", served.unix_url)
        shown = {}
        for more in ((), ("--json",)):
            process = await asyncio.create_subprocess_exec(*words, *more, stdout=asyncio.subprocess.PIPE)
            shown[more], _ = await process.communicate()
            assert process.returncode == 0
        head, line = shown[()].decode().splitlines()
        assert head.split() == ["SERVICE", "FUNCTION", "SIDE", "EFFECT", "TIMEOUT", "DESCRIPTION"]
        assert line.split()[:3] == ["gate", "hold", "read"]
        assert line.endswith("Waits.")
        async with served.http() as http:
            assert msgspec.json.decode(shown[("--json",)]) == (await http.get("/tools")).json()
