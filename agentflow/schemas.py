"""The JSON Schemas that agentflow publishes: of workflow documents, of graphs, of events (page 000 §12).

Draft 2020-12, as `agentflow schema NAME` prints them. Nothing here is on the path of a run.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["SCHEMA_NAMES", "json_schema"]

SCHEMA_NAMES = ("event", "ir", "workflow")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_COMPONENTS = "#/$defs/{name}"


def json_schema(name: str) -> bytes:
    """The schema of that name: JSON, indented, ends in a newline. Raises KeyError for another name."""
    if name == "workflow":
        from agentflow.definition.editor_schema import workflow_schema

        return workflow_schema()
    made = {"ir": _ir, "event": _event}[name]()
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


def _ir() -> dict[str, Any]:
    from agentflow.definition.ir import Workflow

    schema, parts = _parts([Workflow])
    about = {"title": "agentflow graph", "description": "The graph that every document compiles to."}
    return {"$schema": _DIALECT, "$id": "urn:agentflow:schema:ir:v0", **about, **schema[0], "$defs": parts}


def _event() -> dict[str, Any]:
    from agentflow.events.catalogue import TYPES
    from agentflow.events.envelope import SCHEMA_VERSION, Event

    types = dict(sorted(TYPES.items()))
    (envelope, *data), parts = _parts([Event[Any], *types.values()])
    about = {"title": "agentflow event", "description": "One event of the log of a run; a line of NDJSON."}
    cases = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"properties": {"data": schema}},
        }
        for name, schema in zip(types, data, strict=True)
    ]
    return {
        "$schema": _DIALECT,
        "$id": f"urn:agentflow:schema:event:{SCHEMA_VERSION}",
        **about,
        **envelope,
        "allOf": cases,
        "$defs": parts,
    }


def _parts(kinds: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=_COMPONENTS)
    return list(schemas), dict(sorted(parts.items()))
