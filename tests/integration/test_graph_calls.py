"""`run_workflow_graph`: models run registered workflows (page 003 §12)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import DefinitionError, Runtime
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import log_of
from tests.integration.virtual import LoopClock

TOOL = {
    "name": "run_workflow_graph",
    "description": "Runs a workflow.",
    "input_schema": {
        "type": "object",
        "properties": {"workflow_id": {"type": "string"}, "input": {}},
        "required": ["workflow_id"],
        "additionalProperties": False,
    },
}


def asking(name: str = "caller", **fields: Any) -> dict[str, Any]:
    node = {"model": "scripted:m", "prompt": "p", "tools": [TOOL], **fields}
    return {
        "id": name,
        "entry_node": "a",
        "nodes": [{"id": "a", "node_type": {"llm_call": node}}],
        "edges": [],
    }


def doubled() -> dict[str, Any]:
    node = {"id": "d", "node_type": {"transform": {"value": {"got": "{{ input.x }}"}}}}
    return {"id": "doubled", "entry_node": "d", "nodes": [node], "edges": []}


def waiting() -> dict[str, Any]:
    node = {"id": "w", "node_type": {"wait": {"duration": "1h"}}}
    return {"id": "waiting", "entry_node": "w", "nodes": [node], "edges": []}


async def children(runtime: Runtime) -> list[Any]:
    return [row for row in (await runtime.log.runs(limit=50)).items if "called_by" in row.labels]


async def test_a_model_runs_a_registered_workflow():
    model = ScriptedModel([call("run_workflow_graph", workflow_id="doubled", input={"x": 4}), "done"])
    async with Runtime(models=[model]) as runtime:
        runtime.register("doubled", doubled())
        result = await runtime.run(asking(), {}, workflow_id="wf_a")
        (child,) = await children(runtime)
        assert child.labels["called_by"] == "wf_a"
    assert result.output == "done"
    said = model.requests[1].messages[-1].content
    assert child.workflow_id in said
    assert '{"got":4}' in said


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_run_is_no_more_trusted_than_its_caller(trusted: bool):
    model = ScriptedModel([call("run_workflow_graph", workflow_id="doubled", input={"x": 4}), "done"])
    async with Runtime(models=[model]) as runtime:
        runtime.register("doubled", doubled())
        await (await runtime.submit(asking(), {}, trusted=trusted)).result()
        (child,) = await children(runtime)
        begun = (await log_of(runtime.log, child.workflow_id))[0].data
    assert begun.options.get("trusted", True) is trusted


async def test_an_unknown_workflow_is_an_error_for_the_model():
    model = ScriptedModel([call("run_workflow_graph", workflow_id="nothing"), "sorry"])
    async with Runtime(models=[model]) as runtime:
        assert (await runtime.run(asking(), {})).output == "sorry"
    assert "subgraph_not_found" in model.requests[1].messages[-1].content


async def test_workflows_that_run_themselves_end_at_a_depth_of_three():
    def answer(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return "failed" if "depth_exceeded" in request.messages[-1].content else "done"
        return call("run_workflow_graph", workflow_id="caller")

    async with Runtime(models=[ScriptedModel(answer)]) as runtime:
        runtime.register("caller", asking())
        assert (await runtime.run(asking(), {})).output == "done"
        runs = await children(runtime)
        assert len(runs) == 3
        assert sorted([(await runtime.record(row.workflow_id)).output for row in runs]) == [
            "done",
            "done",
            "failed",
        ]


async def test_only_a_node_that_names_it_is_offered_the_function():
    model = ScriptedModel(["x"])
    agent = {
        "id": "a",
        "node_type": {"agent": {"agent": {"system_prompt": "s", "model": "scripted:m", "functions": None}}},
    }
    async with Runtime(models=[model]) as runtime:
        await runtime.run({"id": "w", "entry_node": "a", "nodes": [agent], "edges": []}, {})
        assert await runtime.tools() == []
        with pytest.raises(DefinitionError, match="E_TOOL_UNKNOWN"):
            await runtime.submit(asking(tools=[{**TOOL, "name": "run_workflow_graphs"}]), {})
    assert model.requests[0].tools == ()


@virtual
async def test_a_call_that_a_restart_repeats_finds_its_run():
    model = ScriptedModel([call("run_workflow_graph", workflow_id="waiting"), "done"])
    log = MemoryLog()
    async with Runtime(log, models=[model], clock=LoopClock()) as runtime:
        runtime.register("waiting", waiting())
        await runtime.submit(asking(), {}, workflow_id="wf_a")
        await run_until_idle()
        (child,) = await children(runtime)
    async with Runtime(log, models=[model], clock=LoopClock(), recover=True) as runtime:
        runtime.register("waiting", waiting())
        await asyncio.sleep(3_700)
        await run_until_idle()
        assert (await runtime.record("wf_a")).output == "done"
        assert [row.workflow_id for row in await children(runtime)] == [child.workflow_id]


@virtual
async def test_a_run_is_cancelled_with_its_caller():
    model = ScriptedModel([call("run_workflow_graph", workflow_id="waiting"), "done"])
    async with Runtime(models=[model], clock=LoopClock()) as runtime:
        runtime.register("waiting", waiting())
        handle = await runtime.submit(asking(), {}, workflow_id="wf_a")
        await run_until_idle()
        await (await handle.cancel(mode="hard")).rest()
        await run_until_idle()
        (child,) = await children(runtime)
        assert child.state == "cancelled"


@virtual
async def test_a_run_that_is_called_takes_no_slot_of_its_own():
    """With one slot both would wait for ever; nor may it take one after a restart."""
    model = ScriptedModel([call("run_workflow_graph", workflow_id="waiting"), "done", "done"])
    log = MemoryLog()
    async with Runtime(log, models=[model], clock=LoopClock(), max_concurrent_runs=1) as runtime:
        runtime.register("waiting", waiting())
        await runtime.submit(asking(), {}, workflow_id="wf_a")
        await run_until_idle()
        (child,) = await children(runtime)
        assert child.state == "waiting"
    async with Runtime(log, models=[model], clock=LoopClock(), max_concurrent_runs=1) as runtime:
        runtime.register("waiting", waiting())
        other = await runtime.submit(asking("other"), {}, workflow_id="wf_b")
        await runtime.recover()
        await other.result()
        await asyncio.sleep(3_700)
        await run_until_idle()
        assert (await runtime.record("wf_a")).output == "done"


async def test_a_label_gives_no_run_a_slot_more():
    gate = asyncio.Event()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "done"

    async with Runtime(models=[ScriptedModel(answer)], max_concurrent_runs=1) as runtime:
        await runtime.submit(asking(), {}, workflow_id="wf_a")
        second = await runtime.submit(asking(), {}, labels={"called_by": "wf_a"})
        assert (await runtime.record(second.workflow_id)).state == "pending"
        gate.set()
        assert (await second.result()).state == "completed"
