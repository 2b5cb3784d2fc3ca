"""A crash at every point: what is recorded is never repeated, what is missing is done (page 000 §11)."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import ToolNode
from agentflow.events import catalogue as ev
from agentflow.events.catalogue import TERMINAL_TYPES
from tests.unit.engine.driver import Driver, Fault, agent, chain, steps, tool


def model(unit, call):
    """One tool call, then an answer that names what the tool said."""
    last = unit.agent.messages[-1]
    if last.role == "tool":
        return json.dumps({"got": last.content})
    wanted = ToolCall(id=f"call_{unit.key}", name="s__add", arguments=json.dumps({"k": unit.key}))
    return Message(role="assistant", tool_calls=(wanted,))


def graph():
    return steps(
        agent("a"),
        agent("b", depends_on=("a",), for_each="${{ inputs.items }}", max_parallel=2),
        agent("c", depends_on=("a",), guard="steps.a.outputs.result.got == 'never'"),
        agent("d", depends_on=("b",), input="${{ steps.b.outputs.result }}"),
    )


def fresh(executed: Counter, *, idempotent: bool = True, on_unknown: str = "ask") -> Driver:
    info = tool(side_effect="external", idempotent=idempotent)

    def call(name, parameters):
        executed[parameters["k"]] += 1
        return f"r{parameters['k']}"

    return Driver(
        graph(),
        {"items": [1, 2, 3]},
        tools={i: [info] for i in "abcd"},
        model=model,
        call=call,
        options={"on_unknown": on_unknown},
    )


def length() -> int:
    driver = fresh(Counter())
    driver.run()
    return len(driver.log)


@pytest.mark.parametrize("cut", range(1, length()))
def test_a_crash_behind_any_event_changes_nothing_of_the_outcome(cut):
    """Also in the middle of a batch, which a back end would never leave behind."""
    whole = fresh(Counter())
    expected = whole.run()
    executed: Counter = Counter()
    driver = fresh(executed)
    driver.run()
    recorded = {e.tool_call_id for e, _, _ in driver.log[:cut] if isinstance(e, ev.ToolCallCompleted)}
    models = sum(isinstance(e, ev.ModelCallCompleted) for e, _, _ in driver.log[:cut])
    executed.clear()
    driver.requests.clear()
    driver.crash(cut)
    state = driver.run()
    assert state.status == "completed"
    assert state.output == expected.output
    assert not {f"call_{k}" for k in executed} & recorded, "a recorded result was executed again"
    total = len(whole.events(ev.ModelCallCompleted))
    assert len(driver.requests) == total - models, "a recorded model call was paid for again"
    types = driver.types()
    assert sum(t in TERMINAL_TYPES for t in types) == 1
    assert types[-1] in TERMINAL_TYPES
    assert [offset for _, offset, _ in driver.log] == list(range(len(driver.log)))


@pytest.mark.parametrize("cut", range(1, length(), 3))
def test_the_same_log_gives_the_same_decisions(cut):
    driver = fresh(Counter())
    driver.run()
    one, two = driver.refold(cut), driver.refold(cut)
    from agentflow.engine import decide

    assert decide(one, driver.now) == decide(two, driver.now)


def test_two_runs_of_the_same_answers_write_the_same_log():
    one, two = fresh(Counter()), fresh(Counter())
    one.run()
    two.run()
    assert [d for d, _, _ in one.log] == [d for d, _, _ in two.log]


class TestUnknownOutcome:
    def interrupted(self, **more) -> Driver:
        executed: Counter = Counter()
        driver = fresh(executed, idempotent=False, **more)
        driver.answer(driver.waiting[0])  # the model asks for the tool; the call is open
        driver.crash()
        return driver

    def test_it_is_never_repeated_and_a_person_is_asked(self):
        driver = self.interrupted()
        failed = driver.events(ev.ToolCallFailed)[0]
        assert (failed.outcome, failed.will_retry) == ("unknown", False)
        assert driver.state.status == "waiting"
        request = driver.events(ev.InputRequested)[0]
        assert request.request["tool_name"] == "s__add"
        assert driver.types()[-1] == "workflow.waiting"

    def reply(self, driver, **value):
        request = driver.events(ev.InputRequested)[0]
        driver.advance(
            [
                ev.InputReceived(
                    step_id=request.step_id,
                    iteration=request.iteration,
                    activation=request.activation,
                    request_id=request.request_id,
                    value=value,
                    by="me",
                    via="api",
                )
            ]
        )

    def test_done_hands_the_given_output_on(self):
        driver = self.interrupted()
        self.reply(driver, choice="done", output="it was sent")
        driver.answer(driver.waiting[0])
        assert driver.requests[-1][1][-1].content == "it was sent"

    def test_retry_makes_the_same_call_again_under_the_same_key(self):
        driver = self.interrupted()
        self.reply(driver, choice="retry")
        first, second = driver.events(ev.ToolCallStarted)
        assert first.idempotency_key == second.idempotency_key
        assert driver.waiting[0].kind == "tool"

    def test_fail_tells_the_agent(self):
        driver = self.interrupted()
        self.reply(driver, choice="fail")
        driver.answer(driver.waiting[0])
        assert "interrupted" in driver.requests[-1][1][-1].content

    def test_a_question_that_is_withdrawn_is_as_fail(self):
        answered, driver = self.interrupted(), self.interrupted()
        self.reply(answered, choice="fail")
        request = driver.events(ev.InputRequested)[0]
        driver.advance(engine.commands.withdraw(driver.state, request.request_id, reason="no", by="me"))
        assert driver.types()[-1] == answered.types()[-1] == "model.call_started"
        assert driver.types().count("input.cancelled") == 1
        for one in (answered, driver):
            one.answer(one.waiting[0])
        assert driver.requests[-1] == answered.requests[-1]
        driver.crash()
        assert driver.run().status == answered.run().status == "completed"

    def test_one_that_the_end_of_its_run_closes_fails_nothing_else(self):
        driver = self.interrupted()
        request = ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason="enough", by="me")
        driver.advance([request])
        driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
        types = driver.types()
        assert types[types.index("input.cancelled") :] == [
            "input.cancelled",
            "agent.failed",
            "workflow.step_failed",
            "workflow.cancelled",
        ]
        assert driver.refold(len(driver.log)).status == "cancelled"

    def test_a_call_of_a_function_that_is_not_there_was_never_made(self):
        """Also when the log is cut between the two events of such a call."""

        def asking(unit, call):
            if unit.agent.messages[-1].role == "tool":
                return "{}"
            wanted = ToolCall(id="call_1", name="s__other", arguments="{}")
            return Message(role="assistant", tool_calls=(wanted,))

        driver = Driver(steps(agent("a")), tools={"a": [tool()]}, model=asking)
        driver.run()
        cut = driver.types().index("tool.call_started") + 1
        driver.crash(cut)
        assert driver.run().status == "completed"
        assert not driver.events(ev.InputRequested)
        assert "tool_not_found" in driver.requests[-1][1][-1].content

    def test_one_whose_function_is_gone_since_may_have_been_made(self):
        driver = fresh(Counter(), idempotent=False)
        driver.answer(driver.waiting[0])
        driver.bindings.steps["a"].tools.clear()
        driver.crash()
        assert driver.events(ev.InputRequested)[0].request_type == "outcome_unknown"

    def test_policy_fail_ends_the_step(self):
        driver = self.interrupted(on_unknown="fail")
        failed = next(e for e in driver.events(ev.WorkflowStepFailed) if e.step_id == "a")
        assert (failed.error.code, failed.outcome) == ("outcome_unknown", "unknown")
        assert driver.state.status == "failed"

    def test_a_tool_node_asks_too(self):
        info = tool(side_effect="external", idempotent=False)
        driver = Driver(chain(ToolNode(id="t", tool="s.add")), {"x": 0}, tools={"t": [info]})
        driver.crash()
        assert driver.state.status == "waiting"
        self.reply(driver, choice="done", output={"x": 9})
        assert driver.run().output == {"x": 9}

    def test_a_tool_node_whose_question_is_withdrawn_fails(self):
        info = tool(side_effect="external", idempotent=False)
        driver = Driver(chain(ToolNode(id="t", tool="s.add")), {"x": 0}, tools={"t": [info]})
        driver.crash()
        (asked,) = driver.state.requests
        driver.advance(engine.commands.withdraw(driver.state, asked, reason="no", by="me"))
        assert driver.state.status == "failed"
        assert driver.events(ev.WorkflowStepFailed)[0].error.code == "interrupted"


def test_a_retry_that_was_waiting_goes_on_waiting_after_a_crash():
    def model(unit, call):
        raise Fault("transient", "server_error")

    driver = Driver(steps(agent("a")), model=model)
    driver.answer(driver.waiting[0])
    driver.crash()
    assert not driver.waiting
    assert driver.state.timers


def test_cancel_closes_every_open_call_and_step():
    from agentflow.engine import cancel_finished

    driver = fresh(Counter())
    driver.answer(driver.waiting[0])
    request = ev.WorkflowCancelRequested(mode="soft", grace_ms=5000, reason="enough", by="me")
    driver.advance([request])
    driver.advance(cancel_finished(driver.state, driver.now, forced=False))
    assert driver.state.status == "cancelled"
    assert not driver.state.calls
    assert not driver.state.open
    assert driver.types()[-1] == "workflow.cancelled"
    assert driver.events(ev.WorkflowStepFailed)[0].error.category == "cancelled"
