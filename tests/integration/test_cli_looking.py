"""`list` with its filters, `events` on a terminal, and slips of the pen that gave nothing without a word."""

from __future__ import annotations

import json
import os
import pty
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest

from agentflow.cli.listing import parse_since
from tests.unit.cli.support import ECHO, ModelServer, Sandbox


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    return made


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    made.write("other.yaml", ECHO)
    with ModelServer() as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        for run_id, file, team in (("wf_a", "flow", "x"), ("wf_b", "other", "x"), ("wf_c", "flow", "y")):
            done = made.invoke(
                "run", f"{file}.yaml", "-i", "name=A", "--id", run_id, "--label", f"team={team}"
            )
            assert done.exit_code == 0
        yield made
    made.close()


def listed(sandbox: Sandbox, *args: str) -> list[str]:
    text = [line.split()[0] for line in sandbox.invoke("list", *args).stdout.splitlines()[1:]]
    items = json.loads(sandbox.invoke("list", "--json", *args).stdout)["items"]
    assert [item["workflow_id"] for item in items] == text
    return text


def test_list_has_duration_tokens_and_filters(sandbox: Sandbox):
    header, *rows = sandbox.invoke("list").stdout.splitlines()
    names = ["ID", "STATE", "CREATED", "DURATION", "TOKENS", "COST", "EVENTS", "WORKFLOW"]
    assert header.split() == names
    assert re.fullmatch(r"wf_c +completed +\S+Z +[\d.]+ m?s +12 +10 +flow", rows[0]), rows[0]
    assert listed(sandbox, "--label", "team=x") == ["wf_b", "wf_a"]
    assert listed(sandbox, "--name", "other") == ["wf_b"]
    assert listed(sandbox, "--since", "2h", "--name", "flow") == ["wf_c", "wf_a"]
    assert listed(sandbox, "--since", "2126-01-01") == []
    for wrong in (("--since", "yesterday"), ("--label", "team")):
        assert sandbox.invoke("list", *wrong).exit_code == 2


def test_times_of_since():
    assert parse_since("2h", now=10_000.0) == 2_800_000_000
    assert parse_since("1.5 min", now=100.0) == 10_000_000
    assert parse_since("1970-01-01T00:00:07Z") == 7_000_000
    for wrong in ("", "2", "2x", "-2h", "2026-13-01"):
        with pytest.raises(click.BadParameter):
            parse_since(wrong)


def test_a_store_that_is_not_there_is_an_error(empty: Sandbox):
    """daily-use 15: the default store may be new, one that is named may not."""
    for verb in ("list", "inbox"):
        found = empty.invoke(verb, "--store", "sqlite:/nowhere/typo.db")
        assert (found.exit_code, found.stdout) == (4, "")
        assert found.stderr.startswith("error store_not_found: there is no store sqlite:/nowhere/typo.db\n")


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("tols.*", "tool.*"), ("workflow.complete", "workflow.completed"), ("model.call", "model.call_")],
)
def test_an_unknown_type_is_refused(sandbox: Sandbox, wanted: str, meant: str):
    found = sandbox.invoke("events", "wf_a", "--type", wanted)
    assert (found.exit_code, found.stdout) == (2, "")
    assert f'did you mean "{meant}' in found.stderr


def test_types_that_may_come_are_taken(sandbox: Sandbox):
    for wanted in ("*", "workflow.*", "custom.*", "custom.mine", "plan.*", "verification.*"):
        assert sandbox.invoke("events", "wf_a", "--type", wanted).exit_code == 0, wanted


def test_a_fork_wants_one_point(sandbox: Sandbox):
    for points in ((), ("--from", "greet", "--offset", "3")):
        refused = sandbox.invoke("fork", "wf_a", *points)
        assert refused.exit_code == 2
        assert "name one point: --from STEP, --offset N, or --from-failure" in refused.stderr


def test_events_are_words_on_a_terminal_and_ndjson_in_a_pipe(sandbox: Sandbox):
    assert json.loads(sandbox.invoke("events", "wf_a").stdout.splitlines()[0])["offset"] == 0

    def on_terminal(*args: str) -> str:
        ours, theirs = pty.openpty()
        process = sandbox.start("events", "wf_a", *args, stdout=theirs, env={"TERM": "xterm"})
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
        except OSError:  # Linux's way to say that the other side is closed
            pass
        os.close(ours)
        assert process.wait(20) == 0
        return text.decode().replace("\r\n", "\n")

    words = on_terminal()
    assert re.search(r"^\d\d:\d\d:\d\d\.\d{3}  greet +started$", words, re.MULTILINE), words
    assert re.search(r"^\S+  greet +model call started: test, ", words, re.MULTILINE)
    assert re.search(r"^\S+ +wf_a completed in [\d.]+ m?s, 12 tokens$", words, re.MULTILINE)
    assert len(words.splitlines()) == 10
    assert json.loads(on_terminal("--json").splitlines()[0])["type"] == "workflow.started"


@pytest.mark.parametrize("status", [200, 404, 500])
def test_another_server_at_the_address_of_the_daemon(empty: Sandbox, status: int):
    """daily-use 13."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        env = {"AGENTFLOW_URL": f"http://127.0.0.1:{server.server_port}"}
        for words in (("list",), ("show", "wf_a"), ("events", "@last"), ("run", "flow.yaml", "-i", "name=A")):
            found = empty.invoke(*words, env=env)
            assert found.exit_code == 6, (words, found.output)
            assert "is no agentflow daemon" in found.stderr
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
