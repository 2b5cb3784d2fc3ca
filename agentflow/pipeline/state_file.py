"""The state file of a workspace: what document 004 writes, one JSON line a state (page 004 §14).

It is output, never read by a run. One writer a run: an instance, whose calls are made one after the other.
Each line is one write, behind a newline if the last line was torn. The last line of a workflow id wins, and a
line that is no whole JSON is ignored. Blocking: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from agentflow.definition.stage_schemas import (
    ExecutorOutput,
    NormalizedRequest,
    Plan,
    StepResult,
    problems_of,
)
from agentflow.errors import AgentflowError
from agentflow.tools.toolsets.workspace import Workspace, WorkspaceError

__all__ = [
    "FIELDS",
    "ImportProblem",
    "ImportedRun",
    "StateFile",
    "StateFileError",
    "import_line",
    "read_state_file",
    "state_line",
]

FIELDS: Final = (
    *("workflow_id", "mode", "raw_input", "user_input", "status", "phase", "objective", "summary", "steps"),
    *("risks", "blockers", "errors", "normalized_request", "plan", "executor_results", "executor_output"),
    *("verifier_output", "final_output", "execution_mode", "stage3_available", "partial_reason"),
    *("activation_trigger", "execution_requested", "created_at", "updated_at"),
)
_MAX_FILE_BYTES: Final = 1 << 30
_MAX_LINE_BYTES: Final = 16 << 20
_MAX_RUNS: Final = 10_000


class StateFileError(AgentflowError):
    """The state file cannot be read or written."""

    code = "invalid_state_file"


def state_line(
    workflow_id: str,
    *,
    activated: Mapping[str, Any],
    status: str,
    phase: str,
    created_at: str,
    updated_at: str,
    normalized_request: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    results: Mapping[str, Mapping[str, Any]] | None = None,
    executor_output: Mapping[str, Any] | None = None,
    verifier_output: Mapping[str, Any] | None = None,
    final_output: Mapping[str, Any] | None = None,
    blockers: tuple[str, ...] = (),
    errors: tuple[str, ...] = (),
    blocked_reason: str | None = None,
) -> dict[str, Any]:
    """Return the line of a state. Pure.

    `activated` is the data of `plan.activated`, `results` has the StepResult of each finished step by its id
    until stage 3 has its output.
    """
    final, shown = final_output or {}, plan or {}
    done = (executor_output or {}).get("step_results")
    if done is None:
        done = (
            [results[one["id"]] for one in shown.get("steps") or () if one["id"] in results]
            if results
            else []
        )
    line: dict[str, Any] = {
        "workflow_id": workflow_id,
        "mode": activated["mode"],
        "raw_input": activated["message"],
        "user_input": activated["user_input"],
        "status": status,
        "phase": phase,
        "objective": (normalized_request or {}).get("objective") or "",
        "summary": final.get("summary") or shown.get("summary") or "",
        "steps": final.get("steps") or shown.get("steps") or [],
        "risks": shown.get("risks") or [],
        "blockers": final.get("blockers") or list(blockers),
        "errors": final.get("errors") or list(errors),
        "normalized_request": normalized_request,
        "plan": plan,
        "executor_results": done,
        "executor_output": executor_output,
        "verifier_output": verifier_output,
        "final_output": final_output,
        "execution_mode": activated["execution_mode"],
        "stage3_available": activated["stage3_available"],
        "partial_reason": activated.get("partial_reason") or "",
        "activation_trigger": activated["trigger"],
        "execution_requested": activated["execution_requested"],
        "created_at": created_at,
        "updated_at": updated_at,
    }
    if blocked_reason is not None:
        line["blocked_reason"] = blocked_reason
    return line


class StateFile:
    """The writer of one run. Equal states that follow each other are written once.

    The file lies in a workspace, which models write to: a link in its place is refused, never followed.
    """

    def __init__(self, workspace: str | Path, name: str) -> None:
        self._workspace = Workspace(workspace)
        self._name = name
        self._last: bytes | None = None

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line; it is durable on return. Raises StateFileError."""
        same = {key: value for key, value in line.items() if key != "updated_at"}
        body = msgspec.json.encode(same)
        if body == self._last:
            return
        data = msgspec.json.encode(line) + b"\n"  # JSON text holds no newline of its own
        try:
            self._workspace.append(self._name, data, limit=_MAX_FILE_BYTES, line=True)
        except WorkspaceError as error:
            raise StateFileError(f"the state file was not written: {error}") from error
        self._last = body


# -- reading ------------------------------------------------------------------------------------


class ImportProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A line that no run is made of, and why."""

    line: int
    message: str


class ImportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a line holds of a run: its request, the results of its stages, and those of finished steps.

    Members that broke the schema of their stage are left out, so that the stage runs again; `dropped` names
    them. A blocked stage runs again, too.
    """

    workflow_id: str
    message: str
    user_input: str
    trigger: str
    execution_requested: bool
    normalized_request: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    results: dict[str, dict[str, Any]] = {}
    """By step: those that are done; all of them if stage 3 had its output."""
    is_over: bool = False
    """Whether the run had its final output: there is nothing to go on with."""
    dropped: tuple[str, ...] = ()


def read_state_file(path: Path) -> tuple[dict[str, dict[str, Any]], list[ImportProblem]]:
    """Return the last line of each workflow id, in the order in which they first appear, and what is wrong
    with other lines. A torn last line is no problem. Raises StateFileError if the file cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    problems: list[ImportProblem] = []
    try:
        with path.open("rb") as stream:
            for number, body, is_torn in _lines(stream):
                value = _decoded(body)
                if value is not None:
                    found[value["workflow_id"]] = value
                elif body.strip() and not is_torn:
                    problems.append(ImportProblem(line=number, message="no JSON object with a workflow_id"))
                if len(found) > _MAX_RUNS:
                    raise StateFileError(f"{path} has more than {_MAX_RUNS:,} workflow ids")
    except OSError as error:
        raise StateFileError(f"{path} cannot be read: {error.strerror}") from error
    return found, problems


def _lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, bytes, and whether the newline at its end is absent. A line of more than 16 MiB is read
    past and given as one that is no JSON."""
    number = 0
    while body := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(body) > _MAX_LINE_BYTES and not body.endswith(b"\n"):
            while (more := stream.readline(_MAX_LINE_BYTES)) and not more.endswith(b"\n"):
                pass
            body = b"?\n"
        yield number, body, not body.endswith(b"\n")


def _decoded(body: bytes) -> dict[str, Any] | None:
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    members = cast("dict[str, Any]", value)
    name = members.get("workflow_id")
    return members if isinstance(name, str) and 0 < len(name) <= 200 else None


def import_line(line: Mapping[str, Any]) -> ImportedRun:
    """Return what a line gives a new run.

    Nothing in it is believed that its schema does not allow; approvals, verdicts and a final output are not
    taken over. Raises StateFileError if it holds no request.
    """
    message = line.get("raw_input") or line.get("user_input")
    if not isinstance(message, str) or not message.strip():
        raise StateFileError("the line holds no raw_input")
    dropped: list[str] = []

    def taken(key: str, kind: Any) -> dict[str, Any] | None:
        value = line.get(key)
        if value is None:
            return None
        if problems_of(kind, value):
            dropped.append(key)
            return None
        members = cast("dict[str, Any]", value)
        return None if kind is not ExecutorOutput and members["status"] == "blocked" else members

    normalized = taken("normalized_request", NormalizedRequest)
    plan = taken("plan", Plan) if normalized is not None else None
    executed = taken("executor_output", ExecutorOutput) if plan is not None else None
    steps = {one["id"] for one in (plan or {}).get("steps") or ()}
    results: dict[str, dict[str, Any]] = {}
    given: Any = (executed or {}).get("step_results") or line.get("executor_results")
    for index, one in enumerate(cast("list[Any]", given) if isinstance(given, list) else []):
        if problems_of(StepResult, one):
            dropped.append(f"executor_results[{index}]")
        elif (one["status"] == "done" or executed is not None) and one["step_id"] in steps:
            results[one["step_id"]] = one
    user_input, trigger = line.get("user_input"), line.get("activation_trigger")
    return ImportedRun(
        workflow_id=str(line["workflow_id"]),
        message=message,
        user_input=user_input if isinstance(user_input, str) else message.strip(),
        trigger=trigger if trigger in ("explicit_prefix", "semantic_detector", "template") else "api",
        execution_requested=line.get("execution_requested") is True,
        normalized_request=normalized,
        plan=plan,
        results=results,
        is_over=isinstance(line.get("final_output"), dict),
        dropped=tuple(dropped),
    )
