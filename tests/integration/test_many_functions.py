"""Services with more functions than a model takes: an error when the run is bound, or a search."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse

from agentflow import DefinitionError, Runtime
from agentflow.engine.agents.function_search import MAX_FOUND, find, search_tool
from agentflow.engine.bindings import ToolInfo
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelProfile
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import document, log_of, step
from tests.unit.tools.servers import Recorder, serve

COUNT = 200


def source(url: str, *, search: bool, kinds: tuple[str, ...] = ("widgets", "gadgets")) -> dict[str, Any]:
    functions = {
        f"get_{kind}_{n}": {
            "method": "GET",
            "path": f"/{kind}/{n}",
            "description": f"Returns the {kind} of department {n}.",
        }
        for n in range(COUNT // len(kinds))
        for kind in kinds
    }
    functions["cancel_order"] = {
        "method": "POST",
        "path": "/cancel",
        "description": "Cancels an order.",
        "approval": True,
        "side_effect": "write",
    }
    service = {"type": "http", "base_url": url, "functions": functions, "search": search}
    one = step("a", functions="none")
    one["agent"] |= {"model": "scripted:m", "attachedFunctions": [{"service": "shop", "function": "*"}]}
    return {**document(one), "services": {"shop": service}}


async def test_more_functions_than_the_profile_allows_are_an_error_with_their_count() -> None:
    model = ScriptedModel(["{}"], profile=ModelProfile(max_functions=128))
    async with Runtime(models=[model]) as runtime:
        with pytest.raises(DefinitionError) as caught:
            await runtime.submit(source("http://127.0.0.1:9", search=False), {})
    (found,) = [d for d in caught.value.diagnostics if d.severity == "error"]
    assert found.code == "E_MODEL_CAPABILITY"
    assert found.message == 'scripted:m takes 128 functions, "a" attaches 201'
    assert found.hint is not None
    assert "search: true" in found.hint


async def test_a_model_finds_functions_and_calls_them_also_after_a_restart() -> None:
    profile = ModelProfile(max_functions=128)
    looks = call("find_functions", query="widget department 7")
    first = ScriptedModel([looks, call("shop__cancel_order")], profile=profile)
    second = ScriptedModel([call("shop__get_widgets_7"), call("find_functions", query="nothing of it"), "{}"])
    log = MemoryLog()
    recorder = Recorder(lambda request: JSONResponse({"path": request.url.path}))
    async with serve(recorder.app) as url:
        async with Runtime(log, models=[first], grace=0.05) as runtime:
            handle = await runtime.submit(source(url, search=True), {}, workflow_id="wf_a")
            assert (await handle.result()).state == "waiting"
        async with Runtime(log, models=[second]) as runtime:
            (request,) = await runtime.requests("wf_a")
            await runtime.decide("wf_a", request_id=request.request_id, granted=False)
            result = await runtime.result("wf_a")
            assert result.state == "completed", result.error
    assert [tool.name for tool in first.requests[0].tools] == ["find_functions"]
    assert f"{COUNT + 1} by what they do" in first.requests[0].tools[0].description
    offered = [tool.name for tool in second.requests[0].tools]
    assert {"shop__get_widgets_7", "find_functions"} <= set(offered)
    assert len(offered) <= 9
    assert json.loads(second.requests[1].messages[-1].content) == {"path": "/widgets/7"}
    assert json.loads(second.requests[2].messages[-1].content)["functions"] == []
    events = [e.data for e in await log_of(log, "wf_a")]
    (begun,) = [e for e in events if e.EVENT_TYPE == "agent.initialized"]
    assert [tool.name for tool in begun.tools] == ["find_functions"]


async def test_only_what_is_included_is_found() -> None:
    made = source("http://127.0.0.1:9", search=True)
    made["services"]["shop"]["include"] = ["get_widgets_1*", "cancel_order"]
    model = ScriptedModel(
        [
            call("find_functions", query="widget gadget department 1"),
            call("shop__get_gadgets_1"),
            call("find_functions", query="cancel an order"),
            "{}",
        ]
    )
    async with Runtime(models=[model]) as runtime:
        result = await runtime.run(made, {})
        events = [e.data for e in await log_of(runtime, result.workflow_id)]
    assert "12 by what they do" in model.requests[0].tools[0].description
    found = json.loads(model.requests[1].messages[-1].content)["functions"]
    assert found
    assert all("get_widgets_1" in json.dumps(one) for one in found)
    failed = [e.error.code for e in events if e.EVENT_TYPE == "tool.call_failed"]
    assert failed == ["tool_not_found"]
    last = json.loads(model.requests[3].messages[-1].content)["functions"]
    assert "shop__cancel_order" in json.dumps(last)


async def test_what_is_found_keeps_its_approval() -> None:
    model = ScriptedModel([call("find_functions", query="cancel an order"), call("shop__cancel_order"), "{}"])
    async with Runtime(models=[model]) as runtime:
        handle = await runtime.submit(source("http://127.0.0.1:9", search=True), {})
        result = await handle.result()
        assert result.state == "waiting"
        (request,) = await runtime.requests(handle.workflow_id)
        assert request.subject["tool_name"] == "shop__cancel_order"


def info(name: str, description: str = "") -> ToolInfo:
    return ToolInfo(
        name=name,
        service="s",
        function=name,
        description=description,
        input_schema={},
        schema_hash=name,
        side_effect="read",
        idempotent=True,
        timeout=1.0,
        searched=True,
    )


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create an issue", "issuesCreate"),
        ("list issues of a repository", "issuesListForRepo"),
        ("ISSUES create", "issuesCreate"),
        ("merge", "pullsMerge"),
    ],
)
def test_names_and_descriptions_are_searched(query: str, best: str) -> None:
    tools = [
        info("issuesListForRepo", "List issues of a repository."),
        info("issuesCreate", "Create an issue."),
        info("pullsMerge", "Merge a pull request."),
        info("search_tool", "Finds nothing of it."),
    ]
    found = find({tool.name: tool for tool in tools}, {"query": query})
    assert found["functions"][0]["name"] == best
    assert found["of"] == 4


def test_a_search_is_bounded() -> None:
    tools = {f"issue{n}": info(f"issue{n}") for n in range(300)}
    assert len(find(tools, {"query": "issue"})["functions"]) == 8
    assert search_tool(300).input_schema["properties"]["limit"]["maximum"] == MAX_FOUND
