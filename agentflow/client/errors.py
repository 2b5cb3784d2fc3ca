"""Errors between a client and the daemon, and problems turned back into exceptions.

    AgentflowError
    └── ClientError
        ├── Unreachable      no daemon answers there, or the connection broke
        ├── Unavailable      the daemon is stopping, or has no room; carries how long to wait
        ├── NotAuthorised    no valid token, or its scope is too small
        └── ProblemError     any other problem; carries it whole

Whatever the embedded Runtime raises is raised here as the same class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    DefinitionError,
    Fenced,
    IdempotencyConflict,
    LogCorrupt,
    OffsetConflict,
    OffsetTrimmed,
    OutputNotReady,
    QueueFull,
    RunExists,
    RunGone,
    RunNotFound,
    RunNotTerminal,
    RunTerminal,
    StorageUnavailable,
    refused,
)
from agentflow.events.ids import micros
from agentflow.events.tombstone import Tombstone
from agentflow.records.model_calls import CallNotFound
from agentflow.records.runs import StepNotFound

__all__ = ["ClientError", "NotAuthorised", "ProblemError", "Unavailable", "Unreachable", "error_of"]


class ClientError(AgentflowError):
    """The daemon could not do what it was asked for."""

    code = "client_error"


class Unreachable(ClientError):
    """The daemon cannot be reached; start it with `agentflow serve`, or name it with --url."""

    code = "unreachable"


class Unavailable(ClientError):
    """The daemon takes nothing now; try again in `.retry_after` seconds."""

    code = "draining"

    def __init__(self, message: str, *, code: str, retry_after: float) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class NotAuthorised(ClientError):
    """The daemon does not let this client do that; set AGENTFLOW_TOKEN to a token with the right scope."""

    code = "unauthorized"

    def __init__(self, message: str, *, code: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ProblemError(ClientError):
    """The daemon refused a request; `.problem` is what it said, `.status` the HTTP status."""

    code = "problem"

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(_detail(problem) or f"HTTP status {status}", hint=problem.get("hint"))
        self.status = status
        self.problem = dict(problem)
        self.code = str(problem.get("code", "problem"))


_SAME: dict[str, type[AgentflowError]] = {
    kind.code: kind
    for kind in (
        CallNotFound,
        Fenced,
        IdempotencyConflict,
        LogCorrupt,
        OutputNotReady,
        QueueFull,
        RunExists,
        RunNotFound,
        RunNotTerminal,
        RunTerminal,
        StepNotFound,
        StorageUnavailable,
    )
}
_BUSY = ("draining", "too_many_streams", "too_many_connections")
_DENIED = ("unauthorized", "forbidden", "host_not_allowed")


def error_of(status: int, body: bytes, retry_after: str | None = None) -> AgentflowError:
    """Return the exception that an answer with an error status stands for."""
    try:
        problem: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {"detail": f"an answer with status {status} that is no problem; is this the daemon?"}
    code, detail, hint = str(problem.get("code", "")), _detail(problem), problem.get("hint")
    if code == DefinitionError.code and "diagnostics" in problem:
        return DefinitionError(msgspec.convert(problem["diagnostics"], list[Diagnostic]))
    if "details" in problem:
        return refused(code, detail, problem["details"])
    if code in _BUSY:
        seconds = float(retry_after) if retry_after and retry_after.isdecimal() else 1.0
        return Unavailable(detail, code=code, retry_after=seconds)
    if code in _DENIED:
        return NotAuthorised(detail, code=code, hint=hint)
    if code == "invalid_parameter":
        return ConfigurationError(detail, hint=hint)
    if code in _SAME:
        return _SAME[code](detail, hint=hint)
    special = _with_members(code, problem)
    return special or ProblemError(status, problem)


def _with_members(code: str, problem: Mapping[str, Any]) -> AgentflowError | None:
    """Errors that carry more than a message, if all of it is there."""
    run = _run_of(problem)
    try:
        if code == OffsetTrimmed.code:
            return OffsetTrimmed(run, problem["earliest_offset"], problem["requested"])
        if code == OffsetConflict.code:
            return OffsetConflict(run, problem["expected_offset"], problem["last_offset"])
        if code == RunGone.code:
            times = {name: micros(problem[name]) for name in ("created_at", "ended_at", "deleted_at")}
            return RunGone(Tombstone(workflow_id=problem["workflow_id"], state=problem["state"], **times))
    except (KeyError, TypeError, ValueError):
        return None
    return None


def _run_of(problem: Mapping[str, Any]) -> str:
    parts = str(problem.get("instance", "")).split("/")
    return parts[2] if len(parts) > 2 and parts[1] == "workflows" else "the run"


def _detail(problem: Mapping[str, Any]) -> str:
    return str(problem.get("detail") or problem.get("title") or "")
