"""The final output is a pure function of the stages (page 004 §10)."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.definition.stage_schemas import FinalOutput, problems_of
from agentflow.pipeline.writer import write

EXECUTION = {"execution_mode": "delegated", "stage3_available": True, "partial_reason": ""}
NORMALIZED = {"status": "ready", "objective": "the goal", "blockers": []}


def result(id: str, status: str = "done") -> dict[str, Any]:
    return {
        "step_id": id,
        "status": status,
        "output": f"out {id}",
        "error": None if status == "done" else "e",
    }


def plan_of(*ids: str) -> dict[str, Any]:
    return {"summary": "the plan", "steps": [{"id": id} for id in ids], "blockers": []}


def test_ready() -> None:
    found = write(
        NORMALIZED,
        plan_of("a", "b"),
        {"step_results": [result("b"), result("a")], "blockers": []},
        {
            "status": "ready",
            "verdicts": [{"step_id": id, "verdict": "pass", "reason": "r"} for id in ("a", "b")],
            "summary": "2 passed, 0 failed, 0 skipped",
            "blockers": [],
        },
        execution=EXECUTION,
        usage={"tokens": 3},
    )
    assert found["final_output"] == {
        "status": "ready",
        "objective": "the goal",
        "summary": "ready: 2 done, 0 failed, 0 skipped; 2 passed, 0 failed, 0 skipped",
        "plan_summary": "the plan",
        "execution_summary": "2 done, 0 failed, 0 skipped",
        "verification_summary": "2 passed, 0 failed, 0 skipped",
        "steps": [
            {"step_id": "a", "status": "done", "verdict": "pass", "output": "out a"},
            {"step_id": "b", "status": "done", "verdict": "pass", "output": "out b"},
        ],
        "blockers": [],
        "errors": [],
        "execution_mode": "delegated",
        "stage3_available": True,
        "partial_reason": "",
    }
    assert found["report"]["usage"] == {"tokens": 3}


def test_blockers_stand_in_the_order_of_the_page_and_once() -> None:
    found = write(
        {**NORMALIZED, "blockers": ["x", "y"]},
        {**plan_of("a"), "blockers": ["y", "p"]},
        {"step_results": [result("a", "failed")], "blockers": ["a: e", "z"]},
        {"status": "partial", "verdicts": [], "summary": "s", "blockers": ["v", "a: e"]},
        execution=EXECUTION,
    )
    assert found["final_output"]["blockers"] == ["x", "y", "p", "v", "a: e", "z"]
    assert found["final_output"]["steps"][0]["verdict"] == "skipped"


def test_failed_stage_is_an_error_whatever_else_is_there() -> None:
    found = write(NORMALIZED, None, None, None, ["quota/x: m"], execution=EXECUTION)
    assert (found["final_output"]["status"], found["final_output"]["errors"]) == ("error", ["quota/x: m"])


def test_blocked_stage_blocks_and_nothing_is_executed() -> None:
    found = write(
        {**NORMALIZED, "status": "blocked", "blockers": ["who?"]}, None, None, None, execution=EXECUTION
    )
    assert found["final_output"]["status"] == "blocked"
    assert found["final_output"]["blockers"] == ["who?"]


_IDS = st.lists(st.sampled_from(["a", "b", "c"]), unique=True)
_BLOCKERS = st.lists(st.sampled_from(["x", "y"]), max_size=3)
_STATUS = st.sampled_from(["done", "failed", "skipped"])


@settings(deadline=None)
@given(st.data())
def test_output_fits_its_schema_and_is_the_same_each_time(data: Any) -> None:
    """Whatever a log can hold: the schema of §3 holds, no input is changed, and bytes repeat."""
    draw = data.draw
    ids = draw(_IDS)
    plan = draw(st.none() | st.just({**plan_of(*ids), "blockers": draw(_BLOCKERS)}))
    executor = None
    verifier = None
    if plan is not None and draw(st.booleans()):
        executor = {"step_results": [result(id, draw(_STATUS)) for id in ids], "blockers": draw(_BLOCKERS)}
        if draw(st.booleans()):
            words = [draw(st.sampled_from(["pass", "fail", "skipped"])) for _ in ids]
            blockers = draw(_BLOCKERS)
            ready = bool(words) and set(words) == {"pass"}
            status = "ready" if ready else "partial" if words else "blocked"
            verifier = {
                "status": status,
                "verdicts": [
                    {"step_id": i, "verdict": w, "reason": "r"} for i, w in zip(ids, words, strict=True)
                ],
                "summary": "s",
                "blockers": [] if ready else [*blockers, "b"],
            }
    errors = draw(st.lists(st.sampled_from(["system/x: y"]), max_size=1))
    stages = [draw(st.none() | st.just(NORMALIZED)), plan, executor, verifier]
    kept = copy.deepcopy(stages)
    one = write(*stages, errors, execution=EXECUTION)
    assert stages == kept
    assert msgspec.json.encode(one) == msgspec.json.encode(write(*stages, errors, execution=EXECUTION))
    assert problems_of(FinalOutput, one["final_output"]) == []
