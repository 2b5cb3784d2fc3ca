"""`human_in_the_loop`: a person decides, chooses, writes, or fills in a form (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import HumanNode
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph

SECOND = 1_000_000
FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def asking(input: Any = None, **fields: Any) -> Driver:
    """A run that asks; each way leads to a function of its name."""
    if fields.get("input_type", "approval") == "approval":
        ways = {"on_approve": "yes", "on_reject": "no"}
    else:
        ways = {"next": "yes"}
    node = HumanNode(id="ask", **{**ways, **fields})
    more = [call("late", "__end")] if "on_timeout" in fields else []
    others = [call("no", "__end")] if "on_reject" in ways else []
    return Driver(graph(node, call("yes", "__end"), *others, *more), input)


def request(driver: Driver) -> Any:
    (found,) = driver.state.requests.values()
    return found


def decide(driver: Driver, *, granted: bool, **more: Any) -> None:
    driver.now += SECOND
    moves = engine.commands.decide_request(
        driver.state, request_id=request(driver).request_id, granted=granted, by="ada", **more
    )
    driver.advance(moves)


def answer(driver: Driver, value: Any) -> None:
    driver.now += SECOND
    moves = engine.commands.answer(driver.state, {request(driver).request_id: value}, by="ada")
    driver.advance(moves)


def end(driver: Driver) -> Any:
    (found,) = [e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "ask"]
    return found


def failure(driver: Driver) -> Any:
    (found,) = [e for e in driver.events(ev.WorkflowStepFailed) if e.step_id == "ask"]
    return found.error


@pytest.mark.parametrize(
    ("value", "approved"),
    [
        (True, True),
        (False, False),
        (" Approve ", True),
        ("approved", True),
        ("YES", True),
        ("true", True),
        ("reject", False),
        ("Rejected", False),
        ("no", False),
        ("false", False),
    ],
)
def test_a_value_decides_at_once(value, approved):
    driver = asking({"ok": value, "why": "seen"}, decision_path="input.ok", response_path="input.why")
    assert driver.run().status == "completed"
    assert end(driver).output["approved"] is approved
    assert end(driver).output["response"] == "seen"
    assert end(driver).next == ("on_approve" if approved else "on_reject")
    assert not driver.events(ev.ApprovalRequested)


@pytest.mark.parametrize("value", ["maybe", 1, [], {}, ""], ids=str)
def test_a_value_that_is_no_decision_fails_the_node(value):
    driver = asking({"ok": value}, decision_path="input.ok")
    assert driver.run().status == "failed"
    assert (failure(driver).code, failure(driver).category) == ("invalid_human_decision", "invalid_input")


@pytest.mark.parametrize("granted", [True, False])
def test_a_person_decides_what_no_value_does(granted):
    driver = asking({"ok": None}, decision_path="input.ok", prompt="Send {{ input.ok }} now?")
    (asked,) = driver.events(ev.ApprovalRequested)
    assert (asked.kind, asked.subject["prompt"]) == ("human", "Send  now?")
    assert driver.state.status == "waiting"
    assert driver.state.nodes["ask"].status == "waiting"
    decide(driver, granted=granted, response={"note": 1})
    assert driver.run().status == "completed"
    output = end(driver).output
    assert (output["approved"], output["response"], output["by"]) == (granted, {"note": 1}, "ada")
    assert driver.events(ev.WorkflowStepStarted)[1].step_id == ("yes" if granted else "no")


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"input_type": "choice", "options": ("a", {"value": 2, "label": "two"})}, 2, "two"),
        ({"input_type": "text"}, "hello", 7),
        ({"input_type": "form", "form_schema": FORM}, {"n": 1}, {"n": "1"}),
    ],
    ids=["choice", "text", "form"],
)
def test_an_answer_must_fit_its_input_type(fields, good, bad):
    driver = asking(**fields)
    (asked,) = driver.events(ev.InputRequested)
    assert asked.request_type == fields["input_type"]
    with pytest.raises(engine.commands.Refused) as caught:
        answer(driver, bad)
    assert caught.value.code == "invalid_response"
    assert driver.state.status == "waiting"
    answer(driver, good)
    assert driver.run().status == "completed"
    assert end(driver).output == good


def test_the_view_of_a_form_has_what_was_offered_and_the_edits():
    node = HumanNode(
        id="ask",
        input_type="form",
        form_schema=FORM,
        form_prefill="{{ input.given }}",
        prompt="Check",
        next="after",
    )
    after = call("after", "__end", input="${{ nodes.ask.human }}")
    driver = Driver(graph(node, after), {"given": {"n": 1, "m": 2}})
    (asked,) = driver.events(ev.InputRequested)
    assert asked.request["form_data"] == {"n": 1, "m": 2}, "a whole template keeps its type"
    answer(driver, {"n": 5, "m": 2})
    state = driver.run()
    assert state.output == {
        "prompt": "Check",
        "data": {"n": 1, "m": 2},
        "options": None,
        "edits": [{"path": "n", "before": 1, "after": 5}],
        "by": "ada",
    }


@pytest.mark.parametrize("fields", [{}, {"input_type": "text"}], ids=["approval", "input"])
@pytest.mark.parametrize("has_way", [True, False])
def test_the_time_of_a_question_is_limited(fields, has_way):
    more = {"on_timeout": "late"} if has_way else {}
    driver = asking(timeout=60.0, **fields, **more)
    assert driver.state.status == "waiting"
    driver.now += 61 * SECOND
    driver.advance([])
    state = driver.run()
    if has_way:
        assert (state.status, end(driver).next) == ("completed", "on_timeout")
    else:
        assert state.status == "failed"
        assert (failure(driver).code, failure(driver).category) == ("input_timeout", "timeout")
    assert not state.timers
    assert not state.requests


def test_a_question_that_is_withdrawn_fails_the_node():
    driver = asking(input_type="text")
    moves = engine.commands.withdraw(driver.state, request(driver).request_id, reason="moot", by="ada")
    driver.advance(moves)
    assert driver.run().status == "failed"
    assert failure(driver).code == "input_withdrawn"


@pytest.mark.parametrize("kind", ["approval", "text"])
def test_a_crash_behind_each_batch_asks_once_and_takes_one_answer(kind):
    def whole() -> Driver:
        driver = asking(input_type=kind, timeout=60.0)
        (decide(driver, granted=True) if kind == "approval" else answer(driver, "x"))
        driver.run()
        return driver

    for cut in whole().batches[1:]:
        driver = whole()
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        if driver.state.requests:
            (decide(driver, granted=True) if kind == "approval" else answer(driver, "x"))
        assert driver.run().status == "completed"
        steps = [t for t in driver.types() if not t.startswith("tool.")]
        assert steps == [t for t in whole().types() if not t.startswith("tool.")]
