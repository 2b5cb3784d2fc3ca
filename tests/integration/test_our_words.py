"""No text of a library reaches the user, whatever breach of a schema or of a type there is (daily-use 17)."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

import agentflow
from agentflow import DefinitionError, Runtime
from agentflow.definition.schemas import validate
from agentflow.definition.type_errors import explain, undecodable
from agentflow.errors import InvalidAnswer, InvalidOutput, LogCorrupt
from agentflow.events.envelope import decode
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from agentflow.tools import Service
from tests.integration.support.runs import document, log_of, step

LIBRARIES = re.compile(
    r"is not of type|Expected `|dditional properties are not|is a required property|was expected|non-empty"
    r"|is expected to be empty|too short|too long\b|under any of the given|is valid under|non-unique"
    r"|matching the given schema|False schema|Unevaluated|a dependency of|the minimum of|the maximum of"
    r"|any of the regexes|Expected at most|Object (?:missing|contains)|Invalid (?:enum )?value|RFC3339"
    r"|JSON is malformed|Input data was truncated|Input should be|Field required|errors\.pydantic\.dev"
    r"|validation error|ValidationError|jsonschema|msgspec|pydantic|- at `\$|'\w+' is not"
)
"""Phrases of jsonschema, jsonschema-rs, msgspec and pydantic."""

BREACHES: list[tuple[Any, Any, str]] = [
    ({"type": "integer"}, "x", '"x" is not an integer'),
    ({"type": ["integer", "null"]}, True, "true is not an integer or null"),
    ({"enum": ["low", "high"]}, None, 'null is not one of "low", "high"'),
    ({"const": {"a": [1]}}, 3, '3 is not {"a": [1]}'),
    ({"minimum": 1}, 0, "0 is less than 1"),
    ({"maximum": 1}, 2, "2 is more than 1"),
    ({"exclusiveMinimum": 1}, 1, "1 is not more than 1"),
    ({"exclusiveMaximum": 1}, 1, "1 is not less than 1"),
    ({"multipleOf": 2}, 3, "3 is not a multiple of 2"),
    ({"minLength": 1}, "", '"" has fewer than 1 character'),
    ({"maxLength": 2}, "abc", '"abc" has more than 2 characters'),
    ({"pattern": "^a$"}, "b", '"b" does not match the pattern "^a$"'),
    ({"minItems": 1}, [], "[] has fewer than 1 item"),
    ({"maxItems": 0}, [1], "[1] has more than 0 items"),
    ({"uniqueItems": True}, [1, 1], "[1, 1] has the same item twice"),
    ({"required": ["a"]}, {}, '"a" is missing'),
    ({"additionalProperties": False}, {"a": 1}, 'unknown member "a"; known: none'),
    (
        {"additionalProperties": False, "properties": {"b": True}, "patternProperties": {"^x": True}},
        {"a": 1, "c": 2},
        'unknown members "a", "c"; known are the patterns "^x" and "b"',
    ),
    ({"minProperties": 1}, {}, "{} has fewer than 1 member"),
    ({"maxProperties": 1}, {"a": 1, "b": 2}, '{"a": 1, "b": 2} has more than 1 member'),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, 'the name "ab" has more than 1 character'),
    ({"properties": {"propertyNames": {"minimum": 1}}}, {"propertyNames": 0}, "0 is less than 1"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "x", '"x" fits none of 2 alternatives'),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "x", '"x" fits none of 2 alternatives'),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 1, "1 fits more than one of 2 alternatives"),
    ({"not": {"type": "string"}}, "x", '"x" is excluded by the schema {"type": "string"}'),
    ({"if": {"type": "string"}, "then": {"minLength": 3}}, "x", '"x" has fewer than 3 characters'),
    ({"contains": {"const": 1}}, [2], "[2] has fewer than 1 of the items that are asked for"),
    (
        {"contains": {"const": 1}, "minContains": 2},
        [1],
        "[1] has fewer than 2 of the items that are asked for",
    ),
    (
        {"contains": {"const": 1}, "maxContains": 1},
        [1, 1],
        "[1, 1] has more than 1 of the items that are asked for",
    ),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, '"b" is missing, which "a" needs'),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, '"b" is missing'),
    ({"unevaluatedProperties": False}, {"a": 1}, '{"a": 1} has members that no part of the schema allows'),
    ({"unevaluatedItems": False}, [1], "[1] has items that no part of the schema allows"),
    ({"prefixItems": [True], "items": False}, [1, 2], "[1, 2] has more than 1 item"),
    ({"properties": {"a": False}}, {"a": 1}, "1 is not allowed here"),
    (False, 1, "1 is not allowed here"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, [], "[] is not null"),
    ({"type": "null"}, "x" * 5000, f'"{"x" * 199} …'),
]


def schema_of(breach: Any) -> str:
    return next(iter(breach[0])) if isinstance(breach[0], dict) else "false"


@pytest.mark.parametrize("breach", BREACHES, ids=schema_of)
def test_a_breach_of_a_schema(breach: tuple[Any, Any, str]):
    schema, value, told = breach
    (issue,) = validate(schema, value)
    assert issue.message.startswith(told)
    assert len(issue.message) < 500
    assert not LIBRARIES.search(issue.message)


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    n: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    at: datetime | None = None
    id: UUID | None = None
    raw: bytes = b""
    kind: Literal["a", "b"] = "a"
    pair: tuple[int, int] = (1, 2)
    names: Annotated[list[str], msgspec.Meta(max_length=1)] = []
    code: Annotated[str, msgspec.Meta(pattern="^x$")] = "x"


WRONG_TYPES = [
    b'{"n": "x"}', b'{"n": 0}', b'{"n": 10}', b'{"at": "soon"}', b'{"id": "x"}', b'{"raw": "\xc2\xa7"}',
    b'{"kind": "c"}', b'{"kind": 1}', b'{"pair": [1]}', b'{"pair": 1}', b'{"names": ["a", "b"]}',
    b'{"code": "y"}', b'{"more": 1}', b"[]", b"null", b"{", b'{"n": 1]', b"", b'"\xff"',
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG_TYPES)
def test_text_that_is_not_of_a_type(text: bytes):
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)) as raised:
        msgspec.json.decode(text, type=Shape)
    told = undecodable(raised.value, Shape)
    assert not LIBRARIES.search(told)
    if isinstance(raised.value, msgspec.ValidationError):
        assert told == explain(raised.value, Shape).sentence()


@pytest.mark.parametrize(
    "text", [b"{", b'{"id": 1}', b"[]", b'{"offset": "x"}', b'{"type": "workflow.started"}']
)
def test_an_event_that_cannot_be_read(text: bytes):
    with pytest.raises(LogCorrupt) as raised:
        decode(text)
    assert not LIBRARIES.search(str(raised.value))


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    done: int
    more: Annotated[str, pydantic.Field(max_length=1)] = ""

    @pydantic.field_validator("done")
    @classmethod
    def check(cls, value: int) -> int:
        if value < 0:
            raise ValueError("done is counted from 0")
        return value


class Plain(msgspec.Struct):
    done: int


@agentflow.function
def count(n: int, when: datetime | None = None) -> str:
    """Count to n."""
    return str(n)


OUTPUTS = [
    (Model, '{"done": "x"}', "done breaks the rule int_parsing"),
    (Model, '{"done": 1, "more": "long"}', "more breaks the rule string_too_long"),
    (Model, '{"done": 1, "other": 1}', "other breaks the rule extra_forbidden"),
    (Model, "{}", "done is missing"),
    (Model, '{"done": -1}', "done: done is counted from 0"),
    (Plain, '{"done": "x"}', ".done must be an integer, not a string"),
]


@pytest.mark.parametrize(("kind", "answer", "told"), OUTPUTS, ids=[told for _, _, told in OUTPUTS])
async def test_a_typed_output_that_does_not_fit(kind: Any, answer: str, told: str):
    async with Runtime(models=[ScriptedModel([answer])]) as runtime:
        definition = {**document(step("ask")), "models": {"default": "scripted:m"}}
        with pytest.raises(InvalidOutput) as raised:
            await runtime.run(definition, {}, output_type=dict[str, kind])
    assert told in str(raised.value)
    assert not LIBRARIES.search(str(raised.value))


async def test_everything_that_a_run_tells_of_breaches():
    """Inputs, arguments of tools, answers of models: errors, events and what the model is told."""
    answers = [
        call("desk__count", n="x"),
        call("desk__count", n=1, when="soon"),
        '{"a": "x"}',
        '{"b": 1}',
        '{"a": 1}',
    ]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    agent = step("ask", functions=["count"])
    agent["agent"]["resultSchema"] = schema | {"required": ["a"]}
    asked = {
        **document(agent),
        "models": {"default": "scripted:m"},
        "inputs": {"n": {"type": "integer", "required": True}},
    }
    async with Runtime(models=[ScriptedModel(answers)], services=[Service.of("desk", count)]) as runtime:
        told: list[str] = []
        for inputs in ({"n": "x"}, {}):
            with pytest.raises(DefinitionError) as refused:
                await runtime.submit(asked, inputs)
            told += [f"{d.message} {d.hint}" for d in refused.value.diagnostics]
        handle = await runtime.submit(asked, {"n": 1})
        assert (await handle.result(raise_on_failure=False)).state == "completed"
        told += [
            msgspec.json.encode(event.data).decode() for event in await log_of(runtime, handle.workflow_id)
        ]
    text = "\n".join(told)
    assert text.count("is not an integer") >= 3
    assert not LIBRARIES.search(text), LIBRARIES.search(text)


async def test_an_answer_of_a_person():
    model = ScriptedModel(["x"])
    limited = {**document(step("ask")), "models": {"default": "scripted:m"}}
    async with Runtime(models=[model]) as runtime:
        handle = await runtime.submit(limited, {}, budget={"max_model_calls": 0, "on_exceeded": "ask"})
        (asked,) = (await handle.result()).pending_requests
        for answer in (1, {}, {"choice": "perhaps"}, {"choice": "raise", "limit": "x"}, {"choice": "raise"}):
            with pytest.raises(InvalidAnswer) as raised:
                await handle.answer(asked.request_id, answer)
            assert not LIBRARIES.search(str(raised.value)), json.dumps(answer)
