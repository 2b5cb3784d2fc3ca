"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["GENERATED", "cell", "table"]

GENERATED = "This page is generated from the code."


def cell(text: object) -> str:
    """Return text as it may stand in a cell: on one line, `|` escaped."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table that ends in a newline."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell(part) for part in row) + " |\n" for row in lines)
