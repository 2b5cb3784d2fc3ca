"""The four examples of source document 001, run on real actors with a scripted model (page 001 §8)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentflow import DefinitionError, Runtime, Service
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support import shop

DOCUMENTS = Path(__file__).parents[1] / "conformance" / "documents"


@pytest.fixture(autouse=True)
def fresh_shop():
    shop.reset()


def services() -> list[Service]:
    return [
        Service.of("customer", shop.get_customer),
        Service.of("legacyUsers", shop.get_customer),
        Service.of("company", shop.get_company),
        Service.of("quote", shop.get_quote),
        Service.of("staff", shop.get_manager),
        Service.of("ticket", shop.attach_staff),
    ]


def runtime(model: ScriptedModel, monkeypatch) -> Runtime:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    return Runtime(models=[model], services=services())


CUSTOMER = {"found": True, "customer": {"name": "Ann", "email": "ann@example.com", "phone": "1"}}


async def test_sequential(monkeypatch):
    model = ScriptedModel()
    model.add([call("customer__getCustomer", email="ann@example.com"), CUSTOMER], when="Fetch customer")
    model.add([{"ticket": "enriched"}], when="Enrich the ticket")
    async with runtime(model, monkeypatch) as rt:
        result = await rt.run(DOCUMENTS / "1-sequential.yaml", {"ticket_text": "Mail from ann@example.com"})
    assert result.state == "completed"
    assert result.output == {"enrich_ticket": {"ticket": "enriched"}}
    assert [c[0] for c in shop.calls] == ["getCustomer"]
    enrich = model.requests[-1]
    assert [m.content for m in enrich.messages][1] == (
        '{"ticket":{"name":"Ann","email":"ann@example.com","phone":"1"}}'
    )
    # attachedFunctions absent = all functions; one that is declared to change something is asked about first.
    assert {"customer__getCustomer", "ticket__attachStaffToTicket"} <= {t.name for t in enrich.tools}
    model.assert_complete()


def test_parallel_is_rejected_with_its_two_diagnostics():
    with pytest.raises(DefinitionError) as caught:
        Runtime().load(DOCUMENTS / "2-parallel.yaml")
    errors = [(d.code, d.line, d.column) for d in caught.value.diagnostics if d.severity == "error"]
    assert errors == [("E_UNKNOWN_DEPENDENCY", 48, 20), ("E_UNKNOWN_STEP", 52, 31)]


async def test_parallel_corrected_fetches_overlap_in_time(monkeypatch):
    shop.gates["getCustomer"] = asyncio.Event()
    shop.gates["getCompany"] = asyncio.Event()
    model = ScriptedModel()
    model.add([call("customer__getCustomer", email="ann@example.com"), CUSTOMER], when="Fetch customer")
    company = {"found": True, "company": {"name": "Acme", "tier": "gold"}}
    model.add([call("company__getCompany", domain="acme.test"), company], when="Fetch company")
    model.add(["done"], when="Enrich")
    async with runtime(model, monkeypatch) as rt:
        result = await rt.run(DOCUMENTS / "2-parallel-corrected.yaml", {"ticket_text": "x"})
        events = [e async for e in rt.events(result.workflow_id)]
    assert result.output == {"enrich_ticket": {"text": "done"}}
    assert frozenset({"getCustomer", "getCompany"}) in shop.overlaps
    order = [(e.type, e.step) for e in events if e.type.startswith("workflow.step_")]
    assert order[:2] == [
        ("workflow.step_started", "get_customer_data"),
        ("workflow.step_started", "get_company_data"),
    ]


@pytest.mark.parametrize(("urgency", "states"), [("high", "succeeded"), ("low", "skipped")])
async def test_conditional(monkeypatch, urgency, states):
    model = ScriptedModel()
    model.add([{"urgency": urgency}], when="Evaluate urgency")
    model.add(
        [
            call("staff__getAccountManagerForCustomer", email="ann@example.com"),
            call("ticket__attachStaffToTicket", ticket="t", staff="Max"),
            {"done": True},
        ],
        when="Copy the account manager",
    )
    async with runtime(model, monkeypatch) as rt:
        result = await rt.run(DOCUMENTS / "3-conditional.yaml", {"ticket": "help"})
    assert result.state == "completed"
    assert result.steps["escalate_ticket"].state == states
    assert result.output == {"escalate_ticket": {"done": True} if urgency == "high" else None}


async def test_iteration_keeps_the_order_of_the_records(monkeypatch):
    records = [{"id": str(i), "name": f"r{i}"} for i in range(12)]
    model = ScriptedModel()
    model.add([{"records": records}], when="Get list")
    model.add(lambda request: {"done": request.messages[-1].content}, when="Process single")
    async with runtime(model, monkeypatch) as rt:
        result = await rt.run(DOCUMENTS / "4-iteration.yaml", {})
    assert result.output == {"process_record": [{"done": f'{{"record":"{i}"}}'} for i in range(12)]}
