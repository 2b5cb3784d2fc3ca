"""Errors inside a run are data: the error object and its categories (page 000 §9)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["Category", "ErrorInfo", "describe_exception"]

Category = Literal[
    "transient",
    "timeout",
    "rate_limited",
    "quota",
    "invalid_input",
    "expression",
    "auth",
    "invalid_output",
    "agent",
    "tool",
    "policy",
    "budget",
    "cancelled",
    "interrupted",
    "system",
]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, as it stands in events. `message` must hold no secret."""

    category: Category
    code: str
    message: str
    retryable: bool = False
    details: dict[str, Any] | None = None
    http_status: int | None = None
    provider: str | None = None
    path: str | None = None
    cause: ErrorInfo | None = None


_MAX_TEXT = 8_192


def describe_exception(error: BaseException) -> str:
    """Return class and text of an exception that users raised: at most 8,192 characters that JSON can hold,
    also if making its text raises."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception as failed:
        return f"{kind}, whose text cannot be made: {type(failed).__name__}"
    if len(text) > _MAX_TEXT:
        text = f"{text[:_MAX_TEXT]}… ({len(text) - _MAX_TEXT:,} more characters)"
    text = text.encode("utf-8", "backslashreplace").decode()
    return f"{kind}: {text}" if text else kind
