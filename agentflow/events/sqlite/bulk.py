"""Many rows in one statement.

`executemany` takes and gives back the interpreter for every row. Beside a loop that is never idle each of
these turns costs the writing thread a switch interval, so that it hardly gets anywhere; a statement of many
rows has one turn.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

__all__ = ["Bulk"]

_MOST = 512  # rows; more in one statement gain nothing


class Bulk:
    """A statement with a list of rows in its middle: `before`, `(?, ?), (?, ?)`, `after`."""

    def __init__(self, before: str, columns: int, after: str = "") -> None:
        self._columns = columns
        row = f"({', '.join('?' * columns)})"
        self._statements: list[tuple[int, str]] = []  # a size that is a power of two, the largest first
        size = _MOST
        while size:
            self._statements.append((size, f"{before} {', '.join([row] * size)} {after}"))
            size //= 2

    def execute(self, db: sqlite3.Connection, values: Sequence[Any]) -> None:
        """Run it for all rows, in order; `values` are the columns of the rows one after another."""
        width, start, left = self._columns, 0, len(values) // self._columns
        if left == 1:
            db.execute(self._statements[-1][1], values)
            return
        for size, statement in self._statements:
            while left >= size:
                stop = start + size * width
                db.execute(statement, values[start:stop])
                start, left = stop, left - size
