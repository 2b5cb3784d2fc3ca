"""Results of graph runs have one form on every way of running them (page 002 §12, §16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentflow import (
    Executor,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from tests.unit.server.kit import serving


class Part(msgspec.Struct, frozen=True):
    number: int


class Source(Executor):
    @handler
    async def on_count(self, count: int, ctx: WorkflowContext[Part, str]) -> None:
        await ctx.yield_output("begin")
        for number in range(count):
            await ctx.send_message(Part(number))


class Desk(Executor):
    @handler
    async def on_part(self, part: Part, ctx: WorkflowContext[Never, Part]) -> None:
        await ctx.yield_output(part)
        if part.number == 1:
            await ctx.request_info(part, bool)

    @response_handler
    async def on_word(self, part: Part, word: bool, ctx: WorkflowContext[Never, Part]) -> None:
        await ctx.yield_output(Part(100 + part.number))


@executor(id="notes")
async def notes(part: Part, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(f"note {part.number}")


def parts() -> Workflow:
    return (
        WorkflowBuilder("parts", output_from=["desk"])
        .set_start_executor(Source("source"))
        .add_fan_out_edges("source", [Desk("desk"), notes])
        .build()
    )


def check(result: Any, run_id: str, *, typed: bool) -> None:
    made = (lambda n: Part(n)) if typed else (lambda n: {"number": n})
    assert result.workflow_id == run_id
    assert result.get_outputs() == [made(0), made(1), made(101)]
    assert result.output == made(101)
    assert result.get_intermediate_outputs() == ["begin", "note 0", "note 1"]
    assert [e.offset for e in result.events] == list(range(len(result.events)))
    assert result.events[-1].type == "workflow.completed"
    assert result.checkpoint == f"{run_id}@{result.events[-1].offset}"
    assert (result.forked_from, result.undelivered, result.error) == (None, (), None)


def check_asked(result: Any, *, typed: bool) -> dict[str, Any]:
    (asked,) = result.pending_requests
    assert (asked.activation, asked.response_type, asked.step_id) == ("/desk#1", "bool", "desk")
    assert asked.data == (Part(1) if typed else {"$type": "Part", "number": 1})
    assert len(result.get_outputs()) == 2
    return {asked.request_id: True}


async def test_runtime_run_and_submit_give_what_workflow_run_gives():
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(parts(), 2)
        answers = check_asked(result, typed=True)
        await runtime.answer_all(result.workflow_id, answers)
        handle = await runtime.attach(result.workflow_id)
        check(await handle.result(), result.workflow_id, typed=True)
        check(await runtime.result(result.workflow_id), result.workflow_id, typed=True)
    workflow = parts()
    result = await workflow.run(2)
    result = await workflow.send_responses(result.workflow_id, check_asked(result, typed=True))
    check(result, result.workflow_id, typed=True)


async def test_a_runtime_that_does_not_know_the_types_gives_json(tmp_path: Path):
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with Runtime(url) as runtime:
        result = await runtime.run(parts(), 2)
        await runtime.answer_all(result.workflow_id, check_asked(result, typed=True))
        await runtime.result(result.workflow_id)
    async with Runtime(url) as runtime:
        check(await runtime.result(result.workflow_id), result.workflow_id, typed=False)


async def test_a_failed_run_has_its_partial_outputs():
    class Failing(Executor):
        @handler
        async def on_text(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(text)
            raise ValueError("no")

    workflow = WorkflowBuilder("w").set_start_executor(Failing("failing")).build()
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(workflow, "a", raise_on_failure=False)
    assert (result.state, result.get_outputs()) == ("failed", ["a"])
    assert result.events[-1].type == "workflow.failed"


async def test_a_fork_has_the_outputs_that_it_kept():
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(parts(), 2)
        answers = check_asked(result, typed=True)
        fork = await runtime.fork(result.workflow_id)
        asked = await fork.result()
        await fork.answer_all({r.request_id: True for r in asked.pending_requests})
        found = await fork.result()
        assert answers.keys() != {r.request_id for r in asked.pending_requests}
    assert found.get_outputs() == [Part(0), Part(1), Part(101)]
    assert found.forked_from.workflow_id == result.workflow_id


async def test_the_client_of_a_daemon_gives_the_same_as_json(tmp_path: Path):
    workflow = parts()
    async with serving(tmp_path) as served, served.client() as client:
        served.runtime.register(workflow)
        handle = await served.runtime.submit(workflow, 2)
        result = await client.result(handle.workflow_id)
        (asked,) = result.pending_requests
        assert (asked.activation, asked.data) == ("/desk#1", {"$type": "Part", "number": 1})
        fork = await client.fork(handle.workflow_id)
        await client.answer_all(handle.workflow_id, {asked.request_id: True})
        check(await client.result(handle.workflow_id), handle.workflow_id, typed=False)
        again = await fork.result()
        await fork.answer_all({r.request_id: True for r in again.pending_requests})
        found = await fork.result()
    assert found.get_outputs() == [{"number": 0}, {"number": 1}, {"number": 101}]
