"""Time that a provider asks to wait: Retry-After, RetryInfo in the body, or the reset of a used-up limit; and
what its answers say is left of its limits.

It must never guess: what says no time gives None, and a limit of which something is left is not waited for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

import msgspec

from agentflow.http import retry_after
from agentflow.models.rate_limits import ReportedLimit

__all__ = ["asked_wait", "reported_limits"]

_RETRY_INFO: Final = "google.rpc.RetryInfo"
_LIMITS: Final = (
    ("x-ratelimit-remaining-{}", "x-ratelimit-reset-{}", ("requests", "tokens")),
    (
        "anthropic-ratelimit-{}-remaining",
        "anthropic-ratelimit-{}-reset",
        ("requests", "tokens", "input-tokens", "output-tokens"),
    ),
)
_REPORTS: Final = ("x-ratelimit-{1}-{0}", "anthropic-ratelimit-{0}-{1}")
_REPORTED: Final[tuple[tuple[str, Literal["requests", "tokens"]], ...]] = (
    ("requests", "requests"),
    ("tokens", "tokens"),
    ("input-tokens", "tokens"),
    ("output-tokens", "tokens"),
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def asked_wait(headers: Mapping[str, str], body: bytes) -> float | None:
    """Return the seconds after which the provider takes another request; None if it said no time.

    A header Retry-After wins over the body, the body over the limits; of several limits that are used up the
    latest reset counts.
    """
    asked = retry_after(headers)
    if asked is None:
        asked = _retry_info(body)
    return max(_resets(headers), default=None) if asked is None else asked


def reported_limits(headers: Mapping[str, str]) -> tuple[ReportedLimit, ...]:
    """Return the limits of which an answer says both how much is left and when it is full again."""
    found: list[ReportedLimit] = []
    for form in _REPORTS:
        for name, kind in _REPORTED:
            left = (headers.get(form.format(name, "remaining")) or "").strip()
            resets = _seconds((headers.get(form.format(name, "reset")) or "").strip())
            if left.isascii() and left.isdecimal() and resets is not None:
                found.append(ReportedLimit(kind=kind, remaining=int(left), resets_after=resets))
    return tuple(found)


def _retry_info(body: bytes) -> float | None:
    if b"RetryInfo" not in body:
        return None
    try:
        decoded: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(decoded, list) and decoded:  # Gemini's compatible server writes an array of one
        decoded = cast("list[Any]", decoded)[0]
    details = _member(_member(decoded, "error"), "details")
    for detail in cast("list[Any]", details) if isinstance(details, list) else []:
        if str(_member(detail, "@type")).endswith(_RETRY_INFO):
            return _seconds(str(_member(detail, "retryDelay")))
    return None


def _member(value: Any, name: str) -> Any:
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _resets(headers: Mapping[str, str]) -> Iterator[float]:
    for remaining, reset, kinds in _LIMITS:
        for kind in kinds:
            if (headers.get(remaining.format(kind)) or "").strip() != "0":
                continue
            wait = _seconds((headers.get(reset.format(kind)) or "").strip())
            if wait is not None:
                yield wait


def _seconds(text: str) -> float | None:
    """Read a duration as Go writes it (`6m0s`, `20ms`), a number of seconds, or a time in RFC 3339, which
    becomes the seconds until then. Return None for anything else."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if text and _DURATION.sub("", text) == "":
        return sum(float(count) * _UNITS[unit] for count, unit in _DURATION.findall(text))
    try:
        due = datetime.fromisoformat(text)
    except ValueError:
        return None
    return max(0.0, ((due if due.tzinfo else due.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds())
