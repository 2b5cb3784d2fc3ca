"""Commands to runs from the command line: consent, holding, pausing, forking, budgets, outputs as inputs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.support import ECHO, ModelServer, Refusal, Sandbox

ASKED = ECHO.replace("id: greet", "id: greet\n      approval: {message: 'Greet ${{ inputs.name }}?'}")
TWO = ECHO + ECHO.partition("steps:\n")[2].replace(
    "id: greet", "id: again\n      depends_on: [greet]"
).replace("inputs.name", "steps.greet.outputs.result")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("asked.yaml", ASKED)
    made.write("two.yaml", TWO)
    made.write("flow.yaml", ECHO)
    return made


@pytest.fixture
def refusing() -> set[str]:
    """Texts that the model server refuses for now."""
    return set()


@pytest.fixture
def refusals() -> list[Refusal]:
    """What the model server answers the next requests with."""
    return []


@pytest.fixture
def model(sandbox: Sandbox, refusing: set[str], refusals: list[Refusal]) -> Iterator[ModelServer]:
    def answer(body):
        if refusals:
            return refusals.pop(0)
        said = body["messages"][-1]["content"]
        return 401 if said in refusing else f"hello {said}"

    with ModelServer(answer) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield server


def types(sandbox: Sandbox, id: str) -> list[str]:
    found = sandbox.invoke("events", id, "--no-follow").stdout.splitlines()
    return [json.loads(line)["type"] for line in found]


def test_a_step_waits_in_the_inbox_until_it_is_approved(sandbox: Sandbox, model: ModelServer):
    first = sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    assert first.exit_code == 9
    assert "agentflow approve wf_a req_" in first.stderr
    inbox = sandbox.invoke("inbox")
    assert inbox.exit_code == 0
    assert "Greet Ann?" in inbox.stdout
    items = json.loads(sandbox.invoke("inbox", "--json", "--kind", "step").stdout)["items"]
    assert [(i["workflow_id"], i["step_id"], i["kind"]) for i in items] == [("wf_a", "greet", "step")]
    stale = sandbox.invoke("approve", "wf_a", "greet", "--digest", "sha256:other")
    assert (stale.exit_code, "digest_mismatch" in stale.stderr) == (5, True)
    approved = sandbox.invoke("approve", "wf_a", "greet", "--digest", items[0]["digest"], "--json")
    assert approved.exit_code == 0
    assert json.loads(approved.stdout)["output"] == {"greet": "hello Ann"}
    assert sandbox.invoke("inbox").stdout == "no run waits for an answer\n"
    again = sandbox.invoke("deny", "wf_a", items[0]["request_id"])
    assert again.exit_code == 5


def test_a_run_goes_on_from_another_working_directory(
    sandbox: Sandbox, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The module beside the document is found again, however the document was named at first."""
    served = ASKED.replace("attachedFunctions: none", "attachedFunctions: [{service: desk, function: look}]")
    sandbox.write("flows/flow.yaml", served + "services: { desk: { type: python, module: beside_flow } }\n")
    body = '    """Look."""\n    return 1\n'
    source = f"from agentflow import function\n@function\ndef look() -> int:\n{body}"
    sandbox.write("flows/beside_flow.py", source)
    monkeypatch.chdir(tmp_path / "flows")
    assert sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a").exit_code == 9
    monkeypatch.chdir("/")
    done = sandbox.invoke("approve", "@waiting", "greet")
    assert done.exit_code == 0, done.stderr


def test_a_denied_step_fails_the_run_with_the_reason(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    denied = sandbox.invoke("deny", "wf_a", "greet", "--reason", "not today")
    assert denied.exit_code == 1
    assert "not today" in denied.stderr
    assert model.arrived.empty()


def test_an_unknown_step_is_told_from_one_that_waits_for_nothing(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    unknown = sandbox.invoke("approve", "wf_a", "nowhere")
    assert "step_not_found" in unknown.stderr
    assert sandbox.invoke("approve", "wf_none", "greet").exit_code == 4


@pytest.mark.parametrize(
    "words",
    [("fork", "wf_t", "--from", "agian"), ("run", "flow.yaml", "--input-from", "wf_t:agian", "--as", "name")],
    ids=["fork", "input-from"],
)
def test_a_step_that_is_misspelt_gets_a_suggestion(
    sandbox: Sandbox, model: ModelServer, words: tuple[str, ...]
):
    """daily-use 17."""
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_t")
    assert 'there is no step "agian"; did you mean "again"?' in sandbox.invoke(*words).stderr


def test_a_step_without_a_near_one_gets_the_list(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_t")
    assert (
        'there is no step "x-ray"; there are greet, again'
        in sandbox.invoke("fork", "wf_t", "--from", "x-ray").stderr
    )
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    assert 'has no step "gret"; did you mean "greet"?' in sandbox.invoke("approve", "wf_a", "gret").stderr


def test_a_held_run_is_tried_again(sandbox: Sandbox, model: ModelServer, refusing: set[str]):
    refusing.add("hello Ann")
    held = sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a", "--on-failure", "hold")
    assert held.exit_code == 9
    wrong = sandbox.invoke("retry", "wf_a", "greet")
    assert (wrong.exit_code, "not_failed" in wrong.stderr) == (5, True)
    refusing.clear()
    done = sandbox.invoke("retry", "wf_a", "again", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["output"] == {"again": "hello hello Ann"}
    assert types(sandbox, "wf_a").count("model.call_completed") == 2


def test_a_held_step_is_done_by_hand(sandbox: Sandbox, model: ModelServer, refusing: set[str]):
    refusing.add("hello Ann")
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a", "--on-failure", "hold")
    assert sandbox.invoke("retry", "wf_a", "again", "--output", "x").exit_code == 2
    done = sandbox.invoke("retry", "wf_a", "again", "--action", "done", "--output", "by hand", "--json")
    assert json.loads(done.stdout)["output"] == {"again": "by hand"}


def test_a_fork_does_a_step_again_and_leaves_the_old_run(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a")
    before = types(sandbox, "wf_a")
    forked = sandbox.invoke("fork", "wf_a", "--from", "again", "--id", "wf_b", "--json")
    assert forked.exit_code == 0
    assert json.loads(forked.stdout)["workflow_id"] == "wf_b"
    assert types(sandbox, "wf_b").count("model.call_started") == 1
    assert types(sandbox, "wf_a") == before
    assert json.loads(sandbox.invoke("show", "wf_b", "--json").stdout)["output"] == {
        "again": "hello hello Ann"
    }
    assert sandbox.invoke("fork", "wf_a", "--offset", "9999").exit_code == 5
    assert sandbox.invoke("fork", "wf_a", "--from", "nowhere").exit_code == 5


def test_a_failed_run_goes_on_from_its_failure(sandbox: Sandbox, model: ModelServer, refusing: set[str]):
    refusing.add("hello Ann")
    assert sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a").exit_code == 1
    refusing.clear()
    forked = sandbox.invoke("fork", "wf_a", "--from-failure", "--json")
    assert json.loads(forked.stdout)["output"] == {"again": "hello hello Ann"}


def test_a_run_out_of_budget_is_resumed_with_more(sandbox: Sandbox, model: ModelServer):
    short = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--id", "wf_a", "--budget", "max_model_calls=1")
    assert short.exit_code == 9
    small = sandbox.invoke("resume", "wf_a", "--budget", "max_model_calls=1")
    assert (small.exit_code, "budget_too_small" in small.stderr) == (5, True)
    assert sandbox.invoke("resume", "wf_a", "--budget", "max_model_calls=2").exit_code == 0
    wrong = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--budget", "max_token=1")
    assert (wrong.exit_code, 'did you mean "max_tokens"' in wrong.stderr) == (78, True)
    priced = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--budget", "max_cost_usd=1")
    assert "budget_unpriced" in priced.stderr


def printed_command(text: str) -> list[str]:
    """The arguments of the command between the backticks of a hint, or on a line of its own."""
    quoted, own_line = r"`agentflow ([^`]*)`", r"^ *agentflow (answer .*)$"
    found = re.search(quoted, text) or re.search(own_line, text, re.MULTILINE)
    assert found is not None, text
    return shlex.split(found[1])


@pytest.mark.parametrize("limit", ["max_model_calls=1", "max_tokens=40", "max_steps=1"])
def test_the_hint_of_a_budget_pause_moves_the_run(sandbox: Sandbox, model: ModelServer, limit: str):
    """daily-use 7: what is printed is executed as printed."""
    out = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--id", "wf_a", "--budget", limit)
    assert out.exit_code == 9
    shown = sandbox.invoke("show", "wf_a").stdout
    command = printed_command(out.stderr)
    assert command == printed_command(shown)
    for _ in range(5):
        before = len(types(sandbox, "wf_a"))
        moved = sandbox.invoke(*command)
        assert len(types(sandbox, "wf_a")) > before + 2, "it paused again at once"
        if moved.exit_code == 0:
            return
        command = printed_command(moved.stderr)
    raise AssertionError("the hints lead nowhere")


def test_the_hint_of_a_budget_question_moves_the_run(sandbox: Sandbox, model: ModelServer):
    budget = ("--budget", "max_model_calls=1", "--budget", "on_exceeded=ask")
    out = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--id", "wf_a", *budget)
    assert out.exit_code == 9
    assert sandbox.invoke(*printed_command(out.stderr)).exit_code == 0


def test_a_quota_pause_says_what_to_do(sandbox: Sandbox, model: ModelServer, refusals: list[Refusal]):
    """D3: with a time it is named; without one the operator is told."""
    refusals.append(Refusal(429, {"Retry-After": "90"}))
    out = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--id", "wf_a")
    assert (out.exit_code, "takes requests again at 20" in out.stderr) == (9, True)
    assert sandbox.invoke(*printed_command(out.stderr)).exit_code == 0
    refusals.append(Refusal(402, {}))
    out = sandbox.invoke("run", "two.yaml", "-i", "name=A", "--id", "wf_b")
    assert (out.exit_code, "raise the limit of your account" in out.stderr) == (9, True)
    assert sandbox.invoke(*printed_command(out.stderr)).exit_code == 0


def test_the_output_of_a_run_is_the_input_of_another(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a")
    more = sandbox.invoke("run", "flow.yaml", "--input-from", "wf_a:greet", "--as", "name", "--json")
    assert json.loads(more.stdout)["output"] == {"greet": "hello hello Ann"}
    sandbox.invoke("run", "asked.yaml", "-i", "name=B", "--id", "wf_w")
    early = sandbox.invoke("run", "flow.yaml", "--input-from", "wf_w", "--as", "name")
    assert (early.exit_code, "output_not_ready" in early.stderr) == (5, True)


def test_a_paused_run_stays_so_and_goes_on(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    assert sandbox.invoke("pause", "wf_a", "--reason", "lunch").stdout == "wf_a is paused\n"
    assert sandbox.invoke("pause", "wf_a").exit_code == 0
    assert types(sandbox, "wf_a").count("workflow.paused") == 1
    still = sandbox.invoke("approve", "wf_a", "greet")
    assert still.exit_code == 9
    assert sandbox.invoke("resume", "wf_a").exit_code == 0


def test_a_signal_is_kept_once(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    for _ in range(2):
        assert sandbox.invoke("signal", "wf_a", "paid", '{"n": 1}', "--signal-id", "s1").exit_code == 0
    assert types(sandbox, "wf_a").count("signal.received") == 1


def test_commands_on_a_run_that_has_ended(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a")
    for words in (("pause", "wf_a"), ("signal", "wf_a", "x"), ("retry", "wf_a", "greet"), ("cancel", "wf_a")):
        result = sandbox.invoke(*words)
        assert (result.exit_code, "run_terminal" in result.stderr) == (5, True), words


def test_what_an_agent_saw_and_what_was_executed(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a")
    told = sandbox.invoke("context", "wf_a", "again").stdout
    assert told.splitlines() == [
        "-- system",
        "Greet the person.",
        "-- user",
        "hello Ann",
        "-- assistant",
        "hello hello Ann",
    ]
    assert json.loads(sandbox.invoke("context", "wf_a", "again", "--json").stdout)["tools"] == []
    assert sandbox.invoke("context", "wf_a", "nowhere").exit_code == 4
    misspelt = sandbox.invoke("state", "wf_a", "agian")
    assert (misspelt.exit_code, 'did you mean "again"?' in misspelt.stderr) == (4, True)
    found = json.loads(sandbox.invoke("history", "wf_a", "--json").stdout)
    assert [s["step_id"] for s in found["steps"]] == ["greet", "again"]
    assert len(found["models"]) == 2


def test_a_run_that_has_ended_is_deleted_for_ever(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    assert sandbox.invoke("rm", "wf_a").exit_code == 5
    sandbox.invoke("cancel", "wf_a")
    assert sandbox.invoke("rm", "wf_a").stdout == "wf_a is deleted\n"
    gone = sandbox.invoke("show", "wf_a")
    assert (gone.exit_code, "run_gone" in gone.stderr) == (4, True)
    assert sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a").exit_code != 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_verbs(sandbox: Sandbox, shell: str):
    script = sandbox.invoke("completion", shell).stdout
    assert "_AGENTFLOW_COMPLETE" in script
    asked = sandbox.call(
        env={"_AGENTFLOW_COMPLETE": "bash_complete", "COMP_WORDS": "agentflow res", "COMP_CWORD": "1"}
    )
    assert asked.stdout == "plain,resume\n"


def test_replay_serves_a_run_from_its_record_and_follows_it(sandbox: Sandbox, model: ModelServer):
    first = sandbox.invoke("run", "flow.yaml", "--input", "name=ann", "--id", "wf_a", "--json")
    asked = model.arrived.qsize()
    assert asked >= 1
    again = sandbox.invoke("replay", "wf_a", "--policy", "Always", "--id", "wf_b", "--json")
    assert (again.exit_code, model.arrived.qsize()) == (0, asked)
    assert json.loads(again.stdout)["output"] == json.loads(first.stdout)["output"]
    bob = ("--input", '{"name": "bob"}')
    other = sandbox.invoke("replay", "wf_a", "--policy", "Always", *bob, "--id", "wf_c")
    assert (other.exit_code, model.arrived.qsize()) == (1, asked)
    assert "replay_divergence" in other.stdout + other.stderr
    anew = sandbox.invoke("replay", "wf_a", *bob, "--json")
    assert (anew.exit_code, model.arrived.qsize()) == (0, asked + 1)
    assert "hello bob" in anew.stdout
