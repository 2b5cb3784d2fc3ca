"""The same text gives the same diagnostics whether PyYAML came with libyaml or without (documents D4)."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from agentflow.definition import check_text, load_text, yaml_source
from agentflow.definition.yaml_scanner import PythonLoader, is_doubtful
from agentflow.errors import DefinitionError
from tests.unit.definition.mutations import mutated_documents

MUTATED = 500


def outcome(text: str) -> Any:
    """All that a load says: every part of every diagnostic, and what was accepted."""
    try:
        definition = load_text(text, media="yaml")
    except DefinitionError as error:
        return error.diagnostics
    return definition.hash, definition.ir_hash, definition.warnings, definition.inputs


def assert_equal_outcomes(monkeypatch: pytest.MonkeyPatch, seed: int, count: int) -> None:
    """Load mutated documents with each parser of PyYAML, and compare."""
    accepted = 0
    for text in mutated_documents(seed, count):
        monkeypatch.setattr(yaml_source, "_loader", getattr(yaml, "CSafeLoader", PythonLoader))
        fast = outcome(text)
        monkeypatch.setattr(yaml_source, "_loader", PythonLoader)
        assert outcome(text) == fast, text
        accepted += isinstance(fast, tuple)
    assert accepted >= count // 100


needs_libyaml = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML came without libyaml")


@needs_libyaml
def test_mutated_documents_get_the_same_diagnostics_from_both_parsers(monkeypatch: pytest.MonkeyPatch):
    assert_equal_outcomes(monkeypatch, 1, MUTATED)


@needs_libyaml
def test_a_usual_document_is_read_by_the_fast_parser(monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    class Counted(yaml.CSafeLoader):
        def __init__(self, text: str) -> None:
            made.append(text)
            super().__init__(text)

    monkeypatch.setattr(yaml_source, "_loader", Counted)
    text = "name: n\nagents:\n- {name: a, system_prompt: 'Is it? Yes! & so *on*: x && y'}\n"
    assert not is_doubtful(text)
    load_text(text, media="yaml")
    assert made == [text]


@pytest.mark.parametrize("text", ["name:\tjudge\n", "a: {required: [quali? y]}\n"])
def test_what_one_parser_refused_is_read_by_both(monkeypatch: pytest.MonkeyPatch, text: str):
    text += "agents: [{name: a, system_prompt: p}]\n"
    found: list[Any] = []
    for loader in (getattr(yaml, "CSafeLoader", PythonLoader), PythonLoader):
        monkeypatch.setattr(yaml_source, "_loader", loader)
        found.append(outcome(text.replace("a: {", "x-a: {")))
    assert isinstance(found[0], tuple)
    assert found[0] == found[1]


def test_no_message_of_a_parser_reaches_the_user():
    """PyYAML's texts are in its modules: no diagnostic quotes one."""
    words = ("mapping values are not allowed", "could not find expected", "<block end>", "while scanning")
    words += (
        "while parsing",
        "found character",
        "cannot start any token",
        "found unexpected",
        "found undefined",
    )
    seen = 0
    for text in mutated_documents(3, MUTATED):
        for diagnostic in check_text(text, media="yaml"):
            seen += diagnostic.code == "E_SYNTAX"
            said = f"{diagnostic.message} {diagnostic.hint}"
            assert not any(word in said for word in words), said
    assert seen > MUTATED // 10


def test_a_refused_text_of_full_size_is_judged_in_seconds():
    """The parser in Python is the slow one: it reads a text that libyaml refuses, or that is doubtful."""
    row = f"- {{name: a, system_prompt: {'word ' * 80}}}\n"
    text = "agents:\n" + row * (1_000_000 // len(row)) + "- {name: [\n"
    begin = time.process_time()
    (found,) = outcome(text)
    assert time.process_time() - begin < 10
    assert (found.code, found.line, found.column) == ("E_SYNTAX", text.count("\n"), 10)
