"""Loops of an agent: rounds of calls that were all made before, with the same results (page 000 §3).

A round with a call or a result that is new is no part of a loop. The model is told of a loop once in a
context; when it goes on all the same, its attempt fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from agentflow.definition.conversation import Message
from agentflow.definition.ir import canonical_json
from agentflow.engine.agents import conversation
from agentflow.engine.agents.progress import AgentProgress, ToolRecord

__all__ = ["note_round"]

_TIMES_IN_A_LOOP = 3


def note_round(progress: AgentProgress, answered: Iterable[tuple[ToolRecord, Message]]) -> Message | None:
    """Take note of a round of calls and what their model is told; return what it is told of a loop."""
    calls = {(r.name, _arguments(r)): _digest(_told(message)) for r, message in answered}
    known = progress.known_results
    is_new = any(key not in known or known[key][0] != digest for key, digest in calls.items())
    progress.rounds_without_news = 0 if is_new else progress.rounds_without_news + 1
    for key, digest in calls.items():
        before = known.get(key)
        known[key] = (digest, before[1] + 1 if before is not None and before[0] == digest else 1)
    name = next((key[0] for key in calls if known[key][1] >= _TIMES_IN_A_LOOP), None)
    if progress.rounds_without_news < _TIMES_IN_A_LOOP - 1:
        name = None
    if name is None:
        return None
    if progress.told_of_loop:
        progress.loops_in = name
        return None
    progress.told_of_loop = True
    text = (
        f"You have called {name} {_TIMES_IN_A_LOOP} times with the same arguments, and the result was the "
        "same each time. Do something else, or answer with what you know."
    )
    return Message(role="user", content=text)


def _arguments(record: ToolRecord) -> str:
    found, value = conversation.parse(record.call.arguments.strip() or "{}")
    return _digest(canonical_json(value).decode() if found else record.call.arguments)


def _told(message: Message) -> str:
    return "\n".join((message.content, *(part.data for part in message.media)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
