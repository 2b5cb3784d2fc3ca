"""The record of an ended run is made once, and a long run is read and forked without holding the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import RunGone
from agentflow.runtime.log_replay import LONG_BASE

STEPS = 600


@function(side_effect="none")
async def add(x: int) -> dict[str, int]:
    return {"x": x + 1}


def chain() -> Workflow:
    ids = [f"n{i}" for i in range(STEPS)] + ["end"]
    nodes = [ToolNode(id=ids[i], index=i, tool="desk.add", next=ids[i + 1]) for i in range(STEPS)]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=STEPS))
    )


@pytest.fixture
async def runtime(tmp_path: Path):
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", services=[Service.of("desk", add)]) as runtime:
        await runtime.run(runtime.load(chain()), {"x": 0}, workflow_id="wf_long")
        yield runtime


async def test_a_record_is_made_once_until_the_run_changes(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    reads: list[tuple[Any, ...]] = []
    read = runtime.log.read

    def counted(*arguments: Any) -> Any:
        reads.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(runtime.log, "read", counted)
    first = await runtime.record("wf_long")
    assert first.output == {"x": STEPS}
    assert reads
    reads.clear()
    assert await runtime.record("wf_long") == first
    assert not reads
    await runtime.delete("wf_long")
    with pytest.raises(RunGone):
        await runtime.record("wf_long")


async def test_a_long_fork_is_made_in_threads(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    aside: list[str] = []

    async def noted(call: Any, *arguments: Any) -> Any:
        aside.append(call.__name__)
        return await asyncio.to_thread(call, *arguments)

    for module in ("fork_source", "log_replay", "run_supervisor"):
        monkeypatch.setattr(f"agentflow.runtime.{module}.compute_aside", noted)
    fork = await runtime.fork("wf_long", from_step=f"n{STEPS - 1}")
    assert (await fork.result()).output == {"x": STEPS}
    assert len(await runtime.log.read("wf_long", 0, 10_000)) > LONG_BASE
    assert {"base_of", "_assemble", "record"} <= set(aside)
    aside.clear()
    assert (await runtime.fold(fork.workflow_id)).output == {"x": STEPS}
    assert {"decode_base", "evolve"} <= set(aside)
