"""The JSON Schema of workflow documents for editors (page 001 §7), made from the tables of the loader.

It accepts every document that the loader accepts. Ids that must be unique, the graph and expressions stay
with the loader. The result is kept in the package (`SCHEMA_FILE`); a test fails when the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentflow.definition.ir_vocabulary import ir_document
from agentflow.definition.node_yaml_vocabulary import node_yaml
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    ErrorName,
    Field,
    Id,
    Json,
    Kind,
    Map,
    Number,
    OneOf,
    Schema,
    Shape,
    Text,
)
from agentflow.definition.vocabulary import AGENT_LIST, STEP_DOCUMENT

__all__ = [
    "SCHEMA_FILE",
    "SCHEMA_ID",
    "graph_schema",
    "make_workflow_schema",
    "node_yaml_schema",
    "workflow_schema",
]

GRAPH_SCHEMA_ID = "urn:agentflow:schema:graph:v0"
NODE_YAML_SCHEMA_ID = "urn:agentflow:schema:yaml:1"
SCHEMA_ID = "urn:agentflow:schema:workflow:1.0"
SCHEMA_FILE = Path(__file__).parent / "workflow-1.0.schema.json"

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
# A blank text has nothing but what Python calls white space, to which U+FEFF does not belong; for the
# regular expressions of editors it does.
_NOT_BLANK = r"[\S\ufeff]"
_DURATION = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
_EXTENSION = "^x-"


def workflow_schema() -> bytes:
    """Return the schema as it is kept in the package: JSON, indented, ends in a newline."""
    return SCHEMA_FILE.read_bytes()


def make_workflow_schema() -> bytes:
    """Return the schema as `workflow_schema` does, made anew from the tables."""
    return msgspec.json.format(msgspec.json.encode(_Maker().document()), indent=2) + b"\n"


def graph_schema() -> bytes:
    """Return the schema of graph documents (`ir/v0`, page 003 §2), made from the present kinds."""
    about = ("agentflow graph document", "A graph of nodes, as a person or a program writes it.")
    return _schema_of(ir_document(), GRAPH_SCHEMA_ID, *about)


def node_yaml_schema() -> bytes:
    """Return the schema of node-graph YAML (page 003 §12)."""
    about = ("agentflow node graph", "A graph of nodes that says where it enters, in node-graph YAML.")
    return _schema_of(node_yaml(), NODE_YAML_SCHEMA_ID, *about)


def _schema_of(shape: Shape, identifier: str, title: str, about: str) -> bytes:
    made = {"$schema": _DIALECT, "$id": identifier, **_Maker().whole(shape, title, about)}
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


class _Maker:
    """Objects with known keys stand under $defs, each once, by their name."""

    def __init__(self) -> None:
        self._defs: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def document(self) -> dict[str, Any]:
        steps = self._define(STEP_DOCUMENT, "step_document")
        agents = self._define(AGENT_LIST, "agent_list")
        return {
            "$schema": _DIALECT,
            "$id": SCHEMA_ID,
            "title": "agentflow workflow",
            "description": "A workflow of AI agents: steps (workflow), or a list of agents (agents).",
            "type": "object",
            "if": {"required": ["agents"]},
            "then": agents,
            "else": steps,
            "$defs": dict(sorted(self._defs.items())),
        }

    def whole(self, shape: Shape, title: str, about: str) -> dict[str, Any]:
        """Return the schema of one shape."""
        reference = self._define(shape, shape.name)
        return {"title": title, "description": about, **reference, "$defs": dict(sorted(self._defs.items()))}

    def _define(self, shape: Shape, name: str) -> dict[str, Any]:
        """Return a reference to the definition of a shape."""
        if id(shape) not in self._names:
            name = self._unused(name)
            self._names[id(shape)] = name
            self._defs[name] = None  # taken, while its parts are made
            self._defs[name] = self._shape(shape, name)
        return {"$ref": f"#/$defs/{self._names[id(shape)]}"}

    def _unused(self, name: str) -> str:
        number, candidate = 2, name
        while candidate in self._defs:
            number, candidate = number + 1, f"{name}_{number}"
        return candidate

    def _shape(self, shape: Shape, name: str) -> dict[str, Any]:
        if shape.by is None:
            return self._object(shape, shape.fields)
        chooser = shape.fields[shape.by]
        cases: list[dict[str, Any]] = []
        for value, fields in shape.variants.items():
            chosen = {"properties": {shape.by: {"const": value}}, "required": [shape.by]}
            variant = self._unused(f"{name}_{value}")
            self._defs[variant] = self._object(shape, {**shape.fields, **fields})
            cases.append({"if": chosen, "then": {"$ref": f"#/$defs/{variant}"}})
        properties = {shape.by: self._field(chooser)}
        return {"type": "object", "required": [shape.by], "properties": properties, "allOf": cases}

    def _object(self, shape: Shape, fields: Mapping[str, Field]) -> dict[str, Any]:
        made: dict[str, Any] = {
            "type": "object",
            "properties": {key: self._field(field) for key, field in fields.items()},
        }
        made["properties"].update(dict.fromkeys(sorted(shape.refused), False))
        required = [key for key, field in fields.items() if field.required]
        if required:
            made["required"] = required
        made["patternProperties"] = {_EXTENSION: True}
        made["additionalProperties"] = self._kind(shape.other) if shape.other is not None else False
        return made

    def _field(self, field: Field) -> dict[str, Any]:
        exact = Enum(field.values, trim=True) if isinstance(field.kind, Text) else None
        made = {"enum": list(field.values)} if field.values else self._kind(field.kind)
        if field.values and exact is not None:
            made = _leaf(exact)
        made = {"description": field.about, **made}
        if field.default is not msgspec.UNSET:
            made["default"] = field.default
        return made

    def _kind(self, kind: Kind) -> dict[str, Any]:
        match kind:
            case Shape():
                return self._define(kind, kind.name)
            case ArrayOf():
                return self._array(kind)
            case Map():
                return self._map(kind)
            case OneOf():
                return {"anyOf": self._alternatives(kind)}
            case Schema():
                return {"$ref": _DIALECT}
            case Json():
                return {"type": list(kind.types)} if kind.types else {}
            case _:
                return _leaf(kind)

    def _alternatives(self, kind: OneOf) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for inner in kind.by_type.values():
            made = self._kind(inner)
            if made not in found:
                found.append(made)
        return found

    def _array(self, kind: ArrayOf) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "array", "items": self._kind(kind.of)}
        if kind.min:
            made["minItems"] = kind.min
        if kind.max is not None:
            made["maxItems"] = kind.max
        return made

    def _map(self, kind: Map) -> dict[str, Any]:
        if kind.any_key:
            return {"type": "object", "additionalProperties": self._kind(kind.of)}
        return {
            "type": "object",
            "propertyNames": {"anyOf": [{"pattern": _EXTENSION}, {"pattern": _id_pattern(64)}]},
            "patternProperties": {_EXTENSION: True},
            "additionalProperties": self._kind(kind.of),
        }


def _leaf(kind: Text | Id | ErrorName | Duration | Number | Const | Enum) -> dict[str, Any]:
    match kind:
        case Text():
            made: dict[str, Any] = {"type": "string"}
            if not kind.blank:
                made["pattern"] = _NOT_BLANK
            if kind.max is not None:
                made["maxLength"] = kind.max
            return made
        case Id():
            return {"type": "string", "pattern": _id_pattern(kind.max)}
        case ErrorName():
            return {"type": "string", "pattern": "^[a-z][a-z0-9_.]*$", "maxLength": kind.max}
        case Duration():
            text = {"type": "string", "pattern": _DURATION}
            return {"anyOf": [text, {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS}]}
        case Number():
            made = {"type": "integer" if kind.integer else "number"}
            if kind.minimum is not None:
                made["minimum"] = kind.minimum
            if kind.maximum is not None:
                made["maximum"] = kind.maximum
            return made
        case Const():
            return {"type": "boolean"} if len(kind.allowed) > 1 else {"enum": list(kind.allowed)}
        case Enum():
            words: dict[str, Any] = {"enum": list(kind.values)}
            padded = {"type": "string", "pattern": rf"^\s*(?:{'|'.join(kind.values)})\s*$"}
            return {"anyOf": [words, padded]} if kind.trim else words


def _id_pattern(longest: int) -> str:
    return f"^[A-Za-z_][A-Za-z0-9_-]{{0,{longest - 1}}}$"
