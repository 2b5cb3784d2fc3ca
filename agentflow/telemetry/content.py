"""Content of messages as the GenAI conventions write it; used only if the user asked for content.

Messages become the JSON of `gen_ai.input.messages` and `gen_ai.output.messages`: a list of
`{role, parts: [{type, …}]}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from agentflow.definition.conversation import Message

__all__ = ["instructions", "messages", "output", "text"]


def text(value: Any) -> str:
    """Return a value as an attribute: a string as it is, else compact JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def instructions(prompt: str) -> str:
    """Return `gen_ai.system_instructions` of a system prompt."""
    return text([{"type": "text", "content": prompt}])


def messages(said: Iterable[Message]) -> str:
    """Return `gen_ai.input.messages` of a conversation; its system prompt stands elsewhere."""
    return text([_message(message) for message in said if message.role != "system"])


def output(message: Message, finish_reason: str) -> str:
    """Return `gen_ai.output.messages` of one answer."""
    return text([{**_message(message), "finish_reason": finish_reason}])


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        part = {"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}
        return {"role": "tool", "parts": [part]}
    parts: list[dict[str, Any]] = [
        {"type": "reasoning", "content": text(part.data)} for part in message.reasoning
    ]
    if message.content:
        parts.append({"type": "text", "content": message.content})
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _arguments(call.arguments)}
        for call in message.tool_calls
    ]
    return {"role": message.role, "parts": parts}


def _arguments(written: str) -> Any:
    try:
        return msgspec.json.decode(written)
    except (msgspec.DecodeError, UnicodeError):
        return written  # a model may write anything
