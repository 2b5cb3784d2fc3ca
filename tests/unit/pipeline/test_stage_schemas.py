"""The values of the stages: Structs, schemas and rules agree (page 004 §3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition.schemas import check_schema
from agentflow.pipeline import stage_schemas as st

READY: dict[str, Any] = {
    "status": "ready",
    "objective": "o",
    "constraints": [],
    "context": {},
    "success_criteria": [],
    "blockers": [],
}
STEP: dict[str, Any] = {"id": "a", "title": "t", "action": "x", "owner": "agent", "depends_on": []}
PLAN: dict[str, Any] = {
    "status": "ready",
    "summary": "s",
    "steps": [STEP],
    "risks": [],
    "artifacts": [],
    "blockers": [],
}
DONE: dict[str, Any] = {"step_id": "a", "status": "done", "output": "x", "error": None}
FAILED: dict[str, Any] = {"step_id": "a", "status": "failed", "output": "", "error": "no"}
PASS: dict[str, Any] = {"step_id": "a", "verdict": "pass", "reason": "ok"}


@pytest.mark.parametrize("name", list(st.SCHEMAS))
def test_each_schema_is_a_schema(name: str) -> None:
    assert check_schema(st.SCHEMAS[name]) == []


CASES: list[tuple[type[st.StageStruct], dict[str, Any], bool]] = [
    (st.NormalizedRequest, READY, True),
    (st.NormalizedRequest, READY | {"objective": " "}, False),
    (st.NormalizedRequest, READY | {"blockers": ["x"]}, False),
    (st.NormalizedRequest, READY | {"status": "blocked"}, False),
    (st.NormalizedRequest, READY | {"status": "blocked", "blockers": ["x"], "objective": ""}, True),
    (st.NormalizedRequest, READY | {"more": 1}, False),
    (st.Plan, PLAN, True),
    (st.Plan, PLAN | {"steps": []}, False),
    (st.Plan, PLAN | {"status": "blocked", "blockers": ["x"]}, True),
    (st.Plan, PLAN | {"blockers": ["x"]}, False),
    (st.Plan, PLAN | {"steps": [STEP] * 101}, False),
    (st.Plan, PLAN | {"steps": [STEP | {"kind": "shell"}]}, False),
    (st.Plan, PLAN | {"steps": [STEP | {"verification": {"min_bytes": 1}}]}, True),
    (st.Plan, PLAN | {"steps": [STEP | {"verification": ["look", {"contains": ["a"]}]}]}, True),
    (st.Plan, PLAN | {"steps": [STEP | {"verification": {"size": 1}}]}, False),
    (st.Plan, PLAN | {"steps": [STEP | {"verification": {"target": "a.md"}}]}, False),
    (st.Plan, PLAN | {"steps": [STEP | {"expected_artifacts": ["a.md"]}]}, True),
    (st.Plan, PLAN | {"steps": [STEP | {"expected_artifacts": [{"type": "exe", "uri": "a"}]}]}, False),
    (st.StepResult, DONE, True),
    (st.StepResult, DONE | {"error": "x"}, False),
    (st.StepResult, FAILED, True),
    (st.StepResult, FAILED | {"error": None}, False),
    (st.StepResult, FAILED | {"error": " "}, False),
    (st.StepResult, DONE | {"artifacts": [{"type": "file", "uri": "", "status": "created"}]}, False),
    (st.ExecutorOutput, {"status": "ready", "step_results": [DONE], "blockers": []}, True),
    (st.ExecutorOutput, {"status": "ready", "step_results": [FAILED], "blockers": []}, False),
    (st.ExecutorOutput, {"status": "partial", "step_results": [DONE], "blockers": ["a: no"]}, False),
    (st.ExecutorOutput, {"status": "partial", "step_results": [FAILED], "blockers": ["a: no"]}, True),
    (st.ExecutorOutput, {"status": "blocked", "step_results": [FAILED], "blockers": []}, False),
    (st.VerifierOutput, {"status": "ready", "verdicts": [PASS], "summary": "s", "blockers": []}, True),
    (st.VerifierOutput, {"status": "partial", "verdicts": [PASS], "summary": "s", "blockers": []}, False),
    (
        st.VerifierOutput,
        {"status": "blocked", "verdicts": [], "summary": "s", "blockers": ["no steps"]},
        True,
    ),
    (st.VerifierOutput, {"status": "ready", "verdicts": [], "summary": "", "blockers": []}, False),
]


@pytest.mark.parametrize(("type", "value", "fits"), CASES)
def test_a_value_is_held_against_fields_and_rules(
    type: type[st.StageStruct], value: dict[str, Any], fits: bool
) -> None:
    assert (st.problems_of(type, value) == []) is fits
    if fits:
        assert st.to_value(st.read(type, value)) == value


@pytest.mark.parametrize(
    "name", ["normalized_request", "plan", "step_result", "executor_output", "verifier_output"]
)
def test_structs_refuse_unknown_fields(name: str) -> None:
    kinds = {
        "normalized_request": (st.NormalizedRequest, READY),
        "plan": (st.Plan, PLAN),
        "step_result": (st.StepResult, DONE),
        "executor_output": (st.ExecutorOutput, {"status": "ready", "step_results": [DONE], "blockers": []}),
        "verifier_output": (
            st.VerifierOutput,
            {"status": "ready", "verdicts": [PASS], "summary": "s", "blockers": []},
        ),
    }
    struct, value = kinds[name]
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        st.read(struct, value | {"surprise": 1})


@pytest.mark.parametrize(
    ("uri", "type"),
    [
        ("https://a.example/x.json", "url"),
        ("HTTP://a.example", "url"),
        ("mailto:a@b.example", "email"),
        ("a/b.json", "json"),
        ("README.MD", "markdown"),
        ("digest.txt", "file"),
    ],
)
def test_the_type_of_a_bare_uri_follows_from_its_form(uri: str, type: str) -> None:
    assert st.as_expected(uri).type == type
