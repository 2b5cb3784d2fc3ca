"""Refusals and broken answers of a provider as categories and codes (page 000 §9).

Decided by HTTP status and provider code; text is read only for a status that is written as one. What
comes out holds no secret: the messages of refused keys are replaced, others are redacted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.models.base import ModelError
from agentflow.models.http import HttpFailure
from agentflow.models.waits import asked_wait

__all__ = ["broken_answer", "content_filtered", "from_http_failure", "from_response", "from_stream", "redact"]

_QUOTA: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"}
)
_CONTEXT: Final = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
)
_FILTERED: Final = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_MODEL: Final = frozenset({"model_not_found", "model_not_available"})
_STATUS_IN_TEXT: Final = re.compile(r"\b(?:HTTP|status(?: code)?:?)\s*([45]\d\d)\b", re.IGNORECASE)
_KEY_LIKE: Final = re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_*.\-]{6,}|\bAIza[\w\-]{20,}|\bBearer\s+\S+")
_LONGEST_MESSAGE: Final = 500
# Of a gateway that lost or gave up the server behind it, which may go on writing the answer.
_MAYBE_CHARGED: Final = frozenset({408, 499, 502, 504, *range(520, 528)})
_RETRYABLE: Final = frozenset({"transient", "timeout", "rate_limited"})


class _Refusal(NamedTuple):
    """What the provider said: its words, and the codes it put beside them."""

    message: str
    codes: frozenset[str]
    status: int | None


def from_response(
    provider: str, status: int, headers: Mapping[str, str], body: bytes, *, secret: str | None = None
) -> ModelError:
    """The error for an answer whose status is not 2xx."""
    said = _refusal(body)
    error = _error(provider, status, said, secret, retry_after=asked_wait(headers, body))
    error.uncharged = status not in _MAYBE_CHARGED
    return error


def from_stream(provider: str, error: object, *, secret: str | None = None, partial: str = "") -> ModelError:
    """The error for an `error` member inside a stream that began well."""
    said = _described(error)
    status = said.status
    if status is None and (match := _STATUS_IN_TEXT.search(said.message)):
        status = int(match[1])
    return _error(provider, status or 500, said, secret, partial=partial or None)


def from_http_failure(provider: str, failure: HttpFailure, *, partial: str = "") -> ModelError:
    """The error for no answer, or a part of one."""
    if failure.kind == "first_byte":
        return _made(provider, "timeout", "response_timeout", str(failure))
    error = _made(provider, "transient", "network_error", str(failure), partial=partial or None)
    error.uncharged = not failure.sent
    return error


def broken_answer(provider: str, problem: str, *, partial: str = "") -> ModelError:
    """The error for an answer that is complete but is not what the protocol says."""
    return _made(provider, "invalid_output", "invalid_response", problem, partial=partial or None)


def content_filtered(provider: str, reason: str, *, partial: str = "") -> ModelError:
    """The error for an answer that the provider withheld or the model refused."""
    return _made(provider, "agent", "content_filtered", reason, partial=partial or None)


def redact(text: str, secret: str | None) -> str:
    """The text without the secret and without what looks like a key, at most 500 characters."""
    if secret:
        text = text.replace(secret, "[redacted]")
    text = _KEY_LIKE.sub("[redacted]", text)
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
    category, code = _classify(status, said.codes)
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


def _classify(status: int, codes: frozenset[str]) -> tuple[Category, str]:
    if status == 402 or (status in (403, 429) and codes & _QUOTA):
        return "quota", "insufficient_quota"
    if status == 429:
        return "rate_limited", "rate_limited"
    if status in (401, 403):
        return "auth", "authentication_failed"
    if status == 404 or codes & _MODEL:
        return "auth", "model_not_found"
    if status == 408 or status >= 500:
        return "transient", "server_error"
    if codes & _CONTEXT:
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
) -> ModelError:
    info = ErrorInfo(
        category=category,
        code=code,
        message=message,
        retryable=category in _RETRYABLE,
        http_status=status,
        provider=provider,
    )
    return ModelError(info, retry_after=retry_after, partial=partial)


def _refusal(body: bytes) -> _Refusal:
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Refusal(_one_line(body.decode("utf-8", "replace")), frozenset(), None)
    members = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    return _described(members.get("error") or members)


def _described(error: object) -> _Refusal:
    """Message and codes of an error object; servers differ in which members they give."""
    if not isinstance(error, dict):
        return _Refusal(_one_line(str(error)), frozenset(), None)
    members = cast("dict[str, Any]", error)
    message = members.get("message") or members.get("detail") or ""
    codes: set[str] = {v for k in ("code", "type") if isinstance(v := members.get(k), str)}
    inner = members.get("innererror")
    if isinstance(inner, dict) and isinstance(code := cast("dict[str, Any]", inner).get("code"), str):
        codes.add(code)
    numbers = (members.get("status"), members.get("code"), *(c for c in codes if c.isdecimal()))
    status = next((int(n) for n in numbers if isinstance(n, int | str) and _is_status(n)), None)
    return _Refusal(
        _one_line(message if isinstance(message, str) else str(message)), frozenset(codes), status
    )


def _is_status(number: int | str) -> bool:
    return str(number).isdecimal() and 400 <= int(number) < 600


def _one_line(text: str) -> str:
    return " ".join(text.split())
