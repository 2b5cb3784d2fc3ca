"""Every field of an `llm` node takes effect on what its model is asked (page 003 §4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, function
from agentflow.definition import load_value
from agentflow.definition.ir import LlmNode
from agentflow.definition.node import NodeBase
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HISTORY = {"messages_path": "input.h"}

FIELDS: dict[str, tuple[dict[str, Any], Callable[[ModelRequest], bool]]] = {
    "model": ({"model": "scripted:other"}, lambda r: r.model == "other"),
    "prompt": ({"prompt": "Say {{ input.x }}"}, lambda r: r.messages[-1].content == "Say 7"),
    "system": (
        {"system": "Be {{ input.x }}"},
        lambda r: (r.messages[0].role, r.messages[0].content) == ("system", "Be 7"),
    ),
    "messages_path": (HISTORY, lambda r: [m.content for m in r.messages] == ["earlier", "Say it"]),
    "append_prompt_as_user": (
        {**HISTORY, "append_prompt_as_user": False},
        lambda r: [m.content for m in r.messages] == ["earlier"],
    ),
    "output_schema": ({"output_schema": SCHEMA}, lambda r: r.output_schema == SCHEMA),
    "send_schema": ({"output_schema": SCHEMA, "send_schema": False}, lambda r: r.output_schema is None),
    "temperature": ({"temperature": 0.25}, lambda r: r.parameters["temperature"] == 0.25),
    "top_p": ({"top_p": 0.75}, lambda r: r.parameters["top_p"] == 0.75),
    "max_tokens": ({"max_tokens": 9}, lambda r: r.parameters["max_tokens"] == 9),
    "tools": ({"tools": ["s.look"]}, lambda r: [t.name for t in r.tools] == ["s__look"]),
    "tool_choice": (
        {"tools": ["s.look"], "tool_choice": "required"},
        lambda r: {**r.parameters, **r.extra}["tool_choice"] == "required",
    ),
}
ELSEWHERE = {"next", "heal", "stream", "stream_json_as_text", "tool_errors", "max_tool_roundtrips"}
"""Fields that concern the answer: `rows_of_calls` and the deltas of test_node_yaml_runs have them."""


@pytest.mark.parametrize("field", FIELDS)
async def test_a_field_takes_effect(field: str):
    @function(side_effect="read")
    async def look() -> str:
        """Look."""
        return "seen"

    node = {
        "id": "n",
        "type": "llm",
        "model": "scripted:m",
        "prompt": "Say it",
        "next": "end",
        **FIELDS[field][0],
    }
    nodes = [{"id": "start", "type": "start", "next": "n"}, node, {"id": "end", "type": "end"}]
    model = ScriptedModel(lambda request: '{"n": 1}')
    async with Runtime(models=[model], services=[Service.of("s", look)]) as runtime:
        given = {"x": 7, "h": [{"role": "user", "content": "earlier"}]}
        await runtime.run(load_value({"name": "w", "nodes": nodes}), given)
    assert FIELDS[field][1](model.requests[0]), model.requests[0]


def test_every_field_is_tested():
    common = {field.name for field in msgspec.structs.fields(NodeBase)}
    own = {field.name for field in msgspec.structs.fields(LlmNode)} - common
    assert own == FIELDS.keys() | ELSEWHERE
