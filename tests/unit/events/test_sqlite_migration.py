"""A database of an earlier schema is opened and brought up to date, with nothing lost."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

import msgspec
import pytest

from agentflow.errors import LogCorrupt
from agentflow.events.cursors import encode_cursor
from agentflow.events.envelope import iso
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.checks import event_crc, row_crc, type_crc
from agentflow.events.sqlite.verify import verify_file

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


# -- version 4: one row for each event


RUNS = ["wf_a", "wf_b"]
SEQS = [1, 2, 5, 6, 7, 9, 10]
"""Of the events of wf_a (0 1 | 2), wf_b (0 1) and wf_a (3 4) as they were committed; others were swept."""
ROWS = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (1, 3), (1, 4)]


@pytest.fixture
def version_4(tmp_path):
    path = tmp_path / "four.db"
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript((OLDER / "sqlite-4.sql").read_text())
    db.execute(f"PRAGMA application_id = {0x61666C77}")
    db.execute("PRAGMA user_version = 4")
    db.execute("INSERT INTO event_type VALUES (7, 'output', ?)", (type_crc("output"),))
    for number, last in ((1, 4), (2, 1)):
        fixed = (number, RUNS[number - 1], "name", "source", "{}", 7, None, "running", 1, None, 0)
        db.execute(
            "INSERT INTO run (id, workflow_id, name, definition_hash, labels, created_at, parent, state,"
            " epoch, owner, earliest_offset, updated_at, last_offset, bytes, crc)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*fixed, 100, last, 1, row_crc(*fixed)),
        )
    for seq, (run, offset) in zip(SEQS, ROWS, strict=True):
        text = body(RUNS[run - 1], offset, "output", n=offset)
        crc = event_crc(run, type_crc("output"), offset, 100, text)
        db.execute("INSERT INTO event VALUES (?, ?, ?, 100, 7, ?, ?)", (seq, run, offset, text, crc))
    db.execute(
        "INSERT INTO consumer VALUES ('c', ?, ?)", (encode_cursor(6), crc32(encode_cursor(6).encode()))
    )
    db.commit()
    db.close()
    return path


async def test_events_of_version_4_become_batches_and_cursors_stay_valid(version_4):
    log = SqliteLog(version_4)
    for number, run in enumerate(RUNS, start=1):
        wanted = [body(run, offset, "output", n=offset) for owner, offset in ROWS if owner == number]
        assert [event.body for event in await log.read(run)] == wanted
    page = await log.query(cursor=await log.load_cursor("c"))
    assert [(run, event.offset) for run, event in page.items] == [("wf_b", 1), ("wf_a", 3), ("wf_a", 4)]
    assert (page.damaged, page.next_cursor) == ((), encode_cursor(10))
    await log.append(Append("wf_a", 1, 5, [StoredEvent(5, 9, "output", body("wf_a", 5, "output"))]))
    assert [event.offset for event in await log.read("wf_a", 2)] == [2, 3, 4, 5]
    assert [event.offset for _, event in (await log.query(cursor=page.next_cursor)).items] == [5]
    await log.close()
    assert (await asyncio.to_thread(verify_file, version_4)).sound
    with closing(sqlite3.connect(version_4)) as db:
        found = db.execute("SELECT seq, run, first, count, prev FROM batch ORDER BY seq").fetchall()
    assert found == [(1, 1, 0, 2, 0), (5, 1, 2, 1, 1), (6, 2, 0, 2, 0), (9, 1, 3, 2, 5), (11, 1, 5, 1, 9)]


async def test_a_damaged_event_of_version_4_quarantines_its_run_alone(version_4):
    with closing(sqlite3.connect(version_4)) as db:
        db.execute("UPDATE event SET ts = ts + 1 WHERE run = 1 AND offset = 2")
        db.commit()
    log = SqliteLog(version_4)
    assert [event.offset for event in await log.read("wf_a")] == [0, 1]
    with pytest.raises(LogCorrupt, match="wf_a from offset 2 on"):
        await log.read("wf_a", 2)
    page = await log.query()
    assert (len(page.items), page.damaged) == (6, ("wf_a",))
    assert [event.offset for event in await log.read("wf_b")] == [0, 1]
    await log.close()


async def test_a_store_without_sums_is_given_them(version_4):
    """As version 2 made it."""
    with closing(sqlite3.connect(version_4)) as db:
        for table in ("event_type", "event", "run", "definition", "consumer", "tombstone"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN crc")
        db.execute("PRAGMA user_version = 2")
        db.commit()
    log = SqliteLog(version_4)
    assert [event.offset for event in await log.read("wf_a")] == [0, 1, 2, 3, 4]
    assert (await log.run("wf_b")).last_offset == 1
    assert await log.load_cursor("c") == encode_cursor(6)
    await log.close()
