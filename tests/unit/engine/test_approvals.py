"""Consent before work is done: page 001 §5.8, page 000 §4."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import (
    Approval,
    Edge,
    EndNode,
    Options,
    ParallelNode,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.engine.approvals import decided
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, call, steps, tool

PAY = tool("pay", side_effect="external", idempotent=False)


def decide(driver: Driver, granted: bool = True, index: int = 0) -> None:
    request = list(driver.state.requests.values())[index]
    driver.now += 1_000
    driver.advance(decided(request, granted=granted, by="ann", via="cli", reason=None if granted else "no"))


def test_a_step_is_asked_about_before_it_starts_and_takes_no_slot():
    ask = agent("a", approval=Approval(message="May I?"), input="${{ inputs.x }}")
    driver = Driver(steps(ask, agent("b"), options=Options(max_parallel=1)), {"x": [1]})
    driver.run()
    assert driver.state.status == "waiting"
    request = driver.events(ev.ApprovalRequested)[0]
    assert request.subject == {"input": [1], "system_prompt": "p", "message": "May I?"}
    assert request.digest.startswith("sha256:")
    assert [e.step_id for e in driver.events(ev.WorkflowStepCompleted)] == ["b"]
    assert driver.state.nodes["a"].status == "waiting"
    decide(driver)
    driver.run()
    assert driver.state.status == "completed"
    started = next(e for e in driver.events(ev.WorkflowStepStarted) if e.step_id == "a")
    assert started.input == [1]


def test_denied_fails_or_skips_and_says_why():
    for on_denied, expected in (("fail", "failed"), ("skip", "completed")):
        driver = Driver(
            steps(agent("a", approval=Approval(on_denied=on_denied)), agent("b", depends_on=("a",)))
        )
        driver.run()
        decide(driver, granted=False)
        driver.run()
        assert driver.state.status == expected
        ends = driver.events(ev.WorkflowStepFailed) or driver.events(ev.WorkflowStepSkipped)
        assert ends[0].step_id == "a"
        if on_denied == "fail":
            assert (ends[0].error.category, ends[0].error.code) == ("policy", "approval_denied")
        else:
            assert ends[0].reason == "approval_denied"
        assert not driver.events(ev.WorkflowStepStarted)


def test_nobody_decides_in_time():
    driver = Driver(steps(agent("a", approval=Approval(timeout=5.0))))
    driver.run()
    asked = driver.events(ev.ApprovalRequested)[0]
    assert asked.deadline is not None
    driver.now = engine.next_due(driver.state)
    driver.advance([])
    denied = driver.events(ev.ApprovalDenied)[0]
    assert (denied.via, denied.by, denied.digest) == ("deadline", "system", asked.digest)
    assert driver.state.status == "failed"


def test_a_for_each_step_is_asked_about_once_with_all_its_items():
    driver = Driver(steps(agent("a", approval=Approval(), for_each="${{ inputs }}")), [1, 2, 3])
    driver.run()
    assert [e.subject["items"] for e in driver.events(ev.ApprovalRequested)] == [[1, 2, 3]]
    decide(driver)
    driver.run()
    assert driver.state.output == {"a": [{}, {}, {}]}


def calls(*wanted: tuple[str, str]) -> Message:
    made = tuple(ToolCall(id=f"call_{i}", name=name, arguments=text) for i, (name, text) in enumerate(wanted))
    return Message(role="assistant", content="", tool_calls=made)


def with_tools(approval: Approval | None, *tools) -> Driver:
    said = iter([calls(("s__look", "{}"), ("s__pay", '{"n": 1}')), "{}"])
    look = tool("look", side_effect="read")
    return Driver(
        steps(agent("a", **({"approval": approval} if approval else {}))),
        tools={"a": [look, *tools]},
        model=lambda unit, call: next(said),
    )


def declared(info, approval: bool = False):
    import msgspec

    return msgspec.structs.replace(info, declared=True, needs_approval=approval)


def test_calls_asks_before_each_call_and_side_effects_before_those_declared_beyond_read():
    both = with_tools(Approval(before="calls"), declared(PAY))
    both.run()
    assert [e.subject["function"] for e in both.events(ev.ApprovalRequested)] == ["look", "pay"]
    one = with_tools(Approval(before="side_effects"), declared(PAY))
    one.run()
    assert [e.subject["function"] for e in one.events(ev.ApprovalRequested)] == ["pay"]
    undeclared = with_tools(Approval(before="side_effects"), PAY)
    assert undeclared.run().status == "completed"


def test_never_lowers_nothing_that_the_runtime_asks_for():
    driver = with_tools(Approval(before="never"), declared(PAY, approval=True))
    driver.run()
    assert driver.state.status == "waiting"
    request = driver.events(ev.ApprovalRequested)[0]
    assert (request.kind, request.side_effect, request.subject["parameters"]) == (
        "tool",
        "external",
        {"n": 1},
    )
    decide(driver)
    driver.run()
    started = next(e for e in driver.events(ev.ToolCallStarted) if e.tool_name == "s__pay")
    assert started.request_id == request.request_id
    assert driver.state.status == "completed"


def test_a_denied_call_goes_back_to_the_model_and_was_never_made():
    driver = with_tools(Approval(before="side_effects"), declared(PAY))
    made: list[str] = []
    driver.call = lambda name, parameters: made.append(name)
    driver.run()
    decide(driver, granted=False)
    driver.run()
    assert made == ["s__look"]
    failed = driver.events(ev.ToolCallFailed)[0]
    assert (failed.error.code, failed.executed, failed.outcome) == ("approval_denied", False, "not_started")
    assert "approval_denied" in driver.requests[-1][1][-1].content
    assert driver.state.status == "completed"


def test_bad_arguments_are_refused_before_anybody_is_asked():
    said = iter([calls(("s__pay", "[]")), "{}"])
    driver = Driver(
        steps(agent("a", approval=Approval(before="calls"))),
        tools={"a": [declared(PAY)]},
        model=lambda unit, call: next(said),
    )
    assert driver.run().status == "completed"
    assert not driver.events(ev.ApprovalRequested)


def test_a_tool_node_is_asked_about():
    node = ToolNode(id="t", tool="s.pay", input={"n": 1}, join="all_succeeded")
    driver = Driver(steps(node), tools={"t": [declared(PAY, approval=True)]})
    driver.run()
    assert driver.state.status == "waiting"
    decide(driver, granted=False)
    driver.run()
    assert driver.state.status == "failed"
    assert driver.events(ev.WorkflowStepFailed)[0].error.code == "approval_denied"


WAITING_TO_START = pytest.mark.parametrize(
    "more", [{}, {"for_each": "${{ inputs }}"}], ids=["step", "for_each"]
)


@WAITING_TO_START
def test_a_cancel_closes_what_is_asked(more):
    driver = Driver(steps(agent("a", approval=Approval(), **more)), [1, 2])
    driver.run()
    driver.advance([ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="t")])
    driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
    assert driver.state.status == "cancelled"
    assert driver.events(ev.ApprovalDenied)[0].via == "policy"
    assert driver.events(ev.WorkflowStepFailed)[0].error.category == "cancelled"
    assert not driver.state.requests


@WAITING_TO_START
def test_the_time_limit_of_a_run_closes_what_is_asked(more):
    driver = Driver(steps(agent("a", approval=Approval(), **more), options=Options(timeout=5)), [1, 2])
    driver.run()
    driver.now += 6_000_000
    driver.advance([])
    assert driver.state.error.code == "run_deadline"
    assert [e.reason for e in driver.events(ev.ApprovalDenied)] == ["run_deadline"]
    assert not driver.state.requests


def test_open_requests_and_decisions_survive_a_restart_at_every_event():
    def fresh() -> Driver:
        driver = with_tools(Approval(before="side_effects"), declared(PAY))
        driver.run()
        return driver

    for cut in range(1, len(fresh().log) + 1):
        driver = fresh()
        driver.crash(cut)
        driver.model = lambda unit, call: (
            calls(("s__look", "{}"), ("s__pay", '{"n": 1}')) if len(unit.agent.messages) < 3 else "{}"
        )
        driver.run()
        while driver.state.requests:
            decide(driver)
            driver.run()
        assert driver.state.status == "completed", cut
        assert len(driver.events(ev.ApprovalRequested)) == 1, cut


def test_a_question_that_is_withdrawn_is_no_denial_that_skips_its_step():
    def model(unit, call):
        raise Fault("auth", "authentication_failed")

    nodes = (agent("a"), agent("b", approval=Approval(on_denied="skip")))
    driver = Driver(steps(*nodes, options=Options(on_failure="halt")), model=model)
    driver.run()
    assert driver.state.status == "failed"
    assert driver.events(ev.WorkflowStepSkipped) == []
    ended = {e.step_id: e.error.category for e in driver.events(ev.WorkflowStepFailed)}
    assert ended == {"a": "auth", "b": "cancelled"}


def test_halt_leaves_the_approval_of_a_child_path_open():
    """Its parallel node has begun, so that its branches are in flight."""

    def execute(name: str, parameters: Any) -> Any:
        if name == "s__fails":
            raise Fault("tool", "broken")
        return parameters

    fork = ParallelNode(id="fork", branches=("asks",), next="__end", join="any")
    asks = call("asks", "__end", approval=Approval())
    ways = (Edge(source="__start", target="fork"), Edge(source="__start", target="fails"))
    nodes = (StartNode(id="__start"), fork, asks, call("fails", "__end", join="any"))
    end = EndNode(id="__end", index=4, drain=True)
    options = Options(on_failure="halt")
    driver = Driver(Workflow(name="w", nodes=(*nodes, end), edges=ways, options=options), call=execute)
    driver.run()
    assert driver.state.status == "waiting"
    decide(driver)
    driver.run()
    assert driver.state.status == "failed"
    assert [e.step_id for e in driver.events(ev.WorkflowStepCompleted)] == ["asks", "fork"]


def test_the_items_that_were_shown_are_those_that_run():
    """Between question and answer another step writes what the items are read from."""
    asked = call("a", "__end", for_each="${{ globals.list }}", join="any", approval=Approval())
    writes = call("b", "__end", set_globals={"list": "nodes.b.output.list"}, join="any")
    ways = (Edge(source="__start", target="a"), Edge(source="__start", target="b"))
    nodes = (StartNode(id="__start"), asked, writes, EndNode(id="__end", index=2, drain=True))
    workflow = Workflow(name="w", nodes=nodes, edges=ways, globals={"list": [1]})
    driver = Driver(workflow, {"list": [2, 3]}, call=lambda name, parameters: parameters)
    driver.run()
    assert driver.state.root.frame.globals["list"] == [2, 3]
    decide(driver)
    driver.run()
    started = next(e for e in driver.events(ev.WorkflowStepStarted) if e.step_id == "a")
    assert started.input == [1]
