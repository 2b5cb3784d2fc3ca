"""The daemon's event loop is held for at most 100 ms while 16 clients post the worst documents and inputs.

A fork of a run of 100,000 events holds it for at most 50 ms.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.server.heap import tuned_interpreter
from tests.faults.lagging import probe
from tests.faults.loop_lag import (
    COMMANDS,
    LIMIT_MS,
    SUBMISSIONS,
    VALUES,
    measure,
    measure_command,
    slowness,
    worst_bodies,
)
from tests.faults.worst_schemas import WORST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", [*WORST, *VALUES, *SUBMISSIONS])
async def test_sixteen_clients_hold_the_loop_for_no_longer_than_the_limit(name: str, tmp_path: Path):
    factor = slowness()
    held = await measure(worst_bodies(name), tmp_path)
    assert max(held.values()) <= LIMIT_MS * factor, held


@pytest.mark.parametrize("name", COMMANDS)
async def test_sixteen_commands_hold_the_loop_for_no_longer_than_the_limit(name: str, tmp_path: Path):
    factor = slowness()
    assert await measure_command(name, tmp_path) <= LIMIT_MS * factor


@function(side_effect="none")
async def items() -> list[int]:
    return list(range(8_400))


@function(side_effect="none")
async def work(item: int) -> int:
    return item


@function(side_effect="none")
async def last() -> int:
    return 1


def long_workflow() -> Workflow:
    """Three steps of 8,400 items, four events each, and a last one."""
    first = ToolNode(id="items", index=0, join="all_succeeded", tool="long.items", input={})
    works = [
        ToolNode(
            id=f"work{n}",
            index=n + 1,
            join="all_succeeded",
            depends_on=("items",),
            for_each="${{ steps.items.outputs.result }}",
            max_parallel=100,
            tool="long.work",
            input={"item": "${{ item }}"},
        )
        for n in range(3)
    ]
    names = tuple(node.id for node in works)
    join = ToolNode(id="last", index=4, join="all_succeeded", depends_on=names, tool="long.last", input={})
    end = EndNode(id="end", index=5, drain=True)
    return Workflow(name="long", nodes=(StartNode(id="start"), first, *works, join, end))


async def lags_of_forks(runtime: Runtime, folder: Path) -> dict[str, float]:
    """Fork a run of 100,000 events at its end, before its last step, and that fork again; return for how many
    milliseconds each fork held the loop at most."""
    source = (await runtime.run(runtime.load(long_workflow()))).workflow_id
    end = (await runtime.log.run(source)).last_offset
    assert end > 100_000
    held: dict[str, float] = {}
    for name in ("at its end", "before its last step", "of the fork"):
        lags = folder / f"fork {name}"
        probing = asyncio.create_task(probe(lags))
        await asyncio.sleep(0)  # the probe begins to measure
        if name == "at its end":
            fork = await runtime.fork(source, offset=end - 6)
        else:
            fork = await runtime.fork(source, from_step="last")
        assert (await fork.result()).state == "completed"
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing
        held[name] = largest(lags)
        source = fork.workflow_id
    return held


def largest(lags: Path) -> float:
    return max((float(line) for line in lags.read_text().split()), default=0.0)


async def test_a_fork_of_100000_events_holds_the_loop_for_at_most_50_ms(tmp_path: Path):
    factor = slowness()
    service = Service.of("long", items, work, last, max_concurrency=100)
    with tuned_interpreter():
        async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", services=[service]) as runtime:
            held = await lags_of_forks(runtime, tmp_path)
    assert max(held.values()) <= 50 * factor, held
