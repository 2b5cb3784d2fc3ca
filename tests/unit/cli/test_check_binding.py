"""What `check` finds beside the text of a document, and what `check --bind` adds (daily use 10)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.cli.support import Sandbox

AGENT = "{systemPrompt: p, input: x, resultSchema: true, attachedFunctions: %s}"


def document(services: str = "{}", functions: str = "none", model: str | None = None) -> str:
    agent = AGENT % functions
    if model is not None:
        agent = agent[:-1] + f", model: {model}}}"
    return (
        f'version: "1.0"\nservices: {services}\nworkflow:\n  steps:\n'
        f"    - {{type: run, id: a, agent: {agent}}}\n    - {{type: run, id: b, agent: {agent}}}\n"
    )


def check(sandbox: Sandbox, *options: str) -> tuple[int, list[dict[str, Any]]]:
    result = sandbox.invoke("check", "flow.yaml", "--json", *options)
    return result.exit_code, json.loads(result.stdout)["diagnostics"]


def short(found: list[dict[str, Any]]) -> list[tuple[str, int, str, str | None]]:
    return [(d["code"], d["line"], d["path"], d["hint"]) for d in found]


def test_an_openapi_document_that_is_not_there(sandbox: Sandbox):
    sandbox.write("shop.json", "{}")
    sandbox.write(
        "flow.yaml", document("{s: {type: openapi, document: shpo.json}}", "[{service: s, function: f}]")
    )
    code, found = check(sandbox)
    assert code == 3
    assert short(found) == [
        ("E_SERVICE_UNAVAILABLE", 2, "/services/s/document", 'did you mean "shop.json"?'),
    ]
    assert "/" not in found[0]["message"].replace("shpo.json", "")


def test_a_function_that_a_module_beside_the_document_lacks(sandbox: Sandbox):
    sandbox.write("crm.py", "import agentflow\n\nraise SystemExit('not run')\n\ndef find(): pass\n")
    sandbox.write("flow.yaml", document("{s: {type: python, module: crm}}", "[{service: s, function: fnd}]"))
    code, found = check(sandbox)
    assert code == 3
    where = "/workflow/steps/%d/agent/attachedFunctions/0/function"
    assert short(found) == [
        ("E_UNKNOWN_FUNCTION", line, where % step, 'did you mean "find"?') for step, line in ((0, 5), (1, 6))
    ]


def test_a_function_that_an_http_service_does_not_declare(sandbox: Sandbox):
    service = "{s: {type: http, base_url: 'http://h', functions: {find: {method: GET, path: /f}}}}"
    sandbox.write("flow.yaml", document(service, "[{service: s, function: fnd}]"))
    code, found = check(sandbox)
    assert code == 3
    assert [(d["code"], d["line"], d["hint"]) for d in found] == [
        ("E_UNKNOWN_FUNCTION", line, 'did you mean "find"?') for line in (5, 6)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import *",
        "from elsewhere import found as fnd",
        "@function(name='fnd')\ndef f(): pass",
        "fnd = make()",
        "globals()['f' + 'nd'] = 1",
        "def broken(:",
    ],
)
def test_a_module_that_may_have_the_function_is_left_to_bind(sandbox: Sandbox, text: str):
    sandbox.write("crm.py", text)
    sandbox.write("flow.yaml", document("{s: {type: python, module: crm}}", "[{service: s, function: fnd}]"))
    assert check(sandbox) == (0, [])


def test_an_alias_that_neither_document_nor_configuration_has(sandbox: Sandbox):
    sandbox.write("flow.yaml", document(model="cheap"))
    code, found = check(sandbox)
    assert code == 0
    assert [d[:3] for d in short(found)] == [
        ("W_MODEL_UNDECLARED", 5, "/workflow/steps/0/agent/model"),
        ("W_MODEL_UNDECLARED", 6, "/workflow/steps/1/agent/model"),
    ]
    sandbox.write("agentflow.toml", '[models]\ncheap = "openai:m"\n')
    assert check(sandbox) == (0, [])
    sandbox.write("agentflow.toml", "[models")
    assert check(sandbox) == (0, [])


def test_bind_imports_the_module_and_resolves_the_models(sandbox: Sandbox):
    sandbox.write("crm.py", "import agentflow\n\n@agentflow.function\ndef find() -> str:\n    return ''\n")
    text = document("{s: {type: python, module: crm}}", "[{service: s, function: find}]", "'nobody:m'")
    sandbox.write("flow.yaml", text.replace("function: find}], model", "function: fnd}], model", 1))
    code, found = check(sandbox, "--bind")
    assert code == 3
    assert [d[:3] for d in short(found)] == [
        ("E_UNKNOWN_FUNCTION", 5, "/workflow/steps/0/agent/attachedFunctions/0/function"),
        ("E_UNKNOWN_MODEL", 5, "/workflow/steps/0/agent/model"),
        ("E_UNKNOWN_MODEL", 6, "/workflow/steps/1/agent/model"),
    ]
    assert found[0]["hint"] == 'did you mean "find"?'


def test_bind_says_once_that_there_is_no_model(sandbox: Sandbox):
    sandbox.write("flow.yaml", document())
    code, found = check(sandbox, "--bind")
    assert code == 78
    assert [(d["code"], d["line"]) for d in found] == [("E_UNKNOWN_MODEL", 5)]
    assert found[0]["message"].startswith('no model for step "a" and 1 more: ')
