"""What is written is what is held against it: the writer, the reader and `event_crc` agree on one sum."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from agentflow.errors import LogCorrupt
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.checks import event_crc, type_crc
from tests.unit.events.support import all_offsets, batch


async def filled(path):
    log = SqliteLog(path)
    await log.append(batch(0, 3))
    await log.append(batch(0, 2, workflow_id="wf_b"))
    await log.append(batch(3, 2))
    await log.close()


def rows(path, statement, *values):
    with closing(sqlite3.connect(path)) as db:
        found = db.execute(statement, values).fetchall()
        db.commit()
    return found


async def test_every_event_has_the_sum_of_its_row(tmp_path):
    path = tmp_path / "log.db"
    await filled(path)
    statement = "SELECT run, name, offset, ts, body, event.crc FROM event JOIN event_type ON type = id"
    found = rows(path, statement)
    assert len(found) == 7
    for run, name, offset, ts, body, crc in found:
        assert crc == event_crc(run, type_crc(name), offset, ts, body)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE event SET body = replace(CAST(body AS TEXT), 'xxx', 'xyx') WHERE run = 1 AND offset = 1",
        "UPDATE event SET ts = ts + 1 WHERE run = 1 AND offset = 1",
        "UPDATE event SET crc = crc + 1 WHERE run = 1 AND offset = 1",
    ],
)
async def test_a_changed_event_is_not_answered_with(tmp_path, change):
    path = tmp_path / "log.db"
    await filled(path)
    rows(path, change.replace("replace(", "CAST(replace(").replace("'xyx')", "'xyx') AS BLOB)"))
    log = SqliteLog(path)
    assert [e.offset for e in await log.read("wf_a")] == [0]  # what is before it is whole
    with pytest.raises(LogCorrupt, match="wf_a from offset 1 on is damaged"):
        await log.read("wf_a", 1)
    page = await log.query()  # all that is intact, and what is not
    shown = [(run, e.offset) for run, e in page.items]
    assert shown == [("wf_a", 0), ("wf_a", 2), ("wf_b", 0), ("wf_b", 1), ("wf_a", 3), ("wf_a", 4)]
    assert page.damaged == ("wf_a",)
    assert (await log.query(cursor=page.next_cursor)).items == []
    assert await all_offsets(log, "wf_b") == [0, 1]
    await log.close()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("UPDATE run SET last_offset = last_offset - 1 WHERE id = 1", "record of wf_a"),
        ("UPDATE run SET state = 'rvnning' WHERE id = 1", "record of wf_a"),
        ("UPDATE run SET name = 'other' WHERE id = 1", "record of wf_a"),
        ("UPDATE run SET earliest_offset = 1 WHERE id = 1", "record of wf_a"),
        ("UPDATE run SET updated_at = 0 WHERE id = 1", "record of wf_a"),
        ("DELETE FROM event WHERE run = 1 AND offset = 4", "record of wf_a"),
        ("UPDATE run SET labels = '{' WHERE id = 1", "record of wf_a|cannot be read"),
    ],
)
async def test_a_changed_run_is_not_answered_with(tmp_path, change, match):
    path = tmp_path / "log.db"
    await filled(path)
    rows(path, change)
    log = SqliteLog(path)
    for call in (log.run("wf_a"), log.last("wf_a")):
        with pytest.raises(LogCorrupt, match=match):
            await call
    page = await log.runs()
    assert ([row.workflow_id for row in page.items], page.damaged) == (["wf_b"], ("wf_a",))
    events = await log.query()
    assert ([run for run, _ in events.items], events.damaged) == (["wf_b", "wf_b"], ("wf_a",))
    assert (await log.run("wf_b")).last_offset == 1
    await log.close()


async def test_a_hole_in_a_run_is_seen_by_who_reads_over_it(tmp_path):
    path = tmp_path / "log.db"
    await filled(path)
    rows(path, "DELETE FROM event WHERE run = 1 AND offset = 2")
    log = SqliteLog(path)
    for call in (log.read("wf_a"), log.read("wf_a", 1, 2)):
        with pytest.raises(LogCorrupt, match="wf_a"):
            await call
    assert [e.offset for e in await log.read("wf_a", 3)] == [3, 4]
    await log.close()


async def test_a_changed_graph_blob_or_position_is_not_answered_with(tmp_path):
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    blob = await log.put_blob(b"blob")
    await log.put_definition("d", b"graph")
    await log.save_cursor("reader", "position")
    await log.close()
    for change in (
        "UPDATE blob SET body = x'62'",
        "UPDATE definition SET source = x'62'",
        "UPDATE consumer SET position = 'positiom'",
    ):
        rows(path, change)
    log = SqliteLog(path)
    for call in (log.get_blob(blob), log.get_definition("d"), log.load_cursor("reader"), log.cursors("")):
        with pytest.raises(LogCorrupt, match="damaged"):
            await call
    await log.close()


async def test_a_store_without_sums_is_given_them(tmp_path):
    """As version 2 made it."""
    path = tmp_path / "log.db"
    await filled(path)
    log = SqliteLog(path)
    await log.put_definition("d", b"graph")
    await log.save_cursor("reader", "position")
    await log.close()
    for table in ("event_type", "event", "run", "definition", "consumer", "tombstone"):
        rows(path, f"ALTER TABLE {table} DROP COLUMN crc")
    rows(path, "PRAGMA user_version = 2")
    log = SqliteLog(path)
    assert await all_offsets(log, "wf_a") == [0, 1, 2, 3, 4]
    assert (await log.run("wf_b")).last_offset == 1
    assert await log.get_definition("d") == b"graph"
    assert await log.load_cursor("reader") == "position"
    await log.append(batch(5))
    await log.close()
