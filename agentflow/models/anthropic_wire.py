"""The Messages API of Anthropic on the wire: how a request is written, and the events of an answer.

Pure translation; no I/O and no error categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from agentflow.definition.conversation import Message, ToolSchema, Usage
from agentflow.models.base import ModelRequest
from agentflow.models.event_json import TokenCount, object_of, token_count
from agentflow.models.function_names import FunctionNames
from agentflow.models.output_schemas import plain_schema
from agentflow.models.parameters import take_output_limit
from agentflow.models.tool_choice import PARAMETER, answer_function, tool_choice

__all__ = [
    "FORMAT",
    "PARAMETERS",
    "Block",
    "Delta",
    "Event",
    "WireUsage",
    "counts_of",
    "encode_request",
    "usage_of",
]

FORMAT: Final = "anthropic"
_RENAMED: Final = {"stop": "stop_sequences"}
PARAMETERS: Final = (
    "cache_control",
    "container",
    "inference_geo",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "output_config",
    "reasoning_effort",
    "service_tier",
    "speed",
    "stop",
    "stop_sequences",
    "temperature",
    "thinking",
    "tool_choice",
    "top_k",
    "top_p",
    "user",
)
_OUTPUT_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_LEAST_THINKING: Final = 1_024
_EPHEMERAL: Final = {"type": "ephemeral"}


class _OutputDetails(msgspec.Struct):
    thinking_tokens: TokenCount = None


class WireUsage(msgspec.Struct):
    """Token counts; `input_tokens` are those that were neither read from the cache nor written to it."""

    input_tokens: TokenCount = None
    output_tokens: TokenCount = None
    cache_creation_input_tokens: TokenCount = None
    cache_read_input_tokens: TokenCount = None
    output_tokens_details: _OutputDetails | None = None


class Block(msgspec.Struct):
    """A content block, as it begins or whole."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Any = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Delta(msgspec.Struct):
    """What is new in a block, or in the message."""

    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class WireMessage(msgspec.Struct):
    """The message as it begins, or a whole one."""

    id: str | None = None
    model: str | None = None
    usage: WireUsage | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None


class Event(msgspec.Struct):
    """One event of a stream; a body that was not streamed is the whole message."""

    type: str = ""
    index: int | float = 0
    message: WireMessage | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: WireUsage | None = None
    error: Any = None
    id: str | None = None
    model: str | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None


def usage_of(counts: Mapping[str, int]) -> Usage:
    """Return the usage; input that came from the cache or went into it counts as input too."""
    read, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
    return Usage(
        input_tokens=counts.get("input_tokens", 0) + read + written,
        output_tokens=counts.get("output_tokens", 0),
        cache_read_input_tokens=read,
        cache_creation_input_tokens=written,
        reasoning_output_tokens=counts.get("thinking_tokens", 0),
        model_calls=1,
    )


def counts_of(usage: WireUsage) -> dict[str, int]:
    """Return the counts that the server gave."""
    details = usage.output_tokens_details
    given = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
        "thinking_tokens": details.thinking_tokens if details else None,
    }
    return {name: token_count(count) for name, count in given.items() if count is not None}


def encode_request(
    request: ModelRequest,
    names: FunctionNames,
    *,
    provider: str,
    default_output_limit: int,
    caches: bool,
) -> bytes:
    """Return the JSON body. Parameters and `extra` never replace what the request itself says.

    With `caches` the prompt is cached up to the end of the system prompt and of the conversation, which the
    next turn repeats.
    """
    body: dict[str, Any] = {**request.extra, **request.parameters}
    _name_parameters(body)
    limit = take_output_limit(body, _OUTPUT_LIMITS)
    body["max_tokens"] = default_output_limit if limit is None else limit
    _bound_thinking(body)
    body["model"] = request.model
    body["stream"] = True
    tools = [_tool(tool, names) for tool in request.tools]
    choice = body.pop(PARAMETER, None)
    if PARAMETER in request.parameters or answer_function(request) is not None:
        choice = tool_choice(request)
    system, messages = _conversation(request.messages, names, provider)
    if isinstance(request.output_schema, dict):
        form = {"format": {"type": "json_schema", "schema": plain_schema(request.output_schema)}}
        body["output_config"] = object_of(body.get("output_config")) | form
    if tools:
        body["tools"] = tools
        written = _choice(choice, names, request.parallel_tool_calls)
        if written is not None:
            body["tool_choice"] = written
    if system:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text} for text in system]
        body["system"] = blocks
        if caches:
            blocks[-1]["cache_control"] = _EPHEMERAL
    if caches and messages:
        messages[-1]["content"][-1] = {**messages[-1]["content"][-1], "cache_control": _EPHEMERAL}
    body["messages"] = messages
    return msgspec.json.encode(body)


def _bound_thinking(body: dict[str, Any]) -> None:
    """Keep the tokens for thoughts below the limit of the answer, which a budget may have lowered: the API
    refuses a request in which they are not. Thoughts get three quarters, or none below their minimum."""
    thinking, limit = object_of(body.get("thinking")), body["max_tokens"]
    asked = thinking.get("budget_tokens")
    if not isinstance(asked, int) or not isinstance(limit, int) or asked < limit:
        return
    left = limit * 3 // 4
    body["thinking"] = (
        {**thinking, "budget_tokens": left} if left >= _LEAST_THINKING else {"type": "disabled"}
    )


def _name_parameters(body: dict[str, Any]) -> None:
    """Write the parameters of chat completions as this wire format names them."""
    for name, written in _RENAMED.items():
        if name in body:
            value = body.pop(name)
            body.setdefault(written, [value] if isinstance(value, str) else value)
    effort = body.pop("reasoning_effort", None)
    if effort is not None:
        body["output_config"] = {**object_of(body.get("output_config")), "effort": effort}
    user = body.pop("user", None)
    if user is not None:
        body.setdefault("metadata", {"user_id": user})


def _tool(tool: ToolSchema, names: FunctionNames) -> dict[str, Any]:
    return {
        "name": names.write(tool.name),
        "description": tool.description,
        "input_schema": tool.input_schema,
    }


def _choice(choice: object, names: FunctionNames, parallel: bool) -> dict[str, Any] | None:
    """Return the choice of functions: that of chat completions in the words of this wire format."""
    written: dict[str, Any] | None = None
    if isinstance(choice, str):
        written = {"type": {"required": "any"}.get(choice, choice)}
    elif isinstance(choice, dict):
        members = object_of(cast("object", choice))
        name = object_of(members.get("function")).get("name")
        written = {"type": "tool", "name": names.write(str(name))} if name is not None else members
    if not parallel and (written is None or written.get("type") in ("auto", "any", "tool")):
        written = {**(written or {"type": "auto"}), "disable_parallel_tool_use": True}
    return written


def _conversation(
    messages: Sequence[Message], names: FunctionNames, provider: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the system prompt and the turns. A system message after the first turn is said by the user,
    because turns have no third role; neighbours of one role are one turn."""
    known = {call.id: call.provider_id or call.id for m in messages for call in m.tool_calls}
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system" and not turns:
            if message.content:
                system.append(message.content)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, known, names, provider)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _blocks(
    message: Message, known: Mapping[str, str], names: FunctionNames, provider: str
) -> list[dict[str, Any]]:
    if message.role == "tool":
        called = known.get(message.tool_call_id or "", message.tool_call_id or "")
        content: Any = message.content
        if message.media:
            content = [
                {"type": "text", "text": message.content},
                *(
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": part.media_type, "data": part.data},
                    }
                    for part in message.media
                ),
            ]
        return [{"type": "tool_result", "tool_use_id": called, "content": content}]
    blocks: list[dict[str, Any]] = message.reasoning_for(provider, FORMAT)
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        block: dict[str, Any] = {"type": "tool_use", "id": known[call.id], "name": names.write(call.name)}
        blocks.append({**block, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """Return the arguments as the object that the wire format wants; text that is none stands in a member."""
    try:
        value: Any = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = arguments
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"arguments": value}
