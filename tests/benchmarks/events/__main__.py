"""How fast events are made, appended, read and followed.

    python -m tests.benchmarks.events [PATTERN]

JSON lines on stdout, a table on stderr; PATTERN chooses cases by a part of their name. Beside every durable
figure stand the mean time of an fdatasync at that moment, which decides most of it, and what plain `sqlite3`
does with the same rows in the same schema, as many to a commit as there are writers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agentflow.events.catalogue import WorkflowStepStarted
from agentflow.events.envelope import Ids, decode, encode, iso
from agentflow.events.hub import Hub
from agentflow.events.log import Append, EventLog, RunMeta, StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.events.open import open_log
from agentflow.events.sealing import seal
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.database import open_database

BATCH = 2
WRITERS = (1, 10, 100, 1_000)
BATCHES = (1, 16, 256, 4_096)
READERS = (1, 10, 100)
SECONDS = 2.0  # of each appending case
BODY = b'{"id":"evt_01M8079N1WAWTY1FXPYMA1MJ5Z","data":"' + b"x" * 294 + b'"}'
META = RunMeta(name="bench", definition_hash="d", created_at=1)


class Report:
    """Prints one figure at a time."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def wants(self, case: str) -> bool:
        return self.pattern in case

    def add(self, case: str, subject: str, value: float, unit: str) -> None:
        line = {"suite": "events", "case": case, "subject": subject, "value": round(value, 3), "unit": unit}
        print(json.dumps(line), flush=True)
        print(f"{case:<28} {subject:<12} {value:>14,.2f} {unit}", file=sys.stderr, flush=True)


def sync_ms(directory: str, count: int = 60) -> float:
    """Mean time of a 4 KiB write and its fdatasync."""
    fd = os.open(Path(directory) / "probe", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    started = time.perf_counter()
    for _ in range(count):
        os.write(fd, b"x" * 4096)
        os.fdatasync(fd)
    elapsed = time.perf_counter() - started
    os.close(fd)
    return elapsed / count * 1e3


def events_from(offset: int, count: int = BATCH) -> list[StoredEvent]:
    return [StoredEvent(offset + i, 1_700_000_000_000_000, "agent.processing", BODY) for i in range(count)]


# -- values


def bench_values(report: Report) -> None:
    data = WorkflowStepStarted(
        step_id="assess",
        activation="/assess#1",
        step_index=1,
        attempt=1,
        path="",
        visit=1,
        clock=2,
        kind="agent",
        input={"text": "x" * 60},
    )
    ids, ts = Ids(), 1_700_000_000_123_456
    (stored,) = seal([data], workflow_id="wf_1", first=3, ts=ts, ids=ids)
    event = decode(stored.body)
    cases: dict[str, Callable[[], object]] = {
        "ulid": lambda: ids.ulid("evt_"),
        "iso": lambda: iso(1_700_000_000_123_456),
        "encode": lambda: encode(event),
        "seal": lambda: seal([data], workflow_id="wf_1", first=3, ts=ts, ids=ids),
        "decode": lambda: decode(stored.body),
    }
    for name, call in cases.items():
        if report.wants(f"value {name}"):
            report.add(f"value {name}", "agentflow", best_us(call), "us")


def best_us(call: Callable[[], object], count: int = 50_000) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, time.perf_counter() - started)
    return best / count * 1e6


# -- appending


async def append_until(log: EventLog, workflow_id: str, deadline: float) -> int:
    """One writer: a batch, its acknowledgement, the next batch."""
    offset = 0
    clock = time.perf_counter
    while clock() < deadline:
        run = META if offset == 0 else None
        await log.append(Append(workflow_id, 1, offset, events_from(offset), "running", run))
        offset += BATCH
    return offset


async def append_rate(log: EventLog, writers: int, seconds: float) -> float:
    started = time.perf_counter()
    counts = await asyncio.gather(
        *(append_until(log, f"wf_{n}", started + seconds) for n in range(writers)),
    )
    return sum(counts) / (time.perf_counter() - started)


def bench_append(report: Report) -> None:
    for writers in WRITERS:
        case = f"append {writers} writers"
        if not report.wants(case):
            continue
        report.add(case, "memory", asyncio.run(in_memory(writers)), "events/s")
        with tempfile.TemporaryDirectory() as directory:
            report.add(case, "sync", sync_ms(directory), "ms")
            for subject, path in (("sqlite", "log.db"), ("file", "log")):
                rate = asyncio.run(on_disk(f"{subject}:{directory}/{path}", writers))
                report.add(case, subject, rate, "events/s")
            report.add(case, "raw sqlite3", raw_rate(directory, writers * BATCH), "events/s")


async def in_memory(writers: int) -> float:
    return await append_rate(MemoryLog(), writers, 0.7)


async def on_disk(url: str, writers: int) -> float:
    log = open_log(url)
    rate = await append_rate(log, writers, SECONDS)
    await log.close()
    return rate


_PLAIN = """
    CREATE TABLE event (
        seq INTEGER PRIMARY KEY, run INTEGER, offset INTEGER, ts INTEGER, type INTEGER, body BLOB,
        UNIQUE (run, offset)
    )"""
_INSERT = "INSERT INTO event (run, offset, ts, type, body) VALUES (?, ?, ?, ?, ?)"


def raw_rate(directory: str, per_commit: int) -> float:
    """Plain `sqlite3` in one thread, without runs, futures or a loop: only the rows and their commits."""
    db = open_database(Path(directory) / f"raw{per_commit}.db")
    db.execute("PRAGMA wal_autocheckpoint = 1000")
    db.execute(_PLAIN)
    written, started = 0, time.perf_counter()
    while time.perf_counter() < started + SECONDS:
        rows = [(n // BATCH, written + n, 1_700_000_000_000_000, 1, BODY) for n in range(per_commit)]
        db.execute("BEGIN IMMEDIATE")
        db.executemany(_INSERT, rows)
        db.execute("COMMIT")
        written += per_commit
    rate = written / (time.perf_counter() - started)
    db.close()
    return rate


def bench_batch_sizes(report: Report) -> None:
    """One writer that hands over whole batches and waits for none: what the log takes of them. Raw writes one
    commit a batch, as the log does when nothing gathers."""
    for size in BATCHES:
        case = f"append batches of {size}"
        if not report.wants(case):
            continue
        total = 8_192 if size == 1 else 40_960
        report.add(case, "memory", asyncio.run(hand_over("memory:", size, total)), "events/s")
        with tempfile.TemporaryDirectory() as directory:
            report.add(case, "sync", sync_ms(directory), "ms")
            for subject, path in (("sqlite", "log.db"), ("file", "log")):
                url = f"{subject}:{directory}/{path}"
                report.add(case, subject, asyncio.run(hand_over(url, size, total)), "events/s")
            report.add(case, "raw sqlite3", raw_rate(directory, size), "events/s")
            if size != BATCHES[-1]:
                report.add(case, "raw, 4,096", raw_rate(directory, BATCHES[-1]), "events/s")


async def hand_over(url: str, size: int, total: int) -> float:
    log = open_log(url)
    started = time.perf_counter()
    futures = [
        log.append(Append("wf_1", 1, n, events_from(n, size), None, META if n == 0 else None))
        for n in range(0, total, size)
    ]
    await asyncio.gather(*futures)
    rate = total / (time.perf_counter() - started)
    await log.close()
    return rate


def bench_latency(report: Report) -> None:
    """One append at a time, on a quiet loop and on one that never sleeps."""
    for case, busy in (("latency quiet loop", False), ("latency busy loop", True)):
        if report.wants(case):
            with tempfile.TemporaryDirectory() as directory:
                report.add(case, "sync", sync_ms(directory), "ms")
                p50, p99 = asyncio.run(latencies(directory, busy))
                report.add(case, "sqlite p50", p50, "ms")
                report.add(case, "sqlite p99", p99, "ms")


async def latencies(directory: str, busy: bool) -> tuple[float, float]:
    log = SqliteLog(Path(directory) / "log.db")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 2

    async def burn() -> None:
        while loop.time() < deadline:
            sum(range(1_000))
            await asyncio.sleep(0)

    burning = asyncio.create_task(burn()) if busy else None
    found: list[float] = []
    offset = 0
    while loop.time() < deadline:
        started = time.perf_counter()
        run = META if offset == 0 else None
        await log.append(Append("wf_1", 1, offset, events_from(offset), None, run))
        found.append(time.perf_counter() - started)
        offset += BATCH
    if burning is not None:
        await burning
    await log.close()
    found.sort()
    return found[len(found) // 2] * 1e3, found[len(found) * 99 // 100] * 1e3


def bench_loop_delay(report: Report) -> None:
    """How late a timer of the loop fires while a hundred writers append; on a loop that otherwise sleeps, and
    on one that never does. Beside it the same without any log."""
    for case, busy in (("loop delay", False), ("loop delay, saturated", True)):
        if not report.wants(case):
            continue
        report.add(case, "no log p99", asyncio.run(loop_delay(None, busy))[1], "ms")
        for subject, path in (("sqlite", "log.db"), ("file", "log")):
            with tempfile.TemporaryDirectory() as directory:
                report.add(case, "sync", sync_ms(directory), "ms")
                p50, p99, rate = asyncio.run(loop_delay(f"{subject}:{directory}/{path}", busy))
                report.add(case, f"{subject} p50", p50, "ms")
                report.add(case, f"{subject} p99", p99, "ms")
                report.add(case, f"{subject} rate", rate, "events/s")


async def loop_delay(url: str | None, busy: bool) -> tuple[float, float, float]:
    """Median and 99th percentile of the delay in ms, and events per second."""
    log = None if url is None else open_log(url)
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS
    found: list[float] = []

    async def tick() -> None:
        while (now := loop.time()) < end:
            await asyncio.sleep(0.002)
            found.append(loop.time() - now - 0.002)

    async def burn() -> None:
        while loop.time() < end:
            sum(range(1_000))
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    burning = asyncio.create_task(burn()) if busy else None
    rate = 0.0
    if log is None:
        await asyncio.sleep(SECONDS)
    else:
        rate = await append_rate(log, 100, SECONDS)
    await ticking
    if burning is not None:
        await burning
    if log is not None:
        await log.close()
    found.sort()
    return found[len(found) // 2] * 1e3, found[len(found) * 99 // 100] * 1e3, rate


def bench_opening(report: Report) -> None:
    """How long it takes to open a store of 500,000 events; segments are scanned."""
    case, total = "open 500k events", 500_000
    if not report.wants(case):
        return
    with tempfile.TemporaryDirectory() as directory:
        url = f"file:{directory}/log"
        asyncio.run(write_whole_events(url, total))
        report.add(case, "file", open_ms(url), "ms")
        url = f"sqlite:{directory}/log.db"
        asyncio.run(write_whole_events(url, total))
        report.add(case, "sqlite", open_ms(url), "ms")


async def write_whole_events(url: str, total: int) -> None:
    """A hundred runs, whose events can be told from their bytes, as a scan must."""
    log = open_log(url)
    head, rest = b'{"id":"evt_01M8079N1WAWTY1FXPYMA1MJ5Z","offset":', BODY[-250:]
    middle = (
        b',"timestamp":"2026-01-31T23:59:59.000001Z","type":"agent.processing","workflow_id":"wf_%d","data":"'
    )
    for n in range(100):
        for offset in range(0, total // 100, 1_000):
            bodies = [b"%b%d%b%b" % (head, offset + k, middle % n, rest) for k in range(1_000)]
            events = [StoredEvent(offset + k, 1, "agent.processing", body) for k, body in enumerate(bodies)]
            run = META if offset == 0 else None
            await log.append(Append(f"wf_{n}", 1, offset, events, "running", run))
    await log.close()


def open_ms(url: str) -> float:
    started = time.perf_counter()
    log = open_log(url)
    elapsed = (time.perf_counter() - started) * 1e3
    asyncio.run(log.close())
    return elapsed


# -- reading


def bench_replay(report: Report) -> None:
    case, total = "replay 1M events", 1_000_000
    if not report.wants(case):
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.db"
        for subject, url in (("memory", "memory:"), ("sqlite", f"sqlite:{path}"), ("file", f"file:{path}.d")):
            report.add(case, subject, asyncio.run(replay_rate(url, total)), "events/s")
        report.add(case, "raw sqlite3", raw_replay_rate(Path(directory) / "raw.db", total), "events/s")


async def replay_rate(url: str, total: int) -> float:
    log = open_log(url)
    await asyncio.gather(
        *(
            log.append(Append("wf_1", 1, n, events_from(n, 1_000), None, META if n == 0 else None))
            for n in range(0, total, 1_000)
        )
    )
    position, started = 0, time.perf_counter()
    while page := await log.read("wf_1", position):
        position += len(page)
    elapsed = time.perf_counter() - started
    assert position == total
    await log.close()
    return total / elapsed


def raw_replay_rate(path: Path, total: int) -> float:
    db = sqlite3.connect(path)
    db.execute(_PLAIN)
    db.executemany(_INSERT, ((1, n, 1, 1, BODY) for n in range(total)))
    db.commit()
    started, position = time.perf_counter(), 0
    select = (
        "SELECT offset, ts, type, body FROM event WHERE run = 1 AND offset >= ? ORDER BY offset LIMIT 256"
    )
    while page := db.execute(select, (position,)).fetchall():
        position += len(page)
    elapsed = time.perf_counter() - started
    assert position == total
    db.close()
    return total / elapsed


# -- following


def bench_fan_out(report: Report) -> None:
    """One writer, many subscribers of its run: events delivered a second, in all."""
    for readers in READERS:
        case = f"fan-out to {readers}"
        if report.wants(case):
            total = 40_000 if readers < 100 else 8_000
            delivered, published = asyncio.run(fan_out(readers, total))
            report.add(case, "delivered", delivered, "events/s")
            report.add(case, "published", published, "events/s")


async def fan_out(readers: int, total: int) -> tuple[float, float]:
    log = MemoryLog()
    hub = Hub(log)

    async def follow() -> int:
        seen = 0
        async for batch in hub.batches("wf_1"):
            seen += len(batch)
        return seen

    await log.append(Append("wf_1", 1, 0, events_from(0), None, META))
    tasks = [asyncio.create_task(follow()) for _ in range(readers)]
    await asyncio.sleep(0)
    started = time.perf_counter()
    for offset in range(BATCH, total, BATCH):
        events = events_from(offset)
        if offset + BATCH >= total:
            events[-1] = StoredEvent(offset + BATCH - 1, 1, "workflow.completed", BODY)
        await log.append(Append("wf_1", 1, offset, events))
        hub.publish("wf_1", events)
        if offset % 16 == 0:
            await asyncio.sleep(0)
    writing = time.perf_counter() - started
    seen = await asyncio.gather(*tasks)
    elapsed = time.perf_counter() - started
    assert seen == [total] * readers
    return total * readers / elapsed, total / writing


BENCHES: tuple[Callable[[Report], None], ...] = (
    bench_values,
    bench_append,
    bench_batch_sizes,
    bench_loop_delay,
    bench_opening,
    bench_latency,
    bench_replay,
    bench_fan_out,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="?", default="", help="run only the cases whose name holds this")
    parser.add_argument("--peers-python", help="not used: the peer is sqlite3 of the standard library")
    report = Report(parser.parse_args().only)
    for bench in BENCHES:
        bench(report)


if __name__ == "__main__":
    main()
