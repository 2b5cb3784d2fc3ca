"""Bits of a closed store flip: that does no harm or is noticed, and is never answered as if all were fine."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from agentflow.errors import LogClosed, LogCorrupt
from agentflow.events.open import open_log
from agentflow.events.sqlite import integrity
from tests.faults.flipped import CONSUMER
from tests.faults.images import scratch
from tests.faults.workload import next_batch, run_workload

ROOT = Path(__file__).parents[2]


def fill(kind: str, root: Path) -> str:
    """A closed store with some hundred events below `root`."""
    url = f"{kind}:{root}/data/log"
    for incarnation in ("a", "b"):
        asyncio.run(run_workload(url, incarnation, lambda _: None, rounds=30))
    asyncio.run(keep_position(url))
    return url


async def keep_position(url: str) -> None:
    log = open_log(url)
    page = await log.query(limit=100)
    await log.save_cursor(CONSUMER, page.next_cursor)
    await log.close()


def bits(root: Path, count: int, seed: random.Random) -> list[tuple[str, int, int]]:
    """Places all over the files, each file at least a few times, the beginning of each more often."""
    files = {str(p.relative_to(root)): p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}
    files = {name: size for name, size in files.items() if size}
    weights = [size + 2_000 for size in files.values()]
    chosen: list[tuple[str, int, int]] = []
    for name in seed.choices(list(files), weights, k=count):
        size = files[name]
        byte = seed.randrange(min(size, 512)) if seed.random() < 0.1 else seed.randrange(size)
        chosen.append((name, byte, seed.randrange(8)))
    return chosen


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [25, pytest.param(800, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_harmless_or_noticed(kind, tally, count, files_are_small):
    seed = random.Random(count)
    said: Counter[str] = Counter()
    wrong: list[str] = []
    with scratch() as root, scratch() as work:
        url = fill(kind, root)
        command = [sys.executable, "-m", "tests.faults.flipped", url, str(work)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            for file, byte, bit in bits(root / "data", count, seed):
                print(file, byte, bit, file=child.stdin, flush=True)
                answer = child.stdout.readline()
                assert answer, f"the process died of bit {bit} of byte {byte} of {file}"
                said[answer.split()[0]] += 1
                if answer.startswith("silent"):
                    wrong.append(f"{file} {byte} {bit}: {answer}")
            child.stdin.close()
    tally.flips += count
    tally.harmless += said["harmless"]
    tally.silent += said["silent"]
    assert not wrong, f"{said}\n" + "".join(wrong[:15])


async def test_a_large_file_is_checked_beside_the_work(tmp_path, monkeypatch):
    """No row that is read is damaged, only rows that are not found any more; nobody has to ask for one."""
    monkeypatch.setattr(integrity, "_SMALL_BYTES", 0)
    monkeypatch.setattr(integrity, "_DELAY_S", 0.0)
    url = await asyncio.to_thread(fill, "sqlite", tmp_path)
    file = tmp_path / "data" / "log"
    with closing(sqlite3.connect(file)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'run_by_name'").fetchone()
    data = bytearray(file.read_bytes())
    start = (page - 1) * 4_096
    data[start + 4] ^= 1  # how many entries the page has
    file.write_bytes(data)
    log = open_log(url)
    while log.failure is None:
        assert (await log.run("wf_a")).last_offset > 50
    assert isinstance(log.failure, LogCorrupt)
    with pytest.raises(LogClosed, match="damaged"):
        await log.append(next_batch("wf_x", 0, "a", 1))
    await log.close()
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "_SMALL_BYTES", 1 << 30)
        with pytest.raises(LogCorrupt, match="damaged"):
            open_log(url)


async def test_a_check_of_a_large_file_ends_with_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(integrity, "_SMALL_BYTES", 0)
    for delay in (0.0, 1_000.0):
        monkeypatch.setattr(integrity, "_DELAY_S", delay)
        log = open_log(f"sqlite:{tmp_path}/log.db")
        await log.append(next_batch(f"wf_{delay}", 0, "a", 1))
        await log.close()
        assert log.failure is None
        assert not any(thread.name == "agentflow-integrity" for thread in threading.enumerate())
