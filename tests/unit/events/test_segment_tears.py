"""A value that looks like a line of a segment is never taken for one, wherever a write was torn.

durability 2: with a value such as `{"b":99,"i":0,"n":1,"e":{…}}` in the last batch, which was never
acknowledged, the first version refused the whole store.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append
from agentflow.events.owner import this_process
from agentflow.events.segments import SegmentLog
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.lines import Head, encode_line
from agentflow.events.segments.recovery import recover
from tests.unit.events.support import all_offsets, batch, event

FIRST_VERSION = Path(__file__).parent / "first_version"
OLD_EVENT = {"id": "evt_q", "offset": 7, "timestamp": "t", "type": "x", "workflow_id": "wf_b"}


def whole_line(number, run, offset, synced):
    """A line with the right checksum, that would be the next one of its run."""
    forged = event(offset, workflow_id=run)
    meta = [(forged.ts, forged.type, len(forged.body))]
    return encode_line(Head(b=number, s=synced, p=("wf_a", 0), w=run, o=offset, m=meta), [forged]).raw


LINES = [whole_line(number, "wf_b", 1, synced) for number, synced in ((3, 2), (4, 3))]
TOMBSTONE = {
    "workflow_id": "wf_b",
    "state": "completed",
    "created_at": 1,
    "ended_at": 1,
    "deleted_at": 1,
}
LINES.append(encode_line(Head(b=4, s=3, gone=[TOMBSTONE])).raw)  # type: ignore[list-item]
HOSTILE = {
    "old line": {"b": 99, "i": 0, "n": 1, "e": OLD_EVENT},
    "old lines": [{"b": n, "i": 0, "n": 1, "e": OLD_EVENT} for n in (3, 4, 5)],
    "lines": [json.loads(line) for line in LINES],
    "lines as text": "\n" + "\n".join(line.decode() for line in LINES) + "\n",
    "key is a line": {LINES[0].decode(): {"c": "00000000", "v": 3, "b": 4}},
}


def hostile(offset, value, **more):
    data = Unknown(type="output", data={"value": value, **more})
    body = encode(
        Event(id="e", offset=offset, timestamp=iso(1), type="output", workflow_id="wf_a", data=data)
    )
    return StoredEvent(offset, 1, "output", body)


async def fill(directory, values):
    """Two batches of two runs, then one that is torn; its line begins at the position that is returned."""
    log = SegmentLog(directory)
    await log.append(batch(0))
    await log.append(batch(0, workflow_id="wf_b"))
    path = directory / "segments" / "00000001.ndjson"
    start = path.stat().st_size
    await log.append(Append("wf_a", 1, 1, [hostile(1 + k, value) for k, value in enumerate(values)]))
    await log.close()
    (directory / "closed").unlink()  # the process was killed
    return path, start


async def check_cut(directory, cut):
    """The torn batch was never there, and nothing else is missing or new."""
    log = SegmentLog(directory)
    assert [(n.kind, n.bytes) for n in log.notices] == ([("torn_tail", cut)] if cut else [])
    page = await log.query()
    assert ([(run, e.offset) for run, e in page.items], page.damaged) == ([("wf_a", 0), ("wf_b", 0)], ())
    assert [await log.last(run) for run in ("wf_a", "wf_b")] == [0, 0]
    await log.close()


def check_scan(directory, start, size):
    """As `check_cut`, of the scan alone, which changes nothing."""
    index, notices = recover(StoreFiles(directory), read_only=True)
    assert [(n.kind, n.bytes) for n in notices] == ([("torn_tail", size - start)] if size > start else [])
    assert (index.end, index.batch, index.last) == ((1, start), 2, ("wf_b", 0))
    assert {run.workflow_id: run.last for run in index.runs.values()} == {"wf_a": 0, "wf_b": 0}
    assert not index.gone
    assert not index.damaged


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
async def test_a_batch_with_hostile_values_may_be_torn_at_every_byte(tmp_path, value):
    path, start = await fill(tmp_path, [value])
    data = path.read_bytes()
    for end in range(start, len(data)):
        path.write_bytes(data[:end])
        check_scan(tmp_path, start, end)


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
async def test_only_the_end_of_a_batch_with_hostile_values_reached_the_disk(tmp_path, value):
    """Sectors of an unsynced write reach the disk in any order: what was not written reads as zeros."""
    path, start = await fill(tmp_path, [value])
    data = path.read_bytes()
    for hole in range(start + 1, len(data), 3):
        path.write_bytes(data[:start] + bytes(hole - start) + data[hole:])
        check_scan(tmp_path, start, len(data))


@settings(max_examples=15, deadline=None)
@given(
    values=st.lists(st.sampled_from(list(HOSTILE.values())), min_size=1, max_size=3),
    cut=st.integers(2, 5_000),
    garbage=st.sampled_from([b"", b"\0" * 700, b'{"c":"', b"\n", b"\n\n", LINES[1][:-40]]),
)
def test_a_torn_store_goes_on(tmp_path_factory, values, cut, garbage):
    directory = tmp_path_factory.mktemp("torn")

    async def scenario():
        path, start = await fill(directory, values)
        data = path.read_bytes()
        torn = data[: max(start, len(data) - cut)] + garbage
        path.write_bytes(torn)
        await check_cut(directory, len(torn) - start)
        log = SegmentLog(directory)
        assert not log.notices
        epoch = await log.claim("wf_a", this_process())
        await log.append(batch(1, epoch=epoch))
        await log.close()
        log = SegmentLog(directory)
        assert await all_offsets(log, "wf_a") == [0, 1]
        await log.close()

    asyncio.run(scenario())
    shutil.rmtree(directory)


async def test_a_hostile_value_in_a_damaged_batch_accuses_no_other_run(tmp_path):
    """A damaged line is not asked whose it was."""
    path, start = await fill(tmp_path, list(HOSTILE.values()))
    log = SegmentLog(tmp_path)
    await log.append(batch(0, workflow_id="wf_c"))
    await log.close()
    data = path.read_bytes()
    end = data.index(b"\n", start)
    for position in range(start, end, 5):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        log = SegmentLog(tmp_path, read_only=True)
        assert [(n.kind, n.workflow_id) for n in log.notices] == [("damaged_run", "wf_a")]
        assert [await log.last(run) for run in ("wf_b", "wf_c")] == [0, 0]
        await log.close()


def test_a_torn_batch_of_the_first_version_may_end_at_every_byte(tmp_path):
    """Its last batch has two lines, whose values look like lines."""
    directory = tmp_path / "torn"
    shutil.copytree(FIRST_VERSION / "torn", directory)
    known = json.loads((FIRST_VERSION / "torn.json").read_text())
    path = directory / "segments" / "00000001.ndjson"
    data = path.read_bytes()
    start = sum(len(line) for line in data.splitlines(keepends=True)[:-2])
    for end in range(start, len(data)):
        path.write_bytes(data[:end])
        index, notices = recover(StoreFiles(directory), read_only=True)
        assert [n.bytes for n in notices] == ([end - start] if end > start else [])
        assert {run.workflow_id: run.last for run in index.runs.values()} == {
            run: was["last"] for run, was in known["runs"].items()
        }
        assert index.end == (1, start)
