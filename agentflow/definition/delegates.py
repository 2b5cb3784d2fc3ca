"""Foreign delegates: the task of one, and what its answer means (page 004 §8). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.stage_schemas import StepResult, problems_of

__all__ = [
    "DELEGATE_TASK",
    "PING",
    "DelegateError",
    "DelegateResult",
    "DelegateTask",
    "category_of",
    "classified",
    "result_of",
    "usage_of",
    "with_usage",
]

DELEGATE_TASK: Final = "delegate_task"
"""The function of a service that makes it a delegate."""
PING: Final = "ping"
"""The function that answers whether the delegate is there; a service without it always is."""

_FENCE = re.compile(r"\A```[A-Za-z0-9_-]*\n(.*?)\n?```\Z", re.DOTALL)
_WRITTEN_STATUS = re.compile(
    r"\bHTTP(?:/[0-9.]+)?[ :]+([1-5][0-9]{2})\b|\bstatus code[ :=]+([1-5][0-9]{2})\b", re.I
)
_MOST_USED: Final = 1 << 53
_COUNTED: Final = (
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
    *("reasoning_output_tokens", "model_calls", "tool_calls"),
)
_QUOTA: Final = frozenset({"insufficient_quota", "quota_exceeded", "quota_exhausted"})
_CATEGORIES: Final[dict[str, Category]] = {
    "rate_limited": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "network_error": "transient",
    "server_error": "transient",
    "overloaded": "transient",
    "timeout": "timeout",
    "invalid_request": "invalid_input",
    "authentication_failed": "auth",
}


class DelegateTask(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a plan, as its delegate sees it."""

    workflow_id: str
    step_id: str
    """The id of the step in the plan; the result repeats it."""
    attempt: int
    """From 1."""
    goal: str
    context: dict[str, Any]
    """`objective`, `constraints`, `dependencies` {id: {output, artifacts}}; `repair` has what was wrong with
    the result before."""
    toolsets: list[str]
    idempotency_key: str
    """The same for all attempts of the step."""
    role: Literal["leaf"] = "leaf"
    workspace: str | None = None
    deadline: float | None = None
    """Seconds that this attempt may take."""
    budget: dict[str, Any] | None = None
    expected_artifacts: list[Any] = []


class DelegateError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a delegate has no result. `code` and `http_status` decide what follows, never the words."""

    message: str = ""
    code: str | None = None
    http_status: int | None = None
    retry_after: float | None = None
    """Seconds after which the delegate may be asked again."""


class DelegateResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a delegate answers. `completed` and `failed` may have a StepResult, the others have an error."""

    status: Literal["completed", "failed", "interrupted", "timeout", "error"]
    result: Any = None
    """A StepResult; a dict of its members will do."""
    error: DelegateError | str | None = None
    usage: dict[str, Any] | None = None
    """What the attempt has used, by the members of Usage; it counts against the budgets of run and step."""


def usage_of(answer: Any, *, reported_calls: int = 0) -> Usage | None:
    """Return what an answer of a delegate, or the details of its error, say of its usage.

    Members that are no number from 0 up are left out; None if nothing is left. Of its tool calls only those
    count that are beyond the ones it has reported by `record_tool_call`, which count by themselves. A cost
    that is not said is unknown.
    """
    value = _decoded(answer) if isinstance(answer, str) else answer
    said: Any = cast("Mapping[str, Any]", value).get("usage") if isinstance(value, Mapping) else None
    if not isinstance(said, Mapping):
        return None
    members = cast("Mapping[str, Any]", said)
    counts = {name: int(_amount(members.get(name), int) or 0) for name in _COUNTED}
    counts["tool_calls"] = max(0, counts["tool_calls"] - reported_calls)
    cost = _amount(members.get("cost_usd"), int, float)
    if not any(counts.values()) and not cost:
        return None
    is_free = cost is None and not any(n for name, n in counts.items() if name != "tool_calls")
    return Usage(cost_usd=0.0 if is_free else cost, **cast("dict[str, Any]", counts))


def _amount(value: Any, *types: type) -> float | None:
    is_number = isinstance(value, types) and not isinstance(value, bool)
    return value if is_number and 0 <= value < _MOST_USED else None


def with_usage(error: ErrorInfo, answer: Any) -> ErrorInfo:
    """Return an error of a delegate with what its answer says of its usage, which counts all the same."""
    if usage_of(answer) is None:
        return error
    value: Any = _decoded(answer) if isinstance(answer, str) else answer
    return msgspec.structs.replace(error, details={**(error.details or {}), "usage": value["usage"]})


def category_of(code: str | None, http_status: int | None) -> Category | None:
    """Return the category of an error by its code or HTTP status; None if neither says anything."""
    if code in _QUOTA:
        return "quota"
    if code is not None and code in _CATEGORIES:
        return _CATEGORIES[code]
    if http_status is None:
        return None
    if http_status == 429:
        return "rate_limited"
    if http_status in (401, 403):
        return "auth"
    if http_status == 408 or http_status >= 500:
        return "transient"
    return "invalid_input" if http_status >= 400 else None


def classified(error: ErrorInfo) -> ErrorInfo:
    """Return an error of a delegate with the category of its code, its HTTP status, or of one that is written
    as such in its text (`HTTP 503`, `status code: 429`): "quotation 512" is neither."""
    category = category_of(error.code, error.http_status)
    if category is None and error.category in ("tool", "agent"):
        match = _WRITTEN_STATUS.search(error.message)
        status = None if match is None else int(match.group(1) or match.group(2))
        category = category_of(None, status)
    if category is None or category == error.category:
        return error
    retryable = category in ("transient", "timeout", "rate_limited")
    return msgspec.structs.replace(error, category=category, retryable=retryable)


def result_of(answer: Any, step_id: str) -> tuple[dict[str, Any] | None, ErrorInfo | None]:
    """Return the StepResult of an answer, or why it has none: an error of the delegate, or
    (`invalid_output`) an answer that fits no schema or is for another step.

    An answer is a DelegateResult, a StepResult, or the JSON text of the envelope {results: [{status, summary,
    error}], error}, whose first summary is a StepResult as JSON, perhaps in one code fence.
    """
    value = _decoded(answer) if isinstance(answer, str) else answer
    if not isinstance(value, Mapping):
        return None, _invalid("the answer is no JSON object")
    members = cast("Mapping[str, Any]", value)
    if "results" in members:
        return _of_envelope(members, step_id)
    if "step_id" in members:
        return _checked(members, step_id)
    try:
        result = msgspec.convert(dict(members), DelegateResult)
    except msgspec.ValidationError as error:
        return None, _invalid(f"the answer is no DelegateResult: {error}")
    if result.status in ("completed", "failed") and result.result is not None:
        return _checked(result.result, step_id)
    if result.status == "completed":
        return None, _invalid("the answer is completed and has no result")
    return None, _error_of(result.status, result.error)


def _of_envelope(value: Mapping[str, Any], step_id: str) -> tuple[dict[str, Any] | None, ErrorInfo | None]:
    results: Any = value["results"]
    entries = cast("list[Any]", results) if isinstance(results, list) else []
    if not entries or not isinstance(entries[0], dict):
        error = value.get("error")
        return None, _error_of("error", error) if error else _invalid("the envelope has no result")
    entry = cast("dict[str, Any]", entries[0])
    summary = entry.get("summary")
    found = _decoded(_unfenced(summary)) if isinstance(summary, str) else summary
    if isinstance(found, Mapping):
        return _checked(found, step_id)
    error = entry.get("error") or value.get("error")
    if error or entry.get("status") in ("failed", "error", "timeout", "interrupted"):
        return None, _error_of(str(entry.get("status") or "error"), error)
    return None, _invalid("the summary of the first result is no JSON object")


def _unfenced(text: str) -> str:
    match = _FENCE.match(text.strip())
    return text if match is None else match.group(1)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _checked(value: Any, step_id: str) -> tuple[dict[str, Any] | None, ErrorInfo | None]:
    problems = problems_of(StepResult, value)
    if problems:
        return None, _invalid(
            "the result is no StepResult: "
            + "; ".join(f"{path or '/'}: {text}" for path, text in problems[:10])
        )
    found = dict(cast("Mapping[str, Any]", value))
    if found["step_id"] != step_id:
        return None, _invalid(f'the result is for step "{found["step_id"]}", the task is "{step_id}"')
    return found, None


def _error_of(status: str, given: Any) -> ErrorInfo:
    error = DelegateError(message=given) if isinstance(given, str) else given
    if isinstance(error, Mapping):
        members = cast("Mapping[str, Any]", error)
        known = {key: members[key] for key in DelegateError.__struct_fields__ if key in members}
        try:
            error = msgspec.convert(known, DelegateError)
        except msgspec.ValidationError:
            error = DelegateError(message=str(members))
    if not isinstance(error, DelegateError):
        error = DelegateError()
    usual: dict[str, tuple[Category, str]] = {
        "timeout": ("timeout", "delegate_timeout"),
        "interrupted": ("transient", "delegate_interrupted"),
    }
    category, code = usual.get(status, ("agent", "delegate_failed"))
    details = None if error.retry_after is None else {"retry_after": error.retry_after}
    return classified(
        ErrorInfo(
            category=category,
            code=error.code or code,
            message=error.message or f"the delegate answered {status}",
            http_status=error.http_status,
            details=details,
            retryable=category in ("transient", "timeout"),
        )
    )


def _invalid(message: str) -> ErrorInfo:
    return ErrorInfo(category="invalid_output", code="invalid_output", message=message)
