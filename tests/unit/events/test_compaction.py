"""Closed segments: their sidecars, and rewriting them without what was deleted; also when it is cut short."""

from __future__ import annotations

import asyncio
import shutil
import stat

import pytest

from agentflow.errors import LogCorrupt, RunGone
from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append
from agentflow.events.segments import SegmentLog, recovery, store
from agentflow.events.segments.compact import write_draft
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.recovery import recover
from agentflow.events.segments.removed import load_removed
from tests.unit.events.support import batch

LATER = 4_000_000_000_000_000
RUNS = [f"wf_{n}" for n in range(6)]


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    monkeypatch.setattr(store, "SEGMENT_BYTES", 4_000)


def last(run, offset):
    data = Unknown(type="workflow.completed", data={})
    event = Event(id="e", offset=offset, timestamp=iso(offset), type=data.type, workflow_id=run, data=data)
    return Append(run, 1, offset, [StoredEvent(offset, offset, data.type, encode(event))])


async def fill(directory, events=20):
    """Six runs, interleaved over several segments; all have ended."""
    log = SegmentLog(directory)
    for offset in range(events):
        for run in RUNS:
            await log.append(batch(offset, workflow_id=run))
    for run in RUNS:
        await log.append(last(run, events))
    return log


async def content(log):
    """All that can be read of a log."""
    rows = (await log.runs(order="asc")).items
    events = {r.workflow_id: await log.read(r.workflow_id, r.earliest_offset, 10_000) for r in rows}
    return (
        {
            r.workflow_id: (r.state, r.earliest_offset, r.last_offset, r.bytes, r.labels, r.epoch)
            for r in rows
        },
        events,
        (await log.query(limit=100_000)).items,
    )


def files(directory, ending):
    return sorted((directory / "segments").glob(f"*.{ending}"))


def size(directory):
    return sum(path.stat().st_size for path in files(directory, "ndjson"))


# -- sidecars


@pytest.fixture
async def closed(tmp_path):
    """A store that was filled and closed, and what it holds."""
    log = await fill(tmp_path)
    before = await content(log)
    await log.close()
    assert len(files(tmp_path, "index")) == len(files(tmp_path, "ndjson")) - 1 >= 4
    return tmp_path, before


async def reopened(directory, *kinds):
    log = SegmentLog(directory)
    assert [n.kind for n in log.notices] == list(kinds)
    return log


async def test_closed_segments_are_not_read_at_start(closed, monkeypatch):
    directory, before = closed
    parsed = []
    parse = recovery.parse_line
    monkeypatch.setattr(recovery, "parse_line", lambda line: parsed.append(1) or parse(line))
    log = await reopened(directory)
    newest = files(directory, "ndjson")[-1].read_bytes().count(b"\n")
    assert len(parsed) == newest
    assert await content(log) == before
    await log.close()


@pytest.mark.parametrize("harm", ["missing", "damaged", "empty", "another's"])
async def test_a_sidecar_that_does_not_fit_is_made_again(closed, harm):
    directory, before = closed
    first, second = files(directory, "index")[:2]
    whole = second.read_bytes()
    if harm == "missing":
        second.unlink()
    elif harm == "damaged":
        second.write_bytes(whole[:100] + b"?" + whole[101:])
    elif harm == "empty":
        second.write_bytes(b"")
    else:
        shutil.copy(first, second)
    log = await reopened(directory, *([] if harm == "missing" else ["rebuilt"]))
    assert await content(log) == before
    await log.close()
    assert second.read_bytes() == whole
    log = await reopened(directory)
    assert await content(log) == before
    await log.close()


async def test_the_sidecar_of_a_segment_before_it_was_rewritten_is_not_believed(tmp_path):
    log = await fill(tmp_path)
    old = {path: path.read_bytes() for path in files(tmp_path, "index")}
    for run in RUNS[:3]:
        await log.delete(run, 1)
    await log.sweep(LATER)
    before = await content(log)
    await log.close()
    for path, data in old.items():
        path.write_bytes(data)
    log = await reopened(tmp_path, *["rebuilt"] * len(old))
    assert await content(log) == before
    await log.close()


async def test_a_directory_that_takes_no_sidecars_is_read_all_the_same(closed):
    directory, before = closed
    for path in files(directory, "index"):
        path.unlink()
        path.mkdir()  # cannot be replaced by a file
    log = await reopened(directory, *["rebuilt"] * len(files(directory, "index")))
    assert await content(log) == before
    await log.close()


async def test_damage_in_a_closed_segment_is_seen_by_who_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SEGMENT_BYTES", 20_000)  # a change in its beginning does not touch its end
    log = await fill(tmp_path, events=60)
    events = (await content(log))[1]
    await log.close()
    harm(files(tmp_path, "ndjson")[0])
    log = await reopened(tmp_path)
    harmed = [run for run in RUNS if await is_damaged(log, run)]
    assert len(harmed) == 1
    for run in RUNS:
        if run not in harmed:
            assert await log.read(run, 0, 10_000) == events[run]
    await log.close()
    for path in files(tmp_path, "index"):
        path.unlink()
    log = await reopened(tmp_path, "damaged_run")
    assert [run for run in RUNS if await is_damaged(log, run)] == harmed
    await log.close()
    assert files(tmp_path, "index") == []  # found again at every start, not hidden by a cache


async def test_damage_at_the_end_of_a_closed_segment_is_found_at_start_and_harms_one_run(closed):
    directory, before = closed
    harm(files(directory, "ndjson")[0])  # as long as what the sidecar checks of it
    log = await reopened(directory, "rebuilt", "damaged_run")
    harmed = log.notices[1].workflow_id
    assert [run for run in RUNS if await is_damaged(log, run)] == [harmed]
    for run in RUNS:
        if run != harmed:
            assert await log.read(run, 0, 10_000) == before[1][run]
    await log.close()


def harm(path):
    """Change one event, not the first of its run, in a segment."""
    data = path.read_bytes()
    at = data.index(b"xxxx", data.index(b'"offset":1'))
    path.write_bytes(data[:at] + b"yyyy" + data[at + 4 :])


async def is_damaged(log, run):
    offset = 0
    try:
        while page := await log.read(run, offset, 7):
            offset = page[-1].offset + 1
    except LogCorrupt:
        return True
    return False


# -- rewriting


async def test_what_was_deleted_gives_its_space_back_and_the_rest_reads_the_same(tmp_path):
    log = await fill(tmp_path)
    full = size(tmp_path)
    for run in RUNS[:4]:
        await log.delete(run, 1)
    await log.trim("wf_5", 15)
    before = await content(log)
    swept = await log.sweep(LATER)
    assert swept.bytes == full - size(tmp_path)
    assert size(tmp_path) < full * 0.4
    assert await content(log) == before
    assert (await log.sweep(LATER)).bytes == 0  # nothing is left to do
    assert b"wf_0" not in b"".join(path.read_bytes() for path in files(tmp_path, "ndjson"))
    await log.close()
    for path in (tmp_path / "none", *files(tmp_path, "index")):
        path.unlink(missing_ok=True)
        log = await reopened(tmp_path)
        assert await content(log) == before
        with pytest.raises(RunGone):
            await log.run("wf_0")
        await log.close()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files(tmp_path, "ndjson"))


async def test_little_that_is_dead_is_left_until_there_is_more(tmp_path):
    log = await fill(tmp_path)
    before = size(tmp_path)
    await log.delete("wf_0", 1)  # a sixth
    assert (await log.sweep(LATER)).bytes == 0
    assert size(tmp_path) == before
    await log.delete("wf_1", 1)
    assert (await log.sweep(LATER)).bytes > 0
    await log.close()


async def test_a_store_of_deleted_runs_shrinks_to_nearly_nothing(tmp_path):
    log = await fill(tmp_path)
    for run in RUNS:
        await log.delete(run, 1)
    await log.sweep(LATER)
    assert size(tmp_path) < 100 * len(files(tmp_path, "ndjson"))
    await log.append(batch(0, workflow_id="wf_new"))
    await log.close()
    log = await reopened(tmp_path)
    assert list((await content(log))[1]) == ["wf_new"]
    await log.close()


async def test_reads_and_appends_go_on_while_segments_are_rewritten(tmp_path):
    log = await fill(tmp_path, events=60)
    for run in RUNS[:3]:
        await log.delete(run, 1)
    before = {run: await log.read(run, 0, 1_000) for run in RUNS[3:]}
    sweeping = asyncio.ensure_future(log.sweep(LATER))
    reads = offset = 0
    while not sweeping.done():
        assert await log.read("wf_3", 0, 1_000) == before["wf_3"]
        await log.append(batch(offset, workflow_id="wf_live"))
        offset, reads = offset + 1, reads + 1
    assert (await sweeping).bytes > 0
    assert reads > 1
    assert {run: await log.read(run, 0, 1_000) for run in RUNS[3:]} == before
    assert await log.last("wf_live") == offset - 1
    await log.close()


async def test_two_sweeps_at_once_do_the_work_of_one(tmp_path):
    log = await fill(tmp_path, events=60)
    for run in RUNS[:3]:
        await log.delete(run, 1)
    before = await content(log)
    swept = await asyncio.gather(*(log.sweep(LATER) for _ in range(4)))
    assert [s.bytes > 0 for s in swept] == [True, False, False, False]
    assert await content(log) == before
    await log.close()
    log = await reopened(tmp_path)
    assert await content(log) == before
    await log.close()


async def test_closing_while_segments_are_rewritten_leaves_the_store_whole(tmp_path):
    log = await fill(tmp_path, events=60)
    for run in RUNS[:3]:
        await log.delete(run, 1)
    before = await content(log)
    sweeping = asyncio.ensure_future(log.sweep(LATER))
    await asyncio.sleep(0.003)
    await log.close()
    await asyncio.gather(sweeping, return_exceptions=True)
    log = await reopened(tmp_path)
    assert await content(log) == before
    await log.close()


async def test_a_run_that_is_trimmed_while_its_segment_is_rewritten_reads_right(tmp_path):
    log = await fill(tmp_path, events=60)
    for run in RUNS[:4]:
        await log.delete(run, 1)
    sweeping = asyncio.ensure_future(log.sweep(LATER))
    trimmed = 0
    for before in range(1, 60, 3):
        trimmed = await log.trim("wf_4", before)
        assert [e.offset for e in await log.read("wf_4", trimmed, 1_000)] == list(range(trimmed, 61))
    await sweeping
    assert [e.offset for e in await log.read("wf_4", trimmed, 1_000)] == list(range(trimmed, 61))
    assert [e.offset for e in await log.read("wf_5", 0, 1_000)] == list(range(61))
    await log.close()


async def test_a_rewrite_that_is_cut_short_changes_nothing(tmp_path):
    """What a crash leaves: a draft half or wholly written, or the new file in its place without a sidecar."""
    log = await fill(tmp_path / "log")
    for run in RUNS[:4]:
        await log.delete(run, 1)
    before = await content(log)
    await log.close()
    for cut_short in ("half a draft", "a draft", "in its place"):
        directory = tmp_path / cut_short.replace(" ", "_")
        shutil.copytree(tmp_path / "log", directory)
        layout = Layout(directory)
        draft = write_draft(layout, recover(layout, load_removed(layout.removed, None)[0], None).index, 2)
        if cut_short == "half a draft":
            draft.path.write_bytes(draft.path.read_bytes()[:1_000])
        elif cut_short == "in its place":
            draft.path.rename(layout.segment(2))
        again = SegmentLog(directory)
        assert await content(again) == before
        assert files(directory, "new") == []
        await again.sweep(LATER)
        assert await content(again) == before
        await again.close()


async def test_a_segment_is_not_rewritten_while_a_run_is_damaged(tmp_path):
    """Somebody may want to mend it by hand, with every line that there is."""
    log = await fill(tmp_path)
    await log.close()
    harm(files(tmp_path, "ndjson")[0])
    for sidecar in files(tmp_path, "index"):
        sidecar.unlink()
    log = await reopened(tmp_path, "damaged_run")
    before = size(tmp_path)
    for run in RUNS:
        if run != log.notices[0].workflow_id:
            await log.delete(run, 1)
    assert (await log.sweep(LATER)).bytes == 0
    assert size(tmp_path) == before
    await log.close()


# -- removals


async def test_a_torn_removal_was_never_acknowledged_and_is_cut_off(tmp_path):
    log = await fill(tmp_path)
    await log.delete("wf_0", 1)
    length = (tmp_path / "removed.ndjson").stat().st_size
    await log.delete("wf_1", 1)
    await log.close()
    written = (tmp_path / "removed.ndjson").read_bytes()
    for end in (length + 1, length + 30, len(written) - 1):
        (tmp_path / "removed.ndjson").write_bytes(written[:end])
        Layout(tmp_path).closed.unlink()  # the process did not come to close the store
        log = await reopened(tmp_path, "torn_tail")
        assert {r.workflow_id for r in (await log.runs()).items} == set(RUNS) - {"wf_0"}
        assert await is_damaged(log, "wf_1") is False
        await log.close()
    assert (tmp_path / "removed.ndjson").stat().st_size == length


async def test_a_damaged_removal_before_an_intact_one_is_refused(tmp_path):
    log = await fill(tmp_path)
    await log.delete("wf_0", 1)
    await log.delete("wf_1", 1)
    await log.close()
    path = tmp_path / "removed.ndjson"
    path.write_bytes(path.read_bytes().replace(b"wf_0", b"wf_2"))
    with pytest.raises(LogCorrupt, match="which run was deleted cannot be told"):
        SegmentLog(tmp_path)
