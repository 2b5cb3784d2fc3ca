"""Routing: each kind of edge, its order of tests and its statuses (page 002 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.graph import SharedKey
from agentflow.definition.ir import AgentNode, AgentSpec, Edge, Policy
from agentflow.definition.policy import RetryPolicy
from agentflow.engine import handler_results
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault
from tests.unit.engine.handlers import Context, Graph, graph, node

EAGER = {"policy": "eager"}


def silent(ctx: Context) -> None:
    """A handler that sends nothing."""


def sent(run: Graph, step: str = "a") -> list[dict[str, str]]:
    """The statuses of each message of a step, by edge or target."""
    ends = [d for d in run.events(ev.WorkflowStepCompleted) if d.step_id == step]
    return [{d.edge or "-": d.status for d in m.deliveries} for end in ends for m in end.messages]


def route(edges: list[Any], handler: Any, *targets: Any, **more: Any) -> Graph:
    nodes = [node("a"), *(t if not isinstance(t, str) else node(t) for t in targets)]
    handlers = {"a": handler, **{t.id: silent for t in nodes[1:]}}
    more.setdefault("options", EAGER)
    return Graph(graph(*nodes, edges=edges, **more), 1, handlers=handlers).go()


def test_a_single_edge_tests_the_target_then_the_type_then_the_condition():
    def send(ctx: Context) -> None:
        ctx.send(1, type="int")
        ctx.send(2, type="int")
        ctx.send("x", type="str")
        ctx.send("x", target="c", type="str")

    edges = [Edge(source="a", target="b", when="message == 1"), Edge(source="a", target="c")]
    run = route(edges, send, node("b", accepts=("int",)), "c")
    assert sent(run) == [
        {"a->b": "delivered", "a->c": "delivered"},
        {"a->b": "condition_false", "a->c": "delivered"},
        {"a->b": "type_mismatch", "a->c": "delivered"},
        {"a->b": "target_mismatch", "a->c": "delivered"},
    ]
    assert run.inputs("b") == [1]


def test_a_condition_reads_the_shared_state_as_it_was_before_the_completion():
    def send(ctx: Context) -> None:
        ctx.write("n", 1)
        ctx.send(1)

    edges = [
        Edge(source="a", target="b", when="state.n == 0"),
        Edge(source="a", target="c", when="state.n == 1"),
    ]
    run = route(edges, send, "b", "c", shared={"n": SharedKey(default=0)})
    assert sent(run) == [{"a->b": "delivered", "a->c": "condition_false"}]


def test_a_fan_out_reaches_every_target_that_takes_the_type():
    edges = [Edge(source="a", target=t, kind="fan_out") for t in "bcd"]
    run = route(edges, lambda c: c.send(1, type="int"), "b", node("c", accepts=("str",)), "d")
    assert sent(run) == [{"a->b": "delivered", "a->c": "type_mismatch", "a->d": "delivered"}]


@pytest.mark.parametrize(
    ("chosen", "statuses"),
    [
        (["c"], ("not_selected", "delivered")),
        (["c", "b", "c"], ("delivered", "delivered")),
        ([], ("not_selected", "not_selected")),
    ],
)
def test_a_selection_chooses_among_the_targets(chosen: list[str], statuses: tuple[str, str]):
    edges = [Edge(source="a", target=t, kind="multi", selection="pick") for t in "bc"]
    run = route(edges, lambda c: c.send(1, selections={"pick": chosen}), "b", "c")
    assert sent(run) == [{"a->b": statuses[0], "a->c": statuses[1]}]
    assert len(run.inputs("b")) == (statuses[0] == "delivered"), "duplicates count once"
    assert run.undelivered() == ([] if chosen else [("/a#0", "not_selected")])


@pytest.mark.parametrize("chosen", [["z"], ["c"], "ValueError: no"])
def test_a_selection_that_raises_or_names_another_target_fails_the_sender(chosen: Any):
    """c does not accept the type, so that it is not offered."""
    edges = [Edge(source="a", target=t, kind="multi", selection="pick") for t in "bc"]
    target = node("c", accepts=("str",))
    run = route(edges, lambda c: c.send(1, type="int", selections={"pick": chosen}), "b", target)
    (failed,) = run.events(ev.WorkflowStepFailed)
    assert failed.error.code == "routing_failed"
    assert failed.error.details["edge"] == "pick"
    assert failed.error.details["valid_targets"] == ["b"]
    assert run.inputs("b") == []


def test_a_condition_that_raises_fails_the_sender_and_does_not_fall_through_to_the_default():
    edges = [
        Edge(source="a", target="b", kind="switch", when="message.x > 1"),
        Edge(source="a", target="c", kind="switch"),
    ]
    retry = RetryPolicy(max_attempts=3)
    workflow = graph(node("a", policy=Policy(retry=retry)), node("b"), node("c"), edges=edges, options=EAGER)
    run = Graph(workflow, 1, handlers={"a": lambda c: c.send({"x": "text"}), "b": silent, "c": silent}).go()
    (failed,) = run.events(ev.WorkflowStepFailed)
    assert (failed.error.code, failed.error.details["edge"]) == ("routing_failed", "a->b")
    assert "workflow.step_retrying" not in run.types(), "the handler has run"
    assert run.inputs("c") == []


def test_a_switch_takes_the_first_true_case_else_the_default_wherever_it_stands():
    edges = [
        Edge(source="a", target="d", kind="switch", name="default"),
        Edge(source="a", target="b", kind="switch", when="message > 0", name="one"),
        Edge(source="a", target="c", kind="switch", when="message > 1", name="two"),
    ]

    def send(ctx: Context) -> None:
        for value in (0, 1, 2):
            ctx.send(value)

    run = route(edges, send, "b", "c", "d")
    assert sent(run) == [
        {"default": "delivered", "one": "condition_false", "two": "condition_false"},
        {"default": "not_selected", "one": "delivered", "two": "not_selected"},
        {"default": "not_selected", "one": "delivered", "two": "not_selected"},
    ]


def test_cases_may_share_a_target():
    edges = [
        Edge(source="a", target="b", kind="switch", when="message == 1", name="one"),
        Edge(source="a", target="b", kind="switch", when="message == 2", name="two"),
        Edge(source="a", target="b", kind="switch", name="rest"),
    ]
    run = route(edges, lambda c: c.send(2), "b")
    assert run.inputs("b") == [2]


def test_predicates_that_are_code_come_as_verdicts():
    edges = [Edge(source="a", target="b", name="risky"), Edge(source="a", target="c", name="other")]
    run = route(edges, lambda c: c.send(1, verdicts={"risky": False}), "b", "c")
    assert sent(run) == [{"risky": "condition_false", "other": "delivered"}]
    run = route(edges, lambda c: c.send(1, verdicts={"risky": "ValueError: no"}), "b", "c")
    assert run.events(ev.WorkflowStepFailed)[0].error.details["reason"] == "ValueError: no"


def test_a_predicate_that_was_not_evaluated_lets_no_message_pass():
    edges = [Edge(source="a", target="b", predicate="m:risky"), ("a", "c")]
    run = route(edges, lambda c: c.send(1), "b", "c")
    error = run.events(ev.WorkflowStepFailed)[0].error
    assert (error.code, error.details["edge"]) == ("routing_failed", "a->b")
    run = route(edges, lambda c: c.send(1, verdicts={"a->b": True}), "b", "c")
    assert sent(run) == [{"a->b": "delivered", "a->c": "delivered"}]


def test_a_base_class_of_the_message_is_accepted():
    edges = [Edge(source="a", target="b")]
    run = route(edges, lambda c: c.send({}, type="Dog", bases=("Animal",)), node("b", accepts=("Animal",)))
    assert sent(run) == [{"a->b": "delivered"}]


@pytest.mark.parametrize("accepts", [("list[int]",), ("list",), ("Any",), ()])
def test_a_fan_in_takes_an_element_of_the_list_that_its_target_accepts(accepts: tuple[str, ...]):
    edges = [
        ("a", "s"),
        Edge(source="a", target="b", kind="fan_in"),
        Edge(source="s", target="b", kind="fan_in"),
    ]
    run = route(edges, lambda c: c.send(1, type="int"), node("b", accepts=accepts), "s")
    assert sent(run)[0]["a->b"] == "buffered"


def test_a_fan_in_refuses_another_type():
    edges = [
        ("a", "s"),
        Edge(source="a", target="b", kind="fan_in"),
        Edge(source="s", target="b", kind="fan_in"),
    ]
    run = route(edges, lambda c: c.send(1, type="int"), node("b", accepts=("list[str]", "int")), "s")
    assert sent(run)[0]["a->b"] == "type_mismatch"


def test_several_edges_between_two_nodes_each_bring_the_message():
    edges = [Edge(source="a", target="b", name="one"), Edge(source="a", target="b", name="two")]
    assert route(edges, lambda c: c.send(1), "b").inputs("b") == [1, 1]


def test_what_a_terminal_node_sends_is_only_recorded():
    run = route([], lambda c: c.send(1))
    assert sent(run) == [{"-": "no_edge"}]
    assert run.undelivered() == []


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_a_message_that_no_edge_delivers_is_told_with_how_far_it_came(policy: str):
    def send(ctx: Context) -> None:
        ctx.send(0, type="int")
        ctx.send("x", type="str")
        ctx.send("x", target="b", type="str")

    edges = [
        Edge(source="a", target="b", when="message > 0"),
        Edge(source="a", target="c", when="message > 0"),
    ]
    accepts = ("int",)
    targets = (node("b", accepts=accepts), node("c", accepts=accepts))
    run = route(edges, send, *targets, options={"policy": policy})
    assert [(d.index, d.type, d.reason) for d in run.events(ev.MessageUndelivered)] == [
        (0, "int", "condition_false"), (1, "str", "type_mismatch"), (2, "str", "type_mismatch"),
    ]  # fmt: skip
    assert run.state.status == "completed"


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_on_undelivered_fail_fails_the_run(policy: str):
    edges = [Edge(source="a", target="b", when="message > 5")]
    run = route(edges, lambda c: c.send(1), "b", options={"policy": policy, "on_undelivered": "fail"})
    assert run.error().code == "message_undelivered"
    assert run.types()[-2:] == ["message.undelivered", "workflow.failed"]


def test_an_unknown_target_fails_the_step_and_is_never_retried():
    workflow = graph(
        node("a", policy=Policy(retry=RetryPolicy())), node("b"), node("z"), edges=[("a", "b"), ("b", "z")]
    )
    run = Graph(workflow, 1, handlers={"a": lambda c: c.send(1, target="z")}).go()
    (failed,) = run.events(ev.WorkflowStepFailed)
    assert failed.error.code == "unknown_target"
    assert "workflow.step_retrying" not in run.types()


def test_more_than_10_000_messages_of_one_activation_fail_it():
    def flood(ctx: Context) -> None:
        for i in range(10_001):
            ctx.send(i)

    run = route([("a", "b")], flood, "b")
    assert run.events(ev.WorkflowStepFailed)[0].error.code == "message_limit_exceeded"
    assert run.inputs("b") == []


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_an_activation_fails_whose_messages_are_too_many_beside_those_that_wait(
    policy: str, monkeypatch: pytest.MonkeyPatch
):
    """The limit is 100,000 messages of a run; 25 show the same."""
    monkeypatch.setattr(handler_results, "MAX_QUEUED", 25)

    def ten(ctx: Context) -> None:
        for i in range(10):
            ctx.send(i)

    edges = [("a", "b1"), ("a", "b2"), ("a", "b3"), ("b1", "c1"), ("b2", "c2"), ("b3", "c3")]
    nodes = [node(i) for i in ("a", "b1", "b2", "b3", "c1", "c2", "c3")]
    workflow = graph(*nodes, edges=edges, options={"policy": policy, "on_failure": "continue"})
    handlers = {"b1": ten, "b2": ten, "b3": ten, "c1": silent, "c2": silent, "c3": silent}
    choose = lambda found: next((f for f in found if "/b" in f.activation_key), found[0])  # noqa: E731
    run = Graph(workflow, 1, handlers=handlers).go(choose)
    (failed,) = run.events(ev.WorkflowStepFailed)
    assert failed.error.code == "pending_limit_exceeded"
    assert failed.error.details == {"limit": 25}
    assert [len(run.inputs(c)) for c in ("c1", "c2", "c3")].count(10) == 2


def test_an_agent_sends_what_it_said_along_the_edges_of_messages():
    agent = AgentNode(id="a", agent=AgentSpec(name="a", system_prompt="p", plain_result="object"))
    edges = [
        Edge(source="a", target="b", kind="switch", when="message.score > 1"),
        Edge(source="a", target="c", kind="switch"),
    ]
    workflow = graph(agent, node("b"), node("c"), edges=edges, options=EAGER)
    run = Graph(workflow, 1, handlers={"b": silent, "c": silent}, model=lambda *_: '{"score": 2}').go()
    assert sent(run) == [{"a->b": "delivered", "a->c": "not_selected"}]
    assert run.inputs("b") == [{"score": 2}]


def test_a_failure_goes_along_the_error_edge_and_does_not_fail_the_run():
    def bad(ctx: Context) -> None:
        raise Fault("agent", "executor_failed")

    edges = [("a", "b"), Edge(source="a", target="c", kind="error")]
    run = route(edges, bad, "b", "c")
    (failure,) = run.inputs("c")
    assert set(failure) == {"activation", "error", "input"}
    assert (failure["activation"], failure["error"]["code"], failure["input"]) == (
        "/a#0",
        "executor_failed",
        1,
    )
    assert run.inputs("b") == []
    assert run.state.status == "completed"


def test_nothing_goes_along_an_error_edge_while_attempts_are_left():
    def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Fault("agent", "executor_failed")
        ctx.send("ok")

    edges = [("a", "b"), Edge(source="a", target="c", kind="error")]
    workflow = graph(
        node("a", policy=Policy(retry=RetryPolicy(max_attempts=2))), node("b"), node("c"), edges=edges
    )
    run = Graph(workflow, 1, handlers={"a": flaky, "b": silent, "c": silent}).go()
    assert (run.inputs("b"), run.inputs("c")) == (["ok"], [])


def test_a_run_that_ends_follows_no_error_edge():
    edges = [("a", "a"), Edge(source="a", target="c", kind="error")]
    run = Graph(
        graph(node("a"), node("c"), edges=edges, options={"policy": "eager", "max_steps": 3}),
        1,
        handlers={"c": silent},
    ).go()
    assert run.error().code == "step_limit_exceeded"
    assert run.inputs("c") == []
