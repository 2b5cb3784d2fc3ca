"""The service `pipeline`: verifier and writer as functions, which runs of format `pipeline` call."""

from __future__ import annotations

from typing import Any

from agentflow.pipeline import verification, writer
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
    return await verification.verify(
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
    return writer.write(
        normalized_request,
        plan,
        executor_output,
        verifier_output,
        errors,
        execution=execution,
        checks=checks or (),
        unchecked=unchecked or (),
        approvals=approvals or (),
        adjustments=adjustments or (),
        usage=usage,
    )


def services() -> list[Service]:
    """Return the services that every run of format `pipeline` brings along."""
    return [Service.of("pipeline", verify, write)]
