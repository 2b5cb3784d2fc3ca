"""The agent loop: turns, tools, repairs, retries, fallback, limits (page 000 §3, §4, §9; page 001 §5)."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import Policy
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import MODEL, OTHER, Driver, Fault, agent, steps, tool

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def script(*said):
    """Answers in turn; an exception is raised, an object is sent as JSON."""
    left = list(said)

    def model(unit, call):
        item = left.pop(0)
        if isinstance(item, Exception):
            raise item
        return item if isinstance(item, str | Message) else json.dumps(item)

    return model


def calls(*wanted):
    return Message(
        role="assistant",
        tool_calls=tuple(
            ToolCall(id=f"call_{i}", name=name, arguments=arguments)
            for i, (name, arguments) in enumerate(wanted)
        ),
    )


def one(model, *, tools=(), call=None, spec=None, input=None, **more):
    graph = steps(agent("a", spec=spec or {}, **more))
    return Driver(graph, input, tools={"a": list(tools)}, model=model, call=call)


class TestResults:
    def test_a_schema_valid_answer_is_the_result(self):
        state = one(script({"n": 1}), spec={"output_schema": SCHEMA}).run()
        assert state.output == {"a": {"n": 1}}

    def test_a_fenced_block_is_read(self):
        state = one(script('Here:\n```json\n{"n": 2}\n```'), spec={"output_schema": SCHEMA}).run()
        assert state.output == {"a": {"n": 2}}

    def test_a_string_schema_takes_plain_text(self):
        state = one(script("just text"), spec={"output_schema": {"type": "string"}}).run()
        assert state.output == {"a": "just text"}

    def test_without_schema_a_step_wraps_text_and_keeps_objects(self):
        assert one(script("hello")).run().output == {"a": {"text": "hello"}}
        assert one(script('{"x": [1]}')).run().output == {"a": {"x": [1]}}

    def test_a_breach_is_fed_back_and_repaired(self):
        driver = one(script({"n": "one"}, {"n": 1}), spec={"output_schema": SCHEMA})
        state = driver.run()
        assert state.output == {"a": {"n": 1}}
        retry = driver.events(ev.AgentRetrying)[0]
        assert (retry.kind, retry.category) == ("repair", "invalid_output")
        last = driver.requests[-1][1][-1]
        assert last.role == "user"
        assert "/n" in last.content

    def test_two_repairs_at_most_then_invalid_output(self):
        driver = one(script("no", "no", "no"), spec={"output_schema": SCHEMA})
        state = driver.run()
        assert state.status == "failed"
        assert len(driver.events(ev.AgentRetrying)) == 2
        assert driver.events(ev.AgentFailed)[0].error.category == "invalid_output"
        assert driver.types()[-3:] == ["agent.failed", "workflow.step_failed", "workflow.failed"]


class TestConversation:
    def test_the_model_sees_the_prompt_the_input_and_nothing_of_the_workflow(self):
        driver = one(
            script("{}"),
            spec={"system_prompt": "Be ${{ inputs.how }}.", "tags": {"team": "x"}, "context": {"secret": 1}},
            input={"how": "kind", "other": "hidden"},
        )
        driver.run()
        messages = driver.requests[0][1]
        assert [(m.role, m.content) for m in messages] == [("system", "Be kind.")]

    def test_only_new_messages_are_recorded_with_each_call(self):
        driver = one(script(calls(("s__add", "{}")), "{}"), tools=[tool()], call=lambda n, p: 5)
        driver.run()
        starts = driver.events(ev.ModelCallStarted)
        assert [(s.messages_from, [m.role for m in s.messages]) for s in starts] == [
            (0, ["system"]),
            (2, ["tool"]),
        ]

    def test_an_object_input_is_compact_json_in_its_own_order(self):
        graph = steps(agent("a", input={"b": 1, "a": "${{ inputs.t }}"}))
        driver = Driver(graph, {"t": "x"})
        driver.run()
        assert driver.requests[0][1][1].content == '{"b":1,"a":"x"}'


class TestTools:
    def test_calls_run_side_by_side_and_answer_in_call_order(self):
        wanted = calls(("s__add", '{"i": 0}'), ("s__add", '{"i": 1}'), ("s__add", '{"i": 2}'))
        driver = one(script(wanted, "{}"), tools=[tool()], call=lambda n, p: p["i"] * 10)
        driver.answer(driver.waiting[0])
        assert len(driver.waiting) == 3
        driver.run(choose=lambda c: c[-1])
        answers = driver.requests[-1][1][-3:]
        assert [(m.role, m.content) for m in answers] == [("tool", "0"), ("tool", "10"), ("tool", "20")]

    def test_one_at_a_time_when_the_agent_says_so(self):
        wanted = calls(("s__add", '{"i": 0}'), ("s__add", '{"i": 1}'))
        driver = one(script(wanted, "{}"), tools=[tool()], spec={"parallel_tool_calls": False})
        driver.answer(driver.waiting[0])
        assert len(driver.waiting) == 1

    def test_eight_at_once_at_most(self):
        wanted = calls(*[("s__add", "{}")] * 10)
        wanted = Message(
            role="assistant",
            tool_calls=tuple(ToolCall(id=f"c{i}", name="s__add", arguments="{}") for i in range(10)),
        )
        driver = one(script(wanted, "{}"), tools=[tool()])
        driver.answer(driver.waiting[0])
        assert len(driver.waiting) == 8
        assert driver.run().status == "completed"

    @pytest.mark.parametrize(
        ("name", "arguments", "code"),
        [
            ("s__other", "{}", "tool_not_found"),
            ("s__elsewhere", "{}", "tool_not_attached"),
            ("s__add", "{nonsense", "invalid_tool_input"),
            ("s__add", "[1]", "invalid_tool_input"),
            ("s__add", '{"i": 1}', "invalid_tool_input"),
        ],
    )
    def test_a_bad_call_is_never_executed_and_goes_back_to_the_model(self, name, arguments, code):
        strict = tool(schema={"type": "object", "required": ["y"]})
        driver = one(
            script(calls((name, arguments)), "{}"), tools=[strict], call=lambda *a: pytest.fail("executed")
        )
        driver.state.bindings = structs.replace(
            driver.bindings, functions=frozenset({"s__add", "s__elsewhere"})
        )
        state = driver.run()
        failed = driver.events(ev.ToolCallFailed)[0]
        assert (failed.error.code, failed.executed, failed.outcome) == (code, False, "not_started")
        assert code in driver.requests[-1][1][-1].content
        assert state.status == "completed"

    def test_a_failed_tool_does_not_fail_the_agent(self):
        def call(name, parameters):
            raise Fault("tool", "tool_execution_failed")

        driver = one(script(calls(("s__add", "{}")), '{"sorry": true}'), tools=[tool()], call=call)
        assert driver.run().output == {"a": {"sorry": True}}

    def test_limits_of_turns_and_calls(self):
        driver = one(script(*[calls(("s__add", "{}"))] * 9), tools=[tool()], spec={"max_turns": 2})
        driver.run()
        assert driver.events(ev.AgentFailed)[0].error.code == "max_turns_exceeded"
        driver = one(script(*[calls(("s__add", "{}"))] * 9), tools=[tool()], spec={"max_tool_calls": 3})
        driver.run()
        assert driver.events(ev.AgentFailed)[0].error.code == "max_tool_calls_exceeded"
        assert len(driver.events(ev.ToolCallCompleted)) == 3

    def test_a_loop_is_told_once_and_then_fails(self):
        driver = one(script(*[calls(("s__add", '{"x": 1}'))] * 9), tools=[tool()])
        driver.run()
        error = driver.events(ev.AgentFailed)[0].error
        assert (error.category, error.code) == ("agent", "tool_loop")
        assert len(driver.events(ev.ToolCallCompleted)) == 4
        told = [
            m.content for m in driver.requests[-1][1] if m.role == "user" and "s__add 3 times" in m.content
        ]
        assert len(told) == 1

    def test_a_model_that_heeds_what_it_is_told_of_a_loop_goes_on(self):
        driver = one(script(*[calls(("s__add", "{}"))] * 3, '{"ok": true}'), tools=[tool()])
        assert driver.run().output == {"a": {"ok": True}}

    @pytest.mark.parametrize("wrong", ['{"x": "no"}', "no JSON"])
    def test_a_call_that_is_refused_again_and_again_is_a_loop(self, wrong):
        strict = structs.replace(tool(), input_schema={"type": "object", "required": ["y"]})
        driver = one(script(*[calls(("s__add", wrong))] * 9), tools=[strict])
        driver.run()
        assert driver.events(ev.AgentFailed)[0].error.code == "tool_loop"

    def test_turns_that_alternate_between_the_same_calls_are_a_loop(self):
        turns = [calls(("s__add", '{"x": 1}')), calls(("s__add", '{"x": 2}'))]
        driver = one(script(*turns * 9), tools=[tool()], spec={"max_turns": 18})
        driver.run()
        assert driver.events(ev.AgentFailed)[0].error.code == "tool_loop"

    @pytest.mark.parametrize("new", ["result", "arguments", "call beside it"])
    def test_what_is_new_is_no_loop(self, new):
        count = iter(range(99))
        turns = [calls(("s__add", "{}"))] * 8
        if new == "arguments":
            turns = [calls(("s__add", f'{{"x": {i}}}')) for i in range(8)]
        elif new == "call beside it":
            turns = [calls(("s__add", "{}"), ("s__add", f'{{"x": {i}}}')) for i in range(8)]
        driver = one(
            script(*turns, "{}"),
            tools=[tool()],
            spec={"max_turns": 9},
            call=lambda name, parameters: next(count) if new == "result" else "same",
        )
        assert driver.run().status == "completed"

    def test_the_same_call_thrice_in_one_turn_is_no_loop(self):
        driver = one(script(calls(*[("s__add", "{}")] * 3), "{}"), tools=[tool()])
        driver.run()
        assert not [m for m in driver.requests[-1][1] if "same arguments" in m.content]


class TestRetries:
    def test_a_transient_failure_is_repeated_in_place_with_the_conversation_kept(self):
        driver = one(script(Fault("transient", "server_error"), Fault("transient", "server_error"), "{}"))
        state = driver.run()
        assert state.status == "completed"
        waits = driver.events(ev.AgentRetrying)
        assert [(w.kind, w.next_attempt, w.delay_ms) for w in waits] == [
            ("model", 2, 1000),
            ("model", 3, 2000),
        ]
        assert [m.will_retry for m in driver.events(ev.ModelCallFailed)] == [True, True]
        assert len(driver.events(ev.AgentProcessing)) == 1
        assert [len(s.messages) for s in driver.events(ev.ModelCallStarted)] == [1, 0, 0]

    def test_attempts_are_used_up(self):
        driver = one(script(*[Fault("transient", "server_error")] * 4))
        state = driver.run()
        assert state.status == "failed"
        assert len(driver.events(ev.ModelCallStarted)) == 4
        assert [m.will_retry for m in driver.events(ev.ModelCallFailed)] == [True, True, True, False]

    def test_retry_after_is_waited_for(self):
        driver = one(script(Fault("rate_limited", "rate_limited", retry_after=7), "{}"))
        driver.run()
        assert driver.events(ev.AgentRetrying)[0].delay_ms == 7000

    def test_a_limit_beyond_the_window_pauses_the_run_and_loses_nothing(self):
        driver = one(script(Fault("rate_limited", "rate_limited", retry_after=3600), "{}"))
        state = driver.run()
        assert (state.status, state.pause) == ("paused", "quota")
        driver.advance([ev.WorkflowResumed(reason="resume")])
        assert driver.run().status == "completed"

    def test_invalid_requests_fail_fast(self):
        driver = one(script(Fault("invalid_input", "invalid_request")))
        assert driver.run().status == "failed"
        assert len(driver.events(ev.ModelCallStarted)) == 1

    def test_the_next_model_takes_over(self):
        graph = steps(agent("a"))
        driver = Driver(
            graph, models={"a": (MODEL, OTHER)}, model=script(Fault("auth", "authentication_failed"), "{}")
        )
        assert driver.run().status == "completed"
        assert [c.model for c in driver.events(ev.ModelCallStarted)] == ["m", "other"]
        assert driver.events(ev.AgentRetrying)[0].kind == "fallback"

    def test_another_failure_that_the_policy_names_starts_over_with_a_fresh_context(self):
        retry = RetryPolicy(
            max_attempts=2, backoff=Backoff(initial=1), jitter=0, retry_on=("step_timeout",), timeout=10
        )
        driver = one(script("{}"), policy=Policy(retry=retry))
        driver.now += 11_000_000
        driver.waiting.clear()
        driver.advance([])
        assert driver.events(ev.AgentRetrying)[0].kind == "restart"
        state = driver.run()
        assert state.status == "completed"
        contexts = [e.context_id for e in driver.events(ev.AgentInitialized)]
        assert len(set(contexts)) == 2
        assert state.nodes["a"].attempt == 2

    def test_never_starts_over_once_an_unsafe_call_is_recorded(self):
        retry = RetryPolicy(max_attempts=2, jitter=0, retry_on=("step_timeout",), timeout=10)
        driver = one(
            script(calls(("s__add", "{}")), "{}"),
            tools=[tool(side_effect="external", idempotent=False)],
            policy=Policy(retry=retry),
        )
        driver.answer(driver.waiting[0])
        driver.answer(driver.waiting[0])
        driver.now += 11_000_000
        driver.advance([])
        assert driver.state.status == "failed"
        assert not driver.events(ev.AgentRetrying)


def test_a_cancel_counts_the_model_call_that_it_closes():
    driver = one(script(calls(("s__add", "{}"))), tools=[tool()])
    driver.answer(driver.waiting[0])
    driver.answer(driver.waiting[0])
    assert [c.kind for c in driver.waiting] == ["model"]
    driver.advance([ev.WorkflowCancelRequested(mode="hard", grace_ms=0, reason="enough", by="test")])
    driver.take(engine.cancel_finished(driver.state, driver.now, forced=True))
    (closed,) = driver.events(ev.ModelCallFailed)
    (cancelled,) = driver.events(ev.WorkflowCancelled)
    assert closed.usage.model_calls == 1
    assert cancelled.usage == driver.state.usage
    assert cancelled.usage.model_calls == 2


def test_usage_is_added_up():
    driver = one(script(calls(("s__add", "{}")), "{}"), tools=[tool()])
    state = driver.run()
    assert (state.usage.model_calls, state.usage.tool_calls, state.usage.input_tokens) == (2, 1, 6)
    assert driver.events(ev.WorkflowCompleted)[0].usage == state.usage
