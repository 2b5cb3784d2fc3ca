"""Slots: `max_parallel` holds for what begins and for what goes on after an answer."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
import pytest

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import Approval, Options, Policy, ToolNode
from agentflow.definition.kinds import KINDS, kind_of
from agentflow.definition.kinds.map import MapNode
from agentflow.definition.kinds.subgraph import SubgraphNode
from agentflow.engine.approvals import decided
from agentflow.engine.child_runs import ChildReport, child_id_of, reported
from agentflow.engine.illegal import IllegalEvent
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, call, graph, steps, tool
from tests.unit.records.test_projection import compare_at_every_offset

PAY = msgspec.structs.replace(tool("pay", side_effect="external", idempotent=False), declared=True)
ASKS = Approval(before="calls")


def paying(*nodes: Any, limit: int, **more: Any) -> Driver:
    """Agents whose ids begin with `pay` ask before they pay, once; the others answer at once."""
    numbers = count()

    def said(activation: Any, open_call: Any) -> Any:
        if activation.agent.turn > 1 or not activation.node.id.startswith("pay"):
            return "{}"
        wanted = ToolCall(id=f"call_{next(numbers)}", name="s__pay", arguments="{}")
        return Message(role="assistant", content="", tool_calls=(wanted,))

    named = [msgspec.structs.replace(n, approval=ASKS) if n.id.startswith("pay") else n for n in nodes]
    tools = {node.id: [PAY] for node in nodes if node.id.startswith("pay")}
    return Driver(steps(*named, options=Options(max_parallel=limit)), tools=tools, model=said, **more)


def grant(driver: Driver, step: str, iteration: int | None = None) -> None:
    driver.now += 1_000
    request = next(
        r
        for r in driver.state.requests.values()
        if r.activation.node.id == step and r.activation.iteration == iteration
    )
    driver.advance(decided(request, granted=True, by="ann", via="api"))


def answer_of(driver: Driver, step: str, iteration: int | None = None) -> None:
    """Answer the open call of a step."""
    found = (c for c in driver.waiting if (c.activation.node.id, c.activation.iteration) == (step, iteration))
    driver.answer(next(found))


def asked(driver: Driver, *names: str) -> None:
    """Let these agents ask, one after the other."""
    for name in names:
        answer_of(driver, name)


def open_steps(driver: Driver) -> list[str]:
    return [c.activation.node.id for c in driver.waiting]


def check_log(driver: Driver) -> None:
    """The read model and another fold of the log show the same."""
    compare_at_every_offset(driver.workflow, driver.log, bindings=driver.bindings)
    refolded = driver.refold()
    assert list(refolded.returning) == list(driver.state.returning)
    assert refolded.running == driver.state.running


def test_a_granted_call_waits_for_a_slot_and_goes_before_a_step_that_has_not_begun():
    driver = paying(agent("pay"), agent("b"), agent("c"), limit=1)
    asked(driver, "pay")
    assert open_steps(driver) == ["b"]
    grant(driver, "pay")
    assert open_steps(driver) == ["b"], "the only slot is taken"
    assert list(driver.state.returning) == ["/pay#0"]
    assert (driver.state.nodes["pay"].status, driver.state.status) == ("waiting", "running")
    check_log(driver)
    answer_of(driver, "b")
    assert open_steps(driver) == ["pay"], "it goes on before c begins"
    check_log(driver)
    driver.run()
    assert driver.state.status == "completed"
    check_log(driver)


def test_slots_are_given_back_first_come_first_served():
    driver = paying(agent("pay1"), agent("pay2"), agent("b"), limit=1)
    asked(driver, "pay1", "pay2")
    grant(driver, "pay2")
    grant(driver, "pay1")
    assert list(driver.state.returning) == ["/pay2#0", "/pay1#0"]
    answer_of(driver, "b")
    assert open_steps(driver) == ["pay2"]
    answer_of(driver, "pay2")
    assert open_steps(driver) == ["pay2"], "it keeps its slot until it ends"
    answer_of(driver, "pay2")
    assert open_steps(driver) == ["pay1"]
    check_log(driver)


def test_an_item_waits_for_a_slot_of_its_node_and_holds_up_no_other_step():
    each = agent("pay", for_each="${{ inputs }}", max_parallel=1)
    driver = paying(each, agent("payb"), agent("c"), limit=2, input=[1, 2])
    answer_of(driver, "pay", 0)
    asked(driver, "payb")
    assert open_steps(driver) == ["c", "pay"], "the other item has begun"
    grant(driver, "pay", 0)
    grant(driver, "payb")
    assert list(driver.state.returning) == ["/pay#0[0]", "/payb#0"]
    answer_of(driver, "c")
    assert list(driver.state.returning) == ["/pay#0[0]"], "its node has no slot left"
    check_log(driver)
    driver.run()
    while driver.state.requests:
        request = next(iter(driver.state.requests.values()))
        grant(driver, request.activation.node.id, request.activation.iteration)
        driver.run()
    assert driver.state.status == "completed"
    check_log(driver)


def test_no_time_limit_runs_while_work_waits_for_a_slot():
    timed = agent("pay", policy=Policy(timeout=10.0))
    driver = paying(timed, agent("b"), limit=1)
    asked(driver, "pay")
    grant(driver, "pay")
    driver.now += 60_000_000
    driver.advance([])
    answer_of(driver, "b")
    assert driver.state.timers["deadline /pay#0"] > driver.now + 9_000_000
    driver.run()
    assert driver.state.status == "completed"
    check_log(driver)


def test_an_answer_during_a_pause_starts_no_time_limit():
    driver = paying(agent("pay", policy=Policy(timeout=10.0)), agent("b"), limit=2)
    asked(driver, "pay")
    driver.advance([ev.WorkflowPaused(reason="requested", detail=None)])
    grant(driver, "pay")
    assert "deadline /pay#0" not in driver.state.timers
    driver.now += 60_000_000
    driver.advance([ev.WorkflowResumed(reason="resume", by="ann")])
    assert driver.state.timers["deadline /pay#0"] > driver.now + 9_000_000
    driver.run()
    assert driver.state.status == "completed"
    check_log(driver)


def test_work_that_asks_while_a_pause_drains_takes_its_time_limit_out_of_the_pause():
    driver = paying(agent("pay", policy=Policy(timeout=10.0)), agent("b"), limit=2)
    driver.advance([ev.WorkflowPaused(reason="requested", detail=None, in_flight="drain")])
    asked(driver, "pay")
    assert list(driver.state.requests)
    driver.advance([ev.WorkflowResumed(reason="resume", by="ann")])
    assert "deadline /pay#0" not in driver.state.timers, "it waits for a person"
    grant(driver, "pay")
    assert "deadline /pay#0" in driver.state.timers
    check_log(driver)


def test_a_call_said_to_be_done_ends_its_step_without_a_slot():
    def lost(name: str, parameters: Any) -> Any:
        raise Fault("transient", "connection_failed", unknown=True)

    workflow = steps(
        ToolNode(id="pay", tool="s.pay", join="all_succeeded"),
        agent("b"),
        agent("c"),
        options=Options(max_parallel=1),
    )
    driver = Driver(
        workflow,
        {},
        tools={"pay": [tool("pay", side_effect="external", idempotent=False, schema={"title": "any"})]},
        call=lost,
    )
    asked(driver, "pay")
    request = next(iter(driver.state.requests.values()))
    data = request.data
    value = {"choice": "done", "output": 7}
    fields = {name: getattr(data, name) for name in ("step_id", "iteration", "activation")}
    answer = ev.InputReceived(**fields, request_id=request.request_id, value=value, by="ann", via="api")
    driver.advance([answer])
    assert driver.state.nodes["pay"].output == 7
    assert not driver.state.returning
    check_log(driver)
    assert open_steps(driver) == ["b"]


def test_a_cancelled_run_leaves_no_work_in_the_queue():
    driver = paying(agent("pay"), agent("b"), limit=1)
    asked(driver, "pay")
    grant(driver, "pay")
    cancel = ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="ann")
    driver.advance([cancel])
    driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
    assert (driver.state.status, driver.state.running) == ("cancelled", 0)
    assert not driver.state.returning
    check_log(driver)


def test_a_log_of_work_that_went_on_beyond_the_limit_is_folded_as_it_is():
    """Versions before this queue let an answered step go on at once."""
    driver = paying(agent("pay"), agent("b"), limit=1)
    asked(driver, "pay")
    driver.state.max_parallel = 2
    grant(driver, "pay")
    assert open_steps(driver) == ["b", "pay"]
    old = driver.refold()
    assert (old.max_parallel, old.running, old.returning) == (1, 2, {})
    assert old.nodes["pay"].status == "running"
    compare_at_every_offset(driver.workflow, driver.log, bindings=driver.bindings)


def test_the_option_of_a_submission_bounds_the_run():
    driver = paying(agent("a"), agent("b"), limit=8, options={"max_parallel": 1})
    assert open_steps(driver) == ["a"]
    check_log(driver)


def test_a_backoff_that_ends_does_not_overtake_the_queue():
    """A retry that falls due while its step waits for a slot waits, too."""
    driver = paying(agent("pay"), agent("b"), limit=1)
    asked(driver, "pay")
    grant(driver, "pay")
    activation = driver.state.open["/pay#0"]
    driver.state.timers["retry /pay#0"] = driver.now
    assert list(engine.limits.due_retries(driver.state, driver.now)) == []
    driver.state.returning.clear()
    assert list(engine.limits.due_retries(driver.state, driver.now)) == [activation]


def child_report(driver: Driver, key: str, status: str, *requests: Any, **more: Any) -> ChildReport:
    activation = driver.state.open[key]
    found = child_id_of(driver.state, activation)
    return ChildReport(workflow_id=found, key=key, status=status, requests=requests, **more)


def child_approval(name: str) -> ev.ApprovalRequested:
    return ev.ApprovalRequested(
        step_id="inner",
        iteration=None,
        activation="/inner#0",
        request_id=name,
        kind="tool",
        subject={},
        digest="sha256:0",
    )


def test_a_child_run_that_is_answered_and_rests_again_takes_no_slot():
    inner = graph(call("x", "__end"))
    sub = SubgraphNode(id="sub", inline=inner, isolation="run", join="all_succeeded")
    driver = Driver(steps(sub, agent("b"), agent("c"), options=Options(max_parallel=1)), {})
    assert not driver.waiting, "the child run has the only slot"

    def report(status: str, *requests: Any, **more: Any) -> None:
        driver.advance(reported(driver.state, child_report(driver, "/sub#0", status, *requests, **more), 1))

    report("waiting", child_approval("r1"))
    assert open_steps(driver) == ["b"]
    report("running", decided={"r1": "granted"})
    assert list(driver.state.returning) == ["/sub#0"]
    report("waiting", decided={"r1": "granted"})
    assert not driver.state.returning, "it rests again"
    answer_of(driver, "b")
    assert open_steps(driver) == ["c"]
    report("completed", output={"output": 1})
    assert driver.state.nodes["sub"].status == "succeeded"
    driver.run()
    assert driver.state.status == "completed"
    compare_at_every_offset(driver.workflow, driver.log, bindings=driver.bindings)


def test_only_an_open_step_can_stand_still():
    driver = paying(agent("a"), limit=1)
    waits = ev.WorkflowStepWaiting(
        step_id="a",
        iteration=None,
        activation="/a#1",
        step_index=0,
        attempt=1,
        path="",
        visit=1,
        clock=1,
        for_="child",
        ref="wf_2",
    )
    with pytest.raises(IllegalEvent):
        driver.advance([waits])


SHARED = {
    "map": [MapNode(id="n", items_path="input", tool="s.x"), MapNode(id="n", items_path="input", body="b")],
    "subgraph": [
        SubgraphNode(id="n", inline=graph(call("x", "__end"))),
        SubgraphNode(id="n", inline=graph(call("x", "__end")), isolation="run"),
        SubgraphNode(id="n", graph="other"),
    ],
}


@pytest.mark.parametrize("name", ["map", "subgraph"])
def test_both_halves_of_a_kind_with_two_forms_agree_who_takes_a_slot(name: str):
    forms = {kind_of(spec).takes_slot(spec) for spec in SHARED[name]}
    assert forms == {True, False}
    for spec in SHARED[name]:
        assert engine.kinds.KINDS[name].form_of(spec).takes_slot == KINDS[name].takes_slot(spec)
