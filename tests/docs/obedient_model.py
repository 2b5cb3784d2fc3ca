"""A model for the pages: answers by the schema, with values out of what it was given.

It calls the first function that it is offered, once, then answers. A value is the member of the same name of
the function's result, else the word of the enum that the input names, else a number or the text of the input.
"""

from __future__ import annotations

import json
import re
from typing import Any


def answer(body: dict[str, Any]) -> Any:
    """Answer one request of the OpenAI wire format."""
    messages = body["messages"]
    told = [m["content"] for m in messages if m["role"] == "tool"]
    given = next(m["content"] for m in reversed(messages) if m["role"] == "user")
    if body.get("tools") and not told:
        function = body["tools"][0]["function"]
        return {"call": function["name"], "arguments": _fill(function["parameters"], given, {})}
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    if schema is None:
        return given
    value = _fill(schema, given, _parse(told[-1]) if told else {})
    return value if isinstance(value, str) else json.dumps(value)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _fill(schema: dict[str, Any], given: str, known: Any, name: str = "") -> Any:
    if isinstance(known, dict) and name in known:
        return known[name]
    if "enum" in schema:
        words = schema["enum"]
        return next((word for word in words if str(word) in given.lower()), words[0])
    kind = schema.get("type", "object")
    if kind == "object":
        properties = schema.get("properties", {})
        return {key: _fill(part, given, known, key) for key, part in properties.items()}
    if kind == "array":
        return [_fill(schema.get("items", {}), given, known)]
    if kind in ("number", "integer"):
        found = re.search(r"\d+", given)
        return int(found[0]) if found else 0
    return True if kind == "boolean" else _member(given, name)


def _member(given: str, name: str) -> str:
    """Return what stands behind `name:` in the input, or all of it."""
    found = re.search(rf"^{re.escape(name)}: (.*)$", given, re.MULTILINE) if name else None
    return found[1] if found else given
