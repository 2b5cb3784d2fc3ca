"""Conversations in the form that a model of 135 M parameters handles well. Pure.

Examples of a system prompt become turns of the conversation, so that what the model takes for its own
earlier answers looks exactly as the grammar will have the next one. Calls and their results become text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.definition.conversation import Message, ToolSchema

__all__ = [
    "Example",
    "answer_turns",
    "argument_turns",
    "copied_properties",
    "has_result",
    "said",
    "split_examples",
    "system_text",
    "user_texts",
]

_FEWEST_EXAMPLES: Final = 2


class Example(NamedTuple):
    """What a user could have said, and the JSON answer to it."""

    text: str
    answer: str


def split_examples(system: str) -> tuple[str, list[Example]]:
    """Return the instructions of a system prompt and its examples.

    Examples stand after the first blank line: lines of text, then a line with a JSON object, and nothing
    else. A prompt of any other form has no examples and is left as it is.
    """
    head, blank, rest = system.strip().partition("\n\n")
    if not blank:
        return system, []
    examples: list[Example] = []
    text: list[str] = []
    for line in rest.splitlines():
        answer = _as_answer(line)
        if answer is None:
            text.append(line)
        elif any(each.strip() for each in text):
            examples.append(Example("\n".join(text).strip(), answer))
            text = []
        else:
            return system, []
    if not examples or any(line.strip() for line in text):
        return system, []
    return head, examples


def copied_properties(examples: Sequence[Example]) -> set[str]:
    """Return the properties whose value every example took from its text: the examples say that they are
    copies."""
    if len(examples) < _FEWEST_EXAMPLES:
        return set()
    answers = [(each.text, msgspec.json.decode(each.answer, type=dict[str, Any])) for each in examples]
    names = answers[0][1].keys()
    return {name for name in names if all(_stands_in(answer.get(name), text) for text, answer in answers)}


def has_result(messages: tuple[Message, ...]) -> bool:
    """Return whether the function was called in this conversation. A user message after its result is a
    request to repair the answer, not a reason to call again."""
    return any(message.role == "tool" for message in messages)


def argument_turns(messages: tuple[Message, ...], tool: ToolSchema) -> list[Message]:
    """Return the conversation that ends where the arguments of the function are written."""
    instructions, _ = split_examples(system_text(messages))
    description = tool.description.strip().rstrip(".")
    task = f"Function {tool.name}: {description}. Answer with its arguments as JSON, copied from the text."
    turns = [Message(role="system", content=f"{instructions}\n\n{task}".strip())]
    return turns + [Message(role="user", content=text) for text in user_texts(messages)[-1:]]


def answer_turns(messages: tuple[Message, ...]) -> list[Message]:
    """Return the conversation that ends where the answer is written: examples become turns, results of
    functions become part of what the user said."""
    instructions, examples = split_examples(system_text(messages))
    turns = [Message(role="system", content=instructions)] if instructions else []
    for example in examples:
        turns.append(Message(role="user", content=example.text))
        turns.append(Message(role="assistant", content=example.answer))
    for message in messages:
        if message.role == "system" or message.tool_calls:
            continue
        text = _in_lines(message.content) if message.role == "tool" else message.content
        if message.role == "assistant":
            turns.append(Message(role="assistant", content=text))
        elif turns and turns[-1].role == "user":
            turns[-1] = Message(role="user", content=f"{turns[-1].content}\n\n{text}")
        else:
            turns.append(Message(role="user", content=text))
    return turns


def user_texts(messages: tuple[Message, ...]) -> list[str]:
    """Return what the user said, in order."""
    return [message.content for message in messages if message.role == "user"]


def _stands_in(value: object, text: str) -> bool:
    return isinstance(value, str) and bool(value) and value in text


def said(messages: tuple[Message, ...]) -> list[str]:
    """Return what the user and the functions said, in order."""
    return [message.content for message in messages if message.role in ("user", "tool")]


def system_text(messages: tuple[Message, ...]) -> str:
    """Return the instructions of a conversation, examples included."""
    return "\n\n".join(message.content for message in messages if message.role == "system")


def _as_answer(line: str) -> str | None:
    """Return a line that is a JSON object, written as the grammar will have it; None for any other line."""
    if not line.strip().startswith("{"):
        return None
    try:
        return _spaced(msgspec.json.decode(line, type=dict[str, Any]))
    except msgspec.DecodeError:
        return None


def _spaced(value: object) -> str:
    """Return JSON in one line with a blank after each colon and comma: what the model sees is what it must
    write."""
    if isinstance(value, dict):
        members = (f"{_spaced(k)}: {_spaced(v)}" for k, v in cast("dict[str, Any]", value).items())
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_spaced(each) for each in cast("list[Any]", value)) + "]"
    return msgspec.json.encode(value).decode()


def _in_lines(content: str) -> str:
    """Return a flat JSON object as lines `name: value`, which a small model reads better; else as it is."""
    try:
        members = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return content
    if any(isinstance(each, dict | list) for each in members.values()):
        return content
    return "\n".join(f"{k}: {v if isinstance(v, str) else _spaced(v)}" for k, v in members.items())
