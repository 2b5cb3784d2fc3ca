"""Diagnostics: what is wrong with a document, where, and what to do about it (page 001 §2, §3).

Stable across releases: code, severity, path, line and column. Messages may be reworded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Literal

import msgspec

__all__ = [
    "Diagnostic",
    "DiagnosticCode",
    "Severity",
    "did_you_mean",
    "nearest",
    "or_which",
    "sort_diagnostics",
]

Severity = Literal["error", "warning"]


class DiagnosticCode(StrEnum):
    """The structural checks that document 003 names, with the code that each has in a Diagnostic."""

    UnsupportedVersion = "E_UNSUPPORTED_VERSION"
    EmptyWorkflowName = "E_EMPTY_WORKFLOW_NAME"
    EmptyWorkflow = "E_EMPTY_WORKFLOW"
    EmptyNodeId = "E_EMPTY_NODE_ID"
    DuplicateNodeId = "E_DUPLICATE_NODE_ID"
    UnknownTarget = "E_UNKNOWN_TARGET"
    MissingStart = "E_MISSING_START"
    MultipleStart = "E_MULTIPLE_START"
    MissingEnd = "E_MISSING_END"
    UnreachableNode = "E_UNREACHABLE_NODE"
    NoPathToEnd = "E_NO_PATH_TO_END"
    EmptyField = "E_EMPTY_FIELD"


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    """One problem at one place. `line` and `column` count from 1 in code points; `path` is a JSON pointer."""

    code: str
    severity: Severity
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str | None = None
    hint: str | None = None

    def render(self) -> str:
        """Return the line (two with a hint) that the CLI prints: `FILE:LINE:COL: error CODE: message`.

        What has no line, as in a document that is a Python value, ends with its JSON pointer: `(at /name)`.
        """
        place = ":".join(str(p) for p in (self.file, self.line, self.column) if p is not None)
        head = f"{place}: " if place else ""
        text = f"{head}{self.severity} {self.code}: {self.message}"
        if self.line is None and self.path:
            text += f" (at {self.path})"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


def sort_diagnostics(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Order by line, column, code; those without a position first."""
    return sorted(diagnostics, key=lambda d: (d.line or 0, d.column or 0, d.code, d.path or ""))


def did_you_mean(name: str, known: Collection[str]) -> str | None:
    """Return the hint *did you mean "X"?*, or None if no known name is near (page 001 §2)."""
    best = nearest(name, known)
    return f'did you mean "{best}"?' if best is not None else None


def or_which(name: str, known: Collection[str]) -> str:
    """Return the end of a sentence about a name that is not known: the near one, else up to 10 known ones."""
    near = did_you_mean(name, known)
    if near is not None:
        return f"; {near}"
    listed = ", ".join(list(known)[:10])
    return f"; there are {listed}{', …' if len(known) > 10 else ''}" if known else ""


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that `name` probably means, or None.

    It is equal without case, `_` and `-`; else the nearest by optimal string alignment within
    max(1, length/3), the first declared on a tie.
    """
    folded = _fold(name)
    for candidate in known:
        if candidate != name and _fold(candidate) == folded:
            return candidate
    best, best_distance = None, max(1, len(name) // 3) + 1
    for candidate in known:
        if abs(len(candidate) - len(name)) < best_distance and candidate != name:
            distance = _alignment_distance(name, candidate)
            if distance < best_distance:
                best, best_distance = candidate, distance
    return best


def _fold(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "")


def _alignment_distance(a: str, b: str) -> int:
    """Return the distance of optimal string alignment: edits and adjacent swaps, no substring edited
    twice."""
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
