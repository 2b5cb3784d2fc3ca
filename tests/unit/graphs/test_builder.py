"""WorkflowBuilder: what each call becomes in the IR (page 002 §3, §15)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import (
    Agent,
    Case,
    Default,
    Executor,
    NodeFailure,
    RequestInfoExecutor,
    WorkflowBuilder,
    executor,
    reducers,
)
from agentflow.definition.ir import AgentNode, Edge, ExecutorNode, MapNode, SharedKey, StartNode
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.errors import ConfigurationError, WorkflowValidationError
from tests.unit.graphs.nodes import Answer, Asker, Gather, Pass, Sink, Source, sends, takes


def is_big(value: int) -> bool:
    return value > 10


def is_small(value: int, shared: object) -> bool:
    return value < 3


def pick(value: int, targets: list[str]) -> list[str]:
    return targets[:1]


HERE = __name__


def begin(**more: object) -> WorkflowBuilder:
    return WorkflowBuilder("w", **more).set_start_executor(Source("a"))  # type: ignore[arg-type]


def edges(builder: WorkflowBuilder) -> list[Edge]:
    return list(builder.build().to_ir().edges)


def test_an_edge_and_its_condition():
    b = Sink("b")
    found = edges(begin().add_edge("a", b, is_big, "large").add_edge("a", "b", is_small))
    assert found == [
        Edge(source="a", target="b", name="large", predicate="large"),
        Edge(source="a", target="b", predicate=f"{HERE}:is_small"),
    ]


def test_an_expression_is_a_condition():
    workflow = begin().add_edge("a", Sink("b"), "message > state.limit").build()
    assert workflow.to_ir().edges == (Edge(source="a", target="b", when="message > state.limit"),)
    assert workflow.callables.predicates == {}


def test_a_chain_is_an_edge_between_neighbours():
    found = edges(WorkflowBuilder("w").set_start_executor("a").add_chain([Source("a"), Pass("b"), Sink("c")]))
    assert [(e.source, e.target, e.kind) for e in found] == [("a", "b", "single"), ("b", "c", "single")]


def test_fan_outs_of_one_node_are_groups():
    b, c = Sink("b"), Sink("c")
    builder = begin().add_fan_out_edges("a", [b, c]).add_fan_out_edges("a", [Sink("d"), Sink("e")])
    assert [(e.target, e.kind, e.group) for e in edges(builder)] == [
        ("b", "fan_out", None),
        ("c", "fan_out", None),
        ("d", "fan_out", "2"),
        ("e", "fan_out", "2"),
    ]


@pytest.mark.parametrize("method", ["add_fan_out_edges", "add_multi_selection_edge_group"])
def test_a_selection_makes_a_multi_edge_group(method: str):
    workflow = getattr(begin(), method)("a", [Sink("b"), Sink("c")], pick).build()
    assert [(e.kind, e.selection) for e in workflow.to_ir().edges] == [("multi", f"{HERE}:pick")] * 2
    assert workflow.callables.selections == {f"{HERE}:pick": pick}


def test_two_groups_of_one_source_have_selections_of_their_own():
    builder = begin().add_multi_selection_edge_group("a", [Sink("b"), Sink("c")], pick)
    workflow = builder.add_multi_selection_edge_group("a", [Sink("d"), Sink("e")], pick).build()
    names = [e.selection for e in workflow.to_ir().edges]
    assert names == [f"{HERE}:pick"] * 2 + [f"{HERE}:pick#2"] * 2
    assert set(workflow.callables.selections.values()) == {pick}


def test_a_fan_in_with_its_rules():
    builder = begin().add_fan_out_edges("a", [Pass("b"), Pass("c")])
    builder.add_fan_in_edges(["b", "c"], Gather("d"), on_missing="fail", quorum=2, timeout="1m")
    assert edges(builder)[2:] == [
        Edge(source=s, target="d", kind="fan_in", on_missing="fail", quorum=2, timeout=60.0) for s in "bc"
    ]


def test_a_switch_keeps_the_order_of_its_cases():
    cases = [Case(is_big, Sink("b")), Default(Sink("c")), Case("message == 4", "b", name="four")]
    workflow = begin().add_switch_case_edge_group("a", cases).build()
    assert workflow.to_ir().edges == (
        Edge(source="a", target="b", kind="switch", name="is_big", predicate=f"{HERE}:is_big"),
        Edge(source="a", target="c", kind="switch", name="default"),
        Edge(source="a", target="b", kind="switch", name="four", when="message == 4"),
    )


def test_a_map_runs_its_worker_below_it():
    builder = WorkflowBuilder("w").set_start_executor(sends("a", list[int]))
    graph = builder.add_map_edges("a", Pass("work"), Gather("all"), max_in_flight=3).build().to_ir()
    node = next(n for n in graph.nodes if isinstance(n, MapNode))
    assert (node.id, node.body, node.next, node.max_in_flight) == ("map_work", "work", "all", 3)
    assert graph.edges == (Edge(source="a", target="map_work"),)


def test_an_error_edge():
    builder = begin().add_edge("a", Sink("b")).add_error_edge("a", takes("mend", NodeFailure))
    assert edges(builder)[1] == Edge(source="a", target="mend", kind="error")


def test_shared_keys_have_packed_defaults():
    builder = begin().add_edge("a", Sink("b"))
    builder.add_shared("seen", list[int], reducers.append, [1]).add_shared("who", Answer, default=Answer("x"))
    assert builder.build().to_ir().shared == {
        "seen": SharedKey(reducer="append", default=[1]),
        "who": SharedKey(default={"$type": "Answer", "text": "x"}),
    }


def test_one_start_is_next_and_several_are_edges():
    one = begin().add_edge("a", Sink("b")).build()
    assert one.to_ir().nodes[0] == StartNode(id="__start", next="a")
    several = WorkflowBuilder("w").set_start_executor(Sink("a"), Sink("b")).build()
    assert several.to_ir().nodes[0] == StartNode(id="__start")
    assert [(e.source, e.target) for e in several.to_ir().edges] == [("__start", "a"), ("__start", "b")]


def test_options_reach_the_graph():
    options = begin(max_iterations=7, max_steps=9, on_undelivered="fail").add_edge("a", Sink("b")).build()
    found = options.to_ir().options
    assert (found.policy, found.max_iterations, found.max_steps) == ("superstep", 7, 9)
    assert (found.on_failure, found.on_undelivered) == ("halt", "fail")
    eager = begin(policy="eager").add_edge("a", Sink("b")).build().to_ir().options
    assert (eager.policy, eager.max_iterations, eager.on_failure) == ("eager", None, "continue")


def test_policies_of_an_executor_reach_its_node():
    retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=0.1))
    workflow = begin().add_edge("a", Sink("b", retry=retry, timeout="5s", on_error="skip")).build()
    node = workflow.to_ir().nodes[2]
    assert isinstance(node, ExecutorNode)
    assert node.policy is not None
    assert (node.policy.retry, node.policy.timeout, node.on_error) == (retry, 5.0, "skip")
    assert (node.accepts, node.emits) == (("int",), ())


def test_nodes_outside_output_from_give_intermediate_outputs():
    b, c = Sink("b"), Sink("c")
    graph = begin(output_from=[b]).add_fan_out_edges("a", [b, c]).build().to_ir()
    flags = {n.id: n.intermediate for n in graph.nodes if isinstance(n, ExecutorNode)}
    assert flags == {"a": True, "b": False, "c": True}


def test_classes_factories_and_functions_are_nodes():
    @executor(id="f")
    def function(value: int) -> int:
        return value

    def make() -> Executor:
        return Pass("made")

    workflow = begin().add_chain(["a", Pass, make, function, Sink("end")]).build()
    assert [n.id for n in workflow.to_ir().nodes[1:-1]] == ["a", "pass", "made", "f", "end"]
    template = workflow.callables.executors["pass"]
    assert not isinstance(template, Executor)
    assert template().id == "pass"
    assert workflow.callables.executors["made"] is make


def test_the_same_node_given_twice_is_one():
    b = Sink("b")
    workflow = begin().add_edge("a", b, is_big).add_edge("a", b, name="again").build()
    assert [n.id for n in workflow.to_ir().nodes] == ["__start", "a", "b", "__end"]


def test_an_agent_is_a_node_named_by_its_slug():
    agent = Agent("Claims Writer", "Write {{ nothing }}.", tools=["mail.send"], examples=[("a", "b")])
    workflow = WorkflowBuilder("w").set_start_executor(agent).build()
    node = workflow.to_ir().nodes[1]
    assert isinstance(node, AgentNode)
    assert (node.id, node.agent.name) == ("claims_writer", "Claims Writer")
    assert node.agent.functions is not None
    assert [(f.service, f.function) for f in node.agent.functions] == [("mail", "send")]
    assert "Input: a\nAnswer: b" in node.agent.system_prompt


def test_a_request_info_executor_sends_its_answers():
    ask = RequestInfoExecutor("ask", Answer)
    assert (ask.accepts, ask.emits) == (("Any",), ("Answer",))
    assert ask.can_handle(object())


def test_a_node_that_asks_says_what_it_is_answered():
    graph = begin().add_edge("a", Asker("ask")).build().to_ir()
    assert isinstance(graph.nodes[2], ExecutorNode)
    assert graph.nodes[2].answers == ("Answer",)


def test_the_same_calls_give_the_same_hash():
    one, two = (begin().add_edge("a", Sink("b"), is_big).build() for _ in range(2))
    assert one.definition.hash == two.definition.hash
    assert one.signature == two.signature
    assert (one.definition.format, one.version) == ("graph", "1")


def _own_function() -> None: ...


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": None}, "needs a name and a system_prompt"),
        ({"system_prompt": 3}, "needs a name and a system_prompt"),
        ({"tools": "own.pay"}, "tools of agent .* must be a list, not str"),
        ({"tools": None}, "tools of agent .* must be a list, not NoneType"),
        ({"tools": [_own_function]}, "must be text as service.function, not _own_function"),
        ({"tools": [3]}, "must be text as service.function, not int"),
        ({"examples": [3]}, "must be a pair of input and answer"),
        ({"output_schema": 3}, "must be a JSON Schema, not int"),
    ],
    ids=["no name", "no text", "text", "none", "a function", "a number", "no pair", "no schema"],
)
def test_an_agent_of_the_wrong_form_is_refused_by_name(more: dict[str, Any], said: str):
    with pytest.raises(ConfigurationError, match=said):
        Agent(**{"name": "a", "system_prompt": "p", **more})


def test_a_hint_lists_each_value_once():
    with pytest.raises(WorkflowValidationError) as caught:
        WorkflowBuilder("w").set_start_executor(Sink("a", on_error="explode")).build()  # type: ignore[arg-type]
    assert "write fail or skip" in [d.hint for d in caught.value.diagnostics]
