"""A text and the places in it: of an index, and of the characters inside a scalar (page 001 §2, rule 6).

Answers stay cheap for hostile texts: thousands of places in one long scalar cost one look at it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Literal

from agentflow.definition.source_tree import Node, Place, Scalar

__all__ = ["Lines", "Media", "Source"]

Media = Literal["yaml", "json"]

_BREAK = re.compile(r"\r\n|\n|\r")
_COMMENT = re.compile(r"[ \t]+#")


class Lines:
    """Index in a text → (line, column), both from 1, in code points."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in _BREAK.finditer(text))]

    def place(self, index: int) -> Place:
        """Return the line and column of the character at `index`."""
        line = bisect_right(self._starts, index)
        return line, index - self._starts[line - 1] + 1

    def bounds(self, line: int) -> tuple[int, int]:
        """Start of a line and start of the next one; the end of the text counts as far away."""
        end = self._starts[line] if line < len(self._starts) else 1 << 62
        return self._starts[line - 1], end


class Source:
    """A text and the places inside its scalars."""

    def __init__(self, text: str, media: Media, file: str | None = None) -> None:
        self.text = text
        self.media: Media = media
        self.file = file
        self._lines: Lines | None = None
        self._last: tuple[Node, Callable[[int], Place]] | None = None

    @property
    def lines(self) -> Lines:
        """The line table, made when first needed."""
        if self._lines is None:
            self._lines = Lines(self.text)
        return self._lines

    def place(self, node: Node, offset: int) -> Place:
        """Return the place of the character at `offset` of a scalar's value.

        Exact for a plain or quoted scalar on one line without escapes and for a literal block; else
        the place where the scalar starts.
        """
        if self._last is None or self._last[0] is not node:
            self._last = (node, self._inside(node))
        return self._last[1](offset)

    def is_cut_by_comment(self, node: Node) -> bool:
        """Return whether YAML ended this plain scalar at ` #`."""
        if not isinstance(node, Scalar) or node.index is None or not isinstance(node.value, str):
            return False
        if self.media != "yaml" or node.style != "plain":
            return False
        return _COMMENT.match(self.text, node.index + len(node.value)) is not None

    def _inside(self, node: Node) -> Callable[[int], Place]:
        """Return the function from offsets in the value of a scalar to places."""
        line, column = node.line, node.column
        if (
            isinstance(node, Scalar)
            and isinstance(node.value, str)
            and line is not None
            and column is not None
        ):
            if node.style == "literal" and node.index is not None:
                return _Block(self, node.value, line, column).place
            shift = self._shift(node, node.value)
            if shift is not None:
                return lambda offset: (line, column + shift + offset)
        return lambda offset: (line, column)

    def _shift(self, node: Scalar, value: str) -> int | None:
        """Return how far behind the start of a scalar its text begins; None if it is not written as it
        reads."""
        if node.index is None or node.style not in ("plain", "single", "double"):
            return None
        shift = 0 if node.style == "plain" else 1
        begin = node.index + shift
        escapes = {"single": "'", "double": "\\"}.get(node.style)
        if escapes is not None and escapes in value:
            return None
        return shift if self.text.startswith(value, begin) else None


class _Block:
    """The rows of a literal block, each found again in the source."""

    def __init__(self, source: Source, value: str, line: int, column: int) -> None:
        self._source = source
        self._rows = value.split("\n")
        self._header = line, column
        self._starts = [0]
        for row in self._rows:
            self._starts.append(self._starts[-1] + len(row) + 1)
        self._indents: dict[int, int | None] = {}

    def place(self, offset: int) -> Place:
        row = min(bisect_right(self._starts, offset), len(self._rows)) - 1
        if row not in self._indents:
            self._indents[row] = self._indent(row)
        indent = self._indents[row]
        if indent is None:
            return self._header
        return self._header[0] + 1 + row, indent + offset - self._starts[row] + 1

    def _indent(self, row: int) -> int | None:
        text = self._rows[row]
        start, end = self._source.lines.bounds(self._header[0] + 1 + row)
        line = self._source.text[start:end].rstrip("\r\n")
        indent = len(line) - len(text)
        if indent < 0 or line[:indent].strip(" ") or not line.endswith(text):
            return None
        return indent
