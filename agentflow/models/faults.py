"""Refusals and broken answers of a provider as categories and codes (page 000 §9).

Decided by HTTP status and provider code; text is read only for a status that is written as one. What
comes out holds no secret: the messages of refused keys are replaced, others are redacted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow import known_secrets
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.redaction import masker
from agentflow.models.base import ModelError
from agentflow.models.http import HttpFailure
from agentflow.models.waits import asked_wait

__all__ = [
    "KEY_LIKE",
    "broken_answer",
    "content_filtered",
    "failed_answer",
    "from_http_failure",
    "from_response",
    "from_stream",
    "redact",
]

_QUOTA: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"}
    | {"billing_error"}
)
_QUOTA_TEXT: Final = re.compile(r"\bcredit balance is too low\b", re.IGNORECASE)
_KEY: Final = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED", "authentication_error"})
_STATUS_OF_TYPE: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that an error inside a stream, which has none, would have had as an answer."""
_CONTEXT: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
)
_CONTEXT_TEXT: Final = re.compile(
    r"prompt is too long: \d+ tokens"  # Anthropic
    r"|input length and `max_tokens` exceed context limit"  # Anthropic
    r"|input token count .{0,40}exceeds the maximum number of tokens"  # Gemini
    r"|maximum context length (?:is|of) \d+"  # vLLM, OpenRouter
    r"|exceeds the available context size"  # llama.cpp
    r"|input exceeds the context window"  # LM Studio, the Responses API
    r"|too large for model with \d+ maximum context length",  # Mistral
    re.IGNORECASE,
)
"""What servers write that have no code for it; read only in a refusal of the request itself."""
_FILTERED: Final = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_MODEL: Final = frozenset({"model_not_found", "model_not_available"})
_UNSUPPORTED: Final = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "unrecognized_parameter"}
    | {"extra_forbidden"}
)
_UNKNOWN_MEMBER: Final = (
    re.compile(r"^(\w+): Extra inputs are not permitted"),  # Anthropic
    re.compile(r"^`(\w+)` is (?:not supported|deprecated) (?:for|on|with) this model"),  # Anthropic
    re.compile(r"^Unrecognized request arguments? supplied: (\w+)"),  # OpenAI, Azure
    re.compile(r"^property '(\w+)' is unsupported"),  # Groq
    re.compile(r"""^Invalid JSON payload received\. Unknown name "(\w+)\""""),  # Gemini
    re.compile(r".*'extra_forbidden', 'loc': \('body', '(\w+)'"),  # vLLM
)
_STATUS_IN_TEXT: Final = re.compile(r"\b(?:HTTP|status(?: code)?:?)\s*([45]\d\d)\b", re.IGNORECASE)
KEY_LIKE: Final = re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_*.\-]{6,}|\bAIza[\w\-]{20,}|\bBearer\s+\S+")
_LONGEST_MESSAGE: Final = 500
# Of a gateway that lost or gave up the server behind it, which may go on writing the answer.
_MAYBE_CHARGED: Final = frozenset({408, 499, 502, 504, *range(520, 528)})
_RETRYABLE: Final = frozenset({"transient", "timeout", "rate_limited"})


class _Refusal(NamedTuple):
    """What the provider said: its words, and the codes it put beside them."""

    message: str
    codes: frozenset[str]
    status: int | None
    parameter: str | None = None


def from_response(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, *, secret: str | None = None
) -> ModelError:
    """Return the error for an answer whose status is not 2xx."""
    said = _refusal(body)
    error = _error(provider, status, said, secret, retry_after=asked_wait(headers, body))
    error.uncharged = status not in _MAYBE_CHARGED
    if status in (400, 422):
        error.refused_parameter = _refused_parameter(said)
    return error


def _refused_parameter(said: _Refusal) -> str | None:
    if said.parameter is not None and said.codes & _UNSUPPORTED:
        return said.parameter
    matches = (pattern.match(said.message) for pattern in _UNKNOWN_MEMBER)
    return next((match[1] for match in matches if match), None)


def from_stream(provider: str, error: object, *, secret: str | None = None, partial: str = "") -> ModelError:
    """Return the error for an `error` member inside a stream that began well."""
    said = _described(error)
    status = said.status
    if status is None:
        status = next((_STATUS_OF_TYPE[code] for code in sorted(said.codes) if code in _STATUS_OF_TYPE), None)
    if status is None and (match := _STATUS_IN_TEXT.search(said.message)):
        status = int(match[1])
    return _error(provider, status or 500, said, secret, partial=partial or None)


def from_http_failure(provider: str, failure: HttpFailure, *, partial: str = "") -> ModelError:
    """Return the error for no answer, or a part of one."""
    if failure.kind in ("first_byte", "stalled"):
        return _made(provider, "timeout", "response_timeout", str(failure), partial=partial or None)
    error = _made(provider, "transient", "network_error", str(failure), partial=partial or None)
    error.uncharged = not failure.sent
    return error


def broken_answer(provider: str, problem: str, *, partial: str = "") -> ModelError:
    """Return the error for an answer that is complete but is not what the protocol says."""
    return _made(provider, "invalid_output", "invalid_response", problem, partial=partial or None)


def content_filtered(
    provider: str, reason: str, *, partial: str = "", finish_reason: str | None = None
) -> ModelError:
    """Return the error for an answer that the provider withheld or the model refused."""
    details = _reason_details(finish_reason)
    return _made(provider, "agent", "content_filtered", reason, partial=partial or None, details=details)


def failed_answer(
    provider: str, finish_reason: str | None, has_choice: bool, *, partial: str = ""
) -> ModelError:
    """Return the error for an answer that ended at the provider and is none: a finish reason that says so or
    is not known, no finish reason, or no choice. It is transient."""
    if finish_reason is not None:
        problem = f'the provider ended the answer with the finish reason "{redact(finish_reason, None)}"'
    else:
        problem = "the answer ended without a finish reason" if has_choice else "the answer has no choices"
    details = _reason_details(finish_reason)
    return _made(provider, "transient", "server_error", problem, partial=partial or None, details=details)


def _reason_details(finish_reason: str | None) -> dict[str, str] | None:
    return None if finish_reason is None else {"finish_reason": redact(finish_reason, None)}


def redact(text: str, secret: str | None) -> str:
    """Return at most 500 characters of the text, without the secret, without any known one, and without what
    looks like a key."""
    if secret:
        text = masker([secret])(text)
    text = KEY_LIKE.sub("[redacted]", known_secrets.hide(text))
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def _error(
    provider: str,
    status: int,
    said: _Refusal,
    secret: str | None,
    *,
    retry_after: float | None = None,
    partial: str | None = None,
) -> ModelError:
    category, code = _classify(status, said)
    # A refused key is often quoted, half masked, in the provider's own words: they are not repeated.
    message = (
        "the provider refused the key or its rights"
        if code == "authentication_failed"
        else redact(said.message, secret)
    )
    return _made(
        provider,
        category,
        code,
        message or f"HTTP {status} without a message",
        status=status,
        retry_after=retry_after,
        partial=partial,
    )


def _classify(status: int, said: _Refusal) -> tuple[Category, str]:
    codes = said.codes
    if status == 402 or (status in (403, 429) and codes & _QUOTA):
        return "quota", "insufficient_quota"
    if status == 400 and _QUOTA_TEXT.search(said.message):
        return "quota", "insufficient_quota"
    if status == 429:
        return "rate_limited", "rate_limited"
    if status in (401, 403) or codes & _KEY:
        return "auth", "authentication_failed"
    if status == 404 or codes & _MODEL:
        return "auth", "model_not_found"
    if status == 408 or status >= 500:
        return "transient", "server_error"
    if codes & _CONTEXT or _CONTEXT_TEXT.search(said.message):
        return "invalid_input", "context_length_exceeded"
    if codes & _FILTERED:
        return "agent", "content_filtered"
    return "invalid_input", "invalid_request"


def _made(
    provider: str,
    category: Category,
    code: str,
    message: str,
    *,
    status: int | None = None,
    retry_after: float | None = None,
    partial: str | None = None,
    details: dict[str, Any] | None = None,
) -> ModelError:
    info = ErrorInfo(
        category=category,
        code=code,
        message=message,
        retryable=category in _RETRYABLE,
        http_status=status,
        provider=provider,
        details=details,
    )
    return ModelError(info, retry_after=retry_after, partial=partial)


def _refusal(body: bytes) -> _Refusal:
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Refusal(_one_line(body.decode("utf-8", "replace")), frozenset(), None)
    if isinstance(decoded, list) and decoded:  # Gemini's compatible server writes an array of one
        decoded = cast("list[Any]", decoded)[0]
    members = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    return _described(members.get("error") or members)


def _described(error: object) -> _Refusal:
    """Return the message and the codes of an error object; servers differ in which members they give."""
    if not isinstance(error, dict):
        return _Refusal(_one_line(str(error)), frozenset(), None)
    members = cast("dict[str, Any]", error)
    message = members.get("message") or members.get("detail") or ""
    codes: set[str] = {v for k in ("code", "type") if isinstance(v := members.get(k), str)}
    inner = members.get("innererror")
    if isinstance(inner, dict) and isinstance(code := cast("dict[str, Any]", inner).get("code"), str):
        codes.add(code)
    details = members.get("details")
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:  # Google's
        reason = cast("dict[str, Any]", detail).get("reason") if isinstance(detail, dict) else None
        codes |= {reason} if isinstance(reason, str) else set()
    parameter = members.get("param")
    if isinstance(message, list):  # FastAPI's: one object for each wrong member
        parameter, more = _forbidden(cast("list[Any]", message))
        codes |= more
    numbers = (members.get("status"), members.get("code"), *(c for c in codes if c.isdecimal()))
    status = next((int(n) for n in numbers if isinstance(n, int | str) and _is_status(n)), None)
    return _Refusal(
        _one_line(message if isinstance(message, str) else str(cast("object", message))),
        frozenset(codes),
        status,
        parameter if isinstance(parameter, str) else None,
    )


def _forbidden(problems: list[Any]) -> tuple[str | None, set[str]]:
    """Return the member of the body that the first problem, {"type": "extra_forbidden", "loc": ["body",
    NAME]}, is about, and the code."""
    first = cast("dict[str, Any]", problems[0]) if problems and isinstance(problems[0], dict) else {}
    place = first.get("loc")
    if first.get("type") != "extra_forbidden" or not isinstance(place, list):
        return None, set()
    names = [name for name in cast("list[Any]", place) if isinstance(name, str) and name != "body"]
    return (names[0] if len(names) == 1 else None), {"extra_forbidden"}


def _is_status(number: int | str) -> bool:
    return str(number).isdecimal() and 400 <= int(number) < 600


def _one_line(text: str) -> str:
    return " ".join(text.split())
