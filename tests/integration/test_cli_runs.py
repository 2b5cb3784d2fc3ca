"""The verbs on a real store and a real model server, in this process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow.events.envelope import decode
from agentflow.events.sqlite import ReadOnlySqliteLog
from tests.unit.cli.support import ECHO, ModelServer, Sandbox, user_text
from tests.unit.events.support import change_batch

CHAIN = """\
agents:
  - {name: one, system_prompt: First.}
  - {name: two, system_prompt: Second.}
"""
FAILING = ECHO.replace("id: greet", "id: greet\n      retry: false")


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    return made


@pytest.fixture
def model(sandbox: Sandbox) -> Iterator[ModelServer]:
    with ModelServer() as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        yield server


def runs_in(sandbox: Sandbox) -> int:
    """How many runs the store holds, looked at past the product."""
    if not sandbox.database.exists():
        return 0
    db = sqlite3.connect(sandbox.database)
    try:
        return db.execute("SELECT count(*) FROM run").fetchone()[0]
    finally:
        db.close()


# -- run ------------------------------------------------------------------------------------------


def test_run_prints_lines_and_then_the_output(sandbox: Sandbox, model: ModelServer):
    result = sandbox.invoke("run", "flow.yaml", "--input", "name=Ann", "--id", "wf_a", "--label", "team=x")
    assert result.exit_code == 0
    lines = [line.partition(" ")[2] for line in result.stderr.splitlines()[:4]]
    assert lines[:2] == ["wf_a started: flow", "greet started"]
    assert lines[2].startswith("greet completed in ")
    assert lines[2].endswith(", 12 tokens")
    assert lines[3].startswith("wf_a completed in ")
    assert json.loads(result.stdout) == {"greet": "hello Ann"}, "stdout has the result alone (daily-use 9)"
    assert runs_in(sandbox) == 1


def test_run_json_is_one_object(sandbox: Sandbox, model: ModelServer):
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a", "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert list(found) == ["workflow_id", "state", "output", "steps", "usage", "duration_ms"]
    assert (found["workflow_id"], found["state"]) == ("wf_a", "completed")
    assert found["output"] == {"greet": "hello Ann"}
    assert found["steps"] == {"greet": {"state": "succeeded", "attempt": 1}}
    assert found["usage"]["output_tokens"] == 7
    assert "greet started" in result.stderr


def test_an_agent_list_takes_any_json_and_gives_text(sandbox: Sandbox, model: ModelServer):
    sandbox.write("chain.yaml", CHAIN)
    result = sandbox.invoke("run", "chain.yaml", "--input", '"Ann"')
    assert result.exit_code == 0
    assert result.stdout == "hello hello Ann\n"


def test_a_store_of_its_own(sandbox: Sandbox, model: ModelServer):
    result = sandbox.invoke(
        "run", "flow.yaml", "-i", "name=A", "--id", "wf_a", "--store", "sqlite:own.db", "--local"
    )
    assert result.exit_code == 0
    assert (sandbox.folder / "own.db").exists()
    assert not sandbox.database.exists()
    assert "wf_a" in sandbox.invoke("list", "--store", "sqlite:own.db").stdout
    assert sandbox.invoke("list").stdout == "no runs\n"


def test_a_failed_run_is_exit_1_with_its_error(sandbox: Sandbox, model: ModelServer):
    sandbox.write("flow.yaml", FAILING)
    with ModelServer(lambda body: 401) as refusing:
        sandbox.env["OPENAI_BASE_URL"] = refusing.url
        text = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_text")
        data = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_json", "--json")
    assert (text.exit_code, data.exit_code) == (1, 1)
    assert "\nerror authentication_failed: step greet failed: " in text.stderr
    assert text.stderr.endswith("new run: `agentflow fork wf_text --from-failure`\n")
    found = json.loads(data.stdout)
    assert found["state"] == "failed"
    assert found["error"]["code"] == "authentication_failed"
    assert found["steps"]["greet"]["state"] == "failed"
    shown = sandbox.invoke("show", "wf_text").stdout
    assert "state      failed\n" in shown
    assert "error      authentication_failed: step greet failed" in shown


def test_warnings_of_the_input_are_told(sandbox: Sandbox, model: ModelServer):
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "-i", "nmae=B")
    assert result.exit_code == 0
    assert "warning W_INPUT_EXTRA" in result.stderr
    assert 'did you mean "name"?' in result.stderr


def test_warnings_of_the_document_are_counted(sandbox: Sandbox, model: ModelServer):
    sandbox.write("flow.yaml", ECHO.replace('version: "1.0"\n', ""))
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=A")
    assert result.stderr.startswith("1 warning about the document: agentflow check flow.yaml\n")


def test_the_same_id_gives_the_same_run(sandbox: Sandbox, model: ModelServer):
    first = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a", "--json")
    again = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a", "--json")
    other = sandbox.invoke("run", "flow.yaml", "-i", "name=B", "--id", "wf_a", "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert again.stderr == ""
    assert model.arrived.qsize() == 1
    assert (again.exit_code, other.exit_code) == (0, 5)
    assert other.stderr.startswith("error run_exists: wf_a exists with another definition or input\n  hint: ")
    assert other.stdout == ""


def test_on_unknown_is_an_option_of_the_run(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a", "--on-unknown", "fail")
    begin = json.loads(sandbox.invoke("events", "wf_a").stdout.splitlines()[0])
    assert begin["data"]["options"]["on_unknown"] == "fail"


def test_output_on_no_terminal_is_as_it_is(sandbox: Sandbox):
    sandbox.write("chain.yaml", CHAIN)
    with ModelServer(lambda body: "a\x1b[2Jb é 日") as server:
        sandbox.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        assert sandbox.invoke("run", "chain.yaml").stdout == "a\x1b[2Jb é 日\n"


# -- what can be wrong ----------------------------------------------------------------------------

BAD_DOCUMENTS = {
    "gone": None,
    "yaml": "version: [",
    "key": ECHO + "retries: 3\n",
    "cycle": ECHO.replace("id: greet", "id: greet\n      depends_on: [greet]"),
    "function": ECHO.replace(
        "attachedFunctions: none", "attachedFunctions: [{service: crm, function: find}]"
    ),
    "model": ECHO.replace("agent:", "agent:\n        model: fast"),
}


@pytest.mark.parametrize(
    ("document", "args", "code", "says", "hint"),
    [
        ("gone", (), 3, "gone.yaml: error E_FILE: there is no such file", None),
        ("flw", (), 3, "flw.yaml: error E_FILE: there is no such file", 'did you mean "flow.yaml"?'),
        ("far/flow", (), 3, "flow.yaml: error E_FILE: there is no such file", "there is no folder"),
        ("yaml", (), 3, "yaml.yaml:1:10: error E_SYNTAX: ", None),
        ("key", (), 3, 'key.yaml:11:1: error E_UNKNOWN_KEY: unknown key "retries"', None),
        ("cycle", (), 3, "cycle.yaml:4:7: error E_CYCLE: ", None),
        (
            "function",
            ("-i", "name=A"),
            3,
            'error E_UNKNOWN_SERVICE: no service "crm"',
            "declare it under services",
        ),
        ("model", ("-i", "name=A"), 78, 'error E_UNKNOWN_MODEL: "fast" is not an alias', None),
        ("model", (), 3, 'error E_INPUT_MISSING: input "name" is required', None),
        (
            "flow",
            (),
            3,
            'flow.yaml:8:20: error E_INPUT_MISSING: input "name" is required',
            "give it: --input name=VALUE",
        ),
        ("flow", ("-i", "name=A", "--budget", "max_toks=1"), 78, "unknown key 'max_toks'", "max_tokens"),
        (
            "flow",
            ("-i", "name=A", "--budget", "max_tokens=many"),
            78,
            "budget: max_tokens must be an integer or null, not a string",
            None,
        ),
        (
            "flow",
            ("-i", "hello"),
            2,
            "error usage: Invalid value for --input: not JSON",
            "agentflow run --help",
        ),
        ("flow", ("-i", "[1]", "-i", "a=1"), 2, "error usage: Invalid value for --input: only objects", None),
        ("flow", ("-i", "@gone.json"), 3, "gone.json: error E_FILE: cannot be read", None),
        ("flow", ("-i", "[1]"), 3, "error E_", None),
        (
            "flow",
            ("-i", "name=A", "--id", "nonsense"),
            2,
            "error usage: Invalid value for '--id': \"nonsense\"",
            None,
        ),
        ("flow", ("-i", "name=A", "--label", "x"), 2, "error usage: Invalid value for --label", None),
        (
            "flow",
            ("-i", "name=A", "--on-unknown", "x"),
            2,
            "error usage: Invalid value for '--on-unknown'",
            None,
        ),
        (
            "flow",
            ("-i", "name=A", "--store", "runs.db"),
            78,
            "error configuration: 'runs.db' is not",
            "sqlite:FILE",
        ),
        (
            "flow",
            ("-i", "name=A", "--store", "sqlite:flow.yaml"),
            78,
            "error configuration: ",
            "another file",
        ),
    ],
)
def test_what_is_wrong_is_told_and_leaves_nothing(
    sandbox: Sandbox,
    model: ModelServer,
    document: str,
    args: tuple[str, ...],
    code: int,
    says: str,
    hint: str | None,
):
    text = BAD_DOCUMENTS.get(document)
    if text is not None:
        sandbox.write(f"{document}.yaml", text)
    for as_json in ((), ("--json",)):
        result = sandbox.invoke("run", f"{document}.yaml", *args, *as_json)
        assert result.exit_code == code, result.stderr
        assert says in result.stderr
        assert hint is None or f"  hint: {hint}" in result.stderr or hint in result.stderr
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
    assert runs_in(sandbox) == 0
    assert model.arrived.empty()


def test_no_model_at_all(sandbox: Sandbox):
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=A")
    assert result.exit_code == 78
    assert 'error E_UNKNOWN_MODEL: no model for step "greet"' in result.stderr
    for help in ("agentflow model install smollm2-135m", "OPENAI_API_KEY", "AGENTFLOW_MODEL"):
        assert help in result.stderr
    assert runs_in(sandbox) == 0


def test_a_model_that_does_not_answer_fails_the_run(sandbox: Sandbox):
    sandbox.write("flow.yaml", FAILING)
    with ModelServer() as gone:
        pass
    sandbox.env |= {"OPENAI_BASE_URL": gone.url, "AGENTFLOW_MODEL": "openai:test"}
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["code"] == "network_error"


def test_a_store_that_cannot_be_made(sandbox: Sandbox, model: ModelServer):
    sandbox.write("file", "")
    result = sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--store", "sqlite:file/runs.db")
    assert result.exit_code == 78
    assert result.stderr.startswith("error configuration: the store ")
    assert "  hint: choose a path" in result.stderr
    assert model.arrived.empty()


def test_postgresql_is_refused_and_its_password_is_not_shown(sandbox: Sandbox):
    for command in (("list",), ("run", "flow.yaml", "-i", "name=A")):
        result = sandbox.invoke(*command, "--store", "postgresql://ann:hidden@db/runs")
        assert result.exit_code == 78
        assert "this release has no PostgreSQL store" in result.stderr
        assert "hidden" not in result.stderr + result.stdout


def test_a_damaged_store_is_exit_74(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    first, _ = change_batch(sandbox.database, 1, 3, "body = x'7b'")
    for args in (("show", "wf_a"), ("show", "wf_a", "--json"), ("list", "--json")):
        result = sandbox.invoke(*args)
        assert (result.exit_code, result.stdout) == (74, "")
        assert result.stderr.startswith(f"error log_corrupt: wf_a from offset {first} on is damaged")
    (sandbox.folder / "junk.db").write_bytes(b"SQLite format 3\0" + b"junk" * 1000)
    result = sandbox.invoke("list", "--store", "sqlite:junk.db")
    assert result.exit_code == 74
    assert result.stderr.startswith("error log_corrupt: ")


@pytest.mark.parametrize("args", [("--debug", "show", "wf_gone"), ("show", "wf_gone", "--debug")])
def test_debug_shows_the_traceback(sandbox: Sandbox, args: tuple[str, ...]):
    result = sandbox.invoke(*args)
    assert result.exit_code == 4
    assert result.stderr.startswith("Traceback")
    assert "\nerror workflow_not_found: no run wf_gone" in result.stderr


@pytest.mark.parametrize("verb", ["show", "events", "resume", "cancel", "graph"])
def test_an_unknown_run_is_exit_4_and_makes_no_store(sandbox: Sandbox, model: ModelServer, verb: str):
    nowhere = sandbox.invoke(verb, "wf_gone")
    assert nowhere.exit_code == 4
    assert nowhere.stderr.startswith("error workflow_not_found: no run wf_gone: there is no store")
    assert not sandbox.database.exists()
    sandbox.invoke("run", "flow.yaml", "-i", "name=A")
    result = sandbox.invoke(verb, "wf_gone")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == (
        "error workflow_not_found: no run wf_gone\n  hint: `agentflow list` shows the runs of the store\n"
    )


@pytest.mark.parametrize("verb", ["show", "events", "resume", "cancel"])
def test_what_is_no_id_is_a_usage_error(sandbox: Sandbox, verb: str):
    result = sandbox.invoke(verb, "../etc")
    assert result.exit_code == 2
    assert "is not the id of a run" in result.stderr


# -- looking --------------------------------------------------------------------------------------


def test_list_shows_the_newest_first(sandbox: Sandbox, model: ModelServer):
    assert sandbox.invoke("list").stdout == "no runs\n"
    assert json.loads(sandbox.invoke("list", "--json").stdout) == {"items": []}
    assert not sandbox.database.exists()
    for run in ("wf_a", "wf_b", "wf_c"):
        sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", run)
    lines = sandbox.invoke("list").stdout.splitlines()
    columns = ["ID", "STATE", "CREATED", "DURATION", "TOKENS", "COST", "EVENTS", "WORKFLOW"]
    assert lines[0].split() == columns
    assert [line.split()[0] for line in lines[1:]] == ["wf_c", "wf_b", "wf_a"]
    assert len(sandbox.invoke("list", "--limit", "2").stdout.splitlines()) == 3
    assert sandbox.invoke("list", "--state", "failed").stdout == "no runs\n"
    items = json.loads(sandbox.invoke("list", "--state", "completed", "--json").stdout)["items"]
    assert [item["workflow_id"] for item in items] == ["wf_c", "wf_b", "wf_a"]


@pytest.mark.parametrize(
    "args", [("--limit", "0"), ("--limit", "501"), ("--limit", "x"), ("--state", "done")]
)
def test_list_refuses_what_it_does_not_know(sandbox: Sandbox, args: tuple[str, ...]):
    assert sandbox.invoke("list", *args).exit_code == 2


def test_show(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_a", "--label", "team=x")
    shown = sandbox.invoke("show", "wf_a").stdout
    for line in (
        "run        wf_a",
        "state      completed",
        "workflow   flow 1.0 (agent-workflow/1.0)",
        "labels     team=x",
        'input      {"name":"Ann"}',
        'output     {"greet":"hello Ann"}',
    ):
        assert line + "\n" in shown
    header, row = (line.split() for line in shown.splitlines()[-2:])
    assert header == ["STEP", "STATE", "DURATION", "TOKENS", "COST", "ATTEMPT"]
    assert (row[:2], row[3:]) == (["greet", "succeeded"], ["ms", "12", "1"]), "no price is known"
    record = json.loads(sandbox.invoke("show", "wf_a", "--json").stdout)
    assert (record["state"], record["labels"], record["last_offset"]) == ("completed", {"team": "x"}, 9)


def events_of(sandbox: Sandbox, *args: str) -> list[dict[str, Any]]:
    result = sandbox.invoke("events", "wf_a", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


async def bodies(store: Path) -> list[bytes]:
    log = ReadOnlySqliteLog(store)
    found = [event.body for event in await log.read("wf_a")]
    await log.close()
    return found


def test_events_are_the_stored_bytes(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    stored = asyncio.run(bodies(sandbox.database))
    printed = sandbox.invoke("events", "wf_a", "--json").stdout_bytes
    assert printed == b"\n".join(stored) + b"\n"
    assert [decode(line).offset for line in printed.splitlines()] == list(range(len(stored)))


@pytest.mark.parametrize(
    ("offset", "first"), [((), 0), (("--offset", "0"), 0), (("--offset", "1"), 2), (("--offset", "5"), 6)]
)
def test_offset_is_the_position_of_page_000(
    sandbox: Sandbox, model: ModelServer, offset: tuple[str, ...], first: int
):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    assert events_of(sandbox, *offset)[0]["offset"] == first
    assert events_of(sandbox, *offset, "--no-follow")[0]["offset"] == first


def test_events_beyond_the_end_of_an_ended_run(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    assert events_of(sandbox, "--offset", "11") == []
    assert events_of(sandbox, "--offset", "9999") == []


def test_events_by_type(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    assert {e["type"] for e in events_of(sandbox, "--type", "model.*")} == {
        "model.call_started",
        "model.call_completed",
    }
    two = events_of(sandbox, "--type", "workflow.started, workflow.completed")
    assert [e["type"] for e in two] == ["workflow.started", "workflow.completed"]
    assert events_of(sandbox, "--type", "workflow.started", "--type", "workflow.completed") == two
    for bad in ("*.started", ""):
        result = sandbox.invoke("events", "wf_a", "--type", bad)
        assert result.exit_code == 2
        assert "is not a type" in result.stderr
    assert sandbox.invoke("events", "wf_a", "--offset", "-1").exit_code == 2


def test_graph_of_a_run_is_that_of_its_file_with_states(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    of_file = sandbox.invoke("graph", "flow.yaml").stdout
    (sandbox.folder / "flow.yaml").unlink()
    of_run = sandbox.invoke("graph", "wf_a", "--format", "mermaid").stdout
    arrows = [line for line in of_file.splitlines() if "-->" in line]
    assert arrows == [line for line in of_run.splitlines() if "-->" in line]
    assert "succeeded" in of_run
    assert "succeeded" not in of_file
    assert of_file.startswith("flowchart TD\n")
    assert "greet" in of_file
    assert sandbox.invoke("graph", "flow.yaml").exit_code == 3
    assert sandbox.invoke("graph", "wf_a", "--format", "bmp").exit_code == 2


# -- ended runs -----------------------------------------------------------------------------------


def test_an_ended_run_is_neither_resumed_nor_cancelled(sandbox: Sandbox, model: ModelServer):
    sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a")
    for verb in ("resume", "cancel"):
        result = sandbox.invoke(verb, "wf_a")
        assert result.exit_code == 5
        assert result.stderr.startswith("error run_terminal: wf_a has ended (completed)\n")
    answer = sandbox.invoke("answer", "wf_a", "req_x", "retry")
    assert answer.exit_code == 4
    assert answer.stderr.startswith("error unknown_request: wf_a has no open request req_x\n  hint: ")


def test_a_memory_store_works_and_is_gone(sandbox: Sandbox, model: ModelServer):
    assert (
        sandbox.invoke("run", "flow.yaml", "-i", "name=A", "--id", "wf_a", "--store", "memory:").exit_code
        == 0
    )
    assert sandbox.invoke("show", "wf_a", "--store", "memory:").exit_code == 4
    assert user_text(model.arrived.get_nowait()) == "A"


LISTS = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: greet
      for_each: ${{ inputs.names }}
      agent:
        systemPrompt: Greet the person.
        input: ${{ item }}
        attachedFunctions: none
        resultSchema: {type: string}
    - type: run
      id: never
      if: inputs.names.0 == 'Zoe'
      agent: {systemPrompt: x, input: x, attachedFunctions: none, resultSchema: {type: string}}
"""

SEEN = [
    ("inputs.names", '["Ann","Bob"]'),
    ("steps.greet.outputs.result", '["hello Ann","hello Bob"]'),
    ("steps.greet.outputs.items.*.result", '["hello Ann","hello Bob"]'),
    ("steps.greet.status == 'success' && steps.never.status == 'skipped'", "true"),
    ("${{ steps.none || item }}", "null"),
]


def check_expressions(sandbox: Sandbox) -> None:
    """Expressions on a run see what its own do; from its exported file too."""
    sandbox.write("lists.yaml", LISTS)
    names = json.dumps({"names": ["Ann", "Bob"]})
    ran = sandbox.invoke("run", "lists.yaml", "--input", names, "--id", "wf_l")
    assert ran.exit_code == 0, ran.stderr
    sandbox.write("run.ndjson", sandbox.invoke("log", "wf_l").stdout)
    for expression, value in SEEN:
        for run in ("wf_l", "run.ndjson"):
            done = sandbox.invoke("expr", expression, "--run", run)
            assert (done.exit_code, done.stdout) == (0, value + "\n"), (expression, done.stderr)
    assert sandbox.invoke("expr", "inputs.names < 1", "--run", "wf_l").exit_code == 1
    assert sandbox.invoke("expr", "inputs", "--run", "wf_none").exit_code == 4


def test_expressions_on_a_run(sandbox: Sandbox, model: ModelServer):
    check_expressions(sandbox)


def test_tools_of_this_process_are_none_and_make_no_store(sandbox: Sandbox):
    assert "no functions are registered" in sandbox.invoke("tools").stdout
    assert json.loads(sandbox.invoke("tools", "--json").stdout) == {"items": []}
    assert not sandbox.database.exists()
