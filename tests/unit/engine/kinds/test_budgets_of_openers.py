"""The budget of a node that opens paths bounds all that is below it (page 000 §10, page 003 §2)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Budget,
    MapNode,
    Options,
    ParallelNode,
    SubgraphNode,
    WaitNode,
)
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import MODEL, Driver, call, chain, graph


def agent(id: str, next: str | None = None) -> AgentNode:
    return AgentNode(id=id, agent=AgentSpec(name=id, system_prompt="p", model=MODEL), next=next)


def opened(kind: str, work: Any, *, budget: Budget, **more: Any) -> Any:
    """A node of a kind that does this work three times below it, then goes on to a call of its own."""
    after = call("after", "__end")
    copies = [msgspec.structs.replace(work, id=f"{work.id}{i}") for i in range(3)]
    common: dict[str, Any] = {"id": "top", "next": "after", "budget": budget}
    if kind == "parallel":
        fork = ParallelNode(branches=tuple(w.id for w in copies), **common)
        return graph(fork, *copies, after, **more)
    if kind == "map":
        return graph(MapNode(items_path="input", body=work.id, **common), work, after, **more)
    if kind == "subgraph":
        return graph(SubgraphNode(inline=chain(*copies), **common), after, **more)
    body = SubgraphNode(id="sub", inline=chain(work), input="{{ item }}")
    each = MapNode(id="each", items_path="input", body="sub", next="__end")
    return graph(SubgraphNode(inline=graph(each, body), **common), after, **more)


KINDS = ["parallel", "map", "subgraph", "nested"]


@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_functions_below_it_count(kind: str, policy: Any):
    budget = Budget(max_tool_calls=2, on_exceeded="fail")
    workflow = opened(kind, call("work"), budget=budget, options=Options(policy=policy))
    driver = Driver(workflow, [1, 2, 3])
    assert driver.run().status == "failed"
    assert len(driver.events(ev.ToolCallStarted)) == 2
    error = next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.error.code == "budget_exceeded")
    assert error.details is not None
    assert (error.details["scope"], error.details["limit"]) == ("top", "max_tool_calls")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_beside_it_does_not_count(kind: str):
    budget = Budget(max_tool_calls=3, on_exceeded="fail")
    driver = Driver(opened(kind, call("work"), budget=budget), [1, 2, 3])
    assert driver.run().status == "completed"
    assert len(driver.events(ev.ToolCallStarted)) == 4


@pytest.mark.parametrize(("limit", "made"), [({"max_model_calls": 2}, 2), ({"max_tokens": 12}, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_models_below_it_count(kind: str, limit: dict[str, int], made: int):
    """Twelve tokens are too few for the first call."""
    budget = Budget(on_exceeded="fail", **limit)  # type: ignore[arg-type]
    driver = Driver(opened(kind, agent("work"), budget=budget), [1, 2, 3])
    assert driver.run().status == "failed"
    assert len(driver.events(ev.ModelCallStarted)) == made
    errors = [e.error for e in driver.events(ev.WorkflowStepFailed) if e.error.code == "budget_exceeded"]
    assert {e.details["scope"] for e in errors if e.details} == {"top"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_counts_nothing_twice(kind: str):
    budget = Budget(max_tool_calls=3, on_exceeded="fail")
    workflow = opened(kind, call("work"), budget=budget)
    whole = Driver(workflow, [1, 2, 3])
    whole.run()
    for cut in whole.batches[1:]:
        driver = Driver(workflow, [1, 2, 3])
        driver.run()
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        assert driver.run().status in ("completed", "failed")
        calls = driver.events(ev.ToolCallCompleted)
        assert driver.state.step_usage["top"].tool_calls >= len(calls) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_its_time_bounds_what_is_below_it(kind: str):
    work = WaitNode(id="work", duration=60.0)
    driver = Driver(opened(kind, work, budget=Budget(max_duration_s=5.0)), [1, 2, 3])
    assert driver.run().status == "failed"
    assert driver.now == 6_000_000
    assert "step_deadline" in {e.error.code for e in driver.events(ev.WorkflowStepFailed)}
