"""Secrets, `context` and reasoning are searched for in everything that leaves a run.

Two agents work one after another, over HTTP, with functions that succeed and fail; each marker may stand in
the places that are named for it and nowhere else: events by type, requests to models, spans, metrics, logs,
errors, what the API answers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from agentflow import Runtime, Service, ToolContext, function, known_secrets
from agentflow.models import Models
from agentflow.server.access import Actor
from agentflow.server.app import OPERATIONS, Application
from agentflow.telemetry.settings import TelemetrySettings
from agentflow.telemetry.telemetry import Telemetry
from tests.integration.support.runs import document, log_of, step
from tests.unit.models.wire_formats import CHAT, MESSAGES, Wire, encode
from tests.unit.models.wire_server import WireServer, sending
from tests.unit.telemetry.collector import Collector

SECRET = "hunter2-hunter2-hunter2"
CONTEXT = "context-for-functions-only"
REASONING = "c2lnbmF0dXJl"  # the signature of the thoughts of `wire_formats`
THOUGHT = "thinking about it"
PROMPT_A, PROMPT_B = "prompt-of-agent-a", "prompt-of-agent-b"


@function(side_effect="read")
def look(ctx: ToolContext) -> str:
    """Uses its context and writes a record."""
    assert ctx.context == {"note": CONTEXT}
    ctx.logger.warning("looked with %s", SECRET)
    return "seen"


@function(side_effect="read")
def fail(ctx: ToolContext) -> str:
    """Fails with a secret in its words."""
    raise RuntimeError(f"no entry with {SECRET}")


def thinking(wire: Wire, function: str) -> bytes:
    """The stream of an answer that thinks and calls a function."""
    events = wire.events([], [("p1", function, ["{}"])], "complete")
    begin = 1 if wire is MESSAGES else 0
    return encode([*events[:begin], *wire.reasoned(), *events[begin:]])


def formatted(record: logging.LogRecord) -> str:
    return f"{record.getMessage()} {vars(record)}"


LOGS = ("/workflows/wf_a/log", "/workflows/wf_a/events", "/events")
WITH_DEFINITION = ("/workflows/wf_a/definition", "/workflows/wf_a/graph", *LOGS)
WITH_MESSAGES = ("/workflows/wf_a/calls/", "/workflows/wf_a/context/a", *LOGS)


async def api_answers(runtime: Runtime) -> dict[str, str]:
    """Return what the API answers about the run, by path."""
    app = Application(runtime, authorize=lambda request: Actor("tester", frozenset({"read"})))
    calls = [e.data.model_call_id for e in await log_of(runtime, "wf_a") if e.type == "model.call_completed"]
    found: dict[str, str] = {}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for operation in OPERATIONS:
            if operation.method != "GET":
                continue
            for step_id in ("a", "b") if "{step}" in operation.path else ("",):
                path = operation.path.replace("{id}", "wf_a").replace("{step}", step_id)
                path = path.replace("{call}", calls[0])
                if "{" in path:
                    continue
                query = "?follow=false" if path.endswith("/events") else ""
                answer = await client.get(path + query)
                found[path] = answer.text
    return found


def agent(id: str, prompt: str, model: str, functions: list[str], **more: Any) -> dict[str, Any]:
    made = step(id, functions=functions, prompt=prompt, **more)
    made["agent"] |= {"model": model, "context": {"note": CONTEXT}}
    return made


@pytest.mark.parametrize("capture", [False, True])
async def test_markers_stay_where_they_belong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: Any, capture: bool
) -> None:
    known_secrets.add(SECRET)
    caplog.set_level(logging.DEBUG, "agentflow")
    desk = Service.of("desk", look, fail)
    steps = (
        agent("a", PROMPT_A, "first:m", ["look", "fail"]),
        agent("b", PROMPT_B, "other:m", ["look"], depends_on=["a"], input="${{ steps.a.outputs.result }}"),
    )
    first_answers = [
        sending(thinking(MESSAGES, "desk__look")),
        sending(thinking(MESSAGES, "desk__fail")),
        sending(MESSAGES.stream(['"fine"'])),
    ]
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        settings = TelemetrySettings(traces="otlp", metrics="otlp", logs="otlp", capture_content=capture)
        async with (
            WireServer(*first_answers) as first,
            WireServer(sending(CHAT.stream(['"done"']))) as other,
        ):
            models = Models(
                [
                    MESSAGES.provider(base_url=first.url, name="first", api_key=SECRET),
                    CHAT.provider(base_url=other.url, name="other", api_key=SECRET),
                ]
            )
            telemetry = Telemetry(settings)
            async with Runtime(services=[desk], models=models, telemetry=telemetry) as runtime:
                result = await runtime.run(document(*steps), {}, workflow_id="wf_a")
                assert result.state == "completed"
                events = [
                    (e.type, e.step, msgspec.json.encode(e.data).decode())
                    for e in await log_of(runtime, "wf_a")
                ]
                shown = repr(result)
                answers = await api_answers(runtime)
            requests = {"first": [r.body for r in first.requests], "other": [r.body for r in other.requests]}
        spans, records = str(collector.spans), str(collector.logs)
        metrics = str(collector.metrics)

    def types_with(marker: str) -> set[tuple[str, str | None]]:
        return {(kind, at) for kind, at, body in events if marker in body}

    bodies: Mapping[str, str] = {name: msgspec.json.encode(body).decode() for name, body in requests.items()}
    everywhere = {
        "result": shown,
        "spans": spans,
        "records": records,
        "metrics": metrics,
        "log": "".join(formatted(r) for r in caplog.records if r.name != "agentflow.function"),
        "stdout": "".join(capsys.readouterr()),
    }
    # What the dashboard asks for: the contexts and calls of an agent show what is its own, and no secret.
    assert len(answers) > 15
    for path, text in answers.items():
        assert SECRET not in text, path
        assert CONTEXT not in text or path.startswith(WITH_DEFINITION), path
        assert REASONING not in text or path.startswith(WITH_MESSAGES), path
        assert path != "/workflows/wf_a/context/b" or PROMPT_A not in text
    # A secret goes to the server whose key it is, and is hidden wherever a function or a record quotes it.
    assert types_with(SECRET) == set()
    assert not any(SECRET in text for text in (*everywhere.values(), *bodies.values()))
    # `context` is the functions' alone.
    assert not any(CONTEXT in text for text in (*everywhere.values(), *bodies.values()))
    assert types_with(CONTEXT) <= {("workflow.started", None)}
    # Reasoning goes back to the provider that wrote it, for the agent that it was written for.
    assert types_with(REASONING) == {("model.call_completed", "a")}
    assert REASONING in bodies["first"]
    assert REASONING not in bodies["other"]
    for place, text in everywhere.items():
        if place == "spans" and capture:
            continue
        assert REASONING not in text, place
    # No agent reads of another one but its result.
    assert PROMPT_A not in bodies["other"]
    assert PROMPT_B not in bodies["first"]
    assert "no entry" not in bodies["other"]
    if not capture:
        for marker in (PROMPT_A, PROMPT_B, "no entry", "seen"):
            assert marker not in spans
