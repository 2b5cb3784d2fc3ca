"""A chat completion as its chunks arrive: text, calls, counts, and which of the four ends it has.

Quirks of servers end here. It does no I/O, and what it keeps is bounded.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, cast

import msgspec

from agentflow.models.accumulator import MAX_ANSWER_BYTES, Accumulator, TextPieces, end_of
from agentflow.models.base import DeltaSink
from agentflow.models.openai_wire import Chunk, WireCall, WireChoice, WireText, WireUsage

__all__ = ["Answer", "PartialCall"]

_MAX_COMPLETENESS_CHECKS: Final = 16
_MAX_INDEX: Final = 1_000_000


class PartialCall:
    """A tool call as its pieces arrive."""

    def __init__(self, index: int | None, id: str | None, name: str) -> None:
        self.index = index
        self.id = id
        self.name = name
        self._arguments = TextPieces()
        self._checks = 0

    @property
    def arguments(self) -> str:
        """The text that has arrived; empty if the server sent none."""
        return str(self._arguments)

    def add(self, arguments: str) -> None:
        """Append a piece of the arguments."""
        self._arguments.add(arguments)

    def is_continued_by(self, id: str | None, name: str, arguments: str) -> bool:
        """Return whether a piece belongs to this call, although its place was used by it already.

        Another name begins another call, as does another id with a name or after whole arguments (some
        servers give each piece an id of its own). A repeated name begins one after whole arguments.
        """
        if name and self.name and name != self.name:
            return False
        if id is not None and self.id is not None and id != self.id:
            return not name and not self._is_whole()
        return not (name and arguments and self._is_whole())

    def _is_whole(self) -> bool:
        """Return whether the arguments are one JSON value; asked a bounded number of times for each call."""
        self._checks += 1
        if self._checks > _MAX_COMPLETENESS_CHECKS:
            return False
        try:
            msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return False
        return True


class Answer(Accumulator):
    """What has arrived so far of a chat completion."""

    def __init__(
        self,
        on_delta: DeltaSink | None,
        max_bytes: int = MAX_ANSWER_BYTES,
        *,
        reasoning_fields: Container[str] = (),
    ) -> None:
        super().__init__(on_delta, max_bytes)
        self._kept_fields = reasoning_fields
        self._details: list[dict[str, Any]] = []
        self._signed: dict[int, Any] = {}  # what came with a call, by its position
        self._refusal = TextPieces()
        self.calls: list[PartialCall] = []
        self.usage: WireUsage | None = None
        self.model: str | None = None
        self.response_id: str | None = None
        self.finish_reason: str | None = None
        self.has_choice = False
        self.done = False
        self._has_ended = False
        self._has_content = False

    @property
    def refusal(self) -> str:
        """What the model said in place of an answer."""
        return str(self._refusal)

    @property
    def is_over(self) -> bool:
        """Whether the server said that no more of the answer comes, and then sent no more of it."""
        return self.done or self._has_ended

    @property
    def reasoning(self) -> list[dict[str, Any]]:
        """What the server wants back in the next turn, in members of the message."""
        parts: list[dict[str, Any]] = []
        thought = str(self._thinking)
        if thought and "reasoning_content" in self._kept_fields:
            parts.append({"reasoning_content": thought})
        if self._details and "reasoning_details" in self._kept_fields:
            parts.append({"reasoning_details": self._details})
        return parts + [{"call": call, "extra_content": said} for call, said in self._signed.items()]

    def take(self, chunk: Chunk) -> None:
        """Add one chunk. Only the first choice is read; one is asked for.

        Text or a call behind a finish reason opens the answer again: broken off there, it has not ended.
        A finish reason that says that something is missing is not taken back by a later one.
        """
        self.model = chunk.model or self.model
        self.response_id = chunk.id or self.response_id
        self.usage = chunk.usage or (chunk.x_groq.usage if chunk.x_groq else None) or self.usage
        choice = _first(chunk.choices or ())
        if choice is None:
            return
        self.usage = choice.usage or self.usage
        self.has_choice = True
        # Some servers end a stream with the whole message once more.
        part = choice.delta or (None if self._has_content else choice.message)
        if part is not None and self._take_part(part):
            self._has_ended, self._has_content = False, True
        if choice.finish_reason and choice.finish_reason != "null":
            self._has_ended = True
            if end_of(self.finish_reason or "stop") == "complete":
                self.finish_reason = choice.finish_reason

    def _take_part(self, part: WireText) -> bool:
        """Add what a chunk holds; return whether there was anything."""
        text, thinking, refusal = _split(part.content)
        thinking = _plain(part.reasoning_content) or _plain(part.reasoning) or thinking
        self.add_thinking(thinking)
        self.add_text(text)
        self._take_details(part.reasoning_details)
        if refusal := (part.refusal or refusal):
            self.count(refusal)
            self._refusal.add(refusal)
        for piece in part.tool_calls or ():
            self.mark()
            self._take_call(piece)
        return bool(thinking or text or refusal or part.tool_calls)

    def _take_details(self, details: object) -> None:
        """Add pieces of reasoning; one with the type and index of the last continues it."""
        for detail in cast("list[Any]", details) if isinstance(details, list) else ():
            if not isinstance(detail, dict):
                continue
            piece = cast("dict[str, Any]", detail)
            self.count(msgspec.json.encode(piece).decode())
            last = self._details[-1] if self._details else {}
            same = [last.get(key) == piece.get(key) for key in ("type", "index")]
            if self._details and all(same) and piece.get("index") is not None:
                for key, value in piece.items():
                    grows = key in ("text", "summary", "data") and isinstance(last.get(key), str)
                    if value is not None:
                        last[key] = last[key] + value if grows and isinstance(value, str) else value
            else:
                self._details.append(dict(piece))

    def _take_call(self, piece: WireCall) -> None:
        function = piece.function
        name = (function.name if function else None) or ""
        arguments = (function.arguments if function else None) or ""
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        self.count(name + arguments)
        index = int(piece.index) if piece.index is not None and abs(piece.index) < _MAX_INDEX else None
        id = piece.id or None
        call = self._continued(index, id, name, arguments)
        if call is None:
            call = PartialCall(index, id, name)
            self.calls.append(call)
        call.id = call.id or id
        call.name = call.name or name
        call.add(arguments)
        if piece.extra_content is not None:
            self.count(msgspec.json.encode(piece.extra_content).decode())
            self._signed[self.calls.index(call)] = piece.extra_content

    def _continued(self, index: int | None, id: str | None, name: str, arguments: str) -> PartialCall | None:
        """Return the call that a piece continues, None if it begins one.

        An id is looked for among all calls, then the latest call of the index; a piece without an index and
        an id belongs to the latest call.
        """
        if index is None and id is None:
            last = self.calls[-1] if self.calls else None
            return last if last is not None and not name else None
        same_place = [c for c in self.calls if index is None or c.index == index]
        found = next((c for c in reversed(same_place) if id is not None and c.id == id), None)
        if found is None and (index is not None or (same_place and same_place[-1].id is None and not name)):
            found = same_place[-1] if same_place else None
        return found if found is not None and found.is_continued_by(id, name, arguments) else None


def _first(choices: Sequence[WireChoice]) -> WireChoice | None:
    return next((c for c in choices if not c.index), None)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else ""


def _split(content: object) -> tuple[str, str, str]:
    """Return text, reasoning and refusal of a content: a text, or parts of several types."""
    if isinstance(content, str):
        return content, "", ""
    parts = cast("list[Any]", content if isinstance(content, list) else [content])
    text = thinking = refusal = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict):
            members = cast("dict[str, Any]", part)
            thinking += _nested(members.get("thinking")) + _plain(members.get("reasoning"))
            refusal += _plain(members.get("refusal"))
            text += _plain(members.get("text"))
    return text, thinking, refusal


def _nested(value: object) -> str:
    """Return the text of a part that is a text itself or consists of parts."""
    return value if isinstance(value, str) else _split(value)[0] if value else ""
