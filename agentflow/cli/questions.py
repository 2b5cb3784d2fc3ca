"""An open request as text: what is asked, by when, and a command for each answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agentflow.cli.output import printable
from agentflow.cli.pauses import command_line, raise_answer
from agentflow.cli.sample_answers import sample_answer

if TYPE_CHECKING:
    from agentflow.cli.target import Where
    from agentflow.records.requests import RequestRecord

_MAX_CHOICES = 20

__all__ = ["place_text", "question_line", "question_text", "subject_text"]


def subject_text(question: RequestRecord) -> str:
    """Return what is asked: the message if there is one, and the call that would be made."""
    import msgspec

    subject: Any = question.subject
    if not isinstance(subject, dict):
        return printable(msgspec.json.encode(subject).decode())
    known = cast("dict[str, Any]", subject)
    message = known.get("message") or known.get("prompt")
    if not isinstance(message, str):
        message = None if "tool_name" in known else msgspec.json.encode(known).decode()
    parts = [] if message is None else [message]
    if question.kind == "tool" or question.request_type == "outcome_unknown":
        parts.append(f"{known.get('tool_name')}({msgspec.json.encode(known.get('parameters')).decode()})")
    return printable(" | ".join(parts))


def place_text(question: RequestRecord) -> str:
    """Return the step that asks, with the number of its item."""
    return question.step_id if question.iteration is None else f"{question.step_id}[{question.iteration}]"


def question_line(question: RequestRecord) -> str:
    """Return what is asked: id, step, side effect, deadline and subject."""
    facts = [place_text(question)]
    facts += [f"side effect {question.side_effect}"] if question.side_effect else []
    facts += [f"until {question.deadline}"] if question.deadline else []
    return f"  {question.request_id} ({', '.join(facts)}): {subject_text(question)}"


def question_text(question: RequestRecord, where: Where) -> str:
    """Return what is asked, and a command for each answer, as a shell takes it."""
    lines = [question_line(question)]
    for verb, *more in _answers(question):
        lines.append(f"    {command_line(verb, question.workflow_id, where, question.request_id, *more)}")
    return "\n".join(lines)


def _answers(question: RequestRecord) -> list[list[str]]:
    if question.kind != "input":
        return [["approve"], ["deny"]]
    if question.request_type == "budget":
        return [["answer", raise_answer(question.subject)], ["answer", "fail"]]
    schema: Any = question.response_schema
    members = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    if members.get("type") == "boolean":
        return [["answer", "true"], ["answer", "false"]]
    choices = members.get("properties", {}).get("choice", {}).get("enum", ())
    if not choices and members.get("enum"):
        choices = [word if isinstance(word, str) else _json(word) for word in members["enum"][:_MAX_CHOICES]]
    if choices:
        return [["answer", choice] for choice in choices]
    sample = sample_answer(question)
    return [["answer", "VALUE" if sample is None else sample]]


def _json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
