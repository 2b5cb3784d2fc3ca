"""Retention by a process that is killed at any moment: what it said holds, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentflow.errors import RunGone
from agentflow.events.blobs import blob_hash
from agentflow.events.open import open_log
from tests.unit.events.collector import SHARED
from tests.unit.events.support import ROOT

PROGRAM = Path(__file__).parent / "collector.py"


class Said:
    """What was acknowledged, and what may have been done without a word."""

    def __init__(self):
        self.made: dict[str, int] = {}
        self.earliest: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.perhaps: set[str] = set()

    def take(self, line):
        match line.split():
            case ["made", run, last]:
                self.made[run] = int(last)
            case ["deleting", run]:
                self.perhaps.add(run)
            case ["deleted", run]:
                self.deleted.add(run)
            case ["trimmed", run, earliest]:
                self.earliest[run] = max(self.earliest.get(run, 0), int(earliest))


async def check(url, said):
    log = open_log(url)
    assert {n.kind for n in log.notices} <= {"torn_tail", "rebuilt"}
    for run, last in said.made.items():
        try:
            row = await log.run(run)
        except RunGone:
            assert run in said.perhaps
            continue
        assert run not in said.deleted
        assert row.last_offset == last
        assert row.earliest_offset >= said.earliest.get(run, 0)
        events = await log.read(run, row.earliest_offset, 1_000)
        assert [e.offset for e in events] == list(range(row.earliest_offset, last + 1))
        assert sum(len(e.body) for e in events) == row.bytes
        if row.earliest_offset == 0:
            assert await log.get_blob(blob_hash(SHARED)) == SHARED
            own = b"of " + run.encode()
            assert await log.get_blob(blob_hash(own)) == own
    seen = [(run, e.offset) for run, e in (await log.query(limit=100_000)).items]
    assert len(seen) == len(set(seen))
    await log.close()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_collector_that_is_killed_harms_nothing(kind, tmp_path):
    url, luck, said = f"{kind}:{tmp_path}/log", random.Random(11), Said()
    for seed in range(8):
        command = [sys.executable, str(PROGRAM), url, str(seed)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT) as process:
            lines = [process.stdout.readline()]  # it works now
            time.sleep(luck.uniform(0.05, 0.4))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        for line in lines:
            if line.endswith(b"\n"):
                said.take(line.decode())
        asyncio.run(check(url, said))
    assert len(said.made) > 20
    assert len(said.deleted) > 5
