"""Chat completions on the wire: how a request is written, and the chunks of an answer.

Pure translation between agentflow's vocabulary and the OpenAI protocol; no I/O and no error categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentflow.definition.conversation import MediaPart, Message, ToolSchema, Usage
from agentflow.models.base import ModelRequest
from agentflow.models.event_json import TokenCount, decode_event, token_count
from agentflow.models.function_names import FunctionNames
from agentflow.models.output_schemas import plain_schema, strict_schema
from agentflow.models.tool_choice import PARAMETER, chosen_function, tool_choice

__all__ = [
    "FORMAT",
    "Chunk",
    "WireCall",
    "WireChoice",
    "WireText",
    "WireUsage",
    "data_url",
    "decode_chunk",
    "encode_request",
    "usage_of",
]

FORMAT: Final = "openai"

"""Some servers write counts and indices as floats."""


class _Details(msgspec.Struct):
    cached_tokens: TokenCount = None
    cache_write_tokens: TokenCount = None
    reasoning_tokens: TokenCount = None


class WireUsage(msgspec.Struct):
    """Token counts as the provider writes them."""

    prompt_tokens: TokenCount = None
    completion_tokens: TokenCount = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    total_tokens: TokenCount = None
    prompt_cache_hit_tokens: TokenCount = None
    cached_tokens: TokenCount = None


class WireFunction(msgspec.Struct):
    """A piece of a function call: the name comes once, the arguments in pieces."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class WireCall(msgspec.Struct):
    """A piece of one tool call, told from others by `index`."""

    index: int | float | None = None
    id: str | None = None
    function: WireFunction | None = None
    extra_content: Any = None


class WireText(msgspec.Struct):
    """The new part of an answer (a whole one when the server did not stream); `content` is text or parts."""

    content: str | list[Any] | dict[str, Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[WireCall] | None = None


class WireChoice(msgspec.Struct):
    """One answer; only the first is asked for."""

    index: int | float | None = None
    delta: WireText | None = None
    message: WireText | None = None
    finish_reason: str | None = None
    error: Any = None
    usage: WireUsage | None = None


class _Groq(msgspec.Struct):
    usage: WireUsage | None = None


class Chunk(msgspec.Struct):
    """One event of a stream, or the whole body of an answer that was not streamed."""

    id: str | None = None
    model: str | None = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    object: str | None = None
    x_groq: _Groq | None = None


_chunks: Final = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Read one event's data, as `decode_event` does."""
    return decode_event(data, _chunks)


def encode_request(
    request: ModelRequest,
    names: FunctionNames,
    *,
    provider: str = FORMAT,
    output_limit_name: str | None = None,
    stream_options: bool = True,
) -> bytes:
    """Return the JSON body. Parameters and `extra` never replace what the request itself says.

    The limit of the answer keeps the name that it has if `output_limit_name` is None.
    """
    body: dict[str, Any] = {**request.extra, **request.parameters}
    _name_output_limit(body, output_limit_name)
    body["model"] = request.model
    body["stream"] = True
    options = body.pop("stream_options", None)
    if stream_options:
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
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
    if isinstance(request.output_schema, dict):
        body["response_format"] = _response_format(request.output_schema)
    body["messages"] = _messages(request.messages, names, provider)
    return msgspec.json.encode(body)


def _name_output_limit(body: dict[str, Any], key: str | None) -> None:
    """Write the limit of the answer under the server's name for it; of two limits the lower one holds, since
    a budget counts on it."""
    limits = {name: body[name] for name in ("max_tokens", "max_completion_tokens") if name in body}
    if len(limits) == 2 or (limits and key is not None and key not in limits):
        counts = [limit for limit in limits.values() if isinstance(limit, int | float)]
        for name in limits:
            del body[name]
        body[key or "max_tokens"] = min(counts) if counts else next(iter(limits.values()))


def usage_of(wire: WireUsage | None) -> Usage:
    """Return the usage without cost; zeros where the server does not count.

    xAI and Gemini's compatible server leave reasoning out of `completion_tokens`; what their total has beyond
    the prompt is what they wrote, and charge.
    """
    if wire is None:
        return Usage(model_calls=1)
    details, written = wire.prompt_tokens_details, wire.completion_tokens_details
    caches = (details.cached_tokens if details else None, wire.prompt_cache_hit_tokens, wire.cached_tokens)
    cached = token_count(next((count for count in caches if count is not None), None))
    read, said = token_count(wire.prompt_tokens), token_count(wire.completion_tokens)
    beyond = token_count(wire.total_tokens) - read - said
    kept = token_count(details.cache_write_tokens if details else None)
    # Some count the cache beside the prompt.
    unsaid = beyond if beyond > 0 and beyond not in (cached, kept, cached + kept) else 0
    reasoning = token_count(written.reasoning_tokens if written else None)
    return Usage(
        input_tokens=read,
        output_tokens=said + unsaid,
        cache_read_input_tokens=cached,
        cache_creation_input_tokens=kept,
        reasoning_output_tokens=max(reasoning, unsaid),
        model_calls=1,
    )


def _tool(tool: ToolSchema, names: FunctionNames) -> dict[str, Any]:
    function = {
        "name": names.write(tool.name),
        "description": tool.description,
        "parameters": tool.input_schema,
    }
    return {"type": "function", "function": function}


def _response_format(schema: dict[str, Any]) -> dict[str, Any]:
    plain = plain_schema(schema)
    answer = {"name": "answer", "schema": plain, "strict": strict_schema(plain)}
    return {"type": "json_schema", "json_schema": answer}


def _messages(messages: Sequence[Message], names: FunctionNames, provider: str) -> list[dict[str, Any]]:
    # A provider knows a call by the id it gave; one that another provider made is known by the runtime's.
    known = {call.id: call.provider_id or call.id for m in messages for call in m.tool_calls}
    written: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []  # images of the round of calls; a message of a function is text only
    for message in messages:
        if message.role != "tool" and shown:
            written.append({"role": "user", "content": shown})
            shown = []
        if message.role == "assistant" and not (message.content or message.tool_calls):
            continue  # an empty answer: servers refuse a message with neither text nor calls
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "tool":
            one["tool_call_id"] = known.get(message.tool_call_id or "", message.tool_call_id or "")
            if message.media:
                shown.append({"type": "text", "text": f"Returned by the call {one['tool_call_id']}:"})
            shown += [{"type": "image_url", "image_url": {"url": data_url(part)}} for part in message.media]
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
        for part in message.reasoning_for(provider, FORMAT):
            if "call" in part:  # as Gemini's compatible server signs a call
                one["tool_calls"][part["call"]]["extra_content"] = part["extra_content"]
            else:
                one |= part
        written.append(one)
    if shown:
        written.append({"role": "user", "content": shown})
    return written


def data_url(part: MediaPart) -> str:
    """Return the URL that holds the image."""
    return f"data:{part.media_type};base64,{part.data}"
