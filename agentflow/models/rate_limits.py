"""Rate limits of a provider's key: those that are configured, and those that its answers report."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["RateLimits", "ReportedLimit"]


class RateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be sent within any 60 s; None is no limit. Tokens are those read and written together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


class ReportedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a limit, as an answer says, until it is full again after `resets_after` seconds."""

    kind: Literal["requests", "tokens"]
    remaining: int
    resets_after: float
