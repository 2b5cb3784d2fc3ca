"""Requests and ids for the tests of model adapters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from agentflow.definition.conversation import Message, ToolSchema
from agentflow.models import ModelRequest


def ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def ask(text: str = "Hello", *, system: str = "You help.", model: str = "m", **more: Any) -> ModelRequest:
    messages = (Message(role="system", content=system), Message(role="user", content=text))
    return ModelRequest(**{"model": model, "messages": messages, **more})


def tool(name: str = "lookup", **properties: Any) -> ToolSchema:
    schema = {
        "type": "object",
        "properties": properties or {"id": {"type": "integer"}},
        "required": list(properties) or ["id"],
        "additionalProperties": False,
    }
    return ToolSchema(name=name, description=f"The function {name}.", input_schema=schema)
