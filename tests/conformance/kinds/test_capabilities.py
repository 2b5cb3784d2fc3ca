"""`capabilities` at run time (page 003 §3): what handlers write, and graphs that are values of a run."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition import load_value
from agentflow.definition.ir import Capabilities
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
