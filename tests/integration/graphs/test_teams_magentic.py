"""Magentic teams: facts, plan, ledgers, stalls, resets, limits, plan review (page 002 §11, §16)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import MagenticBuilder, PlanDecision, PlanReview, WorkflowFailed
from agentflow.errors import ConfigurationError
from agentflow.testing import ScriptedModel
from tests.integration.graphs.teams import Teller, agents, model, opened, run, told


def ledger(
    speaker: str = "a", *, done: bool = False, loop: bool = False, progress: bool = True, say: str = "Go on."
) -> dict[str, Any]:
    values = {
        "is_request_satisfied": done,
        "is_in_loop": loop,
        "is_progress_being_made": progress,
        "next_speaker": speaker,
        "instruction_or_question": say,
    }
    return {key: {"answer": value, "reason": "because"} for key, value in values.items()}


DONE = ledger(done=True)
STALLED = ledger(progress=False)


def team(*names: str, **more: Any) -> MagenticBuilder:
    return MagenticBuilder(agents(*names), manager=agents("Lead", description="leads")[0], **more)


def questions(script: ScriptedModel) -> list[str]:
    """Return what the manager was asked, by the first word behind the conversation."""
    kinds = {"Before": "facts", "The facts": "plan", "The work": "final", "A person": "revise"}
    found: list[str] = []
    for messages in told(script, "Lead"):
        last = messages[-1]
        kind = next(kind for start, kind in kinds.items() if last.startswith(start))
        found.append("ledger" if "Judge where" in last else kind)
    return found


async def test_facts_plan_ledgers_and_the_final_answer():
    script = model(
        Lead=["FACTS", "PLAN", ledger(say="Look it up."), ledger("b", say="Check."), DONE, "ANSWER"],
        A=["found"],
        B=["checked"],
    )
    result = await run(team("A", "B"), "Task.", script)
    assert (result.output, result.stop_reason, result.rounds) == ("ANSWER", "completed", 3)
    assert questions(script) == ["facts", "plan", "ledger", "ledger", "ledger", "final"]
    said = [(m.role, m.name, m.text) for m in result.messages]
    assert said == [
        ("user", None, "Task."),
        ("assistant", "Lead", "PLAN"),
        ("assistant", "Lead", "Look it up."),
        ("assistant", "A", "found"),
        ("assistant", "Lead", "Check."),
        ("assistant", "B", "checked"),
        ("assistant", "Lead", "ANSWER"),
    ]
    assert told(script, "A") == [["Task.", "Lead: PLAN", "Lead: Look it up."]]
    asked = told(script, "Lead")
    assert "FACTS" in asked[1][-1]
    assert "- a (A)\n- b (B)" in asked[1][-1]
    assert asked[2][:2] == ["Task.", "PLAN"]  # the manager knows its own words
    assert "FACTS" in asked[2][-1]
    assert "PLAN" in asked[2][-1]


async def test_the_manager_sees_names_and_descriptions():
    script = model(Lead=["F", "P", DONE, "A"])
    lead = agents("Lead")[0]
    writers = agents("A", description="writes poems")
    await run(MagenticBuilder([*writers, Teller("t")], manager=lead), "Task.", script)
    line = told(script, "Lead")[1][-1]
    assert "- a (A): writes poems" in line
    assert "- t: Takes a conversation and answers with a string." in line


async def test_the_limit_of_rounds_gives_the_last_answer():
    script = model(Lead=["F", "P", ledger(), ledger()], A=["one", "two"])
    result = await run(team("A", max_round_count=2), "Task.", script)
    assert (result.output, result.stop_reason, result.rounds) == ("two", "max_rounds", 2)


async def test_stalls_above_the_limit_make_facts_and_plan_anew():
    script = model(
        Lead=["F1", "P1", STALLED, ledger(loop=True), STALLED, "F2", "P2", STALLED, DONE, "A"],
        A=["x", "y", "z"],
    )
    result = await run(team("A", max_stall_count=2), "Task.", script)
    first, again = ["facts", "plan"], ["ledger"]
    assert questions(script) == [*first, *again * 3, *first, *again * 2, "final"]
    assert (result.output, result.stop_reason) == ("A", "completed")
    assert [m.text for m in result.messages if m.name == "Lead"][0:2] == ["P1", "Go on."]
    assert "P2" in [m.text for m in result.messages]


async def test_progress_takes_a_stall_back_and_never_below_zero():
    moves = [ledger(), ledger(), STALLED, ledger(), STALLED, ledger(), DONE]
    script = model(Lead=["F", "P", *moves, "A"], A=lambda request: "x")
    result = await run(team("A", max_stall_count=1), "Task.", script)
    assert (result.stop_reason, result.rounds) == ("completed", 7)
    assert questions(script).count("facts") == 1


async def test_early_progress_is_no_credit_for_later_stalls():
    moves = [ledger(), ledger(), ledger(), STALLED]
    script = model(Lead=["F", "P", *moves, "F2", "P2", DONE, "A"], A=lambda request: "x")
    await run(team("A", max_stall_count=0), "Task.", script)
    assert questions(script).count("facts") == 2


@pytest.mark.parametrize("resets", [0, 2])
async def test_resets_beyond_the_limit_end_the_work(resets: int):
    script = model(Lead=["F", "P", STALLED] * (resets + 1))
    result = await run(team("A", max_stall_count=0, max_reset_count=resets), "Task.", script)
    assert (result.output, result.stop_reason, result.rounds) == (None, "reset_limit", resets + 1)


async def test_the_final_answer_of_a_manager_with_a_schema_is_data():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    lead = agents("Lead", output_schema=schema)[0]
    script = model(Lead=["F", "P", DONE, {"n": 3}])
    result = await run(MagenticBuilder(agents("A"), manager=lead), "Task.", script)
    assert result.output == {"n": 3}


async def test_an_unknown_speaker_fails_the_run():
    async with opened(model(Lead=["F", "P", ledger("z")])) as runtime:
        workflow = team("A").with_checkpointing(runtime).build()
        with pytest.raises(WorkflowFailed) as failed:
            await workflow.run("Task.")
    assert failed.value.result.error.code == "unknown_speaker"


async def test_a_person_revises_the_plan_until_it_is_approved():
    script = model(Lead=["F", "P1", "P2", "P3", DONE, "A"])
    async with opened(script) as runtime:
        workflow = team("A", enable_plan_review=True).with_checkpointing(runtime).build()
        result = await workflow.run("Task.")
        plans: list[str] = []
        for decision in (
            PlanDecision(decision="revise", feedback="Shorter."),
            {"decision": "revise", "feedback": "Longer."},
            PlanDecision(decision="approve"),
        ):
            (request,) = result.pending_requests
            assert type(request.data) is PlanReview
            plans.append(request.data.plan)
            result = await workflow.send_responses(result.workflow_id, {request.request_id: decision})
        (output,) = result.get_outputs()
    assert plans == ["P1", "P2", "P3"]
    assert output.output == "A"
    last = told(script, "Lead")[3]
    assert last[2] == "P1"
    assert "Shorter." in last[3]
    assert last[4] == "P2"
    assert "Longer." in last[5]
    assert [m.text for m in output.messages] == ["Task.", "P3", "A"]


async def test_a_plan_made_anew_is_reviewed_too():
    script = model(Lead=["F", "P1", STALLED, "F2", "P2", DONE, "A"])
    async with opened(script) as runtime:
        builder = team("A", enable_plan_review=True, max_stall_count=0)
        workflow = builder.with_checkpointing(runtime).build()
        result = await workflow.run("Task.")
        for plan in ("P1", "P2"):
            (request,) = result.pending_requests
            assert request.data == PlanReview(plan=plan)
            answer = {request.request_id: PlanDecision(decision="approve")}
            result = await workflow.send_responses(result.workflow_id, answer)
    assert result.state == "completed"


async def test_a_decision_that_is_none_is_refused():
    async with opened(model(Lead=["F", "P"])) as runtime:
        workflow = team("A", enable_plan_review=True).with_checkpointing(runtime).build()
        result = await workflow.run("Task.")
        (request,) = result.pending_requests
        with pytest.raises(Exception, match="decision"):
            await workflow.send_responses(result.workflow_id, {request.request_id: {"decision": "maybe"}})


@pytest.mark.parametrize(
    "more",
    [{"max_round_count": 0}, {"max_stall_count": -1}, {"max_reset_count": -1}, {"max_round_count": "3"}],
)
def test_limits_are_checked(more: dict[str, Any]):
    with pytest.raises(ConfigurationError):
        team("A", **more)


def test_a_function_cannot_manage():
    with pytest.raises(ConfigurationError):
        MagenticBuilder(agents("A"), manager=lambda state: None)  # type: ignore[arg-type]
