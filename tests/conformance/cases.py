"""Reads the cases of the conformance suite: documents with what page 001 says of them, as data.

How a case is written stands in `documents/README.md`.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, NamedTuple

import yaml

__all__ = ["Case", "Wanted", "read_cases", "read_rows"]

FOLDER = Path(__file__).parent
AGENT = "agent: {systemPrompt: p, input: x, resultSchema: true, attachedFunctions: none}"
AGENT_JSON = '"agent": {"systemPrompt": "p", "input": "x", "resultSchema": true, "attachedFunctions": "none"}'
MARK = "▸"


class Wanted(NamedTuple):
    """A diagnostic that a document must get. A hint of None: any hint."""

    code: str
    line: int | None
    column: int | None
    path: str
    hint: str | None


class Case(NamedTuple):
    """`raw` has every other key of the case as it was written."""

    file: str
    title: str
    code: str | None
    near: list[str]
    document: str | bytes
    wanted: list[Wanted]
    raw: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.file}: {self.code or 'near ' + ' '.join(self.near)}: {self.title}"


def read_rows(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Every case below a folder of this suite, with the name of its file."""
    found: list[tuple[str, dict[str, Any]]] = []
    for path in sorted((FOLDER / folder).glob("*.yaml")):
        rows: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
        found += [(path.stem, row) for row in rows]
    return found


def read_cases(folder: str) -> list[Case]:
    """The document cases below a folder."""
    return [_case(file, row) for file, row in read_rows(folder)]


def _case(file: str, row: dict[str, Any]) -> Case:
    document, places = _document(row)
    expect: list[dict[str, Any]] = row.get("expect", [])
    wanted: list[Wanted] = []
    marks = iter(places)
    for entry in expect:
        place = tuple(entry["place"]) if "place" in entry else next(marks)
        wanted.append(Wanted(entry["code"], place[0], place[1], entry.get("path", ""), entry.get("hint")))
    assert next(marks, None) is None, f"{row['title']}: more marks than diagnostics"
    return Case(file, row["title"], row.get("code"), row.get("near", []), document, wanted, row)


def _document(row: dict[str, Any]) -> tuple[str | bytes, list[tuple[int, int]]]:
    if "bytes" in row:
        return base64.b64decode(row["bytes"]), []
    text = row["document"]
    if isinstance(text, list):
        text = "".join(part if isinstance(part, str) else _repeated(part) for part in text)
    return _unmarked(text.replace("@agent_json", AGENT_JSON).replace("@agent", AGENT))


def _repeated(part: dict[str, Any]) -> str:
    return "".join(part["repeat"].replace("#n", str(i)) for i in range(part["times"]))


def _unmarked(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without marks, and where they stood: line and column from 1."""
    places: list[tuple[int, int]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        pieces = line.split(MARK)
        places += [(number, len("".join(pieces[:i])) + 1) for i in range(1, len(pieces))]
        lines[number - 1] = "".join(pieces)
    return "\n".join(lines), places
