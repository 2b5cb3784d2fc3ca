"""`log`, `open`, `state`, `gc`, and files in the place of runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.testing import ScriptedModel
from tests.unit.cli.support import ECHO, Sandbox


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    box = Sandbox(tmp_path)
    yield box
    box.close()


def seed(box: Sandbox, monkeypatch: pytest.MonkeyPatch, *names: str, **options: Any) -> list[str]:
    """Runs of the echo workflow in the sandbox's store."""
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    document = box.folder / "echo.yaml"
    document.write_text(ECHO)

    async def run() -> list[str]:
        model = ScriptedModel(lambda request: f"hello {request.messages[-1].content}")
        box.database.parent.mkdir(parents=True, exist_ok=True)
        async with Runtime(f"sqlite:{box.database}", models=[model]) as runtime:
            return [(await runtime.run(document, {"name": name}, **options)).workflow_id for name in names]

    return asyncio.run(run())


@pytest.fixture
def ran(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> str:
    return seed(box, monkeypatch, "Ada")[0]


@pytest.fixture
def exported(box: Sandbox, ran: str) -> Path:
    path = box.folder / "run.ndjson"
    path.write_text(box.invoke("log", ran).stdout)
    return path


def test_a_log_is_the_stored_events_and_nothing_else_when_that_is_all(box: Sandbox, ran: str):
    printed = box.invoke("log", ran)
    assert printed.exit_code == 0
    assert printed.stdout == box.invoke("events", ran, "--no-follow").stdout
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    assert [line["offset"] for line in lines] == list(range(len(lines)))
    assert {line["workflow_id"] for line in lines} == {ran}
    assert lines[-1]["type"] == "workflow.completed"


def test_a_file_shows_what_the_store_shows(box: Sandbox, ran: str, exported: Path):
    verbs = [("show",), ("show", "--json"), ("events",), ("state",), ("graph",), ("graph", "--format", "dot")]
    verbs += [("events", "--offset", "3"), ("events", "--type", "agent.*", "--no-follow")]
    of_store = [box.invoke(verb[0], ran, *verb[1:]) for verb in verbs]
    steps = box.invoke("state", ran, "greet")
    box.database.rename(box.folder / "elsewhere.db")
    for verb, before in zip(verbs, of_store, strict=True):
        found = box.invoke(verb[0], exported.name, *verb[1:])
        assert (found.exit_code, found.stdout) == (0, before.stdout), verb
        assert found.stdout
    assert box.invoke("state", exported.name, "greet").stdout == steps.stdout
    assert box.invoke("open", exported.name).stdout == of_store[0].stdout
    assert box.invoke("open", exported.name, "--json").stdout == of_store[1].stdout
    assert not box.database.exists()  # reading a file makes no store


def test_a_state_record_says_what_the_step_was_given_and_gave(box: Sandbox, ran: str):
    record = json.loads(box.invoke("state", ran, "greet", "--json").stdout)
    assert (record["step_id"], record["input"], record["data"]) == ("greet", "Ada", "hello Ada")
    state = json.loads(box.invoke("state", ran, "--json").stdout)
    assert (state["state"], state["steps"]["greet"]["state"]) == ("completed", "succeeded")
    early = json.loads(box.invoke("state", ran, "--offset", "1", "--json").stdout)
    assert (early["offset"], early["state"]) == (1, "running")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("state", "RUN", "no_such"), 4, 'has no step "no_such"'),
        (("state", "RUN", "greet", "--attempt", "9"), 4, "attempt 9"),
        (("state", "RUN", "--iteration", "1"), 2, "name it"),
        (("state", "RUN", "greet", "--offset", "1"), 2, "not of a STEP"),
        (("log", "wf_no"), 4, "no run wf_no"),
        (("log", "run.ndjson"), 2, "is not the id of a run"),
        (("open", "nothing.ndjson"), 3, "nothing.ndjson: cannot be read: No such file or directory"),
        (("show", "nothing.ndjson"), 3, "cannot be read"),
    ],
)
def test_what_is_not_there_is_said(box: Sandbox, ran: str, args: tuple[str, ...], code: int, message: str):
    found = box.invoke(*(ran if arg == "RUN" else arg for arg in args))
    assert (found.exit_code, message in found.stderr) == (code, True), found.stderr


WRONG_BLOB = b'{"attachment":"blob","name":"sha256:0","content":"eA=="}\n'


def change(lines: list[bytes], number: int, old: bytes, new: bytes) -> list[bytes]:
    assert old in lines[number]
    return [*lines[:number], lines[number].replace(old, new, 1), *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("spoil", "line", "message"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], 3, "offset 3 follows offset 1: events are missing"),
        (lambda lines: [*lines[:3], *lines[2:]], 4, "come again or out of order"),
        (lambda lines: [*lines[:-1], lines[-1][:-30]], None, "the line is cut off"),
        (lambda lines: [lines[0], b"hello\n", *lines[1:]], 2, "this is not JSON"),
        (lambda lines: [lines[0], b"\n", *lines[1:]], 2, "this is not JSON"),
        (lambda lines: [lines[0], b"[]\n"], 2, "this is no JSON object"),
        (lambda lines: [lines[0], b'{"a":1}\n'], 2, "this is no event"),
        (lambda lines: change(lines, 2, b'"wf_', b'"wf_x'), 3, "a file holds one run"),
        (lambda lines: [*lines, lines[-1]], None, "follows the terminal event"),
        (lambda lines: change(lines, 4, b'"timestamp":"2', b'"timestamp":"x'), 5, "this is no event"),
        (lambda lines: [b'{"attachment":"blob"}\n', *lines], 1, "this is no event"),
        (lambda lines: [*lines, WRONG_BLOB], None, "not what its name says"),
        (lambda lines: [*lines, b'{"attachment":"tape"}\n'], None, "this is no attachment"),
        (lambda lines: [], 1, "this is no event"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_whole_is_refused_with_the_line(
    box: Sandbox, exported: Path, spoil: Any, line: int | None, message: str
):
    lines = spoil(exported.read_bytes().splitlines(keepends=True))
    exported.write_bytes(b"".join(lines))
    for verb in ("open", "show", "events", "state", "graph"):
        found = box.invoke(verb, "run.ndjson")
        assert found.exit_code == 3
        assert found.stderr.startswith(f"error invalid_export: run.ndjson:{line or len(lines)}: "), (
            found.stderr
        )
        assert message in found.stderr
        assert not found.stdout


def test_a_file_without_its_last_line_end_is_whole(box: Sandbox, exported: Path):
    exported.write_bytes(exported.read_bytes().rstrip(b"\n"))
    assert box.invoke("open", "run.ndjson").exit_code == 0


def test_a_run_that_goes_on_is_shown_as_far_as_it_was(box: Sandbox, exported: Path):
    lines = exported.read_bytes().splitlines(keepends=True)
    exported.write_bytes(b"".join(lines[:6]))
    record = json.loads(box.invoke("open", "run.ndjson", "--json").stdout)
    assert (record["state"], record["last_offset"]) == ("running", 5)
    assert len(box.invoke("events", "run.ndjson").stdout.splitlines()) == 6  # and it ends


def test_nothing_is_done_to_a_run_in_a_file(box: Sandbox, exported: Path):
    before = exported.read_bytes()
    for verb in ("cancel", "resume"):
        assert box.invoke(verb, "run.ndjson").exit_code == 2
    assert exported.read_bytes() == before


# -- gc


def configure(box: Sandbox, text: str) -> None:
    (box.folder / "agentflow.toml").write_text(text)


def test_gc_takes_nothing_unless_it_is_told_to(box: Sandbox, ran: str):
    found = box.invoke("gc")
    assert found.exit_code == 0
    assert 'retention is "infinite"' in found.stdout
    assert "0 of 1 run gone" in found.stdout
    assert box.invoke("show", ran).exit_code == 0


def test_a_dry_run_says_what_goes_and_takes_nothing(box: Sandbox, ran: str):
    configure(box, '[retention]\nmode = "age"\nmax_age = "1ms"\n')
    found = box.invoke("gc", "--dry-run")
    assert found.exit_code == 0
    assert ran in found.stdout
    assert "delete" in found.stdout
    assert "beyond 0.001s" in found.stdout
    assert "1 of 1 run would go" in found.stdout
    plan = json.loads(box.invoke("gc", "--dry-run", "--json").stdout)
    assert plan["dry_run"] is True
    assert [(r["workflow_id"], r["action"]) for r in plan["removals"]] == [(ran, "delete")]
    assert box.invoke("show", ran).exit_code == 0


def test_gc_deletes_and_the_run_is_gone_for_ever(box: Sandbox, monkeypatch: pytest.MonkeyPatch):
    old, held = seed(box, monkeypatch, "Ada"), seed(box, monkeypatch, "Bob", labels={"hold": "audit"})
    configure(box, '[retention]\nmode = "size"\nmax_bytes = "0B"\n')
    found = box.invoke("gc")
    assert found.exit_code == 0
    assert f'{held[0]} stays: it is labelled "hold"' in found.stdout
    assert "1 of 2 runs gone" in found.stdout
    assert "above max_bytes: what is left" in found.stdout
    gone = box.invoke("show", old[0])
    assert gone.exit_code == 4
    assert gone.stderr.startswith(f"error run_gone: {old[0]} was deleted at ")
    assert box.invoke("log", old[0]).exit_code == 4
    assert box.invoke("show", held[0]).exit_code == 0
    assert [r["workflow_id"] for r in json.loads(box.invoke("list", "--json").stdout)["items"]] == held


HEADER = ("STEP", "STATE", "DURATION", "TOKENS", "COST", "ATTEMPT")


def split_report(text: str) -> tuple[str, list[dict[str, str]]]:
    """Return a report without its table of steps, and the rows of the table by column."""
    before, header, after = text.partition(next(x for x in text.splitlines() if x.startswith("STEP ")) + "\n")
    starts = [header.index(name) for name in HEADER]
    lines, blank, rest = after.partition("\n\n")
    assert all(line.strip() for line in lines.splitlines())
    rows = [
        {
            name: line[start:end].strip()
            for name, start, end in zip(HEADER, starts, [*starts[1:], None], strict=True)
        }
        for line in lines.splitlines()
    ]
    return before + blank + rest, rows


def assert_shown_after_trimming(shown: str, before: str) -> None:
    """All stands as it stood but tokens and cost of each step, which are in the events that were trimmed."""
    (text, rows), (text_before, rows_before) = split_report(shown), split_report(before)
    assert text == text_before
    assert rows_before
    assert all(row["TOKENS"] and row["COST"] for row in rows_before)
    assert rows == [{**row, "TOKENS": "", "COST": ""} for row in rows_before]


def test_a_trimmed_run_still_shows_what_it_was_also_from_a_file(box: Sandbox, ran: str):
    verbs = (("state", ran), ("state", ran, "greet"))
    before = {verb: box.invoke(*verb).stdout for verb in verbs}
    record = json.loads(box.invoke("show", ran, "--json").stdout)
    shown = box.invoke("show", ran).stdout
    graph = box.invoke("graph", ran).stdout
    configure(box, '[retention]\nmode = "size"\nmax_bytes = 0\ntrim_to_events = 3\n')
    assert "trim" in box.invoke("gc").stdout
    for verb, text in before.items():
        assert box.invoke(*verb).stdout == text
    assert_shown_after_trimming(box.invoke("show", ran).stdout, shown)
    trimmed = {**record, "earliest_offset": record["last_offset"] - 2}
    assert json.loads(box.invoke("show", ran, "--json").stdout) == trimmed
    assert len(box.invoke("events", ran).stdout.splitlines()) == 3
    refused = box.invoke("events", ran, "--offset", "1")
    assert refused.exit_code == 4
    assert "begins at offset" in refused.stderr
    (box.folder / "run.ndjson").write_text(box.invoke("log", ran).stdout)
    box.database.unlink()
    for verb, text in before.items():
        assert box.invoke(verb[0], "run.ndjson", *verb[2:]).stdout == text
    assert json.loads(box.invoke("show", "run.ndjson", "--json").stdout) == trimmed
    assert_shown_after_trimming(box.invoke("show", "run.ndjson").stdout, shown)
    assert box.invoke("graph", "run.ndjson").stdout == graph
    assert len(box.invoke("events", "run.ndjson").stdout.splitlines()) == 3


def test_a_bad_policy_is_refused_before_anything_is_done(box: Sandbox, ran: str):
    configure(box, '[retention]\nmode = "age"\nmaxage = "1ms"\n')
    found = box.invoke("gc")
    assert found.exit_code == 78
    assert 'unknown key "maxage" in [retention]' in found.stderr
    assert 'did you mean "max_age"?' in found.stderr
    assert box.invoke("list").exit_code == 78
