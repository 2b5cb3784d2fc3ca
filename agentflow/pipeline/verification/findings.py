"""Results of single checks, and the exchange of values between the modules of the verifier."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Content", "Finding", "Outcome", "failed", "passed", "unchecked"]

Outcome = Literal["pass", "fail", "unchecked"]


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rule that an artifact, or an output, was held against."""

    name: str
    result: Outcome
    code: str | None = None
    detail: str | None = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a Check looks at. `body` None: it was not taken into memory, and `why` says why."""

    exists: bool
    size: int = 0
    sha256: str | None = None
    body: bytes | None = None
    why: str | None = None


def passed(name: str) -> Finding:
    """Return a check that holds."""
    return Finding(name=name, result="pass")


def failed(name: str, code: str, detail: str | None = None) -> Finding:
    """Return a check that does not hold."""
    return Finding(name=name, result="fail", code=code, detail=detail)


def unchecked(name: str, detail: str) -> Finding:
    """Return a check that was not made, which never counts as passed."""
    return Finding(name=name, result="unchecked", detail=detail)
