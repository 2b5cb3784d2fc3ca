"""Two processes on one store: a directory of segments has one process, an SQLite file may have several, and
a run has one writer in any case."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentflow.errors import AgentflowError, ConfigurationError, Fenced, OffsetConflict
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.events.sqlite import SqliteLog, database
from tests.faults.promises import Promises, broken, examine
from tests.faults.tally import TALLIES
from tests.faults.workload import RUNS, blobs_of, next_batch

ROOT = Path(__file__).parents[2]


def start(module: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.faults.{module}", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_directory_has_one_process_until_that_is_dead(tmp_path):
    url = f"file:{tmp_path}/log"
    with start("contender", url, "wf_a", "1000000") as owner:
        owner.stdout.readline()
        for _ in range(3):
            with pytest.raises(ConfigurationError, match="in use by another process"):
                open_log(url)
        with start("contender", url, "wf_b", "1") as second:
            assert second.stdout.read().splitlines() == ["refused ConfigurationError"]
        owner.kill()
        said = owner.stdout.read().splitlines()
    asyncio.run(open_log(url).close())  # at once, without any lease that has to run out
    assert not broken(Promises().take(whole(said)), asyncio.run(examine(url)))


def whole(said: list[str]) -> list[str]:
    """Without a last line that was cut short, and without what the contender says of itself."""
    return [line for line in said if line.startswith("ack") and len(line.split()) == 5]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("batches", [60, pytest.param(1_500, marks=pytest.mark.slow)])
def test_processes_that_share_a_file_append_to_their_own_runs(tmp_path, batches):
    url = f"sqlite:{tmp_path}/log.db"
    tally, said = TALLIES["sqlite"], list[str]()
    with ExitStack() as stack:
        writers = [stack.enter_context(start("contender", url, run, batches)) for run in RUNS]
        for writer in writers:
            said += writer.stdout.read().splitlines()
    assert [line for line in said if not line.startswith("ack")] == ["owner 1"] * 3
    assert len(said) == 3 * (batches + 1)
    problems = broken(Promises().take(whole(said)), asyncio.run(examine(url)))
    tally.blame(problems)
    assert not problems


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rounds", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_of_two_that_claim_one_run_one_writes_and_the_other_is_told(tmp_path, rounds):
    url = f"sqlite:{tmp_path}/log.db"
    said: list[str] = []
    for n in range(rounds):
        with (
            start("contender", url, "wf_a", "20", f"x{n}") as one,
            start("contender", url, "wf_a", "20", f"y{n}") as two,
        ):
            for contender in (one, two):
                contender.stdout.readline()  # ready
            for contender in (one, two):
                print(file=contender.stdin, flush=True)  # go
            told = [contender.stdout.read().splitlines() for contender in (one, two)]
        wrote = [bool(whole(lines)) for lines in told]
        # Both may have written: the second came when the first had ended.
        assert any(wrote), told
        for lines in told:
            if not whole(lines):
                assert lines[-1] in ("refused Fenced", "refused OffsetConflict"), told
        said += [line for lines in told for line in whole(lines)]
    problems = broken(Promises().take(said), asyncio.run(examine(url)))
    TALLIES["sqlite"].blame(problems)
    assert not problems


async def test_the_run_of_a_killed_owner_can_be_claimed_at_once(tmp_path):
    url = f"sqlite:{tmp_path}/log.db"
    log = open_log(url)
    with start("contender", url, "wf_a", "1000000") as owner:
        before = [owner.stdout.readline() for _ in range(2)]
        with pytest.raises(Fenced, match=f"process {owner.pid}, which is running"):
            await log.claim("wf_a", this_process())
        with pytest.raises((Fenced, OffsetConflict)):
            await log.append(next_batch("wf_a", 0, "w", 1))
        owner.kill()
        said = whole(before + await asyncio.to_thread(owner.stdout.readlines))
    assert await log.claim("wf_a", this_process()) == 2
    last = await log.last("wf_a")
    assert last >= max(int(line.split()[3]) for line in said)
    await append(log, last + 1, epoch=2)
    await log.release("wf_a", this_process())
    await log.close()
    assert not broken(Promises().take(said), await examine(url))


async def append(log, offset, epoch=1):
    batch = next_batch("wf_a", offset, "w", epoch)
    for data in blobs_of(batch):
        await log.put_blob(data)
    await log.append(batch)


async def test_a_second_log_in_a_process_leaves_the_locks_of_the_first(tmp_path):
    """Closing any descriptor of a file gives up all of a process's POSIX locks on it: another process would
    then take itself for the last one, and remove the write-ahead log that is still written to."""
    url = f"sqlite:{tmp_path}/log.db"
    first = open_log(url)
    await append(first, 0)
    second = open_log(url)
    await append(first, await first.last("wf_a") + 1)
    with start("contender", url, "wf_b", "3") as other:
        assert (await asyncio.to_thread(other.stdout.read)).splitlines()[-1].startswith("ack wf_b")
    assert (tmp_path / "log.db-wal").exists()
    await append(first, await first.last("wf_a") + 1)
    before = await second.last("wf_a")
    await second.close()
    await first.release("wf_a", this_process())
    await first.close()
    found = await examine(url)
    assert not found.problems
    assert ("wf_a", before) in found.events


async def test_a_new_file_that_another_process_has_begun_to_use_is_not_removed(tmp_path, monkeypatch):
    """Who has made the file does not come to an end with it; somebody else has filled it meanwhile."""
    url = f"sqlite:{tmp_path}/log.db"

    def overtaken(db, path):
        db.execute("ROLLBACK") if db.in_transaction else None
        with start("contender", url, "wf_a", "3") as other:
            assert other.stdout.read().count("ack") == 3
        raise sqlite3.OperationalError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(database, "_migrate", overtaken)
        with pytest.raises(AgentflowError, match="locked"):
            SqliteLog(tmp_path / "log.db")
    found = await examine(url)
    assert not found.problems
    assert len(found.events) >= 3


@pytest.mark.timeout(120)
@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_many_processes_make_one_new_store(tmp_path, rounds):
    for n in range(rounds):
        url, said = f"sqlite:{tmp_path}/{n}/log.db", list[str]()
        with ExitStack() as stack:
            writers = [stack.enter_context(start("contender", url, run, 2, "go")) for run in (*RUNS, *RUNS)]
            for writer in writers:
                writer.stdout.readline()
            for writer in writers:
                print(file=writer.stdin, flush=True)
            for writer in writers:
                said += writer.stdout.read().splitlines()
        refused = [line for line in said if line.startswith("refused")]
        assert set(refused) <= {"refused Fenced", "refused OffsetConflict"}, said
        assert any(line.startswith("ack ") for line in said), said
        assert not broken(Promises().take(whole(said)), asyncio.run(examine(url)))


async def test_a_store_that_another_process_makes_at_this_moment_is_ours(tmp_path, monkeypatch):
    """Its tables and its mark come together; who looks at one and then at the other must not be misled."""
    real, left = database._has_tables, [1]

    def overtaken(db):
        if left:
            left.pop()
            with start("contender", f"sqlite:{tmp_path}/log.db", "wf_a", "3") as other:
                assert other.stdout.read().count("ack") == 3
        return real(db)

    monkeypatch.setattr(database, "_has_tables", overtaken)
    log = SqliteLog(tmp_path / "log.db")
    assert not left
    assert await log.last("wf_a") >= 2
    await log.close()
