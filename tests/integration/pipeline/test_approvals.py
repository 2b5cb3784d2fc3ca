"""Who may approve what, and what is asked again (page 004 §5, §6)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.testing import virtual
from agentflow import Runtime
from agentflow.config import TerminalConfig, ToolsetsConfig
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import AgentflowError, CommandRefused
from agentflow.events.tracing import trace_id_of
from agentflow.models import ModelError
from agentflow.pipeline.requests import Requests, toolsets_of
from agentflow.pipeline.settings import PipelineSettings
from agentflow.testing import call
from agentflow.tools import Service, ToolContext, function
from agentflow.tools.toolsets.registry import ToolsetRegistry
from tests.integration.pipeline.support import Desk, done, model_of, normalized, plan, requests_of, step
from tests.integration.support.runs import log_of, must_be_sound
from tests.integration.virtual import LoopClock
from tests.unit.server.kit import serving, tokens


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


class Bank:
    """Transfers that cannot be undone."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def service(self) -> Service:
        @function(side_effect="irreversible")
        def pay(amount: int) -> dict[str, Any]:
            """Pay an amount."""
            self.paid.append(amount)
            return {"id": len(self.paid)}

        return Service.of("bank", pay)


def _pays(step_id: str, request: Any) -> Any:
    paid = sum(m.role == "tool" for m in request.messages)
    return call("bank__pay", amount=(10, 20)[paid]) if paid < 2 else done(step_id)


@pytest.mark.parametrize("over", ["runtime", "http"])
@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("name", ["normalize", "plan", "review", "execute", "verify", "write"])
async def test_a_step_that_has_the_name_of_a_stage_is_approved_by_it(
    name: str, granted: bool, over: str, tmp_path: Path
):
    desk, model = Desk(), model_of(plan(step(name, toolsets=["messaging"]), step("other")))
    async with serving(tmp_path, model=model, services=tuple(desk.services())) as served:
        runtime = served.runtime
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        with pytest.raises(CommandRefused, match=f'no step "nowhere"; there are {name}, other'):
            await runtime.decide(run.workflow_id, step_id="nowhere", granted=True)
        if over == "runtime":
            await runtime.decide(run.workflow_id, step_id=name, granted=granted)
        else:
            body = {"step_id": name, "decision": "grant" if granted else "deny"}
            async with served.http() as http:
                answer = await http.post(f"/workflows/{run.workflow_id}/approvals", json=body)
            assert answer.status_code == 200, answer.text
        found = (await run.result()).output["final_output"]
    assert found["steps"][0]["status"] == ("done" if granted else "skipped")


async def test_what_cannot_be_undone_is_asked_about_for_each_call(tmp_path: Path):
    bank, model = Bank(), model_of(plan(step("a", toolsets=["bank"])), _pays)
    async with Runtime(models=[model], services=[bank.service()]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        seen: list[Any] = []
        for granted in (True, True, False):
            await run.rest()
            (asked,) = await runtime.requests(run.workflow_id)
            seen.append((asked.kind, asked.subject.get("parameters"), asked.digest))
            await runtime.decide(run.workflow_id, request_id=asked.request_id, granted=granted, by="ann")
        await run.result()
        await must_be_sound(runtime, run.workflow_id)
    assert [kind for kind, _, _ in seen] == ["step", "tool", "tool"]
    assert [parameters for _, parameters, _ in seen[1:]] == [{"amount": 10}, {"amount": 20}]
    assert len({digest for _, _, digest in seen}) == 3
    assert bank.paid == [10]


async def test_a_step_that_is_one_call_is_approved_with_its_arguments(tmp_path: Path):
    bank = Bank()
    one = step("a", toolsets=["bank"], owner="tool", call={"tool": "bank.pay", "parameters": {"amount": 5}})
    async with Runtime(models=[], services=[bank.service()]) as runtime:
        run = await requests_of(runtime, tmp_path).submit_plan(plan(one))
        await run.rest()
        (asked,) = await runtime.requests(run.workflow_id)
        assert asked.subject["call"]["parameters"] == {"amount": 5}
        await runtime.decide(run.workflow_id, step_id="a", granted=True, by="ann")
        await run.result()
    assert bank.paid == [5]


async def test_a_function_of_a_run_approves_nothing(tmp_path: Path):
    refused: list[str] = []

    @function(side_effect="read")
    async def approve(ctx: ToolContext) -> str:
        """Approve the other step."""
        try:
            await runtime.decide(ctx.workflow_id, step_id="send", granted=True, by="ann")
        except CommandRefused as error:
            refused.append(error.code)
        return "tried"

    def answer(step_id: str, request: Any) -> Any:
        tried = any(m.role == "tool" for m in request.messages)
        return done(step_id) if tried or step_id != "a" else call("inside__approve")

    desk = Desk()
    model = model_of(plan(step("send", toolsets=["messaging"]), step("a", toolsets=["inside"])), answer)
    async with Runtime(models=[model], services=[*desk.services(), Service.of("inside", approve)]) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        assert [r.step_id for r in await runtime.requests(run.workflow_id)] == ["execute/send"]
    assert (refused, desk.calls) == (["self_approval"], [])


_APPROVES = """
import http.client, json, socket
class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(SOCKET)
c = Unix("localhost")
body = json.dumps({"step_id": "send", "decision": "grant"})
c.request("POST", "/workflows/RUN/approvals", body, {"Content-Type": "application/json"})
a = c.getresponse(); print(a.status, json.loads(a.read())["code"])
"""


async def test_a_command_of_a_run_approves_nothing_over_the_socket(tmp_path: Path):
    settings = PipelineSettings(workspace_roots=(str(tmp_path / "work"),))
    config = ToolsetsConfig(enabled=("terminal",), terminal=TerminalConfig(allow=("*",)))
    registry, desk = ToolsetRegistry(config, settings.roots), Desk()
    services = [*registry.services(), *desk.services()]
    async with serving(tmp_path, model=model_of(), services=tuple(services)) as served, served.http() as http:
        terminal = [one for one in registry.toolsets() if one.name == "terminal"]
        toolsets = [*toolsets_of(desk.services()), *terminal]
        requests = Requests(served.runtime, settings, toolsets=toolsets)
        script = tmp_path / "approve.py"
        command = {"tool": "terminal.run", "parameters": {"command": f"{sys.executable} {script}"}}
        steps = plan(
            step("send", toolsets=["messaging"]),
            step("run", toolsets=["terminal"], owner="tool", call=command),
        )
        run = await requests.submit_plan(steps)
        script.write_text(
            _APPROVES.replace("SOCKET", repr(str(served.socket))).replace("RUN", run.workflow_id)
        )
        await run.rest()
        ours = await http.post(
            f"/workflows/{run.workflow_id}/approvals", json={"step_id": "run", "decision": "grant"}
        )
        assert ours.status_code == 200
        while True:
            record = await served.runtime.record(run.workflow_id)
            if record.steps["execute/run"].state not in ("pending", "running"):
                break
            await asyncio.sleep(0.01)
        output = (await served.runtime.state(run.workflow_id)).steps["execute/run"].output
        traced = await http.post(
            f"/workflows/{run.workflow_id}/approvals",
            json={"step_id": "send", "decision": "grant"},
            headers={"traceparent": f"00-{trace_id_of(run.workflow_id)}-00000000000000ab-01"},
        )
        left = [r.step_id for r in await served.runtime.requests(run.workflow_id)]
    assert "403 self_approval" in msgspec.json.decode(output["output"])["stdout"]
    assert (traced.status_code, traced.json()["code"]) == (403, "self_approval")
    assert (left, desk.calls) == (["execute/send"], [])


async def test_a_token_without_the_scope_approves_nothing(tmp_path: Path):
    given, secrets = tokens(ci=("run",))
    head = {"Authorization": f"Bearer {secrets['ci']}"}
    desk, model = Desk(), model_of(plan(step("send", toolsets=["messaging"])))
    async with (
        serving(tmp_path, model=model, services=tuple(desk.services()), given=given) as served,
        served.http(headers=head) as http,
    ):
        begun = await http.post("/requests", json={"message": "workflow: x"})
        run_id = begun.json()["run"]["workflow_id"]
        await (await served.runtime.attach(run_id)).rest()
        refused = await http.post(
            f"/workflows/{run_id}/approvals", json={"step_id": "send", "decision": "grant"}
        )
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_the_latest_request_is_that_of_the_caller(tmp_path: Path):
    model = model_of([plan(step("a"))] * 2, normal=[normalized()] * 2)
    async with Runtime(models=[model]) as runtime:
        requests = requests_of(runtime, tmp_path)
        mine = (await requests.submit("workflow: x", review=True, by="cli")).run
        theirs = (await requests.submit("workflow: y", review=True, by="ann")).run
        assert mine is not None
        assert theirs is not None
        assert {(await run.rest()).state for run in (mine, theirs)} == {"waiting"}  # for the review
        assert await requests.latest("local") == mine.workflow_id
        assert await requests.latest("ann") == theirs.workflow_id
        with pytest.raises(CommandRefused) as refused:
            await requests.latest("bob")
        assert refused.value.code == "no_resumable_run"


async def test_the_daemon_lists_requests_of_the_token_that_asks(tmp_path: Path):
    given, secrets = tokens(ann=("run",), bob=("run",))
    heads = {name: {"Authorization": f"Bearer {secret}"} for name, secret in secrets.items()}
    async with serving(tmp_path, model=model_of(normal=[]), given=given) as served:
        found: dict[str, list[str]] = {}
        for name in ("ann", "bob"):
            async with served.http(headers=heads[name]) as http:
                begun = await http.post("/requests", json={"message": f"workflow: {name}", "review": True})
                found[name] = [begun.json()["run"]["workflow_id"]]
        for name in ("ann", "bob"):
            async with served.http(headers=heads[name]) as http:
                page = await http.get("/workflows", params={"label": "agentflow.requester=anybody"})
                assert [one["workflow_id"] for one in page.json()["items"]] == found[name]
    assert found["ann"] != found["bob"]


@virtual
async def test_a_grant_is_for_one_dispatch_and_attempts_of_a_safe_retry_share_it(tmp_path: Path):
    seen: list[str] = []

    def answer(step_id: str, request: Any) -> Any:
        seen.append(step_id)
        if len(seen) == 1:
            return ModelError(ErrorInfo(category="transient", code="server_error", message="HTTP 503"))
        return done(step_id)

    model = model_of(plan(step("a", requires_approval=True)), answer)
    async with Runtime(models=[model], clock=LoopClock()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.decide(run.workflow_id, step_id="a", granted=True)
        final = (await run.result()).output["final_output"]
        types = [e.type for e in await log_of(runtime, run.workflow_id)]
    assert (final["status"], len(seen)) == ("ready", 2)
    assert (types.count("approval.requested"), types.count("approval.granted")) == (1, 1)


@pytest.mark.parametrize("granted", [True, False])
async def test_a_decision_holds_after_the_end_of_its_run(tmp_path: Path, granted: bool):
    desk, model = Desk(), model_of(plan(step("a"), step("send", toolsets=["messaging"])))
    async with Runtime(models=[model], services=desk.services()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        await runtime.decide(run.workflow_id, step_id="send", granted=granted, by="ann")
        await run.result()
        before = len(await log_of(runtime, run.workflow_id))
        await runtime.decide(run.workflow_id, step_id="send", granted=granted)
        for step_id, decision, code in (
            ("send", not granted, "decision_conflict"),
            ("a", granted, "run_terminal"),
            ("none", granted, "step_not_found"),
        ):
            with pytest.raises(AgentflowError) as refused:
                await runtime.decide(run.workflow_id, step_id=step_id, granted=decision)
            assert (step_id, refused.value.code) == (step_id, code)
        assert len(await log_of(runtime, run.workflow_id)) == before


async def test_what_is_refused_anyway_is_asked_about_by_nobody(tmp_path: Path):
    """Dependencies and toolsets come before the approval."""

    @function(side_effect="external")
    def act() -> str:
        """Act."""
        return "acted"

    desk = Desk()
    model = model_of(delegate=lambda step_id, request: done(step_id, status="failed", output="", error="no"))
    steps = plan(
        step("off", toolsets=["gone"]), step("failed"), step("after", "failed", toolsets=["messaging"])
    )
    toolsets = toolsets_of([*desk.services(), Service.of("gone", act)], enabled=("messaging", "files"))
    async with Runtime(models=[model], services=desk.services()) as runtime:
        settings = PipelineSettings(workspace_roots=(str(tmp_path),))
        run = await Requests(runtime, settings, toolsets=toolsets).submit_plan(steps)
        result = await run.result()
        types = [e.type for e in await log_of(runtime, run.workflow_id)]
    assert [s["status"] for s in result.output["final_output"]["steps"]] == ["skipped", "failed", "skipped"]
    assert "approval.requested" not in types


async def test_without_a_delegate_no_approval_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AGENTFLOW_MODEL")
    async with Runtime(models=[], services=Desk().services()) as runtime:
        requests = requests_of(runtime, tmp_path, delegate="none")
        run = await requests.submit_plan(plan(step("send", toolsets=["messaging"])))
        final = (await run.result()).output["final_output"]
        types = [e.type for e in await log_of(runtime, run.workflow_id)]
    assert (final["status"], final["blockers"][0]) == ("blocked", "send: delegate unavailable")
    assert "approval.requested" not in types
