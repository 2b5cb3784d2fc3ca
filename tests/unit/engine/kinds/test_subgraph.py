"""`subgraph`: another graph as one node, in the same log (page 003 §4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import Approval, Budget, Edge, EndNode, Options, SubgraphNode, WaitNode
from agentflow.engine.approvals import decided
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, call, chain, graph, steps


def ended(driver: Driver, step: str) -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == step)


def failure(driver: Driver, step: str) -> Any:
    return next(e.error for e in driver.events(ev.WorkflowStepFailed) if e.step_id == step)


def nested(inner: Any, **fields: Any) -> Any:
    more = fields.pop("whole", {})
    return graph(SubgraphNode(id="sub", inline=inner, next="after", **fields), call("after", "__end"), **more)


INNER = graph(call("a", "b"), call("b", "__end", input={"a": "${{ nodes.a.output }}", "in": "${{ input }}"}))


def test_its_nodes_run_in_the_same_log_under_ids_of_their_own():
    driver = Driver(nested(INNER), {"n": 1})
    assert driver.run().status == "completed"
    started = [(e.step_id, e.path, e.activation) for e in driver.events(ev.WorkflowStepStarted)]
    assert started == [
        ("sub", "", "/sub#0"),
        ("sub/a", "/sub#0.0", "/sub#0.0/sub/a#0"),
        ("sub/b", "/sub#0.0", "/sub#0.0/sub/b#0"),
        ("after", "", "/after#0"),
    ]


def test_the_output_names_the_end_the_output_and_those_of_the_nodes():
    driver = Driver(nested(INNER, input={"given": "${{ input.n }}"}), {"n": 1})
    driver.run()
    a, b = {"given": 1}, {"a": {"given": 1}, "in": {"given": 1}}
    assert ended(driver, "sub").output == {
        "terminal_node_id": "__end",
        "output": b,
        "node_outputs": {"a": a, "b": b},
        "workflow_id": None,
    }


def test_without_an_input_it_gets_that_of_the_caller_and_not_its_scope():
    inner = graph(call("a", "__end", input={"in": "${{ input }}", "outer": "${{ nodes.before }}"}))
    work = graph(call("before", "sub"), SubgraphNode(id="sub", inline=inner, next="__end"))
    driver = Driver(work, {"n": 1})
    driver.run()
    assert ended(driver, "sub/a").output == {"in": {"n": 1}, "outer": None}


def test_nodes_outside_see_its_output_and_not_its_nodes():
    work = nested(INNER)
    after = call(
        "after", "__end", input={"a": "${{ nodes.a }}", "t": "${{ nodes.sub.output.terminal_node_id }}"}
    )
    nodes = [after if n.id == "after" else n for n in work.nodes]
    driver = Driver(msgspec.structs.replace(work, nodes=tuple(nodes)), {})
    assert driver.run().output == {"a": None, "t": "__end"}


def test_a_graph_of_dependencies_runs_inside():
    inner = steps(agent("x"), agent("y", depends_on=("x",)), agent("z", depends_on=("x",)))
    driver = Driver(nested(inner), {}, model=lambda activation, call: '{"n": 1}')
    assert driver.run().status == "completed"
    assert ended(driver, "sub").output["output"] == {"y": {"n": 1}, "z": {"n": 1}}
    assert driver.events(ev.WorkflowStepStarted)[2].depends_on == ("sub/x",)


def broken(name: str, parameters: Any) -> Any:
    if name == "s__a":
        raise Fault("tool", "broken")
    return 1


def test_a_failure_inside_is_the_cause_of_that_of_the_node():
    driver = Driver(nested(INNER), {}, call=broken)
    assert driver.run().status == "failed"
    error = failure(driver, "sub")
    assert (error.code, error.cause.code) == ("subgraph_failed", "broken")
    assert driver.state.failed_steps == ["sub"]


def test_its_other_paths_end_first_as_those_of_a_run():
    inner = graph(call("a", "__end"), call("b", "__end"), edges=(Edge(source="__start", target="b"),))
    driver = Driver(nested(inner), {}, call=broken)
    driver.run()
    assert ended(driver, "sub/b")
    driver = Driver(nested(inner, whole={"options": Options(on_failure="halt")}), {}, call=broken)
    driver.run()
    assert failure(driver, "sub/b").category == "cancelled"


def test_an_end_that_does_not_drain_ends_the_graph_and_not_the_run():
    inner = graph(
        call("a", "done"),
        WaitNode(id="long", duration=60.0, next="done"),
        edges=(Edge(source="__start", target="long"),),
    )
    inner = msgspec.structs.replace(
        inner, nodes=(*inner.nodes, EndNode(id="done", output={"got": "${{ nodes.a.output }}"}))
    )
    driver = Driver(nested(inner), {"n": 1})
    assert driver.run().status == "completed"
    output = ended(driver, "sub").output
    assert (output["terminal_node_id"], output["output"]) == ("done", {"got": {"n": 1}})
    assert failure(driver, "sub/long").category == "cancelled"
    assert ended(driver, "after")


@pytest.mark.parametrize("granted", [True, False])
def test_a_child_run_that_needs_consent_begins_once_it_is_given(granted: bool):
    sub = SubgraphNode(
        id="sub", inline=graph(call("x", "__end")), isolation="run", approval=Approval(), next="__end"
    )
    driver = Driver(graph(sub), {})
    assert driver.state.status == "waiting"
    request = next(iter(driver.state.requests.values()))
    driver.advance(decided(request, granted=granted, by="ann", via="api"))
    if granted:
        assert driver.events(ev.WorkflowStepStarted)[-1].child["workflow_id"].startswith("wf_")
    else:
        assert failure(driver, "sub").code == "approval_denied"


def test_graphs_nest_as_deep_as_the_budget_says():
    deep = nested(nested(nested(INNER)), whole={"options": Options(budget=Budget(max_depth=2))})
    driver = Driver(deep, {})
    assert driver.run().status == "failed"
    assert failure(driver, "sub/sub/sub").code == "depth_exceeded"
    assert Driver(nested(nested(nested(INNER))), {}).run().status == "completed"


def test_steps_inside_count_against_the_limit_of_the_run():
    inner = graph(call("a", "b"), call("b", "c"), call("c", "d"), call("d", "__end"))
    state = Driver(nested(inner, whole={"options": Options(max_steps=4)}), {}).run()
    assert state.error is not None
    assert (state.error.code, state.clock) == ("step_limit_exceeded", 4)


def test_iterations_run_a_graph_each():
    node = SubgraphNode(
        id="sub",
        inline=INNER,
        join="all_succeeded",
        for_each="${{ inputs.items }}",
        input={"i": "${{ item }}"},
    )
    driver = Driver(steps(node), {"items": [1, 2]})
    assert driver.run().status == "completed"
    assert [out["output"]["in"]["i"] for out in driver.state.output["sub"]] == [1, 2]


def test_steps_that_were_not_reached_are_named():
    from agentflow.definition.ir import ConditionNode

    choose = ConditionNode(id="choose", expression="false", on_true="sub", on_false="__end")
    driver = Driver(graph(choose, SubgraphNode(id="sub", inline=INNER, next="__end")), {})
    driver.run()
    assert driver.events(ev.WorkflowCompleted)[0].not_run == ("sub", "sub/a", "sub/b")


def test_a_graph_that_a_person_must_agree_to_is_opened_once_that_is_granted():
    driver = Driver(chain(SubgraphNode(id="sub", inline=chain(call("x")), approval=Approval())), {"x": 1})
    assert driver.run().status == "waiting"
    assert not driver.events(ev.WorkflowStepStarted)
    (request,) = driver.state.requests.values()
    driver.advance(decided(request, granted=True, by="test", via="api"))
    assert driver.run().status == "completed"
