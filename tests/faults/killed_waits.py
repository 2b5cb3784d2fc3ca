"""A process with one run for each durable wait of page 003 §4, which prints their events as they are durable.

`begin STORE` begins the runs and follows them; `end STORE` takes them up, answers and signals, follows them
to their ends, and prints how many events of each type they have.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

from agentflow import Runtime
from agentflow.definition import load_value
from agentflow.errors import CommandRefused

__all__ = ["WAITS"]

_GATE = {"key_path": "input.k", "window": 0.5}
WAITS: dict[str, dict[str, Any]] = {
    "wait": {"type": "wait", "duration": 0.5},
    "person": {"type": "human_in_the_loop", "input_type": "text"},
    "approval": {"type": "human_in_the_loop", "on_approve": "end", "on_reject": "end"},
    "in time": {"type": "human_in_the_loop", "input_type": "text", "timeout": 0.5, "on_timeout": "end"},
    "signal": {"type": "event_trigger", "event": "go"},
    "debounce": {"type": "debounce", "mode": "trailing", **_GATE},
    "shared debounce": {"type": "debounce", "mode": "trailing", "scope": "definition", **_GATE},
    "throttle": {"type": "throttle", "mode": "delay", **_GATE},
    "shared throttle": {"type": "throttle", "mode": "delay", "scope": "definition", **_GATE},
    "window": {"type": "batch", "max_wait": 0.5},
}
"""By name, which is that of the run with `_` for a blank."""


def _graph(name: str) -> Any:
    start, end = {"id": "start", "type": "start", "next": "n"}, {"id": "end", "type": "end"}
    node, others = {"id": "n", **WAITS[name]}, list[dict[str, Any]]()
    edges: list[dict[str, str]] = []
    if "throttle" in name:  # the second arrival waits
        others = [{**node, "id": "t", "next": "n"}]
        twice = {"type": "loop", "condition": "nodes.n.count < 2", "body": "t", "max_iterations": 2}
        node = {"id": "n", **twice, "next": "end"}
    elif name != "approval":
        node["next"] = "end"
    if name == "window":  # while a signal may still bring another item
        others = [{"id": "later", "type": "event_trigger", "event": "go", "next": "n"}]
        edges = [{"source": "start", "target": "later"}]
    nodes = [start, node, *others, end]
    return load_value({"name": name, "nodes": nodes, "edges": edges})


async def _follow(runtime: Runtime, run: str) -> dict[str, int]:
    """Print the events of a run up to its end; return how many there are of each type."""
    seen: Counter[str] = Counter()
    async for event in runtime.events(run):
        seen[event.type] += 1
        print(run, event.type, flush=True)
    return dict(seen)


async def _answer(runtime: Runtime) -> None:
    for request in await runtime.requests("wf_person"):
        await runtime.answer("wf_person", request.request_id, "yes")
    for request in await runtime.requests("wf_approval"):
        await runtime.decide("wf_approval", granted=True, request_id=request.request_id)
    await runtime.signal("wf_signal", "go", {"n": 1}, signal_id="sig_once")


async def _main(verb: str, store: str) -> None:
    runs = {f"wf_{name.replace(' ', '_')}": name for name in WAITS}
    async with Runtime(store) as runtime:
        for run, name in runs.items():
            if verb == "begin":
                await runtime.submit(_graph(name), {"k": name}, workflow_id=run)
            else:
                with suppress(CommandRefused):  # it has ended before the kill
                    await runtime.resume(run)
        if verb != "begin":
            await _answer(runtime)
        counts = await asyncio.gather(*(_follow(runtime, run) for run in runs))
        print(json.dumps(dict(zip(runs, counts, strict=True))), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2]))
