"""Collects the diagnostics of one document, so that all problems are told at once (page 001 §2).

Hints that need a search among known names are computed last, for the diagnostics that are shown, with
bounded effort: a hostile document must not buy time with misspelt names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from agentflow.definition.diagnostics import Diagnostic, Severity, nearest

if TYPE_CHECKING:
    from agentflow.definition.source_tree import Place

__all__ = ["MAX_DIAGNOSTICS", "NOWHERE", "Fatal", "Report", "known_names", "shown"]

MAX_DIAGNOSTICS = 200
NOWHERE: Place = (None, None)

_SEARCH_EFFORT = 1_000_000
_LONGEST_MESSAGE = 400
_MOST_NAMES = 12
_YIELDING = frozenset({"W_YAML_AMBIGUOUS", "W_LITERAL_SECRET"})


class Fatal(Exception):
    """Reading cannot go on; the reason stands in the report."""


class Report:
    """Diagnostics of one file. Not shared between loads."""

    def __init__(self, file: str | None = None) -> None:
        self._file = file
        self._found: dict[tuple[str, Place, str | None], tuple[Diagnostic, _Hint]] = {}
        self._effort = _SEARCH_EFFORT

    def error(
        self, code: str, message: str, place: Place = NOWHERE, path: str | None = None, hint: _Hint = None
    ) -> None:
        """Record an error."""
        self._add("error", code, message, place, path, hint)

    def warning(
        self, code: str, message: str, place: Place = NOWHERE, path: str | None = None, hint: _Hint = None
    ) -> None:
        """Record a warning."""
        self._add("warning", code, message, place, path, hint)

    def fatal(
        self, code: str, message: str, place: Place = NOWHERE, path: str | None = None, hint: _Hint = None
    ) -> Fatal:
        """Record an error; return the exception to raise, because nothing after it can be read."""
        self._add("error", code, message, place, path, hint)
        return Fatal(code)

    def take(self, other: Report, pointer: Callable[[str], str] | None = None) -> None:
        """Record what another report of the same text has found; `pointer` translates its paths."""
        for key, (diagnostic, hint) in other._found.items():
            path = diagnostic.path
            if pointer is not None and path is not None:
                path = pointer(path)
            found = msgspec.structs.replace(diagnostic, file=self._file, path=path)
            self._found.setdefault(key, (found, hint))

    @property
    def has_errors(self) -> bool:
        """Whether an error was recorded."""
        return any(diagnostic.severity == "error" for diagnostic, _ in self._found.values())

    def did_you_mean(self, name: str, known: Collection[str]) -> Callable[[], str | None]:
        """Return a hint that is searched for only if its diagnostic is shown."""

        def search() -> str | None:
            best = self.nearest(name, known)
            return f'did you mean "{best}"?' if best is not None else None

        return search

    def nearest_or_all(self, name: str, known: Collection[str]) -> Callable[[], str | None]:
        """Return a hint as `did_you_mean` does; if no name is near, the hint has the known names, at most
        12."""

        def search() -> str | None:
            best = self.nearest(name, known)
            return f'did you mean "{best}"?' if best is not None else known_names(list(known))

        return search

    def nearest(self, name: str, known: Collection[str]) -> str | None:
        """Return the known name that is probably meant; None too when the effort of the report is used up."""
        self._effort -= len(name) * sum(
            len(k) for k in known if abs(len(k) - len(name)) <= len(name) // 3 + 1
        )
        return nearest(name, known) if self._effort > 0 else None

    def diagnostics(self, *, strict: bool = False) -> list[Diagnostic]:
        """Return all that was found, sorted by line, column, code; at most 200, the last then E_LIMIT (a
        warning if only warnings are left out, because warnings never refuse a document).

        With `strict` every warning is an error; codes stay.
        """
        found = sorted(
            self._one_for_each_cause(),
            key=lambda pair: (pair[0].line or 0, pair[0].column or 0, pair[0].code, pair[0].path or ""),
        )
        shown_count = len(found) if len(found) <= MAX_DIAGNOSTICS else MAX_DIAGNOSTICS - 1
        result = [_resolved(diagnostic, hint, strict) for diagnostic, hint in found[:shown_count]]
        if shown_count < len(found):
            last = result[-1]
            fails = strict or self.has_errors
            result.append(
                Diagnostic(
                    code="E_LIMIT",
                    severity="error" if fails else "warning",
                    message=f"{len(found) - shown_count} more problems are not shown",
                    file=self._file,
                    line=last.line,
                    column=last.column,
                    hint="fix these first",
                )
            )
        return result

    def _one_for_each_cause(self) -> list[tuple[Diagnostic, _Hint]]:
        """Return what was found, without a W_YAML_AMBIGUOUS or W_LITERAL_SECRET at the value of an error: the
        error takes the hint of the first.
        """
        ambiguous = {d.path: hint for d, hint in self._found.values() if d.code == "W_YAML_AMBIGUOUS"}
        wrong = {d.path for d, _ in self._found.values() if d.severity == "error"}
        result: list[tuple[Diagnostic, _Hint]] = []
        for diagnostic, hint in self._found.values():
            if diagnostic.code in _YIELDING and diagnostic.path in wrong:
                continue
            result.append((diagnostic, hint or ambiguous.get(diagnostic.path)))
        return result

    def _add(
        self, severity: Severity, code: str, message: str, place: Place, path: str | None, hint: _Hint
    ) -> None:
        key = (code, place, message if place[0] is not None else f"{path}\0{message}")
        if key not in self._found:
            diagnostic = Diagnostic(
                code=code,
                severity=severity,
                message=shown(message, _LONGEST_MESSAGE),
                file=self._file,
                line=place[0],
                column=place[1],
                path=path,
            )
            self._found[key] = (diagnostic, hint)


def known_names(names: list[str]) -> str | None:
    """Return the hint that lists names, at most 12 of them; None if there are none."""
    more = ", …" if len(names) > _MOST_NAMES else ""
    return f"known: {', '.join(shown(name, 40) for name in names[:_MOST_NAMES])}{more}" if names else None


_Hint = str | Callable[[], str | None] | None


def _resolved(diagnostic: Diagnostic, hint: _Hint, strict: bool) -> Diagnostic:
    text = hint() if callable(hint) else hint
    return Diagnostic(
        code=diagnostic.code,
        severity="error" if strict else diagnostic.severity,
        message=diagnostic.message,
        file=diagnostic.file,
        line=diagnostic.line,
        column=diagnostic.column,
        path=diagnostic.path,
        hint=text if text is None else shown(text, _LONGEST_MESSAGE),
    )


def shown(text: str, limit: int = 80) -> str:
    """Return a text of the document as it may stand in a message: short, on one line, printable."""
    clean = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
