"""`capabilities` at run time (page 003 §3): what handlers do, and graphs that become known in a run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, WorkflowBuilder, WorkflowContext, executor, function
from agentflow.definition import load_value
from agentflow.definition.ir import Capabilities
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import log_of
from tests.unit.engine.handlers import Graph, graph, node


@pytest.mark.parametrize(
    ("write", "status"),
    [
        (None, "completed"),
        (("state",), "completed"),
        (("state.k",), "completed"),
        (("state.j",), "failed"),
        ((), "failed"),
    ],
)
def test_a_handler_writes_what_its_node_may(write: tuple[str, ...] | None, status: str):
    def handle(context: Any) -> None:
        context.write("k", 1)
        context.give("done")

    bounded = node("a", capabilities=Capabilities(write=write))
    run = Graph(graph(bounded, edges=[]), 1, handlers={"a": handle}).go()
    assert run.state.status == status
    if status == "failed":
        error = run.error()
        assert (error.code, error.category) == ("scope_access_denied", "policy")
        failed = next(d.error for d, _, _ in run.log if d.EVENT_TYPE == "workflow.step_failed")
        assert failed.details == {"step_id": "a", "area": "state.k", "op": "write"}


def plan(*nodes: dict[str, Any]) -> dict[str, Any]:
    first = {"id": "start", "type": "start", "next": nodes[0]["id"]}
    return {"name": "plan", "nodes": [first, *nodes, {"id": "end", "type": "end"}]}


def calling(name: str) -> dict[str, Any]:
    return plan({"id": "call", "type": "tool", "tool": f"s.{name}", "input": {}, "next": "end"})


def nested(inner: dict[str, Any]) -> dict[str, Any]:
    given = {"id": "given", "type": "transform", "value": inner, "next": "in"}
    return plan(given, {"id": "in", "type": "subgraph", "graph_path": "nodes.given.output", "next": "end"})


@pytest.mark.parametrize(
    ("graph_of_run", "code"),
    [
        (calling("look"), None),
        (calling("pay"), "dynamic_graph_invalid"),
        (nested(calling("look")), None),
        (nested(calling("pay")), "dynamic_graph_invalid"),
    ],
    ids=["granted", "denied", "granted inside", "denied inside"],
)
async def test_a_graph_that_is_a_value_calls_what_its_caller_may(
    graph_of_run: dict[str, Any], code: str | None
):
    called: list[str] = []

    @function(side_effect="read")
    async def look() -> str:
        """Look."""
        called.append("look")
        return "seen"

    @function(side_effect="external")
    async def pay() -> str:
        """Pay."""
        called.append("pay")
        return "paid"

    work = {
        "id": "work",
        "type": "subgraph",
        "graph_path": "input.plan",
        "capabilities": {"tools": ["s.look"]},
    }
    outer = load_value(plan({**work, "next": "end"}))
    async with Runtime(services=[Service.of("s", look, pay)]) as runtime:
        handle = await runtime.submit(outer, {"plan": graph_of_run})
        result = await handle.rest()
        events = await log_of(runtime.log, handle.workflow_id)
    assert called == ([] if code else ["look"])
    assert result.state == ("failed" if code else "completed")
    if code:
        error: Any = next(e.data.error for e in events if e.type == "workflow.step_failed")
        while error.cause is not None:
            error = error.cause
        assert error.code == code
        if "diagnostics" in error.details:  # a run tells its parent the code, and where the rest is
            assert [d["code"] for d in error.details["diagnostics"]] == ["E_CAPABILITY_DENIED"]


@pytest.mark.parametrize("isolation", ["run", "inline"])
@pytest.mark.parametrize("home", ["of the document", "registered"])
async def test_a_named_graph_calls_what_its_caller_may(home: str, isolation: str):
    called: list[str] = []

    @function(side_effect="external")
    async def pay() -> str:
        """Pay."""
        called.append("pay")
        return "paid"

    work = {"id": "work", "type": "subgraph", "graph": "inner", "isolation": isolation, "next": "end"}
    for tools, code in ((["s.*"], None), (["s.look"], "E_CAPABILITY_DENIED")):
        async with Runtime(services=[Service.of("s", pay)]) as runtime:
            # what the inner graph runs is granted no more than it is itself
            given = {"inner": nested(calling("pay")) if isolation == "run" else calling("pay")}
            if home == "registered":
                runtime.register("inner", given.pop("inner"))
            bounded = {**work, "capabilities": {"tools": tools}}
            result = await runtime.run(plan(bounded) | {"graphs": given}, {}, raise_on_failure=False)
            rows = (await runtime.log.runs()).items
            texts = [repr(e.data) for row in rows for e in await log_of(runtime.log, row.workflow_id)]
        assert called == ([] if code else ["pay"])
        assert result.state == ("failed" if code else "completed")
        assert any(code in text for text in texts) if code else result.error is None
        called.clear()


@pytest.mark.parametrize("write", [("globals.a",), ("globals",), None], ids=repr)
async def test_a_graph_that_is_a_value_sets_what_its_caller_may(write: tuple[str, ...] | None):
    """In the log of its caller it sees the globals of the run."""
    sets = {"id": "set", "type": "transform", "value": 1, "set_globals": {"b": "nodes.set.output"}}
    work = {"id": "work", "type": "subgraph", "graph_path": "input.plan", "next": "end"}
    if write is not None:
        work["capabilities"] = {"write": list(write)}
    async with Runtime() as runtime:
        given = {"plan": plan({**sets, "next": "end"})}
        result = await runtime.run(plan(work), given, raise_on_failure=False)
    assert result.state == ("failed" if write == ("globals.a",) else "completed")


# -- handlers --------------------------------------------------------------------------------------


@function(side_effect="read")
async def look() -> str:
    """Look."""
    return "seen"


@function(side_effect="external")
async def pay() -> str:
    """Pay."""
    return "paid"


@executor(id="work")
async def work(what: str, ctx: WorkflowContext[str, str]) -> None:
    match what.partition(" "):
        case "read", _, key:
            found = ctx.get_shared_state(key)
        case "call", _, name:
            found = await ctx.call_tool(name)
        case "ask", _, model:
            found = (await ctx.call_model("hi", model=model)).text
        case _:
            raise AssertionError(what)
    await ctx.yield_output(found)


@pytest.mark.parametrize(
    ("grant", "what", "given"),
    [
        (Capabilities(read=("state.a",)), "read a", "A"),
        (Capabilities(read=("state.a",)), "read b", "scope_access_denied"),
        (Capabilities(read=()), "read a", "scope_access_denied"),
        (Capabilities(write=()), "read a", "A"),
        (Capabilities(tools=("s.look",)), "call s.look", "seen"),
        (Capabilities(tools=("s.look",)), "call s.pay", "tool_not_attached"),
        (Capabilities(tools=("s.*",)), "call s.pay", "paid"),
        (Capabilities(models=("scripted:m",)), "ask scripted:m", "text"),
        (Capabilities(models=("scripted:n",)), "ask scripted:m", "scope_access_denied"),
    ],
    ids=repr,
)
async def test_a_handler_reads_and_calls_what_its_node_may(grant: Capabilities, what: str, given: str):
    built = WorkflowBuilder("w").add_shared("a", str, default="A").add_shared("b", str, default="B")
    workflow = built.set_start_executor(work).build()
    graph = workflow.definition.workflow
    nodes = tuple(
        msgspec.structs.replace(one, capabilities=grant) if one.id == "work" else one for one in graph.nodes
    )
    bounded = msgspec.structs.replace(graph, nodes=nodes)
    models, services = [ScriptedModel(lambda request: "text")], [Service.of("s", look, pay)]
    async with Runtime(models=models, services=services) as runtime:
        handle = await runtime.submit(bounded, what, code=workflow.callables)
        result = await handle.result(raise_on_failure=False)
        events = await log_of(runtime.log, handle.workflow_id)
    if given.isidentifier() and "_" in given:
        assert result.state == "failed"
        error = next(e.data.error for e in events if e.type == "workflow.step_failed")
        error = error if error.cause is None else error.cause
        assert (error.code, error.category) == (given, "policy")
        if given == "scope_access_denied":
            area = {"read": "state", "ask": "models"}[what.split()[0]]
            op = {"state": "read", "models": "call"}[area]
            details = {"step_id": "work", "area": f"{area}.{what.split()[1]}", "op": op}
            assert details.items() <= error.details.items()
        assert not any(e.type.startswith(("tool.", "model.")) for e in events), "nothing was called"
    else:
        assert result.state == "completed", result.error
        assert given in repr(result.output)
