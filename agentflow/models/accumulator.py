"""What has arrived of a streamed answer, whatever the provider's wire format: text, reasoning, its bound.

It does no I/O, and what it keeps is bounded.
"""

from __future__ import annotations

import time
from typing import Final

from agentflow.models.base import AnswerEnd, DeltaSink

__all__ = ["MAX_ANSWER_BYTES", "Accumulator", "AnswerTooLong", "TextPieces", "end_of"]

MAX_ANSWER_BYTES: Final = 16 << 20

_COMPLETE: Final = frozenset(
    {"stop", "tool_calls", "function_call", "tool_call", "tool_use", "end_turn", "stop_sequence"}
    | {"eos", "eos_token", "complete", "completed"}
)
_CUT: Final = frozenset(
    {"length", "max_tokens", "max_output_tokens", "max_completion_tokens", "model_length"}
    | {"model_context_window_exceeded", "token_limit"}
)
_WITHHELD: Final = frozenset(
    {"content_filter", "content_filtered", "refusal", "safety", "recitation", "blocklist"}
    | {"prohibited_content", "sensitive", "spii", "guardrail_intervened", "image_safety", "error_toxic"}
)


class AnswerTooLong(Exception):
    """The text and arguments of an answer have more bytes than are kept of one."""


def end_of(finish_reason: str | None) -> AnswerEnd:
    """Return the end that a finish reason means; failed for none and for one that is not known."""
    word = (finish_reason or "").casefold()
    if word in _COMPLETE:
        return "complete"
    if word in _CUT:
        return "cut"
    return "withheld" if word in _WITHHELD else "failed"


class TextPieces:
    """Text in pieces. A high surrogate at the end of a piece is held back until its other half comes."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""

    def add(self, text: str) -> str:
        """Append a piece; return what of it may be shown now."""
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = _whole_characters(text)
        if text:
            self._pieces.append(text)
        return text

    def __str__(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return (self._pieces[0] if self._pieces else "") + ("\ufffd" if self._half else "")


class Accumulator:
    """Text and reasoning that have arrived so far. Its methods raise AnswerTooLong beyond `max_bytes` of all
    that was counted."""

    def __init__(self, on_delta: DeltaSink | None, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._on_delta = on_delta
        self._max_bytes = max_bytes
        self._bytes = 0
        self._started = time.perf_counter()
        self._text = TextPieces()
        self._thinking = TextPieces()
        self.first_token_ms: float | None = None

    @property
    def text(self) -> str:
        """The answer's text."""
        return str(self._text)

    def add_text(self, piece: str) -> None:
        """Append a piece of the answer and show it."""
        self._emit("output", self._text, piece)

    def add_thinking(self, piece: str) -> None:
        """Append a piece of the model's reasoning and show it."""
        self._emit("thinking", self._thinking, piece)

    def count(self, text: str) -> None:
        """Count what is kept beside text and reasoning: names, arguments, signatures."""
        self._bytes += len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > self._max_bytes:
            raise AnswerTooLong(f"the answer has more than {self._max_bytes:,} bytes")

    def mark(self) -> None:
        """Take the time of the first piece of the answer."""
        if self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._started) * 1000

    def _emit(self, kind: str, pieces: TextPieces, piece: str) -> None:
        if not piece:
            return
        self.mark()
        shown = pieces.add(piece)
        self.count(piece)
        if shown and self._on_delta is not None:
            self._on_delta(kind, shown)


def _whole_characters(text: str) -> str:
    """Return the text with surrogate pairs as the characters that they mean; half a pair becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
