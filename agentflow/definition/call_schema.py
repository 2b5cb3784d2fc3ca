"""A workflow as a function: the JSON Schema of its arguments, and the input that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.definition.loader import Definition

__all__ = ["input_of_call", "input_schema"]

_INPUT = "input"


def input_schema(definition: Definition) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a call. An input that is no object is their member
    `input`."""
    workflow, needs = definition.workflow, definition.inputs
    whole = workflow.input_schema
    if isinstance(whole, dict) and whole.get("type") == "object":
        return whole
    if not needs.named:
        return {"type": "object", "properties": {_INPUT: True if whole is None else whole}}
    schemas: dict[str, Any] = {name: {} for name in needs.known}
    for name, spec in (workflow.inputs or {}).items():
        about = {} if spec.description is None else {"description": spec.description}
        about |= {"default": spec.default} if spec.has_default else {}
        schemas[name] = {**spec.schema, **about} if isinstance(spec.schema, dict) else about
    return {
        "type": "object",
        "properties": schemas,
        "required": [one.name for one in needs.required],
        "additionalProperties": needs.open,
    }


def input_of_call(definition: Definition, arguments: Mapping[str, Any]) -> Any:
    """Return the input of a run that is called with arguments by `input_schema`."""
    if not definition.inputs.named and input_schema(definition).get("properties", {}).keys() == {_INPUT}:
        return arguments.get(_INPUT)
    return dict(arguments)
