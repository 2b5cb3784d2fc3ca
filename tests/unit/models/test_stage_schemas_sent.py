"""Schemas of the stages of requests as providers get them: in keywords that all of them take."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.schemas import validate
from agentflow.definition.stage_schemas import NORMALIZED_REQUEST, PLAN, SCHEMAS, STEP_RESULT
from agentflow.models.output_schemas import plain_schema

TAKEN = {
    *("type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "oneOf"),
    *("allOf", "pattern", "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength", "$ref"),
    *("$defs", "title", "description", "default"),
}


def keywords(schema: Any) -> set[str]:
    """Every keyword of a schema, and nothing that is the name of a property."""
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for key in ("properties", "$defs"):
        for part in schema.get(key, {}).values():
            found |= keywords(part)
    for part in (schema.get("items"), schema.get("additionalProperties")):
        found |= keywords(part)
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key, ()):
            found |= keywords(part)
    return found


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_only_keywords_are_sent_that_every_provider_takes(name: str):
    assert keywords(plain_schema(SCHEMAS[name])) <= TAKEN


def test_what_the_whole_schema_takes_the_sent_one_takes():
    ready = {
        "status": "ready",
        "objective": "o",
        "constraints": [],
        "context": {},
        "success_criteria": [],
        "blockers": [],
    }
    step = {"id": "a", "title": "A", "action": "x", "owner": "agent", "depends_on": []}
    plan = {
        "status": "ready",
        "summary": "s",
        "steps": [step],
        "risks": [],
        "artifacts": [],
        "blockers": [],
    }
    done = {"step_id": "a", "status": "done", "output": "x", "error": None}
    for schema, value in ((NORMALIZED_REQUEST, ready), (PLAN, plan), (STEP_RESULT, done)):
        assert validate(schema, value) == []
        assert validate(plain_schema(schema), value) == []


def test_the_whole_schema_still_judges():
    blocked = {
        "status": "blocked",
        "objective": "o",
        "constraints": [],
        "context": {},
        "success_criteria": [],
        "blockers": [],
    }
    assert validate(plain_schema(NORMALIZED_REQUEST), blocked) == []
    assert validate(NORMALIZED_REQUEST, blocked) != []


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "string", "pattern": r"\S"}, {"type": "string"}),
        ({"type": "string", "pattern": "^a$"}, {"type": "string", "pattern": "^a$"}),
        ({"anyOf": [{"type": "string"}, {"not": {"type": "null"}}]}, {}),
        ({"properties": {"if": {"type": "string"}}}, {"properties": {"if": {"type": "string"}}}),
        ({"allOf": [{"if": {}, "then": {}}], "type": "object"}, {"type": "object"}),
    ],
)
def test_a_keyword_that_only_judges_is_left_out(schema: Any, sent: Any):
    assert plain_schema(schema) == sent
