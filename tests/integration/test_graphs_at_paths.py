"""Graphs that become known in a run, by `graph_path` or by name, go on in its log (page 003 §4)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from actors.testing import virtual
from agentflow import Runtime, validate_and_normalize
from agentflow.definition import load_value
from agentflow.definition.ir import canonical_json
from agentflow.errors import DefinitionError
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import Desk, log_of, must_be_sound
from tests.integration.virtual import LoopClock

START = {"id": "start", "type": "start", "next": "a"}
END = {"id": "end", "type": "end"}


def plan(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A graph whose first node is `a`."""
    return {"version": "v0", "name": "plan", "nodes": [START, *nodes, END], **more}


def looks(tool: str = "desk.look") -> dict[str, Any]:
    return {"id": "a", "type": "tool", "tool": tool, "input": {}, "next": "end"}


def asks() -> dict[str, Any]:
    return {"id": "a", "type": "llm", "model": "scripted:m", "prompt": "p", "next": "end"}


def graph(**more: Any) -> dict[str, Any]:
    """A graph that runs the plan of its input."""
    sub = {"id": "sub", "type": "subgraph", "graph_path": "input.plan", "next": "end", **more}
    return {"version": "v0", "name": "outer", "nodes": [{**START, "next": "sub"}, sub, END]}


def opened(log: Any = "memory:", **more: Any) -> Runtime:
    return Runtime(log, models=[ScriptedModel(lambda request: "text")], clock=LoopClock(), **more)


async def failure(runtime: Runtime, value: Any, **more: Any) -> Any:
    result = await runtime.run(graph(**more), {"plan": value}, raise_on_failure=False)
    events = await log_of(runtime.log, result.workflow_id)
    error = next(e.data.error for e in events if e.type == "workflow.step_failed" and e.data.step_id == "sub")
    assert not any(e.type == "workflow.step_started" and e.data.step_id == "sub" for e in events)
    return error


@virtual
async def test_its_steps_stand_in_the_log_of_the_run():
    desk = Desk()
    async with opened(services=[desk.service()]) as runtime:
        result = await runtime.run(graph(), {"plan": plan(looks())})
        (row,) = (await runtime.log.runs(limit=9)).items
        events = await log_of(runtime.log, result.workflow_id)
        begun = [e.data.step_id for e in events if e.type == "workflow.step_started"]
        record = await runtime.record(row.workflow_id)
    assert begun == ["start", "sub", "sub/start", "sub/a", "sub/end", "end"]
    assert result.output["node_outputs"]["a"] == {"done": "look"}
    assert result.output["workflow_id"] is None
    assert record.steps["sub/a"].state == "succeeded"
    assert desk.calls == 1


@virtual
async def test_it_begins_a_run_of_its_own_where_that_is_stated():
    async with opened(services=[Desk().service()]) as runtime:
        result = await runtime.run(graph(isolation="run"), {"plan": plan(looks())})
        child = await runtime.record(result.output["workflow_id"])
    assert child.state == "completed"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (plan(looks("desk.nothing")), "E_UNKNOWN_FUNCTION"),
        (plan({**asks(), "model": "nobody:m"}), "E_UNKNOWN_MODEL"),
        (plan({**looks(), "tool": "worker:nobody"}), "E_MISSING_WORKER"),
        (plan({"id": "a", "type": "subgraph", "graph": "none", "next": "end"}), "E_UNKNOWN_SUBGRAPH"),
        (plan(looks(), options={"max_steps": 9}), "E_CONFLICTING_FIELDS"),
        (plan(looks(), services={"x": {"type": "python", "module": "os"}}), "E_CONFLICTING_FIELDS"),
        (plan({**looks(), "next": "nowhere"}), "E_UNKNOWN_TARGET"),
        ("{}", "E_TYPE"),
        (None, "E_TYPE"),
    ],
)
@virtual
async def test_what_is_wrong_with_it_is_the_error_of_the_step(value: Any, code: str):
    async with opened(services=[Desk().service()]) as runtime:
        error = await failure(runtime, value)
    assert error.code == "dynamic_graph_invalid"
    assert [found["code"] for found in error.details["diagnostics"]] == [code]
    assert all(found["message"] for found in error.details["diagnostics"])


@virtual
async def test_it_goes_on_after_a_restart_with_what_it_was_bound_to():
    """Tools, models and workers that only the plan names are found again."""
    person = {
        "id": "a",
        "type": "human_in_the_loop",
        "input_type": "text",
        "next": "b",
    }
    rest = [
        {**looks(), "id": "b", "next": "c"},
        {**asks(), "id": "c", "next": "d"},
        {"id": "d", "type": "tool", "tool": "worker:double", "input": {"x": 4}, "next": "end"},
    ]

    def double(*, context: Any, payload: Any) -> Any:
        return payload["x"] * 2

    log, desk = MemoryLog(), Desk()
    async with opened(log, services=[desk.service()], workers={"double": double}) as runtime:
        handle = await runtime.submit(graph(), {"plan": plan(person, *rest)})
        assert (await handle.result()).state == "waiting"
    async with opened(log, services=[desk.service()], workers={"double": double}) as runtime:
        await runtime.recover()
        answer = (await runtime.requests(handle.workflow_id))[0].request_id
        again = await runtime.answer(handle.workflow_id, answer, "yes")
        result = await again.result()
        outputs = result.output["node_outputs"]
        assert [outputs[node] for node in "abcd"] == ["yes", {"done": "look"}, "text", 8]
        await must_be_sound(log, handle.workflow_id)
    assert desk.calls == 1


@virtual
async def test_other_graphs_of_one_node_side_by_side_keep_to_their_own_bindings():
    each = {"id": "each", "type": "map", "items_path": "input.plans", "body": "sub", "next": "end"}
    sub = {"id": "sub", "type": "subgraph", "graph_path": "item"}
    outer = {"version": "v0", "name": "outer", "nodes": [{**START, "next": "each"}, each, sub, END]}
    plans = [plan(looks()), plan(asks()), plan(looks("desk.pay")), plan(looks())]
    desk = Desk()
    async with opened(services=[desk.service()]) as runtime:
        result = await runtime.run(outer, {"plans": plans})
    found = [one["node_outputs"]["a"] for one in result.output]
    assert found == [{"done": "look"}, "text", {"done": "pay"}, {"done": "look"}]


def nested(depth: int, width: int) -> dict[str, Any]:
    """A graph in which each of `width` nodes runs such a graph, to a depth."""
    if not depth:
        return plan(looks())
    ids = ["a", *(f"i{k}" for k in range(1, width)), "end"]
    inner = nested(depth - 1, width)
    return plan(
        *(
            {"id": id, "type": "subgraph", "inline": inner, "next": next}
            for id, next in itertools.pairwise(ids)
        )
    )


@virtual
async def test_the_nodes_of_graphs_inside_count_too():
    """A graph of 273 nodes in all is refused before anything is checked, however large it is."""
    async with opened(services=[Desk().service()]) as runtime:
        error = await failure(runtime, nested(3, 16))
        assert (await runtime.run(graph(), {"plan": nested(2, 7)})).state == "completed"
    (found,) = error.details["diagnostics"]
    assert (found["code"], found["path"]) == ("E_VALUE", "/nodes")


# -- by name ---------------------------------------------------------------------------------------


def named(**more: Any) -> dict[str, Any]:
    sub = {"id": "sub", "type": "subgraph", "graph": "inner", "isolation": "inline", "next": "end"}
    return {"version": "v0", "name": "outer", "nodes": [{**START, "next": "sub"}, sub, END], **more}


@pytest.mark.parametrize("home", ["of the document", "registered"])
@virtual
async def test_a_graph_that_has_a_name_runs_in_the_log_of_the_run(home: str):
    desk = Desk()
    async with opened(services=[desk.service()]) as runtime:
        given = {"inner": plan(looks())}
        if home == "registered":
            runtime.register("inner", given.pop("inner"))
        result = await runtime.run(named(graphs=given), {})
        (row,) = (await runtime.log.runs(limit=9)).items
        begun = [
            e.data.step_id
            for e in await log_of(runtime.log, row.workflow_id)
            if e.type == "workflow.step_started"
        ]
    assert begun == ["start", "sub", "sub/start", "sub/a", "sub/end", "end"]
    assert result.output["output"] == {"done": "look"}


@pytest.mark.parametrize(
    "more", [{}, {"input": {"n": "${{ item.n }}", "at": "${{ index }}"}}], ids=["the item", "an input"]
)
@virtual
async def test_the_body_of_a_map_is_a_graph(more: dict[str, Any]):
    """Each item is a run of its own, as with every graph that has a name; the normal form has its node."""
    each = {"id": "each", "type": "map", "items_path": "input.l", "body": "inner", "next": "end", **more}
    inner = plan({"id": "a", "type": "transform", "value": "${{ input.n }}", "next": "end"})
    document = {"name": "w", "nodes": [{**START, "next": "each"}, each, END], "graphs": {"inner": inner}}
    normal = canonical_json(validate_and_normalize(document))
    assert canonical_json(validate_and_normalize(json.loads(normal))) == normal
    async with opened() as runtime:
        result = await runtime.run(document, {"l": [{"n": 1}, {"n": 2}]})
        assert len((await runtime.log.runs(limit=9)).items) == 3
    assert [one["output"] for one in result.output] == [1, 2]


@virtual
async def test_a_registered_graph_is_what_it_was_when_its_step_began():
    """A run that goes on after a restart needs no graph under the name any more."""
    asking = plan({"id": "a", "type": "human_in_the_loop", "input_type": "text", "next": "end"})
    log = MemoryLog()
    async with opened(log) as runtime:
        runtime.register("inner", asking)
        handle = await runtime.submit(named(), {})
        assert (await handle.result()).state == "waiting"
    async with opened(log) as runtime:
        await runtime.recover()
        (asked,) = await runtime.requests(handle.workflow_id)
        result = await (await runtime.answer(handle.workflow_id, asked.request_id, "yes")).result()
    assert result.output["output"] == "yes"


@virtual
async def test_a_graph_that_runs_itself_ends_at_the_depth_of_the_run():
    async with opened() as runtime:
        again = {**named(), "name": "inner"}
        runtime.register("inner", again)
        result = await runtime.run(again, {}, raise_on_failure=False)
        events = await log_of(runtime.log, result.workflow_id)
    failed = [e.data for e in events if e.type == "workflow.step_failed"]
    assert failed[0].error.code == "depth_exceeded"
    assert [one.step_id for one in failed] == ["/".join(["sub"] * depth) for depth in range(9, 0, -1)]


@virtual
async def test_a_graph_that_is_registered_no_more_fails_its_step():
    async with opened() as runtime:
        runtime.register("inner", plan(looks()))
        waiting = {"id": "w", "type": "event_trigger", "event": "go", "next": "sub"}
        outer = named()
        outer["nodes"] = [{**START, "next": "w"}, waiting, *outer["nodes"][1:]]
        handle = await runtime.submit(outer, {})
        runtime._graphs_by_name.clear()  # pyright: ignore[reportPrivateUsage]
        await handle.signal("go")
        result = await handle.result(raise_on_failure=False)
    assert result.error is not None
    error = result.error.cause or result.error
    assert error.code == "subgraph_not_found"


def test_a_named_graph_may_not_state_what_belongs_to_the_run():
    inner = plan(looks(), options={"max_steps": 3})
    with pytest.raises(DefinitionError) as refused:
        load_value(named(graphs={"inner": inner}))
    assert [(d.code, d.path) for d in refused.value.diagnostics] == [
        ("E_CONFLICTING_FIELDS", "/nodes/1/graph")
    ]


def test_graphs_that_no_node_runs_are_checked_too():
    wrong = plan({"id": "a", "type": "transform", "expression": "nodes.zz.output", "next": "nowhere"})
    outer = plan({"id": "a", "type": "transform", "value": 1, "next": "end"}, graphs={"inner": wrong})
    with pytest.raises(DefinitionError) as refused:
        load_value(outer)
    assert {(d.code, d.path) for d in refused.value.diagnostics} == {
        ("E_UNKNOWN_REFERENCE", "/graphs/inner/nodes/1/expression"),
        ("E_UNKNOWN_TARGET", "/graphs/inner/nodes/1/next"),
    }


@virtual
async def test_a_person_agrees_to_the_graph_that_then_runs():
    log, desk = MemoryLog(), Desk()
    async with opened(log, services=[desk.service()]) as runtime:
        handle = await runtime.submit(graph(approval={}), {"plan": plan(looks())})
        assert (await handle.result()).state == "waiting"
        (asked,) = await runtime.requests(handle.workflow_id)
        assert [n["tool"] for n in asked.subject["graph"]["nodes"] if "tool" in n] == ["desk.look"]
        await runtime.decide(handle.workflow_id, granted=True, step_id="sub")
        assert (await handle.result()).state == "completed"
    assert desk.calls == 1
