"""The command that a report prints moves the run: executed as printed, for each reason to stop."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from agentflow import AgentflowError, Runtime
from agentflow.cli.progress import Progress
from agentflow.cli.report import RunReport
from agentflow.cli.target import Where
from agentflow.definition.conversation import Usage
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.kinds.human_in_the_loop import HumanNode
from agentflow.definition.loader import load_file
from agentflow.events import catalogue as ev
from agentflow.models import Models
from agentflow.records.runs import RunResult, StepSummary
from tests.integration.pipeline.support import done, normalized, plan
from tests.integration.pipeline.support import step as plan_step
from tests.integration.test_taking_up import Bomb
from tests.unit.cli.support import ECHO, ROOT, ModelServer, Refusal, Sandbox

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


def ready() -> str:
    return json.dumps(normalized())


def stuck() -> str:
    return json.dumps(normalized(status="blocked", blockers=["which one?"]))


def proposal() -> str:
    return json.dumps(plan(plan_step("a")))


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


def graph(nodes: str, **more: str) -> str:
    """Return a graph document: `nodes` lead from `work` to `end`."""
    rows = ["name: w", *(f"{key}: {value}" for key, value in more.items()), "nodes:"]
    ends = "- {id: end, type: end, output: done}"
    return "\n".join([*rows, "  - {id: start, type: start, next: work}", f"  {nodes}", f"  {ends}", ""])


FORM = (
    "{type: object, required: [n, note], properties: "
    "{n: {type: integer, minimum: 2}, note: {type: string, minLength: 6}}}"
)
HUMANS = {
    "approval": "on_approve: end, on_reject: end",
    "text": "prompt: Why?, next: end",
    "choice": "options: [{label: One, value: 1}, {label: Two, value: two}], next: end",
    "form": f"form_prefill: {{n: 7}}, form_schema: {FORM}, next: end",
}


@pytest.mark.parametrize("asked", HUMANS)
def test_a_person_in_the_loop(sandbox: Sandbox, asked: str):
    """The command of a text or a form holds an answer that the run takes."""
    node = f"- {{id: work, type: human_in_the_loop, input_type: {asked}, {HUMANS[asked]}}}"
    sandbox.write("human.yaml", graph(node))
    report = run(sandbox, "human.yaml")
    assert_moves(sandbox, report)
    assert events_of(sandbox, "wf_a") > 0
    assert json.loads(sandbox.invoke("show", "wf_a", "--json").stdout)["state"] == "completed"


QUESTION = """\
import msgspec
from agentflow import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler


class Size(msgspec.Struct):
    width: int
    name: str


class Asker(Executor):
    @handler
    async def on_input(self, value: dict, ctx: WorkflowContext) -> None:
        await ctx.request_info("how large", Size)

    @response_handler
    async def on_answer(self, asked: str, answer: Size, ctx: WorkflowContext[Size, str]) -> None:
        await ctx.yield_output(answer.name)


workflow = WorkflowBuilder("asking").set_start_executor(Asker("asker")).build()
"""


def test_a_question_of_a_handler(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    """The answer is a value of the type that the handler asks for."""
    sandbox.write("asking.py", QUESTION)
    monkeypatch.syspath_prepend(str(sandbox.folder))
    out = sandbox.invoke("run", "asking:workflow", "-i", "{}", "--id", "wf_a")
    assert out.exit_code == 9, out.output
    assert_moves(sandbox, out.stderr)


@pytest.mark.parametrize(
    ("options", "answers"),
    [(("--review",), (ready(), proposal())), ((), (stuck(), ready(), proposal()))],
    ids=["review", "clarification"],
)
def test_a_stage_of_a_request(sandbox: Sandbox, options: tuple[str, ...], answers: tuple[str, ...]):
    left = iter(answers)

    def answer(body: dict[str, Any]) -> str:
        is_stage = body["messages"][0]["content"].startswith(("You turn a request", "You plan."))
        return next(left) if is_stage else json.dumps(done("a"))

    with ModelServer(answer) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        out = sandbox.invoke("request", "workflow: do it", *options)
        assert out.exit_code == 9, out.output
        command = printed_commands(out.stderr)[0]
        before = events_of(sandbox, command[1])
        moved = sandbox.invoke(*command)
        assert events_of(sandbox, command[1]) > before + 1, "it stands where it stood"
        assert moved.exit_code == 0, moved.output


DYING = """\
import os, pathlib
from agentflow import Executor, WorkflowBuilder, WorkflowContext, handler


class Dying(Executor):
    @handler
    async def on_input(self, value: dict, ctx: WorkflowContext[dict, str]) -> None:
        begun = pathlib.Path(os.environ["HOME"]) / "begun"
        if not begun.exists():
            begun.touch()
            os._exit(9)
        await ctx.yield_output("done")


workflow = WorkflowBuilder("dying").set_start_executor(Dying("a", side_effect="none")).build()
"""


async def test_a_workflow_in_python_without_its_code(sandbox: Sandbox):
    """definition_unavailable: what a process left needs its module again."""
    sandbox.write("dying.py", DYING)
    sandbox.env["PYTHONPATH"] += f":{sandbox.folder}"
    left = await asyncio.to_thread(sandbox.call, "run", "dying:workflow", "-i", "{}", "--id", "wf_a")
    assert left.returncode == 9, left.stderr
    async with Runtime(f"sqlite:{sandbox.database}", recover=True) as runtime:
        assert (await runtime.rest("wf_a")).state == "paused"
    shown = (await asyncio.to_thread(sandbox.call, "show", "wf_a")).stdout
    assert "is paused: definition_unavailable" in shown
    assert "`--load MODULE:WORKFLOW`" in shown
    (resume,) = [command for command in printed_commands(shown) if command[0] == "resume"]
    moved = await asyncio.to_thread(sandbox.call, *resume, "--load", "dying:workflow")
    assert (moved.returncode, moved.stdout) == (0, "done\n"), moved.stderr


EAR = "- {id: work, type: event_trigger, event: paid, next: end}"
NAP = "- {id: work, type: wait, duration: SECONDS, next: end}"


def child(nodes: str) -> str:
    """Return a graph whose node `work` runs a graph of these nodes."""
    inner = graph(nodes).replace("\n", "\n    ").rstrip()
    outer = graph("- {id: work, type: subgraph, graph: inner, next: end}")
    return f"{outer}graphs:\n  inner:\n    {inner}\n"


@pytest.mark.parametrize("below", [False, True], ids=["run", "child"])
def test_a_signal_from_outside(sandbox: Sandbox, below: bool):
    """What the run of a child waits for is part of the report."""
    sandbox.write("ear.yaml", child(EAR) if below else graph(EAR))
    assert_all_move(sandbox, printed_commands(run(sandbox, "ear.yaml")))


def assert_all_move(sandbox: Sandbox, commands: list[list[str]]) -> None:
    """Execute the commands in their order; the run has ended well after them, perhaps before the last."""
    codes = [sandbox.invoke(*command).exit_code for command in commands]
    assert codes[0] == 0
    assert set(codes) <= {0, 5}
    assert json.loads(sandbox.invoke("show", "wf_a", "--json").stdout)["state"] == "completed"


@pytest.mark.parametrize("below", [False, True], ids=["run", "child"])
def test_a_timer_of_the_next_minute_is_followed(sandbox: Sandbox, below: bool):
    nap = NAP.replace("SECONDS", "0.2")
    sandbox.write("nap.yaml", child(nap) if below else graph(nap))
    out = sandbox.invoke("run", "nap.yaml", "--id", "wf_a")
    assert (out.exit_code, out.stdout) == (0, "done\n"), out.stderr


@pytest.mark.parametrize("below", [False, True], ids=["run", "child"])
def test_a_later_timer(sandbox: Sandbox, below: bool, monkeypatch: pytest.MonkeyPatch):
    """The command ends, says when the run goes on, and how to go on with it then."""
    monkeypatch.setattr("agentflow.cli.waits.NEAR_S", -1.0)
    nap = NAP.replace("SECONDS", "0.2")
    sandbox.write("nap.yaml", child(nap) if below else graph(nap))
    out = sandbox.invoke("run", "nap.yaml", "--id", "wf_a")
    assert out.exit_code == 9
    assert re.search(r"^wf_\w+ goes on at 20\d\d-", out.stderr, re.MULTILINE), out.stderr
    monkeypatch.undo()
    monkeypatch.chdir(sandbox.folder)
    assert_all_move(sandbox, printed_commands(out.stderr))


def test_a_daemon_is_followed_across_timers_and_told_of_signals(sandbox: Sandbox):
    nap = NAP.replace("SECONDS", "0.2")
    sandbox.write("nap.yaml", child(nap))
    sandbox.write("ear.yaml", graph(EAR))
    daemon = sandbox.start("serve")
    wait_until_it_answers(sandbox, daemon)
    followed = sandbox.invoke("run", "nap.yaml")
    assert (followed.exit_code, followed.stdout) == (0, "done\n"), followed.stderr
    (signal,) = printed_commands(run(sandbox, "ear.yaml"))
    assert sandbox.invoke(*signal).stdout == "wf_a got paid\n"
    ended = sandbox.invoke("events", "wf_a", "--type", "workflow.completed")
    assert '"type":"workflow.completed"' in ended.stdout


def test_a_timer_and_a_question_wait_for_the_answer(sandbox: Sandbox):
    """A near timer of one branch does not keep the command while another branch asks a person."""
    nodes = "- {id: work, type: parallel, branches: [ask, nap], next: end}"
    nodes += "\n  - {id: ask, type: human_in_the_loop, input_type: text, prompt: Why?, next: end}"
    nodes += "\n  - {id: nap, type: wait, duration: 30, next: end}"
    sandbox.write("both.yaml", graph(nodes))
    report = run(sandbox, "both.yaml")
    assert printed_commands(report)[0][0] == "answer"
    assert " goes on at " not in report


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
        assert re.search(r"^greet +succeeded +[\d.]+ m?s +12 +1$", report, re.MULTILINE), report
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


SHOWN_BY = {
    "pause budget": test_out_of_budget_paused,
    "pause definition_unavailable": test_a_workflow_in_python_without_its_code,
    "pause drain": test_a_daemon_that_drained,
    "pause failure": test_each_action_of_a_held_step,
    "pause operator": test_operator_pause,
    "pause quota": test_quota_without_a_time,
    "pause reason": test_operator_pause,
    "pause recovery_limit": test_a_supervisor_that_keeps_dying,
    "pause run.suspending.reason": test_a_daemon_that_drained,
    "pause storage": None,  # the event of a pause that is over
    "wait _WAITS_FOR": test_a_timer_of_the_next_minute_is_followed,  # debounce and throttle arm a timer
    "wait approval": test_approval_of_a_step,
    "wait child": test_a_signal_from_outside,
    "wait input": test_a_person_in_the_loop,
    "wait signal": test_a_signal_from_outside,
    "wait timer": test_a_later_timer,
    "ask budget": test_out_of_budget_asked,
    "ask clarification": test_a_stage_of_a_request,
    "ask review": test_a_stage_of_a_request,
    "ask payload.get('response_type', UNSET)": test_a_question_of_a_handler,  # relayed for a nested workflow
    "ask outcome_unknown": test_a_call_whose_outcome_is_unknown,
    "ask question.response_type": test_a_question_of_a_handler,
    "ask spec.input_type": test_a_person_in_the_loop,
    "approve human": test_a_person_in_the_loop,
    "approve step": test_approval_of_a_step,
    "approve tool": test_approval_of_a_call,
}
"""Every reason to wait or pause that engine and runtime state in events, and the test of its hint."""

NAMED = {
    "WorkflowPaused": ("pause", "reason"),
    "Pause": ("pause", "cause"),
    "Suspend": ("pause", "reason"),
    "WorkflowStepWaiting": ("wait", "for_"),
    "InputRequested": ("ask", "request_type"),
}


def stated_reasons() -> set[str]:
    """Return the reasons in the calls that make these events and commands, as they are written there."""
    found = {f"approve {kind}" for kind in get_args(get_type_hints(ev.ApprovalRequested)["kind"])}
    for folder in ("engine", "runtime"):
        for path in (ROOT / "agentflow" / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text())):
                if isinstance(call, ast.Call):
                    found |= reasons_of(call)
    return found


def reasons_of(call: ast.Call) -> set[str]:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name not in NAMED:
        return set()
    kind, key = NAMED[name]
    values = [keyword.value for keyword in call.keywords if keyword.arg == key]
    return {f"{kind} {v.value if isinstance(v, ast.Constant) else ast.unparse(v)}" for v in values}


def test_each_reason_to_wait_or_pause_has_a_test_of_its_hint():
    assert stated_reasons() == SHOWN_BY.keys()
    assert set(get_args(get_type_hints(HumanNode)["input_type"])) == HUMANS.keys()


@pytest.mark.parametrize("category", get_args(Category))
def test_each_failure_has_a_command_that_tries_again(category: Any):
    """What it does is tried by `test_a_failed_run_goes_on_as_a_new_one`."""
    error = ErrorInfo(category=category, code="c", message="m")
    steps = {"a": StepSummary(state="failed", attempt=1)}
    result: RunResult[Any] = RunResult(
        workflow_id="wf_a",
        state="failed",
        output=None,
        steps=steps,
        usage=Usage(),
        duration_ms=1,
        error=error,
    )
    report = RunReport(result, Progress.of_steps("w", ["a"]), Where(None, None, False), is_local=True)
    assert printed_commands(report.reasons()) == [["fork", "wf_a", "--from-failure"]]
