"""Diagnostics as text: the line that page 001 §2 fixes, the hint, and the source line with a caret."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.cli.output import printable, styled

if TYPE_CHECKING:
    from agentflow.definition.diagnostics import Diagnostic

__all__ = ["caret", "render_diagnostic", "render_diagnostics"]

_BREAK = re.compile(r"\r\n|\n|\r")
_MAX_BYTES = 1 << 20
_WIDTH = 100
_COLOURS = {"error": "red", "warning": "yellow"}


def render_diagnostics(diagnostics: Sequence[Diagnostic]) -> str:
    """All of them, each with its excerpt; the files that they name are read once."""
    texts: dict[str, list[str]] = {}
    blocks: list[str] = []
    for diagnostic in diagnostics:
        file = diagnostic.file
        if file is not None and file not in texts:
            texts[file] = _lines(file)
        blocks.append(render_diagnostic(diagnostic, texts.get(file or "", [])))
    return "\n".join(blocks)


def render_diagnostic(diagnostic: Diagnostic, lines: Sequence[str]) -> str:
    """`FILE:LINE:COL: error CODE: message`, `  hint: …`, then the line of `lines` that it points at."""
    d = diagnostic
    place = ":".join(str(p) for p in (d.file, d.line, d.column) if p is not None)
    head = f"{styled(printable(place) + ':', 'bold')} " if place else ""
    parts = [f"{head}{styled(d.severity, _COLOURS[d.severity])} {d.code}: {printable(d.message)}"]
    if d.hint:
        parts.append(f"  {styled('hint:', 'cyan')} {printable(d.hint)}")
    if d.line is not None and d.column is not None and d.line <= len(lines):
        parts += caret(lines[d.line - 1], d.column, f"{d.line:>5} | ")
    return "\n".join(parts)


def caret(line: str, column: int, margin: str) -> list[str]:
    """The source line behind `margin` and, below it, a caret under `column` (from 1, code points)."""
    start = max(0, column - 1 - _WIDTH * 2 // 3) if len(line) > _WIDTH else 0
    shown = line[start : start + _WIDTH]
    before = line[start : column - 1]
    gap = " " * sum(_cells(c) for c in before)
    return [
        margin + "".join(_plain(c) for c in shown).rstrip(),
        " " * (len(margin) - 2) + "| " + gap + styled("^", "red"),
    ]


def _plain(character: str) -> str:
    """A character that takes exactly `_cells` cells: a tab is one blank, what cannot be shown is `?`."""
    if character == "\t":
        return " "
    return character if character.isprintable() else "?"


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _lines(file: str) -> list[str]:
    """The lines of a source file; none when it cannot be read (the diagnostic says so itself)."""
    path = Path(file)
    try:
        if not path.is_file():
            return []
        with path.open("rb") as stream:
            text = stream.read(_MAX_BYTES).decode("utf-8-sig", errors="replace")
    except OSError:
        return []
    return _BREAK.split(text)
