"""Ownership of a run on a shared store rests on a lock that the kernel holds (durability 4)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import Fenced, StorageUnavailable
from agentflow.events.owner import Owner, this_process
from agentflow.events.owner_locks import OwnerLocks
from agentflow.events.sqlite import SqliteLog
from tests.unit.events.support import ROOT, batch

HOLDER = Path(__file__).parent / "holder.py"
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_unshare():
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def started_holder(path, *more, prefix=()):
    """A process that holds the run wf_a of the store, and what it said."""
    command = [*prefix, sys.executable, str(HOLDER), f"sqlite:{path}", "wf_a", *more]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    ) as process:
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make a process namespace")
@pytest.mark.parametrize("inside", ["the owner", "the claimant"])
async def test_a_process_of_another_namespace_is_refused_while_the_owner_lives(tmp_path, inside):
    path = tmp_path / "log.db"
    prefix = NAMESPACE if inside == "the owner" else ()
    with started_holder(path, prefix=prefix) as (owner, said):
        assert said[0] == "held"
        other = () if prefix else NAMESPACE
        with started_holder(path, prefix=other) as (second, answer):
            assert answer == ["Fenced"]
            assert second.wait() == 0
        owner.kill()
        owner.wait()
    with started_holder(path) as (_, said):
        assert said[0] == "held"


async def test_the_process_id_of_an_owner_does_not_count(tmp_path):
    """As from another container: its id is free here, or belongs to a process that is not the owner."""
    path = tmp_path / "log.db"
    with started_holder(path) as (_, said):
        assert said[0] == "held"
        log = SqliteLog(path)
        row = await log.run("wf_a")
        assert row.owner.lock
        for pid, start in ((2**22 + 1, "never"), (os.getpid(), this_process().started)):
            seen_elsewhere = msgspec.structs.replace(row.owner, pid=pid, started=start)
            assert log.is_alive(seen_elsewhere)
        with pytest.raises(Fenced, match="is owned by process"):
            await log.claim("wf_a", this_process())
        await log.close()


async def test_a_killed_owner_is_dead_at_once_and_its_file_goes(tmp_path):
    path = tmp_path / "log.db"
    with started_holder(path) as (owner, said):
        assert said[0] == "held"
        owner.kill()
        owner.wait()
    folder = tmp_path / "log.db-owners"
    assert len(list(folder.iterdir())) == 1
    log = SqliteLog(path)
    assert not log.is_alive((await log.run("wf_a")).owner)
    assert await log.claim("wf_a", this_process()) == 2
    assert [p.stem for p in folder.iterdir()] == [this_process().lock]
    await log.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.db"]


async def test_a_stopped_owner_is_not_dead(tmp_path):
    path = tmp_path / "log.db"
    with started_holder(path) as (owner, _):
        owner.send_signal(signal.SIGSTOP)
        log = SqliteLog(path)
        with pytest.raises(Fenced):
            await log.claim("wf_a", this_process())
        await log.close()


@pytest.mark.parametrize("child", ["fork", "exec"])
async def test_a_child_that_outlives_its_parent_does_not_hold_its_lock(tmp_path, child):
    path = tmp_path / "log.db"
    with started_holder(path, child) as (owner, said):
        assert said[0] == "held"
        owner.kill()
        owner.wait()
        os.kill(int(said[2]), 0)  # the child is there
        try:
            log = SqliteLog(path)
            assert await log.claim("wf_a", this_process()) == 2
            await log.close()
        finally:
            os.kill(int(said[2]), signal.SIGKILL)


async def test_a_store_of_version_1_is_judged_by_its_process_ids(tmp_path):
    """Their owners name no lock: a process that is here is respected, a dead one is not."""
    log = SqliteLog(tmp_path / "log.db")
    await log.append(batch(0))
    await log.release("wf_a", this_process())
    old = Owner(os.getpid(), this_process().started, "of version 1")
    assert msgspec.json.decode(msgspec.json.encode(old)).keys() == {"pid", "started", "token"}
    await log.claim("wf_a", old)
    with pytest.raises(Fenced):
        await log.claim("wf_a", this_process())
    await log.release("wf_a", old)
    await log.claim("wf_a", Owner(2**22 + 1, "never", "of version 1"))
    await log.claim("wf_a", this_process())
    await log.close()


async def test_the_copy_of_a_store_is_owned_by_no_process(tmp_path):
    path = tmp_path / "log.db"
    with started_holder(path):
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"copy.db{suffix}")
        log = SqliteLog(tmp_path / "copy.db")
        assert await log.claim("wf_a", this_process()) == 2
        await log.close()


async def test_two_logs_of_one_process_share_its_lock(tmp_path):
    path = tmp_path / "log.db"
    first, second = SqliteLog(path), SqliteLog(path)
    await first.append(batch(0))
    await second.append(batch(0, workflow_id="wf_b"))
    await first.close()
    with started_holder(path) as (_, said):
        assert said == ["Fenced"]
    await second.close()
    with started_holder(path) as (_, said):
        assert said[0] == "held"


async def test_no_run_is_owned_where_the_lock_cannot_be_made(tmp_path):
    """Nothing is written, and it is said why."""
    log = SqliteLog(tmp_path / "log.db")
    (tmp_path / "log.db-owners").write_text("in the way")
    with pytest.raises(StorageUnavailable, match="who owns its runs"):
        await log.append(batch(0))
    assert (await log.runs()).items == []
    (tmp_path / "log.db-owners").unlink()
    await log.append(batch(0))
    await log.close()


def test_looking_at_a_lock_leaves_it_with_its_owner(tmp_path):
    path = tmp_path / "log.db"
    with started_holder(path):
        locks = OwnerLocks(path)
        name = next(locks.folder.iterdir()).name
        owner = Owner(1, "", "", name.removesuffix(".lock"))
        assert [locks.is_alive(owner, remove=True) for _ in range(3)] == [True] * 3
        assert (locks.folder / name).exists()
    assert not locks.is_alive(owner)
    assert not locks.is_alive(Owner(1, "", "", "../log.db"))
