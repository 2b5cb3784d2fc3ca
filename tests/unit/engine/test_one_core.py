"""What nodes of tokens and nodes of dependencies promise together, and what a step costs in large graphs."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import (
    Approval,
    Cache,
    ConditionNode,
    Edge,
    EndNode,
    LoopNode,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.engine.approvals import decided
from agentflow.events import catalogue as ev
from tests.benchmarks.instructions import graphs
from tests.golden.adapter import compile_graph, drive
from tests.unit.engine.driver import Driver, agent, tool


def graph(*nodes: Any, edges: tuple[Edge, ...] = (), drain: bool = True) -> Workflow:
    end = EndNode(id="__end", index=len(nodes), drain=drain)
    return Workflow(name="w", nodes=(StartNode(id="__start"), *nodes, end), edges=edges)


def call(id: str, index: int, **more: Any) -> ToolNode:
    return ToolNode(id=id, index=index, tool="s.add", **more)


def tools_of(*ids: str) -> dict[str, Any]:
    return {id: [tool()] for id in ids}


def approve_all(driver: Driver) -> None:
    while driver.state.requests:
        request = next(iter(driver.state.requests.values()))
        driver.advance(decided(request, granted=True, by="test", via="api"))
        driver.run()


def test_two_tokens_at_a_node_with_an_approval_are_asked_about_once_each():
    edges = (Edge(source="__start", target="a"), Edge(source="__start", target="b"))
    nodes = (
        call("a", 0, next="c"),
        call("b", 1, next="c"),
        call("c", 2, next="__end", approval=Approval()),
    )
    driver = Driver(graph(*nodes, edges=edges), {"x": 1}, tools=tools_of("a", "b", "c"))
    driver.run()
    asked = driver.events(ev.ApprovalRequested)
    assert sorted(data.activation for data in asked) == ["/c#0", "/c#1"]
    assert len({data.request_id for data in asked}) == 2
    approve_all(driver)
    assert driver.state.status == "completed"
    assert sum(data.step_id == "c" for data in driver.events(ev.WorkflowStepCompleted)) == 2


@pytest.mark.parametrize("join", ["all_succeeded", "all_terminal"])
def test_a_step_that_depends_on_a_node_of_tokens_runs_once_that_has_ended(join: str):
    nodes = (call("a", 0, next="__end"), call("b", 1, join=join, depends_on=("a",), input={"x": 2}))
    driver = Driver(
        graph(*nodes, edges=(Edge(source="__start", target="a"),)), {"x": 1}, tools=tools_of("a", "b")
    )
    assert driver.run().status == "completed"
    assert [data.step_id for data in driver.events(ev.WorkflowStepCompleted)] == ["a", "b"]


@pytest.mark.parametrize(("join", "ran"), [("all_succeeded", False), ("all_terminal", True)])
def test_a_dependency_on_a_node_that_no_token_can_reach_is_settled_as_skipped(join: str, ran: bool):
    nodes = (
        ConditionNode(id="choose", index=0, expression="input.x > 5", on_true="a", on_false="other"),
        call("a", 1, next="__end"),
        call("other", 2, next="__end"),
        call("b", 3, join=join, depends_on=("a",), input={"x": 2}),
    )
    driver = Driver(
        graph(*nodes, edges=(Edge(source="__start", target="choose"),)),
        {"x": 1},
        tools=tools_of("a", "other", "b"),
    )
    assert driver.run().status == "completed"
    completed = [data.step_id for data in driver.events(ev.WorkflowStepCompleted)]
    assert ("b" in completed) is ran
    skips = [(data.reason, data.caused_by) for data in driver.events(ev.WorkflowStepSkipped)]
    assert skips == ([] if ran else [("dependency_skipped", ("a",))])


def test_a_condition_with_an_approval_asks_before_it_chooses():
    nodes = (
        ConditionNode(
            id="choose",
            index=0,
            expression="input.x > 5",
            on_true="a",
            on_false="__end",
            approval=Approval(),
        ),
        call("a", 1, next="__end"),
    )
    driver = Driver(
        graph(*nodes, edges=(Edge(source="__start", target="choose"),)), {"x": 9}, tools=tools_of("a")
    )
    driver.run()
    assert driver.state.status == "waiting"
    assert driver.events(ev.WorkflowStepStarted) == []
    approve_all(driver)
    assert driver.state.status == "completed"
    assert [d.step_id for d in driver.events(ev.WorkflowStepCompleted)] == ["choose", "a"]


@pytest.mark.parametrize("drain", [False, True])
def test_an_end_without_drain_stops_what_else_is_under_way(drain: bool):
    edges = (Edge(source="__start", target="fast"), Edge(source="__start", target="slow"))
    nodes = (call("fast", 0, next="__end"), agent("slow", index=1, join="any", next="__end"))
    driver = Driver(graph(*nodes, edges=edges, drain=drain), {"x": 1}, tools=tools_of("fast"))
    fast = next(c for c in driver.waiting if c.kind == "tool")
    driver.answer(fast)
    if drain:
        assert driver.state.status == "running"
        driver.run()
        assert [d.step_id for d in driver.events(ev.WorkflowStepCompleted)] == ["fast", "slow"]
    else:
        (failed,) = driver.events(ev.WorkflowStepFailed)
        assert (failed.step_id, failed.error.category) == ("slow", "cancelled")
        assert driver.state.calls == {}
    assert driver.state.status == "completed"


def test_a_cached_tool_with_a_key_is_looked_up_and_served():
    cache = Cache(ttl=5, key="k ${{ input.x }}")
    driver = Driver(
        graph(call("a", 0, next="__end", cache=cache), edges=(Edge(source="__start", target="a"),)),
        {"x": 1},
        tools=tools_of("a"),
    )
    (lookup,) = driver.lookups
    driver.found[lookup.activation_key] = engine.CacheHit({"x": 7}, "wf_0", 3)
    driver.advance([])
    (done,) = driver.events(ev.WorkflowStepCompleted)
    assert (done.output, done.cached.workflow_id) == ({"x": 7}, "wf_0")
    assert driver.run().status == "completed"


@pytest.mark.parametrize("shape", ["tokens", "chain", "fan_out", "independent"])
def test_a_compiled_node_takes_at_most_2_kib(shape: str):
    workflow = getattr(graphs, shape)(1_000).graph
    engine.compile_graph(workflow)  # what is made once for all graphs
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = compile_graph(workflow)
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(kept.nodes) >= 1_000
    assert size / len(kept.nodes) <= 2_048


def calls_a_step(shape: str, steps: int) -> float:
    """Return how many Python functions are called for each step of a run, in the engine alone."""
    work = getattr(graphs, shape)(steps)
    plan = compile_graph(work.graph)
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    execute = (lambda p: {"x": p["x"] + 1}) if shape in ("tokens", "chain") else _any_result
    drive(plan, work.graph, work.input, execute)  # compiles what is compiled at first use
    sys.setprofile(count)
    try:
        state = drive(plan, work.graph, work.input, execute)
    finally:
        sys.setprofile(None)
    assert state.status == "completed"
    return counted / steps


def _any_result(parameters: Any) -> Any:
    if "width" in parameters:
        return list(range(parameters["width"]))
    return parameters.get("item", 0)


@pytest.mark.parametrize("shape", ["tokens", "chain", "fan_out", "independent", "for_each"])
def test_a_step_calls_as_many_functions_in_a_large_run_as_in_a_small_one(shape: str):
    assert calls_a_step(shape, 2_000) <= 1.1 * calls_a_step(shape, 100)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["tokens", "chain", "fan_out", "independent", "for_each"])
def test_a_step_of_10_000_calls_as_many_functions_as_one_of_100(shape: str):
    """Instructions a step: `python -m tests.benchmarks.instructions --full`."""
    assert calls_a_step(shape, 10_000) <= 1.1 * calls_a_step(shape, 100)


@pytest.mark.parametrize("join", ["all_succeeded", "all_terminal"])
def test_a_node_of_tokens_that_runs_again_settles_a_dependency_once(join: str):
    """Its second visit must not stand in for the dependency that is still at work."""
    nodes = (
        LoopNode(id="again", index=0, condition="nodes.again.count < 2", body="a", next="__end"),
        call("a", 1, next="again"),
        agent("slow", index=2),
        call("b", 3, join=join, depends_on=("a", "slow"), input={"x": 2}),
    )
    driver = Driver(
        graph(*nodes, edges=(Edge(source="__start", target="again"),)), {"x": 1}, tools=tools_of("a", "b")
    )
    driver.run(lambda calls: next((c for c in calls if c.kind == "tool"), calls[0]))
    assert driver.state.status == "completed"
    assert [d.step_id for d in driver.events(ev.WorkflowStepCompleted) if d.step_id != "again"] == [
        *("a", "a"),
        *("slow", "b"),
    ]
