"""What `tool_choice` means for one request (page 003 §14): which function the model must call, if any."""

from __future__ import annotations

from typing import Any, cast

from agentflow.models.base import ModelRequest
from agentflow.models.output_schemas import AnswerFunction

__all__ = ["PARAMETER", "answer_function", "chosen_function", "tool_choice"]

PARAMETER = "tool_choice"


def tool_choice(request: ModelRequest) -> Any:
    """Return the choice for this request; None if nothing is to be sent.

    `required` and a named function hold until the model has made a call in this turn of the user: held for
    the results too, they would keep it from ever answering. A function that is written as in the document has
    the name that the model sees. A model that answers by a call must make one in each turn.
    """
    given: Any = request.parameters.get(PARAMETER)
    answer = answer_function(request)
    if answer is not None and (len(request.tools) == 1 or given == "none"):
        return _function(answer)
    if (given is None and answer is None) or not request.tools:
        return None
    name = _named(given)
    forces = name is not None or given == "required"
    if not forces or _has_result(request):
        return "required" if answer is not None else "auto" if forces else given
    return given if name is None else _function(_offered(name, request))


def answer_function(request: ModelRequest) -> str | None:
    """Return the name of the function by whose call the model answers; None if it answers by text."""
    return next((tool.name for tool in request.tools if isinstance(tool, AnswerFunction)), None)


def _function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def chosen_function(request: ModelRequest) -> str | None:
    """Return the name of the function that this request must call; None if it need not call a certain one."""
    return _named(tool_choice(request))


def _named(choice: Any) -> str | None:
    if not isinstance(choice, dict):
        return None
    function: Any = cast("dict[str, Any]", choice).get("function")
    name: Any = cast("dict[str, Any]", function).get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _offered(name: str, request: ModelRequest) -> str:
    """Return the name under which a function is offered: itself, or with that of its service."""
    names = [tool.name for tool in request.tools]
    written = name.replace(".", "__")
    for known in (name, written):
        if known in names:
            return known
    return next((known for known in names if known.endswith(f"__{written}")), name)


def _has_result(request: ModelRequest) -> bool:
    """Return whether the last messages are results of functions, and not a question."""
    for message in reversed(request.messages):
        if message.role == "tool":
            return True
        if message.role == "user":
            return False
    return False
