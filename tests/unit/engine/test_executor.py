"""Executors: activations, attempts, limits, failures, requests, outputs (page 002 §3, §7, §8, §10, §12)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import Approval, Policy
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine import commands
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault
from tests.unit.engine.handlers import Context, Graph, graph, node

BOTH = pytest.mark.parametrize("policy", ["superstep", "eager"])


def silent(ctx: Context) -> None:
    """A handler that sends nothing."""


def fail(ctx: Context) -> None:
    raise Fault("agent", "executor_failed")


def one(handler: Any, policy: str = "eager", on_failure: str = "halt", **more: Any) -> Graph:
    """A node a that sends to b."""
    options = {"policy": policy, "on_failure": on_failure}
    workflow = graph(node("a", **more), node("b"), edges=[("a", "b")], options=options)
    return Graph(workflow, 1, handlers={"a": handler, "b": silent})


# -- activations --------------------------------------------------------------------------------


@BOTH
def test_a_node_handles_one_message_at_a_time_first_come_first_served(policy: str):
    def many(ctx: Context) -> None:
        for i in range(4):
            ctx.send(i)

    run = one(many, policy)
    run.work(run.open_handlers()[0])
    while found := run.open_handlers():
        assert len(found) == 1
        run.work(found[0])
    assert run.inputs("b") == [0, 1, 2, 3]
    assert run.order() == ["/a#0", "/b#0", "/b#1", "/b#2", "/b#3"]


def test_at_most_256_handlers_work_at_once():
    names = [f"n{i}" for i in range(300)]
    workflow = graph(
        node("a"), *map(node, names), edges=[("a", n) for n in names], options={"policy": "eager"}
    )
    run = Graph(workflow, 1, handlers=dict.fromkeys(names, silent))
    run.work(run.open_handlers()[0])
    assert len(run.open_handlers()) == 256
    run.work(run.open_handlers()[0])
    assert len(run.open_handlers()) == 256
    assert run.go().state.status == "completed"


def test_step_started_names_what_was_taken():
    run = one(lambda c: c.send("x")).go()
    started = run.events(ev.WorkflowStepStarted)[1]
    assert (started.kind, started.input, started.attempt) == ("executor", "x", 1)
    assert [(s.activation, s.edge, s.index) for s in started.sources] == [("/a#0", "a->b", 0)]


def test_completion_is_one_append_with_messages_writes_and_requests():
    def all_of_it(ctx: Context) -> None:
        ctx.send(1)
        ctx.write("k", 2)
        ctx.kept = {"p": 3}
        ctx.ask("?")

    run = one(all_of_it)
    before = len(run.log)
    run.work(run.open_handlers()[0])
    kinds = run.types()[before : before + 2]
    assert kinds == ["input.requested", "workflow.step_completed"]
    assert run.log[before][2] == run.log[before + 1][2]
    done = run.events(ev.WorkflowStepCompleted)[0]
    assert done.messages[0].payload == 1
    assert (done.state.private, done.state.shared[0].key, done.state.shared[0].value) == ({"p": 3}, "k", 2)


def test_a_result_of_an_attempt_that_is_over_changes_nothing():
    run = one(silent)
    key = run.open_handlers()[0].activation_key
    assert engine.handler_completed(run.state, key, 2, now=run.now) == []
    run.go()
    assert engine.handler_completed(run.state, key, 1, now=run.now) == []
    assert engine.handler_output(run.state, key, 1, type="int", value=1) == []


# -- attempts -----------------------------------------------------------------------------------


def test_an_executor_is_attempted_once_unless_it_has_a_policy():
    run = one(fail).go()
    (failed,) = run.events(ev.WorkflowStepFailed)
    assert (failed.error.code, failed.attempts) == ("executor_failed", 1)
    assert run.types()[-2:] == ["workflow.step_failed", "workflow.failed"]


def test_an_attempt_is_repeated_after_its_backoff_with_the_same_input():
    seen: list[tuple[int, Any, int]] = []

    def flaky(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.input, ctx.run.now))
        if ctx.attempt < 3:
            raise Fault("agent", "executor_failed")

    retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=2.0), jitter=0.0)
    workflow = graph(node("a", policy=Policy(retry=retry)), edges=[])
    run = Graph(workflow, 7, handlers={"a": flaky}).go()
    assert [(attempt, value) for attempt, value, _ in seen] == [(1, 7), (2, 7), (3, 7)]
    assert seen[1][2] - seen[0][2] >= 2_000_000
    assert seen[2][2] - seen[1][2] >= 4_000_000
    assert [(d.kind, d.next_attempt) for d in run.events(ev.WorkflowStepRetrying)] == [
        ("restart", 2),
        ("restart", 3),
    ]
    assert run.state.status == "completed"


def with_retry(handler: Any, **policy: Any) -> Graph:
    retry = RetryPolicy(**{"max_attempts": 2, "backoff": Backoff(initial=1.0), "jitter": 0.0, **policy})
    return Graph(graph(node("a", policy=Policy(retry=retry)), edges=[]), 1, handlers={"a": handler})


@pytest.mark.parametrize(
    "category", ["policy", "invalid_input", "expression", "cancelled", "quota", "budget", "auth", "system"]
)
def test_a_policy_that_names_no_categories_does_not_repeat(category: str):
    def bad(ctx: Context) -> None:
        raise Fault(category, "x")

    assert with_retry(bad).go().events(ev.WorkflowStepRetrying) == []


@pytest.mark.parametrize(
    "category", ["agent", "tool", "transient", "timeout", "invalid_output", "interrupted"]
)
def test_a_policy_that_names_no_categories_repeats_all_others(category: str):
    def bad(ctx: Context) -> None:
        raise Fault(category, "x")

    assert len(with_retry(bad).go().events(ev.WorkflowStepRetrying)) == 1


def test_a_policy_that_names_categories_repeats_those_alone():
    assert with_retry(fail, retry_on=("tool",)).go().events(ev.WorkflowStepRetrying) == []
    assert len(with_retry(fail, retry_on=("executor_failed",)).go().events(ev.WorkflowStepRetrying)) == 1


@pytest.mark.parametrize(
    "code", ["message_type_undeclared", "unknown_target", "no_response_handler", "message_not_encodable"]
)
def test_misuse_fails_the_step_with_its_code_and_is_never_retried(code: str):
    def misuse(ctx: Context) -> None:
        raise Fault("agent", code)

    run = with_retry(misuse, retry_on=("agent", code)).go()
    assert [d.error.code for d in run.events(ev.WorkflowStepFailed)] == [code]
    assert run.events(ev.WorkflowStepRetrying) == []


def test_an_attempt_over_its_time_limit_is_step_timeout():
    run = with_retry(silent, timeout=3.0)
    key = run.open_handlers()[0].activation_key
    run.pass_time(4)
    (retrying,) = run.events(ev.WorkflowStepRetrying)
    assert retrying.error.code == "step_timeout"
    assert engine.handler_completed(run.state, key, 1, now=run.now) == [], "the first attempt is over"
    run.pass_time(2)
    run.pass_time(3)
    assert [d.error.code for d in run.events(ev.WorkflowStepFailed)] == ["step_timeout"]


def test_the_limit_of_an_attempt_does_not_count_its_backoff():
    run = with_retry(fail, timeout=3.0, backoff=Backoff(initial=10.0))
    run.work(run.open_handlers()[0])
    run.pass_time(9)
    assert run.events(ev.WorkflowStepFailed) == []
    run.handlers["a"] = silent
    run.pass_time(3)
    assert run.go().state.status == "completed"


def test_a_node_over_its_time_limit_is_step_deadline():
    policy = Policy(retry=RetryPolicy(max_attempts=9, timeout=None), timeout=5.0)
    run = Graph(graph(node("a", policy=policy), edges=[]), 1, handlers={"a": silent})
    run.pass_time(6)
    assert [d.error.code for d in run.events(ev.WorkflowStepFailed)] == ["step_deadline"]
    assert run.state.status == "failed"


# -- failures of the run --------------------------------------------------------------------------


def branches(on_failure: str, policy: str, **more: Any) -> Graph:
    """b fails, c sends to d."""
    workflow = graph(
        node("a"), node("b", **more), node("c"), node("d"),
        edges=[("a", "b"), ("a", "c"), ("c", "d")],
        options={"policy": policy, "on_failure": on_failure},
    )  # fmt: skip
    return Graph(workflow, 1, handlers={"b": fail, "d": silent})


@BOTH
def test_halt_dispatches_nothing_more(policy: str):
    run = branches("halt", policy).go()
    assert (run.state.status, run.inputs("d")) == ("failed", [])
    assert run.error().code == "executor_failed"


@BOTH
def test_continue_lets_other_branches_end_and_fails_then(policy: str):
    run = branches("continue", policy).go()
    assert (run.state.status, run.inputs("d")) == ("failed", [1])


@BOTH
def test_on_error_skip_is_no_failure(policy: str):
    run = branches("halt", policy, on_error="skip").go()
    assert (run.state.status, run.inputs("d")) == ("completed", [1])
    assert run.types().count("workflow.step_failed") == 1


@BOTH
def test_hold_pauses_and_retry_tries_again_in_place(policy: str):
    run = branches("hold", policy).go()
    assert run.state.status == "paused"
    assert list(run.state.held_steps) == ["b"]
    run.handlers["b"] = silent
    run.advance(commands.retry(run.state, run.now, "b", by="test"))
    run.go()
    assert run.state.status == "completed"
    assert run.inputs("b") == [1, 1]
    assert [d.attempt for d in run.events(ev.WorkflowStepStarted) if d.step_id == "b"] == [1, 2]


@BOTH
def test_a_cancelled_run_closes_its_handlers_and_questions(policy: str):
    def ask(ctx: Context) -> None:
        ctx.ask("?")

    run = branches("halt", policy)
    run.handlers["b"] = ask
    run.work(run.open_handlers()[0])
    run.work(next(h for h in run.open_handlers() if h.activation_key == "/b#0"))
    run.advance([ev.WorkflowCancelRequested(mode="hard", reason=None, by="test", grace_ms=0)])
    run.advance(engine.cancel_finished(run.state, run.now, forced=True))
    assert run.state.status == "cancelled"
    assert (run.state.requests, run.state.mail.open) == ({}, {})
    assert len(run.events(ev.InputCancelled)) == 1


def test_a_handler_that_was_at_work_runs_again_after_a_restart():
    run = one(silent)
    run.crash()
    (again,) = run.open_handlers()
    assert (again.activation_key, again.attempt) == ("/a#0", 1)
    assert run.go().state.status == "completed"


# -- requests -------------------------------------------------------------------------------------


def asks(**more: Any) -> Any:
    def handler(ctx: Context) -> None:
        if ctx.is_answer:
            ctx.give([ctx.taken.request, ctx.input])
        else:
            ctx.ask({"claim": ctx.input}, **more)

    return handler


@BOTH
def test_the_answer_is_a_message_to_the_node_that_asked(policy: str):
    run = one(asks(), policy).go()
    assert run.state.status == "waiting"
    (asked,) = run.events(ev.InputRequested)
    assert (asked.step_id, asked.activation, asked.request) == ("a", "/a#0", {"claim": 1})
    run.reply("pay")
    run.go()
    assert run.outputs() == [[{"claim": 1}, "pay"]]
    assert run.order() == ["/a#0", "/a#1"], "the handler that asked has ended and never runs again"
    assert run.state.status == "completed"


@BOTH
def test_any_number_may_be_open_and_be_answered_in_any_order(policy: str):
    def start(ctx: Context) -> None:
        for i in range(3):
            ctx.send(i)

    workflow = graph(node("a"), node("b"), edges=[("a", "b")], options={"policy": policy})
    run = Graph(workflow, 1, handlers={"a": start, "b": asks()}).go()
    first, second, third = run.state.requests
    for request, value in ((third, "c"), (first, "a")):
        run.reply(value, request)
        run.go()
        assert run.state.status == "waiting"
    assert list(run.state.requests) == [second]
    run.reply("b", second)
    assert run.go().state.status == "completed"
    assert [answer for _, answer in run.outputs()] == ["c", "a", "b"]


def test_an_answer_must_satisfy_the_schema_and_with_one_bad_entry_none_is_taken():
    workflow = graph(node("a"), edges=[])

    def two(ctx: Context) -> None:
        if not ctx.is_answer:
            ctx.ask("one", response_schema={"type": "string"})
            ctx.ask("two", response_schema={"type": "integer"})

    run = Graph(workflow, 1, handlers={"a": two}).go()
    one, two_ = run.state.requests
    before = len(run.log)
    with pytest.raises(commands.Refused) as refused:
        run.advance(commands.answer(run.state, {one: "yes", two_: "no"}, by="test"))
    assert refused.value.code == "invalid_response"
    assert (len(run.log), list(run.state.requests)) == (before, [one, two_])
    with pytest.raises(commands.Refused) as refused:
        commands.answer(run.state, {"req_other": 1}, by="test")
    assert refused.value.code == "unknown_request"
    assert commands.answer(run.state, {}, by="test") == []


def test_the_same_answer_again_is_no_event_and_another_is_refused():
    run = one(asks()).go()
    request = next(iter(run.state.requests))
    run.reply("yes")
    assert commands.answer(run.state, {request: "yes"}, by="test") == []
    with pytest.raises(commands.Refused) as refused:
        commands.answer(run.state, {request: "no"}, by="test")
    assert refused.value.code == "already_answered"


@BOTH
def test_on_timeout_is_the_answer_when_the_time_is_over(policy: str):
    run = one(asks(timeout=60, on_timeout="nobody"), policy).go()
    run.pass_time(59)
    assert run.state.status == "waiting"
    run.pass_time(2)
    run.go()
    (received,) = run.events(ev.InputReceived)
    assert (received.value, received.via) == ("nobody", "deadline")
    assert run.outputs() == [[{"claim": 1}, "nobody"]]


@BOTH
def test_without_on_timeout_the_node_fails(policy: str):
    run = one(asks(timeout=60), policy).go()
    run.pass_time(61)
    run.go()
    assert [d.reason for d in run.events(ev.InputCancelled)] == ["input_timeout"]
    (failed,) = run.events(ev.WorkflowStepFailed)
    assert (failed.step_id, failed.error.code) == ("a", "input_timeout")
    assert run.state.status == "failed"


@BOTH
def test_a_withdrawn_question_is_closed_and_nothing_follows(policy: str):
    run = one(asks(), policy).go()
    request = next(iter(run.state.requests))
    run.advance(commands.withdraw(run.state, request, reason="not needed", by="test"))
    assert run.go().state.status == "completed"
    assert run.order() == ["/a#0"]


@BOTH
def test_a_restart_repeats_no_question(policy: str):
    run = one(asks(), policy).go()
    request = list(run.state.requests)
    run.crash()
    assert run.go().state.status == "waiting"
    assert list(run.state.requests) == request
    run.reply("late")
    assert run.go().outputs() == [[{"claim": 1}, "late"]]


def test_a_pause_does_not_stop_the_time_of_a_question():
    run = one(asks(timeout=60, on_timeout="nobody")).go()
    run.advance(commands.pause(run.state, run.now, by="test"))
    run.pass_time(90)
    run.advance(commands.resume(run.state, run.now, by="test"))
    assert run.go().outputs() == [[{"claim": 1}, "nobody"]]


# -- outputs --------------------------------------------------------------------------------------


def test_an_output_is_an_event_at_once_and_the_output_of_the_run_is_the_last():
    def give(ctx: Context) -> None:
        ctx.give(1)
        ctx.give("aside", kind="intermediate")
        ctx.give(2)
        assert ctx.run.types()[-3:] == ["output", "output", "output"]
        ctx.give("last", kind="intermediate")

    run = one(give).go()
    assert [(d.index, d.kind, d.value) for d in run.events(ev.Output)] == [
        (0, "output", 1), (1, "intermediate", "aside"), (2, "output", 2), (3, "intermediate", "last"),
    ]  # fmt: skip
    assert run.state.output == 2


def test_the_output_of_a_run_that_gave_none_is_null():
    run = one(lambda c: c.send(5)).go()
    assert run.state.output is None


def test_outputs_are_those_of_the_last_attempt_also_if_it_failed():
    def flaky(ctx: Context) -> None:
        ctx.give(ctx.attempt)
        raise Fault("agent", "executor_failed")

    run = with_retry(flaky).go()
    assert run.state.status == "failed"
    assert run.outputs() == [2]
    assert [d.index for d in run.events(ev.Output)] == [0, 0], "the index begins anew with each attempt"


def test_supersteps_order_outputs_by_superstep_step_visit_and_index():
    def start(ctx: Context) -> None:
        ctx.send(0)
        ctx.send(1)

    def give(ctx: Context) -> None:
        ctx.give(f"{ctx.node}{ctx.input}")

    workflow = graph(*(node(i) for i in "abc"), edges=[("a", "c"), ("a", "b")])
    for choose in (lambda f: f[0], lambda f: f[-1]):
        run = Graph(workflow, 1, handlers={"a": start, "b": give, "c": give}).go(choose)
        assert run.outputs() == ["b0", "b1", "c0", "c1"]


# -- gates ----------------------------------------------------------------------------------------


@BOTH
def test_a_node_that_waits_for_consent_does_not_hold_its_queue(policy: str):
    def start(ctx: Context) -> None:
        ctx.send("first")
        ctx.send("second")

    agreed = node("b", approval=Approval(before="step"))
    workflow = graph(node("a"), agreed, edges=[("a", "b")], options={"policy": policy})
    run = Graph(workflow, 1, handlers={"a": start, "b": silent}).go()
    _, second = run.state.requests
    run.advance(commands.decide_request(run.state, request_id=second, granted=True, by="test"))
    run.go()
    assert run.inputs("b") == ["second"]
