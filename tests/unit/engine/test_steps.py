"""Dependency graphs: guards, skips, for_each, slots, outcome (page 001 §5)."""

from __future__ import annotations

import json

import pytest

from agentflow.definition.conversation import Message
from agentflow.definition.ir import ConditionNode, EndNode, Options, Policy, StartNode, ToolNode, Workflow
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine import gates
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, chain, steps, tool


def say(**by_step):
    return lambda unit, call: json.dumps(by_step.get(unit.node.id, {}))


def test_a_step_leaves_the_events_of_page_000_in_their_order():
    driver = Driver(steps(agent("a")))
    driver.run()
    assert driver.types() == [
        "workflow.started",
        "workflow.step_started",
        "agent.initialized",
        "agent.processing",
        "model.call_started",
        "model.call_completed",
        "agent.completed",
        "system.state_saved",
        "workflow.step_completed",
        "workflow.completed",
    ]


def test_dependents_start_with_the_results_they_name():
    seen = []

    def model(unit, call):
        seen.append((unit.node.id, unit.agent.messages[1].content if len(unit.agent.messages) > 1 else None))
        return json.dumps({"n": 7})

    graph = steps(
        agent("a", input="${{ inputs.t }}"),
        agent("b", depends_on=("a",), input="${{ steps.a.outputs.result.n }}"),
    )
    state = Driver(graph, {"t": "hello"}, model=model).run()
    assert seen == [("a", "hello"), ("b", "7")]
    assert state.output == {"b": {"n": 7}}


def test_independent_steps_are_at_work_at_once():
    driver = Driver(steps(agent("a"), agent("b"), agent("c", depends_on=("a", "b"))))
    assert [c.activation.node.id for c in driver.waiting] == ["a", "b"]


def test_a_false_guard_skips_and_the_skip_passes_on_without_failing_the_run():
    graph = steps(
        agent("a"),
        agent("b", depends_on=("a",), guard='steps.a.outputs.result.urgency === "high"'),
        agent("c", depends_on=("b",)),
    )
    driver = Driver(graph, model=say(a={"urgency": "low"}))
    state = driver.run()
    skips = driver.events(ev.WorkflowStepSkipped)
    assert [(s.step_id, s.reason, s.caused_by) for s in skips] == [
        ("b", "condition_false", ()),
        ("c", "dependency_skipped", ("b",)),
    ]
    assert state.status == "completed"
    assert state.output == {"c": None}


def test_a_failed_step_stops_its_dependents_and_no_other_branch():
    def model(unit, call):
        if unit.node.id == "a":
            raise Fault("auth", "authentication_failed")
        return "{}"

    graph = steps(agent("a"), agent("b"), agent("c", depends_on=("a",)), agent("d", depends_on=("b",)))
    driver = Driver(graph, model=model)
    state = driver.run()
    assert state.status == "failed"
    assert {i: n.status for i, n in state.nodes.items() if i != "__end"} == {
        "a": "failed",
        "b": "succeeded",
        "c": "skipped",
        "d": "succeeded",
    }
    assert driver.events(ev.WorkflowStepSkipped)[0].reason == "dependency_failed"
    assert driver.types()[-1] == "workflow.failed"
    assert driver.events(ev.WorkflowFailed)[0].failed_steps == ("a",)


def test_halt_dispatches_nothing_more_and_leaves_no_event_of_what_never_ran():
    def model(unit, call):
        if unit.node.id == "a":
            raise Fault("auth", "authentication_failed")
        return "{}"

    graph = steps(agent("a"), agent("b"), agent("d", depends_on=("b",)), options=Options(on_failure="halt"))
    driver = Driver(graph, model=model)
    state = driver.run()
    assert state.status == "failed"
    assert state.nodes["b"].status == "succeeded"
    assert "d" not in {getattr(d, "step_id", None) for d, _, _ in driver.log}


def test_a_failed_optional_step_leaves_the_run_completed():
    def model(unit, call):
        raise Fault("auth", "authentication_failed")

    state = Driver(steps(agent("a", required=False), agent("b", depends_on=("a",))), model=model).run()
    assert state.status == "completed"
    assert state.nodes["b"].status == "skipped"


def test_a_status_function_runs_after_a_failure():
    def model(unit, call):
        if unit.node.id == "a":
            raise Fault("auth", "authentication_failed")
        return "{}"

    graph = steps(
        agent("a"),
        agent("b", depends_on=("a",), guard="failure()", join="all_terminal"),
        agent("c", depends_on=("a",), guard="success() && true", join="all_terminal"),
    )
    state = Driver(graph, model=model).run()
    assert state.nodes["b"].status == "succeeded"
    assert state.nodes["c"].status == "skipped"


class TestForEach:
    def graph(self, **more):
        node = agent("p", for_each="${{ inputs.items }}", input="${{ item.id }}", **more)
        return steps(node, agent("z", depends_on=("p",), input="${{ steps.p.outputs.result }}"))

    def test_results_keep_the_order_of_the_items_whatever_order_they_end_in(self):
        def model(unit, call):
            return json.dumps({"got": unit.agent.messages[1].content}) if unit.node.id == "p" else "{}"

        driver = Driver(self.graph(), {"items": [{"id": c} for c in "abc"]}, model=model)
        driver.run(choose=lambda calls: calls[-1])
        outer = [
            e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "p" and e.iteration is None
        ]
        assert outer[0].output == [{"got": "a"}, {"got": "b"}, {"got": "c"}]
        assert [i.status for i in outer[0].items] == ["succeeded"] * 3

    def test_at_most_max_parallel_at_once_in_index_order(self):
        driver = Driver(self.graph(max_parallel=2), {"items": [{"id": str(i)} for i in range(5)]})
        started = [e.iteration for e in driver.events(ev.WorkflowStepStarted) if e.iteration is not None]
        assert started == [0, 1]
        driver.run()
        started = [e.iteration for e in driver.events(ev.WorkflowStepStarted) if e.iteration is not None]
        assert started == [0, 1, 2, 3, 4]

    def test_a_failed_iteration_lets_the_others_run_then_the_step_fails(self):
        def model(unit, call):
            if unit.iteration == 1:
                raise Fault("auth", "authentication_failed")
            return "{}"

        driver = Driver(self.graph(), {"items": [{"id": "x"}] * 3}, model=model)
        state = driver.run()
        failed = [e for e in driver.events(ev.WorkflowStepFailed) if e.iteration is None]
        assert failed[0].error.code == "iteration_failed"
        assert failed[0].error.details == {"failed": [1]}
        assert [i.status for i in failed[0].items] == ["succeeded", "failed", "succeeded"]
        assert state.nodes["z"].status == "skipped"
        assert state.status == "failed"

    def test_no_items_succeed_at_once_and_dependents_run(self):
        state = Driver(self.graph(), {"items": []}).run()
        assert state.nodes["p"].status == "succeeded"
        assert state.nodes["z"].status == "succeeded"

    @pytest.mark.parametrize("items", [None, {"a": 1}, "abc", 3])
    def test_what_is_no_array_fails_before_any_iteration(self, items):
        driver = Driver(self.graph(), {"items": items})
        driver.run()
        error = driver.events(ev.WorkflowStepFailed)[0].error
        assert (error.category, error.code) == ("invalid_input", "for_each_type")
        assert not driver.events(ev.WorkflowStepStarted)

    @pytest.mark.parametrize(("count", "code"), [(3, None), (4, "for_each_limit")])
    def test_as_many_items_as_the_limit_are_allowed_and_no_more(self, count, code, monkeypatch):
        monkeypatch.setattr(gates, "MAX_ITEMS", 3)
        driver = Driver(self.graph(), {"items": [{"id": "x"}] * count})
        driver.run()
        failed = [e.error.code for e in driver.events(ev.WorkflowStepFailed)]
        assert failed == ([] if code is None else [code])

    def test_a_guard_over_item_filters_single_iterations(self):
        driver = Driver(self.graph(guard="item.id != 'b'"), {"items": [{"id": c} for c in "abc"]})
        driver.run()
        skips = driver.events(ev.WorkflowStepSkipped)
        assert [(s.step_id, s.iteration) for s in skips] == [("p", 1)]
        outer = next(
            e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "p" and e.iteration is None
        )
        assert outer.output == [{}, None, {}]

    def test_a_wide_step_starves_no_sibling(self):
        wide = agent("wide", for_each="${{ inputs.items }}")
        graph = steps(wide, agent("one"), agent("two"), options=Options(max_parallel=2))
        driver = Driver(graph, {"items": list(range(20))})
        driver.run()
        order = [(e.step_id, e.iteration) for e in driver.events(ev.WorkflowStepStarted)]
        assert order.index(("one", None)) < 4
        assert order.index(("two", None)) < 5


def test_an_expression_that_fails_at_run_time_fails_the_step_without_starting_it():
    driver = Driver(steps(agent("a", guard="inputs.n < 'x'")), {"n": 1})
    state = driver.run()
    error = driver.events(ev.WorkflowStepFailed)[0].error
    assert (error.category, error.code) == ("expression", "expression_error")
    assert error.details["reason"] == "type"
    assert not driver.events(ev.WorkflowStepStarted)
    assert state.status == "failed"


def test_a_context_that_cannot_be_evaluated_fails_the_step_before_it_starts():
    driver = Driver(steps(agent("a", spec={"context": {"t": "${{ fromJSON(inputs.t) }}"}})), {"t": "{"})
    state = driver.run()
    assert state.status == "failed"
    assert driver.events(ev.WorkflowStepFailed)[0].error.details["path"] == "/agent/context"
    assert not driver.events(ev.WorkflowStepStarted)


def test_declared_outputs_are_evaluated_at_the_end():
    graph = steps(agent("a"), outputs={"n": "${{ steps.a.outputs.result.n }}", "s": "${{ steps.a.status }}"})
    state = Driver(graph, model=say(a={"n": 3})).run()
    assert state.output == {"n": 3, "s": "success"}


class TestTokens:
    def test_a_chain_hands_each_output_on_unchanged(self):
        nodes = [ToolNode(id=f"n{i}", tool="s.add") for i in range(3)]
        driver = Driver(
            chain(*nodes),
            {"x": 0},
            tools={n.id: [tool()] for n in nodes},
            call=lambda name, p: {"x": p["x"] + 1},
        )
        state = driver.run()
        assert state.output == {"x": 3}
        assert state.status == "completed"

    def test_an_agent_of_a_chain_knows_whom_its_input_comes_from(self):
        driver = Driver(chain(agent("a"), agent("b")), "hi")
        driver.run()
        metadata = [e.input.metadata for e in driver.events(ev.AgentInitialized)]
        assert [(m.step_index, m.previous_agent) for m in metadata] == [(0, None), (1, "a")]

    def test_a_loop_visits_its_nodes_again_under_new_activations(self):
        graph = Workflow(
            name="loop",
            nodes=(
                StartNode(id="__start", next="step"),
                ToolNode(id="step", index=0, tool="s.add", next="more"),
                ConditionNode(
                    id="more", index=1, expression="nodes.step.output.x < 3", on_true="step", on_false="__end"
                ),
                EndNode(id="__end", index=2, drain=True),
            ),
        )
        driver = Driver(graph, {"x": 0}, tools={"step": [tool()]}, call=lambda name, p: {"x": p["x"] + 1})
        state = driver.run()
        assert state.output == {"x": 3}
        visits = [
            (e.activation, e.visit) for e in driver.events(ev.WorkflowStepStarted) if e.step_id == "step"
        ]
        assert visits == [("/step#0", 0), ("/step#1", 1), ("/step#2", 2)]


class TestToolNodes:
    def one(self, call, **more):
        node = ToolNode(id="t", tool="s.add", **more)
        return Driver(chain(node), {"x": 0}, tools={"t": [tool()]}, call=call)

    def test_a_failed_call_is_repeated_by_the_policy_with_its_stored_delay(self):
        tries = []

        def call(name, parameters):
            tries.append(name)
            if len(tries) < 3:
                raise Fault("tool", "tool_execution_failed")
            return {"ok": True}

        retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=1), jitter=0, retry_on=("tool",))
        driver = self.one(call, policy=Policy(retry=retry))
        state = driver.run()
        assert state.status == "completed"
        waits = driver.events(ev.WorkflowStepRetrying)
        assert [(w.next_attempt, w.delay_ms) for w in waits] == [(2, 1000), (3, 2000)]
        calls = driver.events(ev.ToolCallStarted)
        assert len({c.tool_call_id for c in calls}) == 1
        assert len({c.idempotency_key for c in calls}) == 1

    def test_without_a_policy_one_attempt(self):
        def call(name, parameters):
            raise Fault("tool", "tool_execution_failed")

        driver = self.one(call)
        assert driver.run().status == "failed"
        assert len(driver.events(ev.ToolCallStarted)) == 1

    def test_arguments_that_break_the_schema_are_never_executed(self):
        node = ToolNode(id="t", tool="s.add")
        strict = tool(schema={"type": "object", "required": ["y"]})
        driver = Driver(chain(node), {"x": 0}, tools={"t": [strict]}, call=lambda *a: pytest.fail("executed"))
        state = driver.run()
        assert state.status == "failed"
        assert driver.events(ev.ToolCallFailed)[0].executed is False


def test_a_step_over_its_time_limit_fails_and_closes_its_call():
    driver = Driver(steps(agent("a", policy=Policy(timeout=5))))
    driver.now += 6_000_000
    driver.advance([])
    failed = driver.events(ev.WorkflowStepFailed)[0]
    assert failed.error.code == "step_deadline"
    assert driver.events(ev.ModelCallFailed)[0].error.code == "step_deadline"
    assert driver.state.status == "failed"


def test_a_run_over_its_time_limit_fails_with_every_step_closed():
    driver = Driver(steps(agent("a"), agent("b"), options=Options(timeout=5)))
    driver.now += 6_000_000
    driver.advance([])
    assert driver.events(ev.WorkflowFailed)[0].error.code == "run_deadline"
    assert not driver.state.open
    assert not driver.state.calls


def test_every_event_type_of_a_message_is_a_struct_of_the_catalogue():
    driver = Driver(steps(agent("a")))
    driver.run()
    assert all(type(data) is ev.TYPES[data.EVENT_TYPE] for data, _, _ in driver.log)
    assert isinstance(driver.events(ev.ModelCallCompleted)[0].message, Message)


def test_a_failed_dependency_is_the_reason_of_a_skip_before_a_cancelled_one():
    nodes = (agent("cut"), agent("broken"), agent("after", depends_on=("cut", "broken")))
    workflow = steps(*nodes, options=Options(on_failure="continue"))
    faults = {"cut": Fault("cancelled", "cancelled"), "broken": Fault("agent", "agent_error")}

    def model(activation, call):
        raise faults[activation.node.id]

    driver = Driver(workflow, model=model)
    driver.run()
    (skip,) = driver.events(ev.WorkflowStepSkipped)
    assert (skip.step_id, skip.reason, skip.caused_by) == ("after", "dependency_failed", ("broken",))


def test_the_function_cancelled_of_a_guard_sees_dependencies_near_and_far():
    nodes = (
        agent("cut"),
        agent("broken"),
        agent("rescue", depends_on=("cut",), guard="cancelled()"),
        agent("other", depends_on=("broken",), guard="cancelled()"),
        agent("between", depends_on=("cut",)),
        agent("far", depends_on=("between",), guard="cancelled()"),
    )
    faults = {"cut": Fault("cancelled", "cancelled"), "broken": Fault("agent", "agent_error")}

    def model(activation, call):
        if activation.node.id in faults:
            raise faults[activation.node.id]
        return "{}"

    driver = Driver(steps(*nodes, options=Options(on_failure="continue")), model=model)
    driver.run()
    assert {data.step_id for data in driver.events(ev.WorkflowStepCompleted)} == {"rescue", "far"}
    assert {data.step_id for data in driver.events(ev.WorkflowStepSkipped)} == {"other", "between"}
