"""Workflows built in Python on the command line and in the daemon, as `module:attribute`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from agentflow.client import RegisteredDefinition, SyncClient
from agentflow.errors import DefinitionError
from tests.integration.test_cli_daemon import serving
from tests.unit.cli.support import Sandbox

MODULE = """\
import msgspec
from agentflow import Executor, WorkflowBuilder, WorkflowContext, executor, handler, response_handler


class Claim(msgspec.Struct, frozen=True):
    id: str
    amount: int


@executor(id="intake")
async def intake(claim: Claim, ctx: WorkflowContext[Claim]) -> None:
    ctx.set_shared_state("seen", claim.id)
    await ctx.send_message(claim)


class Review(Executor):
    @handler
    async def on_claim(self, claim: Claim, ctx: WorkflowContext[str, str]) -> None:
        if claim.amount < 100:
            await ctx.yield_output(f"paid {claim.id}")
        else:
            await ctx.request_info(claim, bool)

    @response_handler
    async def on_answer(self, asked: Claim, answer: bool, ctx: WorkflowContext[str, str]) -> None:
        await ctx.yield_output(f"{'paid' if answer else 'refused'} {ctx.get_shared_state('seen')}")


def make() -> WorkflowBuilder:
    builder = WorkflowBuilder("claims").add_shared("seen", str, default="")
    return builder.set_start_executor(intake).add_edge(intake, Review(id="review"))


builder = make()
workflow = make().build()
number = 7


def broken():
    return WorkflowBuilder("broken")


def failing():
    raise RuntimeError("no database")
"""


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = Sandbox(tmp_path)
    made.write("claimbook.py", MODULE)
    yield made
    made.close()
    for module in ("claimbook", "yenbook", "otherbook"):
        sys.modules.pop(module, None)


SMALL = '{"id": "c-7", "amount": 5}'
LARGE = '{"id": "c-8", "amount": 500}'

AUDIT = """
from agentflow import Listener


def note(workflow_id, event):
    with open("heard", "a") as file:
        file.write(f"{workflow_id} {event.type}\\n")


audit = Listener("audit", note, ("workflow.completed",))
"""


@pytest.mark.parametrize("attribute", ["workflow", "builder", "make"])
def test_a_workflow_of_a_module_is_checked_drawn_and_run(sandbox: Sandbox, attribute: str):
    reference = f"claimbook:{attribute}"
    checked = sandbox.invoke("check", reference)
    assert (checked.exit_code, checked.stdout) == (0, f"{reference}: valid\n")
    assert sandbox.invoke("check", reference, "--bind").exit_code == 0
    assert "intake --> review" in sandbox.invoke("graph", reference).stdout
    assert sandbox.invoke("run", reference, "-i", SMALL, "--dry-run").stdout == "claims would run\n"
    done = sandbox.invoke("run", reference, "-i", SMALL, "--id", "wf_a", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["output"] == "paid c-7"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("claimbok:workflow", ['there is no module "claimbok"']),
        ("claimbook.part:workflow", ['there is no module "claimbook.part"']),
        ("claimbook:workflo", ['"claimbook" has no attribute "workflo"', 'did you mean "workflow"?']),
        ("claimbook:number", ["of type int, and no workflow"]),
        ("claimbook:Review", ["the class Review, and no workflow"]),
        ("claimbook:failing", ["failing() raised RuntimeError: no database"]),
    ],
)
@pytest.mark.parametrize("verb", ["run", "check", "graph"])
def test_a_reference_that_names_no_workflow_is_refused(
    sandbox: Sandbox, verb: str, reference: str, words: list[str]
):
    refused = sandbox.invoke(verb, reference)
    assert refused.exit_code == 3
    assert all(word in refused.stderr for word in [*words, "E_MODULE"]), refused.stderr


def test_the_diagnostics_of_build_are_printed_as_those_of_documents(sandbox: Sandbox):
    for verb in ("run", "check", "graph"):
        refused = sandbox.invoke(verb, "claimbook:broken")
        assert refused.exit_code == 3
        assert "E_EMPTY_WORKFLOW" in refused.stderr


def test_an_input_that_no_start_takes_is_refused_before_anything_is_written(sandbox: Sandbox):
    refused = sandbox.invoke("run", "claimbook:workflow", "-i", "id=c-7", "--id", "wf_a")
    assert refused.exit_code == 3
    assert "E_INPUT_INVALID" in refused.stderr
    assert sandbox.invoke("show", "wf_a").exit_code == 4


def test_a_waiting_run_goes_on_in_another_process_that_loads_its_workflow(sandbox: Sandbox):
    waits = sandbox.invoke("run", "claimbook:workflow", "-i", LARGE, "--id", "wf_b")
    assert waits.exit_code == 9, waits.stderr
    assert "--load claimbook:workflow" in waits.stderr
    request = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"][0]["request_id"]
    without = sandbox.invoke("answer", "wf_b", request, "true")
    assert without.exit_code == 3
    assert "E_UNREGISTERED_CALLABLE" in without.stderr
    assert "--load module:workflow" in without.stderr
    answered = sandbox.start("answer", "wf_b", request, "true", "--load", "claimbook:workflow")
    out, said = answered.communicate(timeout=30)
    assert (answered.returncode, out) == (0, "paid c-8\n"), said


def test_the_daemon_has_a_loaded_listener(sandbox: Sandbox):
    sandbox.write("audits.py", AUDIT)
    with serving(sandbox, "--load", "audits:audit", "--load", "claimbook:workflow"):
        done = sandbox.invoke("run", "claims", "-i", SMALL, "--id", "wf_a")
        assert done.exit_code == 0, done.stderr
    assert (sandbox.folder / "heard").read_text() == "wf_a workflow.completed\n"


def test_the_daemon_has_a_loaded_workflow_as_a_definition(sandbox: Sandbox):
    with serving(sandbox, "--load", "claimbook:workflow"):
        done = sandbox.invoke("run", "claims", "-i", SMALL, "--json")
        assert (done.exit_code, json.loads(done.stdout)["output"]) == (0, "paid c-7"), done.stderr
        assert sandbox.invoke("run", "claims@1", "-i", SMALL, "--dry-run").exit_code == 0
        assert sandbox.invoke("run", "claims@2", "-i", SMALL).exit_code == 4
        wrong = sandbox.invoke("run", "claims", "-i", "7")
        assert (wrong.exit_code, "E_INPUT_INVALID" in wrong.stderr) == (3, True)
        waits = sandbox.invoke("run", "claimbook:workflow", "-i", LARGE, "--id", "wf_b")
        assert waits.exit_code == 9, waits.stderr
        with SyncClient(f"unix:{sandbox.folder / 'data/agentflow/agentflow.sock'}") as client:
            assert client.run(RegisteredDefinition("claims"), json.loads(SMALL)).output == "paid c-7"
            assert not client.validate(RegisteredDefinition("claims"), 7).valid
            with pytest.raises(DefinitionError, match="E_INPUT_INVALID"):
                client.submit(RegisteredDefinition("claims"), 7)
        refused = sandbox.invoke("resume", "wf_b", "--load", "claimbook:workflow")
        assert (refused.exit_code, "agentflow serve --load" in refused.stderr) == (2, True)
        fork = sandbox.invoke("fork", "wf_b", "--offset", "1", "--id", "wf_f")
        assert fork.exit_code == 9, fork.stderr
        edited = sandbox.invoke("fork", "wf_b", "--offset", "0", "--edit", f"input={SMALL}", "--json")
        assert json.loads(edited.stdout)["output"] == "paid c-7", edited.stderr
        wrong = sandbox.invoke("fork", "wf_b", "--offset", "0", "--edit", "input=7")
        assert (wrong.exit_code, "invalid_edit" in wrong.stderr) == (5, True)
        request = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"][0]["request_id"]
        answered = sandbox.invoke("answer", "wf_b", request, "false")
        assert (answered.exit_code, answered.stdout) == (0, "refused c-8\n"), answered.stderr


def test_runs_go_on_with_the_next_daemon_that_loads_their_workflow(sandbox: Sandbox):
    with serving(sandbox, "--load", "claimbook:workflow"):
        assert sandbox.invoke("run", "claims", "-i", LARGE, "--id", "wf_b").exit_code == 9
        request = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"][0]["request_id"]
    with serving(sandbox):
        without = sandbox.invoke("answer", "wf_b", request, "true")
        assert without.exit_code == 3
        assert "serve --load module:workflow" in without.stderr
    with serving(sandbox, "--load", "claimbook:workflow"):
        answered = sandbox.invoke("answer", "wf_b", request, "true")
        assert (answered.exit_code, answered.stdout) == (0, "paid c-8\n"), answered.stderr


DOCUMENT = """\
name: parts
nodes:
  - {id: start, type: start, next: cut}
  - {id: cut, type: batch, items_path: input.items, size: 2, next: end}
  - {id: end, type: end, output: {parts: "{{ nodes.cut.output }}"}}
"""


def causes(sandbox: Sandbox, run_id: str) -> list[str]:
    listed = sandbox.invoke("checkpoints", run_id, "--json")
    assert listed.exit_code == 0, listed.stderr
    return [one["cause"] for one in json.loads(listed.stdout)["items"]]


def test_checkpoints_of_runs_of_every_format_are_listed(sandbox: Sandbox):
    sandbox.invoke("run", "claimbook:workflow", "-i", SMALL, "--id", "wf_a")
    sandbox.write("parts.yaml", DOCUMENT)
    sandbox.invoke("run", "parts.yaml", "-i", "items=[1, 2, 3]", "--id", "wf_d")
    assert causes(sandbox, "wf_a") == ["start", "superstep", "superstep", "terminal"]
    assert causes(sandbox, "wf_d")[0] == "start"
    assert causes(sandbox, "wf_d")[-1] == "terminal"
    table = sandbox.invoke("checkpoints", "wf_a").stdout.splitlines()
    assert table[0].split() == ["OFFSET", "CAUSE", "SUPERSTEP", "AT", "ID"]
    assert table[1].split()[-1] == "wf_a@0"
    assert sandbox.invoke("checkpoints", "wf_none").exit_code == 4
    sandbox.write("a.ndjson", sandbox.invoke("log", "wf_a").stdout)
    assert causes(sandbox, "a.ndjson") == causes(sandbox, "wf_a")


STEPS = """\
name: sums
nodes:
  - {id: start, type: start, next: first, input_schema: {type: object, required: [items]}}
  - {id: first, type: batch, items_path: input.items, size: 2, next: second}
  - {id: second, type: batch, items_path: nodes.first.output, size: 1, next: end}
  - {id: end, type: end, output: {parts: "{{ nodes.second.output }}"}}
"""


def forked_output(sandbox: Sandbox, *words: str) -> object:
    done = sandbox.invoke("fork", "wf_d", *words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)["output"]


def test_forks_begin_with_edited_outputs_and_inputs(sandbox: Sandbox):
    sandbox.write("sums.yaml", STEPS)
    sandbox.invoke("run", "sums.yaml", "-i", "items=[1, 2, 3]", "--id", "wf_d")
    assert forked_output(sandbox, "--from", "second") == {"parts": [[[1, 2]], [[3]]]}
    edit = ("--edit", "outputs.first=[[9]]")
    assert forked_output(sandbox, "--from", "second", *edit) == {"parts": [[[9]]]}
    assert forked_output(sandbox, "--offset", "0", "--edit", 'input={"items": [7]}') == {"parts": [[[7]]]}


def test_a_fork_begins_with_an_edited_shared_value(sandbox: Sandbox):
    sandbox.invoke("run", "claimbook:workflow", "-i", LARGE, "--id", "wf_b")
    waiting = json.loads(sandbox.invoke("show", "wf_b", "--json").stdout)["last_offset"]
    words = ("--offset", str(waiting), "--edit", 'shared.seen="c-9"', "--load", "claimbook:workflow")
    forked = sandbox.invoke("fork", "wf_b", *words, "--id", "wf_f")
    assert forked.exit_code == 9, forked.stderr
    for run_id, paid in (("wf_f", "paid c-9\n"), ("wf_b", "paid c-8\n")):
        listed = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"]
        request = next(one["request_id"] for one in listed if one["workflow_id"] == run_id)
        done = sandbox.invoke("answer", run_id, request, "true", "--load", "claimbook:workflow")
        assert (done.exit_code, done.stdout) == (0, paid), done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--from", "second", "--edit", "outputs.firts=1"), 'did you mean "first"?'),
        (("--from", "second", "--edit", "outputs.second=1"), "begins this step anew"),
        (("--offset", "0", "--edit", "outputs.first=1"), "has not succeeded"),
        (("--from", "second", "--edit", 'input={"items": []}'), "steps have begun"),
        (("--offset", "0", "--edit", 'input={"item": []}'), "input: "),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_and_begins_no_run(
    sandbox: Sandbox, words: tuple[str, ...], named: str
):
    sandbox.write("sums.yaml", STEPS)
    sandbox.invoke("run", "sums.yaml", "-i", "items=[1, 2, 3]", "--id", "wf_d")
    refused = sandbox.invoke("fork", "wf_d", *words)
    assert refused.exit_code == 5
    assert "invalid_edit" in refused.stderr
    assert named in refused.stderr
    assert len(json.loads(sandbox.invoke("list", "--json").stdout)["items"]) == 1


@pytest.mark.parametrize("text", ["output.first=1", "outputs=1", "input", "input.x=1", "input=oops"])
def test_an_edit_that_is_not_written_as_one_is_a_usage_error(sandbox: Sandbox, text: str):
    assert sandbox.invoke("fork", "wf_d", "--offset", "0", "--edit", text).exit_code == 2


@pytest.mark.parametrize("place", ["in this process", "with a daemon"])
def test_state_at_an_offset_and_forks_of_a_graph_with_edits_and_another_definition(
    sandbox: Sandbox, place: str
):
    yen, other = MODULE.replace("'paid' if", "'yen' if"), MODULE.replace('id="review"', 'id="look"')
    sandbox.write("yenbook.py", yen)
    sandbox.write("otherbook.py", other)
    has_daemon = place == "with a daemon"

    def call(*words: str, load: str = "claimbook") -> str:
        more = () if has_daemon else ("--load", f"{load}:workflow")
        done = sandbox.invoke(*words, *more)
        assert done.exit_code in (0, 9), done.stderr
        return done.stdout

    def state(run_id: str, *words: str) -> dict[str, Any]:
        return json.loads(sandbox.invoke("state", run_id, *words, "--json").stdout)

    def answered(run_id: str, load: str = "claimbook") -> str:
        listed = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"]
        request = next(one["request_id"] for one in listed if one["workflow_id"] == run_id)
        return call("answer", run_id, request, "true", load=load)

    with serving(sandbox, "--load", "claimbook:workflow") if has_daemon else nullcontext():
        assert sandbox.invoke("run", "claimbook:workflow", "-i", LARGE, "--id", "wf_b").exit_code == 9
        lines = [json.loads(line) for line in sandbox.invoke("log", "wf_b").stdout.splitlines()]
        written = next(e["offset"] for e in lines if e["type"] == "workflow.step_completed")
        committed = next(e["offset"] for e in lines if e["type"] == "superstep.completed")
        assert [state("wf_b", "--offset", str(n))["shared"] for n in (written, committed)] == [
            {"seen": ""},
            {"seen": "c-8"},
        ], "superstep 1 commits at its barrier"
        assert state("wf_b")["private"] == {}
        at = ("--offset", str(committed))
        call("fork", "wf_b", *at, "--edit", 'shared.seen="c-9"', "--id", "wf_s")
        assert state("wf_s", "--offset", "1")["shared"] == {"seen": "c-9"}
        assert answered("wf_s") == "paid c-9\n"
        call("fork", "wf_b", "--from", "review", "--edit", "outputs.intake=7", "--id", "wf_o")
        assert [state(id)["steps"]["intake"]["output"] for id in ("wf_b", "wf_o")] == [None, 7]
        assert answered("wf_o") == "paid c-8\n"
        refused = sandbox.invoke("fork", "wf_b", *at, "--definition", "otherbook:workflow")
        wrong = (78, "loaded another graph as claims@1") if has_daemon else (5, "look")
        assert (refused.exit_code, wrong[1] in refused.stderr) == (wrong[0], True)
        other = ("--definition", "yenbook:workflow", "--id", "wf_y")
        done = sandbox.invoke("fork", "wf_b", *at, *other)
        assert done.exit_code == 9, done.stderr
        assert has_daemon or "true --load yenbook:workflow" in done.stderr
        # A daemon runs the code that it has loaded for this graph.
        assert answered("wf_y", "yenbook") == ("paid c-8\n" if has_daemon else "yen c-8\n")
        assert answered("wf_b") == "paid c-8\n"
