"""The files of a `file:` store: lost ones, a read-only disk, errors of the disk, forks, removal."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys

import pytest

from agentflow.errors import ConfigurationError, LogCorrupt, LogFailed, RunGone, StoreError
from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import this_process
from agentflow.events.segments import SegmentLog, store
from tests.faults import shim
from tests.unit.events.support import ROOT, all_offsets, batch

LATER = 4_000_000_000_000_000


def segments(directory):
    return sorted((directory / "segments").glob("*.ndjson"))


# -- a store that is deleted or replaced while it is open (durability 1)


def delete(directory):
    shutil.rmtree(directory)


def move(directory):
    directory.rename(directory.with_name("moved"))


def replace(directory):
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)


def delete_newest(directory):
    segments(directory)[-1].unlink()


def delete_oldest(directory):
    segments(directory)[0].unlink()


def delete_lock(directory):
    (directory / "lock").unlink()


WAYS = [delete, move, replace, delete_newest, delete_oldest, delete_lock]


@pytest.mark.parametrize("lose", WAYS)
async def test_a_lost_store_is_noticed_while_it_is_idle(tmp_path, monkeypatch, lose):
    monkeypatch.setattr(store, "SEGMENT_BYTES", 500)
    log = SegmentLog(tmp_path / "log")
    for n in range(5):
        await log.append(batch(n))
    assert len(segments(tmp_path / "log")) > 2
    lose(tmp_path / "log")
    async with asyncio.timeout(10):  # a second where nothing else runs
        while log.failure is None:  # noqa: ASYNC110 — a store has no signal for it
            await asyncio.sleep(0.01)
    assert isinstance(log.failure, LogFailed)
    with pytest.raises(LogFailed, match=r"was deleted or moved|was replaced") as caught:
        await log.append(batch(5))
    assert caught.value.hint
    with pytest.raises(LogFailed):
        await log.probe()
    with pytest.raises(LogFailed):
        await log.close()


@pytest.mark.parametrize("lose", [delete, move, replace, delete_newest])
async def test_nothing_is_acknowledged_after_the_store_is_lost(tmp_path, lose):
    log = SegmentLog(tmp_path / "log")
    await log.append(batch(0))
    lose(tmp_path / "log")
    futures = [log.append(batch(1 + n)) for n in range(35)]
    results = await asyncio.gather(*futures, log.put_blob(b"blob"), return_exceptions=True)
    assert {type(result) for result in results} == {LogFailed}
    with pytest.raises(LogFailed):
        await log.close()


async def test_close_does_not_say_that_all_is_well_after_the_store_is_lost(tmp_path):
    log = SegmentLog(tmp_path / "log")
    await log.append(batch(0))
    delete(tmp_path / "log")
    with pytest.raises(LogFailed, match="was deleted or moved"):
        await log.close()
    await log.close()
    assert not (tmp_path / "log").exists()


async def test_removing_segments_is_not_taken_for_their_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "SEGMENT_BYTES", 500)
    log = SegmentLog(tmp_path)
    for n in range(20):
        await log.append(ended(f"wf_{n}"))
        await log.delete(f"wf_{n}", 1)
        await log.sweep(LATER)
        log._store.writer.check_all()  # as the watching thread does at any time
    assert log.failure is None
    await log.close()


# -- reading only (durability 9)


async def filled(directory):
    log = SegmentLog(directory)
    await log.append(batch(0, 3))
    blob = await log.put_blob(b"blob")
    await log.save_cursor("consumer", await log.latest_cursor())
    await log.close()
    return blob


def all_files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def check_read_only(log, blob):
    assert log.read_only
    assert await all_offsets(log, "wf_a") == [0, 1, 2]
    assert await log.get_blob(blob) == b"blob"
    assert (await log.query(cursor=await log.load_cursor("consumer"))).items == []
    for call in (
        log.append(batch(3)),
        log.claim("wf_a", this_process()),
        log.put_blob(b"other"),
        log.save_cursor("consumer", "x"),
        log.delete("wf_a", 1),
        log.sweep(LATER),
        log.probe(),
    ):
        with pytest.raises(StoreError, match="open for reading only") as caught:
            await call
        assert caught.value.hint
    assert log.failure is None


async def test_a_store_may_be_opened_for_reading_only(tmp_path):
    blob = await filled(tmp_path)
    before = all_files(tmp_path)
    one, two = SegmentLog(tmp_path, read_only=True), SegmentLog(tmp_path, read_only=True)
    for log in (one, two):
        await check_read_only(log, blob)
    with pytest.raises(ConfigurationError, match="in use"):
        SegmentLog(tmp_path)
    await one.close()
    await two.close()
    assert all_files(tmp_path) == before
    (tmp_path / "lock").unlink()  # a copy may be without it
    await SegmentLog(tmp_path, read_only=True).close()
    assert not (tmp_path / "lock").exists()


async def test_a_torn_end_is_passed_over_when_a_store_is_only_read(tmp_path):
    await filled(tmp_path)
    (tmp_path / "closed").unlink()
    with segments(tmp_path)[-1].open("ab") as file:
        file.write(b'{"c":"00000000","v":2,"b":2')
    before = all_files(tmp_path)
    log = SegmentLog(tmp_path, read_only=True)
    assert [n.kind for n in log.notices] == ["torn_tail"]
    assert len((await log.query()).items) == 3
    await log.close()
    assert all_files(tmp_path) == before


async def test_a_store_that_a_process_writes_to_is_not_read_beside_it(tmp_path):
    log = SegmentLog(tmp_path)
    with pytest.raises(ConfigurationError, match="in use by another process"):
        SegmentLog(tmp_path, read_only=True)
    await log.close()


def test_where_no_store_is_none_is_read(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no store"):
        SegmentLog(tmp_path / "none", read_only=True)
    assert list(tmp_path.iterdir()) == []


async def test_a_store_on_a_read_only_file_system_is_read(tmp_path):
    """The shim refuses what such a file system refuses; `tests/faults` mounts a real one."""
    blob = await filled(tmp_path)
    with shim.below(tmp_path, lambda call: errno.EROFS):
        log = SegmentLog(tmp_path)
        await check_read_only(log, blob)
        await log.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE], ids=errno.errorcode.get)
async def test_an_error_of_the_disk_at_the_opening_is_an_error_of_storage(tmp_path, number):
    """Which the command line ends with 74, not 78: the configuration is right."""
    await filled(tmp_path)
    for kind in ("sync_directory", "create"):
        with shim.below(tmp_path, lambda call: number if call.kind == kind else 0):  # noqa: B023
            directory = tmp_path if kind == "sync_directory" else tmp_path / "new"
            with pytest.raises(StoreError, match=os.strerror(number)) as caught:
                SegmentLog(directory)
            assert "check the disk" in caught.value.hint
    log = SegmentLog(tmp_path)  # the lock was given back
    await log.close()


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_an_io_error_ends_the_log_and_the_hint_is_honest(tmp_path, kind):
    log = SegmentLog(tmp_path)
    await log.append(batch(0))
    failing = segments(tmp_path)[0].name
    with shim.below(tmp_path, lambda call: errno.EIO if call.kind == kind and failing in call.path else 0):
        with pytest.raises(LogFailed, match="Input/output error") as caught:
            await log.append(batch(1))
        assert "check the disk" in caught.value.hint
        assert "space" not in caught.value.hint
        with pytest.raises(LogFailed):
            await log.append(batch(1))
    await log.close()
    log = SegmentLog(tmp_path)
    assert (await all_offsets(log, "wf_a"))[:1] == [0]
    await log.close()


# -- forks (durability 4)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_forked_child_is_refused_and_does_not_hold_the_store(tmp_path, kind):
    url = f"file:{tmp_path}/log" if kind == "file" else "memory:"
    command = [sys.executable, "-m", "tests.unit.events.forker", url]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        told = [process.stdout.readline().strip() for _ in range(4)]
        assert told == ["append LogFailed True", "read LogFailed True", "run LogFailed True", "closed"]
        process.wait(10)  # the parent has ended, the child has not
        if kind == "file":
            asyncio.run(check_free(tmp_path / "log"))
        process.stdin.close()


async def check_free(directory):
    log = SegmentLog(directory)
    assert await all_offsets(log, "wf_a") == [0]
    await log.close()


async def test_the_parent_of_a_fork_goes_on(tmp_path):
    for log in (SegmentLog(tmp_path), MemoryLog()):
        await log.append(batch(0))
        child = os.fork() if sys.version_info < (3, 12) else 1
        if child == 0:
            os._exit(0)
        if sys.version_info < (3, 12):
            await asyncio.to_thread(os.waitpid, child, 0)
        await log.append(batch(1))
        assert await all_offsets(log, "wf_a") == [0, 1]
        if log.durable:
            with pytest.raises(ConfigurationError, match="in use"):
                SegmentLog(tmp_path)
        await log.close()


# -- removal by whole segments


def ended(run, count=3):
    events: list[StoredEvent] = []
    for offset in range(count):
        type = "workflow.completed" if offset == count - 1 else "output"
        data = Unknown(type=type, data={"text": "x" * 100})
        head = Event(id="e", offset=offset, timestamp=iso(offset), type=type, workflow_id=run, data=data)
        events.append(StoredEvent(offset, offset, type, encode(head)))
    return Append(run, 1, 0, events, "running", batch(0).run)


@pytest.fixture
async def runs(tmp_path, monkeypatch):
    """A log of twenty runs that have ended, in segments of a few runs each."""
    monkeypatch.setattr(store, "SEGMENT_BYTES", 2_000)
    log = SegmentLog(tmp_path)
    for n in range(20):
        await log.append(ended(f"wf_{n:02}"))
    assert len(segments(tmp_path)) >= 5
    return log


async def found_in(log):
    page = await log.query(limit=1_000)
    assert page.damaged == ()
    return sorted({run for run, _ in page.items})


async def test_a_segment_goes_with_its_last_run(runs, tmp_path):
    before = segments(tmp_path)
    for n in range(0, 20, 2):
        await runs.delete(f"wf_{n:02}", 1)
    assert (await runs.sweep(LATER)).bytes == 0  # a run is left in each
    assert segments(tmp_path)[: len(before) - 1] == before[:-1]
    for n in range(1, 13, 2):
        await runs.delete(f"wf_{n:02}", 1)
    assert (await runs.sweep(LATER)).bytes > 4_000
    assert before[0] not in segments(tmp_path)
    left = [f"wf_{n:02}" for n in range(13, 20, 2)]
    assert await found_in(runs) == left
    await runs.close()
    for _ in range(2):
        log = SegmentLog(tmp_path)
        assert log.notices == []
        assert await found_in(log) == left
        for n in (0, 1, 12):
            with pytest.raises(RunGone):
                await log.run(f"wf_{n:02}")
        await log.close()


async def test_tombstones_outlive_the_segments_they_stood_in(runs, tmp_path):
    """The id of a run is never used again, however often the segment of its tombstone goes."""
    log, number = runs, 20
    for n in range(20):
        await log.delete(f"wf_{n:02}", 1)
    for _ in range(4):
        await log.sweep(LATER)
        for _ in range(10):
            await log.append(ended(f"wf_{number:02}"))
            await log.delete(f"wf_{number:02}", 1)
            number += 1
        await log.close()
        log = SegmentLog(tmp_path)
        assert log.notices == []
        for n in range(number):
            with pytest.raises(RunGone):
                await log.append(batch(0, workflow_id=f"wf_{n:02}"))
    await log.sweep(LATER)
    assert sum(path.stat().st_size for path in segments(tmp_path)) < number * 400
    await log.close()


async def test_a_removal_that_a_crash_cut_short_is_finished_at_the_next_start(runs, tmp_path):
    """What says that segments are gone is durable before they are."""
    for n in range(20):
        await runs.delete(f"wf_{n:02}", 1)
    await runs.append(batch(0, workflow_id="wf_new"))
    before = all_files(tmp_path)
    await runs.sweep(LATER)
    gone = before.keys() - all_files(tmp_path).keys() - {tmp_path / "closed"}
    assert len(gone) >= 4
    await runs.close()
    for back in sorted(gone)[::2]:
        back.write_bytes(before[back])
    log = SegmentLog(tmp_path)
    assert not gone & all_files(tmp_path).keys()
    assert await found_in(log) == ["wf_new"]
    with pytest.raises(RunGone):
        await log.run("wf_07")
    await log.close()


async def test_a_segment_that_was_not_removed_is_missed(runs, tmp_path):
    for n in range(8):
        await runs.delete(f"wf_{n:02}", 1)
    await runs.sweep(LATER)
    await runs.close()
    left = segments(tmp_path)
    left[1].unlink()
    with pytest.raises(LogCorrupt, match=f"{left[1].name} is missing"):
        SegmentLog(tmp_path)


async def test_a_cursor_into_a_removed_segment_goes_on_behind_it(runs):
    cursor = (await runs.query(limit=4)).next_cursor
    for n in range(10):
        await runs.delete(f"wf_{n:02}", 1)
    await runs.sweep(LATER)
    found = {run for run, _ in (await runs.query(cursor=cursor, limit=1_000)).items}
    assert found == {f"wf_{n:02}" for n in range(10, 20)}
    await runs.close()


async def test_a_cursor_of_a_longer_log_is_refused(tmp_path):
    """The log is an older copy: to go on would pass over what is appended until it is as long again."""
    await filled(tmp_path / "log")
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    log = SegmentLog(tmp_path / "log")
    await log.append(batch(0, 5, workflow_id="wf_b"))
    cursor = await log.latest_cursor()
    await log.close()
    log = SegmentLog(tmp_path / "copy")
    with pytest.raises(ValueError, match="behind the end of the log"):
        await log.query(cursor=cursor)
    await log.close()


async def test_a_run_whose_tombstone_is_damaged_is_quarantined_whole(runs, tmp_path):
    """It was deleted; that it was is not known any more, so nothing of it is given out."""
    await runs.delete("wf_03", 1)
    await runs.append(batch(0, workflow_id="wf_new"))
    await runs.close()
    path = next(p for p in segments(tmp_path) if b'"gone"' in p.read_bytes())
    path.write_bytes(path.read_bytes().replace(b'"deleted_at":1', b'"deleted_at":2'))
    log = SegmentLog(tmp_path)
    for call in (log.run("wf_03"), log.read("wf_03")):
        with pytest.raises(LogCorrupt, match="wf_03 is damaged from offset 0"):
            await call
    page = await log.runs(limit=1_000)
    assert "wf_03" not in {row.workflow_id for row in page.items}
    assert page.damaged == ("wf_03",)
    assert (await log.query(limit=1_000)).damaged == ("wf_03",)
    await log.close()
