"""What calls show while they are made: the text of answers, the progress of functions (page 000 §8.1).

Shown, never stored.
The hub holds each open answer once, as the pieces that came. A reader is a position in each answer of one
run: one that comes late first gets the text so far, one that is slow gets more at a time. The whole answer
stands in `model.call_completed`, so a delta without a reader is no loss. Progress is given to the readers
that are there; a slow one gets the newest.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import msgspec

__all__ = ["DeltaHub", "DeltaReader", "ModelDelta", "ProgressData", "TextDelta", "ToolProgress"]

_KEPT_ENDED = 32
"""Answers that have ended and that a reader has not taken; older ones are dropped."""

_KEPT_PROGRESS = 256
"""Values of progress that a reader has not taken; older ones are dropped."""


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of an answer. `index`: how many characters of this kind of this call came before it, so that a
    reader that was away sees what it has twice and what it lacks."""

    model_call_id: str
    index: int
    token_kind: Literal["output", "thinking"]
    text: str


class ModelDelta(msgspec.Struct, frozen=True, kw_only=True):
    """New text of a model call of a run. No event: it has no id and no offset."""

    type: Literal["model.delta"] = "model.delta"
    workflow_id: str
    step: str
    data: TextDelta


class ProgressData(msgspec.Struct, frozen=True, kw_only=True):
    """What a function tells while it works: JSON. `index` counts the values of one call from 0."""

    call_id: str
    index: int
    value: Any


class ToolProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a function call of a run. No event: it has no id and no offset."""

    type: Literal["tool.progress"] = "tool.progress"
    workflow_id: str
    step: str
    data: ProgressData


class _Answer:
    """One answer that is being written. `offset` is that of its model.call_started."""

    __slots__ = ("call_id", "ended", "offset", "pieces", "step")

    def __init__(self, step: str, call_id: str, offset: int) -> None:
        self.step = step
        self.call_id = call_id
        self.offset = offset
        self.pieces: list[tuple[Literal["output", "thinking"], str]] = []
        self.ended = False


class _Place:
    """How much of an answer a reader has taken."""

    __slots__ = ("pieces", "sizes")

    def __init__(self) -> None:
        self.pieces = 0
        self.sizes = {"output": 0, "thinking": 0}


class DeltaReader:
    """The new text of one run for one reader. `wake` is called when there is some for the first time since
    `take`; it must not block."""

    def __init__(self, workflow_id: str, answers: list[_Answer], wake: Callable[[], None]) -> None:
        self._workflow_id = workflow_id
        self._places = {answer: _Place() for answer in answers}
        self._wake = wake
        self._woken = False
        self._progress: deque[ToolProgress] = deque(maxlen=_KEPT_PROGRESS)
        self.held = False
        """Whether the last `take` left text of calls that began later."""
        if answers:
            self.wake()

    def take(self, position: int | None = None) -> list[ModelDelta | ToolProgress]:
        """Return what is new: text in order, pieces of the same kind joined, then progress. With `position`
        only text of calls that began at this offset or before."""
        self._woken = self.held = False
        found: list[ModelDelta | ToolProgress] = []
        for answer, place in list(self._places.items()):
            if position is not None and answer.offset > position:
                self.held = self.held or bool(answer.pieces)
                continue
            found += self._new(answer, place)
            if answer.ended:
                del self._places[answer]
        found += self._progress
        self._progress.clear()
        return found

    def add(self, progress: ToolProgress) -> None:
        """Keep a value of progress until it is taken."""
        self._progress.append(progress)
        self.wake()

    def _new(self, answer: _Answer, place: _Place) -> Iterator[ModelDelta]:
        pieces = answer.pieces[place.pieces :]
        place.pieces += len(pieces)
        start = 0
        while start < len(pieces):
            kind, stop = pieces[start][0], start + 1
            while stop < len(pieces) and pieces[stop][0] == kind:
                stop += 1
            text = "".join([text for _, text in pieces[start:stop]])
            data = TextDelta(
                model_call_id=answer.call_id, index=place.sizes[kind], token_kind=kind, text=text
            )
            place.sizes[kind] += len(text)
            yield ModelDelta(workflow_id=self._workflow_id, step=answer.step, data=data)
            start = stop

    def forget(self, position: int) -> None:
        """Let go of answers that have ended and that began at this offset or before."""
        for answer in [a for a in self._places if a.ended and a.offset <= position]:
            del self._places[answer]

    def wake(self) -> None:
        """Wake the reader, because there is something new."""
        if not self._woken:
            self._woken = True
            self._wake()

    def begin(self, answer: _Answer) -> None:
        """Start an answer."""
        self._places[answer] = _Place()

    def end(self) -> None:
        """End an answer."""
        ended = [answer for answer in self._places if answer.ended]
        for answer in ended[:-_KEPT_ENDED]:
            del self._places[answer]


class DeltaHub:
    """All answers that are being written in this process, by run. For one event loop."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[_Answer, None]] = {}
        self._readers: dict[str, dict[DeltaReader, None]] = {}

    @contextmanager
    def writing(
        self, workflow_id: str, step: str, call_id: str, offset: int
    ) -> Generator[Callable[[str, str], None]]:
        """Return the sink of one answer, for as long as it is written; `offset` is that of its
        model.call_started. The sink takes (kind, text), in any thread, and never raises; what is no text, or
        comes after the end of the answer, is passed over."""
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        answer = _Answer(step, call_id, offset)
        self._answers.setdefault(workflow_id, {})[answer] = None
        for reader in self._readers.get(workflow_id, ()):
            reader.begin(answer)

        def add(kind: str, piece: str) -> None:
            if not answer.ended:
                answer.pieces.append(("thinking" if kind == "thinking" else "output", piece))
                for reader in self._readers.get(workflow_id, ()):
                    reader.wake()

        def sink(kind: str, text: str) -> None:
            piece = _clean(text)
            if not piece:
                return
            if threading.get_ident() == thread:
                add(kind, piece)
            else:  # an adapter that works in a thread; readers belong to the loop
                with suppress(RuntimeError):  # the loop is closed, and with it all readers
                    loop.call_soon_threadsafe(add, kind, piece)

        try:
            yield sink
        finally:
            answer.ended = True
            open_ones = self._answers[workflow_id]
            del open_ones[answer]
            if not open_ones:
                del self._answers[workflow_id]
            for reader in self._readers.get(workflow_id, ()):
                reader.end()

    def show_progress(self, progress: ToolProgress) -> None:
        """Give it to those who read the run now."""
        for reader in self._readers.get(progress.workflow_id, ()):
            reader.add(progress)

    @contextmanager
    def follow(self, workflow_id: str, wake: Callable[[], None]) -> Generator[DeltaReader]:
        """Return a reader of one run's answers: of those that are open now from their beginning."""
        reader = DeltaReader(workflow_id, list(self._answers.get(workflow_id, ())), wake)
        self._readers.setdefault(workflow_id, {})[reader] = None
        try:
            yield reader
        finally:
            readers = self._readers[workflow_id]
            del readers[reader]
            if not readers:
                del self._readers[workflow_id]


def _clean(text: object) -> str:
    """Return text that JSON can hold; an adapter may pass anything."""
    if not isinstance(text, str):
        return ""
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return text.encode(errors="replace").decode()
    return text
