"""What each command on a plan does in each state of its run (page 004 §7), and deadlines of approvals."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from actors.testing import virtual
from agentflow import Runtime
from agentflow.cli import app
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import AgentflowError
from agentflow.models import ModelError
from tests.integration.pipeline.support import Desk, done, model_of, normalized, plan, requests_of, step
from tests.integration.support.runs import types_of
from tests.integration.virtual import LoopClock
from tests.unit.server import kit
from tests.unit.server.kit import Serving


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


T = TypeVar("T")
QUOTA = ErrorInfo(category="quota", code="insufficient_quota", message="used up")
BLOCKED = normalized(status="blocked", blockers=["?"])


@asynccontextmanager
async def run_in(phase: str, root: Any) -> AsyncGenerator[tuple[Serving, str, asyncio.Event]]:
    """A request that stands in a phase, and the daemon that serves it; the event lets a held phase go on."""
    gate, begun = asyncio.Event(), asyncio.Event()

    async def held(answer: Any) -> Any:
        begun.set()
        await gate.wait()
        return answer

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await held(None)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(page, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def work(step_id: str, request: Any) -> Any:
        if phase == "executing":
            return held(done(step_id))
        if phase == "paused_quota":
            return ModelError(QUOTA)
        return done(step_id) | ({"status": "failed", "error": "no"} if phase == "partial" else {})

    one = step("a")
    if phase == "awaiting_approval":
        one = step("a", toolsets=["messaging"])
    elif phase == "awaiting_input":
        one = step("a", owner="human")
    elif phase == "verifying":
        one = step("a", expected_artifacts=[f"http://{host}/"])
    normal: Any = BLOCKED if phase in ("awaiting_clarification", "blocked") else None
    model = model_of(
        (lambda request: held(plan(one))) if phase == "planning" else [plan(one)],
        work,
        normal=["no JSON"] * 3 if phase == "failed" else normal,
    )
    options = {"on_blocked": "finish"} if phase == "blocked" else None
    root.mkdir(parents=True)
    async with kit.serving(root, model=model, services=tuple(Desk().services())) as served:
        runtime = served.runtime
        requests = requests_of(runtime, root, allowed_hosts=(host,))
        review = phase in ("awaiting_review", "rejected", "paused", "cancelled")
        run = (await requests.submit("workflow: x", review=review, options=options)).run
        assert run is not None
        is_held = phase in ("planning", "executing", "verifying")
        await (begun.wait() if is_held else run.rest())
        if phase == "rejected":
            await runtime.reject(run.workflow_id)
            await run.rest()
        elif phase == "cancelled":
            await runtime.cancel(run.workflow_id, "enough")
            await run.rest()
        elif phase == "paused":
            await runtime.pause(run.workflow_id)
        record = await runtime.record(run.workflow_id)
        shown = record.request
        assert (record.state, shown.phase, shown.status) == (*STATES[phase][:1], phase, STATES[phase][1])  # type: ignore[union-attr]
        yield served, run.workflow_id, gate
        gate.set()
        if is_held:
            await run.result()
    server.close()


STATES = {
    "planning": ("running", "initialized"),
    "awaiting_clarification": ("waiting", "blocked"),
    "awaiting_review": ("waiting", "ready"),
    "paused": ("paused", "blocked"),
    "executing": ("running", "initialized"),
    "awaiting_approval": ("waiting", "blocked"),
    "awaiting_input": ("waiting", "blocked"),
    "paused_quota": ("paused", "blocked"),
    "verifying": ("running", "initialized"),
    "completed": ("completed", "ready"),
    "partial": ("completed", "partial"),
    "blocked": ("completed", "blocked"),
    "failed": ("failed", "error"),
    "cancelled": ("cancelled", "error"),
    "rejected": ("cancelled", "blocked"),
}
"""By phase: the state of the run, and the word of document 004 (page 004 §14)."""

OK, SAME = "ok", "same"
COMMANDS = ("execute", "reject", "edit", "resume", "grant", "deny")
_EARLY = ("invalid_transition", "invalid_transition", "no_plan", SAME, "step_not_found", "step_not_found")
_OPEN = ("approval_not_open", "approval_not_open")
_UNDER_WAY = (SAME, "invalid_transition", "invalid_transition", SAME, *_OPEN)
_OVER = ("run_terminal", "run_terminal", "run_terminal", SAME, "run_terminal", "run_terminal")
TABLE = {
    "planning": _EARLY,
    "awaiting_clarification": _EARLY,
    "awaiting_review": (OK, OK, OK, SAME, *_OPEN),
    "paused": (OK, OK, OK, OK, *_OPEN),
    "executing": _UNDER_WAY,
    "awaiting_approval": (SAME, "invalid_transition", "plan_invalid", SAME, OK, OK),
    "awaiting_input": _UNDER_WAY,
    "paused_quota": (SAME, "invalid_transition", "plan_invalid", OK, *_OPEN),
    "verifying": _UNDER_WAY,
    "completed": _OVER,
    "partial": _OVER,
    "blocked": (*_OVER[:4], "step_not_found", "step_not_found"),
    "failed": (*_OVER[:4], "step_not_found", "step_not_found"),
    "cancelled": _OVER,
    "rejected": ("run_terminal", SAME, *_OVER[2:]),
}
"""By phase, what each command does: it is carried out, changes nothing, or is refused with a code."""


def test_every_phase_has_a_row():
    assert set(TABLE) == set(STATES)
    assert all(len(row) == len(COMMANDS) for row in TABLE.values())


def rounds(phase: str) -> list[list[str]]:
    """Those that change nothing are given one after another; each of the others to a run of its own."""
    changing = [name for name, wanted in zip(COMMANDS, TABLE[phase], strict=True) if wanted == OK]
    return [[name for name in COMMANDS if name not in changing], *([name] for name in changing)]


@pytest.mark.parametrize("over", ["runtime", "http"])
@pytest.mark.parametrize("phase", list(TABLE))
async def test_a_command_fits_a_phase_or_changes_nothing(phase: str, over: str, tmp_path: Any):
    for commands in rounds(phase):
        async with run_in(phase, tmp_path / commands[0]) as (served, run_id, _):
            for command in commands:
                wanted = TABLE[phase][COMMANDS.index(command)]
                before = await types_of(served.runtime, run_id)
                if over == "runtime":
                    found = await _given(served.runtime, run_id, command)
                else:
                    found = await _sent(served, run_id, command)
                after = await types_of(served.runtime, run_id)
                assert (command, found) == (command, OK if wanted == SAME else wanted)
                assert (after != before) is (wanted == OK), command


class Aside:
    """A request in a phase, in the loop of a thread: the command line wants the main thread."""

    def __init__(self, phase: str, root: Path) -> None:
        self._ready: Future[tuple[Serving, str, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._hold(phase, root)))
        self._thread.start()
        self.served, self.run_id, self._gate = self._ready.result(20)

    async def _hold(self, phase: str, root: Path) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with run_in(phase, root) as found:
                self._ready.set_result(found)
                await self._over.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def types(self) -> list[str]:
        return self.run(types_of(self.served.runtime, self.run_id))

    def go_on_once_followed(self) -> Future[list[str]]:
        """Let the held phase go on when a client streams its events; return the events until then."""

        async def go_on() -> list[str]:
            while not self.served.app.service.metrics.streams_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            found = await types_of(self.served.runtime, self.run_id)
            self._gate.set()
            return found

        return asyncio.run_coroutine_threadsafe(go_on(), self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)


EXITS = {
    **dict.fromkeys(("no_plan", "step_not_found"), 4),
    **dict.fromkeys(("invalid_transition", "run_terminal", "approval_not_open"), 5),
    "plan_invalid": 3,
}
HELD = ("planning", "executing", "verifying")


@pytest.mark.parametrize("phase", list(TABLE))
def test_the_command_line_says_the_same(phase: str, tmp_path: Path):
    (tmp_path / "plan.json").write_text(json.dumps(plan(step("z"))))
    for commands in rounds(phase):
        aside = Aside(phase, tmp_path / commands[0])
        try:
            for command in commands:
                if command == "resume" and phase in HELD:
                    continue  # it follows the run: see below
                wanted = TABLE[phase][COMMANDS.index(command)]
                before = aside.types()
                words = {
                    "execute": ["execute", aside.run_id, "--detach"],
                    "reject": ["reject", aside.run_id, "--reason", "no"],
                    "edit": ["plan", aside.run_id, "--edit", str(tmp_path / "plan.json")],
                    "resume": ["resume", aside.run_id],
                    "grant": ["approve", aside.run_id, "a"],
                    "deny": ["deny", aside.run_id, "a"],
                }[command]
                result = CliRunner().invoke(app, [*words, "--url", aside.served.unix_url])
                assert (aside.types() != before) is (wanted == OK), (command, result.output)
                if command == "resume" and phase in ("cancelled", "rejected"):
                    assert result.exit_code == 5, result.output
                elif wanted in EXITS:
                    assert result.exit_code == EXITS[wanted], (command, result.output)
                else:  # done, or what its run has come to
                    assert result.exit_code in (0, 1, 8, 9, 10), (command, result.output)
                    if command != "edit":
                        assert json.loads(result.stdout)["workflow_id"] == aside.run_id
        finally:
            aside.close()


@pytest.mark.parametrize("phase", HELD)
def test_resume_of_a_run_at_work_changes_nothing_and_follows_it(phase: str, tmp_path: Path):
    aside = Aside(phase, tmp_path / "work")
    try:
        before = aside.types()
        followed = aside.go_on_once_followed()
        result = CliRunner().invoke(app, ["resume", aside.run_id, "--url", aside.served.unix_url])
        assert followed.result(20) == before
        types = aside.types()
    finally:
        aside.close()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["status"] == "ready"
    assert types[: len(before)] == before
    assert types[-1] == "workflow.completed"
    assert "workflow.resumed" not in types


def test_classify_asks_the_daemon_whose_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The configuration of the working directory is the client's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agentflow.toml").write_text('[pipeline]\nreview = "always"\n')
    aside = Aside("completed", tmp_path / "work")
    try:
        words = ["classify", "plan a workflow", "--url", aside.served.unix_url]
        result = CliRunner().invoke(app, words)
    finally:
        aside.close()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["execution_requested"] is True


def test_a_step_of_a_person_is_answered_by_the_name_that_the_plan_gives_it(tmp_path: Path):
    aside = Aside("awaiting_input", tmp_path / "work")
    try:
        words = ["answer", aside.run_id, "a", json.dumps(done("a"))]
        result = CliRunner().invoke(app, [*words, "--url", aside.served.unix_url])
    finally:
        aside.close()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["status"] == "ready"


COUNTS = """
name: counts
description: Counts
inputs:
  n: { required: true, schema: { type: integer } }
  tags: { default: [], schema: { type: array } }
  text: { default: "" }
summary: "Count ${{ inputs.n }} ${{ inputs.tags }} ${{ inputs.text }}"
steps:
  - { id: z, title: Z, action: "Count", owner: agent, depends_on: [] }
"""


def test_inputs_of_a_template_of_the_daemon_have_the_types_of_its_schemas(tmp_path: Path):
    aside = Aside("completed", tmp_path / "work")

    def run(*pairs: str, name: str = "counts") -> Any:
        return CliRunner().invoke(app, ["template", "run", name, *pairs, "--url", aside.served.unix_url])

    async def install() -> int:
        async with aside.served.http() as http:
            return (await http.post("/templates", json={"source": COUNTS})).status_code

    try:
        assert aside.run(install()) == 201
        done = run("n=5", 'tags=["a"]', "text=5")
        wrong, odd, unknown = run("n=five"), run("n"), run("n=5", name="counst")
    finally:
        aside.close()
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["objective"] == 'Count 5 ["a"] 5'
    assert (wrong.exit_code, "E_TEMPLATE_INPUT_TYPE" in wrong.stderr) == (3, True)
    assert (odd.exit_code, "is not k=v" in odd.stderr) == (3, True)
    assert (unknown.exit_code, 'did you mean "counts"?' in unknown.stderr) == (4, True)


async def _sent(served: Serving, run_id: str, command: str) -> str:
    method, path, body = {
        "execute": ("POST", "execute", {}),
        "reject": ("POST", "reject", {"reason": "no"}),
        "edit": ("PUT", "plan", {"plan": plan(step("z"))}),
        "resume": ("POST", "resume", {}),
        "grant": ("POST", "approvals", {"step_id": "a", "decision": "grant"}),
        "deny": ("POST", "approvals", {"step_id": "a", "decision": "deny"}),
    }[command]
    async with served.http() as http:
        answer = await http.request(method, f"/workflows/{run_id}/{path}", json=body)
    if answer.status_code < 300:
        return OK
    code = answer.json()["code"]
    assert answer.status_code == {"no_plan": 404, "step_not_found": 404, "plan_invalid": 422}.get(code, 409)
    return code


async def _given(runtime: Runtime, run_id: str, command: str) -> str:
    given = {
        "execute": lambda: runtime.execute(run_id),
        "reject": lambda: runtime.reject(run_id),
        "edit": lambda: runtime.edit_plan(run_id, plan(step("z"))),
        "resume": lambda: runtime.resume(run_id),
        "grant": lambda: runtime.decide(run_id, step_id="a", granted=True),
        "deny": lambda: runtime.decide(run_id, step_id="a", granted=False),
    }[command]
    try:
        await given()
    except AgentflowError as refused:
        return refused.code
    return OK


@virtual
async def test_an_approval_that_nobody_gives_is_denied_after_seven_days(tmp_path: Any):
    desk = Desk()
    model = model_of(plan(step("send", toolsets=["messaging"]), step("other")))
    async with Runtime(models=[model], services=desk.services(), clock=LoopClock()) as runtime:
        run = (await requests_of(runtime, tmp_path).submit("workflow: x")).run
        assert run is not None
        await run.rest()
        begun = asyncio.get_running_loop().time()
        async for event in runtime.events(run.workflow_id):
            if event.type == "approval.denied":
                assert (event.data.via, event.data.by) == ("deadline", "system")
        assert asyncio.get_running_loop().time() - begun == pytest.approx(7 * 86_400, abs=5)
        result = await run.result()
        await runtime.decide(run.workflow_id, step_id="send", granted=False)
        with pytest.raises(AgentflowError) as refused:
            await runtime.decide(run.workflow_id, step_id="send", granted=True)
        assert refused.value.code == "decision_conflict"
    assert desk.calls == []
    assert [s["status"] for s in result.output["final_output"]["steps"]] == ["skipped", "done"]
