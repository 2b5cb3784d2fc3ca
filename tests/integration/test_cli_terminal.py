"""A waiting run on a terminal: the command line asks, and the answer moves the run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.terminal import Terminal, plain
from tests.integration.test_cli_hints import ASKED, CALLS, TOOLS, TWO, Answers, printed_commands
from tests.unit.cli.support import ModelServer, Sandbox

PROMPT = "y [REASON], n [REASON], show, later: "
RUN = ("-i", "name=Ann", "--id", "wf_a")


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Answers) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("asked.yaml", ASKED)
    made.write("two.yaml", TWO)
    with ModelServer(answers) as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield made
    made.close()


def last_event(sandbox: Sandbox, type: str) -> dict[str, object]:
    lines = sandbox.invoke("events", "wf_a", "--no-follow", "--type", type).stdout.splitlines()
    return json.loads(lines[-1])["data"]


def test_a_call_is_looked_at_and_approved(sandbox: Sandbox, answers: Answers):
    """What was shown is what is approved: its digest is in the command."""
    sandbox.write("tools.py", TOOLS)
    sandbox.write("calls.yaml", CALLS.replace("BEFORE", "calls"))
    answers.queue = [{"call": "post__send", "arguments": {"text": "x"}}]
    with (sandbox.folder / "out").open("w") as out:
        terminal = Terminal(sandbox, "run", "calls.yaml", *RUN, stdout=out)
        terminal.answer(PROMPT, "perhaps")
        terminal.answer(PROMPT, "show")
        terminal.answer(PROMPT, "y it is harmless")
        assert terminal.end() == 0, terminal.text
    shown = plain(terminal.text).replace("\r", "")
    assert 'Send to Ann? | post__send({"text":"x"})' in shown
    assert "  y approves, n denies\n" in shown
    assert re.search(r'"deadline": "20.*"side_effect": "write".*"parameters": \{', shown, re.DOTALL)
    assert "agentflow approve" not in shown, "it is decided"
    assert json.loads((sandbox.folder / "out").read_text()) == {"send": "hello x"}
    granted = last_event(sandbox, "approval.granted")
    assert (granted["reason"], granted["via"]) == ("it is harmless", "cli")


@pytest.mark.parametrize(
    ("typed", "code"), [("\x03", 130), ("\x04", 9), ("later", 9)], ids=["^C", "EOF", "later"]
)
def test_leaving_the_question_leaves_the_run_waiting(sandbox: Sandbox, typed: str, code: int):
    terminal = Terminal(sandbox, "run", "asked.yaml", *RUN)
    terminal.answer(PROMPT, typed)
    assert terminal.end() == code
    assert json.loads(sandbox.invoke("show", "wf_a", "--json").stdout)["state"] == "waiting"
    left = plain(terminal.text).replace("\r", "")
    command = printed_commands(left[left.index("wf_a waits for 1 answer") :])[0]
    assert command[:2] == ["approve", "wf_a"]
    assert sandbox.invoke(*command).exit_code == 0


def test_resume_asks_and_a_denial_ends_the_run(sandbox: Sandbox):
    assert sandbox.invoke("run", "asked.yaml", *RUN).exit_code == 9, "no terminal, no question"
    terminal = Terminal(sandbox, "resume", "wf_a")
    terminal.answer(PROMPT, "n not today")
    assert terminal.end() == 1
    assert "approval_denied" in terminal.text
    assert last_event(sandbox, "approval.denied")["reason"] == "not today"


def test_a_budget_and_a_held_step_are_decided(sandbox: Sandbox, answers: Answers):
    """An answer that does not satisfy the schema is refused and asked for again; the run then goes on."""
    answers.queue = ["hello Ann", 401]
    limits = ("--budget", "max_model_calls=1", "--budget", "on_exceeded=ask", "--on-failure", "hold")
    terminal = Terminal(sandbox, "run", "two.yaml", *RUN, *limits)
    terminal.answer("raise [LIMIT], fail, show, later: ", "raise 0")
    terminal.answer("raise [LIMIT], fail, show, later: ", "raise 9")
    terminal.answer("retry, skip, done [OUTPUT], fail, show, later: ", "done by hand")
    assert terminal.end() == 0, terminal.text
    shown = plain(terminal.text)
    assert "error invalid_response: " in shown
    assert "again failed: authentication_failed: " in shown
    assert json.loads(shown[shown.rindex("{") :]) == {"again": "by hand"}


def test_what_was_typed_before_the_question_is_no_answer(sandbox: Sandbox):
    terminal = Terminal(sandbox, "run", "asked.yaml", *RUN)
    os.write(terminal.fd, b"y\n")
    terminal.answer(PROMPT, "\x04")
    assert terminal.end() == 9


@pytest.mark.parametrize("how", [["--json"], ["--quiet"]])
def test_a_script_is_not_asked(sandbox: Sandbox, how: list[str]):
    terminal = Terminal(sandbox, "run", "asked.yaml", *RUN, *how)
    assert terminal.end() == 9
    assert "later: " not in terminal.text
