"""Chat completions on the wire: how a request is written, and the chunks of an answer.

Pure translation between agentflow's vocabulary and the OpenAI protocol; no I/O and no error categories.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from agentflow.definition.conversation import Message, ToolSchema, Usage
from agentflow.models.base import ModelRequest
from agentflow.models.tool_choice import PARAMETER, chosen_function, tool_choice

__all__ = [
    "Chunk",
    "FunctionNames",
    "WireCall",
    "WireChoice",
    "WireText",
    "WireUsage",
    "decode_chunk",
    "encode_request",
    "strict_schema",
    "usage_of",
]

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
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


_MAX_COUNT: Final = 1 << 53
"""A count of tokens beyond this is none: an event could not hold it exactly."""

_Count = int | float | None
"""Some servers write counts and indices as floats."""


class _Details(msgspec.Struct):
    cached_tokens: _Count = None
    reasoning_tokens: _Count = None


class WireUsage(msgspec.Struct):
    """Token counts as the provider writes them."""

    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: _Count = None


class WireFunction(msgspec.Struct):
    """A piece of a function call: the name comes once, the arguments in pieces."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class WireCall(msgspec.Struct):
    """A piece of one tool call, told from others by `index`."""

    index: int | float | None = None
    id: str | None = None
    function: WireFunction | None = None


class WireText(msgspec.Struct):
    """The new part of an answer (a whole one when the server did not stream); `content` is text or parts."""

    content: str | list[Any] | dict[str, Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: list[WireCall] | None = None


class WireChoice(msgspec.Struct):
    """One answer; only the first is asked for."""

    index: int | float | None = None
    delta: WireText | None = None
    message: WireText | None = None
    finish_reason: str | None = None
    error: Any = None


class Chunk(msgspec.Struct):
    """One event of a stream, or the whole body of an answer that was not streamed."""

    id: str | None = None
    model: str | None = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Any = None


_chunks: Final = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Read one event's data. Half a surrogate pair, which its other half may follow in the next chunk, stays
    half a pair. Raises msgspec.DecodeError or ValueError."""
    try:
        return _chunks.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # The fast decoder refuses half a pair; the standard one keeps it.
        try:
            value = json.loads(data, parse_constant=_refuse)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return msgspec.convert(value, Chunk)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class FunctionNames:
    """Function names that the protocol takes (no dot, 64 characters), and the way back.

    The same name is always written the same way, so that earlier turns of a conversation agree with later
    ones; two names that would be written alike get a digest of the name at the end.
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._back: dict[str, str] = {}
        self._forth: dict[str, str] = {}
        for tool in sorted(tools, key=lambda t: (not _PLAIN_NAME.fullmatch(t.name), t.name)):
            written = _written(tool.name)
            if self._back.get(written, tool.name) != tool.name:
                written = _digested(tool.name)
            self._back[written], self._forth[tool.name] = tool.name, written

    def write(self, name: str) -> str:
        """The name on the wire."""
        return self._forth.get(name) or _written(name)

    def read(self, written: str) -> str:
        """The function that the model meant; an unknown name stays as it is."""
        return self._back.get(written, written)


def encode_request(
    request: ModelRequest, names: FunctionNames, *, output_limit_key: str = "max_tokens"
) -> bytes:
    """Return the JSON body. Parameters and `extra` never replace what the request itself says."""
    body: dict[str, Any] = {**request.extra, **request.parameters}
    _name_output_limit(body, output_limit_key)
    body["model"] = request.model
    body["stream"] = True
    options = body.get("stream_options")
    body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    messages = list(request.messages)
    if PARAMETER in request.parameters:
        del body[PARAMETER]
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
        choice, function = tool_choice(request), chosen_function(request)
        if function is not None:
            choice = {"type": "function", "function": {"name": names.write(function)}}
        if choice is not None:
            body[PARAMETER] = choice
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    schema = request.output_schema
    if isinstance(schema, dict) and schema.get("type") == "object":
        body["response_format"] = _response_format(schema)
    elif schema is not None:
        # The protocol takes object schemas only; for others the model is told, and the caller validates.
        messages.insert(_after_system(messages), Message(role="system", content=_in_words(schema)))
    body["messages"] = _messages(messages, names)
    return msgspec.json.encode(body)


def _name_output_limit(body: dict[str, Any], key: str) -> None:
    """Write the limit of the answer under the server's name for it; of two limits the lower one holds, since
    a budget counts on it."""
    limits = {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body}
    if len(limits) == 2 or (key != "max_tokens" and "max_tokens" in limits):
        counts = [limit for limit in limits.values() if isinstance(limit, int | float)]
        for name in limits:
            del body[name]
        body[key] = min(counts) if counts else next(iter(limits.values()))


def usage_of(wire: WireUsage | None) -> Usage:
    """Usage without cost; zeros where the server does not count."""
    if wire is None:
        return Usage(model_calls=1)
    details, written = wire.prompt_tokens_details, wire.completion_tokens_details
    cached = details.cached_tokens if details else None
    return Usage(
        input_tokens=_count(wire.prompt_tokens),
        output_tokens=_count(wire.completion_tokens),
        cache_read_input_tokens=_count(wire.prompt_cache_hit_tokens if cached is None else cached),
        reasoning_output_tokens=_count(written.reasoning_tokens if written else None),
        model_calls=1,
    )


def _count(value: int | float | None) -> int:
    """A count as a whole number; 0 for what is none."""
    return int(value) if value is not None and 0 <= value <= _MAX_COUNT else 0


def strict_schema(schema: object) -> bool:
    """Whether the provider's strict mode takes the schema: closed objects, every property required, and
    only keywords that it knows. Too careful is harmless: the answer is validated all the same."""
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


def _written(name: str) -> str:
    dotless = name.replace(".", "__")
    return dotless if _PLAIN_NAME.fullmatch(dotless) else _digested(name)


def _digested(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:55] + "_" + digest


def _tool(tool: ToolSchema, names: FunctionNames) -> dict[str, Any]:
    function = {
        "name": names.write(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    answer = {"name": "answer", "schema": plain, "strict": strict_schema(plain)}
    return {"type": "json_schema", "json_schema": answer}


def _in_words(schema: dict[str, Any] | bool) -> str:
    if isinstance(schema, bool) or not schema:
        return "Answer with one JSON value and nothing else."
    text = msgspec.json.encode(schema).decode()
    return f"Answer with JSON that is valid by this JSON Schema, and nothing else: {text}"


def _after_system(messages: Sequence[Message]) -> int:
    return next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))


def _messages(messages: Sequence[Message], names: FunctionNames) -> list[dict[str, Any]]:
    # A provider knows a call by the id it gave; one that another provider made is known by the runtime's.
    known = {call.id: call.provider_id or call.id for m in messages for call in m.tool_calls}
    written: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant" and not (message.content or message.tool_calls):
            continue  # an empty answer: servers refuse a message with neither text nor calls
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "tool":
            one["tool_call_id"] = known.get(message.tool_call_id or "", message.tool_call_id or "")
        elif message.tool_calls:
            one["content"] = message.content or None
            one["tool_calls"] = [
                {
                    "id": known[call.id],
                    "type": "function",
                    "function": {"name": names.write(call.name), "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        written.append(one)
    return written
