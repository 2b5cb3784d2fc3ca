"""What is read of a run: records, states as of an offset, executions, contexts; beside the fold itself."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from agentflow import Runtime, Service, function
from agentflow.definition.failure import ErrorInfo
from agentflow.events.envelope import decode
from agentflow.models import ModelError
from agentflow.records.read_model import ReadModel
from agentflow.records.runs import StepNotFound
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.unit.server.kit import STEPS, agents, echo

WIDE = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: list
      agent: {systemPrompt: list, input: go, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: array, items: {type: string}}}
    - type: run
      id: each
      depends_on: [list]
      for_each: ${{ steps.list.outputs.result }}
      agent: {systemPrompt: each, input: "${{ item }}", attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
    - type: run
      id: never
      depends_on: [list]
      if: "false"
      agent: {systemPrompt: never, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""


def wide_model() -> ScriptedModel:
    return ScriptedModel(
        lambda r: ["a", "b", "c"] if r.messages[0].content == "list" else f'"{r.messages[-1].content}!"'
    )


@pytest.fixture
async def wide():
    async with Runtime(models=[wide_model()]) as runtime:
        handle = await runtime.submit(yaml.safe_load(WIDE))
        await handle.result()
        yield runtime, ReadModel(runtime.log), handle.workflow_id


class TestExecutions:
    async def test_iterations_and_skips(self, wide):
        _, views, run = wide
        record = await views.history(run)
        steps = [(s.step_id, s.iteration, s.state, s.output) for s in record.steps]
        assert ("list", None, "succeeded", ["a", "b", "c"]) in steps
        assert ("each", 1, "succeeded", "b!") in steps
        assert ("each", None, "succeeded", ["a!", "b!", "c!"]) in steps
        (skipped,) = [s for s in record.steps if s.state == "skipped"]
        assert (skipped.step_id, skipped.reason) == ("never", "condition_false")
        assert [a.iteration for a in record.agents] == [None, 0, 1, 2]
        assert all(m.usage is not None and m.finish_reason == "stop" for m in record.models)

    async def test_the_record_of_one_iteration(self, wide):
        _, views, run = wide
        one = await views.step(run, "each", 2)
        assert (one.data, one.iteration, one.attempt) == ("c!", 2, 1)
        whole = await views.step(run, "each")
        assert whole.data == ["a!", "b!", "c!"]
        assert (
            whole.event_offsets.first
            < one.event_offsets.first
            < one.event_offsets.last
            < whole.event_offsets.last
        )
        with pytest.raises(StepNotFound, match="iteration 3"):
            await views.step(run, "each", 3)
        with pytest.raises(StepNotFound, match="attempt 2"):
            await views.step(run, "each", None, 2)

    async def test_the_context_of_one_iteration(self, wide):
        _, views, run = wide
        found = await views.context(run, "each", 1)
        assert [m.content for m in found.messages] == ["each", "b", '"b!"']
        assert (await views.context(run, "each")).iteration == 2
        with pytest.raises(StepNotFound):
            await views.context(run, "never")

    async def test_tool_calls_with_their_messages(self):
        @function(side_effect="read")
        async def look(key: str) -> dict[str, str]:
            """Looks."""
            if key == "bad":
                raise ValueError("no such key")
            return {"found": key}

        model = ScriptedModel([[call("kit__look", key="x"), call("kit__look", key="bad")], "done"])
        async with Runtime(models=[model], services=[Service.of("kit", look)]) as runtime:
            document = agents("p")
            document["agents"][0]["tools"] = ["kit.look"]
            handle = await runtime.submit(document, "go")
            await handle.result()
            views = ReadModel(runtime.log)
            record = await views.history(handle.workflow_id)
            assert [(t.state, t.outcome, t.output) for t in record.tools] == [
                ("succeeded", "succeeded", {"found": "x"}),
                ("failed", "failed", None),
            ]
            assert record.tools[1].error is not None
            context = await views.context(handle.workflow_id, "agent_0")
            assert [m.role for m in context.messages] == [
                "system",
                "user",
                "assistant",
                "tool",
                "tool",
                "assistant",
            ]
            assert [t.name for t in context.tools] == ["kit__look"]
            assert record.agents[0].turns == 2

    async def test_failed_calls_and_attempts(self):
        down = ModelError(ErrorInfo(category="auth", code="authentication_failed", message="no"))
        async with Runtime(models=[ScriptedModel([down])]) as runtime:
            handle = await runtime.submit(agents("p"), "go")
            assert (await handle.rest()).state == "failed"
            record = await ReadModel(runtime.log).history(handle.workflow_id)
            assert [m.state for m in record.models] == ["failed"]
            assert record.agents[0].error.code == record.steps[0].error.code == "authentication_failed"
            assert record.workflow.error.code == "authentication_failed"

    async def test_of_a_fork_also_what_it_kept(self):
        async with Runtime(models=[echo()]) as runtime:
            handle = await runtime.submit(yaml.safe_load(STEPS), {"text": "a"})
            await handle.result()
            forked = await runtime.fork(handle.workflow_id, from_step="second")
            await forked.result()
            views = ReadModel(runtime.log)
            run = forked.workflow_id
            assert (await views.step(run, "first")).data == "a!"
            assert (await views.step(run, "second")).data == "a!!"
            state = await views.state(run)
            assert state.steps["first"].output == "a!"
            record = await views.record(run)
            assert record.forked_from.workflow_id == handle.workflow_id
            assert record.state == "completed"


class TestStates:
    async def test_every_prefix_is_the_fold_of_it(self, wide):
        runtime, views, run = wide
        last = await runtime.log.last(run)
        for offset in range(last + 1):
            state, fold = await views.state(run, offset), await runtime.fold(run, at=offset)
            assert (state.offset, state.state) == (offset, fold.status)
            assert {i: s.state for i, s in state.steps.items()} == {
                i: fold.nodes[i].status for i in fold.graph.step_ids
            }
        final = await views.state(run)
        assert final.steps["each"].items == {"succeeded": 3}
        assert final.output == (await views.record(run)).output

    async def test_what_is_kept_follows_the_log(self):
        release = asyncio.Event()

        async def answer(request):
            await release.wait()
            return "done"

        async with Runtime(models=[ScriptedModel(lambda r: answer(r))]) as runtime:
            handle = await runtime.submit(agents("p"), "go")
            views = ReadModel(runtime.log)
            before = await views.record(handle.workflow_id)
            assert before.state == "running"
            many = await asyncio.gather(*(views.record(handle.workflow_id) for _ in range(20)))
            assert {record.last_offset for record in many} == {before.last_offset}
            release.set()
            await handle.result()
            after = await asyncio.gather(*(views.record(handle.workflow_id) for _ in range(20)))
            assert {record.state for record in after} == {"completed"}
            fresh = await ReadModel(runtime.log).record(handle.workflow_id)
            assert all(record == fresh for record in after)

    async def test_more_runs_than_are_kept(self):
        async with Runtime(models=[echo()]) as runtime:
            views = ReadModel(runtime.log)
            runs = [await runtime.submit(agents("p"), str(i)) for i in range(80)]
            for run in runs:
                await run.result()
            for _ in range(2):
                for i, run in enumerate(runs):
                    assert (await views.record(run.workflow_id)).output == f"{i}!"
            assert len(vars(views)["_projections"]) <= 64

    async def test_a_budget_in_the_record(self):
        async with Runtime(models=[echo()]) as runtime:
            handle = await runtime.submit(agents("p"), "go", budget={"max_model_calls": 3})
            await handle.result()
            budget = (await ReadModel(runtime.log).record(handle.workflow_id)).budget
            assert budget.limits["max_model_calls"] == 3
            assert budget.used == {"max_model_calls": 1}
            assert budget.reserved == {"max_model_calls": 0}


async def test_lists_show_no_label_of_the_index():
    async with Runtime(models=[echo()]) as runtime:
        await (await runtime.submit(agents("p"), "x", labels={"a": "b"}, idempotency_key="k")).result()
        (item,) = (await ReadModel(runtime.log).summaries()).items
        assert item.labels == {"a": "b"}
        assert item.duration_ms is not None
        rows = await runtime.log.read(item.workflow_id)
        assert decode(rows[-1].body).timestamp == item.ended_at
