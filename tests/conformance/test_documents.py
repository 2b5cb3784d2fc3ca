"""Documents and exactly the diagnostics that they get: code, place, path and hint (page 001 §3)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from agentflow.definition import check_text, load_text
from agentflow.engine.plan import compile_plan
from agentflow.errors import DefinitionError

AGENT = "agent: {systemPrompt: p, input: x, resultSchema: true, attachedFunctions: none}"
MARK = "▸"
EXPECTED = re.compile(r"> (\w+) (\S.*?)(?: \| (.*))?")
NOT_IN_DOCUMENTS = {"E_FILE", "E_LIMIT"}
"""Codes of whole files, which have their own tests in test_document_files."""


class Wanted(NamedTuple):
    code: str
    line: int
    column: int
    path: str
    hint: str | None


class Case(NamedTuple):
    code: str
    title: str
    document: str
    wanted: list[Wanted]


def _case(part: str) -> Case:
    head, _, rest = part.partition("\n")
    code, _, title = head.partition(": ")
    rows: list[tuple[str, str, str | None]] = []
    while rest.startswith(">"):
        line, _, rest = rest.partition("\n")
        match = EXPECTED.fullmatch(line)
        assert match, line
        rows.append((match[1], "" if match[2] == "-" else match[2], match[3]))
    places: list[tuple[int, int]] = []
    lines = rest.replace("@agent", AGENT).split("\n")
    for number, line in enumerate(lines, 1):
        pieces = line.split(MARK)
        places += [(number, len("".join(pieces[:i])) + 1) for i in range(1, len(pieces))]
        lines[number - 1] = "".join(pieces)
    wanted = [
        Wanted(code, *place, path, hint) for (code, path, hint), place in zip(rows, places, strict=True)
    ]
    return Case(code, title, "\n".join(lines), wanted)


def _cases() -> list[Case]:
    path = Path(__file__).parent / "documents" / "diagnostics.cases"
    parts = re.split(r"^=== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [_case(part) for part in parts[1:]]


CASES = _cases()
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}: {case.title}")


@each_case
def test_a_document_gets_exactly_its_diagnostics(case: Case):
    found = check_text(case.document, media="yaml")
    listing = "\n".join(d.render() for d in found)
    assert [(d.code, d.line, d.column, d.path or "") for d in found] == [w[:4] for w in case.wanted], listing
    for diagnostic, wanted in zip(found, case.wanted, strict=True):
        assert diagnostic.severity == ("error" if diagnostic.code.startswith("E_") else "warning")
        assert diagnostic.message
        assert wanted.hint is None or diagnostic.hint == wanted.hint


@each_case
def test_a_case_is_about_its_code(case: Case):
    assert {wanted.code for wanted in case.wanted} == ({case.code} if case.code != "ok" else set())


@each_case
def test_a_document_loads_unless_it_has_an_error(case: Case):
    found = check_text(case.document, media="yaml")
    if any(wanted.code.startswith("E_") for wanted in case.wanted):
        with pytest.raises(DefinitionError) as caught:
            load_text(case.document, media="yaml")
        assert caught.value.diagnostics == found
    else:
        definition = load_text(case.document, media="yaml")
        assert definition.warnings == found
        assert compile_plan(definition.workflow).step_ids


@each_case
def test_strict_turns_warnings_into_errors_and_keeps_the_rest(case: Case):
    found = check_text(case.document, media="yaml", strict=True)
    assert [d[0] for d in case.wanted] == [d.code for d in found]
    assert all(d.severity == "error" for d in found)
    if case.wanted:
        with pytest.raises(DefinitionError):
            load_text(case.document, media="yaml", strict=True)


def test_every_code_of_phase_l_has_a_case():
    codes = {case.code for case in CASES} - {"ok"}
    assert codes >= PHASE_L - NOT_IN_DOCUMENTS
    assert codes <= PHASE_L


# fmt: off
PHASE_L = {
    "E_FILE", "E_LIMIT", "E_SYNTAX", "E_YAML_SUBSET", "E_DUPLICATE_KEY", "W_YAML_AMBIGUOUS",
    "E_TYPE", "E_REQUIRED", "E_UNKNOWN_KEY", "E_VALUE", "E_VERSION", "W_VERSION_MISSING",
    "W_VERSION_TYPE", "E_FORMAT", "E_NO_STEPS", "E_NO_AGENTS", "E_AGENT_FIELD", "E_DUPLICATE_ID",
    "E_RETRY_POLICY", "W_INPUT_MISSING", "W_RESULT_SCHEMA_MISSING", "W_ALL_FUNCTIONS",
    "W_DUPLICATE", "W_SERVICE_UNDECLARED", "E_UNKNOWN_DEPENDENCY", "E_CYCLE", "E_RESULT_SCHEMA",
    "E_INPUT_SCHEMA", "E_SCHEMA", "E_REF", "E_EXPR_SYNTAX", "E_EXPR_UNCLOSED", "E_EXPR_LIMIT",
    "E_EXPR_NAME", "E_EXPR_FUNCTION", "E_EXPR_ARITY", "E_EXPR_WHOLE", "E_EXPR_NOT_ALLOWED",
    "E_EXPR_SCOPE", "E_UNKNOWN_STEP", "E_REF_NOT_DEPENDENCY", "E_UNKNOWN_PROPERTY",
    "E_UNKNOWN_INPUT", "E_FOR_EACH_TYPE", "W_IF_STRING", "W_UNKNOWN_RESULT_PROPERTY",
    "W_PROMPT_INJECTION", "E_INPUT_INVALID",
}
# fmt: on
