"""`agentflow schema`: what it prints is a schema, and describes what the product writes."""

from __future__ import annotations

import json

import msgspec
import pytest
from jsonschema import Draft202012Validator

from agentflow import Runtime
from agentflow.definition import load_text
from agentflow.definition.ir import canonical_json
from agentflow.events.envelope import encode
from agentflow.schemas import SCHEMA_NAMES
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.conformance.cases import read_cases
from tests.unit.cli.support import ECHO, Sandbox

DOCUMENTS = [case for case in read_cases("documents/diagnostics") if "graph" in case.raw]


def printed(sandbox: Sandbox, name: str) -> dict:
    done = sandbox.invoke("schema", name)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("}\n")
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_prints_a_schema_with_its_name(sandbox: Sandbox, name: str):
    schema = printed(sandbox, name)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith(f"urn:agentflow:schema:{name}:")


def test_every_graph_satisfies_the_schema_of_graphs(sandbox: Sandbox):
    validator = Draft202012Validator(printed(sandbox, "ir"))
    assert DOCUMENTS
    for case in DOCUMENTS:
        definition = load_text(case.document, media=case.raw.get("media", "yaml"))
        validator.validate(json.loads(canonical_json(definition.workflow)))
    assert not validator.is_valid({"name": "x", "nodes": [{"type": "loop", "id": "a"}]})


async def test_every_event_of_a_run_satisfies_the_schema_of_events(sandbox: Sandbox, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    validator = Draft202012Validator(printed(sandbox, "event"))
    model = ScriptedModel([call("unknown", x=1), "Good morning"])
    async with Runtime(models=[model]) as runtime:
        handle = await runtime.submit(load_text(ECHO), {"name": "Ann"})
        assert (await handle.result()).state == "completed"
        bodies = [encode(event) async for event in runtime.events(handle.workflow_id)]
    assert len(bodies) > 8
    for body in bodies:
        validator.validate(msgspec.json.decode(body))
    broken = {**msgspec.json.decode(bodies[0]), "data": {}}
    assert not validator.is_valid(broken)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("plan", "known: event, graph, ir, workflow, yaml"), ("worklow", 'did you mean "workflow"?')],
)
def test_another_name_is_told_the_names(sandbox: Sandbox, name: str, hint: str):
    done = sandbox.invoke("schema", name)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert f'there is no schema "{name}"' in done.stderr
    assert hint in done.stderr
