"""A model that answers anything valid: a whole document runs without a script."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, cast

import msgspec

from agentflow.definition.schemas import validate
from agentflow.models.base import DeltaSink, ModelProfile, ModelReply, ModelRequest
from agentflow.testing.scripted import Call, ScriptedModel

__all__ = ["ValidModel", "valid_value"]

_FORMATS: Final = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "duration": "PT1S",
    "email": "ada@example.org",
    "hostname": "example.org",
    "idn-email": "ada@example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "iri": "https://example.org/",
    "json-pointer": "/a",
    "regex": "a",
    "time": "00:00:00Z",
    "uri": "https://example.org/",
    "uri-reference": "/a",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_MAX_DEPTH: Final = 64


class ValidModel:
    """A provider that calls each function that it is offered once, with arguments that fit its schema, and
    then answers by the schema of the answer, or with `text`.

    `calls` names the functions that it calls; None is all. The same request gets the same answer. Raises
    AssertionError for a schema by which it finds no value; that answer is to be scripted.
    """

    def __init__(
        self, *, name: str = "valid", calls: Collection[str] | None = None, text: str = "fine"
    ) -> None:
        self._calls = calls
        self._text = text
        self._script = ScriptedModel(self._step, name=name)

    @property
    def name(self) -> str:
        """The part of `name:model` before the colon."""
        return self._script.name

    @property
    def max_concurrency(self) -> int:
        """How many calls may be open at once."""
        return self._script.max_concurrency

    @property
    def limiter_key(self) -> str:
        """The name."""
        return self._script.limiter_key

    @property
    def requests(self) -> list[ModelRequest]:
        """Every request, in order of arrival."""
        return self._script.requests

    def profile(self, model: str) -> ModelProfile:
        """Return that of a ScriptedModel."""
        return self._script.profile(model)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """Answer."""
        return await self._script.complete(request, new_call_id=new_call_id, on_delta=on_delta)

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""

    def _step(self, request: ModelRequest) -> Any:
        called = {call.name for message in request.messages for call in message.tool_calls}
        offered = [tool for tool in request.tools if self._calls is None or tool.name in self._calls]
        calls = [
            Call(tool.name, msgspec.json.encode(valid_value(tool.input_schema)).decode())
            for tool in offered
            if tool.name not in called
        ]
        if calls:
            return calls
        schema = request.output_schema
        if schema is None:
            return self._text
        # A text would be taken as the answer itself, and must be JSON here.
        return msgspec.json.encode(valid_value(schema)).decode()


def valid_value(schema: dict[str, Any] | bool) -> Any:
    """Return a value that is valid by the schema, the same one each time.

    Raises AssertionError if none is found: a pattern, or parts that exclude each other.
    """
    value = _value(schema, schema, 0)
    if validate(schema, value):
        written = msgspec.json.encode(schema).decode()[:300]
        raise AssertionError(f"no valid value was found for the schema {written}; script this answer")
    return value


def _value(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return "text"
    node = cast("dict[str, Any]", schema)
    if "const" in node:
        return node["const"]
    # A document may name values that its own type refuses.
    named = [node["default"]] if "default" in node else []
    named += node.get("enum") or node.get("examples") or ()
    for value in named:
        if not validate(_rooted(node, root), value):
            return value
    if "$ref" in node:
        return _value(_resolve(str(node["$ref"]), root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        for part in node.get(key) or ():
            rest = {name: value for name, value in node.items() if name != key}
            value = _value(_merged([rest, part], root), root, depth + 1)
            if not validate(_rooted(node, root), value):
                return value
    if node.get("allOf"):
        rest = {name: value for name, value in node.items() if name != "allOf"}
        return _value(_merged([rest, *node["allOf"]], root), root, depth + 1)
    return _of_type(_type(node), node, root, depth)


def _type(node: dict[str, Any]) -> str:
    stated = node.get("type")
    if isinstance(stated, list) and stated:
        return str(cast("list[Any]", stated)[0])
    if isinstance(stated, str):
        return stated
    hints = {"properties": "object", "required": "object", "items": "array", "minimum": "number"}
    return next((kind for key, kind in hints.items() if key in node), "string")


def _of_type(kind: str, node: dict[str, Any], root: Any, depth: int) -> Any:
    match kind:
        case "object":
            properties: dict[str, Any] = node.get("properties") or {}
            required: list[str] = list(node.get("required") or ())
            more = [name for name in properties if name not in required]
            wanted = [*required, *more[: max(0, int(node.get("minProperties") or 0) - len(required))]]
            other = node.get("additionalProperties", True)
            return {name: _value(properties.get(name, other), root, depth + 1) for name in wanted}
        case "array":
            prefix: list[Any] = list(node.get("prefixItems") or ())
            least = int(node.get("minItems") or (1 if "contains" in node else 0))
            item = node.get("contains", node.get("items", True))
            places = [*prefix, *[item] * max(0, least - len(prefix))][: max(least, len(prefix))]
            values = [_value(place, root, depth + 1) for place in places]
            return _distinct(values) if node.get("uniqueItems") else values
        case "integer" | "number":
            return _number(node, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case _:
            text = _FORMATS.get(str(node.get("format")), "text")
            least, most = int(node.get("minLength") or 0), node.get("maxLength")
            text = text if len(text) >= least else text + "x" * (least - len(text))
            return text if most is None or "format" in node else text[: int(most)]


def _number(node: dict[str, Any], *, whole: bool) -> int | float:
    step = node.get("multipleOf") or 1
    low, high = node.get("minimum"), node.get("maximum")
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    if low is None and above is not None:
        low = above + (step if whole or below is None else (below - above) / 2)
    if low is None:
        top = high if high is not None else None if below is None else below - step
        low = 0 if top is None or top >= 0 else top
    number = -(-low // step) * step if whole or "multipleOf" in node else low
    return int(number) if whole else number


def _distinct(values: list[Any]) -> list[Any]:
    """Make equal numbers and texts different."""
    found: list[Any] = []
    for value in values:
        while value in found and isinstance(value, int | float | str) and not isinstance(value, bool):
            value = value + "x" if isinstance(value, str) else value + 1
        found.append(value)
    return found


def _merged(parts: list[Any], root: Any) -> dict[str, Any]:
    """Return one schema with the members of all; those of objects are joined."""
    made: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, dict):
            continue
        members = cast("dict[str, Any]", part)
        if "$ref" in members:
            members = {**_merged([_resolve(str(members["$ref"]), root)], root), **members}
            members.pop("$ref")
        for key, value in members.items():
            if key == "properties" and key in made:
                made[key] = {**made[key], **value}
            elif key == "required" and key in made:
                made[key] = [*made[key], *(name for name in value if name not in made[key])]
            else:
                made[key] = value
    return made


def _resolve(reference: str, root: Any) -> Any:
    found = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = cast("dict[str, Any]", found).get(key) if isinstance(found, dict) else None
    return found if found is not None else True


def _rooted(node: dict[str, Any], root: Any) -> dict[str, Any]:
    """Return the part with the definitions of the whole, which its references need."""
    if not isinstance(root, dict):
        return node
    whole = cast("dict[str, Any]", root)
    return {**{key: whole[key] for key in ("$defs", "definitions") if key in whole}, **node}
