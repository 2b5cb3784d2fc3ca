"""Decisions of a person about a run that waits: the answers that fit, and the command that each gives.

Pure: `prompt` asks on the terminal, `follow` gives the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from agentflow.cli.inputs import parse_value
from agentflow.cli.output import printable
from agentflow.cli.pauses import held_steps, larger_limit, suggested_raise
from agentflow.cli.questions import place_text, question_line

if TYPE_CHECKING:
    from agentflow.cli.progress import Progress
    from agentflow.records.requests import RequestRecord

__all__ = ["Decision", "Instruction", "open_decisions"]

_CHOICES = {
    "retry": "retry",
    "done": "done [OUTPUT]",
    "fail": "fail",
    "raise": "raise [LIMIT]",
}
"""A choice of a request as the prompt writes it; those with a value take it behind the word."""


class Instruction(NamedTuple):
    """A command to the run: a method of the Runtime and its arguments."""

    command: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Decision:
    """Something that only a person can decide."""

    key: str
    """Differs from that of every other open decision of the run."""
    text: str
    """What is asked, in one line."""
    answers: str
    """The answers, as the prompt lists them."""
    details: Mapping[str, Any]
    """All that is known, for the answer `show`."""
    parse: Callable[[str], Instruction]
    """Return what a typed line tells the run. Raises click.BadParameter."""


def open_decisions(questions: Sequence[RequestRecord], progress: Progress, state: str) -> list[Decision]:
    """Return what a person can decide about a run in this state, oldest first."""
    if state == "waiting":
        return [_of_request(question) for question in questions]
    if state != "paused" or progress.paused is None:
        return []
    if progress.paused.reason == "failure":
        return [_of_held_step(step_id, progress) for step_id in held_steps(progress.paused)]
    larger = larger_limit(progress.paused)
    return [] if larger is None else [_of_budget(progress.pause, *larger)]


def _of_request(question: RequestRecord) -> Decision:
    if question.kind != "input":
        answers, parse = "y [REASON], n [REASON]", _approval(question)
    elif (choices := _choices(question)) is not None:
        answers, parse = ", ".join(_CHOICES.get(c, c) for c in choices), _choice(question, choices)
    else:
        answers, parse = "VALUE (JSON, else text)", _value(question)
    facts: dict[str, Any] = {
        "request": question.request_id,
        "step": place_text(question),
        "asked_at": question.asked_at,
        "deadline": question.deadline,
        "side_effect": question.side_effect,
        "digest": question.digest,
        "subject": question.subject,
        "response_schema": question.response_schema,
    }
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return Decision(question.request_id, question_line(question), answers, known, parse)


def _approval(question: RequestRecord) -> Callable[[str], Instruction]:
    def parse(line: str) -> Instruction:
        word, _, reason = line.partition(" ")
        if word.lower() not in ("y", "yes", "n", "no"):
            raise click.BadParameter("y approves, n denies")
        granted = word.lower() in ("y", "yes")
        # What was shown is what is approved: another call under the same id has another digest.
        digest = question.digest if granted else None
        more = {"request_id": question.request_id, "reason": reason.strip() or None, "digest": digest}
        return Instruction("decide", {"granted": granted, **more})

    return parse


def _choices(question: RequestRecord) -> tuple[str, ...] | None:
    schema: Any = question.response_schema
    if not isinstance(schema, dict):
        return None
    properties: Any = cast("dict[str, Any]", schema).get("properties")
    choice: Any = cast("dict[str, Any]", properties).get("choice") if isinstance(properties, dict) else None
    found: Any = cast("dict[str, Any]", choice).get("enum") if isinstance(choice, dict) else None
    return tuple(found) if found and all(isinstance(word, str) for word in found) else None


def _choice(question: RequestRecord, choices: tuple[str, ...]) -> Callable[[str], Instruction]:
    def parse(line: str) -> Instruction:
        word, _, rest = line.partition(" ")
        if word not in choices:
            raise click.BadParameter(f'"{word}" is not one of {", ".join(choices)}')
        given: dict[str, Any] = {"choice": word}
        if word == "raise":
            given["limit"] = _limit(rest) if rest.strip() else suggested_raise(question.subject)
        elif rest.strip():
            if word != "done":
                raise click.BadParameter(f'"{word}" takes no value')
            given["output"] = parse_value(rest.strip())
        return _answer(question, given)

    return parse


def _value(question: RequestRecord) -> Callable[[str], Instruction]:
    schema: Any = question.response_schema
    wants_text = isinstance(schema, dict) and cast("dict[str, Any]", schema).get("type") == "string"

    def parse(line: str) -> Instruction:
        value = parse_value(line)
        if wants_text and not isinstance(value, str):
            value = line  # `5` where a text is asked for
        return _answer(question, value)

    return parse


def _answer(question: RequestRecord, value: Any) -> Instruction:
    return Instruction("answer_all", {"responses": {question.request_id: value}})


def _of_held_step(step_id: str, progress: Progress) -> Decision:
    step = progress.steps.get(step_id)
    reason = step.reason if step is not None else ""

    def parse(line: str) -> Instruction:
        word, _, rest = line.partition(" ")
        if word not in ("retry", "skip", "done", "fail"):
            raise click.BadParameter(f'"{word}" is not one of retry, skip, done, fail')
        if rest.strip() and word != "done":
            raise click.BadParameter(f'"{word}" takes no value')
        output = parse_value(rest.strip()) if rest.strip() else None
        return Instruction("retry", {"step_id": step_id, "action": word, "output": output})

    text = printable(f"  {step_id} failed: {reason}")
    details = {"step": step_id, "error": step.error if step is not None else None}
    return Decision(f"step {step_id}", text, "retry, skip, done [OUTPUT], fail", details, parse)


def _of_budget(reason: str, name: str, suggested: float) -> Decision:
    def parse(line: str) -> Instruction:
        word, _, rest = line.partition(" ")
        if word != "raise":
            raise click.BadParameter(f'"raise" sets {name} to {suggested:,}, "raise LIMIT" to another limit')
        return Instruction("resume", {"budget": {name: _limit(rest) if rest.strip() else suggested}})

    return Decision("budget", printable(f"  {reason}"), "raise [LIMIT]", {"limit": name}, parse)


def _limit(text: str) -> float:
    value: Any = parse_value(text.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise click.BadParameter("a limit is a number")
    return value
