"""Code of this machine runs only if every client behind it is trusted: the one that registered the
definition, the one that submitted the run, and the one that commands it now (daemon D2, page 000 §8).

Clients are real ones of one served API: over the Unix socket as its owner (trusted), over TCP (not). What
runs leaves a mark, so each case can fail both ways.
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import agentflow.server
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.loader import load_value
from agentflow.models import ModelError
from agentflow.server.definitions import Definitions
from agentflow.server.problems import Refusal
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from agentflow.tools import ServiceLoader
from tests.integration.support.marked import KINDS, MARKED_BY_BINDING, Marked, marked_services
from tests.unit.server.kit import ECHO, Serving, agents, serving

pytestmark = pytest.mark.timeout(120)

TRUST = (True, False)
COMMANDS = ("fork", "retry", "resume")


class Goer:
    """A model that calls the one function it is offered and then ends; while `fails`, it is refused."""

    def __init__(self) -> None:
        self.fails = False

    def model(self) -> ScriptedModel:
        return ScriptedModel(self._answer, max_concurrency=64)

    def _answer(self, request: Any) -> Any:
        if self.fails:
            raise ModelError(ErrorInfo(category="invalid_input", code="invalid_request", message="not yet"))
        if request.messages[-1].role == "tool" or not request.tools:
            return "done"
        return call(request.tools[0].name)


class Bench:
    """One served API, its two clients, and the marked services."""

    def __init__(self, served: Serving, marked: Marked, goer: Goer, clients: dict[bool, Any]) -> None:
        self.served = served
        self.marked = marked
        self.goer = goer
        self.clients: dict[bool, httpx.AsyncClient] = clients

    async def register(self, trusted: bool, document: dict[str, Any], **more: Any) -> httpx.Response:
        return await self.clients[trusted].post("/definitions", json={"definition": document, **more})

    async def submit(self, trusted: bool, body: dict[str, Any]) -> httpx.Response:
        return await self.clients[trusted].post("/workflows?wait=20", json=body)

    async def held(self, kind: str, case: str, trusted: bool) -> str:
        """A run whose only step is held before it called anything, accepted with this trust.

        A run that needs trust and has none comes about when an address that was public becomes private: here
        the service is loaded as if the run were trusted, and its log says that it is not.
        """
        load = ServiceLoader.load

        async def trusting(loader: ServiceLoader, *given: Any, **more: Any) -> Any:
            return await load(loader, *given, **{**more, "trusted": True})

        self.goer.fails = True
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ServiceLoader, "load", trusting)
            handle = await self.served.runtime.submit(
                load_value(self.marked.document(kind, case)), options={"on_failure": "hold"}, trusted=trusted
            )
            await handle.result()
        self.goer.fails = False
        self.marked.forget(case)
        return handle.workflow_id


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Bench]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AGENTFLOW_SECRET_MARKED", "a-secret-of-the-daemon")
    goer = Goer()
    async with (
        marked_services(tmp_path) as marked,
        serving(tmp_path, model=goer.model()) as served,
        served.http() as owner,
        served.http(tcp=True) as other,
    ):
        yield Bench(served, marked, goer, {True: owner, False: other})


def denied(answer: httpx.Response) -> bool:
    """True if the answer is a refusal, or a validation, that names a service without trust."""
    said = answer.json()
    assert answer.status_code == 422 or said.get("valid") is False, said
    found = [d for d in said["diagnostics"] if d["severity"] == "error"]
    assert {d["code"] for d in found} == {"E_SERVICE_DENIED"}, said
    assert all(d["hint"] for d in found)
    return all(d["path"].startswith("/services/marked") for d in found)


@pytest.mark.parametrize("kind", KINDS)
async def test_submissions_run_code_only_with_the_trust_of_registrar_and_submitter(
    bench: Bench, kind: str
) -> None:
    for registrar, submitter, verb in product((*TRUST, None), TRUST, ("submit", "validate")):
        case = f"{kind}_{registrar}_{submitter}_{verb}"
        document = bench.marked.document(kind, case)
        body: dict[str, Any] = {"definition": document}
        if registrar is not None:
            assert (await bench.register(registrar, document, version="1")).status_code == 201
            body = {"definition_ref": case}
        if verb == "submit":
            answer = await bench.submit(submitter, body)
        else:
            answer = await bench.clients[submitter].post("/validate", json=body)
        if registrar is not False and submitter:
            assert answer.status_code in (200, 201), (case, answer.text)
            assert answer.json().get("state", "completed") == "completed", (case, answer.text)
            assert answer.json().get("valid", True), (case, answer.text)
            assert bench.marked.ran(case) == (verb == "submit" or kind in MARKED_BY_BINDING), case
        else:
            assert denied(answer), case
            assert not bench.marked.ran(case), case
    assert len((await bench.clients[True].get("/workflows")).json()["items"]) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_commands_run_code_only_with_the_trust_of_the_run_and_of_the_caller(
    bench: Bench, kind: str
) -> None:
    for accepted, caller, verb in product(TRUST, TRUST, COMMANDS):
        case = f"{kind}_{accepted}_{caller}_{verb}"
        run_id = await bench.held(kind, case, accepted)
        before = await bench.served.runtime.log.last(run_id)
        body = {"fork": {"from_step": "goer"}, "retry": {"step_id": "goer"}, "resume": {}}[verb]
        answer = await bench.clients[caller].post(f"/workflows/{run_id}/{verb}", json=body)
        if accepted and caller:
            assert answer.status_code in (200, 201), (case, answer.text)
            result = await bench.served.runtime.rest(answer.json()["workflow_id"])
            assert result.state == "completed", case
            assert bench.marked.ran(case), case
        else:
            assert denied(answer), case
            assert not bench.marked.ran(case), case
            assert await bench.served.runtime.log.last(run_id) == before, case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trusted", TRUST)
async def test_recovery_keeps_the_trust_that_a_run_was_accepted_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, trusted: bool
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AGENTFLOW_SECRET_MARKED", "a-secret-of-the-daemon")
    store, case = f"sqlite:{tmp_path / 'runs.db'}", f"recovered_{kind}_{trusted}"
    entered = asyncio.Event()

    async def wait(_: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    load = ServiceLoader.load

    async def trusting(loader: ServiceLoader, *given: Any, **more: Any) -> Any:
        return await load(loader, *given, **{**more, "trusted": True})

    async with marked_services(tmp_path) as marked:
        with monkeypatch.context() as patch:
            patch.setattr(ServiceLoader, "load", trusting)
            async with Runtime(store, models=[ScriptedModel([wait])], grace=0.1) as runtime:
                handle = await runtime.submit(load_value(marked.document(kind, case)), trusted=trusted)
                await entered.wait()
        marked.forget(case)
        async with Runtime(store, models=[Goer().model()]) as runtime:
            assert await runtime.recover() == [handle.workflow_id]
            result = await runtime.rest(handle.workflow_id)
        assert result.state == ("completed" if trusted else "paused")
        # A module that was imported in this process is not run by a second import, but by the call.
        assert marked.ran(case) == trusted


async def test_reading_a_run_or_a_definition_runs_nothing(bench: Bench) -> None:
    for kind in ("python", "mcp", "openapi"):
        case = f"read_{kind}"
        run_id = await bench.held(kind, case, True)
        assert (await bench.register(True, bench.marked.document(kind, case))).status_code == 201
        for trusted in TRUST:
            paths = [
                "",
                "/state",
                "/state/goer",
                "/context/goer",
                "/definition",
                "/graph",
                "/history",
                "/log",
            ]
            for path in (*(f"/workflows/{run_id}{p}" for p in paths), f"/definitions/{case}", "/definitions"):
                assert (await bench.clients[trusted].get(path)).status_code == 200, path
        assert not bench.marked.ran(case), kind


async def test_a_live_run_is_not_moved_by_an_untrusted_caller(bench: Bench) -> None:
    """The run is at work, with its services loaded, so that nothing would be bound again."""
    case = "live_python"
    document = bench.marked.document("python", case)
    gate = asyncio.Event()

    def answer(request: Any) -> Any:
        async def wait(_: Any) -> Any:
            await gate.wait()
            return "done"

        return wait if request.messages[0].content == "wait" else bench.goer._answer(request)

    agent = {"attachedFunctions": [{"service": "marked", "function": "go"}], "systemPrompt": "go"}
    common = {"input": "x", "model": "other:m", "resultSchema": {"type": "string"}}
    steps = [
        {"type": "run", "id": "goer", "agent": {**agent, **common}},
        {
            "type": "run",
            "id": "waiter",
            "agent": {"systemPrompt": "wait", "attachedFunctions": "none", **common},
        },
    ]
    body = {"version": "1.0", "services": document["services"], "workflow": {"steps": steps}}
    bench.served.runtime.models.register(ScriptedModel(answer, name="other"))
    bench.goer.fails = True
    handle = await bench.served.runtime.submit(load_value(body), options={"on_failure": "hold"})
    path = f"/workflows/{handle.workflow_id}"
    events = await bench.clients[True].get(f"{path}/events?type=workflow.paused&limit=1")
    assert "workflow.paused" in events.text
    assert handle.workflow_id in bench.served.runtime._registry.live
    bench.goer.fails = False
    bench.marked.forget(case)
    for verb, said in (("retry", {"step_id": "goer"}), ("resume", {})):
        assert denied(await bench.clients[False].post(f"{path}/{verb}", json=said))
        assert not bench.marked.ran(case)
    assert (await bench.clients[True].post(f"{path}/retry", json={"step_id": "goer"})).status_code == 200
    gate.set()
    assert (await handle.result()).state == "completed"
    assert bench.marked.ran(case)


async def test_an_untrusted_caller_moves_a_run_that_needs_no_trust(bench: Bench) -> None:
    for verb, body in (("retry", {"step_id": "agent_0"}), ("resume", {}), ("fork", {"from_step": "agent_0"})):
        bench.goer.fails = True
        handle = await bench.served.runtime.submit(load_value(agents("go")), options={"on_failure": "hold"})
        await handle.result()
        bench.goer.fails = False
        answer = await bench.clients[False].post(f"/workflows/{handle.workflow_id}/{verb}", json=body)
        assert answer.status_code in (200, 201), answer.text
        found = answer.json()["workflow_id"]
        assert (await bench.served.runtime.rest(found)).state == "completed"


async def test_a_fork_by_an_untrusted_caller_stays_untrusted(bench: Bench) -> None:
    handle = await bench.served.runtime.submit(load_value(ECHO))
    await handle.result()
    answer = await bench.clients[False].post(f"/workflows/{handle.workflow_id}/fork", json={})
    forked = answer.json()["workflow_id"]
    again = await bench.clients[True].post(f"/workflows/{forked}/fork", json={})
    for run_id, kept in ((handle.workflow_id, True), (forked, False), (again.json()["workflow_id"], False)):
        begin = await bench.served.runtime._begin(run_id)
        assert begin.options.get("trusted", True) is kept


def test_every_call_of_the_server_says_how_far_it_is_trusted() -> None:
    """What loads services for a client must not do so with the trust that an embedding program has."""
    verbs = re.compile(r"(submit|bind|fork|retry|replay|resume\w*)")
    found: list[str] = []
    for file in Path(agentflow.server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if ast.unparse(node.func.value).endswith("runtime") and verbs.fullmatch(node.func.attr):
                found.append(node.func.attr)
                names = {keyword.arg for keyword in node.keywords}
                assert "trusted" in names, f"{file.name}:{node.lineno} {ast.unparse(node.func)}"
    assert {"submit", "bind", "fork", "retry", "resume"} <= set(found)


class TestVersions:
    """Who may add a version, and which one is the newest."""

    async def test_an_attacker_cannot_replace_the_newest_version(self, bench: Bench) -> None:
        """The trial of daemon D2: the owner registers `triage` 1, an untrusted client `triage` 2."""
        assert (await bench.register(True, ECHO, name="triage", version="1")).json()["trusted"] is True
        attack = bench.marked.document("python", "attack")
        answer = await bench.register(False, attack, name="triage", version="2")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        for path, more in (("/validate", {}), ("/workflows", {"input": "x"})):
            found = await bench.clients[True].post(path, json={"definition_ref": "triage", **more})
            assert found.status_code in (200, 201)
        assert not bench.marked.ran("attack")

    async def test_newest_does_not_cross_to_an_untrusted_registrar(self, bench: Bench) -> None:
        """The name is squatted first: the untrusted versions are there, before and after the trusted one."""
        attack = bench.marked.document("python", "squat")
        assert (await bench.register(False, attack, name="squat", version="9")).json()["trusted"] is False
        assert (await bench.register(True, ECHO, name="squat", version="1")).status_code == 201
        for trusted in TRUST:
            assert (await bench.clients[trusted].get("/definitions/squat")).json()["version"] == "1"
            (listed,) = (await bench.clients[trusted].get("/definitions")).json()["items"]
            assert (listed["version"], listed["trusted"]) == ("1", True)
        assert (await bench.register(False, attack, name="squat", version="10")).status_code == 403
        named = await bench.clients[True].post("/validate", json={"definition_ref": "squat@9"})
        assert denied(named)
        assert "registered by local" in named.json()["diagnostics"][0]["hint"]
        assert not bench.marked.ran("squat")

    async def test_the_same_source_again(self, bench: Bench) -> None:
        """Harmless for a version that is there; a trusted client becomes the registrar of its own source."""
        document = bench.marked.document("python", "again")
        for trusted, by in ((False, "local"), (True, f"uid:{os.geteuid()}"), (False, f"uid:{os.geteuid()}")):
            answer = await bench.register(trusted, document, version="1")
            assert (answer.status_code, answer.json()["by"]) == (201, by)
        assert (await bench.submit(True, {"definition_ref": "again"})).json()["state"] == "completed"
        other = await bench.register(True, ECHO, name="again", version="1")
        assert other.json()["code"] == "version_exists"
        assert (await bench.register(False, ECHO, name="again", version="1")).status_code == 403

    async def test_trust_outlives_a_restart(self, tmp_path: Path) -> None:
        kept = Definitions(tmp_path)
        await kept.add(load_value(ECHO), name="mine", version="1", by="uid:7", trusted=True)
        await kept.add(load_value(ECHO), name="theirs", version="1", by="ci", trusted=False)
        read = Definitions(tmp_path)
        assert [(d.name, d.trusted) for d in await read.list()] == [("mine", True), ("theirs", False)]
        with pytest.raises(Refusal, match="may not add a version"):
            await read.add(load_value(agents("b")), name="mine", version="2", by="ci", trusted=False)

    @pytest.mark.parametrize(
        ("by", "trusted"),
        [(f"uid:{os.geteuid()}", True), ("uid:4294967", False), ("local", False), ("token", False)],
    )
    async def test_files_of_before_trust_was_kept(self, tmp_path: Path, by: str, trusted: bool) -> None:
        kept = Definitions(tmp_path)
        await kept.add(load_value(ECHO), name="old", version="1", by=by, trusted=True)
        file = tmp_path / "old" / "1.json"
        members = json.loads(file.read_text())
        del members["trusted"]
        file.write_text(json.dumps(members))
        assert (await Definitions(tmp_path).find("old")).trusted is trusted

    async def test_an_attack_that_came_before_the_upgrade(self, tmp_path: Path) -> None:
        """A store of before holds a later version of another client below the owner's name."""
        kept = Definitions(tmp_path)
        for version, by in (("1", f"uid:{os.geteuid()}"), ("2", "local")):
            made = await kept.add(
                load_value(agents(version)), name="triage", version=version, by=by, trusted=True
            )
            members = msgspec.to_builtins(made)
            del members["trusted"]
            (tmp_path / "triage" / f"{version}.json").write_text(json.dumps(members))
        read = Definitions(tmp_path)
        assert (await read.find("triage")).version == "1"
        assert [d.version for d in await read.list()] == ["1"]
        assert (await read.find("triage", "2")).trusted is False


async def test_results_that_serve_again_do_not_cross_trust(bench: Bench) -> None:
    """An untrusted run chooses keys of the global cache freely; a trusted one must not be served by it."""

    def document(answer: str) -> dict[str, Any]:
        agent = {
            "systemPrompt": "x",
            "input": answer,
            "attachedFunctions": "none",
            "model": "echo:m",
            "resultSchema": {"type": "string"},
        }
        cache = {"ttl": "1h", "scope": "global", "key": "${{ 'shared' }}"}
        return {
            "version": "1.0",
            "workflow": {"steps": [{"type": "run", "id": "a", "agent": agent, "cache": cache}]},
        }

    bench.served.runtime.models.register(ScriptedModel(lambda r: r.messages[-1].content, name="echo"))
    runs = [(False, "poison"), (True, "good"), (False, "other"), (True, "late")]
    found = []
    for trusted, text in runs:
        handle = await bench.served.runtime.submit(load_value(document(text)), trusted=trusted)
        await handle.result()
        state = await bench.served.runtime.fold(handle.workflow_id)
        found.append(state.nodes_view["a"]["output"])
    assert "poison" in str(found[0])
    assert "good" in str(found[1])
    assert [str(found[2]), str(found[3])] == [str(found[0]), str(found[1])]


async def test_a_document_cannot_send_the_key_of_a_provider_elsewhere(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`base_url` beside a model is refused, and in `extra` a member of the request: never its address."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-daemon")
    monkeypatch.setenv("OPENAI_BASE_URL", bench.marked.url + "/provider")
    thief = bench.marked.url + "/thief"
    model: dict[str, Any] = {"provider": "openai", "model": "m"}
    agent = {"name": "a", "system_prompt": "x", "model": "mine"}
    document: dict[str, Any] = {"agents": [agent], "models": {"mine": {**model, "base_url": thief}}}
    answer = await bench.submit(False, {"definition": document, "input": "x"})
    assert answer.json()["diagnostics"][0]["code"] == "E_UNKNOWN_KEY"
    model["extra"] = {"base_url": thief, "api_base": thief, "extra_headers": {"Host": thief}}
    document["models"] = {"mine": model}
    answer = await bench.submit(False, {"definition": document, "input": "x"})
    assert answer.status_code == 201, answer.text
    assert bench.marked.ran("provider")
    assert not bench.marked.ran("thief")
