"""Diagnostics as text: the line that page 001 §2 fixes, the hint, and the source line with what is meant
underlined. Problems of one line share its excerpt.

Sources are not trusted: what a terminal would obey is shown as `?`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.cli.output import printable, styled

if TYPE_CHECKING:
    from agentflow.definition.diagnostics import Diagnostic

__all__ = ["Style", "excerpt", "render_diagnostic", "render_diagnostics"]

Style = Callable[[str, str], str]
"""A text and a style (`red`, `bold` …) to the text in that style."""

_BREAK = re.compile(r"\r\n|\n|\r")
_TOKEN = re.compile(r"""\"(?:[^\"\\]|\\.)*\"|'[^']*'|[\w$][\w.$-]*|[=!<>&|]+|\S""")
_MAX_BYTES = 1 << 20
_WIDTH = 100
_TAB = 4
_CUT = "…"
_COLOURS = {"error": "red", "warning": "yellow"}


def render_diagnostics(diagnostics: Sequence[Diagnostic], style: Style = styled) -> str:
    """Render diagnostics in their order; each file that they name is read once."""
    texts: dict[str, list[str]] = {}
    blocks: list[str] = []
    for group in _groups(diagnostics):
        file = group[0].file
        if file is not None and file not in texts:
            texts[file] = _lines(file)
        blocks.append(_render(group, texts.get(file or "", []), style))
    return "\n".join(blocks)


def render_diagnostic(diagnostic: Diagnostic, lines: Sequence[str], style: Style = styled) -> str:
    """Return `FILE:LINE:COL: error CODE: message`, `  hint: …`, then the line of `lines` it points at."""
    return _render([diagnostic], lines, style)


def excerpt(line: str, columns: Sequence[int], margin: str, style: Style = styled) -> list[str]:
    """Return the source line behind `margin` and, below it, the tokens at `columns` (from 1, code points,
    ascending) underlined. A long line is cut around them."""
    begin, end = _window(line, columns)
    head, tail = _CUT if begin else "", _CUT if end < len(line) else ""
    source = margin + head + "".join(_shown(c) for c in line[begin:end]).rstrip() + tail
    marks, at = " " * len(head), begin
    for column in columns:
        start = min(column - 1, end)
        if start < at:
            continue  # inside the token before
        stop = min(start + _extent(line, start), end)
        cells = max(1, sum(_cells(c) for c in line[start:stop]))
        marks += " " * sum(_cells(c) for c in line[at:start])
        marks += style("^" + "~" * (cells - 1), "red")
        at = max(stop, start)
    return [source, " " * (len(margin) - 2) + "| " + marks]


def _render(group: Sequence[Diagnostic], lines: Sequence[str], style: Style) -> str:
    parts: list[str] = []
    for d in group:
        place = ":".join(str(p) for p in (d.file, d.line, d.column) if p is not None)
        head = f"{style(printable(place) + ':', 'bold')} " if place else ""
        parts.append(f"{head}{style(d.severity, _COLOURS[d.severity])} {d.code}: {printable(d.message)}")
        if d.hint:
            parts.append(f"  {style('hint:', 'cyan')} {printable(d.hint)}")
    line = group[0].line
    if line is not None and line <= len(lines):
        for columns in _together(lines[line - 1], sorted({d.column for d in group if d.column is not None})):
            parts += excerpt(lines[line - 1], columns, f"{line:>5} | ", style)
    return "\n".join(parts)


def _groups(diagnostics: Sequence[Diagnostic]) -> Iterator[list[Diagnostic]]:
    """Group neighbours that point at the same line."""
    group: list[Diagnostic] = []
    for d in diagnostics:
        if group and (d.line is None or (d.file, d.line) != (group[0].file, group[0].line)):
            yield group
            group = []
        group.append(d)
    if group:
        yield group


def _together(line: str, columns: list[int]) -> Iterator[list[int]]:
    """Group columns that one excerpt of the line can show."""
    group: list[int] = []
    for column in columns:
        if group and not _fits(line) and not _fits(line[group[0] - 1 : column], _WIDTH // 2):
            yield group
            group = []
        group.append(column)
    if group:
        yield group


def _window(line: str, columns: Sequence[int]) -> tuple[int, int]:
    """Return the part of the line that is shown: all of it, or what fits with a third of it before the
    columns."""
    if _fits(line):
        return 0, len(line)
    begin = min(columns[0] - 1, len(line))
    before = _WIDTH // 3
    while begin > 0 and before > 0:
        begin -= 1
        before -= _cells(line[begin])
    end, left = begin, _WIDTH
    while end < len(line) and left > 0:
        left -= _cells(line[end])
        end += 1
    return begin, end


def _extent(line: str, start: int) -> int:
    """Return how many characters the token at `start` has; of a long one, as many as an excerpt can show."""
    token = _TOKEN.match(line[start : start + _WIDTH])
    return token.end() if token else 1


def _shown(character: str) -> str:
    """Return a character that takes exactly `_cells` cells; what cannot be shown is `?`."""
    if character == "\t":
        return " " * _TAB
    return character if character.isprintable() else "?"


def _fits(text: str, cells: int = _WIDTH) -> bool:
    """Return whether a text takes at most that many cells; one of too many characters never does."""
    return len(text) <= 2 * cells and sum(_cells(c) for c in text) <= cells


def _cells(character: str) -> int:
    if character == "\t":
        return _TAB
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _lines(file: str) -> list[str]:
    """Return the lines of a source file; none when it cannot be read (the diagnostic says so itself)."""
    path = Path(file)
    try:
        if not path.is_file():
            return []
        with path.open("rb") as stream:
            text = stream.read(_MAX_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return []
    return _BREAK.split(text)
