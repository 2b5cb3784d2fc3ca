"""Every name that leaves this process stands in the registry of the conventions, or is one of our own."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import opentelemetry.semconv._incubating.attributes as incubating
import opentelemetry.semconv.attributes as stable
import pytest
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.graph import ServiceSpec
from agentflow.definition.ir import AgentNode, AgentSpec, StartNode, Workflow, canonical_json
from agentflow.errors import ConfigurationError
from agentflow.events import catalogue as ev
from agentflow.telemetry import conventions as c
from agentflow.telemetry.facts import Facts, facts_of
from agentflow.telemetry.instruments import Instrument, Instruments, Tally
from agentflow.telemetry.projection import project
from agentflow.telemetry.readable import Readables
from agentflow.telemetry.settings import read_settings
from tests.unit.telemetry.support import GOLDEN, LIMITS, STARTED, golden, scope, step_started, stored

NEWER = {
    "gen_ai.usage.cache_write.input_tokens": "semantic-conventions-genai#440",
    "gen_ai.request.reasoning.level": "semantic-conventions-genai#258",
}
"""Names of the conventions that the package of their registry does not have yet, and where they come from."""

OWN = "agentflow."


def registry() -> dict[str, str]:
    """Return the names of all attributes in the registry, from the package that is made of it."""
    found: dict[str, str] = {}
    for package in (incubating, stable):
        for module in pkgutil.iter_modules(package.__path__):
            found |= _names(import_module(f"{package.__name__}.{module.name}"))
    return found


def _names(module: ModuleType) -> dict[str, str]:
    return {value: name for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


REGISTRY = registry()


def allowed(name: str) -> bool:
    return name.startswith(OWN) or name in REGISTRY or name in NEWER


def calls() -> Iterator[tuple[Any, int]]:
    """A run in which each kind of call has all that a span can say."""
    yield STARTED, 0
    yield step_started(), 10
    yield (
        ev.ModelCallStarted(
            **scope(),
            model_call_id="mcl_1",
            agent_name="writer",
            provider="openai",
            model="gpt",
            turn=1,
            parameters={
                "temperature": 0.5,
                "top_p": 1,
                "top_k": 3,
                "max_tokens": 5,
                "seed": 1,
                "stop": ["x"],
                "n": 2,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.2,
                "reasoning": {"effort": "high"},
            },
            messages_from=0,
            messages=(Message(role="user", content="hi"),),
            request_hash="h",
            reserved=ev.Reserved(tokens=1, cost_usd=None),
            server="api.example.com:443",
        ),
        20,
    )
    yield (
        ev.ModelCallCompleted(
            **scope(),
            model_call_id="mcl_1",
            agent_name="writer",
            duration_ms=5,
            first_token_ms=2,
            message=Message(role="assistant", content="hello"),
            finish_reason="stop",
            response_model="gpt-1",
            response_id="r1",
            usage=Usage(
                input_tokens=9,
                output_tokens=3,
                cache_read_input_tokens=1,
                cache_creation_input_tokens=2,
                reasoning_output_tokens=1,
                model_calls=1,
            ),
        ),
        30,
    )
    yield (
        ev.ToolCallStarted(
            **scope(),
            tool_call_id="call_1",
            tool_name="crm__look",
            service="crm",
            parameters={"a": 1},
            agent_name="writer",
            side_effect="read",
            idempotency_key="k",
        ),
        40,
    )
    yield (
        ev.ToolCallCompleted(
            **scope(),
            tool_call_id="call_1",
            tool_name="crm__look",
            duration_ms=1,
            status="success",
            output=1,
            output_size=1,
        ),
        50,
    )


def facts(**options: Any) -> Facts:
    spec = ServiceSpec(type="mcp", options=options, functions={"look": {"description": "Looks."}})
    agent = AgentSpec(name="writer", system_prompt="p", output_schema={"type": "object"})
    nodes = (StartNode(id="__start", next="a"), AgentNode(id="a", agent=agent, index=0))
    return facts_of(canonical_json(Workflow(name="w", nodes=nodes, services={"crm": spec})))


def spans(known: Facts) -> dict[str, Any]:
    found, _ = project("wf_1", stored("wf_1", calls()), LIMITS, capture=True, facts=known)
    return {span.attributes[c.OPERATION]: span for span in found}


HTTP = {"transport": "streamable_http", "url": "https://mcp.example.com/mcp"}


def test_every_attribute_of_a_span_is_in_the_registry_or_our_own() -> None:
    found = [*spans(facts(**HTTP)).values()]
    for path in GOLDEN:
        found += project("wf_1", golden(path), LIMITS, capture=True)[0]
    used = {name for span in found for name in span.attributes}
    used |= {name for span in found for note in span.notes for name in note.attributes}
    assert {name for name in used if not allowed(name)} == set()
    assert {"gen_ai.request.model", "mcp.method.name", "server.port", *NEWER} <= used


def test_what_is_newer_than_the_package_is_named_one_by_one() -> None:
    assert [name for name in NEWER if name in REGISTRY] == []  # the package has it now: take it out


def test_metrics_of_generative_ai_are_in_the_registry() -> None:
    made: list[Instrument] = []
    tally = Tally()

    def note(kind: Any) -> Any:
        def make(instrument: Instrument) -> Any:
            made.append(instrument)
            return kind(instrument)

        return make

    Instruments(note(tally.histogram), note(tally.counter))
    known = {
        value for name, value in vars(gen_ai_metrics).items() if name.isupper() and isinstance(value, str)
    }
    assert {one.name for one in made if not one.name.startswith(OWN)} <= known
    assert "gen_ai.client.operation.time_to_first_chunk" in {one.name for one in made}


def test_a_model_call_says_where_it_went_and_what_was_asked() -> None:
    attributes = spans(facts(**HTTP))["chat"].attributes
    assert attributes["server.address"] == "api.example.com"
    assert attributes["server.port"] == 443
    assert attributes["gen_ai.request.stream"] is True
    assert attributes["gen_ai.output.type"] == "json"
    assert attributes["gen_ai.request.reasoning.level"] == "high"
    assert attributes["gen_ai.usage.cache_write.input_tokens"] == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (HTTP, {"network.transport": "tcp", "server.address": "mcp.example.com", "server.port": 443}),
        ({"transport": "stdio", "command": "x"}, {"network.transport": "pipe"}),
    ],
)
def test_a_call_of_an_mcp_function_has_the_attributes_of_mcp(
    options: dict[str, Any], expected: dict[str, Any]
) -> None:
    span = spans(facts(**options))["execute_tool"]
    assert span.kind == "client"
    assert span.attributes["mcp.method.name"] == "tools/call"
    assert span.attributes["gen_ai.tool.description"] == "Looks."
    assert expected.items() <= span.attributes.items()
    assert ("server.address" in span.attributes) is ("server.address" in expected)


@pytest.mark.parametrize(
    ("parameters", "level"),
    [
        ({"reasoning_effort": "low"}, "low"),
        ({"output_config": {"effort": "high"}}, "high"),
        ({"thinking_config": {"thinkingLevel": "LOW"}}, "LOW"),
        ({"reasoning_effort": 3}, None),
        ({}, None),
    ],
)
def test_the_level_of_reasoning(parameters: dict[str, Any], level: str | None) -> None:
    assert c.request_attributes(parameters).get("gen_ai.request.reasoning.level") == level


@pytest.mark.parametrize(
    ("variable", "provider", "cache_write", "schema"),
    [
        ("", "gen_ai.provider.name", "gen_ai.usage.cache_write.input_tokens", "1.44.0"),
        ("http,gen_ai/1.41", "gen_ai.provider.name", "gen_ai.usage.cache_creation.input_tokens", "1.41.0"),
        ("gen_ai/1.36", "gen_ai.system", None, "1.36.0"),
    ],
)
def test_an_earlier_version_can_be_pinned(
    variable: str, provider: str, cache_write: str | None, schema: str
) -> None:
    settings = read_settings({"OTEL_SEMCONV_STABILITY_OPT_IN": variable})
    (sent,) = Readables(settings.convention).of([spans(facts(**HTTP))["chat"]])
    assert sent.attributes is not None
    assert sent.attributes[provider] == "openai"
    written = [name for name in sent.attributes if "cache_" in name and "read" not in name]
    assert written == ([] if cache_write is None else [cache_write])
    assert sent.instrumentation_scope is not None
    assert sent.instrumentation_scope.schema_url.endswith(schema)


def test_a_version_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="gen_ai/2"):
        read_settings({"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai/2"})


def test_a_definition_that_cannot_be_read_gives_no_facts() -> None:
    assert facts_of(b"{").model_call("a") == {}
    assert facts_of(None).tool_call("crm", "crm__look", None) == {}
