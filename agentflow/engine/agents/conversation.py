"""What an agent says to its model and how its answer is read (page 000 §3, page 001 §5.5). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import AgentSpec
from agentflow.definition.schemas import validate

__all__ = [
    "EMPTY_REPAIR",
    "BadAnswer",
    "answer_values",
    "check_answer",
    "compact",
    "opening",
    "parse",
    "read_answer",
    "repair",
    "response_of",
    "shared_opening",
    "takes_any_text",
]

_FENCE = re.compile(r"```[A-Za-z0-9_-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_MAX_ERRORS = 10

EMPTY_REPAIR = Message(role="user", content="The answer was empty. Answer the request above.")
"""What a model is told once that answered with neither text nor calls."""


class BadAnswer(ValueError):
    """The answer does not satisfy the agent's schema; `.errors` are {path, message}, ten at most."""

    def __init__(self, errors: list[dict[str, str]]) -> None:
        super().__init__(errors[0]["message"] if errors else "invalid answer")
        self.errors = errors


def compact(value: Any) -> str:
    """Return a value as the model reads it: a string as it is, else compact JSON in its own key order."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def opening(spec: AgentSpec, system_prompt: str, data: Any) -> list[Message]:
    """Return the first messages of a context: the prompt, the agent's examples as turns, and the input
    unless it is null."""
    messages = [Message(role="system", content=system_prompt)]
    for example in spec.examples:
        messages.append(Message(role="user", content=compact(example.input)))
        messages.append(Message(role="assistant", content=compact(example.output)))
    if data is not None:
        messages.append(Message(role="user", content=compact(data)))
    return messages


def shared_opening(spec: AgentSpec, system_prompt: str, data: Any) -> list[Message]:
    """Return the first messages of an agent in a conversation: the prompt, and what was said.

    `data` is text, a Message, an AgentResponse or a list of these. What this agent said itself is its own
    turn; what others said is told to it with their names.
    """
    messages = [Message(role="system", content=system_prompt)]
    for role, text, name in _said(data):
        if role != "assistant":
            messages.append(Message(role="system" if role == "system" else "user", content=text))
        elif name == spec.name:
            messages.append(Message(role="assistant", content=text))
        else:
            messages.append(Message(role="user", content=f"{name}: {text}" if name else text))
    return messages


def _said(data: Any) -> Iterator[tuple[str, str, str | None]]:
    """Yield role, text and name of each message in a value of a conversation."""
    if data is None:
        return
    if isinstance(data, list):
        for item in cast("list[Any]", data):
            yield from _said(item)
        return
    if isinstance(data, dict):
        value = cast("dict[str, Any]", data)
        if isinstance(value.get("messages"), list):
            yield from _said(value["messages"])
            return
        role, text = value.get("role"), value.get("text")
        if isinstance(role, str) and isinstance(text, str):
            yield role, text, value.get("name")
            return
    yield "user", compact(data), None


def response_of(spec: AgentSpec, output: Any, usage: Usage | None) -> dict[str, Any]:
    """Return the AgentResponse with the answer of an agent, as JSON (page 002 §16)."""
    data: Any = None if spec.output_schema is None else output
    text = compact(output)
    over = cast("dict[str, Any]", output) if spec.handoffs and isinstance(output, dict) else {}
    if over.keys() == {"handoff_to", "message"} and over["handoff_to"] in spec.handoffs:
        data, text = over, over["message"] or ""
    return {
        "messages": [{"role": "assistant", "text": text, "name": spec.name, "data": data}],
        "text": text,
        "data": data,
        "requests": [],
        "usage": None if usage is None else msgspec.to_builtins(usage),
        "workflow_id": None,
    }


def repair(error: ErrorInfo) -> Message:
    """Return the message that asks for a corrected answer, with what was wrong with the last one."""
    if error.code == "empty_answer":
        return EMPTY_REPAIR
    issues: list[dict[str, str]] = (error.details or {}).get("errors", [])
    lines = [f"- at {i['path'] or '/'}: {i['message']}" for i in issues]
    text = (
        "The answer does not satisfy the required JSON Schema:\n"
        + "\n".join(lines)
        + "\nAnswer again with the corrected JSON value only."
    )
    return Message(role="user", content=text)


def read_answer(spec: AgentSpec, text: str, *, last_block: bool = False) -> Any:
    """Return the value of a final answer. Raises BadAnswer.

    With a schema: the trimmed text as JSON, else its only fenced block, or with `last_block` its last one; if
    the schema's root type is exactly "string", text that is no JSON string is the value. Without: page 001
    takes a JSON object as it is and other text as {"text": …}, page 000 the text.
    """
    schema = spec.output_schema
    if schema is None:
        if spec.plain_result == "text":
            return text
        found, value = _json_of(text)
        return cast(Any, value) if found and isinstance(value, dict) else {"text": text}
    found, value = _json_of(text, last_block=last_block)
    if takes_any_text(spec) and not (found and isinstance(value, str)):
        found, value = True, text.strip()
    if not found:
        raise BadAnswer([{"path": "", "message": "the answer is not JSON"}])
    check_answer(schema, value)
    return value


def check_answer(schema: Any, value: Any) -> None:
    """Raise BadAnswer if the value does not satisfy the schema."""
    issues = validate(schema, value)
    if issues:
        raise BadAnswer([{"path": i.path, "message": i.message} for i in issues[:_MAX_ERRORS]])


def answer_values(text: str) -> list[Any]:
    """Return what `read_answer` may judge by a schema: the JSON value of the text, and the text itself."""
    found, value = _json_of(text, last_block=True)
    return [value] if found else [text.strip()]


def takes_any_text(spec: AgentSpec) -> bool:
    """Return whether the answer's text is its value by its schema, so that an empty text may be one too."""
    return isinstance(spec.output_schema, dict) and spec.output_schema.get("type") == "string"


def _json_of(text: str, *, last_block: bool = False) -> tuple[bool, Any]:
    stripped = text.strip()
    found, value = parse(stripped)
    if found:
        return True, value
    blocks = _FENCE.findall(stripped)
    if len(blocks) == 1 or (blocks and last_block):
        return parse(blocks[-1].strip())
    return False, None


def _refuse(_: str) -> Any:
    raise ValueError("not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def parse(text: str) -> tuple[bool, Any]:
    """Return whether a text is JSON that an event can hold, and its value. Half a surrogate pair is none."""
    # The standard parser: it keeps big integers exact, which page 000 §1 asks for.
    try:
        value = _decoder.decode(text)
        if "\\u" in text:
            msgspec.json.encode(value)  # UnicodeEncodeError is a ValueError
    except (ValueError, RecursionError):
        return False, None
    return True, value
