"""What all operations that tell a run something have in common."""

from __future__ import annotations

from typing import Any

from agentflow.runtime import RunRecord
from agentflow.server.operations import Operation

__all__ = ["COMMAND_PROBLEMS", "command"]

COMMAND_PROBLEMS = (
    "workflow_not_found",
    "invalid_transition",
    "run_terminal",
    "offset_mismatch",
    "fenced",
    "run_gone",
    "validation_failed",
    "storage_unavailable",
    "draining",
)


def command(path: str, handler: Any, summary: str, body: Any, **more: Any) -> Operation:
    """An operation that tells a run something, at this path below it."""
    problems = (*COMMAND_PROBLEMS, *more.pop("problems", ()))
    given: dict[str, Any] = {"scope": "run", "answers": {200: RunRecord}, "tag": "commands", **more}
    return Operation(
        method="POST",
        path=f"/workflows/{{id}}/{path}",
        handler=handler,
        summary=summary,
        body=body,
        problems=problems,
        while_draining=False,
        **given,
    )
