"""The command that a report prints moves the run: executed as printed, for each reason to stop."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow import AgentflowError, Runtime
from agentflow.definition.loader import load_file
from agentflow.models import Models
from tests.integration.test_taking_up import Bomb
from tests.unit.cli.support import ECHO, ModelServer, Refusal, Sandbox

TWO = ECHO + ECHO.partition("steps:\n")[2].replace(
    "id: greet", "id: again\n      depends_on: [greet]\n      retry: false"
).replace("inputs.name", "steps.greet.outputs.result")
TYPED = TWO.replace("resultSchema: {type: string}", "resultSchema: {type: integer}", 1)
ASKED = ECHO.replace("id: greet", "id: greet\n      approval: {message: 'Greet ${{ inputs.name }}?'}")
TOOLS = """\
import agentflow
@agentflow.function(side_effect="write")
def send(text: str) -> str:
    "Send a text."
    return text
"""
CALLS = """\
version: "1.0"
services: {post: {type: python, module: tools}}
workflow:
  steps:
    - type: run
      id: send
      approval: {before: BEFORE, message: "Send to ${{ inputs.name }}?", timeout: 3600}
      agent:
        systemPrompt: Send.
        input: ${{ inputs.name }}
        attachedFunctions: [{service: post, function: send}]
        resultSchema: {type: string}
"""


CRASHING = """\
import os, pathlib
import agentflow
@agentflow.function(side_effect="external")
def send(text: str) -> str:
    "Send a text; the first time, the process dies meanwhile."
    sent = pathlib.Path(os.environ["HOME"]) / "sent"
    if not sent.exists():
        sent.touch()
        os._exit(9)
    return text
"""


class Answers:
    """What the model does next: each entry once, then it greets."""

    def __init__(self) -> None:
        self.queue: list[Any] = []

    def __call__(self, body: dict[str, Any]) -> Any:
        if self.queue:
            answer = self.queue.pop(0)
            return answer() if callable(answer) else answer
        said = body["messages"][-1]["content"]
        return f"hello {said}"


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("two.yaml", TWO)
    made.write("typed.yaml", TYPED)
    made.write("asked.yaml", ASKED)
    made.write("tools.py", TOOLS)
    made.write("calls.yaml", CALLS.replace("BEFORE", "calls"))
    made.write("effects.yaml", CALLS.replace("BEFORE", "side_effects"))
    with ModelServer(answers) as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield made
    made.close()


def printed_commands(text: str) -> list[list[str]]:
    """Return the arguments of every command in a report, in its order."""
    found = re.findall(r"`agentflow ([^`]*)`|^ *agentflow (.*)$", text, re.MULTILINE)
    assert found, text
    return [shlex.split(quoted or own_line) for quoted, own_line in found]


def events_of(sandbox: Sandbox, run_id: str) -> int:
    return json.loads(sandbox.invoke("show", run_id, "--json").stdout)["last_offset"]


def run(sandbox: Sandbox, file: str, *more: str) -> str:
    """Run to where it stops and return the report, which `show` has too."""
    out = sandbox.invoke("run", file, "-i", "name=Ann", "--id", "wf_a", *more)
    assert out.exit_code in (1, 9), out.output
    shown = sandbox.invoke("show", "wf_a").stdout
    assert printed_commands(out.stderr) == printed_commands(shown)
    assert out.stdout == ""
    return out.stderr


def assert_moves(sandbox: Sandbox, report: str, nth: int = 0) -> None:
    """Execute the nth command until the run (or the one that it began) has ended well."""
    for _ in range(6):
        command = printed_commands(report)[nth]
        before = events_of(sandbox, "wf_a")
        moved = sandbox.invoke(*command)
        if command[0] != "fork":
            assert events_of(sandbox, "wf_a") > before + 1, "it stands where it stood"
        if moved.exit_code == 0:
            return
        report = moved.stderr
    raise AssertionError("the hints lead nowhere")


BUDGETS = ["max_tokens=40", "max_model_calls=1", "max_steps=1"]


@pytest.mark.parametrize("limit", BUDGETS)
def test_out_of_budget_paused(sandbox: Sandbox, limit: str):
    assert_moves(sandbox, run(sandbox, "two.yaml", "--budget", limit))


@pytest.mark.parametrize("limit", BUDGETS[:2])
def test_out_of_budget_asked(sandbox: Sandbox, limit: str):
    report = run(sandbox, "two.yaml", "--budget", limit, "--budget", "on_exceeded=ask")
    assert_moves(sandbox, report)


def test_approval_of_a_step(sandbox: Sandbox):
    report = run(sandbox, "asked.yaml")
    assert "Greet Ann?" in report
    assert re.search(r"^greet +waiting", report, re.MULTILINE)
    assert_moves(sandbox, report)


def test_denial_of_a_step_moves_it_too(sandbox: Sandbox):
    report = run(sandbox, "asked.yaml")
    denied = sandbox.invoke(*printed_commands(report)[1])
    assert denied.exit_code == 1
    assert "approval_denied" in denied.stderr


@pytest.mark.parametrize("file", ["calls.yaml", "effects.yaml"])
def test_approval_of_a_call(sandbox: Sandbox, answers: Answers, file: str):
    """daily-use 4 and 5: message, arguments, side effect and deadline are shown, the step waits."""
    answers.queue = [{"call": "post__send", "arguments": {"text": "x"}}]
    report = run(sandbox, file)
    assert 'Send to Ann? | post__send({"text":"x"})' in report
    assert re.search(r"\(send, side effect write, until 20\d\d-", report)
    assert re.search(r"^send +waiting", report, re.MULTILINE)
    assert re.search(r"^[\d:]+ send waits for approval: req_", report, re.MULTILINE)
    inbox = sandbox.invoke("inbox").stdout
    assert "side effect write, until 20" in inbox
    assert_moves(sandbox, report)


def test_held_at_a_failed_step(sandbox: Sandbox, answers: Answers):
    answers.queue = ["hello Ann", 401]
    report = run(sandbox, "two.yaml", "--on-failure", "hold")
    assert "again failed: authentication_failed: " in report
    assert_moves(sandbox, report)


@pytest.mark.parametrize("nth", range(3), ids=["retry", "skip", "fail"])
def test_each_action_of_a_held_step(sandbox: Sandbox, answers: Answers, nth: int):
    """The hint names them, each as a command of its own."""
    answers.queue = ["hello Ann", 401]
    report = run(sandbox, "two.yaml", "--on-failure", "hold")
    commands = printed_commands(report)
    assert [c[-2:] for c in commands] == [["--action", action] for action in ("retry", "skip", "fail")]
    assert commands[nth][:3] == ["retry", "wf_a", "again"]
    assert sandbox.invoke(*commands[nth]).exit_code == (1 if commands[nth][-1] == "fail" else 0)


@pytest.mark.parametrize("nth", range(3), ids=["retry", "done", "fail"])
def test_a_call_whose_outcome_is_unknown(sandbox: Sandbox, answers: Answers, nth: int):
    sandbox.write("tools.py", CRASHING)
    sandbox.write("crash.yaml", CALLS.replace(CALLS.splitlines()[6] + "\n", ""))
    answers.queue = [{"call": "post__send", "arguments": {"text": "x"}}]
    assert sandbox.call("run", "crash.yaml", "-i", "name=Ann", "--id", "wf_a").returncode == 9
    left = sandbox.invoke("show", "wf_a").stdout
    assert "no process works on wf_a" in left
    asked = sandbox.invoke(*printed_commands(left)[0])
    assert "wf_a waits for 1 answer" in asked.stderr
    assert printed_commands(asked.stderr)[nth][-1] == ("retry", "done", "fail")[nth]
    assert_moves(sandbox, asked.stderr, nth)


async def test_a_supervisor_that_keeps_dying(sandbox: Sandbox, answers: Answers):
    """recovery_limit."""
    clock = Bomb()

    def arm() -> str:
        clock.armed = True
        return "hello Ann"

    answers.queue = [arm]
    models = Models(env=sandbox.env)
    sandbox.database.parent.mkdir(parents=True)
    async with Runtime(f"sqlite:{sandbox.database}", models=models, clock=clock) as runtime:
        handle = await runtime.submit(load_file("two.yaml"), {"name": "Ann"}, workflow_id="wf_a")
        with pytest.raises(AgentflowError, match="a bug"):
            await handle.result()
    shown = await asyncio.to_thread(sandbox.call, "show", "wf_a")
    assert "wf_a is paused: recovery_limit" in shown.stdout
    resumed = await asyncio.to_thread(sandbox.call, *printed_commands(shown.stdout)[0])
    assert resumed.returncode == 0, resumed.stderr


def test_a_daemon_that_drained(sandbox: Sandbox):
    """drain: the run is parked, and goes on without the daemon."""
    with ModelServer(lambda body: 503) as broken:
        daemon = sandbox.start("serve", env={"OPENAI_BASE_URL": broken.url})
        wait_until_it_answers(sandbox, daemon)
        begun = sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a", "--detach")
        assert begun.exit_code == 0, begun.stderr
        broken.arrived.get(timeout=20)
        assert sandbox.invoke("drain").exit_code == 0
        assert daemon.wait(30) == 0
    shown = sandbox.invoke("show", "wf_a").stdout
    assert "paused (drain)" in shown
    assert_moves(sandbox, shown)


def wait_until_it_answers(sandbox: Sandbox, daemon: subprocess.Popen[Any]) -> None:
    assert daemon.stderr is not None
    while sandbox.invoke("health").exit_code != 0:
        assert daemon.poll() is None, daemon.stderr.read()


def test_quota_with_and_without_a_time(sandbox: Sandbox, answers: Answers):
    answers.queue = [Refusal(429, {"Retry-After": "90"})]
    assert_moves(sandbox, run(sandbox, "two.yaml"))


def test_quota_without_a_time(sandbox: Sandbox, answers: Answers):
    answers.queue = [Refusal(402, {})]
    assert_moves(sandbox, run(sandbox, "two.yaml"))


FAILURES: dict[str, tuple[str, Callable[[], list[Any]], str]] = {
    "provider": ("two.yaml", lambda: ["hello", 503], "again failed: "),
    "auth": ("two.yaml", lambda: ["hello", 401], "again failed: authentication_failed: "),
    "invalid_output": ("typed.yaml", lambda: ["no number"] * 3, "greet failed"),
}


@pytest.mark.parametrize("reason", FAILURES)
def test_a_failed_run_goes_on_as_a_new_one(sandbox: Sandbox, answers: Answers, reason: str):
    """daily-use 8: the report has the whole reason of each step, and the skipped ones."""
    file, queue, says = FAILURES[reason]
    answers.queue = queue()
    report = run(sandbox, file)
    assert says in report
    assert ("OPENAI_API_KEY" in report) == (reason == "auth")
    if reason == "invalid_output":
        assert "again skipped: dependency_failed (greet)" in report
        answers.queue = ["7"]
    else:
        assert re.search(r"^greet +succeeded +\d+ ms +12 +1$", report, re.MULTILINE), report
    assert_moves(sandbox, report)


def test_operator_pause(sandbox: Sandbox):
    run(sandbox, "asked.yaml")
    sandbox.invoke("pause", "wf_a", "--reason", "lunch")
    shown = sandbox.invoke("show", "wf_a").stdout
    assert "wf_a is paused: operator: lunch" in shown
    commands = printed_commands(shown)
    assert [command[0] for command in commands] == ["approve", "deny", "resume"]
    assert sandbox.invoke(*commands[0]).exit_code == 9
    assert sandbox.invoke(*commands[2]).exit_code == 0


def test_cancelled(sandbox: Sandbox):
    run(sandbox, "asked.yaml")
    sandbox.invoke("cancel", "wf_a")
    shown = sandbox.invoke("show", "wf_a").stdout
    assert sandbox.invoke(*printed_commands(shown)[0]).exit_code == 9, "it asks again, in a new run"


def test_interrupted(sandbox: Sandbox):
    with ModelServer(lambda body: 503) as broken:
        slow = sandbox.start(
            "run", "two.yaml", "-i", "name=Ann", "--id", "wf_a", env={"OPENAI_BASE_URL": broken.url}
        )
        broken.arrived.get(timeout=20)
        slow.send_signal(signal.SIGINT)
        _, err = slow.communicate(timeout=20)
    assert slow.returncode == 130
    assert_moves(sandbox, err[err.index("wf_a is parked") :])
