"""CheckpointStorage lists, loads and exports the checkpoints of every kind of store, and writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentflow import CheckpointStorage, Runtime, WorkflowBuilder, WorkflowContext, executor
from agentflow.errors import CheckpointNotFound, ConfigurationError, RunNotFound
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.graphs.homes import close_runtimes
from agentflow.records.export import open_export


@executor(id="first")
async def first(n: int, ctx: WorkflowContext[int]) -> None:
    ctx.set_shared_state("n", n)
    await ctx.send_message(n + 1)


@executor(id="last")
async def last(n: int, ctx: WorkflowContext[Never, int]) -> None:
    ctx.set_shared_state("n", n)
    await ctx.yield_output(n)


def builder() -> WorkflowBuilder:
    return WorkflowBuilder("w").set_start_executor(first).add_edge(first, last)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
async def test_a_store_is_read_by_checkpoints(kind: str, tmp_path: Path):
    url = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/runs.db", "file": f"file:{tmp_path}/runs"}[kind]
    async with Runtime(url) as runtime:
        result = await runtime.run(builder().build(), 1)
        storage = CheckpointStorage(runtime)
        points = await storage.list(result.workflow_id)
        assert [point.cause for point in points] == ["start", "superstep", "superstep", "terminal"]
        assert await storage.latest(result.workflow_id) == points[-1]
        states = [await storage.load(point) for point in points]
        assert [state.offset for state in states] == [point.offset for point in points]
        assert states[0].state == "pending"
        assert states[-1].state == "completed"
        body = await storage.export(points[1].id)
    exported = tmp_path / "run.ndjson"
    exported.write_bytes(body)
    opened = (await open_export(exported)).log
    assert (await opened.run(result.workflow_id)).last_offset == points[1].offset
    assert await CheckpointStorage(opened).list(result.workflow_id) == points[:2]


async def test_a_url_is_opened_for_each_call_beside_the_process_that_writes(tmp_path: Path):
    url = f"sqlite:{tmp_path}/runs.db"
    storage = CheckpointStorage(url)
    async with Runtime(url) as runtime:
        result = await runtime.run(builder().build(), 1)
        assert len(await storage.list(result.workflow_id)) == 4
    assert (await storage.latest(result.workflow_id)).cause == "terminal"


async def test_a_workflow_runs_in_the_store_of_a_storage():
    log = MemoryLog()
    storage = CheckpointStorage(log)
    workflow = builder().with_checkpointing(storage).build()
    try:
        result = await workflow.run(1)
        assert (await storage.latest(result.workflow_id)).id == result.checkpoint
        fork = await workflow.run_from_checkpoint((await storage.list(result.workflow_id))[0].id)
        assert fork.get_outputs() == [2]
    finally:
        await close_runtimes()


@pytest.mark.parametrize("method", ["load", "export"])
@pytest.mark.parametrize("id", ["nothing", "wf_none@0", "wf_none@x", "{run}@999"])
async def test_what_is_no_checkpoint_is_not_found(method: str, id: str):
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(builder().build(), 1)
        with pytest.raises(CheckpointNotFound):
            await getattr(CheckpointStorage(runtime), method)(id.format(run=result.workflow_id))


@pytest.mark.parametrize("method", ["list", "latest"])
async def test_checkpoints_of_a_run_that_is_not_there(method: str):
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(RunNotFound):
            await getattr(CheckpointStorage(runtime), method)("wf_none")


@pytest.mark.parametrize("store", ["memory:", "nothing:here"])
async def test_a_url_that_nothing_can_be_read_from_is_refused(store: Any):
    with pytest.raises(ConfigurationError):
        await CheckpointStorage(store).list("wf_none")
