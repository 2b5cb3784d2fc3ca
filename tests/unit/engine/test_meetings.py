"""Where promises meet: consent, holds, windows and cancels on child paths and at several visits of a node."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import (
    Approval,
    BatchNode,
    Budget,
    Edge,
    ExecutorNode,
    LoopNode,
    MapNode,
    Options,
    ParallelNode,
    Policy,
    SubgraphNode,
    WaitNode,
    Workflow,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.child_requests import REQUEST
from agentflow.engine.child_runs import ChildReport, child_id_of
from agentflow.engine.held_steps import retry_all, settle_held
from agentflow.engine.messages import Outgoing
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, call, graph
from tests.unit.engine.kinds.random_graphs import check

ITEMS = {"items": [1, 2]}


def inner(*nodes: Any) -> Workflow:
    return graph(*nodes)


ASKS = call("x", approval=Approval())
OPENERS = {
    "parallel": (ParallelNode(id="p", branches=("x", "y"), next="__end"), ASKS, call("y")),
    "map": (MapNode(id="p", items_path="input.items", body="x", next="__end"), ASKS),
    "loop": (
        LoopNode(id="p", condition="nodes.p.count < 2", body="x", next="__end"),
        call("x", "p", approval=Approval()),
    ),
    "subgraph": (
        SubgraphNode(
            id="p", inline=inner(call("x", "__end", approval=Approval())), next="__end", input=ITEMS
        ),
    ),
    "map of parallel": (
        MapNode(id="p", items_path="input.items", body="q", next="__end"),
        ParallelNode(id="q", branches=("x", "y")),
        ASKS,
        call("y"),
    ),
}


@pytest.mark.parametrize("nodes", OPENERS.values(), ids=OPENERS)
def test_a_cancel_closes_what_asks_on_a_child_path_before_its_opener(nodes: tuple[Any, ...]):
    driver = Driver(graph(*nodes), ITEMS)
    driver.run()
    assert driver.state.requests
    driver.advance([ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="test")])
    driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
    assert driver.state.status == "cancelled"
    assert not driver.state.requests
    check(driver)


# -- two visits of one node that are held ---------------------------------------------------------


def two_visits(**more: Any) -> Driver:
    """Two tokens reach `c`, which fails for both at the same time."""
    broken = [Fault("tool", "tool"), Fault("tool", "tool")]

    def execute(name: str, _: Any) -> Any:
        if name == "s__c" and broken:
            raise broken.pop()
        return 1

    workflow = graph(
        call("a", "c"),
        call("b", "c"),
        call("c", "__end", **more),
        edges=(Edge(source="__start", target="b"),),
        options=Options(on_failure="hold"),
    )
    driver = Driver(workflow, {"x": 1}, call=execute)
    driver.run()
    return driver


def ended(driver: Driver) -> list[tuple[str, str]]:
    kinds = ev.WorkflowStepCompleted | ev.WorkflowStepFailed | ev.WorkflowStepSkipped
    found = [d for d, _, _ in driver.log if isinstance(d, kinds) and d.step_id == "c"]
    return [(d.activation, d.EVENT_TYPE.rpartition("_")[2]) for d in found]


def test_each_visit_that_is_held_is_decided_about():
    driver = two_visits()
    assert [len(visits) for visits in driver.state.held_steps.values()] == [2]
    driver.advance(settle_held(driver.state, "c", "skip", driver.now, by="ann"))
    driver.run()
    assert (driver.state.status, list(driver.state.held_steps)) == ("paused", ["c"])
    driver.advance(settle_held(driver.state, "c", "retry", driver.now, by="ann"))
    driver.run()
    assert driver.state.status == "completed"
    assert ended(driver) == [
        ("/c#0", "failed"),
        ("/c#1", "failed"),
        ("/c#2", "skipped"),
        ("/c#3", "completed"),
    ]
    check(driver)


def test_a_resume_tries_every_visit_again():
    driver = two_visits()
    driver.advance(
        [
            *retry_all(driver.state, driver.now, by="ann"),
            ev.WorkflowResumed(reason=None, by="ann"),
        ]
    )
    driver.run()
    assert driver.state.status == "completed"
    assert [end for _, end in ended(driver)] == ["failed", "failed", "completed", "completed"]
    check(driver)


def test_a_retry_of_one_visit_leaves_another_that_is_held():
    """The second visit is tried again by its policy while the first is held and the run drains."""
    retry = RetryPolicy(max_attempts=2, backoff=Backoff(initial=1.0), retry_on=("tool",))
    driver = Driver(
        graph(
            call("a", "c"),
            call("b", "c"),
            call("c", "__end", policy=Policy(retry=retry)),
            edges=(Edge(source="__start", target="b"),),
            options=Options(on_failure="hold"),
        ),
        {"x": 1},
        call=lambda name, _: 1,
    )
    for _ in range(2):
        driver.answer(driver.waiting[0])
    first, second = driver.waiting

    def failed(open_call: Any, category: str) -> None:
        driver.waiting.remove(open_call)
        fault = Fault(category, category)
        driver.now += 1_000
        driver.advance(
            engine.tool_failed(
                driver.state,
                open_call.call_id,
                fault.info,
                executed=True,
                unknown=False,
                duration_ms=1,
                now=driver.now,
                draw=0.0,
            )
        )

    failed(first, "auth")
    assert driver.state.pause == "failure"
    failed(second, "tool")
    assert [held.key for held in driver.state.held_steps["c"]] == [first.activation.key]
    assert second.activation.key in driver.state.open
    assert driver.refold().held_steps.keys() == {"c"}
    driver.advance(settle_held(driver.state, "c", "skip", driver.now, by="ann"))
    assert driver.run().status == "completed"
    check(driver)


# -- budgets --------------------------------------------------------------------------------------


def test_each_call_waits_for_the_answer_to_its_own_question_about_a_budget():
    """The first answer makes room for all; the others still ask, and begin with a slot of their own."""
    names = ("a", "b", "c", "d")
    edges = tuple(Edge(source="__start", target=name) for name in names[1:])
    budget = Budget(max_tool_calls=1, on_exceeded="ask")
    options = Options(max_parallel=1, budget=budget)
    driver = Driver(graph(*(call(n, "__end") for n in names), edges=edges, options=options), {"x": 1})
    driver.run()
    asked = list(driver.state.requests)
    assert len(asked) == 3
    for number, request_id in enumerate(asked, start=2):
        raised = {request_id: {"choice": "raise", "limit": 100}}
        driver.advance(engine.commands.answer(driver.state, raised, by="ann"))
        assert len(driver.events(ev.ToolCallStarted)) == number
        assert list(driver.state.requests) == asked[number - 1 :]
        driver.run()
    assert driver.state.status == "completed"
    check(driver)


# -- windows --------------------------------------------------------------------------------------

WINDOW = BatchNode(id="window", size=3, next="t")
WAIT = WaitNode(id="wait", duration=100.0, next="__end")


@pytest.mark.parametrize("place", ["root", "two ways", "subgraph", "parallel"])
def test_a_window_closes_at_once_when_only_the_start_of_its_path_sends_to_it(place: str):
    """What else the run waits for, such as an hour or a person, does not delay it."""
    edges, size = [Edge(source="__start", target="wait")], 1
    nodes: tuple[Any, ...] = (WINDOW, call("t", "__end"), WAIT)
    if place == "two ways":
        edges, size = [*edges, Edge(source="__start", target="window")], 2
    elif place == "subgraph":
        body = graph(BatchNode(id="window", size=3, next="t"), call("t", "__end"))
        nodes = (SubgraphNode(id="sub", inline=body, next="__end", input={"x": 1}), WAIT)
    elif place == "parallel":
        nodes = (ParallelNode(id="p", branches=("window",), next="__end"), WINDOW, call("t"), WAIT)
    driver = Driver(graph(*nodes, edges=tuple(edges)), {"x": 1})
    (open_call,) = driver.waiting
    assert open_call.activation.node.name == "t"
    assert driver.now == 1_000_000
    (window,) = [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id.endswith("window")]
    assert window.output == [{"x": 1}] * size
    assert driver.run().status == "completed"


def test_a_window_ends_in_a_halted_run_though_a_queued_node_could_send_to_it():
    """`later` waits for the slot that `bad` has; after the failure it is never dispatched."""

    def execute(name: str, _: Any) -> Any:
        if name == "s__bad":
            raise Fault("tool", "tool")
        return 1

    edges = (Edge(source="__start", target="bad"), Edge(source="__start", target="later"))
    options = Options(on_failure="halt", max_parallel=1)
    nodes = (WINDOW, call("t", "__end"), call("bad", "__end"), call("later", "window"))
    driver = Driver(graph(*nodes, edges=edges, options=options), {"x": 1}, call=execute)
    assert driver.run().status == "failed"
    assert [e.step_id for e in driver.events(ev.WorkflowStepStarted)] == ["window", "bad"]
    check(driver)


# -- child runs -----------------------------------------------------------------------------------


def test_a_step_that_fails_while_its_child_asks_leaves_no_question_open():
    """The child asks a person for consent; then it asks the parent by a message that cannot be routed."""
    sub = SubgraphNode(
        id="sub", inline=inner(call("y", "__end")), isolation="run", exchange="message", input=ITEMS
    )
    edge = Edge(source="sub", target="reviewer", when="message.data > 1")
    reviewer = ExecutorNode(id="reviewer", executor="reviewer", accepts=(REQUEST,))
    driver = Driver(graph(sub, reviewer, edges=(edge,)), ITEMS)
    (key,) = driver.state.open
    child_id = child_id_of(driver.state, driver.state.open[key])
    scope: dict[str, Any] = {"step_id": "y", "iteration": None, "activation": "/y#0"}
    consent = ev.ApprovalRequested(**scope, request_id="req_1", kind="step", subject={}, digest="sha256:0")
    question = ev.InputRequested(
        **scope, request_id="req_2", request_type="str", request="text", response_schema={}
    )
    payload = {
        "request_id": "req_2",
        "data": "text",
        "response_type": "str",
        "response_schema": {},
        "child_workflow_id": child_id,
    }

    def report(*requests: Any, **more: Any) -> None:
        said = ChildReport(workflow_id=child_id, key=key, status="waiting", requests=requests, **more)
        driver.advance(engine.reported(driver.state, said, driver.now))

    report(consent)
    assert list(driver.state.requests) == ["req_1"]
    report(consent, question, asked={"req_2": Outgoing(type=REQUEST, payload=payload)})
    assert not driver.state.requests
    assert driver.state.status == "failed"
    check(driver)
