"""Errors inside a run are data: the error object and its categories (page 000 §9)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = ["Category", "ErrorInfo"]

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
