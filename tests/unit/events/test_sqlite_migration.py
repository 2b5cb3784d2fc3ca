"""A database of an earlier schema is opened and brought up to date, with nothing lost."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import msgspec
import pytest

from agentflow.events.envelope import iso
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.sqlite import SqliteLog

OLDER = Path(__file__).parent / "golden" / "older"
BLOB = "sha256:" + hashlib.sha256(b"named").hexdigest()
ORPHAN = "sha256:" + hashlib.sha256(b"orphan").hexdigest()
GRAPH = "sha256:" + "9" * 64
LATER = 4_000_000_000_000_000


def body(run, offset, type, **data):
    envelope = {"id": "e", "offset": offset, "timestamp": iso(offset), "type": type, "workflow_id": run}
    return msgspec.json.encode({**envelope, "data": data})


EVENTS = {
    "wf_done": [
        ("workflow.started", body("wf_done", 0, "workflow.started", ir_hash=GRAPH, input={"$blob": BLOB})),
        ("workflow.completed", body("wf_done", 1, "workflow.completed", output="x")),
    ],
    "wf_child": [
        (
            "workflow.started",
            body("wf_child", 0, "workflow.started", parent={"workflow_id": "wf_done", "step_id": "s"}),
        ),
    ],
}


@pytest.fixture
def path(tmp_path):
    """A database as version 1 wrote it."""
    path = tmp_path / "runs.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript((OLDER / "sqlite-1.sql").read_text())
    db.execute(f"PRAGMA application_id = {0x61666C77}")
    db.execute("PRAGMA user_version = 1")
    types = {"workflow.started": 1, "workflow.completed": 2}
    db.executemany("INSERT INTO event_type VALUES (?, ?)", [(n, name) for name, n in types.items()])
    for number, (run, events) in enumerate(EVENTS.items(), start=1):
        state = "completed" if events[-1][0] == "workflow.completed" else "running"
        db.execute(
            "INSERT INTO run VALUES (?, ?, 'name', 'source', ?, '{\"k\":\"v\"}', 7, ?, ?, 1, NULL)",
            (number, run, state, len(events) - 1, len(events) - 1),
        )
        rows = [(number, offset, offset, types[name], text) for offset, (name, text) in enumerate(events)]
        db.executemany("INSERT INTO event (run, offset, ts, type, body) VALUES (?, ?, ?, ?, ?)", rows)
    db.executemany("INSERT INTO blob VALUES (?, ?)", [(BLOB, b"named"), (ORPHAN, b"orphan")])
    db.executemany("INSERT INTO definition VALUES (?, ?)", [(GRAPH, b"{}"), ("nobody", b"{}")])
    db.commit()
    db.close()
    return path


async def test_nothing_is_lost_and_what_is_new_is_worked_out(path):
    log = SqliteLog(path)
    for run, events in EVENTS.items():
        assert [(e.type, e.body) for e in await log.read(run)] == events
        row = await log.run(run)
        assert row.bytes == sum(len(text) for _, text in events)
        assert (row.labels, row.created_at, row.earliest_offset) == ({"k": "v"}, 7, 0)
    assert (await log.run("wf_child")).parent == "wf_done"
    assert (await log.run("wf_done")).parent is None
    assert len((await log.query()).items) == 3
    await log.save_cursor("c", "x")
    await log.close()
    again = SqliteLog(path)
    assert await again.load_cursor("c") == "x"
    assert [e.offset for e in await again.read("wf_done")] == [0, 1]
    await again.close()


async def test_what_a_run_names_is_known_from_then_on(path):
    log = SqliteLog(path)
    swept = await log.sweep(LATER)
    assert (swept.blobs, swept.definitions) == (1, 1)
    assert [await log.get_blob(name) for name in (BLOB, ORPHAN)] == [b"named", None]
    assert [await log.get_definition(name) for name in (GRAPH, "nobody")] == [b"{}", None]
    await log.delete("wf_done", 10)
    await log.sweep(LATER)
    assert await log.get_blob(BLOB) is None
    await log.close()


async def test_it_takes_new_runs_and_events(path):
    log = SqliteLog(path)
    event = StoredEvent(0, 1, "workflow.started", body("wf_new", 0, "workflow.started"))
    await log.append(
        Append("wf_new", 1, 0, [event], "running", RunMeta(name=None, definition_hash="d", created_at=1))
    )
    more = StoredEvent(1, 1, "output", body("wf_child", 1, "output"))
    await log.append(Append("wf_child", 1, 1, [more]))
    assert await log.last("wf_child") == 1
    await log.close()
