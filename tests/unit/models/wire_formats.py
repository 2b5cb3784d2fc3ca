"""The wire formats of models, written by the tests: what a server of each sends for the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from agentflow.models.anthropic import AnthropicProvider
from agentflow.models.gemini import GeminiProvider
from agentflow.models.openai import OpenAIProvider
from agentflow.models.responses import ResponsesProvider
from agentflow.models.streamed import StreamedProvider

End = Literal["complete", "cut", "withheld", "failed"]
Call = tuple[str, str, list[str]]
"""The provider's id, the name on the wire, and the arguments in pieces."""


class Wire(NamedTuple):
    """One format: `events(text, calls, end)` are the payloads of a stream; `reasoned` begins with reasoning
    that the provider wants back, and `wanted_back` finds in a request what went back."""

    name: str
    provider: Callable[..., StreamedProvider]
    events: Callable[[Sequence[str], Sequence[Call], End], list[dict[str, Any]]]
    reasoned: Callable[[], list[dict[str, Any]]]
    wanted_back: Callable[[dict[str, Any]], list[Any]]
    reasoning: list[Any]
    error: dict[str, Any]
    """What a stream that breaks off with an overloaded server says."""
    tools_in: Callable[[dict[str, Any]], list[str]]
    texts_in: Callable[[dict[str, Any]], list[str]]
    schema_in: Callable[[dict[str, Any]], Any]

    def stream(self, text: Sequence[str] = (), calls: Sequence[Call] = (), end: End = "complete") -> bytes:
        return encode(self.events(text, calls, end))


def encode(payloads: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(
        (f"event: {payload['type']}\n".encode() if "type" in payload else b"")
        + b"data: "
        + json.dumps(payload, ensure_ascii=False).encode()
        + b"\n\n"
        for payload in payloads
    )


# -- chat completions ---------------------------------------------------------------------------------


_CHUNK = {"id": "resp-1", "object": "chat.completion.chunk", "created": 1, "model": "m-2025"}


def _chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**_CHUNK, "choices": [choice]}


def _chat(text: Sequence[str], calls: Sequence[Call], end: End) -> list[dict[str, Any]]:
    events = [_chunk(content=piece) for piece in text]
    for index, (id, name, pieces) in enumerate(calls):
        function: dict[str, Any] = {"name": name, "arguments": ""}
        events.append(_chunk(tool_calls=[{"index": index, "id": id, "function": function}]))
        events += [_chunk(tool_calls=[{"index": index, "function": {"arguments": p}}]) for p in pieces]
    reasons = {"cut": "length", "withheld": "content_filter", "failed": "error"}
    events.append(_chunk(reasons.get(end, "tool_calls" if calls else "stop")))
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 40},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    return [*events, {**_CHUNK, "choices": [], "usage": usage}]


_DETAIL = {"type": "reasoning.text", "text": "Let me see.", "signature": "c2lnbmF0dXJl", "index": 0}
_SIGNED = {"google": {"thought_signature": "b3BhcXVl"}}


def _chat_reasoned() -> list[dict[str, Any]]:
    """Reasoning as OpenRouter streams it, and a signature as Gemini's compatible server does."""
    function = {"name": "lookup", "arguments": "{}"}
    call = {"index": 90, "id": "p9", "function": function, "extra_content": _SIGNED}
    pieces = [
        {"type": "reasoning.text", "text": "Let me", "index": 0},
        {"type": "reasoning.text", "text": " see.", "index": 0},
        {"type": "reasoning.text", "signature": "c2lnbmF0dXJl", "index": 0},
    ]
    return [*(_chunk(reasoning_details=[piece]) for piece in pieces), _chunk(tool_calls=[call])]


def _chat_wanted_back(body: dict[str, Any]) -> list[Any]:
    answers = [message for message in body["messages"] if message["role"] == "assistant"]
    found = [{"reasoning_details": m["reasoning_details"]} for m in answers if "reasoning_details" in m]
    for message in answers:
        for position, call in enumerate(message["tool_calls"]):
            if "extra_content" in call:
                found.append({"call": position, "extra_content": call["extra_content"]})
    return found


CHAT = Wire(
    name="openai",
    provider=OpenAIProvider,
    events=_chat,
    reasoned=_chat_reasoned,
    wanted_back=_chat_wanted_back,
    reasoning=[{"reasoning_details": [_DETAIL]}, {"call": 0, "extra_content": _SIGNED}],
    error={"error": {"code": 503, "message": "overloaded"}},
    tools_in=lambda body: [tool["function"]["name"] for tool in body.get("tools", ())],
    texts_in=lambda body: [m["content"] for m in body["messages"] if m.get("content")],
    schema_in=lambda body: body.get("response_format", {}).get("json_schema", {}).get("schema"),
)


# -- Responses ----------------------------------------------------------------------------------------

_REASONING_ITEM = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"}


def _responses(text: Sequence[str], calls: Sequence[Call], end: End) -> list[dict[str, Any]]:
    base = {"id": "resp-1", "object": "response", "model": "m-2025", "output": [], "usage": None}
    started = {**base, "status": "in_progress"}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
    output: list[dict[str, Any]] = []
    if text:
        message: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": message})
        events += [{"type": "response.output_text.delta", "item_id": "msg_1", "delta": p} for p in text]
        done = {**message, "content": [{"type": "output_text", "text": "".join(text)}]}
        events.append({"type": "response.output_item.done", "output_index": 0, "item": done})
        output.append(done)
    for number, (id, name, pieces) in enumerate(calls):
        item = {"type": "function_call", "id": f"fc_{number}", "call_id": id, "name": name, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": len(output), "item": item})
        events += [
            {"type": "response.function_call_arguments.delta", "item_id": item["id"], "delta": p}
            for p in pieces
        ]
        item = {**item, "arguments": "".join(pieces), "status": "completed"}
        events.append({"type": "response.output_item.done", "output_index": len(output), "item": item})
        output.append(item)
    usage = {
        "input_tokens": 100,
        "output_tokens": 20,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    last: dict[str, Any] = {**base, "status": "completed", "output": output, "usage": usage}
    kind = "response.completed"
    if end in ("cut", "withheld"):
        reason = "max_output_tokens" if end == "cut" else "content_filter"
        last |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        kind = "response.incomplete"
    elif end == "failed":
        last |= {"status": "failed", "error": {"code": "server_error", "message": "an internal error"}}
        kind = "response.failed"
    return [*events, {"type": kind, "response": last}]


def _responses_reasoned() -> list[dict[str, Any]]:
    item = {**_REASONING_ITEM, "status": "completed"}
    return [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "encrypted_content": "b3"},
        },
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


RESPONSES = Wire(
    name="openai-responses",
    provider=ResponsesProvider,
    events=_responses,
    reasoned=_responses_reasoned,
    wanted_back=lambda body: [item for item in body["input"] if item.get("type") == "reasoning"],
    reasoning=[_REASONING_ITEM],
    error={"type": "error", "code": "server_error", "message": "overloaded", "param": None},
    tools_in=lambda body: [tool["name"] for tool in body.get("tools", ())],
    texts_in=lambda body: [item["content"] for item in body["input"] if "content" in item],
    schema_in=lambda body: body.get("text", {}).get("format", {}).get("schema"),
)


# -- Messages -----------------------------------------------------------------------------------------

_THINKING = {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmF0dXJl"}
_REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}


def _messages(text: Sequence[str], calls: Sequence[Call], end: End) -> list[dict[str, Any]]:
    counted = {"input_tokens": 50, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 10}
    message = {"id": "resp-1", "type": "message", "role": "assistant", "model": "m-2025", "content": []}
    start = {**message, "stop_reason": None, "usage": {**counted, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    index = 0
    if text:
        events.append(_started(index, {"type": "text", "text": ""}))
        events += [_delta(index, {"type": "text_delta", "text": piece}) for piece in text]
        events.append({"type": "content_block_stop", "index": index})
        index += 1
    for id, name, pieces in calls:
        events.append(_started(index, {"type": "tool_use", "id": id, "name": name, "input": {}}))
        events += [_delta(index, {"type": "input_json_delta", "partial_json": p}) for p in ("", *pieces)]
        events.append({"type": "content_block_stop", "index": index})
        index += 1
    reasons = {"cut": "max_tokens", "withheld": "refusal", "failed": "pause_turn"}
    reason = reasons.get(end, "tool_use" if calls else "end_turn")
    usage = {"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 5}}
    events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage})
    return [*events, {"type": "message_stop"}]


def _started(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _messages_reasoned() -> list[dict[str, Any]]:
    return [
        _started(90, {"type": "thinking", "thinking": "", "signature": ""}),
        _delta(90, {"type": "thinking_delta", "thinking": "Let me"}),
        _delta(90, {"type": "thinking_delta", "thinking": " see."}),
        _delta(90, {"type": "signature_delta", "signature": "c2lnbmF0dXJl"}),
        {"type": "content_block_stop", "index": 90},
        _started(91, _REDACTED),
        {"type": "content_block_stop", "index": 91},
    ]


def _messages_texts(body: dict[str, Any]) -> list[str]:
    blocks = [*body.get("system", ()), *(block for m in body["messages"] for block in m["content"])]
    return [block["text"] for block in blocks if block["type"] == "text"]


MESSAGES = Wire(
    name="anthropic",
    provider=AnthropicProvider,
    events=_messages,
    reasoned=_messages_reasoned,
    wanted_back=lambda body: [
        block for m in body["messages"] for block in m["content"] if "thinking" in block["type"]
    ],
    reasoning=[_THINKING, _REDACTED],
    error={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    tools_in=lambda body: [tool["name"] for tool in body.get("tools", ())],
    texts_in=_messages_texts,
    schema_in=lambda body: body.get("output_config", {}).get("format", {}).get("schema"),
)


# -- Gemini -------------------------------------------------------------------------------------------


def _candidate(parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}, **more}
    return {"candidates": [candidate], "modelVersion": "m-2025", "responseId": "resp-1"}


def _gemini(text: Sequence[str], calls: Sequence[Call], end: End) -> list[dict[str, Any]]:
    events = [_candidate([{"text": piece}]) for piece in text]
    for id, name, pieces in calls:
        arguments = "".join(pieces)
        call = {"id": id, "name": name, "args": json.loads(arguments) if arguments else {}}
        events.append(_candidate([{"functionCall": call}]))
    reasons = {"cut": "MAX_TOKENS", "withheld": "SAFETY", "failed": "MALFORMED_FUNCTION_CALL"}
    usage = {
        "promptTokenCount": 100,
        "candidatesTokenCount": 15,
        "thoughtsTokenCount": 5,
        "cachedContentTokenCount": 40,
        "totalTokenCount": 120,
    }
    return [*events, _candidate([], finishReason=reasons.get(end, "STOP")) | {"usageMetadata": usage}]


def _gemini_reasoned() -> list[dict[str, Any]]:
    call = {"id": "p9", "name": "lookup", "args": {"id": 9}}
    return [
        _candidate([{"text": "Let me see.", "thought": True}]),
        _candidate([{"functionCall": call, "thoughtSignature": "c2lnbmF0dXJl"}]),
    ]


GEMINI = Wire(
    name="gemini",
    provider=GeminiProvider,
    events=_gemini,
    reasoned=_gemini_reasoned,
    wanted_back=lambda body: [
        {"call": 0, "thoughtSignature": part["thoughtSignature"]}
        for turn in body["contents"]
        for part in turn["parts"]
        if "thoughtSignature" in part and part["functionCall"]["args"] == {"id": 9}
    ],
    reasoning=[{"call": 0, "thoughtSignature": "c2lnbmF0dXJl"}],
    error={"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}},
    tools_in=lambda body: [
        one["name"] for tool in body.get("tools", ()) for one in tool["functionDeclarations"]
    ],
    texts_in=lambda body: [
        part["text"]
        for turn in (body.get("systemInstruction", {"parts": []}), *body["contents"])
        for part in turn["parts"]
        if "text" in part
    ],
    schema_in=lambda body: body.get("generationConfig", {}).get("responseJsonSchema"),
)

WIRES = {wire.name: wire for wire in (CHAT, RESPONSES, MESSAGES, GEMINI)}
