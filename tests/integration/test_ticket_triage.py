"""The ticket triage example: with a scripted model in full, with the embedded model on a few tickets."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agentflow import Runtime, check_file
from agentflow.evals.runner import run_eval
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from examples.ticket_triage.demo import accuracy, read_tickets
from tests.unit.models.local_model import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "ticket_triage"


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TRIAGE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def desk(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "crm.db")) as db:
        return sorted(db.execute("SELECT ticket, company FROM escalation"))


def test_the_workflow_checks_without_a_word():
    assert check_file(EXAMPLE / "triage.yaml", strict=True) == []


def test_every_ticket_has_a_label_and_a_sender():
    labels = json.loads((EXAMPLE / "labels.json").read_text(encoding="utf-8"))
    tickets = read_tickets()
    assert [t["id"] for t in tickets] == sorted(labels)
    assert all(labels[t["id"]]["email"] == t["from"] for t in tickets)


def given() -> dict[str, dict[str, str]]:
    """Return the labels that a person gave."""
    return json.loads((EXAMPLE / "labels.json").read_text(encoding="utf-8"))


def saying(labels: dict[str, dict[str, str]]) -> ScriptedModel:
    """Return a model that gives these labels."""
    tickets = read_tickets()

    def of(text: str) -> dict[str, str]:
        return labels[next(t["id"] for t in tickets if t["subject"] in text)]

    def customer(request):
        last = request.messages[-1]
        if last.role == "tool":
            return json.loads(last.content)
        return call("crm__find_customer", email=last.content.removeprefix("From: "))

    def card(request):
        lines = request.messages[-1].content.strip().splitlines()
        return dict(line.split(": ", 1) for line in lines)

    def escalate(request):
        last = request.messages[-1]
        if last.role == "tool":
            return {"escalated": True}
        return call("crm__escalate", company=last.content.removeprefix("company: "))

    model = ScriptedModel()
    model.add(lambda r: {"urgency": of(r.messages[-1].content)["urgency"]}, when='"urgency"')
    model.add(lambda r: {"topic": of(r.messages[-1].content)["topic"]}, when="Wrong invoice")
    model.add(customer, when="Find the customer")
    model.add(card, when="Copy the fields")
    model.add(escalate, when="Escalate")
    return model


async def test_with_a_scripted_model_every_label_reaches_its_place(monkeypatch, data):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    tickets, labels = read_tickets(), given()
    async with Runtime(models=[saying(labels)]) as runtime:
        result = await runtime.run(EXAMPLE / "triage.yaml", {"tickets": tickets})
    assert accuracy(tickets, result.output) == {"urgency": len(tickets), "topic": len(tickets)}
    urgent = [t["id"] for t in tickets if labels[t["id"]]["urgency"] == "high"]
    assert [ticket for ticket, _ in desk(data)] == urgent
    assert [i for i, e in enumerate(result.output["escalated"]) if e] == [
        i for i, t in enumerate(tickets) if t["id"] in urgent
    ]
    assert result.output["card"][0] == {
        "subject": "Checkout is down",
        "company": "Northwind",
        "topic": labels["01"]["topic"],
    }


async def test_the_eval_suite_passes_with_a_model_that_says_what_a_person_would(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    async with Runtime(models=[saying(given())]) as runtime:
        report = await run_eval(EXAMPLE / "evals" / "suite.yaml", runtime)
    assert (report.status, report.summary.total) == ("passed", 8)
    assert all(case.evaluations[-1].score == 1.0 for case in report.cases)


async def test_the_eval_suite_fails_with_a_model_that_says_the_opposite(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    labels = given()
    for label in labels.values():
        label["urgency"] = {"high": "low", "low": "high"}[label["urgency"]]
        label["topic"] = {"billing": "technical", "technical": "billing"}[label["topic"]]
    async with Runtime(models=[saying(labels)]) as runtime:
        report = await run_eval(EXAMPLE / "evals" / "suite.yaml", runtime)
    assert (report.status, report.summary.failed) == ("failed", 8)
    assert report.cases[0].evaluations[-1].reason == "wrong: urgency, topic"


@pytest.mark.local_model
@pytest.mark.timeout(240)
async def test_with_the_embedded_model(monkeypatch, tmp_path, data):
    for name, value in environment(tmp_path / "models").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGENTFLOW_MODEL", "local:smollm2-135m")
    tickets = [t for t in read_tickets() if t["id"] in ("01", "05", "06")]
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}") as runtime:
        result = await runtime.run(EXAMPLE / "triage.yaml", {"tickets": tickets})
    assert result.state == "completed"
    output = result.output
    assert [c["company"] for c in output["customer"]] == ["Northwind", "Acme", "Globex"]
    assert all(u["urgency"] in ("high", "low") for u in output["urgency"])
    urgent = [t["id"] for t, u in zip(tickets, output["urgency"], strict=True) if u["urgency"] == "high"]
    assert [ticket for ticket, _ in desk(data)] == urgent
