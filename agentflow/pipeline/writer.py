"""Stage 5: assembles the final output of a request and its report (page 004 §10).

A pure function of what the log holds: the same input gives the same bytes. It asks no model, and reads
neither files nor the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["write"]

Value = Mapping[str, Any]
_NOT_VERIFIED: Final = "not verified"


def write(
    normalized_request: Value | None,
    plan: Value | None,
    executor_output: Value | None,
    verifier_output: Value | None,
    errors: Sequence[str] = (),
    *,
    execution: Value,
    checks: Iterable[Value] = (),
    unchecked: Iterable[Value] = (),
    approvals: Iterable[Value] = (),
    adjustments: Iterable[Value] = (),
    usage: Value | None = None,
) -> dict[str, Any]:
    """Return {final_output, report}. A stage that did not run is None; `errors` are those of stages that
    failed, as `<category>/<code>: <message>`."""
    verifier = verifier_output or {}
    steps = _steps(plan, executor_output, verifier_output)
    blockers = _blockers(normalized_request, plan, verifier_output, executor_output)
    status = _status(errors, verifier_output)
    if status == "blocked" and not blockers:
        blockers = ["the request ended before its plan was carried out"]
    words = [step["status"] for step in steps]
    execution_summary = (
        f"{words.count('done')} done, {words.count('failed')} failed, {words.count('skipped')} skipped"
    )
    verification_summary = str(verifier.get("summary") or _NOT_VERIFIED)
    final: dict[str, Any] = {
        "status": status,
        "objective": _text(normalized_request, "objective"),
        "summary": _summary(status, execution_summary, verification_summary, executor_output),
        "plan_summary": _text(plan, "summary"),
        "execution_summary": execution_summary,
        "verification_summary": verification_summary,
        "steps": steps,
        # What is ready has none, by the schema: what the plan calls a risk is no blocker.
        "blockers": [] if status == "ready" else blockers,
        "errors": list(errors),
        "execution_mode": execution["execution_mode"],
        "stage3_available": execution["stage3_available"],
        "partial_reason": execution.get("partial_reason") or "",
    }
    report = {
        "artifacts": [dict(one) for one in checks],
        "unchecked": [dict(one) for one in unchecked],
        "approvals": [dict(one) for one in approvals],
        "adjustments": [dict(one) for one in adjustments],
        "usage": dict(usage or {}),
    }
    return {"final_output": final, "report": report}


def _status(errors: Sequence[str], verifier_output: Value | None) -> str:
    if errors:
        return "error"
    return "blocked" if verifier_output is None else str(verifier_output["status"])


def _summary(status: str, execution: str, verification: str, executor_output: Value | None) -> str:
    if executor_output is None:
        return f"{status}: nothing was executed"
    return f"{status}: {execution}; {verification}"


def _steps(
    plan: Value | None, executor_output: Value | None, verifier_output: Value | None
) -> list[dict[str, Any]]:
    """Return the steps in the order of the plan. A step without a verdict is skipped."""
    results = {one["step_id"]: one for one in (executor_output or {}).get("step_results") or ()}
    verdicts = {one["step_id"]: one["verdict"] for one in (verifier_output or {}).get("verdicts") or ()}
    found: list[dict[str, Any]] = []
    for step in (plan or {}).get("steps") or ():
        result: Value = results.get(step["id"]) or {}
        found.append(
            {
                "step_id": step["id"],
                "status": result.get("status", "skipped"),
                "verdict": verdicts.get(step["id"], "skipped"),
                "output": result.get("output", ""),
            }
        )
    return found


def _blockers(*stages: Value | None) -> list[str]:
    """Return the blockers of the stages, in this order, each once."""
    return list(dict.fromkeys(one for stage in stages if stage for one in stage.get("blockers") or ()))


def _text(stage: Value | None, key: str) -> str:
    return str((stage or {}).get(key) or "")
