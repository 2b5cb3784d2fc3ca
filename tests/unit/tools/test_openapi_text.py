"""An OpenAPI text gives the same value or the same error with libyaml and without (documents D4)."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

from agentflow.definition.yaml_scanner import PythonLoader
from agentflow.tools import openapi_text
from agentflow.tools.openapi_text import BrokenDocument, parse_openapi

needs_libyaml = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML came without libyaml")

DOCUMENT = """\
openapi: 3.1.0
info: {title: 'A "shop"', version: "1.0"}   # a comment
paths:
  /items/{id}:
    get:
      operationId: get_item
      parameters:
        - {name: id, in: path, required: true, schema: &id {type: integer, minimum: -1.5e3}}
        - name: also
          in: query
          schema: *id
      responses:
        200: {description: 'folded
            text'}
        404:
          description: |
            no
            such
"""
SNIPPETS = [
    "\t",
    ": ",
    "- ",
    "? ",
    "#",
    "&a ",
    "*a",
    "!!str ",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "'",
    '"',
    "{",
    "]",
]
SNIPPETS += [
    "\\U00110000",
    "\r",
    "\u2028",
    "\x85",
    "\n",
    "  ",
    "|2\n",
    "<<: ",
    "é",
    "\U0001f600",
    "no",
    "~",
    "\x07",
]

TEXTS = {
    "tab behind a key": ("openapi:\t3.1.0\n", {"openapi": "3.1.0"}),
    "question mark in a flow": ("required: [quali? y]\n", {"required": ["quali? y"]}),
    "second document": ("a: 1\n---\nb: 2\n", "2:1: a second document is not read"),
    "open bracket": ("a: [1, 2\nb: 3\n", None),
    "open quote": ("a: 'x\nb: 3\n", None),
    "tab as indentation": ("a:\n\tb: 1\n", None),
    "control character": ("a: \x07\n", "it holds a character that YAML does not allow"),
    "unknown alias": ("a: *b\n", "1:4: an alias stands inside its own anchor, or has none"),
    "empty": ("", None),
    "JSON": ('{"a": tru}', "1:11: the text is not JSON here"),
}


def outcome(text: str) -> Any:
    try:
        return parse_openapi(text.encode())
    except BrokenDocument as broken:
        return f"BROKEN {broken}"


def outcomes(monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[Any, Any]:
    """Return what each parser of PyYAML makes of a text."""
    monkeypatch.setattr(openapi_text, "_loader", getattr(yaml, "CSafeLoader", PythonLoader))
    fast = outcome(text)
    monkeypatch.setattr(openapi_text, "_loader", PythonLoader)
    return fast, outcome(text)


def mutated(seed: int) -> str:
    random_ = random.Random(seed)
    text = DOCUMENT
    for _ in range(random_.randint(1, 3)):
        at = random_.randrange(len(text))
        action = random_.randrange(3)
        if action == 0:
            text = text[:at] + random_.choice(SNIPPETS) + text[at:]
        elif action == 1:
            text = text[:at] + text[at + random_.randint(1, 4) :]
        else:
            other = random_.randrange(len(text))
            text = text[:at] + text[other : other + random_.randint(1, 12)] + text[at:]
    return text


@needs_libyaml
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_gives_the_same_with_both_parsers(monkeypatch: pytest.MonkeyPatch, name: str):
    text, expected = TEXTS[name]
    fast, slow = outcomes(monkeypatch, text)
    assert fast == slow
    if expected is not None:
        assert slow == (f"BROKEN {expected}" if isinstance(expected, str) else expected)


@needs_libyaml
def test_mutated_texts_give_the_same_with_both_parsers(monkeypatch: pytest.MonkeyPatch):
    broken = 0
    for seed in range(700):
        text = mutated(seed)
        fast, slow = outcomes(monkeypatch, text)
        assert fast == slow, (seed, text)
        broken += isinstance(slow, str) and slow.startswith("BROKEN")
    assert 100 < broken < 600


@needs_libyaml
def test_a_usual_text_is_read_by_the_fast_parser(monkeypatch: pytest.MonkeyPatch):
    def fail(text: str) -> Any:
        raise AssertionError("the parser in Python was asked")

    monkeypatch.setattr(openapi_text, "PythonLoader", fail)
    assert parse_openapi(DOCUMENT.encode())["paths"]["/items/{id}"]["get"]["responses"]["404"] == {
        "description": "no\nsuch\n"
    }
