"""Figures of a SQLite store of many runs: `python -m tests.benchmarks.events.scale [RUNS]`.

Start, look-ups by key and by label, a page of the list, the dry run of retention, and retention that takes
half of the runs; each with its memory.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentflow.events.open import open_log
from agentflow.events.retention import RetentionPolicy
from agentflow.runtime.retention import collect, retention_plan
from tests.benchmarks.events.many_runs import T0, key_of, make_store


def _memory() -> float:
    """Return the largest resident size so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _median(call: Callable[[int], Awaitable[Any]], times: int = 200) -> float:
    found: list[float] = []
    for number in range(times):
        began = time.perf_counter()
        await call(number)
        found.append(time.perf_counter() - began)
    return statistics.median(found) * 1_000


async def measure(path: Path, runs: int) -> None:
    """Print the figures of the store at `path`."""
    began = time.perf_counter()
    log = open_log(f"sqlite:{path}")
    page = await log.runs(limit=50)
    print(f"start and first list: {time.perf_counter() - began:.2f} s, {len(page.items)} rows")
    step = max(1, runs // 200)
    print(f"by key: {await _median(lambda n: log.run(key_of(n * step))):.2f} ms")
    print(
        f"by label: {await _median(lambda n: log.runs(label=('customer', str(n % 1_000)), limit=50)):.2f} ms"
    )
    print(f"list of 50: {await _median(lambda n: log.runs(limit=50)):.2f} ms")
    base = _memory()
    policy = RetentionPolicy(mode="age", max_age=0.001 * runs / 2)
    now = T0 + runs * 1_000
    began, cpu = time.perf_counter(), time.process_time()
    plan = await retention_plan(log, policy, now)
    print(
        f"dry run: {plan.removal_count:,} of {plan.runs:,} runs, {time.perf_counter() - began:.1f} s"
        f" ({time.process_time() - cpu:.1f} s CPU), {_memory() - base:.0f} MB more"
    )
    size = RetentionPolicy(mode="size", max_bytes=plan.bytes // 2)
    began = time.perf_counter()
    plan = await retention_plan(log, size, now)
    took = time.perf_counter() - began
    print(f"by size: {plan.removal_count:,} runs, {took:.1f} s, {_memory() - base:.0f} MB more")
    began, cpu = time.perf_counter(), time.process_time()
    done = await collect(log, policy, now)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    print(
        f"gc: {done.done_count:,} runs, {took:.1f} s ({used:.1f} s CPU), {done.done_count / took:,.0f} a"
        f" second, {done.done_count / used:,.0f} a CPU second, {_memory() - base:.0f} MB more"
    )
    await log.close()


def main() -> None:
    """Make a store and measure it."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        began = time.perf_counter()
        make_store(path, runs)
        print(
            f"{runs:,} runs, {path.stat().st_size / 1e6:.0f} MB, made in {time.perf_counter() - began:.0f} s"
        )
        asyncio.run(measure(path, runs))


if __name__ == "__main__":
    main()
