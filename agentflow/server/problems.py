"""Problems: what a request that failed is told, as RFC 9457 (page 000 §8.2).

One table says which HTTP status a code has. An exception is told by its own `code` and message; what is a
defect of the daemon is told by a number that its log shows too, and by nothing else.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from agentflow import logs
from agentflow.definition.diagnostics import Diagnostic
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    ConfigurationError,
    DefinitionError,
    OffsetConflict,
    OffsetTrimmed,
    RunGone,
)
from agentflow.events.envelope import iso

__all__ = [
    "MEDIA",
    "RETRY_AFTER",
    "STATUS",
    "TRUST_HINT",
    "Problem",
    "Refusal",
    "problem_response",
    "refusal_of",
    "with_trust_hint",
]

MEDIA = "application/problem+json"
_log = logs.get_logger("agentflow.server")

STATUS: dict[str, tuple[int, str]] = {
    "malformed_request": (400, "Malformed request"),
    "malformed_json": (400, "Malformed JSON"),
    "invalid_parameter": (400, "Invalid parameter"),
    "invalid_position": (400, "Invalid position"),
    "unauthorized": (401, "No valid token"),
    "forbidden": (403, "Not allowed"),
    "self_approval": (403, "Another must approve"),
    "host_not_allowed": (403, "Host not allowed"),
    "workflow_not_found": (404, "No such run"),
    "step_not_found": (404, "No such step"),
    "call_not_found": (404, "No such call"),
    "unknown_request": (404, "No such request"),
    "definition_not_found": (404, "No such definition"),
    "template_not_found": (404, "No such template"),
    "checkpoint_not_found": (404, "No such checkpoint"),
    "blob_not_found": (404, "No such blob"),
    "no_plan": (404, "No plan"),
    "no_resumable_run": (404, "No run to go on with"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "Method not allowed"),
    "not_acceptable": (406, "Not acceptable"),
    "run_exists": (409, "The id is taken"),
    "idempotency_conflict": (409, "The key was used for something else"),
    "invalid_transition": (409, "The run is in another state"),
    "run_terminal": (409, "The run has ended"),
    "run_not_terminal": (409, "The run has not ended"),
    "decision_conflict": (409, "Decided otherwise"),
    "already_answered": (409, "Answered already"),
    "digest_mismatch": (409, "Not what was asked for"),
    "approval_not_open": (409, "Nothing was asked yet"),
    "template_exists": (409, "The name is taken"),
    "request_closed": (409, "The request is closed"),
    "offset_mismatch": (409, "The log is at another offset"),
    "output_not_ready": (409, "No output yet"),
    "version_exists": (409, "The version exists"),
    "concurrency_rejected": (409, "Another run holds the place"),
    "not_failed": (409, "Nothing has failed"),
    "fenced": (409, "Another process owns the run"),
    "offset_trimmed": (410, "The events were trimmed"),
    "run_gone": (410, "The run was deleted"),
    "payload_too_large": (413, "Too large"),
    "unsupported_media_type": (415, "Unsupported media type"),
    "validation_failed": (422, "The workflow was refused"),
    "plan_invalid": (422, "The plan was refused"),
    "message_length": (422, "The message is empty or too long"),
    "invalid_response": (422, "The answer does not fit"),
    "invalid_edit": (422, "The edit does not fit"),
    "graph_signature_mismatch": (422, "Another graph"),
    "budget_unpriced": (422, "No price is known"),
    "budget_too_small": (422, "The budget is too small"),
    "unsupported": (422, "Not supported by this store"),
    "queue_full": (429, "Too many runs"),
    "internal_error": (500, "Internal error"),
    "log_corrupt": (500, "The log is damaged"),
    "draining": (503, "The daemon is stopping"),
    "storage_unavailable": (503, "The store takes nothing"),
    "too_many_streams": (503, "Too many streams"),
    "too_many_connections": (503, "Too many connections"),
}
"""Code to HTTP status and title: all codes that the daemon answers with."""

RETRY_AFTER = {
    "queue_full": 1,
    "draining": 5,
    "storage_unavailable": 2,
    "too_many_streams": 5,
    "too_many_connections": 5,
}
"""Seconds of the header Retry-After, by code."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of every answer that is not a success. Members beside these depend on the code."""

    type: str
    title: str
    status: int
    code: str
    detail: str | None = None
    instance: str | None = None
    hint: str | None = None
    diagnostics: list[Diagnostic] | None = None


class Refusal(Exception):
    """A request is answered by a problem with this code. `more` are members of the problem."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.headers = dict(headers or {})
        self.more = more

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code][0]


def problem_response(refusal: Refusal, instance: str | None = None) -> Response:
    """Return the response for a problem."""
    status, title = STATUS[refusal.code]
    members: dict[str, Any] = {
        "type": f"urn:agentflow:problem:{refusal.code}",
        "title": title,
        "status": status,
        "detail": refusal.detail,
        "code": refusal.code,
    }
    if instance is not None:
        members["instance"] = instance
    if refusal.hint is not None:
        members["hint"] = refusal.hint
    members.update(refusal.more)
    headers = {"Cache-Control": "no-store", **refusal.headers}
    if refusal.code in RETRY_AFTER:
        headers.setdefault("Retry-After", str(RETRY_AFTER[refusal.code]))
    return Response(msgspec.json.encode(members), status, headers, media_type=MEDIA)


def refusal_of(error: Exception, *, draining: bool = False) -> Refusal:
    """Return the problem for an exception. An unexpected one is logged and answered without details."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, DefinitionError):
        return _of_definition(error)
    if isinstance(error, ConfigurationError):
        return Refusal("invalid_parameter", str(error), hint=error.hint)
    if isinstance(error, AgentflowError):
        if draining and error.code in ("agentflow_error", "storage_unavailable"):
            return Refusal("draining", "the daemon is stopping; the run goes on at its next start")
        if error.code in STATUS:
            return Refusal(error.code, str(error), hint=error.hint, **_members(error))
    if isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR:
        _log.warning("request_without_descriptors", error=error.strerror)
        return Refusal("too_many_connections", "the daemon has no free file descriptor", hint=_LIMIT_HINT)
    number = secrets.token_hex(6)
    _log.error("request_failed", error_id=number, exc_info=error)
    return Refusal("internal_error", f"an error of the daemon; its log shows more under {number}")


_LIMIT_HINT = "try again, or raise its limit of open files (LimitNOFILE, `ulimit -n`)"
TRUST_HINT = "only what the owner of the daemon submits over its Unix socket may have this service"


def _of_definition(error: DefinitionError) -> Refusal:
    errors = [d for d in error.diagnostics if d.severity == "error"]
    first = (errors or error.diagnostics)[:1]
    detail = "; ".join(f"{d.code}: {d.message}" for d in first) or "the workflow was refused"
    if len(errors) > 1:
        detail += f" (and {len(errors) - 1} more)"
    return Refusal("validation_failed", detail, diagnostics=with_trust_hint(error.diagnostics))


def with_trust_hint(diagnostics: list[Diagnostic], hint: str = TRUST_HINT) -> list[Diagnostic]:
    """Return the diagnostics, with the hint at services that were denied for lack of trust."""
    return [
        msgspec.structs.replace(d, hint=hint) if d.code == "E_SERVICE_DENIED" and d.hint is None else d
        for d in diagnostics
    ]


def _members(error: AgentflowError) -> dict[str, Any]:
    """Return the members for programs beside the code."""
    if isinstance(error, CommandRefused):
        found = {"diagnostics": error.details["diagnostics"]} if "diagnostics" in error.details else {}
        return {"details": error.details, **found}
    if isinstance(error, OffsetTrimmed):
        return {"earliest_offset": error.earliest_offset, "requested": error.requested}
    if isinstance(error, OffsetConflict):
        return {"expected_offset": error.expected, "last_offset": error.actual}
    if isinstance(error, RunGone):
        gone = error.tombstone
        times = {name: iso(getattr(gone, name)) for name in ("created_at", "ended_at", "deleted_at")}
        return {"workflow_id": gone.workflow_id, "state": gone.state, **times}
    return {}
