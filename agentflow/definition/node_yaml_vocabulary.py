"""The keys of node-graph YAML (page 003 §12) as shapes. Fields of kinds are checked as in `ir/v0`."""

from __future__ import annotations

from agentflow.definition.ir_vocabulary import ir_document
from agentflow.definition.ir_words import about
from agentflow.definition.shapes import ArrayOf, Duration, Enum, Field, Json, Map, Number, Shape, Text
from agentflow.definition.vocabulary_values import RETRY_OF_NODES, SERVICE

__all__ = ["CONFIG", "OWN_KINDS", "node_yaml"]

OWN_KINDS = ("llm_call", "switch", "custom_worker", "human_input", "end")
"""Kinds that node YAML writes in a form of its own, beside the kinds of the graph."""

_TEXT = Json(template=True, types=("string",))
_SCHEMA = Json(types=("object", "boolean"))

CONFIG = Shape(
    "config",
    {
        "prompt": Field(_TEXT, about("prompt")),
        "user_input_prompt": Field(_TEXT, "The same as prompt."),
        "node_system_prompt": Field(_TEXT, about("system")),
        "output_schema": Field(_SCHEMA, about("output_schema")),
        "schema": Field(_SCHEMA, "The same as output_schema."),
        "payload": Field(Json(template=True), "What a worker is given. A template."),
        "set_globals": Field(Json(template=True, types=("object",)), about("set_globals")),
        "update_globals": Field(Json(template=True, types=("object",)), about("update_globals")),
    },
    synonyms={"system": "node_system_prompt", "system_prompt": "node_system_prompt", "input": "payload"},
)

_NODE = Shape(
    "node",
    {
        "id": Field(Text(blank=True), about("id")),
        "name": Field(Text(), about("name")),
        "node_type": Field(Json(template=True), "Exactly one kind, with its fields."),
        "config": Field(CONFIG, "Prompts, schema, payload and globals of the node."),
        "timeout": Field(Duration(), "How long the node may take, all attempts together."),
        "retry": Field(RETRY_OF_NODES, "When and how often failed work is tried again."),
    },
    synonyms={"type": "node_type", "kind": "node_type"},
)

_EDGE = Shape(
    "edge",
    {
        "from": Field(Text(), about("source"), required=True),
        "to": Field(Text(), about("target"), required=True),
    },
    synonyms={"source": "from", "target": "to"},
)

_DEFAULTS = Shape(
    "defaults",
    {
        "timeout": Field(Duration(), "The time-out of nodes that have none."),
        "retry": Field(RETRY_OF_NODES, "The retry of nodes; a node's own keys win."),
        "max_concurrency": Field(Number(minimum=1, integer=True), about("max_concurrency")),
    },
)


def node_yaml() -> Shape:
    """Return the shape of a whole document."""
    graph = ir_document().fields
    return Shape(
        "document",
        {
            "id": Field(Text(max=128), "The name of the workflow.", required=True),
            "version": Field(Json(), "The author's own version of the workflow."),
            "format": Field(Enum(("yaml",)), "The format, as the keys say it too."),
            "$schema": Field(Text(blank=True), "The schema for editors. It has no meaning for a run."),
            "metadata": Field(Json(), about("metadata")),
            "entry_node": Field(Text(blank=True), "The node that comes first."),
            "nodes": Field(ArrayOf(_NODE, max=1_000), about("nodes")),
            "edges": Field(ArrayOf(_EDGE), "The ways from node to node."),
            "defaults": Field(_DEFAULTS, "The policy of nodes that state none."),
            "globals": Field(Json(types=("object",)), about("globals")),
            "options": graph["options"],
            "services": Field(Map(SERVICE), about("services")),
            "models": graph["models"],
        },
        synonyms={"name": "id", "entry": "entry_node", "start": "entry_node"},
    )
