"""Stores that the code of commit 861bfba wrote are read, written on and swept by the present code.

`complete` was closed in order, by its second process; the first segments of it were removed with their runs.
`torn` is a copy whose process was killed in the middle of a write. NAME.json says what that code read back.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentflow.errors import RunGone
from agentflow.events.log import Snapshot
from agentflow.events.owner import this_process
from agentflow.events.segments import SegmentLog
from tests.unit.events.support import batch

STORES = Path(__file__).parent / "format_2"
LATER = 4_000_000_000_000_000
ROW = ("state", "name", "labels", "created_at", "updated_at", "epoch", "bytes")


@pytest.fixture(params=["complete", "torn"])
def name(request):
    return request.param


def copy_of(name, directory):
    shutil.copytree(STORES / name, directory / name)
    return directory / name, json.loads((STORES / f"{name}.json").read_text())


def files_of(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def stream(log, cursor=None):
    found = []
    while (page := await log.query(cursor=cursor, limit=4)).items:
        assert page.damaged == ()
        found += [[run, event.offset] for run, event in page.items]
        cursor = page.next_cursor
    return found


async def check(log, known):
    """All answers are those of the code that wrote the store."""
    rows = (await log.runs(order="asc", limit=100)).items
    assert [row.workflow_id for row in rows] == list(known["runs"])
    for row, was in zip(rows, known["runs"].values(), strict=True):
        assert {key: getattr(row, key) for key in ROW} == {key: was[key] for key in ROW}
        assert (row.earliest_offset, row.last_offset) == (was["earliest"], was["last"])
        events = await log.read(row.workflow_id, 0, 1_000)
        assert [event.body.decode() for event in events] == was["events"]
    assert await stream(log) == known["stream"]
    for run in known["gone"]:
        with pytest.raises(RunGone):
            await log.run(run)
    for blob, data in known["blobs"].items():
        assert await log.get_blob(blob) == data.encode()
    for consumer, seen in known["cursors"].items():
        assert await stream(log, await log.load_cursor(consumer)) == known["stream"][seen:]
    for run, kind, offset, data in known["snapshots"]:
        assert await log.latest_snapshot(run, kind) == Snapshot(offset, data.encode())


async def test_it_is_read_as_it_was_written(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    log = SegmentLog(directory)
    assert [n.bytes for n in log.notices] == ([known["torn_bytes"]] if name == "torn" else [])
    await check(log, known)
    await log.close()
    log = SegmentLog(directory)
    assert log.notices == []
    await check(log, known)
    await log.close()


async def test_it_is_read_only_without_a_change(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    before = files_of(directory)
    log = SegmentLog(directory, read_only=True)
    await check(log, known)
    await log.close()
    assert files_of(directory) == before


async def test_it_is_written_on(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    log = SegmentLog(directory)
    expected = known["stream"]
    for run, was in known["runs"].items():
        if was["state"] in ("running", "paused"):
            epoch = await log.claim(run, this_process())
            assert epoch == was["epoch"] + 1
            await log.append(batch(was["last"] + 1, 2, epoch=epoch, workflow_id=run))
            expected = [*expected, [run, was["last"] + 1], [run, was["last"] + 2]]
    await log.append(batch(0, workflow_id="wf_new"))
    assert await stream(log) == [*expected, ["wf_new", 0]]
    await log.close()
    log = SegmentLog(directory)
    assert log.notices == []
    assert await stream(log) == [*expected, ["wf_new", 0]]
    await log.close()


async def test_its_runs_are_deleted_and_its_segments_go(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    log = SegmentLog(directory)
    for run, was in known["runs"].items():
        if was["state"] in ("running", "paused"):
            epoch = await log.claim(run, this_process())
            end = batch(was["last"] + 1, epoch=epoch, workflow_id=run, state="completed")
            await log.append(end)
        await log.delete(run, 7)
    await log.append(batch(0, workflow_id="wf_new"))
    swept = await log.sweep(LATER)
    assert (swept.blobs, swept.definitions) == (2, 1)
    assert swept.bytes > 20_000
    assert sorted(path.name for path in (directory / "blobs").iterdir()) == []  # with what lay beside them
    await log.close()
    log = SegmentLog(directory)
    assert log.notices == []
    assert await stream(log) == [["wf_new", 0]]
    for run in [*known["gone"], *known["runs"]]:
        with pytest.raises(RunGone):
            await log.run(run)
    await log.close()
