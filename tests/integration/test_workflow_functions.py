"""Workflows as functions of agents: each call is a run of its own, in documents and in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentflow import DefinitionError, Runtime, WorkflowService
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelProfile
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, document, log_of, step

ECHO = {
    "version": "1.0",
    "inputs": {"x": {"type": "integer", "description": "What comes back."}},
    "workflow": {"steps": [step("d", input="${{ inputs.x }}", functions=[])]},
    "outputs": {"got": "${{ inputs.x }}"},
}


def child(**more: Any) -> dict[str, Any]:
    """A document that gives back its input, after one call of a model."""
    made = json.loads(json.dumps(ECHO))
    made["workflow"]["steps"][0]["agent"] |= {"model": "child:m", "attachedFunctions": "none"}
    return made | more


def caller(*functions: str, **more: Any) -> dict[str, Any]:
    one = step("a", functions="none")
    one["agent"] |= {
        "model": "scripted:m",
        "attachedFunctions": [{"service": "flows", "function": f} for f in functions],
    }
    return {**document(one), **more}


def models(*script: Any) -> tuple[ScriptedModel, ScriptedModel]:
    return ScriptedModel([*script]), ScriptedModel(['"done"'] * 9, name="child")


async def children(runtime: Runtime, log: Any = None) -> list[Any]:
    rows = (await (log or runtime.log).runs(limit=50)).items
    return [row for row in rows if "called_by" in row.labels]


async def test_a_document_declares_a_workflow_beside_it_as_a_function(tmp_path: Path) -> None:
    (tmp_path / "echo.yaml").write_text(json.dumps(child()))
    source = caller("echo", services={"flows": {"type": "workflow", "workflows": {"echo": "echo.yaml"}}})
    (tmp_path / "a.yaml").write_text(json.dumps(source))
    parent, inner = models(call("flows__echo", x=4), "{}")
    async with Runtime(models=[parent, inner]) as runtime:
        handle = await runtime.submit(tmp_path / "a.yaml", {}, workflow_id="wf_a")
        result = await handle.result()
        assert result.state == "completed", result.error
        (run,) = await children(runtime)
        assert run.labels["called_by"] == "wf_a"
        begun = (await log_of(runtime, run.workflow_id))[0]
        completed = [e.data for e in await log_of(runtime, "wf_a") if e.type == "tool.call_completed"]
        trace = (await log_of(runtime, "wf_a"))[0].trace
    (offered,) = parent.requests[0].tools
    assert offered.input_schema["properties"]["x"] == {"type": "integer", "description": "What comes back."}
    assert json.loads(parent.requests[1].messages[-1].content) == {"got": 4}
    assert completed[0].usage.model_calls == 1
    assert result.usage.model_calls == 3  # two of its own, one of the workflow
    assert begun.trace is not None
    assert trace is not None
    assert begun.trace.trace_id == trace.trace_id


async def test_a_registered_workflow_is_declared_by_its_name() -> None:
    source = caller("echo", services={"flows": {"type": "workflow", "workflows": {"echo": "twice"}}})
    parent, inner = models(call("flows__echo", x=3), "{}")
    async with Runtime(models=[parent, inner]) as runtime:
        with pytest.raises(DefinitionError, match='no workflow "twice" is registered'):
            await runtime.submit(source, {})
        runtime.register("twice", child())
        assert (await runtime.run(source, {})).state == "completed"
    assert json.loads(parent.requests[1].messages[-1].content) == {"got": 3}


async def test_an_untrusted_document_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "echo.yaml").write_text(json.dumps(child()))
    where = str(tmp_path / "echo.yaml")
    source = caller("echo", services={"flows": {"type": "workflow", "workflows": {"echo": where}}})
    async with Runtime(models=[*models()]) as runtime:
        with pytest.raises(DefinitionError, match="E_SERVICE_DENIED"):
            await runtime.submit(source, {}, trusted=False)


async def test_a_service_of_workflows_in_python() -> None:
    flows = WorkflowService("flows", {"echo": child()}, functions={"echo": {"description": "Echoes."}})
    parent, inner = models(call("flows__echo", x=5), "{}")
    async with Runtime(models=[parent, inner], services=[flows]) as runtime:
        assert (await runtime.run(caller("echo"), {})).state == "completed"
    assert parent.requests[0].tools[0].description == "Echoes."
    assert json.loads(parent.requests[1].messages[-1].content) == {"got": 5}


def test_a_service_of_workflows_refuses_options_of_functions_that_it_lacks() -> None:
    with pytest.raises(DefinitionError, match="ehco"):
        WorkflowService("flows", {"echo": child()}, functions={"ehco": {}})


async def test_wrong_arguments_reach_no_run() -> None:
    flows = WorkflowService("flows", {"echo": child()})
    parent, inner = models(call("flows__echo", x="four"), "{}")
    async with Runtime(models=[parent, inner], services=[flows]) as runtime:
        assert (await runtime.run(caller("echo"), {})).state == "completed"
        assert await children(runtime) == []
    assert "invalid_tool_input" in parent.requests[1].messages[-1].content


async def test_workflows_that_are_called_side_by_side_keep_to_the_budget_of_their_caller() -> None:
    """Each may use all that is left, so they run one after another; what they used counts for the caller."""
    flows = WorkflowService("flows", {"echo": child()})
    parent = ScriptedModel([[call("flows__echo", x=1), call("flows__echo", x=2)], "{}"])
    inner = ScriptedModel(['"done"'] * 9, name="child", profile=ModelProfile(max_output_tokens=64))
    source = caller("echo")
    source["workflow"]["budget"] = {"max_tokens": 50_000}
    async with Runtime(models=[parent, inner], services=[flows]) as runtime:
        result = await runtime.run(source, {}, workflow_id="wf_a")
        assert result.state == "completed", result.error
        first, _ = [e.data for e in await log_of(runtime, "wf_a") if e.type == "tool.call_completed"]
        budgets = [(await log_of(runtime, run.workflow_id))[0].data.budget for run in await children(runtime)]
        used = first.usage.input_tokens + first.usage.output_tokens
    assert used > 0
    less, more = sorted(budget["max_tokens"] for budget in budgets)
    assert more - less == used


async def test_a_call_that_a_restart_repeats_finds_its_run() -> None:
    log, desk = MemoryLog(), Desk(look=True)
    inner = child()
    inner["workflow"]["steps"][0]["agent"]["attachedFunctions"] = [{"service": "desk", "function": "look"}]
    flows = WorkflowService("flows", {"echo": inner})

    def scripted() -> list[ScriptedModel]:
        return [
            ScriptedModel([call("flows__echo", x=4), "{}"]),
            ScriptedModel([call("desk__look"), '"done"'], name="child"),
        ]

    first = scripted()
    async with Runtime(log, models=first, services=[desk.service(), flows], grace=0.05) as runtime:
        await runtime.submit(caller("echo"), {}, workflow_id="wf_a")
        await desk.until(lambda: desk.calls == 1)
    desk.gates["look"].set()
    second = [ScriptedModel(["{}"]), ScriptedModel(['"done"'], name="child")]
    async with Runtime(log, models=second, services=[desk.service(), flows], recover=True) as runtime:
        result = await runtime.result("wf_a")
        assert result.state == "completed", result.error
        assert len(await children(runtime)) == 1
    assert json.loads(second[0].requests[0].messages[-1].content) == {"got": 4}
