"""How a model is told the schema of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from agentflow.definition.conversation import Message, ToolSchema
from agentflow.models.base import ModelProfile, ModelRequest, SchemaMode

__all__ = ["AnswerFunction", "plain_schema", "schema_mode", "shape_request", "strict_schema"]

_WHEN_TO_ANSWER: Final = "Give the final answer, as the only call, when no other function is needed."
_STRICT_KEYS: Final = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "$ref",
        "$defs",
        "title",
        "description",
    }
)

_JUDGES: Final = frozenset(
    {
        *("$schema", "$id", "$comment", "if", "then", "else", "not", "contains", "minContains"),
        *("maxContains", "dependentSchemas", "dependentRequired", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems"),
    }
)
"""Keywords that no provider makes an answer by, and that some refuse."""


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the keywords that providers take: those that only judge a value, such as `if` and
    `contains`, are left out. The answer is held against the whole schema all the same."""
    return cast("dict[str, Any]", _sendable(dict(schema)))


def _sendable(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in _JUDGES:
            continue
        if key == "pattern" and not (str(value).startswith("^") and str(value).endswith("$")):
            continue  # makers of grammars take whole texts only
        if key in ("properties", "$defs") and isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            found[key] = {name: _sendable(part) for name, part in members.items()}
        elif key in ("items", "additionalProperties"):
            found[key] = _sendable(value)
        elif key in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            parts = [_sendable(part) for part in cast("list[Any]", value)]
            left = [part for part in parts if part != {}]
            if left and (key == "allOf" or len(left) == len(parts)):  # one that takes anything takes all
                found[key] = left
        else:
            found[key] = value
    return found


class AnswerFunction(ToolSchema, frozen=True):
    """The function by whose call a model answers by a schema."""


def schema_mode(request: ModelRequest, profile: ModelProfile) -> SchemaMode | None:
    """Return how the model is asked to answer by the schema of the request; None without one. Functions take
    objects only, as do most providers."""
    schema = request.output_schema
    if schema is None:
        return None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "prompt"
    beside = profile.schema_mode_with_functions if request.tools else None
    return beside or profile.schema_mode


def shape_request(request: ModelRequest, mode: SchemaMode | None) -> ModelRequest:
    """Return the request with its schema where the mode wants it: in place, as the function that gives the
    answer, or in the prompt."""
    schema = request.output_schema
    if mode == "tool" and isinstance(schema, dict):
        function = AnswerFunction(
            name=_free_name(request), description=_WHEN_TO_ANSWER, input_schema=plain_schema(schema)
        )
        return msgspec.structs.replace(request, tools=(*request.tools, function), output_schema=None)
    if mode != "prompt" or schema is None:
        return request
    place = next((i for i, m in enumerate(request.messages) if m.role != "system"), len(request.messages))
    words = Message(role="system", content=_in_words(schema))
    messages = (*request.messages[:place], words, *request.messages[place:])
    return msgspec.structs.replace(request, messages=messages, output_schema=None)


def _free_name(request: ModelRequest) -> str:
    taken, name = {tool.name for tool in request.tools}, "answer"
    while name in taken:
        name = f"final_{name}"
    return name


def _in_words(schema: dict[str, Any] | bool) -> str:
    if isinstance(schema, bool) or not schema:
        return "Answer with one JSON value and nothing else."
    text = msgspec.json.encode(schema).decode()
    return f"Answer with JSON that is valid by this JSON Schema, and nothing else: {text}"


def strict_schema(schema: object) -> bool:
    """Return whether the provider's strict mode takes the schema: closed objects, every property required,
    and only keywords that it knows. Too careful is harmless: the answer is validated all the same."""
    if isinstance(schema, bool):
        return False
    if not isinstance(schema, dict):
        return False
    node = cast("dict[str, Any]", schema)
    if not node.keys() <= _STRICT_KEYS:
        return False
    properties: Mapping[str, Any] = node.get("properties") or {}
    if (node.get("type") == "object" or properties) and (
        node.get("additionalProperties") is not False or set(node.get("required") or ()) != set(properties)
    ):
        return False
    defs: Mapping[str, Any] = node.get("$defs") or {}
    nested = [*properties.values(), *defs.values(), *(node.get("anyOf") or ())]
    if "items" in node:
        nested.append(node["items"])
    return all(strict_schema(part) for part in nested)
