"""Stores of the first version of `file:` are read, and written on, as they are.

The stores below `first_version` were written by that version's code (see the commit that added them);
NAME.json says what it read back. New batches go into a segment of the present form behind those of the first.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentflow.errors import LogCorrupt, OffsetTrimmed, RunGone
from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Snapshot
from agentflow.events.owner import this_process
from agentflow.events.segments import SegmentLog
from tests.unit.events.support import batch

STORES = Path(__file__).parent / "first_version"
NAMES = ("complete", "torn", "removed", "rewritten")
LATER = 4_000_000_000_000_000


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def copy_of(name, directory):
    shutil.copytree(STORES / name, directory / name)
    return directory / name, json.loads((STORES / f"{name}.json").read_text())


async def stream(log, cursor=None):
    found = []
    while (page := await log.query(cursor=cursor, limit=4)).items:
        assert page.damaged == ()
        found += [[run, event.offset] for run, event in page.items]
        cursor = page.next_cursor
    return found


async def check(log, known):
    """All answers are those of the first version."""
    rows = (await log.runs(order="asc", limit=100)).items
    assert [row.workflow_id for row in rows] == list(known["runs"])
    for row, was in zip(rows, known["runs"].values(), strict=True):
        events = await log.read(row.workflow_id, row.earliest_offset, 1_000)
        assert [event.body.decode() for event in events] == was["events"]
        assert [event.offset for event in events] == list(range(was["earliest"], was["last"] + 1))
        for key in ("state", "name", "labels", "created_at", "updated_at", "epoch", "bytes"):
            assert getattr(row, key) == was[key]
        assert (row.earliest_offset, row.last_offset) == (was["earliest"], was["last"])
        if was["earliest"]:
            with pytest.raises(OffsetTrimmed):
                await log.read(row.workflow_id, was["earliest"] - 1)
    assert await stream(log) == known["stream"]
    for run in known["gone"]:
        with pytest.raises(RunGone):
            await log.run(run)
    for blob, data in known["blobs"].items():
        assert await log.get_blob(blob) == data.encode()
    for run, kind, offset, data in known.get("snapshots", []):
        assert await log.latest_snapshot(run, kind) == Snapshot(offset, data.encode())


async def test_all_of_it_is_read_as_it_was(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    log = SegmentLog(directory)
    assert [n.kind for n in log.notices] == (["torn_tail"] if name == "torn" else [])
    await check(log, known)
    await log.close()
    log = SegmentLog(directory)
    assert log.notices == []
    await check(log, known)
    await log.close()


async def test_it_is_read_only_without_a_change(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    before = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}
    log = SegmentLog(directory, read_only=True)
    await check(log, known)
    await log.close()
    assert {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()} == before


async def test_it_is_written_on_in_the_present_form(name, tmp_path):
    directory, known = copy_of(name, tmp_path)
    first = {p.name: p.read_bytes() for p in (directory / "segments").glob("*.ndjson")}
    log = SegmentLog(directory)
    open_runs = [run for run, was in known["runs"].items() if was["state"] in ("running", "paused")]
    for run in open_runs:
        epoch = await log.claim(run, this_process())
        assert epoch == known["runs"][run]["epoch"] + 1
        await log.append(batch(known["runs"][run]["last"] + 1, 2, epoch=epoch, workflow_id=run))
        known["runs"][run]["last"] += 2
    await log.append(batch(0, 3, workflow_id="wf_new"))
    await log.close()
    log = SegmentLog(directory)
    assert log.notices == []
    for run, was in {**known["runs"], "wf_new": {"earliest": 0, "last": 2}}.items():
        found = await log.read(run, was["earliest"], 1_000)
        assert [event.offset for event in found] == list(range(was["earliest"], was["last"] + 1))
    later = [[run, known["runs"][run]["last"] - 1 + k] for run in open_runs for k in (0, 1)]
    assert await stream(log) == known["stream"] + later + [["wf_new", n] for n in range(3)]
    await log.close()
    if name != "torn":  # of which the end is cut off
        assert {
            p.name: p.read_bytes() for p in (directory / "segments").glob("*.ndjson") if p.name in first
        } == first
    newest = sorted((directory / "segments").glob("*.ndjson"))[-1]
    assert all(json.loads(line)["v"] == 2 for line in newest.read_bytes().splitlines())


async def test_a_consumer_goes_on_from_its_cursor(name, tmp_path):
    """Cursors of `removed` and `rewritten` are older than the removals, and than the rewriting."""
    directory, known = copy_of(name, tmp_path)
    log = SegmentLog(directory)
    await log.append(batch(0, workflow_id="wf_new"))
    everything = known.get("all", known["stream"])
    left = [event for event in everything if event in known["stream"]]
    assert left == known["stream"]
    for consumer, seen in known.get("cursors", {}).items():
        expected = [e for e in everything[seen:] if e in left]
        assert await stream(log, await log.load_cursor(consumer)) == [*expected, ["wf_new", 0]]
    await log.close()


async def test_segments_of_deleted_runs_go(tmp_path):
    directory, _ = copy_of("removed", tmp_path)
    log = SegmentLog(directory)
    rows = (await log.runs()).items
    for row in rows:
        await log.delete(row.workflow_id, 7)
    await log.append(batch(0, workflow_id="wf_new"))
    assert (await log.sweep(LATER)).bytes > 15_000
    assert len(list((directory / "segments").glob("*.ndjson"))) == 1
    await log.close()
    log = SegmentLog(directory)
    assert log.notices == []
    for run in ["wf_0", *(row.workflow_id for row in rows)]:
        with pytest.raises(RunGone):
            await log.run(run)
    assert await stream(log) == [["wf_new", 0]]
    await log.close()


@pytest.mark.parametrize("name", ["complete", "removed", "rewritten"])
async def test_each_flipped_byte_is_noticed_or_harmless(name, tmp_path):
    """Of an event in the middle of each segment: never answered as if it had been written so."""
    directory, known = copy_of(name, tmp_path)
    for path in sorted((directory / "segments").glob("*.ndjson")):
        data = path.read_bytes()
        at = len(data) * 2 // 3
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            log = SegmentLog(directory)
        except LogCorrupt:
            path.write_bytes(data)
            continue
        noticed = [n.workflow_id for n in log.notices if n.kind == "damaged_run"]
        damaged = (await log.query(limit=1_000)).damaged
        assert set(damaged) == set(noticed) or not noticed
        for run in set(known["runs"]) - set(noticed):
            found: list[StoredEvent] = await log.read(run, known["runs"][run]["earliest"], 1_000)
            assert [event.body.decode() for event in found] == known["runs"][run]["events"]
        await log.close()
        path.write_bytes(data)
