"""The Gemini API on the wire: how a request is written, and the events of an answer.

Pure translation; no I/O and no error categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from agentflow.definition.conversation import Message, ToolSchema, Usage
from agentflow.models.base import ModelRequest
from agentflow.models.event_json import TokenCount, token_count
from agentflow.models.function_names import FunctionNames
from agentflow.models.output_schemas import plain_schema
from agentflow.models.parameters import take_output_limit
from agentflow.models.tool_choice import PARAMETER, answer_function, tool_choice

__all__ = ["FORMAT", "PARAMETERS", "Candidate", "Event", "Part", "WireUsage", "encode_request", "usage_of"]

FORMAT: Final = "gemini"
_GENERATION: Final = {
    "candidate_count": "candidateCount",
    "frequency_penalty": "frequencyPenalty",
    "media_resolution": "mediaResolution",
    "presence_penalty": "presencePenalty",
    "seed": "seed",
    "stop": "stopSequences",
    "temperature": "temperature",
    "thinking_config": "thinkingConfig",
    "top_k": "topK",
    "top_p": "topP",
}
"""The parameters of a model object, and what they are called in `generationConfig`."""
_OUTPUT_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
PARAMETERS: Final = (*_GENERATION, *_OUTPUT_LIMITS, "reasoning_effort", "safety_settings", "tool_choice")
_MODES: Final = {"auto": "AUTO", "required": "ANY", "any": "ANY", "none": "NONE"}


class FunctionCall(msgspec.Struct):
    """A call, which comes whole."""

    name: str = ""
    id: str | None = None
    args: dict[str, Any] | None = None


class Part(msgspec.Struct, rename="camel"):
    """A piece of the answer: text, a thought, or a call; a signature may stand beside any of them."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None


class Content(msgspec.Struct):
    """The new parts of the answer."""

    parts: list[Part] | None = None


class Candidate(msgspec.Struct, rename="camel"):
    """One answer; only the first is read."""

    index: int | float | None = None
    content: Content | None = None
    finish_reason: str | None = None


class WireUsage(msgspec.Struct, rename="camel"):
    """Token counts; thoughts are not counted among the candidates."""

    prompt_token_count: TokenCount = None
    tool_use_prompt_token_count: TokenCount = None
    candidates_token_count: TokenCount = None
    thoughts_token_count: TokenCount = None
    cached_content_token_count: TokenCount = None


class PromptFeedback(msgspec.Struct, rename="camel"):
    """Why there is no answer at all."""

    block_reason: str | None = None


class Event(msgspec.Struct, rename="camel"):
    """One event of a stream, or the whole body."""

    candidates: list[Candidate] | None = None
    usage_metadata: WireUsage | None = None
    prompt_feedback: PromptFeedback | None = None
    model_version: str | None = None
    response_id: str | None = None
    error: Any = None


def usage_of(wire: WireUsage) -> Usage:
    """Return the usage; thoughts are paid for as output."""
    thoughts = token_count(wire.thoughts_token_count)
    return Usage(
        input_tokens=token_count(wire.prompt_token_count) + token_count(wire.tool_use_prompt_token_count),
        output_tokens=token_count(wire.candidates_token_count) + thoughts,
        cache_read_input_tokens=token_count(wire.cached_content_token_count),
        reasoning_output_tokens=thoughts,
        model_calls=1,
    )


def encode_request(request: ModelRequest, names: FunctionNames, *, provider: str) -> bytes:
    """Return the JSON body. Parameters and `extra` never replace what the request itself says; a member of
    `extra` that the body has too (`generationConfig`) is completed."""
    given = dict(request.parameters)
    generation: dict[str, Any] = {}
    limit = take_output_limit(given, _OUTPUT_LIMITS)
    if limit is not None:
        generation["maxOutputTokens"] = limit
    for name, written in _GENERATION.items():
        if name in given:
            value = given.pop(name)
            is_one_stop = name == "stop" and isinstance(value, str)
            generation.setdefault(written, [value] if is_one_stop else value)
    effort = given.pop("reasoning_effort", None)
    if effort is not None:
        generation.setdefault("thinkingConfig", {"thinkingLevel": str(effort).upper()})
    choice = given.pop(PARAMETER, None)
    if choice is not None or answer_function(request) is not None:
        choice = tool_choice(request)
    safety = given.pop("safety_settings", None)
    body: dict[str, Any] = {**request.extra, **given}
    if safety is not None:
        body["safetySettings"] = safety
    system, contents = _conversation(request.messages, names, provider)
    if isinstance(request.output_schema, dict):
        generation["responseMimeType"] = "application/json"
        generation["responseJsonSchema"] = plain_schema(request.output_schema)
    more = body.get("generationConfig")
    if generation or isinstance(more, dict):
        body["generationConfig"] = {
            **(cast("dict[str, Any]", more) if isinstance(more, dict) else {}),
            **generation,
        }
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_tool(tool, names) for tool in request.tools]}]
        config = _choice(choice, names)
        if config is not None:
            body["toolConfig"] = {"functionCallingConfig": config}
    if system:
        body["systemInstruction"] = {"parts": [{"text": text} for text in system]}
    body["contents"] = contents
    return msgspec.json.encode(body)


def _tool(tool: ToolSchema, names: FunctionNames) -> dict[str, Any]:
    return {
        "name": names.write(tool.name),
        "description": tool.description,
        "parametersJsonSchema": tool.input_schema,
    }


def _choice(choice: object, names: FunctionNames) -> dict[str, Any] | None:
    """Return the choice of functions: that of chat completions in the words of this wire format."""
    if isinstance(choice, str):
        return {"mode": _MODES.get(choice, choice)}
    if not isinstance(choice, dict):
        return None
    members = cast("dict[str, Any]", choice)
    function = members.get("function")
    if isinstance(function, dict):
        name = str(cast("dict[str, Any]", function).get("name"))
        return {"mode": "ANY", "allowedFunctionNames": [names.write(name)]}
    return members


def _conversation(
    messages: Sequence[Message], names: FunctionNames, provider: str
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the system prompt and the turns; neighbours of one role are one turn."""
    calls = {call.id: call for m in messages for call in m.tool_calls}
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system" and not turns:
            if message.content:
                system.append(message.content)
            continue
        role = "model" if message.role == "assistant" else "user"
        if message.role == "tool":
            call = calls.get(message.tool_call_id or "")
            name = call.name if call is not None else message.name or ""
            response: dict[str, Any] = {"name": names.write(name), "response": _result(message.content)}
            if call is not None and call.provider_id is not None:
                response["id"] = call.provider_id
            parts: list[dict[str, Any]] = [
                {"functionResponse": response},
                *({"inlineData": {"mimeType": p.media_type, "data": p.data}} for p in message.media),
            ]
        else:
            parts = _parts(message, names, provider)
        if not parts:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        else:
            turns.append({"role": role, "parts": parts})
    return system, turns


def _parts(message: Message, names: FunctionNames, provider: str) -> list[dict[str, Any]]:
    """Return the parts of a turn, each with the signature that came with it."""
    signatures: Mapping[int | None, str] = {
        part.get("call"): part["thoughtSignature"] for part in message.reasoning_for(provider, FORMAT)
    }
    parts: list[dict[str, Any]] = []
    if message.content or None in signatures:
        parts.append({"text": message.content} | _signed(signatures.get(None)))
    for index, call in enumerate(message.tool_calls):
        written: dict[str, Any] = {"name": names.write(call.name), "args": _arguments(call.arguments)}
        if call.provider_id is not None:
            written["id"] = call.provider_id
        parts.append({"functionCall": written} | _signed(signatures.get(index)))
    return parts


def _signed(signature: str | None) -> dict[str, str]:
    return {} if signature is None else {"thoughtSignature": signature}


def _arguments(written: str) -> dict[str, Any]:
    value = _value(written)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"arguments": value}


def _result(written: str) -> dict[str, Any]:
    value = _value(written)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"result": value}


def _value(written: str) -> Any:
    try:
        return msgspec.json.decode(written)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return written
