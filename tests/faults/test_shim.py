"""The tools of the suites are right: the shim sees all calls, the disk loses what is not synced."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.faults import shim, strace, tally
from tests.faults.calls import Call
from tests.faults.disk import PAGE, SECTOR, Disk
from tests.faults.images import STORE, scratch
from tests.faults.tally import Tally
from tests.faults.workload import run_workload


@pytest.mark.skipif(not shim.shim_works(), reason="SQLite hides its functions here")
@pytest.mark.skipif(not strace.strace_works(), reason="no process may be traced here")
@pytest.mark.usefixtures("files_are_small")
def test_the_shim_sees_what_the_kernel_sees(kind, tmp_path):
    with scratch() as root:
        seen = strace.record(root, tmp_path / "trace", f"{kind}:{root}/{STORE}", "a", "7")
    with scratch() as root, shim.below(root) as watched:
        asyncio.run(run_workload(f"{kind}:{root}/{STORE}", "a", watched.say, 7))
    # Until something is said, all is done by one thread after the other; then groups differ from run to run.
    assert opening(seen) == opening(watched.calls)
    assert len(opening(seen)) > 10
    assert kinds(seen) == kinds(watched.calls)


def opening(calls):
    said = next(n for n, call in enumerate(calls) if call.kind == "said")
    return [(c.kind, c.path, c.at, len(c.data), c.to) for c in calls[:said] if c.kind != "sync_begins"]


def kinds(calls):
    """What is done to which sort of file."""
    return {
        (c.kind, c.path.rpartition("/")[0], c.path.rpartition(".")[2] if "." in c.path else c.path[-4:])
        for c in calls
        if c.kind not in ("said", "sync_begins") and "blobs/" not in c.path and "snapshots/" not in c.path
    }


def disk(*calls: Call) -> Disk:
    made = Disk()
    for call in (Call("create", "f"), Call("sync_directory", "."), *calls):
        made.do(call)
    return made


def images(made: Disk, count: int = 300) -> set[bytes | None]:
    seed = random.Random(1)
    return {made.found(seed).get("f") for _ in range(count)}


def test_only_what_was_synced_is_sure():
    written, sync = Call("write", "f", 0, b"a" * 2 * SECTOR), Call("sync", "f")
    assert disk(written).seen() == {"f": b"a" * 2 * SECTOR}
    assert disk(written).synced() == {"f": b""}
    assert disk(written, sync).synced() == {"f": b"a" * 2 * SECTOR}
    assert images(disk(written, sync)) == {b"a" * 2 * SECTOR}
    found = images(disk(written))
    assert {b"", b"a" * 2 * SECTOR, b"a" * SECTOR + bytes(SECTOR), bytes(SECTOR) + b"a" * SECTOR} <= found


def test_a_sync_covers_what_was_written_before_it_began():
    first, second = Call("write", "f", 0, b"a"), Call("write", "f", 1, b"b")
    made = disk(first, Call("sync_begins", "f"), second, Call("sync", "f"))
    assert made.synced() == {"f": b"a"}
    assert made.seen() == {"f": b"ab"}


def test_names_are_lost_without_a_sync_of_their_directory():
    made = Disk()
    for call in (Call("create", "f"), Call("write", "f", 0, b"a"), Call("sync", "f")):
        made.do(call)
    assert made.synced() == {}
    assert images(made) == {None, b"a"}
    made.do(Call("sync_directory", "."))
    made.do(Call("rename", "f", to="g"))
    assert made.seen() == {"g": b"a"}
    assert made.synced() == {"f": b"a"}
    made.do(Call("unlink", "g"))
    seed = random.Random(2)
    assert {tuple(made.found(seed)) for _ in range(100)} == {(), ("f",), ("g",)}


def test_a_lost_truncate_and_an_overwritten_sector():
    made = disk(Call("write", "f", 0, b"a" * SECTOR), Call("sync", "f"), Call("truncate", "f", 0))
    assert images(made) == {b"", b"a" * SECTOR}
    made.do(Call("write", "f", 0, b"b" * 10))
    assert {b"b" * 10, b"a" * SECTOR, b"a" * 10} <= images(made)


def test_a_failed_sync_leaves_pages_that_the_next_one_passes_by():
    """Until they are written again."""
    old, new = Call("write", "f", 0, b"a" * PAGE), Call("write", "f", PAGE, b"b" * PAGE)
    made = disk(old, Call("sync_fails", "f"), Call("sync", "f"))
    assert made.seen() == {"f": b"a" * PAGE}
    assert made.synced() == {"f": b""}
    made.do(new)
    made.do(Call("sync", "f"))
    assert made.seen() == {"f": b"a" * PAGE + b"b" * PAGE}
    assert made.synced() == {"f": bytes(PAGE) + b"b" * PAGE}
    made.do(Call("write", "f", 10, b"c"))
    made.do(Call("sync", "f"))
    assert made.synced() == made.seen()
    assert images(made) == {b"a" * 10 + b"c" + b"a" * (PAGE - 11) + b"b" * PAGE}


def test_the_last_lines_say_what_was_found(monkeypatch):
    """One line a store, in this form; anything found is a failure."""
    done = Tally("sqlite", images=7, kills=3, flips=5, harmless=2)
    monkeypatch.setattr(tally, "TALLIES", {"sqlite": done, "file": Tally("file")})
    line = "store=sqlite images=7 kills=3 lost={} gaps={} duplicates=0 false_alarms=0"
    assert tally.verdict() == [
        "flips: store=sqlite flips=5 harmless=2 noticed=3 silent=0",
        line.format(0, 0),
    ]
    assert done.clean
    done.blame([("lost", "an event"), ("gaps", "a hole"), ("lost", "another")])
    assert tally.verdict()[-1] == line.format(2, 1)
    assert not done.clean
