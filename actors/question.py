"""The two ends of an ask: `Question` (the asker's, internal) and `Reply` (an answer that a handler puts off).

A question is settled exactly once, by what comes first: the answer, the handler's exception, the
deadline, the end of the actor, or the asker who goes away. What comes later is a dead letter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Generic, TypeVar

from actors.ref import Ref

__all__ = ["Answer", "Question", "Reply", "when_settled"]

R = TypeVar("R")


class Answer(asyncio.Future[Any]):
    """The future of `Ref.ask_soon`. What the runtime does about an answer it does when it is given, which
    spares each of these calls a turn of the loop; everyone else learns of it as of any future."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._at_once: list[tuple[Callable[[asyncio.Future[Any]], object], Context | None, bool]] = []

    def call_at_once(
        self,
        callback: Callable[[asyncio.Future[Any]], object],
        context: Context | None,
        *,
        always: bool = False,
    ) -> None:
        """Call `callback`, which must not raise, when the result is set; of an exception or a cancellation,
        which reach it in the middle of other work, it is told at the next turn of the loop, or with `always`
        at once too."""
        self._at_once.append((callback, context, always))

    def set_result(self, result: Any, /) -> None:
        super().set_result(result)
        calls, self._at_once = self._at_once, []
        for callback, context, _ in calls:
            if context is None:
                callback(self)
            else:
                context.run(callback, self)

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        self._call_later()

    def cancel(self, msg: Any | None = None) -> bool:
        cancelled = super().cancel(msg)
        self._call_later()
        return cancelled

    def _call_later(self) -> None:
        calls, self._at_once = self._at_once, []
        for callback, context, always in calls:
            if always and context is not None:
                context.run(callback, self)
            else:
                self.add_done_callback(callback, context=context)


def when_settled(
    future: asyncio.Future[Any],
    callback: Callable[[asyncio.Future[Any]], object],
    context: Context | None = None,
) -> None:
    """Call `callback` once the future is settled: at once with the result of an `Answer`, else soon."""
    if type(future) is Answer and not future.done():
        future.call_at_once(callback, context)
    else:
        future.add_done_callback(callback, context=context)


class Question:
    """One ask under way. `waiting` is the asking actor if it can do nothing else meanwhile, `parent` the
    question that it is handling: together the chain in which a cycle is a deadlock."""

    __slots__ = ("answered", "bucket", "deadline", "deferred", "future", "parent", "waiting")

    def __init__(
        self,
        future: asyncio.Future[Any],
        deadline: float,
        parent: Question | None,
        waiting: Ref[Any] | None,
    ) -> None:
        self.future = future
        self.deadline = deadline
        self.parent = parent
        self.waiting = waiting
        self.bucket: dict[Question, Any] | None = None
        """Where the deadline hangs; a settled question leaves it."""
        self.answered = False
        self.deferred = False

    def answer(self, value: Any) -> bool:
        """Settle with a value; false if it is settled."""
        future = self.future
        if future.done():
            return False
        self.answered = True
        if self.bucket is not None:
            self.bucket.pop(self, None)
        future.set_result(value)
        return True

    def fail(self, error: BaseException) -> bool:
        """Settle with an exception; false if it is settled."""
        future = self.future
        if future.done():
            return False
        self.answered = True
        if self.bucket is not None:
            self.bucket.pop(self, None)
        if isinstance(error, StopIteration):  # a future cannot carry it
            wrapped = RuntimeError("the handler raised StopIteration")
            wrapped.__cause__ = error
            error = wrapped
        future.set_exception(error)
        return True


class Reply(Generic[R]):
    """The answer to the message in hand, to be given later from anywhere on the loop (`ctx.defer()`).

    The first `set` or `fail` counts; later ones are dead letters (`duplicate`, or `late` when the asker no
    longer waits). For a message that was told, not asked, both do nothing. If the actor ends or restarts
    first, the asker gets `ActorStopped`.
    """

    __slots__ = ("_late", "_question")

    def __init__(self, question: Question | None, late: Callable[[Question, Any], object]) -> None:
        self._question = question
        self._late = late

    def set(self, value: R) -> bool:
        """Answer; true if the asker gets it (or the message was told)."""
        question = self._question
        if question is None:
            return True
        if question.answer(value):
            return True
        self._late(question, value)
        return False

    def fail(self, error: BaseException) -> bool:
        """Answer with an exception, by which the actor itself does not fail; true as for `set`."""
        question = self._question
        if question is None:
            return True
        if question.fail(error):
            return True
        self._late(question, error)
        return False

    @property
    def asked(self) -> bool:
        """Whether anyone asked: false for a message that was told."""
        return self._question is not None

    @property
    def abandoned(self) -> bool:
        """Whether the asker no longer waits: it was cancelled, its deadline passed, or it died."""
        question = self._question
        return question is not None and question.future.done() and not question.answered

    def on_abandon(self, callback: Callable[[], object]) -> None:
        """Call `callback` once, soon after the asker stops waiting (soon, if it already has)."""
        question = self._question
        if question is None:
            return

        def settled(_: asyncio.Future[Any]) -> None:
            if not question.answered:
                callback()

        when_settled(question.future, settled)
