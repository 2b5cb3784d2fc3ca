"""Which time counts against which limit, and what ends that would go round for ever."""

from __future__ import annotations

import json

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import ConditionNode, EndNode, Options, Policy, StartNode, Workflow
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, steps, tool

HOUR = 3_600_000_000
UNSAFE = tool(side_effect="external", idempotent=False)


def pay(unit, call):
    if unit.agent.messages[-1].role == "tool":
        return "{}"
    return Message(role="assistant", tool_calls=(ToolCall(id="call_1", name="s__add", arguments="{}"),))


def asking(**more) -> Driver:
    """A run that asks a person what became of an unsafe call."""
    driver = Driver(steps(agent("a", **more)), tools={"a": [UNSAFE]}, model=pay)
    driver.answer(driver.waiting[0])
    driver.crash()
    assert driver.state.status == "waiting"
    return driver


def answer(driver: Driver, **value) -> None:
    request = driver.events(ev.InputRequested)[-1]
    scope = {"step_id": request.step_id, "iteration": request.iteration, "activation": request.activation}
    driver.advance(
        [ev.InputReceived(**scope, request_id=request.request_id, value=value, by="me", via="api")]
    )


def test_waiting_for_a_person_counts_against_no_limit():
    driver = asking(policy=Policy(timeout=10))
    driver.now += HOUR
    driver.advance([])
    assert driver.state.status == "waiting"
    answer(driver, choice="done", output=1)
    assert driver.run().status == "completed"


def test_a_step_that_waits_says_so():
    driver = asking()
    assert driver.state.nodes["a"].status == "waiting"
    waiting = driver.events(ev.WorkflowStepWaiting)[0]
    assert (waiting.for_, waiting.ref) == ("input", driver.events(ev.InputRequested)[0].request_id)
    answer(driver, choice="done", output=1)
    assert driver.state.nodes["a"].status == "running"


def test_a_night_without_a_process_costs_no_recorded_turn():
    driver = Driver(steps(agent("a")), tools={"a": [tool()]}, model=pay)
    driver.answer(driver.waiting[0])  # one turn is recorded, its call is open
    driver.now += 9 * HOUR
    driver.crash()
    assert driver.run().status == "completed"
    assert not driver.events(ev.AgentRetrying)
    assert len(driver.events(ev.ModelCallCompleted)) == 2


def test_a_paused_run_does_not_grow_old():
    def model(unit, call):
        if len(driver.requests) == 1:
            raise Fault("quota", "insufficient_quota")
        return "{}"

    driver = Driver(steps(agent("a"), options=Options(timeout=60)), model=lambda u, c: model(u, c))
    assert driver.run().status == "paused"
    driver.now += HOUR
    driver.advance([ev.WorkflowResumed(reason="resume")])
    assert driver.run().status == "completed"


def test_after_a_quota_pause_the_retries_begin_anew():
    left = [Fault("rate_limited", "rate_limited", retry_after=3600), Fault("rate_limited", "rate_limited")]

    def model(unit, call):
        if left:
            raise left.pop(0)
        return "{}"

    driver = Driver(steps(agent("a")), model=model)
    assert driver.run().status == "paused"
    driver.advance([ev.WorkflowResumed(reason="resume")])
    assert driver.run().status == "completed"


def test_a_graph_that_goes_round_for_ever_ends_at_its_step_limit():
    graph = Workflow(
        name="loop",
        nodes=(
            StartNode(id="__start", next="again"),
            ConditionNode(id="again", index=0, expression="true", on_true="again", on_false="__end"),
            EndNode(id="__end", index=1, drain=True),
        ),
        options=Options(max_steps=20),
    )
    driver = Driver(graph)
    assert driver.state.status == "failed"
    failed = driver.events(ev.WorkflowFailed)[0]
    assert (failed.error.code, failed.error.details) == ("step_limit_exceeded", {"limit": 20})


def test_a_run_over_its_time_counts_the_steps_that_it_ended():
    each = agent("a", for_each="${{ inputs.l }}", max_parallel=1)
    driver = Driver(steps(each, agent("b"), options=Options(timeout=5)), {"l": [1, 2, 3]})
    driver.now += 6_000_000
    driver.advance([])
    failed = driver.events(ev.WorkflowFailed)[0]
    assert failed.error.code == "run_deadline"
    assert set(failed.failed_steps) == {"a", "b"}
    assert failed.steps.failed == 2


def test_no_number_of_crashes_is_held_against_a_unit():
    """daemon D4: who caused the deaths of a process is judged by the ledger of recovery, not by each run."""
    driver = Driver(steps(agent("a")))
    for _ in range(30):
        driver.crash()
    assert driver.state.status == "running"
    assert driver.run().status == "completed"


def test_six_deaths_of_an_actor_without_progress_pause_the_run():
    driver = Driver(steps(agent("a")))
    for _ in range(6):
        unit = driver.state.open["/a#0"]
        driver.waiting.clear()
        driver.advance(engine.activation_lost(driver.state, unit, "a bug", driver.now))
    assert (driver.state.status, driver.state.pause) == ("paused", "recovery_limit")
    driver.advance([ev.WorkflowResumed(reason="resume")])
    assert driver.run().status == "completed"


def test_an_agent_failure_that_the_policy_names_starts_over():
    said = iter(["no", "no", "no", json.dumps({"n": 1})])
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    retry = RetryPolicy(max_attempts=2, backoff=Backoff(initial=1), retry_on=("invalid_output",))
    graph = steps(agent("a", spec={"output_schema": schema}, policy=Policy(retry=retry)))
    driver = Driver(graph, model=lambda u, c: next(said))
    assert driver.run().output == {"a": {"n": 1}}
    assert [e.kind for e in driver.events(ev.AgentRetrying)] == ["repair", "repair", "restart"]


def test_a_declaration_that_became_harmless_repeats_no_recorded_call():
    driver = Driver(steps(agent("a")), tools={"a": [UNSAFE]}, model=pay)
    driver.answer(driver.waiting[0])
    driver.bindings.steps["a"].tools["s__add"] = tool(side_effect="none")
    driver.crash()
    assert driver.events(ev.ToolCallFailed)[0].outcome == "unknown"
    assert driver.state.status == "waiting"


def test_the_price_of_a_run_is_known_when_its_calls_of_functions_are_free():
    from agentflow.definition.conversation import Usage, add_usage

    paid = Usage(model_calls=1, input_tokens=3, cost_usd=0.5)
    assert add_usage(paid, Usage(tool_calls=1, cost_usd=0.0)).cost_usd == 0.5
