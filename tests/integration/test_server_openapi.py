"""The OpenAPI document: valid, complete, and what the running daemon does when it is tested from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from openapi_spec_validator import validate

from agentflow.events.catalogue import TYPES
from agentflow.server.app import OPERATIONS, described
from agentflow.server.problems import STATUS
from tests.unit.server.daemon import document as agent_list
from tests.unit.server.process import Process


@pytest.fixture(scope="module")
def document() -> dict:
    return json.loads(described())


def test_it_is_valid(document):
    validate(document)
    assert document["openapi"] == "3.1.0"


def test_every_operation_stands_there_once(document):
    there = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert there == {(o.method, o.path) for o in OPERATIONS}
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_every_parameter_of_a_path_is_described(document):
    for path, methods in document["paths"].items():
        for one in methods.values():
            named = {p["name"] for p in one.get("parameters", ()) if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def test_every_problem_can_be_told(document):
    text = " ".join(
        response["description"]
        for methods in document["paths"].values()
        for one in methods.values()
        for response in one["responses"].values()
    )
    # Codes of parts of the API that come with other documents, and of what is no operation.
    elsewhere = {
        "template_not_found",
        "checkpoint_not_found",
        "graph_signature_mismatch",
        "method_not_allowed",
        "decision_conflict",
        "no_resumable_run",
    }
    missing = {code for code in STATUS if code not in text}
    assert missing <= elsewhere


def test_every_body_has_examples_that_the_daemon_takes(document):
    for operation in OPERATIONS:
        if operation.body is None:
            continue
        body = document["paths"][operation.path][operation.method.lower()]["requestBody"]
        examples = body["content"]["application/json"]["examples"]
        assert examples, operation.path
        for example in examples.values():
            msgspec.convert(example["value"], operation.body)


def test_it_is_a_product(document):
    """Each event has a schema of its own; nothing is required that may be left out; scopes are told."""
    schemas = document["components"]["schemas"]
    events = {
        schemas[one["$ref"].rpartition("/")[2]]["properties"]["type"]["const"]
        for one in schemas["RunEvent"]["oneOf"]
    }
    assert events == set(TYPES)
    for name, schema in schemas.items():
        for member in schema.get("required", ()):
            assert "default" not in schema["properties"].get(member, {}), (name, member)
    for operation in OPERATIONS:
        told = document["paths"][operation.path][operation.method.lower()]["security"]
        scopes = {scope for way in told for given in way.values() for scope in given}
        assert scopes == ({operation.scope} if operation.scope else set())


def test_no_reference_leads_nowhere(document):
    text = json.dumps(document)
    for name in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert name in document["components"]["schemas"]


def _tested(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Test the running daemon from its document, with a submission that it accepts."""
    with Process(folder, "127.0.0.1:0") as daemon:
        base = daemon.url
        described = httpx.get(f"{base}/openapi.json", trust_env=False).json()
        submission = {"definition": agent_list("x"), "input": "hi"}
        bodies = described["paths"]["/workflows"]["post"]["requestBody"]["content"]
        bodies["application/json"]["examples"] = {"plain": {"value": submission}}
        (folder / "openapi.json").write_text(json.dumps(described))
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from schemathesis.cli import schemathesis as s; s()"),
                *("run", str(folder / "openapi.json"), "--url", base),
                # Streams of all runs have no end, and the daemon is to live.
                *("--exclude-path", "/events", "--exclude-path", "/admin/drain"),
                # What a schema cannot say (one of two members, an edit that fits) is refused all the same.
                *("--exclude-checks", "positive_data_acceptance"),
                *("--request-timeout", "10", "--seed", "1", "--continue-on-failure", "--no-color", *more),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert httpx.get(f"{base}/healthz", trust_env=False).json()["status"] == "ok"
        assert "internal_error" not in done.stdout
        assert "request_failed" not in daemon.errors()
    return done


def test_the_daemon_does_what_it_says(tmp_path):
    done = _tested(tmp_path, "--phases", "examples,fuzzing,stateful", "--max-examples", "2")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_daemon_does_what_it_says_at_length(tmp_path):
    done = _tested(tmp_path, "--max-examples", "60")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
