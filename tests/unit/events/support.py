"""Batches of plain events, and the appending program, for the tests of durable logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, RunMeta

APPENDER = Path(__file__).parent / "appender.py"
ROOT = Path(__file__).parents[3]


def event(offset, size=20, type="agent.processing", workflow_id="wf_a"):
    ts = 1 + offset
    data = Unknown(type=type, data={"text": "x" * size})
    body = encode(
        Event(id="evt_1", offset=offset, timestamp=iso(ts), type=type, workflow_id=workflow_id, data=data)
    )
    return StoredEvent(offset, ts, type, body)


def batch(expected, count=1, *, size=20, epoch=1, workflow_id="wf_a", state="running"):
    run = RunMeta(name=None, definition_hash="d", created_at=1) if expected == 0 else None
    events = [event(expected + i, size, workflow_id=workflow_id) for i in range(count)]
    return Append(workflow_id, epoch, expected, events, state, run)


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
