"""Documents and what they get when services and models are looked at: phase B of page 001 §3."""

from __future__ import annotations

import pytest

from agentflow import Runtime, Service, function, load_text
from agentflow.errors import DefinitionError
from agentflow.models import ModelProfile
from agentflow.testing import ScriptedModel
from tests.conformance.cases import Case, read_cases

CASES = read_cases("documents/binding")
CODES = {
    "E_UNKNOWN_SERVICE",
    "E_UNKNOWN_FUNCTION",
    "E_TOOL_UNKNOWN",
    "E_TOOL_DUPLICATE",
    "E_SERVICE_UNAVAILABLE",
    "E_SERVICE_DENIED",
    "E_UNKNOWN_MODEL",
    "E_MODEL_CAPABILITY",
    "E_CACHE_SIDE_EFFECT",
}


def registered() -> list[Service]:
    """customer.find, ticket.find, ticket.close (write), a.b__c, a__b.c."""

    @function(side_effect="read")
    def find(name: str) -> dict:
        """Finds."""
        return {"name": name}

    @function(side_effect="write")
    def close(name: str) -> dict:
        """Closes."""
        return {"name": name}

    def named(name: str):
        @function(name=name, side_effect="read")
        def nothing() -> dict:
            """Gives nothing."""
            return {}

        return nothing

    services = {
        "customer": [find],
        "ticket": [find, close],
        "a": [named("b__c")],
        "a__b": [named("c")],
    }
    return [Service.of(name, *functions) for name, functions in services.items()]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_document_gets_exactly_its_diagnostics(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    model = ScriptedModel(lambda request: 1, profile=ModelProfile(tools=case.raw.get("tools", "many")))
    definition = load_text(case.document, media="yaml")
    trusted = case.raw.get("trusted", True)
    async with Runtime(models=[model], services=registered()) as runtime:
        try:
            handle = await runtime.submit(definition, trusted=trusted)
        except DefinitionError as error:
            found = error.diagnostics
            assert (await runtime.log.runs()).items == []
        else:
            found = []
            assert (await handle.result()).state == "completed"
    listing = "\n".join(d.render() for d in found)
    assert [(d.code, d.line, d.column, d.path or "") for d in found] == [w[:4] for w in case.wanted], listing
    for diagnostic, wanted in zip(found, case.wanted, strict=True):
        assert diagnostic.severity == "error"
        assert wanted.hint is None or diagnostic.hint == wanted.hint


def test_every_code_of_binding_has_a_case_and_a_near_miss():
    assert {case.code for case in CASES if case.code} == CODES
    assert {code for case in CASES for code in case.near} == CODES
    for case in CASES:
        assert {wanted.code for wanted in case.wanted} == ({case.code} if case.code else set())
