"""Batches of plain events, and the appending program, for the tests of durable logs."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, RunMeta

APPENDER = Path(__file__).parent / "appender.py"
ROOT = Path(__file__).parents[3]


def event(offset, size=20, type="agent.processing", workflow_id="wf_a", *, noise=False):
    """`noise`: the text cannot be deflated to less than half."""
    ts = 1 + offset
    text = random.Random(f"{workflow_id} {offset}").randbytes(size // 2).hex() if noise else "x" * size
    data = Unknown(type=type, data={"text": text})
    body = encode(
        Event(id="evt_1", offset=offset, timestamp=iso(ts), type=type, workflow_id=workflow_id, data=data)
    )
    return StoredEvent(offset, ts, type, body)


def batch(expected, count=1, *, size=20, epoch=1, workflow_id="wf_a", state="running", noise=False):
    run = RunMeta(name=None, definition_hash="d", created_at=1) if expected == 0 else None
    events = [event(expected + i, size, workflow_id=workflow_id, noise=noise) for i in range(count)]
    return Append(workflow_id, epoch, expected, events, state, run)


def change_batch(path, run, offset, change="ts = ts + 1"):
    """Change the row of the batch that holds `offset` of the `run`-th run; a change of None deletes it.

    Returns the first offset of the batch and its number of events.
    """
    with closing(sqlite3.connect(path)) as db:
        where = "WHERE run = ? AND first <= ? AND first + count > ?"
        found = db.execute(f"SELECT first, count FROM batch {where}", (run, offset, offset)).fetchone()
        statement = "DELETE FROM batch" if change is None else f"UPDATE batch SET {change}"
        assert db.execute(f"{statement} {where}", (run, offset, offset)).rowcount == 1
        db.commit()
    return found


async def all_offsets(log, workflow_id):
    found, page = [], None
    while page is None or page:
        page = await log.read(workflow_id, len(found), 1_000)
        found += [e.offset for e in page]
    return found


def start_appender(url, run, *count, **environment):
    """`appender.py` as a process; see there."""
    return subprocess.Popen(
        [sys.executable, str(APPENDER), url, run, *map(str, count)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def run_appender(url, run, *count, **environment):
    """The words that `appender.py` printed until it ended."""
    with start_appender(url, run, *count, **environment) as process:
        lines = process.stdout.read().decode().split()
    assert process.returncode == 0
    return lines
