"""`retry_compensate`: a function that is tried again, and another one for its failure (page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.ir import Options, Policy, RetryCompensateNode
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, call, graph, tool

BOOKING = {"seat": 1}
AT_ONCE = Backoff(initial=1.0)


class Desk:
    """The functions: `book` and `undo` fail so many times."""

    def __init__(self, book: int = 0, undo: int = 0, *, unknown: bool = False) -> None:
        self.left = {"s__book": book, "s__undo": undo}
        self.unknown = unknown
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, name: str, parameters: Any) -> Any:
        self.calls.append((name.removeprefix("s__"), parameters))
        if self.left.get(name, 0) > 0:
            self.left[name] -= 1
            raise Fault("tool", f"{name}_broken", unknown=self.unknown)
        return {"did": name.removeprefix("s__")}


def booking(desk: Desk, *, options: Options | None = None, tools: Any = None, **fields: Any) -> Driver:
    node = RetryCompensateNode(
        id="pay",
        **{
            "tool": "s.book",
            "compensate_tool": "s.undo",
            "max_retries": 2,
            "input": {"seat": "${{ input.seat }}"},
            "policy": Policy(retry=RetryPolicy(backoff=AT_ONCE, jitter=0.0)),
            "next": "after",
            "on_compensated": "sorry",
            **fields,
        },
    )
    work = graph(node, call("after", "__end"), call("sorry", "__end"), options=options or Options())
    return Driver(work, BOOKING, call=desk, tools=tools)


def end(driver: Driver) -> Any:
    return next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "pay")


def names(desk: Desk) -> list[str]:
    return [name for name, _ in desk.calls]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_the_function_is_tried_again_until_it_succeeds(failures):
    desk = Desk(failures)
    driver = booking(desk)
    assert driver.run().status == "completed"
    assert end(driver).output == {"status": "ok", "attempt": failures + 1, "value": {"did": "book"}}
    assert names(desk) == ["book"] * (failures + 1) + ["after"]
    assert len(driver.events(ev.WorkflowStepRetrying)) == failures
    assert len({e.tool_call_id for e in driver.events(ev.ToolCallStarted)}) == 2


def test_after_the_last_failure_the_other_function_makes_up_for_it():
    desk = Desk(9)
    driver = booking(desk, compensate_input={"free": "${{ input.seat }}"})
    assert driver.run().status == "completed"
    output = end(driver).output
    assert end(driver).next == "on_compensated"
    assert (output["status"], output["attempts"], output["compensation"]) == (
        "compensated",
        3,
        {"did": "undo"},
    )
    assert output["last_error"]["code"] == "s__book_broken"
    assert names(desk) == ["book"] * 3 + ["undo", "sorry"]
    assert desk.calls[3] == ("undo", {"free": 1})


def test_without_other_input_and_way_they_are_the_same():
    desk = Desk(9)
    driver = booking(desk, max_retries=0, on_compensated=None)
    # `sorry` is then reached by nothing; the engine runs graphs as they are.
    assert driver.run().status == "completed"
    assert names(desk) == ["book", "undo", "after"]
    assert desk.calls[1][1] == BOOKING
    assert end(driver).next == "next"


def test_a_compensation_that_fails_fails_the_node():
    desk = Desk(9, 9)
    driver = booking(desk, max_retries=1)
    assert driver.run().status == "failed"
    error = driver.events(ev.WorkflowStepFailed)[0].error
    assert (error.code, error.cause.code) == ("retry_compensate_failed", "s__book_broken")
    assert error.details["attempts"] == 2
    assert error.details["compensation_error"]["code"] == "s__undo_broken"
    assert names(desk) == ["book", "book", "undo"]


def test_the_compensation_has_retries_of_its_own():
    desk = Desk(9, 2)
    policy = Policy(retry=RetryPolicy(max_attempts=3, backoff=AT_ONCE, jitter=0.0, retry_on=("tool",)))
    driver = booking(desk, max_retries=1, compensate_policy=policy)
    assert driver.run().status == "completed"
    assert names(desk) == ["book"] * 2 + ["undo"] * 3 + ["sorry"]
    assert end(driver).output["attempts"] == 2


def test_a_call_that_may_have_happened_is_not_repeated():
    desk = Desk(1, unknown=True)
    unsafe = [tool("book", side_effect="external", idempotent=False), tool("undo")]
    driver = booking(desk, tools={"pay": unsafe})
    state = driver.run()
    assert state.status == "waiting"
    assert names(desk) == ["book"]
    (asked,) = driver.events(ev.InputRequested)
    assert asked.request_type == "outcome_unknown"


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_a_crash_behind_each_batch_leads_to_the_same_end(policy):
    options = Options(policy=policy)
    whole = booking(Desk(9, 0), options=options)
    assert whole.run().status == "completed"
    for cut in whole.batches[1:]:
        driver = booking(Desk(9, 0), options=options)
        driver.run()
        driver.now = driver.log[cut - 1][2]
        driver.crash(cut)
        assert driver.run().status == "completed"
        assert end(driver).output == end(whole).output
        done = [e.tool_call_id for e in driver.events(ev.ToolCallCompleted)]
        assert len(done) == len(set(done)) == 2
