"""Patterns of schemas: the answers of `re.search`, in bounded work."""

from __future__ import annotations

import random
import re

import pytest

from agentflow.definition.patterns import MAX_EFFORT, Effort, Pattern, TooCostly, compile_pattern

ATOMS = [
    "a",
    "b",
    "[ab]",
    "[^a]",
    ".",
    r"\w",
    r"\s",
    r"\d",
    r"\n",
    "^",
    "$",
    r"\b",
    r"\B",
    r"\A",
    r"\Z",
    "é",
    "(?:)",
]
REPEATS = ["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?", "??"]


def written(chance: random.Random, depth: int) -> str:
    if depth == 0:
        return chance.choice(ATOMS)
    match chance.randrange(5):
        case 0:
            return written(chance, depth - 1) + written(chance, depth - 1)
        case 1:
            return f"(?:{written(chance, depth - 1)}|{written(chance, depth - 1)})"
        case 2:
            return f"({written(chance, depth - 1)}){chance.choice(REPEATS)}"
        case 3:
            return f"({written(chance, depth - 1)})"
        case _:
            return written(chance, depth - 1) + chance.choice(ATOMS)


def test_all_ways_at_once_answer_as_python_does():
    compared = 0
    for seed in range(2_000):
        chance = random.Random(seed)
        flags = chance.choice(["", "", "(?i)", "(?s)", "(?a)"])
        source = flags + written(chance, chance.randint(0, 4))
        pattern, python = Pattern(source), re.compile(source)
        automaton = pattern._all_at_once
        assert automaton is not None, source
        for _ in range(4):
            text = "".join(chance.choice("abB \n1é_") for _ in range(chance.randint(0, 7)))
            expected = python.search(text) is not None
            assert automaton.found(text, Effort()) == expected, (source, text)
            assert pattern.found(text, Effort()) == expected, (source, text)
            compared += 1
    assert compared == 8_000


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        (r"^(a+)+$", "a" * 20_000 + "!", False),
        (r"^(a+)+$", "a" * 20_000, True),
        (r"(x+x+)+y", "x" * 5_000, False),
        (r"^(\w+\s?)*$", "word " * 4_000 + "!", False),
        (r"a*a*a*a*b", "a" * 20_000, False),
        (r"(a|a|a)*b", "a" * 20_000, False),
        (r"(?:a|a)(?:a|a)" * 20 + "b", "a" * 5_000, False),
        (r"^([a-z]+-)*[a-z]+$", "ab-" * 5_000 + "x", True),
        (r"^.{0,5000}$", "x" * 5_000, True),
        (r"^.{0,5000}$", "x" * 5_001, False),
        (r"^[a-z]+$", "x" * 1_000_000, True),
        (r"^\d{4}-\d{2}-\d{2}$", "2024-01-31", True),
        (r"(?=.*\d)(?=.*[a-z]).{8,}", "abcdefg1", True),
        (r"\bend\b", "the end.", True),
    ],
)
def test_work_is_bounded(source: str, text: str, found: bool):
    effort = Effort()
    pattern = compile_pattern(source)
    assert pattern.bounded
    assert pattern.found(text, effort) is found
    assert 0 < MAX_EFFORT - effort.left <= MAX_EFFORT


@pytest.mark.parametrize("source", [r"(a)\1+$", r"(?=(a+)+$)a", r"(?:(?!b)a|aa)*c", r"((?>a+))+b"])
def test_what_may_try_too_many_ways_is_told_before(source: str):
    pattern = compile_pattern(source)
    assert not pattern.bounded
    with pytest.raises(TooCostly):
        pattern.found("aaaa", Effort())


@pytest.mark.parametrize("source", [r"((a{1,1000}){1,1000}){1,1000}", r"(?:a?){50000}"])
def test_huge_repeats_are_not_built(source: str):
    assert not compile_pattern(source).bounded


def test_effort_runs_out():
    effort = Effort(1_000)
    with pytest.raises(TooCostly):
        compile_pattern(r"(a+)+$").found("a" * 2_000, effort)


def test_the_same_pattern_judges_many_texts_with_little_memory():
    pattern = compile_pattern(r"^(?:[^x]+x?)+$")
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(50))
        assert pattern.found(text, Effort())
    automaton = pattern._all_at_once
    assert automaton is not None
    assert len(automaton._steps) <= 5_000
