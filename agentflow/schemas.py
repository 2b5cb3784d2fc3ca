"""The JSON Schemas that agentflow publishes: of workflow documents, of graphs, of events (page 000 §12).

Draft 2020-12, as `agentflow schema NAME` prints them and `GET /schemas/FILE` gives them. Nothing here is on
the path of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

__all__ = ["SCHEMA_FILES", "SCHEMA_NAMES", "json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_COMPONENTS = "#/$defs/{name}"


@cache
def json_schema(name: str) -> bytes:
    """The schema of that name: JSON, indented, ends in a newline. Raises KeyError for another name."""
    return _PUBLISHED[name].make()


def _indented(made: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


def _workflow() -> bytes:
    from agentflow.definition.editor_schema import workflow_schema

    return workflow_schema()


def _graph() -> bytes:
    from agentflow.definition.editor_schema import graph_schema

    return graph_schema()


def _node_yaml() -> bytes:
    from agentflow.definition.editor_schema import node_yaml_schema

    return node_yaml_schema()


def _ir() -> bytes:
    from agentflow.definition.ir import Workflow

    schema, parts = _parts([Workflow])
    about = {"title": "agentflow graph", "description": "The graph that every document compiles to."}
    made = {"$schema": _DIALECT, "$id": "urn:agentflow:schema:ir:v0", **about, **schema[0], "$defs": parts}
    return _indented(made)


def _event() -> bytes:
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
    made = {
        "$schema": _DIALECT,
        "$id": f"urn:agentflow:schema:event:{SCHEMA_VERSION}",
        **about,
        **envelope,
        "allOf": cases,
        "$defs": parts,
    }
    return _indented(made)


def _parts(kinds: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=_COMPONENTS)
    return list(schemas), dict(sorted(parts.items()))


class _Published(NamedTuple):
    file: str
    make: Callable[[], bytes]


_PUBLISHED = {
    "event": _Published("event.json", _event),
    "graph": _Published("graph-v0.json", _graph),
    "ir": _Published("ir-v0.json", _ir),
    "workflow": _Published("workflow-1.0.json", _workflow),
    "yaml": _Published("node-yaml-1.json", _node_yaml),
}

SCHEMA_NAMES = tuple(_PUBLISHED)
SCHEMA_FILES = {published.file: name for name, published in _PUBLISHED.items()}
"""The name of each schema by that of its file, under which the daemon serves it."""
