"""The entry points of page 003 §1 that run nothing, and the normal form of graphs built in Python (§2).

A document is normalised while it is lowered (`ir_lowering`); here the same is done to a Workflow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.expressions import unwrapped
from agentflow.definition.ir import Workflow, canonical_json, decode_ir
from agentflow.definition.ir_vocabulary import POLICY, ir_document, is_default, is_expression
from agentflow.definition.loader import Definition, check_file, definition_of, load_file, load_value
from agentflow.definition.mermaid import to_mermaid
from agentflow.definition.shapes import ArrayOf, Field, Kind, Map, OneOf, Shape, Text
from agentflow.errors import DefinitionError, WorkflowValidationError

__all__ = [
    "normal_form",
    "validate_and_normalize",
    "verify_yaml_workflow",
    "workflow_to_mermaid",
    "yaml_workflow_to_ir",
]

Source = Workflow | Definition | Mapping[str, Any] | str | os.PathLike[str]
"""A graph, an accepted document, a document as a mapping, or the path of a file."""


def validate_and_normalize(definition: Source, *, strict: bool = False) -> Workflow:
    """Return the normal form of a definition: the same for the same meaning, and for its own result.

    Raises WorkflowValidationError with every diagnostic, and TypeError for what is no definition; with
    `strict` warnings are errors. Reads at most the file that is named.
    """
    try:
        if isinstance(definition, Workflow):
            return normal_form(definition_of(definition, strict=strict).workflow)
        if isinstance(definition, Definition):
            return normal_form(definition.workflow)
        if isinstance(definition, Mapping):
            return normal_form(load_value(definition, strict=strict).workflow)
        if not isinstance(definition, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind = type(definition).__name__
            raise TypeError(f"a definition must be a mapping, the path of a file or a Workflow, not {kind}")
        return normal_form(load_file(definition, strict=strict).workflow)
    except DefinitionError as error:
        raise WorkflowValidationError(error.diagnostics) from None


def verify_yaml_workflow(path: str | os.PathLike[str], *, strict: bool = False) -> list[Diagnostic]:
    """Return all that is wrong with a workflow file, sorted; never raises for a bad one."""
    return check_file(path, strict=strict)


def yaml_workflow_to_ir(path: str | os.PathLike[str]) -> Workflow:
    """Return the graph that a workflow file means, in normal form.

    Raises WorkflowValidationError with every diagnostic.
    """
    return validate_and_normalize(Path(path))


def workflow_to_mermaid(definition: Source) -> str:
    """Return a graph as Mermaid text (page 003 §11).

    Raises WorkflowValidationError for a definition that is not valid; a Workflow is drawn as it is.
    """
    return to_mermaid(definition if isinstance(definition, Workflow) else validate_and_normalize(definition))


def normal_form(workflow: Workflow) -> Workflow:
    """Return a graph that was checked, in normal form: texts trimmed, nodes by id, positions filled in."""
    wire = msgspec.json.decode(canonical_json(workflow))
    return decode_ir(canonical_json(_graph(wire)))


def _graph(wire: dict[str, Any]) -> dict[str, Any]:
    fields = ir_document().fields
    made = {
        key: _value(value, fields[key].kind, key) if key in fields else value for key, value in wire.items()
    }
    if not made.get("options"):
        made.pop("options", None)
    nodes = cast("list[dict[str, Any]]", made["nodes"])
    nodes.sort(key=_sort_key)
    if not any(node.get("index") for node in nodes):
        for i, node in enumerate(nodes):
            node["index"] = i
    return made


def _sort_key(node: dict[str, Any]) -> bytes:
    return str(node["id"]).encode()


def _value(value: Any, kind: Kind, key: str) -> Any:
    match kind:
        case Text() if isinstance(value, str):
            return unwrapped(value) if is_expression(key) or key == "set_globals" else value.strip()
        case Shape() if kind is ir_document():
            return _graph(value)
        case Shape() if kind is not POLICY and isinstance(value, dict):
            return _object(cast("dict[str, Any]", value), kind)
        case Map() if isinstance(value, dict):
            found = cast("dict[str, Any]", value)
            return {name.strip(): _value(item, kind.of, key) for name, item in found.items()}
        case ArrayOf() if isinstance(value, list):
            return [_value(item, kind.of, key) for item in cast("list[Any]", value)]
        case OneOf() if isinstance(value, str) and "string" in kind.by_type:
            return _value(value, kind.by_type["string"], key)
        case OneOf() if isinstance(value, dict) and "object" in kind.by_type:
            return _value(value, kind.by_type["object"], key)
        case _:
            return cast("Any", value)


def _object(value: dict[str, Any], shape: Shape) -> dict[str, Any]:
    fields: Mapping[str, Field] = shape.fields
    if shape.by is not None:
        fields = {**fields, **shape.variants.get(str(value.get(shape.by)), {})}
    return {
        key: _value(item, fields[key].kind, key) if key in fields else item
        for key, item in value.items()
        if key not in fields or not is_default(item, fields[key])
    }
