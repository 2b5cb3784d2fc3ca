"""What is written is what is held against it: the writer, the reader and `event_crc` agree on one sum."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from agentflow.errors import LogCorrupt
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.batches import BATCH_COLUMNS, Batch, batch_crc
from tests.unit.events.support import all_offsets, batch, change_batch


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


async def test_every_batch_has_the_sum_of_its_row(tmp_path):
    path = tmp_path / "log.db"
    await filled(path)
    found = [Batch(*row) for row in rows(path, f"SELECT {BATCH_COLUMNS} FROM batch ORDER BY seq")]
    assert [(batch.seq, batch.run, batch.first, batch.prev) for batch in found] == [
        (1, 1, 0, 0),
        (4, 2, 0, 0),
        (6, 1, 3, 1),
    ]
    assert all(batch.is_intact() for batch in found)


@pytest.mark.parametrize("column", ["seq", "run", "first", "size", "prev", "ts", "crc"])
def test_a_flipped_bit_of_any_number_changes_the_sum(column):
    row = Batch(9, 2, 40, 3, 5, 1_700_000_000_000_000, b"\x93\1\2\3", 0, b"body")
    row = row._replace(crc=batch_crc(*row[:7], row.body))
    assert row.is_intact()
    for bit in range(62):
        assert not row._replace(**{column: getattr(row, column) ^ 1 << bit}).is_intact(), bit


@pytest.mark.parametrize(
    "change",
    [
        "body = CAST(body || x'00' AS BLOB)",
        "types = CAST(types || x'00' AS BLOB)",
        "ts = ts + 1",
        "prev = prev + 1",
        "crc = crc + 1",
    ],
)
async def test_a_changed_batch_is_not_answered_with(tmp_path, change):
    path = tmp_path / "log.db"
    await filled(path)
    log = SqliteLog(path)
    await log.append(batch(5, 1))
    await log.close()
    change_batch(path, 1, 3, change)
    log = SqliteLog(path)
    assert [e.offset for e in await log.read("wf_a")] == [0, 1, 2]  # what is before it is whole
    with pytest.raises(LogCorrupt, match="wf_a from offset 3 on is damaged"):
        await log.read("wf_a", 3)
    assert [e.offset for e in await log.read("wf_a", 5)] == [5]
    page = await log.query()  # all that is intact, and what is not
    shown = [(run, e.offset) for run, e in page.items]
    assert shown == [("wf_a", 0), ("wf_a", 1), ("wf_a", 2), ("wf_b", 0), ("wf_b", 1), ("wf_a", 5)]
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
        ("DELETE FROM batch WHERE run = 1 AND first = 3", "record of wf_a"),
        ("UPDATE run SET last_seq = 1 WHERE id = 1", "record of wf_a"),
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
    log = SqliteLog(path)
    for offset in range(0, 8, 2):
        await log.append(batch(offset, 2))
    await log.close()
    change_batch(path, 1, 2, None)
    log = SqliteLog(path)
    for start in (0, 2, 3):
        with pytest.raises(LogCorrupt, match="wf_a"):
            assert await all_offsets_from(log, start)
    assert [e.offset for e in await log.read("wf_a", 4)] == [4, 5, 6, 7]
    await log.close()


async def all_offsets_from(log, start):
    found = []
    while page := await log.read("wf_a", start + len(found)):
        found += [e.offset for e in page]
    return found


async def test_nothing_is_appended_behind_an_end_that_is_missing(tmp_path):
    """Its number would be given again, to a batch that a damaged page may hide."""
    path = tmp_path / "log.db"
    await filled(path)
    change_batch(path, 1, 3, None)
    log = SqliteLog(path)
    with pytest.raises(LogCorrupt, match="where wf_a has events"):
        await log.append(batch(5))
    await log.append(batch(2, workflow_id="wf_b"))
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
