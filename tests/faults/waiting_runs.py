"""Many runs that wait, in a process of its own, which prints what they cost: lines of JSON.

`python -m tests.faults.waiting_runs begin STORE COUNT` submits them and says how memory grew over the second
half; `… wake STORE` takes them up anew, answers one, and says what moved.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from agentflow import Runtime
from agentflow.definition import load_value

WAITS: tuple[dict[str, Any], ...] = (
    {"type": "human_in_the_loop", "on_approve": "end", "on_reject": "end"},
    {"type": "human_in_the_loop", "input_type": "text", "next": "end", "timeout": "30d"},
    {"type": "event_trigger", "event": "go", "next": "end"},
    {"type": "wait", "duration": "30d", "next": "end"},
)
AT_ONCE = 64


def documents() -> list[Any]:
    """Return a graph for each kind of wait."""
    ends = [{"id": "start", "type": "start", "next": "ask"}, {"id": "end", "type": "end"}]
    return [load_value({"name": "w", "nodes": [*ends, {"id": "ask", **one}]}) for one in WAITS]


def memory() -> int:
    """Return the bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096


async def begin(store: str, count: int) -> None:
    """Submit the runs and let each rest."""
    graphs, started, half = documents(), time.perf_counter(), 0
    async with Runtime(store) as runtime:
        for first in range(0, count, AT_ONCE):
            if first <= count // 2 < first + AT_ONCE:
                half = memory()
            ids = range(first, min(first + AT_ONCE, count))
            handles = [runtime.submit(graphs[i % 4], {}, workflow_id=f"wf_{i:07}") for i in ids]
            for handle in await asyncio.gather(*handles):
                result = await handle.result()
                assert result.state == "waiting", result
        grown = memory() - half
    say(phase="begun", runs=count, grown=grown, seconds=round(time.perf_counter() - started, 1))


async def wake(store: str) -> None:
    """Take up what waits, and answer one run."""
    async with Runtime(store) as runtime:
        before, started = memory(), time.perf_counter()
        waiting = await runtime.recover()
        recovered = time.perf_counter() - started
        count = len(waiting)
        del waiting
        held = memory() - before
        lengths = await rows_of(runtime)
        started = time.perf_counter()
        handle = await runtime.decide("wf_0000000", granted=True, step_id="ask")
        result = await handle.result()
        answered = time.perf_counter() - started
        after = await rows_of(runtime)
        woken = [run for run, length in after.items() if lengths[run] != length]
    say(
        phase="woken",
        runs=count,
        state=result.state,
        woken=woken,
        held=held,
        seconds=round(recovered, 2),
        answer_ms=round(answered * 1_000, 1),
    )


async def rows_of(runtime: Runtime) -> dict[str, int]:
    """Return the length of the log of every run."""
    found: dict[str, int] = {}
    cursor = None
    while True:
        page = await runtime.log.runs(limit=200, cursor=cursor)
        found |= {row.workflow_id: row.last_offset for row in page.items}
        cursor = page.next_cursor
        if cursor is None:
            return found


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "begin":
        asyncio.run(begin(sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(wake(sys.argv[2]))
