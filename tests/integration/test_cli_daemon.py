"""The command line with a daemon: the same verbs on its runs, found by the default socket or by name."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.support.terminal import Terminal
from tests.integration.test_cli_control import ASKED, TWO
from tests.integration.test_cli_runs import check_expressions
from tests.unit.cli.support import ECHO, ModelServer, Sandbox
from tests.unit.telemetry.collector import Collector


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    for name, text in (("asked.yaml", ASKED), ("two.yaml", TWO), ("flow.yaml", ECHO)):
        made.write(name, text)
    with ModelServer() as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield made
    made.close()


PROMPT = "y [REASON], n [REASON], show, later: "


@contextmanager
def serving(sandbox: Sandbox, *words: str) -> Iterator[subprocess.Popen]:
    """A daemon on the default socket; ended by SIGTERM."""
    process = sandbox.start("serve", *words)
    try:
        socket = sandbox.folder / "data/agentflow/agentflow.sock"
        deadline = time.monotonic() + 30
        while not socket.exists() or sandbox.invoke("health").exit_code != 0:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "the daemon does not answer"
            time.sleep(0.02)  # it starts sooner if we leave it the processor
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0


@pytest.fixture
def distant(sandbox: Sandbox) -> Iterator[subprocess.Popen]:
    """A daemon on a store that no command of this sandbox looks at by itself."""
    with serving(sandbox, "--store", f"sqlite:{sandbox.folder / 'distant.db'}") as process:
        yield process


@pytest.fixture
def daemon(sandbox: Sandbox) -> Iterator[subprocess.Popen]:
    """A daemon on the default socket; ended by SIGTERM."""
    with serving(sandbox) as process:
        yield process


def test_a_run_is_the_daemons_when_one_listens(sandbox: Sandbox, daemon):
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["output"] == {"greet": "hello Ann"}
    assert "wf_a" in sandbox.invoke("list").stdout
    assert "hello Ann" in sandbox.invoke("show", "wf_a").stdout
    lines = [json.loads(line) for line in sandbox.invoke("events", "wf_a").stdout.splitlines()]
    assert [line["offset"] for line in lines] == list(range(len(lines)))
    assert lines[-1]["type"] == "workflow.completed"
    only = sandbox.invoke("events", "wf_a", "--type", "workflow.*").stdout.splitlines()
    assert 0 < len(only) < len(lines)
    assert sandbox.invoke("show", "wf_none").exit_code == 4


def test_a_detached_run_waits_with_the_daemon_and_is_approved(sandbox: Sandbox, daemon):
    detached = sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a", "--detach")
    assert (detached.exit_code, detached.stdout) == (0, "wf_a\n")
    waits = sandbox.invoke("run", "asked.yaml", "-i", "name=Bob", "--id", "wf_b")
    assert waits.exit_code == 9
    assert "agentflow approve wf_b req_" in waits.stderr
    inbox = json.loads(sandbox.invoke("inbox", "--json").stdout)["items"]
    assert {i["workflow_id"] for i in inbox} == {"wf_a", "wf_b"}
    assert sandbox.invoke("approve", "wf_a", "greet").exit_code == 0
    denied = sandbox.invoke("deny", "wf_b", "greet", "--reason", "no")
    assert denied.exit_code == 1
    assert sandbox.invoke("inbox").stdout == "no run waits for an answer\n"


def test_commands_reach_the_daemon(sandbox: Sandbox, daemon):
    sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    assert sandbox.invoke("pause", "wf_a").stdout == "wf_a is paused\n"
    assert sandbox.invoke("signal", "wf_a", "paid").exit_code == 0
    assert sandbox.invoke("resume", "wf_a").exit_code == 9
    assert sandbox.invoke("cancel", "wf_a").stdout == "wf_a is cancelled\n"
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_t")
    forked = sandbox.invoke("fork", "wf_t", "--from", "again", "--id", "wf_f", "--json")
    assert json.loads(forked.stdout)["output"] == {"again": "hello hello Ann"}
    more = sandbox.invoke("run", "flow.yaml", "--input-from", "wf_t:greet", "--as", "name", "--json")
    assert json.loads(more.stdout)["output"] == {"greet": "hello hello Ann"}
    wrong = sandbox.invoke("run", "flow.yaml", "--budget", "max_token=1", "-i", "name=A")
    assert wrong.exit_code != 0
    assert "max_tokens" in wrong.stderr
    for verb in ("pause", "resume"):
        assert sandbox.invoke(verb, "wf_t").exit_code == 5


def test_the_daemon_keeps_the_store_to_itself_and_says_so(sandbox: Sandbox, daemon):
    second = sandbox.start("serve", "--socket", str(sandbox.folder / "other.sock"))
    _, said = second.communicate(timeout=30)
    assert second.returncode == 78, said


def test_two_places_are_refused_and_a_missing_daemon_is_told(sandbox: Sandbox):
    both = sandbox.invoke("list", "--url", "unix:nowhere.sock", "--local")
    assert both.exit_code == 2
    gone = sandbox.invoke("list", "--url", "unix:nowhere.sock")
    assert (gone.exit_code, "unreachable" in gone.stderr) == (6, True)
    assert sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--detach").exit_code == 2
    assert sandbox.invoke("health").exit_code == 6


def test_a_wrong_document_is_told_as_without_a_daemon(sandbox: Sandbox, daemon):
    sandbox.write("bad.yaml", ECHO.replace("attachedFunctions: none", "attachedFunction: none"))
    remote = sandbox.invoke("run", "bad.yaml", "-i", "name=A")
    local = sandbox.invoke("run", "bad.yaml", "-i", "name=A", "--local")
    assert (remote.exit_code, remote.stderr) == (3, local.stderr)
    missing = sandbox.invoke("run", "flow.yaml")
    assert (missing.exit_code, "E_INPUT_MISSING" in missing.stderr) == (3, True)


def test_ctrl_c_detaches_and_the_run_goes_on(sandbox: Sandbox, daemon):
    sandbox.write("slow.yaml", ECHO)
    run = sandbox.start("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_a")
    run.communicate(timeout=30)
    assert run.returncode == 9
    follow = sandbox.start("events", "wf_a")
    first = follow.stdout.readline()
    assert json.loads(first)["type"] == "workflow.started"
    follow.send_signal(signal.SIGINT)
    follow.communicate(timeout=30)
    assert follow.returncode == 130
    assert sandbox.invoke("approve", "wf_a", "greet").exit_code == 0


def test_retention_is_the_daemons(sandbox: Sandbox):
    sandbox.write("agentflow.toml", '[retention]\nmode = "age"\nmax_age = "1ms"\n')
    process = sandbox.start("serve")
    socket = sandbox.folder / "data/agentflow/agentflow.sock"
    deadline = time.monotonic() + 30
    while not socket.exists() or sandbox.invoke("health").exit_code != 0:
        assert time.monotonic() < deadline, "the daemon does not answer"
    sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a")
    plan = json.loads(sandbox.invoke("gc", "--dry-run", "--json").stdout)
    assert [r["workflow_id"] for r in plan["removals"]] == ["wf_a"]
    assert "wf_a" in sandbox.invoke("list").stdout
    assert "wf_a" in sandbox.invoke("gc").stdout
    assert sandbox.invoke("show", "wf_a").exit_code == 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0


def test_the_log_of_the_daemon_is_a_file_that_opens_without_it(sandbox: Sandbox, daemon):
    sandbox.invoke("run", "two.yaml", "-i", "name=Ann", "--id", "wf_a")
    forked = sandbox.invoke("fork", "wf_a", "--from", "again", "--json")
    written = sandbox.invoke("log", json.loads(forked.stdout)["workflow_id"])
    assert written.exit_code == 0
    assert '"attachment":"blob"' in written.stdout
    sandbox.write("run.ndjson", written.stdout)
    shown = sandbox.invoke("open", "run.ndjson", "--json")
    assert json.loads(shown.stdout)["state"] == "completed", shown.stderr
    missing = sandbox.invoke("log", "wf_none")
    assert (missing.exit_code, missing.stdout) == (4, "")


def test_verbs_that_read_a_run_read_that_of_the_daemon(sandbox: Sandbox, distant):
    """None of them may look into the store of this process, where the run is not."""
    check_expressions(sandbox)
    assert sandbox.invoke("expr", "inputs", "--run", "wf_l", "--local").exit_code == 4

    assert sandbox.invoke("run", "asked.yaml", "-i", "name=Ann", "--id", "wf_w").exit_code == 9
    same = sandbox.invoke("check", "asked.yaml", "--against-runs", "--json")
    assert same.exit_code == 0, same.stderr
    (fit,) = json.loads(same.stdout)["runs"]
    assert (fit["workflow_id"], fit["state"], fit["differences"]) == ("wf_w", "waiting", [])
    assert (
        json.loads(sandbox.invoke("check", "asked.yaml", "--against-runs", "--local", "--json").stdout)[
            "runs"
        ]
        == []
    )
    sandbox.write("asked.yaml", ASKED.replace("id: greet", "id: other"))
    other = sandbox.invoke("check", "asked.yaml", "--against-runs", "--json")
    assert other.exit_code == 3
    assert not json.loads(other.stdout)["runs"][0]["fits"]

    drawn = sandbox.invoke("graph", "wf_w")
    assert drawn.exit_code == 0
    assert "greet" in drawn.stdout
    assert sandbox.invoke("graph", "wf_w", "--local").exit_code == 4

    with Collector() as collector:
        sandbox.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        sent = sandbox.invoke("export-spans", "wf_l", "--json")
        assert (sent.exit_code, sent.stderr) == (0, "")
        told = json.loads(sent.stdout)
        assert told["spans"] == len(collector.spans) > 3
        assert {span.trace_id.hex() for span in collector.spans} == {told["trace_id"]}
        count = len(collector.spans)
        assert sandbox.invoke("expr", "inputs.names", "--run", "wf_l").stderr == ""
        assert len(collector.spans) == count, "to look at a run sends nothing"
        assert sandbox.invoke("export-spans", "wf_none").exit_code == 4
        assert sandbox.invoke("export-spans", "wf_l", "--local").exit_code == 4
    assert sandbox.invoke("export-spans", "wf_l").exit_code == 6

    assert "no functions are registered" in sandbox.invoke("tools").stdout


def test_a_daemon_that_is_not_there_is_told_by_the_verbs_that_read(sandbox: Sandbox):
    url = ("--url", "unix:" + str(sandbox.folder / "nobody"))
    sandbox.env["OTEL_TRACES_EXPORTER"] = "console"
    for words in (
        ("expr", "inputs", "--run", "wf_a"),
        ("export-spans", "wf_a"),
        ("check", "flow.yaml", "--against-runs"),
        ("graph", "wf_a"),
        ("tools",),
        ("log", "wf_a"),
    ):
        result = sandbox.invoke(*words, *url)
        assert result.exit_code == 6, (words, result.stderr)
        assert "no daemon answers" in result.stderr


RUNS = "agentflow_run_duration_seconds_count"


def test_the_daemon_measures_always_and_sends_what_the_environment_asks_for(sandbox: Sandbox):
    def page() -> dict[str, float]:
        transport = httpx.HTTPTransport(uds=str(sandbox.folder / "data/agentflow/agentflow.sock"))
        with httpx.Client(transport=transport, base_url="http://localhost") as http:
            families = text_string_to_metric_families(http.get("/metrics").text)
            return {sample.name: sample.value for family in families for sample in family.samples}

    with Collector() as collector:
        sandbox.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        with serving(sandbox):
            del sandbox.env["OTEL_EXPORTER_OTLP_ENDPOINT"]
            assert sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a").exit_code == 0
            deadline = time.monotonic() + 20
            found = page()
            while not (found.get(RUNS) and found.get("agentflow_spans_exported_total")):
                assert time.monotonic() < deadline, found
                found = page()
        assert found[RUNS] == 1
        assert found["agentflow_runs_accepted_total"] == 1
        assert found["agentflow_spans_refused_total"] == 0
        assert len(collector.spans) >= 4
        assert not collector.metrics, "an endpoint for spans alone sends no metrics"


def test_a_run_of_the_daemon_is_decided_on_the_terminal(sandbox: Sandbox, daemon):
    """daily-use, "Missed": the question and its answer go through the daemon, which goes on with the run."""
    sandbox.write("asked.yaml", ASKED)
    with (sandbox.folder / "out").open("w") as out:
        terminal = Terminal(sandbox, "run", "asked.yaml", "-i", "name=A", "--id", "wf_asked", stdout=out)
        terminal.answer(PROMPT, "show")
        terminal.answer(PROMPT, "y it is harmless")
        assert terminal.end() == 0, terminal.text
    assert json.loads((sandbox.folder / "out").read_text()) == {"greet": "hello A"}
    lines = sandbox.invoke("events", "wf_asked", "--no-follow", "--type", "approval.granted").stdout
    granted = json.loads(lines)["data"]
    assert (granted["reason"], granted["via"]) == ("it is harmless", "api")
    started = sandbox.invoke("events", "wf_asked", "--no-follow", "--type", "workflow.started").stdout
    assert json.loads(started)["data"]["by"] != "cli", "the daemon began it"


def test_a_question_of_the_daemon_can_be_left_open(sandbox: Sandbox, daemon):
    sandbox.write("asked.yaml", ASKED)
    terminal = Terminal(sandbox, "run", "asked.yaml", "-i", "name=A", "--id", "wf_left")
    terminal.answer(PROMPT, "later")
    assert terminal.end() == 9
    assert json.loads(sandbox.invoke("show", "wf_left", "--json").stdout)["state"] == "waiting"


@pytest.mark.slow  # the daemon gives the call its grace, 20 s
def test_a_client_names_the_run_when_its_daemon_drains(sandbox: Sandbox):
    """daily-use 2: the id is all that leads back to the run."""
    with ModelServer(lambda body: time.sleep(1) or "late") as slow:
        sandbox.env["OPENAI_BASE_URL"] = slow.url
        with serving(sandbox):
            client = sandbox.start("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_d")
            slow.arrived.get(timeout=30)
        _, err = client.communicate(timeout=30)
    assert client.returncode == 6, err
    assert "wf_d goes on when the daemon is back; then `agentflow show wf_d` shows it" in err
