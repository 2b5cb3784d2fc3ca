"""The command line as processes: terminals, signals, crashes, two processes on one store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.support.terminal import Terminal, plain
from tests.unit.cli.support import ECHO, ModelServer, Sandbox, user_text

TOOLS = """\
import os, pathlib, time

import agentflow


@agentflow.function(side_effect="external")
def send(text: str) -> str:
    "Send a message."
    here = pathlib.Path(os.environ["HOME"])
    (here / "sending").write_text(text)
    os.mkfifo(here / "gate") if not (here / "gate").exists() else None
    with open(here / "gate") as gate:
        return gate.read() or "sent"
"""
SENDING = """\
version: "1.0"
services:
  post: {type: python, module: tools}
workflow:
  steps:
    - type: run
      id: send
      agent:
        systemPrompt: Send it.
        input: ${{ inputs.name }}
        attachedFunctions: [{service: post, function: send}]
        resultSchema: {type: string}
"""


class Gate:
    """A model that answers when the gate is open; until then its requests hang."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def __call__(self, body: dict[str, Any]) -> Any:
        self.open.wait(30)
        return f"hello {user_text(body)}"


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    yield made
    made.close()


@pytest.fixture
def gate(sandbox: Sandbox) -> Iterator[Gate]:
    gate = Gate()
    with ModelServer(gate) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        gate.server = server  # type: ignore[attr-defined]
        yield gate
        gate.open.set()


def wait_for_call(gate: Any) -> dict[str, Any]:
    return gate.server.arrived.get(timeout=30)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return the progress on stderr up to the line that holds `text`."""
    assert process.stderr is not None
    told = ""
    while text not in told:
        line = process.stderr.readline()
        assert line, f"it ended without {text!r}: {told}"
        told += line
    return told


def send_once(body: dict[str, Any]) -> Any:
    """Call the tool, then tell what it said."""
    said = [m["content"] for m in body["messages"] if m["role"] == "tool"]
    return f"tool said {said[-1]}" if said else {"call": "post__send", "arguments": {"text": "x"}}


# -- interrupts -----------------------------------------------------------------------------------


def test_an_interrupt_parks_the_run_and_resume_goes_on(sandbox: Sandbox, gate: Gate):
    run = sandbox.start("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a")
    wait_for_call(gate)
    read_until(run, "greet started")
    run.send_signal(signal.SIGINT)
    code, _, err = finish(run)
    assert code == 130
    assert err.splitlines()[-3:] == [
        "parking wf_a: work in flight is given a moment; Ctrl-C again stops at once",
        "wf_a is parked",
        "  hint: go on with `agentflow resume wf_a`",
    ]
    shown = sandbox.invoke("show", "wf_a").stdout
    assert "state      paused (drain)\n" in shown
    assert shown.endswith("go on with `agentflow resume wf_a`\n")
    gate.open.set()
    resumed = sandbox.invoke("resume", "wf_a", "--json")
    assert resumed.exit_code == 0
    assert json.loads(resumed.stdout)["output"] == {"greet": "hello Ann"}
    assert "wf_a resumed" in resumed.stderr
    assert "greet started" not in resumed.stderr, "what happened before is not told again"


def test_an_interrupted_run_with_json(sandbox: Sandbox, gate: Gate):
    store = f"sqlite:{sandbox.folder / 'my runs.db'}"
    run = sandbox.start("run", "flow.yaml", "-i", "name=A", "--id", "wf_a", "--json", "--store", store)
    wait_for_call(gate)
    run.send_signal(signal.SIGINT)
    code, out, err = finish(run)
    assert code == 130
    assert json.loads(out)["state"] == "paused"
    assert err.endswith(f"`agentflow resume wf_a --store '{store}'`\n")


def test_the_second_interrupt_stops_at_once(sandbox: Sandbox):
    sandbox.write("tools.py", TOOLS)
    sandbox.write("flow.yaml", SENDING)
    with ModelServer(send_once) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        run = sandbox.start("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
        hold = wait_for_tool(sandbox, run)
        run.send_signal(signal.SIGINT)
        read_until(run, "parking wf_a")
        run.send_signal(signal.SIGINT)
        code, _, err = finish(run)
        hold.close()
    assert code == 130
    assert "stopped; the log holds all that was done" in err


def wait_for_tool(sandbox: Sandbox, run: subprocess.Popen[str]) -> Any:
    """Returns when the tool is at work; it goes on when what is returned is closed."""
    # Opening a pipe for writing waits for its reader, which is the tool.
    gate = sandbox.folder / "gate"
    if not gate.exists():
        os.mkfifo(gate)
    return gate.open("w")


# -- a crash --------------------------------------------------------------------------------------


def test_a_crash_inside_a_tool_is_put_to_a_person(sandbox: Sandbox):
    sandbox.write("tools.py", TOOLS)
    sandbox.write("flow.yaml", SENDING)

    with ModelServer(send_once) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        run = sandbox.start("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
        hold = wait_for_tool(sandbox, run)
        run.kill()
        finish(run)
        hold.close()
        assert "running, left" in sandbox.invoke("list").stdout
        asked = sandbox.call("resume", "wf_a")
        assert asked.returncode == 9
        assert "wf_a waits for 1 answer\n" in asked.stderr
        request = re.search(r"agentflow answer wf_a (req_\w+) retry", asked.stderr)
        assert request is not None
        shown = sandbox.invoke("show", "wf_a")
        assert f"agentflow answer wf_a {request[1]} retry" in shown.stdout
        assert "send(" in shown.stdout, "the arguments of the call"
        wrong = sandbox.call("answer", "wf_a", request[1], "perhaps")
        assert wrong.returncode == 2
        assert wrong.stderr.startswith("error invalid_response: ")
        value = json.dumps({"choice": "done", "output": "sent by hand"})
        answered = sandbox.call("answer", "wf_a", request[1], value, "--json")
        assert answered.returncode == 0
        assert "sent by hand" in json.loads(answered.stdout)["output"]["send"]
        again = sandbox.call("answer", "wf_a", request[1], value)
        assert again.returncode == 4


def test_a_word_answers_a_choice(sandbox: Sandbox):
    sandbox.write("tools.py", TOOLS)
    sandbox.write("flow.yaml", SENDING)
    with ModelServer(send_once) as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        run = sandbox.start("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
        hold = wait_for_tool(sandbox, run)
        run.kill()
        finish(run)
        hold.close()
        asked = sandbox.call("resume", "wf_a", "--json")
        assert asked.returncode == 9
        assert json.loads(asked.stdout)["state"] == "waiting"
        request = re.search(r"req_\w+", asked.stderr)
        assert request is not None
        answered = sandbox.call("answer", "wf_a", request[0], "fail")
        assert answered.returncode == 0, answered.stderr
        assert "send was answered" in answered.stderr


# -- two processes --------------------------------------------------------------------------------


def test_a_run_belongs_to_one_process_and_is_seen_by_all(sandbox: Sandbox, gate: Gate):
    run = sandbox.start("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a", "--json")
    wait_for_call(gate)
    for verb in ("resume", "cancel"):
        refused = sandbox.invoke(verb, "wf_a")
        assert refused.exit_code == 5
        assert refused.stderr.startswith("error fenced: wf_a is owned by process ")
        assert str(run.pid) in refused.stderr
    follower = sandbox.start("events", "wf_a")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["type"] == "workflow.started"
    present = sandbox.invoke("events", "wf_a", "--no-follow").stdout.splitlines()
    assert json.loads(present[-1])["type"] == "model.call_started"
    gate.open.set()
    code, out, _ = finish(run)
    assert (code, json.loads(out)["state"]) == (0, "completed")
    rest = follower.stdout.read()
    code, _, err = finish(follower)
    assert (code, err) == (0, "")
    assert [json.loads(line)["offset"] for line in rest.splitlines()] == list(range(1, 10))
    assert json.loads(rest.splitlines()[-1])["type"] == "workflow.completed"


def test_a_parked_run_is_cancelled(sandbox: Sandbox, gate: Gate):
    run = sandbox.start("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    wait_for_call(gate)
    run.send_signal(signal.SIGTERM)
    assert finish(run)[0] == 130
    cancelled = sandbox.invoke("cancel", "wf_a", "--reason", "not needed")
    assert (cancelled.exit_code, cancelled.stdout) == (0, "wf_a is cancelled\n"), cancelled.stderr
    last = json.loads(sandbox.invoke("events", "wf_a").stdout.splitlines()[-1])
    assert (last["type"], last["data"]["reason"]) == ("workflow.cancelled", "not needed")
    assert sandbox.invoke("cancel", "wf_a").exit_code == 0
    assert sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a").exit_code == 8


def test_following_ends_with_an_interrupt(sandbox: Sandbox, gate: Gate):
    run = sandbox.start("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    wait_for_call(gate)
    follower = sandbox.start("events", "wf_a")
    assert follower.stdout is not None
    follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    code, _, err = finish(follower)
    assert (code, err) == (130, "")
    gate.open.set()
    assert finish(run)[0] == 0


def test_a_reader_that_goes_away_is_no_error(sandbox: Sandbox, gate: Gate):
    gate.open.set()
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    read, write = os.pipe()
    os.close(read)
    process = sandbox.start("events", "wf_a", stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (141, "")


# -- a terminal -----------------------------------------------------------------------------------


def test_a_terminal_gets_a_live_table_and_then_the_output(sandbox: Sandbox, gate: Gate):
    terminal = Terminal(sandbox, "run", "flow.yaml", "-i", "name=Ann")
    terminal.read("running")
    wait_for_call(gate)
    gate.open.set()
    assert terminal.end() == 0
    table, _, output = terminal.text.rpartition("\x1b[?25h")
    assert "\x1b[?25l" in table, "the cursor is hidden while the table is drawn"
    assert "\x1b[36m" in table, "in colour"
    assert re.search(r"▸\s+greet\s", plain(table))
    assert re.search(r"✓\s+greet\s+[\d.]+ m?s\s+12 tokens", plain(table))
    assert json.loads(output) == {"greet": "hello Ann"}


def test_progress_shows_on_the_terminal_while_stdout_is_a_file(sandbox: Sandbox, gate: Gate):
    """daily-use 9."""
    gate.open.set()
    with (sandbox.folder / "out").open("w") as out:
        terminal = Terminal(sandbox, "run", "flow.yaml", "-i", "name=Ann", stdout=out)
        assert terminal.end() == 0
    assert json.loads((sandbox.folder / "out").read_text()) == {"greet": "hello Ann"}
    assert re.search(r"✓\s+greet\s+[\d.]+ m?s\s+12 tokens", plain(terminal.text))
    assert "hello Ann" not in terminal.text


def test_a_terminal_without_colour(sandbox: Sandbox, gate: Gate):
    gate.open.set()
    terminal = Terminal(sandbox, "run", "flow.yaml", "-i", "name=Ann", NO_COLOR="1")
    assert terminal.end() == 0
    assert not re.search(r"\x1b\[\d*;?3\dm", terminal.text)


def test_ctrl_c_on_a_terminal_shows_the_cursor_again(sandbox: Sandbox, gate: Gate):
    terminal = Terminal(sandbox, "run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a")
    wait_for_call(gate)
    terminal.read("running")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    _, _, after = terminal.text.rpartition("\x1b[?25h")
    assert "go on with `agentflow resume wf_a`" in after


def test_an_answer_cannot_drive_the_terminal(sandbox: Sandbox):
    with ModelServer(lambda body: "\x1b]0;owned\x07\x1b[2J") as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        sandbox.write("chain.yaml", "agents:\n  - {name: one, system_prompt: x}\n")
        terminal = Terminal(sandbox, "run", "chain.yaml")
        assert terminal.end() == 0
    assert "\x1b]0" not in terminal.text
    assert "\x1b[2J" not in terminal.text
    assert "\\x1b]0;owned\\x07" in terminal.text


def test_diagnostics_are_coloured_on_a_terminal(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO + "retries: 3\n")
    terminal = Terminal(sandbox, "check", "flow.yaml")
    assert terminal.end() == 3
    assert "\x1b[31m\x1b[1merror\x1b[0m E_UNKNOWN_KEY" in terminal.text
    assert 'flow.yaml:11:1: error E_UNKNOWN_KEY: unknown key "retries"' in plain(terminal.text)
