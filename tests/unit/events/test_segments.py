"""Segments: their form, and what opening does about a torn end, damage, a full disk, another process."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import shutil
import stat
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError, LogCorrupt, RunNotFound, StoreError
from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Append
from agentflow.events.owner import this_process
from agentflow.events.segments import SegmentLog, store
from agentflow.events.segments.lines import Head, encode_line, parse_line
from tests.unit.events.support import all_offsets, batch, event, start_appender


def segment(directory, number=1):
    return directory / "segments" / f"{number:08d}.ndjson"


async def make(directory, *steps):
    """A log with these batches, each synced by itself."""
    log = SegmentLog(directory)
    for step in steps:
        await log.append(step)
    await log.close()


def three_batches(directory):
    """Run a: 0, 1–2; run b: 0, in three syncs; the bytes of the segment."""
    asyncio.run(make(directory, batch(0), batch(1, 2), batch(0, workflow_id="wf_b")))
    return segment(directory).read_bytes()


def test_a_line_is_a_batch_with_its_place_and_its_checksum(tmp_path):
    lines = three_batches(tmp_path).splitlines()
    decoded = [json.loads(line) for line in lines]
    assert [list(line) for line in decoded] == [
        ["c", "v", "b", "s", "w", "r", "m", "e"],
        ["c", "v", "b", "s", "p", "w", "o", "m", "e"],
        ["c", "v", "b", "s", "p", "w", "r", "m", "e"],
    ]
    assert [(d["v"], d["b"], d["s"], d["w"]) for d in decoded] == [
        (2, 1, 0, "wf_a"),
        (2, 2, 1, "wf_a"),
        (2, 3, 2, "wf_b"),
    ]
    assert [d.get("p") for d in decoded] == [None, ["wf_a", 0], ["wf_a", 1]]
    assert [e["offset"] for e in decoded[1]["e"]] == [1, 2]
    assert decoded[1]["m"] == [[e.ts, e.type, len(e.body)] for e in (event(1), event(2))]
    assert decoded[0]["e"] == [json.loads(event(0).body)]
    assert decoded[0]["r"]["state"] == "running"
    assert set(decoded[0]["r"]["run"]) == {"name", "definition_hash", "created_at", "labels"}
    for line in lines:
        assert line.startswith(b'{"c":"%08x",' % zlib.crc32(line[16:]))


def one_line(events, number=1, synced=0, **head):
    """A line as it is written, without its end."""
    meta = [(e.ts, e.type, len(e.body)) for e in events]
    return encode_line(Head(b=number, s=synced, w="w", o=events[0].offset, m=meta, **head), events).raw


@given(st.binary(max_size=20), st.integers(0, 10**9), st.integers(0, 200), st.integers(0, 255))
def test_no_changed_byte_passes(noise, number, position, byte):
    events = [StoredEvent(n, n, "x", b'{"data":"%b"}' % noise.hex().encode()) for n in (4, 5)]
    line = one_line(events, number)
    parsed = parse_line(line)
    assert parsed is not None
    assert parsed.events(lambda name: b"") == events
    position %= len(line)
    changed = line[:position] + bytes([byte]) + line[position + 1 :]
    if changed[6:] != line[6:]:
        assert parse_line(changed) is None


def test_a_store_of_a_newer_version_is_refused(tmp_path):
    three_batches(tmp_path)
    newer = segment(tmp_path).read_bytes().splitlines()[0][16:].replace(b'"v":2', b'"v":4')
    killed(tmp_path)
    for checksum in (b"%08x" % zlib.crc32(newer), b"0123456789abcdef"):  # which may be another one then
        line = b'{"c":"%b",%b\n' % (checksum, newer)
        segment(tmp_path).write_bytes(line)
        for read_only in (False, True):
            with pytest.raises(ConfigurationError, match=r"newer agentflow .format 4") as caught:
                SegmentLog(tmp_path, read_only=read_only)
            assert "upgrade" in caught.value.hint
        assert segment(tmp_path).read_bytes() == line  # nothing is cut off


def test_files_are_for_their_owner_alone(tmp_path):
    directory = tmp_path / "new" / "log"
    three_batches(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(segment(directory).stat().st_mode) == 0o600


# -- a torn end


def killed(directory):
    """The process did not come to close the store."""
    (directory / "closed").unlink()


async def check_prefix(directory, cut, whole):
    """After reopening: whole batches only, and the log goes on."""
    log = SegmentLog(directory)
    assert [(n.kind, n.bytes) for n in log.notices] == ([("torn_tail", cut)] if cut else [])
    runs = [row.workflow_id for row in (await log.runs(order="asc")).items]
    found = {run: await all_offsets(log, run) for run in runs}
    assert found == whole
    last = await log.claim("wf_a", this_process())
    start = len(whole.get("wf_a", []))
    await log.append(batch(start, epoch=last))
    await log.close()
    again = SegmentLog(directory)
    assert not again.notices
    assert await all_offsets(again, "wf_a") == list(range(start + 1))
    await again.close()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_torn_last_batch_is_cut_off_wherever_it_is_torn(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("torn")
    written = three_batches(directory)
    ends = [0, *(m.end() for m in re.finditer(b"\n", written))]
    commits = ends
    length = data.draw(st.integers(0, len(written)), label="length")
    garbage = data.draw(st.sampled_from([b"", b"\0" * 700, b'{"c":"', b"\n"]), label="garbage")
    torn = written[:length] + garbage
    segment(directory).write_bytes(torn)
    killed(directory)
    good = max(c for c in commits if torn[:c] == written[:c])
    expected = [{}, {"wf_a": [0]}, {"wf_a": [0, 1, 2]}, {"wf_a": [0, 1, 2], "wf_b": [0]}]
    asyncio.run(check_prefix(directory, len(torn) - good, expected[commits.index(good)]))
    shutil.rmtree(directory)


def test_a_last_batch_with_a_hole_in_it_is_torn_too(tmp_path):
    """Pages of an unsynced write reach the disk in any order."""
    asyncio.run(make(tmp_path, batch(0), batch(1, 5, size=3_000)))
    data = bytearray(segment(tmp_path).read_bytes())
    start = data.index(b"\n") + 1
    data[start + 4_000 : start + 8_000] = bytes(4_000)
    segment(tmp_path).write_bytes(data)
    killed(tmp_path)
    asyncio.run(check_prefix(tmp_path, len(data) - start, {"wf_a": [0]}))


@pytest.mark.parametrize("harm", ["flipped", "cut short", "line cut off", "segment lost"])
def test_a_bad_end_of_a_store_that_was_closed_in_order_is_damage(tmp_path, harm):
    """There is no torn end behind an orderly one: what is bad there was acknowledged."""
    data = three_batches(tmp_path)
    if harm == "flipped":
        path, data = (
            segment(tmp_path),
            data.replace(b'"offset":0,"timestamp":"1970', b'"offset":0,"timestamp":"1971'),
        )
        path.write_bytes(data)
    elif harm == "segment lost":
        segment(tmp_path).unlink()
    else:
        segment(tmp_path).write_bytes(
            data[:-2] if harm == "cut short" else data[: data[:-1].rindex(b"\n") + 1]
        )
    before = segment(tmp_path).read_bytes() if segment(tmp_path).exists() else None
    for _ in range(2):  # the first refusal changes nothing
        with pytest.raises(LogCorrupt):
            asyncio.run(read_of(tmp_path, "wf_b"))
    assert before is None or segment(tmp_path).read_bytes().startswith(before)


async def test_damage_stays_damage_also_when_the_next_process_is_killed(tmp_path):
    """It may be killed before, or after, it has appended something behind the damaged end."""
    await make(tmp_path, batch(0, 3), batch(0, workflow_id="wf_b"), batch(1, workflow_id="wf_b"))
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[:-5])
    for appended in (0, 0, 1, 2):
        crashed = tmp_path.with_name("crashed")
        log = SegmentLog(tmp_path)
        if appended:
            epoch = await log.claim("wf_a", this_process())
            await log.append(batch(2 + appended, epoch=epoch))
        shutil.copytree(tmp_path, crashed)  # what a killed process would leave
        await log.close()
        shutil.rmtree(tmp_path)
        crashed.rename(tmp_path)
        again = SegmentLog(tmp_path)
        with pytest.raises(LogCorrupt, match="wf_b is damaged from offset 1"):
            await again.run("wf_b")
        assert await all_offsets(again, "wf_a") == list(range(3 + appended))
        await again.close()


async def test_a_line_end_that_is_missing_is_put_back(tmp_path):
    await make(tmp_path, batch(0), batch(0, workflow_id="wf_b"), batch(1, workflow_id="wf_b"))
    data = segment(tmp_path).read_bytes()
    segment(tmp_path).write_bytes(data[:-1])
    await SegmentLog(tmp_path).close()
    assert segment(tmp_path).read_bytes() == data
    await read_of(tmp_path, "wf_b")  # and with it the line is whole


async def read_of(directory, run):
    log = SegmentLog(directory)
    try:
        await log.run(run)
    finally:
        await log.close()


def test_a_note_of_an_orderly_end_that_is_damaged_itself_does_no_harm(tmp_path):
    three_batches(tmp_path)
    note = tmp_path / "closed"
    note.write_bytes(note.read_bytes().replace(b"0", b"1"))
    asyncio.run(check_prefix(tmp_path, 0, {"wf_a": [0, 1, 2], "wf_b": [0]}))
    assert note.exists()
    note.write_bytes(b"")
    segment(tmp_path).write_bytes(segment(tmp_path).read_bytes()[:-2])
    with pytest.raises(LogCorrupt, match="segment 1 is damaged"):  # it does not say whose batch was the last
        asyncio.run(read_of(tmp_path, "wf_a"))


def test_bytes_behind_the_orderly_end_are_the_rest_of_a_write_that_failed(tmp_path):
    data = three_batches(tmp_path)
    segment(tmp_path).write_bytes(data + data[:100].replace(b'"b":1', b'"b":4'))
    asyncio.run(check_prefix(tmp_path, 100, {"wf_a": [0, 1, 2], "wf_b": [0]}))


# -- damage


def damage(directory, find, replace, number=1):
    path = segment(directory, number)
    data = path.read_bytes()
    assert data.count(find) >= 1
    path.write_bytes(data.replace(find, replace, 1))


async def test_a_damaged_batch_quarantines_its_run_and_no_other(tmp_path):
    await make(tmp_path, batch(0, 2), batch(0, workflow_id="wf_b"), batch(2, 2), batch(1, workflow_id="wf_b"))
    path = segment(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"xxx", b"xyx", 1)  # offsets 2 and 3 of run a
    path.write_bytes(b"".join(lines))
    log = SegmentLog(tmp_path)
    assert [e.offset for e in await log.read("wf_a")] == [0, 1]
    assert [(n.kind, n.workflow_id) for n in log.notices] == [("damaged_run", "wf_a")]
    for call in (log.read("wf_a", 2), log.last("wf_a"), log.run("wf_a"), log.claim("wf_a", this_process())):
        with pytest.raises(LogCorrupt, match="wf_a is damaged from offset 2"):
            await call
    with pytest.raises(LogCorrupt):
        await log.append(batch(2))
    assert await all_offsets(log, "wf_b") == [0, 1]
    epoch = await log.claim("wf_b", this_process())
    await log.append(batch(2, workflow_id="wf_b", epoch=epoch))
    page = await log.query()
    found = [(run, e.offset) for run, e in page.items]
    assert found == [("wf_a", 0), ("wf_a", 1), ("wf_b", 0), ("wf_b", 1), ("wf_b", 2)]
    assert page.damaged == ("wf_a",)
    await log.close()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
async def test_whatever_byte_of_a_batch_is_changed_only_its_run_is_damaged(tmp_path, closed):
    """Also its length, its run, its number: the next line says whose batch it was."""
    steps = [batch(0), batch(0, workflow_id="wf_b"), batch(1), batch(1, workflow_id="wf_b"), batch(2)]
    await make(tmp_path, *steps)
    if not closed:
        killed(tmp_path)
    data = segment(tmp_path).read_bytes()
    start, end = [m.end() for m in re.finditer(b"\n", data)][1:3]  # the line of offset 1 of run a
    for position in range(start, end - 1):
        for changed in (data[position] ^ 1, 0x0A):
            segment(tmp_path).write_bytes(data[:position] + bytes([changed]) + data[position + 1 :])
            log = SegmentLog(tmp_path, read_only=True)
            assert [(n.kind, n.workflow_id) for n in log.notices] == [("damaged_run", "wf_a")]
            with pytest.raises(LogCorrupt, match="wf_a is damaged from offset 1"):
                await log.read("wf_a", 1)
            assert await all_offsets(log, "wf_b") == [0, 1]
            page = await log.query()
            assert ([e.offset for _, e in page.items], page.damaged) == ([0, 0, 1], ("wf_a",))
            await log.close()


async def test_a_query_names_a_damaged_run_in_the_pages_where_its_events_are_missing(tmp_path):
    """durability 6: a reader with a cursor passes nothing over in silence, and a list neither."""
    steps = [batch(n // 2, workflow_id=f"wf_{'ab'[n % 2]}") for n in range(10)]
    await make(tmp_path, *steps, batch(0, workflow_id="wf_c"))
    lines = segment(tmp_path).read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(
        b"xxx", b"xyx", 1
    )  # offset 2 of run a, events of which stand in lines 0, 2, … 8
    segment(tmp_path).write_bytes(b"".join(lines))
    log = SegmentLog(tmp_path)
    told, cursor = [], None
    while (page := await log.query(cursor=cursor, limit=2)).items:
        told.append(([(run, e.offset) for run, e in page.items], page.damaged))
        cursor = page.next_cursor
    assert told == [
        ([("wf_a", 0), ("wf_b", 0)], ()),
        ([("wf_a", 1), ("wf_b", 1)], ()),
        ([("wf_b", 2), ("wf_b", 3)], ("wf_a",)),
        ([("wf_b", 4), ("wf_c", 0)], ("wf_a",)),
    ]
    assert (await log.query(["nothing.*"])).damaged == ("wf_a",)
    for wanted in ({}, {"state": "paused"}, {"label": ("a", "b")}, {"name": "none"}):
        assert (await log.runs(**wanted)).damaged == ("wf_a",)
    assert (await log.runs(since=2)).damaged == ()
    await log.close()


@pytest.mark.parametrize("junk", [b"\n", b"\0" * 50, b'{"c":"0'])
async def test_junk_behind_an_older_segment_loses_nothing(tmp_path, monkeypatch, junk):
    """The numbers of the batches before and behind it follow each other: no batch is missing there."""
    monkeypatch.setattr(store, "SEGMENT_BYTES", 1_000)
    await make(tmp_path, *(batch(n) for n in range(8)))
    killed(tmp_path)
    assert segment(tmp_path, 2).exists()
    with segment(tmp_path).open("ab") as file:
        file.write(junk)
    log = SegmentLog(tmp_path)
    assert not log.notices
    assert await all_offsets(log, "wf_a") == list(range(8))
    page = await log.query()
    assert ([e.offset for _, e in page.items], page.damaged) == (list(range(8)), ())
    await log.close()


async def test_a_damaged_end_of_a_run_is_not_mistaken_for_a_shorter_run(tmp_path):
    await make(tmp_path, batch(0), batch(1), batch(0, workflow_id="wf_b"))
    damage(tmp_path, b'"offset":1,"timestamp":"1970', b'"offset":1,"timestamp":"1971')
    log = SegmentLog(tmp_path)
    with pytest.raises(LogCorrupt):
        await log.last("wf_a")
    await log.close()


@pytest.mark.parametrize("harm", ["two lines", "two lines in one", "all but one"])
def test_a_store_is_refused_when_whose_event_is_lost_cannot_be_told(tmp_path, harm):
    steps = [batch(0), batch(1), batch(0, workflow_id="wf_b"), batch(1, workflow_id="wf_b"), batch(2)]
    asyncio.run(make(tmp_path, *steps))
    lines = segment(tmp_path).read_bytes().splitlines(keepends=True)
    if harm == "two lines":
        lines[1], lines[2] = lines[1].replace(b"xxx", b"xyx"), lines[2].replace(b"xxx", b"xyx")
    elif harm == "two lines in one":
        lines[1] = lines[1][:-1] + b"?"
    else:
        lines[1:4] = [line.replace(b"xxx", b"xyx") for line in lines[1:4]]
    before = b"".join(lines)
    segment(tmp_path).write_bytes(before)
    with pytest.raises(LogCorrupt, match="segment 1 is damaged") as caught:
        SegmentLog(tmp_path)
    assert caught.value.hint
    assert segment(tmp_path).read_bytes() == before  # left as it is


async def test_a_lost_line_is_attributed_and_lost_or_repeated_batches_are_refused(tmp_path):
    steps = [batch(n // 2, workflow_id=f"wf_{'ab'[n % 2]}") for n in range(6)]
    await make(tmp_path, *steps)
    written = segment(tmp_path).read_bytes().splitlines(keepends=True)
    for lost in range(6):  # of the last one, the note of the closing says whose it was
        segment(tmp_path).write_bytes(b"".join(written[:lost] + written[lost + 1 :]))
        log = SegmentLog(tmp_path, read_only=True)
        run, other = ("wf_a", "wf_b") if lost % 2 == 0 else ("wf_b", "wf_a")
        with pytest.raises(LogCorrupt, match=f"{run} is damaged from offset {lost // 2}"):
            await log.run(run)
        assert await all_offsets(log, other) == [0, 1, 2]
        await log.close()
    for kept in ([0, 1, 2, 5], [0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 5], [0, 1, 3, 2, 4, 5]):
        segment(tmp_path).write_bytes(b"".join(written[n] for n in kept))
        with pytest.raises(LogCorrupt):
            SegmentLog(tmp_path)
    segment(tmp_path).write_bytes(b"".join(written))
    await SegmentLog(tmp_path).close()


async def test_damage_that_happens_while_the_log_is_open_is_seen_by_the_reader(tmp_path):
    log = SegmentLog(tmp_path)
    await log.append(batch(0))
    await log.append(batch(1, 2))
    damage(tmp_path, b'"offset":1,"timestamp":"1970', b'"offset":1,"timestamp":"1971')
    assert [e.offset for e in await log.read("wf_a")] == [0]
    for call in (log.read("wf_a", 1), log.read("wf_a", 2), log.run("wf_a"), log.trim("wf_a", 1)):
        with pytest.raises(LogCorrupt, match="damaged from offset 1"):
            await call
    with pytest.raises(LogCorrupt):
        await log.append(batch(3))
    await log.close()


async def test_damage_that_a_query_meets_quarantines_the_run_and_is_not_passed_over(tmp_path):
    log = SegmentLog(tmp_path)
    await log.append(batch(0))
    await log.append(batch(1, 2))
    await log.append(batch(0, 2, workflow_id="wf_b"))
    damage(tmp_path, b'"offset":1,"timestamp":"1970', b'"offset":1,"timestamp":"1971')
    for _ in range(2):
        page = await log.query()
        assert [(run, e.offset) for run, e in page.items] == [("wf_a", 0), ("wf_b", 0), ("wf_b", 1)]
        assert page.damaged == ("wf_a",)
    with pytest.raises(LogCorrupt, match="damaged from offset 1"):
        await log.read("wf_a", 2)
    await log.close()


# -- many segments, the lock, the disk


async def test_a_long_log_lies_in_several_segments(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SEGMENT_BYTES", 10_000)
    log = SegmentLog(tmp_path)
    for n in range(100):
        await log.append(batch(n, size=500))
    names = sorted(p.name for p in (tmp_path / "segments").glob("*.ndjson"))
    assert names == [f"{n:08d}.ndjson" for n in range(1, len(names) + 1)]
    assert 5 <= len(names) <= 10
    before = await log.read("wf_a"), [e for _, e in (await log.query()).items]
    assert before[0] == before[1] == [event(n, 500) for n in range(100)]
    await log.close()
    again = SegmentLog(tmp_path)
    assert await again.read("wf_a") == before[0]
    cursor, found = None, []
    while (page := await again.query(cursor=cursor, limit=7)).items:
        found += [e.offset for _, e in page.items]
        cursor = page.next_cursor
    assert found == list(range(100))
    await again.close()
    segment(tmp_path, 2).unlink()
    with pytest.raises(LogCorrupt, match=r"00000002.ndjson is missing"):
        SegmentLog(tmp_path)


def test_a_directory_has_one_process(tmp_path):
    with start_appender(f"file:{tmp_path}", "wf_k") as process:
        process.stdout.readline()
        with pytest.raises(ConfigurationError, match="in use by another process") as caught:
            SegmentLog(tmp_path)
        assert "sqlite:" in caught.value.hint
        process.kill()
    asyncio.run(check_dead_owner(tmp_path))


async def check_dead_owner(directory):
    log = SegmentLog(directory)
    assert await log.claim("wf_k", this_process()) == 2
    end = await log.last("wf_k") + 1
    await log.append(batch(end, epoch=2, workflow_id="wf_k"))
    await log.close()
    again = SegmentLog(directory)
    assert (await again.run("wf_k")).epoch == 2
    await again.close()


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            SegmentLog(path)


async def test_a_full_disk_takes_nothing_and_the_log_goes_on_when_there_is_space(tmp_path):
    log = SegmentLog(tmp_path)
    await log.append(batch(0, 2))
    size = segment(tmp_path).stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5_000, limits[1]))
    try:
        futures = [log.append(batch(2, 3, size=4_000)), log.append(batch(5))]
        results = await asyncio.gather(*futures, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert all(isinstance(r, StoreError) for r in results)
    assert results[0].hint
    assert log.failure is None
    assert segment(tmp_path).stat().st_size == size
    await log.append(batch(2, 3, size=4_000))
    assert await all_offsets(log, "wf_a") == [0, 1, 2, 3, 4]
    await log.close()


async def test_what_cannot_be_a_line_fails_alone(tmp_path):
    log = SegmentLog(tmp_path)
    bad = batch(0, workflow_id="wf_bad")
    wrong = [
        StoredEvent(0, 1, "output", b"{\n}"),
        StoredEvent(0, 1, "output", "text"),
        StoredEvent(0, 2**70, "output", b"{}"),
    ]
    futures = [
        log.append(batch(0)),
        *(log.append(Append("wf_bad", 1, 0, [event], None, bad.run)) for event in wrong),
        log.append(batch(1)),
    ]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(r) for r in results] == [type(None), StoreError, StoreError, StoreError, type(None)]
    assert await all_offsets(log, "wf_a") == [0, 1]
    with pytest.raises(RunNotFound):
        await log.last("wf_bad")
    await log.close()


async def test_a_name_of_a_blob_never_leaves_its_directory(tmp_path):
    (tmp_path / "secret").write_text("s")
    log = SegmentLog(tmp_path / "log")
    assert await log.get_blob("../../secret") is None
    assert await log.get_blob("sha256:../../secret") is None
    await log.put_definition("../../definition", b"x")
    assert await log.get_definition("../../definition") == b"x"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "secret"]
    await log.close()
