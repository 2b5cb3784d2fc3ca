"""The answers that a person can type, for each kind of request."""

from __future__ import annotations

from typing import Any

import click
import pytest

from agentflow.cli.decisions import open_decisions
from agentflow.cli.progress import Progress
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.events.catalogue import WorkflowPaused
from agentflow.records.requests import RequestRecord


def request(kind: str, **more: Any) -> RequestRecord:
    facts: dict[str, Any] = {"request_id": "req_1", "workflow_id": "wf_a", "step_id": "s", "iteration": None}
    facts |= {"kind": kind, "subject": {}, "asked_at": "2026-01-01T00:00:00Z", "offset": 3}
    return RequestRecord(**{**facts, **more})


CHOICE = {
    "properties": {"choice": {"enum": ["retry", "done", "fail"]}, "output": True},
    "required": ["choice"],
}
UNKNOWN = request(
    "input",
    request_type="outcome_unknown",
    response_schema=CHOICE,
    subject={"tool_name": "t", "parameters": {}},
)
BUDGET = request(
    "input",
    request_type="budget",
    subject={"limit": "max_tokens", "value": 40, "used": 30, "requested": 90, "message": "over"},
    response_schema={"properties": {"choice": {"enum": ["raise", "fail"]}, "limit": {"type": "number"}}},
)
TEXT = request("input", response_schema={"type": "string"})
SHAPE = request("input", response_schema={"type": "object", "required": ["n"]})


@pytest.mark.parametrize(
    ("asked", "line", "answer"),
    [
        (UNKNOWN, "retry", {"choice": "retry"}),
        (UNKNOWN, "fail", {"choice": "fail"}),
        (UNKNOWN, 'done {"sent": 1}', {"choice": "done", "output": {"sent": 1}}),
        (UNKNOWN, "done sent by hand", {"choice": "done", "output": "sent by hand"}),
        (BUDGET, "raise", {"choice": "raise", "limit": 120}),
        (BUDGET, "raise 500", {"choice": "raise", "limit": 500}),
        (BUDGET, "fail", {"choice": "fail"}),
        (TEXT, "5", "5"),
        (TEXT, '"show"', "show"),
        (SHAPE, '{"n": 5}', {"n": 5}),
    ],
)
def test_a_line_is_an_answer_that_the_schema_takes(asked: RequestRecord, line: str, answer: Any):
    (decision,) = open_decisions([asked], Progress.of_steps("w", ["s"]), "waiting")
    told = decision.parse(line)
    assert told == ("answer_all", {"responses": {"req_1": answer}})
    assert validate(asked.response_schema, answer) == []


@pytest.mark.parametrize(("line", "granted"), [("y", True), ("Yes", True), ("n", False), ("no", False)])
def test_an_approval_is_of_what_was_shown(line: str, granted: bool):
    asked = request("tool", digest="sha256:1", subject={"tool_name": "t", "parameters": {}})
    (decision,) = open_decisions([asked], Progress.of_steps("w", ["s"]), "waiting")
    command, arguments = decision.parse(line)
    digest = "sha256:1" if granted else None
    assert command == "decide"
    assert arguments == {"granted": granted, "request_id": "req_1", "reason": None, "digest": digest}
    assert decision.details["digest"] == "sha256:1"


@pytest.mark.parametrize(
    ("asked", "line"),
    [(request("step"), "maybe"), (UNKNOWN, "again"), (UNKNOWN, "fail now"), (BUDGET, "raise it")],
)
def test_another_line_is_refused_before_the_run_is_told(asked: RequestRecord, line: str):
    (decision,) = open_decisions([asked], Progress.of_steps("w", ["s"]), "waiting")
    with pytest.raises(click.BadParameter):
        decision.parse(line)


def paused(**data: Any) -> Progress:
    progress = Progress.of_steps("w", ["one", "two"])
    progress.paused = WorkflowPaused(**data)
    return progress


def test_each_held_step_is_decided():
    progress = paused(reason="failure", detail="failed: one, two")
    progress.steps["one"].error = ErrorInfo(category="agent", code="c", message="no")
    one, two = open_decisions([], progress, "paused")
    assert one.parse("skip") == ("retry", {"step_id": "one", "action": "skip", "output": None})
    assert two.parse("done 3") == ("retry", {"step_id": "two", "action": "done", "output": 3})
    assert one.details["error"] is progress.steps["one"].error


def test_a_spent_budget_is_raised():
    figures = {"limit": {"max_tokens": 40}, "used": 30, "requested": 90}
    (decision,) = open_decisions([], paused(reason="budget", detail="over", budget=figures), "paused")
    assert decision.parse("raise") == ("resume", {"budget": {"max_tokens": 120}})
    assert decision.parse("raise 70") == ("resume", {"budget": {"max_tokens": 70}})


@pytest.mark.parametrize("reason", ["operator", "quota", "drain", "recovery_limit"])
def test_other_pauses_are_not_asked_about(reason: Any):
    assert open_decisions([], paused(reason=reason, detail="why"), "paused") == []
