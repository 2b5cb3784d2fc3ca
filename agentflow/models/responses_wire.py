"""The Responses API of OpenAI on the wire: how a request is written, and the events of an answer.

Pure translation; no I/O and no error categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from agentflow.definition.conversation import Message, ToolSchema, Usage
from agentflow.models.base import ModelRequest
from agentflow.models.event_json import TokenCount, object_of, token_count
from agentflow.models.function_names import FunctionNames
from agentflow.models.openai_wire import data_url
from agentflow.models.output_schemas import plain_schema, strict_schema
from agentflow.models.parameters import take_output_limit
from agentflow.models.tool_choice import PARAMETER, answer_function, chosen_function, tool_choice

__all__ = [
    "FORMAT",
    "OUTPUT_LIMITS",
    "PARAMETERS",
    "Event",
    "Item",
    "WireResponse",
    "WireUsage",
    "encode_request",
    "usage_of",
]

FORMAT: Final = "openai-responses"
PARAMETERS: Final = (
    "include",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_effort",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "verbosity",
)
OUTPUT_LIMITS: Final = ("max_output_tokens", "max_completion_tokens", "max_tokens")
_ENCRYPTED: Final = "reasoning.encrypted_content"


class _InputDetails(msgspec.Struct):
    cached_tokens: TokenCount = None
    cache_write_tokens: TokenCount = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: TokenCount = None


class WireUsage(msgspec.Struct):
    """Token counts as the provider writes them."""

    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class Content(msgspec.Struct):
    """A part of a message: text or refusal."""

    type: str = ""
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct):
    """An item of the output: a message, a call, or reasoning, which stays as it is (`raw`)."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    status: str | None = None
    content: list[Content] | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class WireResponse(msgspec.Struct):
    """The response so far; whole in the last event."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    usage: WireUsage | None = None
    error: Any = None
    incomplete_details: _Incomplete | None = None
    output: list[msgspec.Raw] | None = None


class Event(msgspec.Struct):
    """One event of a stream; a body that was not streamed is the response itself."""

    type: str = ""
    object: str | None = None
    output_index: int | float | None = None
    item: msgspec.Raw = msgspec.Raw(b"null")
    delta: Any = None
    response: WireResponse | None = None
    code: str | None = None
    message: str | None = None
    error: Any = None
    param: str | None = None


def usage_of(wire: WireUsage) -> Usage:
    """Return the usage without its cost."""
    read, written = wire.input_tokens_details, wire.output_tokens_details
    return Usage(
        input_tokens=token_count(wire.input_tokens),
        output_tokens=token_count(wire.output_tokens),
        cache_read_input_tokens=token_count(read.cached_tokens if read else None),
        cache_creation_input_tokens=token_count(read.cache_write_tokens if read else None),
        reasoning_output_tokens=token_count(written.reasoning_tokens if written else None),
        model_calls=1,
    )


def encode_request(request: ModelRequest, names: FunctionNames, *, provider: str) -> bytes:
    """Return the JSON body. Parameters and `extra` never replace what the request itself says.

    The provider stores nothing unless `store` asks for it: the log has the conversation, and reasoning comes
    encrypted and is sent back.
    """
    body: dict[str, Any] = {**request.extra, **request.parameters}
    limit = take_output_limit(body, OUTPUT_LIMITS)
    if limit is not None:
        body["max_output_tokens"] = limit
    effort = body.pop("reasoning_effort", None)
    if effort is not None:
        body["reasoning"] = {**object_of(body.get("reasoning")), "effort": effort}
    verbosity = body.pop("verbosity", None)
    text = object_of(body.get("text")) | ({} if verbosity is None else {"verbosity": verbosity})
    body.setdefault("store", False)
    if body["store"] is False:
        asked = body.get("include")
        include = list(cast("list[Any]", asked)) if isinstance(asked, list) else []
        body["include"] = include if _ENCRYPTED in include else [*include, _ENCRYPTED]
    body["model"] = request.model
    body["stream"] = True
    if isinstance(request.output_schema, dict):
        plain = plain_schema(request.output_schema)
        form = {"type": "json_schema", "name": "answer", "schema": plain, "strict": strict_schema(plain)}
        text["format"] = form
    if text:
        body["text"] = text
    if request.tools:
        body["tools"] = [_tool(tool, names) for tool in request.tools]
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if PARAMETER in request.parameters or answer_function(request) is not None:
        body.pop(PARAMETER, None)
        choice, function = tool_choice(request), chosen_function(request)
        if function is not None:
            choice = {"type": "function", "name": names.write(function)}
        if choice is not None:
            body[PARAMETER] = choice
    body["input"] = _items(request.messages, names, provider)
    return msgspec.json.encode(body)


def _tool(tool: ToolSchema, names: FunctionNames) -> dict[str, Any]:
    return {
        "type": "function",
        "name": names.write(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": False,
    }


def _items(messages: Sequence[Message], names: FunctionNames, provider: str) -> list[dict[str, Any]]:
    known = {call.id: call.provider_id or call.id for m in messages for call in m.tool_calls}
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            called = known.get(message.tool_call_id or "", message.tool_call_id or "")
            output: Any = message.content
            if message.media:
                output = [
                    {"type": "input_text", "text": message.content},
                    *({"type": "input_image", "image_url": data_url(part)} for part in message.media),
                ]
            items.append({"type": "function_call_output", "call_id": called, "output": output})
            continue
        items += message.reasoning_for(provider, FORMAT)
        if message.content:
            items.append({"role": message.role, "content": message.content})
        for call in message.tool_calls:
            written = {"type": "function_call", "call_id": known[call.id], "name": names.write(call.name)}
            items.append({**written, "arguments": call.arguments})
    return items
