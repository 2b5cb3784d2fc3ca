"""`agentflow help`: topics, pages, verbs, codes, and what it says about a typo."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from agentflow.cli.app import app
from agentflow.docs import GROUPS, TOPICS, read_page
from agentflow.docs.codes import DIAGNOSTICS, FAILURES
from tests.unit.cli.support import Sandbox


def test_without_a_topic_all_topics_are_listed_with_their_titles(sandbox: Sandbox):
    done = sandbox.invoke("help")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split(None, 1) for line in done.stdout.splitlines()]
    for topic in TOPICS:
        assert [topic, read_page(topic).title] in lines
    assert all(group in done.stdout for group in GROUPS)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_page_in_a_pipe_is_its_markdown(sandbox: Sandbox, topic: str):
    done = sandbox.invoke("help", topic)
    assert (done.exit_code, done.stdout) == (0, read_page(topic).text)


def test_a_page_on_a_terminal_is_rendered(sandbox: Sandbox):
    terminal, child = pty.openpty()
    env = {**sandbox.env, "TERM": "xterm-256color", "COLUMNS": "90"}
    command = [sys.executable, "-m", "agentflow", "help", "ordering"]
    process = subprocess.Popen(command, stdout=child, stderr=subprocess.PIPE, env=env)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end of a terminal is closed
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")
    assert b"\x1b[" in shown
    assert b"# " not in shown
    assert read_page("ordering").title.encode() in shown


def test_the_name_of_a_command_gives_its_help(sandbox: Sandbox):
    assert sandbox.invoke("help", "run").stdout.rstrip() == sandbox.invoke("run", "--help").stdout.rstrip()


def test_a_code_is_explained(sandbox: Sandbox):
    done = sandbox.invoke("help", "E_CYCLE")
    assert done.exit_code == 0
    assert DIAGNOSTICS["E_CYCLE"].meaning in done.stdout
    assert DIAGNOSTICS["E_CYCLE"].remedy in done.stdout


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("tutorail", "tutorial"), ("aprovals", "approvals"), ("rnu", "run"), ("E_CYCEL", "E_CYCLE")],
)
def test_a_typo_gets_a_suggestion(sandbox: Sandbox, typo: str, meant: str):
    done = sandbox.invoke("help", typo)
    assert done.exit_code == 2
    assert f'there is no topic "{typo}"' in done.stderr
    assert f'did you mean "{meant}"?' in done.stderr


def test_topics_commands_and_codes_have_different_names():
    names = [*TOPICS, *app.list_commands(None), *DIAGNOSTICS, *FAILURES]  # type: ignore[arg-type]
    assert sorted(names) == sorted(set(names))


def test_an_unknown_page_is_a_key_error():
    with pytest.raises(KeyError):
        read_page("../__init__")
