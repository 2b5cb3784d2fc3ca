"""Waits of node graphs while the wall clock steps, in a run and before a restart (page 003 §4).

Each ends once, and none is lost. On the virtual clock; `LoopClock.step` is how far the wall clock is off.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.testing import virtual
from agentflow import Runtime, Service, function
from agentflow.definition import load_value
from agentflow.events.envelope import iso, micros
from agentflow.events.memory import MemoryLog
from tests.integration.virtual import LoopClock, seconds

HOUR = 3_600_000_000
STEPS = [-HOUR, HOUR]
_START = 1_700_000_000_000_000
_GATE = {"key_path": "input.k", "window": 60}
_RETRY = {"max_attempts": 2, "backoff": "60s", "max_elapsed": "3h", "jitter": 0}

WAITS: dict[str, dict[str, Any]] = {
    "duration": {"type": "wait", "duration": 60},
    "until": {"type": "wait", "until": iso(_START + 60_000_000)},
    "person": {"type": "human_in_the_loop", "input_type": "text", "timeout": 60, "on_timeout": "end"},
    "approval": {
        "type": "human_in_the_loop",
        "timeout": 60,
        "on_timeout": "end",
        "on_approve": "start2",
        "on_reject": "start2",
    },
    "signal": {"type": "event_trigger", "event": "go", "timeout": 60, "on_timeout": "end"},
    "debounce": {"type": "debounce", "mode": "trailing", **_GATE},
    "shared debounce": {"type": "debounce", "mode": "trailing", "scope": "definition", **_GATE},
    "throttle": {"type": "throttle", "mode": "delay", **_GATE},
    "shared throttle": {"type": "throttle", "mode": "delay", "scope": "definition", **_GATE},
    "retry": {"type": "tool", "tool": "s.fails_once", "input": {}, "policy": {"retry": _RETRY}},
    "merge": {},
    "deadline": {"type": "event_trigger", "event": "go"},
}
_TIMERS = {"person": 0, "approval": 0, "retry": 0, "deadline": 0}
"""How many `timer.fired` a wait has; one, where nothing is said."""


def graph(name: str) -> Any:
    """Return a graph whose one wait ends after 60 s."""
    start, end = {"id": "start", "type": "start", "next": "n"}, {"id": "end", "type": "end"}
    node = {"id": "n", **WAITS[name]}
    others: list[dict[str, Any]] = []
    options: dict[str, Any] = {}
    if "throttle" in name:  # the second arrival waits
        twice = {"id": "n", "type": "loop", "condition": "nodes.n.count < 2", "body": "t", "next": "end"}
        node, others = {**twice, "max_iterations": 2}, [{**node, "id": "t", "next": "n"}]
    elif name == "merge":
        trigger = {"type": "event_trigger", "event": "go", "next": "m"}
        node = {"id": "n", "type": "parallel", "branches": ["a", "b"], "next": "m"}
        merge = {"sources": ["a", "b"], "policy": "all", "timeout": 60, "on_timeout": "end", "next": "end"}
        others = [{"id": "a", **trigger}, {"id": "b", **trigger}, {"id": "m", "type": "merge", **merge}]
    elif name == "approval":
        others = [{"id": "start2", "type": "transform", "value": 1, "next": "end"}]
    else:
        node["next"] = "end"
        options = {"timeout": 60} if name == "deadline" else {}
    return load_value({"name": "w", "options": options, "nodes": [start, node, *others, end]})


def service() -> Service:
    failed: list[int] = []

    @function(side_effect="none")
    async def fails_once() -> int:
        """Fail once."""
        if not failed:
            failed.append(1)
            raise ValueError("not yet")
        return 1

    return Service.of("s", fails_once)


async def must_have_ended_once(runtime: Runtime, run: str, name: str) -> list[Any]:
    """Follow the run to its end; return its events."""
    events = [event async for event in runtime.events(run)]
    types = [event.type for event in events]
    assert types[-1] == ("workflow.failed" if name == "deadline" else "workflow.completed")
    assert types.count("timer.fired") == _TIMERS.get(name, 1)
    assert types.count("timer.cancelled") == 0
    return events


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", [n for n in WAITS if n not in ("until", "shared throttle")])
@virtual
async def test_a_wait_keeps_its_length_when_the_clock_steps(name: str, step: int):
    clock = LoopClock()
    async with Runtime(services=[service()], clock=clock) as runtime:
        handle = await runtime.submit(graph(name), {"k": "a"})
        await asyncio.sleep(20)
        clock.step = step
        await must_have_ended_once(runtime, handle.workflow_id, name)
        assert seconds() == pytest.approx(60, abs=0.1)


@pytest.mark.parametrize("name", [n for n in WAITS if n != "shared throttle"])
@pytest.mark.parametrize("step", STEPS)
@virtual
async def test_a_wait_is_due_by_the_wall_clock_after_a_restart(name: str, step: int):
    clock, log, services = LoopClock(), MemoryLog(), [service()]
    async with Runtime(log, services=services, clock=clock, grace=0.01) as runtime:
        run = (await runtime.submit(graph(name), {"k": "a"})).workflow_id
        await asyncio.sleep(20)
    clock.step = step
    await asyncio.sleep(10)
    async with Runtime(log, services=services, clock=clock) as runtime:
        began = seconds()
        await runtime.resume(run)
        await must_have_ended_once(runtime, run, name)
        assert seconds() - began <= (0.1 if step > 0 else 3_630.1)
    await log.close()


@pytest.mark.parametrize("step", STEPS)
@virtual
async def test_a_moment_comes_when_the_wall_clock_says_so(step: int):
    """It came an hour early when the clock was set back by one."""
    clock = LoopClock()
    async with Runtime(clock=clock) as runtime:
        handle = await runtime.submit(graph("until"), {})
        await asyncio.sleep(20)
        clock.step = step
        events = await must_have_ended_once(runtime, handle.workflow_id, "until")
    fired = next(event for event in events if event.type == "timer.fired")
    assert micros(fired.timestamp) >= _START + 60_000_000
    assert seconds() == pytest.approx(3_660 if step < 0 else 60, abs=0.1)


@virtual
async def test_a_moment_in_a_copy_of_a_run_is_the_same():
    """A fork moved it by the time since its last event."""
    clock = LoopClock()
    async with Runtime(clock=clock) as runtime:
        handle = await runtime.submit(graph("until"), {})
        await handle.rest()
        await asyncio.sleep(20)
        last = [e.offset async for e in runtime.events(handle.workflow_id, follow=False)][-1]
        copy = await runtime.fork(handle.workflow_id, offset=last)
        await must_have_ended_once(runtime, copy.workflow_id, "until")
        assert seconds() == pytest.approx(60, abs=0.1)


@virtual
async def test_a_shared_throttle_measures_by_the_wall_clock_that_processes_share():
    """A clock that is set back by an hour delays its turn by as much, and loses none."""
    clock = LoopClock()
    async with Runtime(clock=clock) as runtime:
        handle = await runtime.submit(graph("shared throttle"), {"k": "a"})
        await asyncio.sleep(20)
        clock.step = -HOUR
        types = [event.type async for event in handle.events()]
        assert (types[-1], types.count("timer.fired")) == ("workflow.completed", 2)
        assert seconds() == pytest.approx(3_660, abs=0.1)
