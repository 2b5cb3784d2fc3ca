"""`end`: output, status, error and drain (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.ir import (
    Edge,
    EndNode,
    Options,
    StartNode,
    SubgraphNode,
    ToolNode,
    WaitNode,
    Workflow,
)
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph


def ended(end: EndNode, *nodes: Any, edges: tuple[Edge, ...] = (), **more: Any) -> Workflow:
    first = nodes or (call("work", end.id),)
    return Workflow(
        name="w", nodes=(StartNode(id="start", next=first[0].id), *first, end), edges=edges, **more
    )


def run(workflow: Workflow, input: Any = None) -> Driver:
    driver = Driver(workflow, input)
    driver.run()
    return driver


IDS = ["done", "__end"]


@pytest.mark.parametrize("policy", ["eager", "superstep"])
@pytest.mark.parametrize("end", IDS)
@pytest.mark.parametrize(
    ("error", "code", "message", "details"),
    [
        (None, "end_failed", "the run reached {end}, which fails it", None),
        ("order {{ input.n }} was refused", "end_failed", "order 7 was refused", None),
        (
            {"code": "refused", "message": "no: {{ input.n }}", "details": {"n": "{{ input.n }}"}},
            "refused",
            "no: 7",
            {"n": 7},
        ),
        ("{{ nodes.work.output }}", "given", "because", None),
    ],
)
def test_a_failing_end_fails_the_run(
    end: str, error: Any, code: str, message: str, details: Any, policy: Any
):
    work = call("work", end, input={"code": "given", "message": "because"})
    spec = EndNode(id=end, status="failed", error=error, output={"n": "{{ input.n }}"})
    driver = run(ended(spec, work, options=Options(policy=policy)), {"n": 7})
    (failed,) = driver.events(ev.WorkflowFailed)
    found = failed.error
    assert (found.code, found.message, found.details) == (code, message.format(end=end), details)
    assert found.category == "agent"
    assert failed.partial_output == {"n": 7}
    assert driver.types()[-1] == "workflow.failed"
    assert driver.state.status == "failed"


@pytest.mark.parametrize("end", IDS)
def test_an_error_that_cannot_be_made_is_an_expression_error(end: str):
    driver = run(
        ended(EndNode(id=end, status="failed", error="{{ input.n > 'x' }}"), call("work", end)), {"n": 7}
    )
    (failed,) = driver.events(ev.WorkflowFailed)
    assert failed.error.code == "expression_error"


def test_it_cancels_what_is_live():
    nodes = (ToolNode(id="work", tool="s.f", next="done"), WaitNode(id="w", duration=60.0, next="done"))
    driver = run(
        ended(EndNode(id="done", status="failed"), *nodes, edges=(Edge(source="start", target="w"),))
    )
    assert driver.state.status == "failed"
    assert [e.error.category for e in driver.events(ev.WorkflowStepFailed)] == ["cancelled"]
    assert driver.now < 60_000_000


def test_a_failing_end_that_drains_awaits_the_others_and_is_not_outrun():
    nodes = (call("work", "bad"), WaitNode(id="w", duration=3.0, next="good"))
    bad = EndNode(id="bad", status="failed", drain=True, error="bad")
    good = EndNode(id="good", drain=True)
    workflow = Workflow(
        name="w",
        nodes=(StartNode(id="start", next="work"), *nodes, bad, good),
        edges=(Edge(source="start", target="w"),),
    )
    driver = run(workflow)
    assert [e.step_id for e in driver.events(ev.WorkflowStepCompleted)][-1] == "good"
    assert driver.events(ev.WorkflowFailed)[0].error.message == "bad"


@pytest.mark.parametrize("end", IDS)
def test_the_end_of_an_inline_graph_fails_its_node(end: str):
    inner = ended(EndNode(id=end, status="failed", error={"code": "inner", "message": "no"}), call("x", end))
    driver = run(graph(SubgraphNode(id="sub", inline=inner, next="__end")))
    (failed,) = driver.events(ev.WorkflowStepFailed)
    assert (failed.step_id, failed.error.code) == ("sub", "subgraph_failed")
    assert failed.error.cause is not None
    assert failed.error.cause.code == "inner"


@pytest.mark.parametrize("end", IDS)
def test_a_crash_behind_each_batch_gives_the_same_end(end: str):
    workflow = ended(EndNode(id=end, status="failed", error="x"), call("work", end))
    whole = run(workflow)
    for cut in whole.batches[1:]:
        driver = run(workflow)
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        assert driver.run().error == whole.state.error
