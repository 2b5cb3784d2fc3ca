"""Answers that a handler puts off: `ctx.defer()`, limited work."""

from __future__ import annotations

from typing import Any

from actors.kernel.cell import Cell
from actors.question import Question, Reply, when_settled
from actors.states import DRAIN

__all__ = ["defer", "question_in_hand"]


def question_in_hand(cell: Cell) -> Question | None:
    """Return the question of the message in hand; None if it was told, or between messages."""
    question = cell.hand[3]
    return question if isinstance(question, Question) else None


def defer(cell: Cell) -> Reply[Any]:
    """Take over the answer to the message in hand."""
    question = question_in_hand(cell)
    if question is not None and not question.deferred:
        question.deferred = True
        cell.extra().deferred[question] = None
        when_settled(question.future, lambda _: _answered(cell, question))
    return Reply(question, cell.late_answer)


def _answered(cell: Cell, question: Question) -> None:
    if cell.extras is not None:
        cell.extras.deferred.pop(question, None)
        if cell.order & DRAIN:
            cell.enqueue()
