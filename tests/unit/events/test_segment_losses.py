"""What is done to the files of a `file:` store behind its back is noticed: lost, foreign and stray files.

Whatever still answers, answers as before; a run that lost something is named by lists and by queries.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil

import pytest

from agentflow.errors import AgentflowError, LogCorrupt, RunGone, StorageUnavailable
from agentflow.events.log import Snapshot
from agentflow.events.owner import this_process
from agentflow.events.segments import SegmentLog, store
from tests.faults import shim
from tests.unit.events.support import all_offsets, batch
from tests.unit.events.test_segment_files import LATER, ended, segments

RUNS = ("wf_a", "wf_b", "wf_c", "wf_d")


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch):
    monkeypatch.setattr(store, "SEGMENT_BYTES", 1_500)


async def fill(directory, seed=1, runs=RUNS):
    """Groups of batches of four runs; others end, are deleted, and leave gaps between the segments."""
    seeded, ends = random.Random(seed), dict.fromkeys(runs, 0)
    log = SegmentLog(directory)
    for k in range(24):
        futures = []
        for run in seeded.sample(runs, seeded.randint(1, 4)):
            count = seeded.randint(1, 3)
            futures.append(log.append(batch(ends[run], count, workflow_id=run)))
            ends[run] += count
        await asyncio.gather(*futures)
        if k % 7 == 3:
            for n in range(4):
                await log.append(ended(f"{runs[0]}_{k}_{n}"))
                await log.delete(f"{runs[0]}_{k}_{n}", 1)
        if k % 12 == 11:
            await log.sweep(0)
    await log.close()


async def answers(directory):
    """The events of each run, None of one that is refused; every way to ask says the same."""
    log = SegmentLog(directory, read_only=True)
    try:
        page = await log.runs(limit=500)
        found: dict[str, list[bytes] | None] = dict.fromkeys(page.damaged)
        for row in page.items:
            if row.workflow_id not in page.damaged:
                found[row.workflow_id] = [e.body for e in await log.read(row.workflow_id, 0, 10_000)]
        stream, named, cursor = [], set(), None
        while (events := await log.query(cursor=cursor, limit=7)).items:
            stream += events.items
            named |= set(events.damaged)
            cursor = events.next_cursor
        assert {run for run, bodies in found.items() if bodies is None} == named | set(events.damaged)
        for run, bodies in found.items():
            assert bodies is None or [e.body for of, e in stream if of == run] == bodies
        return found, {n.kind for n in log.notices}
    finally:
        await log.close()


def check_harm(directory, known, harm):
    """Do the harm to a copy; what it then answers is as before, refused, or a torn tail that is told."""
    copy = directory.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy)
    harm(copy)
    try:
        found, notices = asyncio.run(answers(copy))
    except LogCorrupt:
        return "refused"
    for run, bodies in known.items():
        now = found[run]
        assert now in (None, bodies) or ("torn_tail" in notices and bodies[: len(now)] == now), run
    assert all(run in known or bodies is None for run, bodies in found.items())
    return "noticed" if notices else "harmless"


@pytest.fixture
def known(tmp_path):
    asyncio.run(fill(tmp_path / "log"))
    found, _ = asyncio.run(answers(tmp_path / "log"))
    paths = segments(tmp_path / "log")
    assert len(paths) > 8
    assert len(paths) < int(paths[-1].stem)  # some were removed
    return found


def test_a_segment_that_lost_its_tail_is_never_taken_for_a_shorter_log(tmp_path, known):
    """Also before segments that were removed: the removal says with which batch the one before ends."""
    for path in segments(tmp_path / "log"):
        lines = path.read_bytes().splitlines(keepends=True)
        for kept in (b"", b"".join(lines[:-1]), b"".join(lines[:-2]), path.read_bytes()[:-30]):

            def harm(copy, name=path.name, kept=kept):
                (copy / "segments" / name).write_bytes(kept)

            assert check_harm(tmp_path / "log", known, harm) != "harmless"


def test_lost_exchanged_and_repeated_lines_are_noticed(tmp_path, known):
    for path in segments(tmp_path / "log")[::3]:
        lines = path.read_bytes().splitlines(keepends=True)
        for k in range(len(lines) - 1):
            for changed in (
                [*lines[:k], *lines[k + 1 :]],
                [*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]],
                [*lines[: k + 1], *lines[k:]],
            ):

                def harm(copy, name=path.name, changed=changed):
                    (copy / "segments" / name).write_bytes(b"".join(changed))

                check_harm(tmp_path / "log", known, harm)


def test_deleted_segments_are_refused_and_foreign_ones_never_taken_for_their_own(tmp_path, known):
    """Which numbers a foreign segment shares with the one in whose place it stands is a matter of timing.

    Where they all fit but for one batch, that one counts as lost: its run is quarantined, and so are the
    foreign ones. Else the store is refused.
    """
    asyncio.run(fill(tmp_path / "other", runs=tuple(f"wf_other_{c}" for c in "abcd")))
    paths = segments(tmp_path / "log")
    for path in paths:
        name = path.name
        assert check_harm(tmp_path / "log", known, lambda to: (to / "segments" / name).unlink()) == "refused"  # noqa: B023
        for other in (tmp_path / "other" / "segments" / name, paths[0], paths[-1]):
            if other.exists() and other != path:

                def harm(copy, name=name, other=other):
                    shutil.copy(other, copy / "segments" / name)

                assert check_harm(tmp_path / "log", known, harm) != "harmless"


async def test_a_segment_of_another_store_with_the_same_numbers_is_refused(tmp_path):
    """Every number fits; that the first line names another batch as its predecessor gives it away."""
    for run in ("wf_a", "wf_b"):
        log = SegmentLog(tmp_path / run)
        for offset in range(12):
            await log.append(batch(offset, workflow_id=run))
        await log.close()
    second = [segments(tmp_path / run)[1] for run in ("wf_a", "wf_b")]
    shutil.copy(second[1], second[0])
    with pytest.raises(LogCorrupt, match="does not continue the one before"):
        SegmentLog(tmp_path / "wf_a")


async def test_a_last_batch_that_is_missing_is_named_by_a_query_that_comes_to_the_end(tmp_path):
    log = SegmentLog(tmp_path)
    for run in ("wf_a", "wf_b"):
        await log.append(batch(0, workflow_id=run))
    await log.append(batch(1, workflow_id="wf_b"))
    await log.close()
    path = segments(tmp_path)[0]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    log = SegmentLog(tmp_path)
    page = await log.query()
    assert ([(run, e.offset) for run, e in page.items], page.damaged) == (
        [("wf_a", 0), ("wf_b", 0)],
        ("wf_b",),
    )
    assert (await log.query(cursor=page.next_cursor)).damaged == ()  # it was told
    epoch = await log.claim("wf_a", this_process())
    await log.append(batch(1, epoch=epoch))
    assert (await log.query(cursor=page.next_cursor)).damaged == ("wf_b",)
    await log.close()


async def test_stray_files_are_left_alone(tmp_path):
    log = SegmentLog(tmp_path)
    await log.append(batch(0))
    await log.put_snapshot("wf_a", "fold", 0, b"state")
    await log.close()
    strays = [segments(tmp_path)[0].with_name(name) for name in ("notes.ndjson", "00000001 copy.ndjson")]
    strays.append(next(tmp_path.rglob("*.snapshot")).with_name("copy.snapshot"))
    for stray in strays:
        stray.write_text("a note")
    log = SegmentLog(tmp_path)
    assert log.notices == []
    assert await all_offsets(log, "wf_a") == [0]
    assert await log.latest_snapshot("wf_a", "fold") == Snapshot(0, b"state")
    await log.close()
    assert all(stray.read_text() == "a note" for stray in strays)


# -- retention


async def test_a_run_that_goes_while_it_is_read_is_gone_and_no_error_of_the_disk(tmp_path, monkeypatch):
    log = SegmentLog(tmp_path)
    for n in range(6):
        await log.append(ended(f"wf_{n}"))
    loop, pread = asyncio.get_running_loop(), log._reader._pread

    def remove_first(place, length):
        """The writer thread deletes the run and unlinks its segment between two steps of the reader."""
        monkeypatch.setattr(log._reader, "_pread", pread)
        asyncio.run_coroutine_threadsafe(log.delete("wf_0", 1), loop).result(10)
        asyncio.run_coroutine_threadsafe(log.delete("wf_1", 1), loop).result(10)
        asyncio.run_coroutine_threadsafe(log._write(lambda store: store.drop_segments()), loop).result(10)
        return pread(place, length)

    monkeypatch.setattr(log._reader, "_pread", remove_first)
    assert segments(tmp_path)[0].name == "00000001.ndjson"
    with pytest.raises(RunGone):
        await log.read("wf_0")
    assert segments(tmp_path)[0].name != "00000001.ndjson"
    assert await all_offsets(log, "wf_5") == [0, 1, 2]
    await log.close()


async def test_readers_beside_retention_see_whole_runs_or_none(tmp_path):
    log = SegmentLog(tmp_path)
    names = [f"wf_{n:02}" for n in range(40)]
    await asyncio.gather(*(log.append(ended(name)) for name in names))
    expected = {name: [e.body for e in ended(name).events] for name in names}

    async def read_all():
        cursor, damaged = None, set()
        for name in names:
            try:
                assert [e.body for e in await log.read(name)] == expected[name]
            except RunGone:
                continue
        while (page := await log.query(cursor=cursor, limit=5)).items:
            cursor = page.next_cursor
            damaged |= set(page.damaged)
        assert not damaged

    async def remove_all():
        for name in names[:-1]:
            await log.delete(name, 1)
            await log.sweep(LATER)

    removing = asyncio.create_task(remove_all())
    while not removing.done():
        await read_all()
    await removing
    await log.close()
    log = SegmentLog(tmp_path)
    assert [row.workflow_id for row in (await log.runs()).items] == [names[-1]]
    await log.close()


async def test_the_space_of_a_removed_segment_is_given_back_though_it_was_read_last(tmp_path):
    log = SegmentLog(tmp_path)
    for n in range(8):
        await log.append(ended(f"wf_{n}"))
    await log.read("wf_0")
    removed = segments(tmp_path)[0].stat().st_ino
    for n in range(7):
        await log.delete(f"wf_{n}", 1)
    assert (await log.sweep(LATER)).bytes
    held = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            held.add(os.fstat(int(descriptor)).st_ino)
    assert removed not in held
    await log.close()


async def test_no_blob_goes_that_a_damaged_blob_may_have_named(tmp_path):
    log = SegmentLog(tmp_path)
    inner, other = await log.put_blob(b"inner"), await log.put_blob(b"other")
    outer = await log.put_blob(b'{"$blob":"%b"}' % inner.encode())
    body = b'{"id":"e","$blob":"%b"}' % outer.encode()
    first = batch(0)
    events = [type(first.events[0])(0, 1, "output", body)]
    await log.append(type(first)("wf_a", 1, 0, events, "running", first.run))
    (tmp_path / "blobs" / outer.removeprefix("sha256:")).write_bytes(b"damaged")
    assert (await log.sweep(LATER)).blobs == 0
    (tmp_path / "blobs" / outer.removeprefix("sha256:")).write_bytes(b'{"$blob":"%b"}' % inner.encode())
    assert (await log.sweep(LATER)).blobs == 1
    assert await log.get_blob(inner) == b"inner"
    assert await log.get_blob(other) is None
    await log.close()


@pytest.mark.parametrize("step", range(1, 8))
async def test_retention_on_a_full_disk_removes_nothing_by_half(tmp_path, step):
    """The n-th call that needs space finds none: refused or done, and all that is left is read again."""
    log = SegmentLog(tmp_path)
    for n in range(9):
        await log.append(ended(f"wf_{n}"))
    made = 0

    def fail(call):
        nonlocal made
        made += call.kind in ("write", "create")
        return errno.ENOSPC if made >= step and call.kind in ("write", "create") else 0

    gone = set()
    with shim.below(tmp_path, fail):
        for n in range(7):
            try:
                await log.delete(f"wf_{n}", 1)
                gone.add(f"wf_{n}")
            except StorageUnavailable:
                break
        try:
            await log.sweep(LATER)
        except AgentflowError as error:
            assert isinstance(error, StorageUnavailable)  # noqa: PT017
    assert log.failure is None
    left = {f"wf_{n}" for n in range(9)} - gone
    for again in range(2):
        assert {row.workflow_id for row in (await log.runs()).items} == left
        for name in left:
            assert await all_offsets(log, name) == [0, 1, 2]
        for name in gone:
            with pytest.raises(RunGone):
                await log.run(name)
        if not again:
            await log.sweep(LATER)
            await log.close()
            log = SegmentLog(tmp_path)
            assert log.notices == []
    await log.close()
