"""A SQLite store of very many runs, made without appending each: for measurements of what must not grow."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.events.packing import pack
from agentflow.events.sqlite.batches import BATCH_COLUMNS, batch_crc
from agentflow.events.sqlite.blocks import index_batches
from agentflow.events.sqlite.checks import row_crc

__all__ = ["T0", "key_of", "make_store"]

T0 = 1_700_000_000_000_000
_FIXED = (
    "id, workflow_id, name, definition_hash, labels, created_at, parent, state, epoch, owner, earliest_offset"
)
_CHUNK = 20_000


def key_of(number: int) -> str:
    """Return the id of a run; they sort by number."""
    return f"wf_{number:026d}"


def _events(workflow_id: str, ts: int) -> list[StoredEvent]:
    types = ("workflow.started", "workflow.step_started", "workflow.step_completed", "workflow.completed")
    found: list[StoredEvent] = []
    for offset, type in enumerate(types):
        head = {"id": f"evt_{offset}", "offset": offset, "type": type, "workflow_id": workflow_id}
        found.append(StoredEvent(offset, ts, type, msgspec.json.encode({**head, "data": {"n": 1}})))
    return found


async def _make_first(path: Path) -> None:
    log = open_log(f"sqlite:{path}")
    meta = RunMeta(name="many", definition_hash="d" * 8, created_at=T0 - 1, labels={"customer": "first"})
    await log.append(Append("wf_first", 1, 0, _events("wf_first", T0 - 1), "running", meta))
    await log.close()


def make_store(path: Path, runs: int) -> None:
    """Make a store of `runs` ended runs of four events, one a millisecond; every hundredth has the label
    `customer` = its number modulo 1,000. Takes about 25 s a million."""
    asyncio.run(_make_first(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        types, packed = db.execute("SELECT types, body FROM batch").fetchone()
        packed = pack(_events("wf_x", T0))
        first_id = db.execute("SELECT max(id) FROM run").fetchone()[0]
        seq = db.execute("SELECT max(seq + count) FROM batch").fetchone()[0]
        for start in range(0, runs, _CHUNK):
            rows: list[tuple[Any, ...]] = []
            batches: list[tuple[Any, ...]] = []
            labels: list[tuple[Any, ...]] = []
            references: list[tuple[Any, ...]] = []
            for number in range(start, min(start + _CHUNK, runs)):
                id, ts, workflow_id = first_id + 1 + number, T0 + number * 1_000, key_of(number)
                own = {} if number % 100 else {"customer": str(number // 100 % 1_000)}
                text = msgspec.json.encode(own).decode()
                fixed = (id, workflow_id, "many", "d" * 8, text, ts, None, "completed", 1, None, 0)
                rows.append((*fixed, ts, 3, 600, seq, row_crc(*fixed)))
                crc = batch_crc(seq, id, 0, 4, 0, ts, types, packed)
                batches.append((seq, id, 0, 4, 0, ts, types, crc, packed))
                labels += [(name, value, ts, workflow_id) for name, value in own.items()]
                references.append((id, "d" * 8))
                seq += 4
            db.execute("BEGIN")
            db.executemany(
                f"INSERT INTO run ({_FIXED}, updated_at, last_offset, bytes, last_seq, crc)"
                f" VALUES ({', '.join('?' * 16)})",
                rows,
            )
            db.executemany(f"INSERT INTO batch ({BATCH_COLUMNS}) VALUES ({', '.join('?' * 9)})", batches)
            db.executemany("INSERT INTO label VALUES (?, ?, ?, ?)", labels)
            db.executemany("INSERT INTO reference VALUES (?, ?)", references)
            index_batches(db)
            db.execute("COMMIT")
