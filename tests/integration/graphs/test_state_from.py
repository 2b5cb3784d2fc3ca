"""`state_from`: a run begins with the private and shared state of a checkpoint of another (page 002 §7)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from agentflow import Executor, Runtime, Workflow, WorkflowBuilder, WorkflowContext, handler, reducers
from agentflow.errors import CheckpointNotFound, InvalidEdit, RunExists
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from tests.integration.executors.crashes import cut_log, drive
from tests.integration.support.runs import must_be_sound


class Counter(Executor):
    """Counts by ctx, in an attribute, and in the shared state."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.state: list[str] = []

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        number = ctx.get_state("seen", 0) + 1
        ctx.set_state("seen", number)
        self.state = [*self.state, text]
        ctx.set_shared_state("total", 1)
        total = ctx.get_shared_state("total", 0)
        await ctx.yield_output(f"{number} {total} {','.join(self.state)}")


def counting(policy: Any = "superstep", total: Any = int, name: str = "counting") -> Workflow:
    return (
        WorkflowBuilder(name, policy=policy)
        .add_shared("total", total, reducer=reducers.add)
        .set_start_executor(Counter("counter"))
        .build()
    )


@pytest.mark.parametrize("policy", ["superstep", "eager"])
async def test_a_run_goes_on_with_the_state_of_a_checkpoint_and_with_nothing_else_of_its_run(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        workflow = counting(policy)
        first = await runtime.run(workflow, "a")
        (*_, last) = await runtime.checkpoints(first.workflow_id)
        second = await runtime.run(workflow, "b", state_from=last.id)
        again = await runtime.run(workflow, "b")
        assert (first.output, second.output, again.output) == ("1 1 a", "2 2 a,b", "1 1 b")
        started = decode((await runtime.log.read(second.workflow_id, 0, 1))[0].body).data
        assert (started.state_from, started.forked_from) == (last.id, UNSET)
        await must_be_sound(runtime, second.workflow_id)


async def test_the_state_is_that_of_the_checkpoint_and_not_of_the_end():
    async with Runtime(MemoryLog()) as runtime:
        first = await runtime.run(counting(), "a")
        start, *_ = await runtime.checkpoints(first.workflow_id)
        second = await runtime.run(counting(), "b", state_from=start.id)
    assert second.output == "1 1 b"


async def test_another_graph_takes_what_its_nodes_and_keys_are_named_alike():
    class Other(Executor):
        @handler
        async def on_text(self, text: str, ctx: WorkflowContext[Never, int]) -> None:
            await ctx.yield_output(ctx.get_state("seen", 0) + ctx.get_shared_state("total", 0))

    other = WorkflowBuilder("other").set_start_executor(Other("other")).build()
    async with Runtime(MemoryLog()) as runtime:
        first = await runtime.run(counting(), "a")
        (*_, last) = await runtime.checkpoints(first.workflow_id)
        assert (await runtime.run(other, "b", state_from=last.id)).output == 1


@pytest.mark.parametrize("id", ["nothing", "wf_none@3", "{}@999"])
async def test_an_unknown_checkpoint_begins_no_run(id: str):
    async with Runtime(MemoryLog()) as runtime:
        first = await runtime.run(counting(), "a")
        with pytest.raises(CheckpointNotFound):
            await runtime.submit(counting(), "b", state_from=id.format(first.workflow_id))
        assert len((await runtime.log.runs(limit=10)).items) == 1


async def test_a_value_that_does_not_fit_the_declared_type_begins_no_run():
    async with Runtime(MemoryLog()) as runtime:
        first = await runtime.run(counting(), "a")
        (*_, last) = await runtime.checkpoints(first.workflow_id)
        with pytest.raises(InvalidEdit, match=r"shared\.total: the key takes str, not int"):
            await runtime.submit(counting(total=str, name="other"), "b", state_from=last.id)


async def test_a_repeated_id_is_the_same_run_only_with_the_same_state():
    async with Runtime(MemoryLog()) as runtime:
        first = await runtime.run(counting(), "a")
        (*_, last) = await runtime.checkpoints(first.workflow_id)
        for _ in range(2):
            same = await runtime.run(counting(), "b", workflow_id="wf_x", state_from=last.id)
            assert same.output == "2 2 a,b"
        with pytest.raises(RunExists):
            await runtime.run(counting(), "b", workflow_id="wf_x")


async def test_workflow_run_takes_state_from_and_a_fork_of_that_run_keeps_it():
    workflow = counting()
    first = await workflow.run("a")
    second = await workflow.run("b", state_from=first.checkpoint)
    assert second.output == "2 2 a,b"
    fork = await workflow.run_from_checkpoint((await workflow.list_checkpoints(second.workflow_id))[0].id)
    assert fork.output == "2 2 a,b"


async def test_the_state_is_there_after_a_crash_at_every_event():
    log = MemoryLog()
    async with Runtime(log) as runtime:
        first = await runtime.run(counting(), "a")
        (*_, last) = await runtime.checkpoints(first.workflow_id)
        handle = await runtime.submit(counting(), "b", state_from=last.id)
        whole = await drive(runtime, handle.workflow_id)
        rows = await log.read(handle.workflow_id, 0, 1000)
    assert whole.outputs == ["2 2 a,b"]
    for upto in range(1, len(rows)):
        built = counting()
        cut: Any = await cut_log(handle.workflow_id, built, rows[:upto])  # type: ignore[arg-type]
        async with Runtime(cut) as runtime:
            runtime.register(built)
            await runtime.recover()
            assert await drive(runtime, handle.workflow_id) == whole
            await must_be_sound(runtime, handle.workflow_id)
