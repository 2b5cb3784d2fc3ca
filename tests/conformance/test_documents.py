"""Documents and exactly the diagnostics that they get: code, place, path and hint (page 001 §1 to §3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition import check_inputs, check_text, load_text
from agentflow.definition.ir import canonical_json
from agentflow.engine.graph import compile_graph
from agentflow.errors import DefinitionError
from tests.conformance.cases import Case, read_cases

CASES = read_cases("documents/diagnostics")
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def options(case: Case) -> dict[str, Any]:
    """What a case says beside its text: how it is named, and what the submission says of it."""
    return {"media": case.raw.get("media", "yaml"), "format": case.raw.get("format")}


@each_case
def test_a_document_gets_exactly_its_diagnostics(case: Case):
    found = check_text(case.document, **options(case))
    if "inputs" in case.raw:
        found = [*found, *check_inputs(load_text(case.document, **options(case)), case.raw["inputs"])[1]]
    listing = "\n".join(d.render() for d in found)
    assert [(d.code, d.line, d.column, d.path or "") for d in found] == [w[:4] for w in case.wanted], listing
    for diagnostic, wanted in zip(found, case.wanted, strict=True):
        assert diagnostic.severity == ("error" if diagnostic.code.startswith("E_") else "warning")
        assert diagnostic.message
        assert wanted.hint is None or diagnostic.hint == wanted.hint


@each_case
def test_a_case_is_about_its_code(case: Case):
    allowed = {case.code} if case.code else set(case.raw.get("also", []))
    assert {wanted.code for wanted in case.wanted} == allowed
    assert not set(case.near) & allowed


@each_case
def test_a_document_loads_unless_it_has_an_error(case: Case):
    found = check_text(case.document, **options(case))
    if any(d.severity == "error" for d in found):
        assert "graph" not in case.raw
        with pytest.raises(DefinitionError) as caught:
            load_text(case.document, **options(case))
        assert caught.value.diagnostics == found
    else:
        definition = load_text(case.document, **options(case))
        assert definition.warnings == found
        assert compile_graph(definition.workflow).step_ids
        holds(msgspec.json.decode(canonical_json(definition.workflow)), case.raw.get("graph", {}), "graph")


@each_case
def test_strict_turns_warnings_into_errors_and_keeps_the_rest(case: Case):
    usual = check_text(case.document, **options(case))
    found = check_text(case.document, **options(case), strict=True)
    assert [(d.code, d.line, d.column, d.path) for d in found] == [
        (d.code, d.line, d.column, d.path) for d in usual
    ]
    assert all(d.severity == "error" for d in found)
    if found:
        with pytest.raises(DefinitionError):
            load_text(case.document, **options(case), strict=True)


def holds(value: Any, wanted: Any, at: str) -> None:
    """`value` has everything that `wanted` has; further members of objects do not matter."""
    if isinstance(wanted, dict):
        assert isinstance(value, dict), at
        for key, inner in wanted.items():
            assert key in value or inner is None, f"{at}.{key} is missing"
            holds(value.get(key), inner, f"{at}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(value, list), at
        assert len(value) == len(wanted), at
        for i, inner in enumerate(wanted):
            holds(value[i], inner, f"{at}[{i}]")
    else:
        assert value == wanted, at
        assert type(value) is type(wanted), at


# --- what the suite must have


def test_every_code_of_the_loader_has_a_case_and_a_near_miss():
    assert {case.code for case in CASES if case.code} == LOAD | SUBMIT
    assert {code for case in CASES for code in case.near} == LOAD | SUBMIT


def test_every_row_of_the_tables_of_the_format_has_a_case():
    assert {row for case in CASES for row in case.raw.get("rows", [])} == ROWS


def test_titles_name_one_case_each():
    titles = [str(case) for case in CASES]
    assert len(set(titles)) == len(titles)


# fmt: off
LOAD = {
    "E_FILE", "E_LIMIT", "E_SYNTAX", "E_YAML_SUBSET", "E_DUPLICATE_KEY", "W_YAML_AMBIGUOUS",
    "E_TYPE", "E_REQUIRED", "E_UNKNOWN_KEY", "E_VALUE", "E_VERSION", "W_VERSION_MISSING",
    "W_VERSION_TYPE", "E_FORMAT", "E_NO_STEPS", "E_NO_AGENTS", "E_AGENT_FIELD", "E_DUPLICATE_ID",
    "E_RETRY_POLICY", "W_INPUT_MISSING", "W_RESULT_SCHEMA_MISSING", "W_ALL_FUNCTIONS",
    "W_DUPLICATE", "W_SERVICE_UNDECLARED", "E_UNKNOWN_DEPENDENCY", "E_CYCLE", "E_RESULT_SCHEMA",
    "E_INPUT_SCHEMA", "E_SCHEMA", "E_REF", "E_EXPR_SYNTAX", "E_EXPR_UNCLOSED", "E_EXPR_LIMIT",
    "E_EXPR_NAME", "E_EXPR_FUNCTION", "E_EXPR_ARITY", "E_EXPR_WHOLE", "E_EXPR_NOT_ALLOWED",
    "E_EXPR_SCOPE", "E_UNKNOWN_STEP", "E_REF_NOT_DEPENDENCY", "E_UNKNOWN_PROPERTY",
    "W_COMPARE_VALUE", "W_COMPARE_TYPE", "W_IF_CONSTANT", "W_NOT_EXPRESSION",
    "W_UNUSED_INPUT", "W_UNUSED_SERVICE", "W_LITERAL_SECRET", "W_MODEL_UNDECLARED",
    "E_UNKNOWN_INPUT", "E_FOR_EACH_TYPE", "W_IF_STRING", "W_UNKNOWN_RESULT_PROPERTY",
    "W_PROMPT_INJECTION",
}
SUBMIT = {"E_INPUT_MISSING", "E_INPUT_INVALID", "W_INPUT_EXTRA"}
ROWS = {
    "1.1 version", "1.1 workflow", "1.1 format", "1.1 name, description, $schema", "1.1 inputs",
    "1.1 outputs", "1.1 services", "1.1 models", "1.1 defaults", "1.1 workflow.steps",
    "1.1 workflow.max_parallel", "1.1 workflow.fail_fast", "1.1 workflow.timeout, budget",
    "1.2 type, id, agent", "1.2 depends_on", "1.2 if", "1.2 for_each", "1.2 required",
    "1.2 max_parallel", "1.2 timeout", "1.2 retry, approval, cache, budget",
    "1.3 systemPrompt", "1.3 input", "1.3 resultSchema", "1.3 attachedFunctions", "1.3 tags",
    "1.3 context", "1.3 name, model, fallback, max_turns, max_tool_calls",
    "1.4 input", "1.4 model", "1.4 retry", "1.4 approval", "1.4 cache", "1.4 budget", "1.4 service",
    "1.4 python", "1.4 mcp", "1.4 openapi", "1.4 http", "1.4 $secret", "1.5 agents", "1.5 tools",
    "1.5 step ids", "1 x- keys", "1 Id", "1 Duration", "1 T",
    "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7",
}
# fmt: on
