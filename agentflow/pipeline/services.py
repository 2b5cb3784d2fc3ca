"""The service `pipeline`: verifier and writer as functions, which runs of format `pipeline` call."""

from __future__ import annotations

from typing import Any

from agentflow.pipeline.verification import verify as verify_results
from agentflow.tools import Service, function

__all__ = ["services"]


@function(side_effect="read", idempotent=True, timeout=900)
async def verify(
    plan: dict[str, Any],
    executor_output: dict[str, Any],
    workspace: str | None = None,
    before: dict[str, Any] | None = None,
    calls: list[Any] | None = None,
    classes: dict[str, str] | None = None,
    verify_network: bool = True,
    allowed_hosts: list[str] | None = None,
) -> dict[str, Any]:
    """Hold the results of the steps against evidence."""
    return await verify_results(
        plan,
        executor_output,
        workspace=workspace,
        before=before,
        calls=calls or (),
        classes=classes,
        network=verify_network,
        allowed_hosts=allowed_hosts or (),
    )


@function(side_effect="none", timeout=60)
def write(
    normalized_request: dict[str, Any] | None,
    plan: dict[str, Any] | None,
    executor_output: dict[str, Any] | None,
    verifier_output: dict[str, Any] | None,
    errors: list[str],
    execution: dict[str, Any],
    message: str = "",
    checks: list[Any] | None = None,
    unchecked: list[Any] | None = None,
    approvals: list[Any] | None = None,
    adjustments: list[Any] | None = None,
    usage: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Assemble the final output from what the stages gave."""
    results: list[dict[str, Any]] = (executor_output or {}).get("step_results") or []
    judged: list[dict[str, Any]] = (verifier_output or {}).get("verdicts") or []
    verdicts = {v["step_id"]: v["verdict"] for v in judged}
    counts = [sum(r["status"] == word for r in results) for word in ("done", "failed", "skipped")]
    blockers: dict[str, None] = dict.fromkeys(
        [
            *((normalized_request or {}).get("blockers") or []),
            *((plan or {}).get("blockers") or []),
            *((verifier_output or {}).get("blockers") or []),
            *((executor_output or {}).get("blockers") or []),
        ]
    )
    status = "error" if errors else "blocked" if verifier_output is None else verifier_output["status"]
    final: dict[str, Any] = {
        "status": status,
        "objective": (normalized_request or {}).get("objective") or "",
        "summary": (verifier_output or {}).get("summary") or "",
        "plan_summary": (plan or {}).get("summary") or "",
        "execution_summary": f"{counts[0]} done, {counts[1]} failed, {counts[2]} skipped",
        "verification_summary": (verifier_output or {}).get("summary") or "",
        "steps": [
            {
                "step_id": r["step_id"],
                "status": r["status"],
                "verdict": verdicts.get(r["step_id"], "skipped"),
                "output": r["output"],
            }
            for r in results
        ],
        "blockers": list(blockers),
        "errors": errors,
        **execution,
    }
    report = {
        "artifacts": checks or [],
        "unchecked": unchecked or [],
        "approvals": approvals or [],
        "adjustments": adjustments or [],
        "usage": usage or {},
    }
    return {"final_output": final, "report": report}


def services() -> list[Service]:
    """Return the services that every run of format `pipeline` brings along."""
    return [Service.of("pipeline", verify, write)]
