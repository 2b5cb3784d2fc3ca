"""A hundred documents with one mistake each: found, in its line, once, with a way out (page 001 §2, §3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from agentflow.definition import check_text

FOLDER = Path(__file__).parent / "mistakes"
MARK = "▸"


class Mistake(NamedTuple):
    title: str
    code: str
    document: str
    line: int

    def __str__(self) -> str:
        return self.title


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def read_mistakes() -> list[Mistake]:
    """Every case of `mistakes.yaml` with its document."""
    rows: list[dict[str, Any]] = yaml.safe_load(read("mistakes.yaml"))
    return [_mistake(row) for row in rows]


def _mistake(row: dict[str, Any]) -> Mistake:
    text = read(f"{row.get('of', 'refunds')}.yaml")
    for old, new in row["change"]:
        assert text.count(old.replace(MARK, "")) == 1, f"{row['title']}: {old!r} is not there once"
        text = text.replace(old, new)
    assert text.count(MARK) == 1, row["title"]
    return Mistake(
        row["title"], row["code"], text.replace(MARK, ""), text[: text.index(MARK)].count("\n") + 1
    )


MISTAKES = read_mistakes()


@pytest.mark.parametrize("name", ["refunds.yaml", "essay.yaml"])
def test_a_document_without_a_mistake_gets_no_diagnostic(name: str):
    assert check_text(read(name), media="yaml") == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_reported_once_in_its_line(mistake: Mistake):
    found = check_text(mistake.document, media="yaml")
    listing = "\n".join(d.render() for d in found)
    assert [(d.code, d.line) for d in found] == [(mistake.code, mistake.line)], listing


def test_there_are_a_hundred_mistakes_and_most_have_a_hint():
    assert len({mistake.title for mistake in MISTAKES}) == len(MISTAKES) >= 100
    hints = [d.hint for m in MISTAKES for d in check_text(m.document, media="yaml")]
    assert sum(hint is not None for hint in hints) >= 0.8 * len(MISTAKES)


def test_the_figures_of_the_corpus():
    """At least 95 of 100 found, none misplaced, none reported twice, a hint for at least 80."""
    reports = [(mistake, check_text(mistake.document, media="yaml")) for mistake in MISTAKES]
    found = [m for m, report in reports if any(d.code == m.code for d in report)]
    misplaced = [m.title for m, report in reports if any(d.line != m.line for d in report)]
    doubled = [m.title for m, report in reports if len(report) > 1]
    assert (len(found) >= 95, misplaced, doubled) == (True, [], [])
