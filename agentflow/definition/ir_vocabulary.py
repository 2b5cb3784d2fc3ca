"""The keys of a graph document (`ir/v0`, page 003 §2, §4) as shapes, made from the Structs of the graph.

A kind that is added to the table can be written in documents at once. What a document may write in another
form than the graph has (policies, agents, services, models) has a shape of its own here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import msgspec
from msgspec import inspect

from agentflow.definition.graph import ServiceSpec, Workflow
from agentflow.definition.ir_words import about
from agentflow.definition.kinds import KINDS
from agentflow.definition.node import (
    AgentSpec,
    Approval,
    Budget,
    Cache,
    ModelRef,
    Policy,
)
from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    Field,
    Json,
    Kind,
    Map,
    Number,
    OneOf,
    Schema,
    Shape,
    Text,
)
from agentflow.definition.vocabulary import STEP_DOCUMENT
from agentflow.definition.vocabulary_values import APPROVAL, BUDGET, CACHE, EXAMPLE, FLAG, RETRY, SERVICE
from agentflow.definition.vocabulary_values import MODEL as _MODEL

__all__ = ["ALIASES", "EXPRESSIONS", "MODEL", "POLICY", "ir_document", "is_default", "is_expression"]

ALIASES = {"switch": "condition", "if": "condition"}
"""Other names of kinds, which the normal form does not have."""

EXPRESSIONS = frozenset({"condition", "expression", "guard", "match", "when"})
"""Fields that are one expression, bare or in braces; those that end in `_path` are too."""

_LITERAL = frozenset(
    {"id", "name", "tool", "compensate_tool", "executor", "graph", "event", "type", "handler_file"}
)
_PROMPTS = frozenset({"message", "prompt", "system", "system_prompt"})
_SCHEMAS = frozenset({"form_schema", "input_schema", "output_schema", "schema"})
_PLAIN_NUMBERS = frozenset(
    {"by", "jitter", "max_cost_usd", "max_duration_s", "multiplier", "temperature", "top_p"}
)
_TEXT = Text(blank=True, template=True)
_NAMES = Text(blank=True)


def _with_retries(retry: OneOf) -> OneOf:
    """Return the shape of `retry` with `max_retries`, which is read as one less than `max_attempts`."""
    policy = cast("Shape", retry.by_type["object"])
    more = {"max_retries": Field(Number(minimum=0, integer=True), "How often it is tried again.")}
    changed = msgspec.structs.replace(policy, fields={**policy.fields, **more})
    return OneOf({**retry.by_type, "object": changed}, code=retry.code)


def _in_normal_form(model: OneOf) -> OneOf:
    """Return the shape of a model that may also be written as the normal form has it: its parameters in an
    object of their own, and blank where the choice is left to the binding."""
    written = cast("Shape", model.by_type["object"])
    more = {
        "provider": msgspec.structs.replace(written.fields["provider"], kind=Text(max=64, blank=True)),
        "model": msgspec.structs.replace(written.fields["model"], kind=Text(max=256, blank=True)),
        "parameters": Field(Json(types=("object",)), "What goes to the provider as it is."),
    }
    changed = msgspec.structs.replace(written, fields={**written.fields, **more})
    return OneOf({**model.by_type, "object": changed}, code=model.code)


MODEL = _in_normal_form(_MODEL)
_RETRY = _with_retries(RETRY)
POLICY = Shape(
    "policy",
    {
        "retry": Field(_RETRY, "When and how often failed work is tried again."),
        "timeout": Field(Duration(), "How long the node may take, all attempts together."),
        "budget": Field(BUDGET, "What the node may use."),
    },
)
"""Retry, time-out and budget of a node, and of all nodes of a kind."""

_AGENT = Shape(
    "agent",
    {
        "name": Field(Text(), "The name of the agent; without it, the id of its node."),
        "system_prompt": Field(
            Json(template=True, types=("string",)),
            "The instructions for the agent, a template.",
            required=True,
            code="E_EMPTY_FIELD",
        ),
        "model": Field(MODEL, "The language model: an alias, provider:model, or an object."),
        "fallback": Field(ArrayOf(MODEL), "The models that are tried when the one before fails."),
        "output_schema": Field(Schema(), "The JSON Schema (Draft 2020-12) that the result must satisfy."),
        "plain_result": Field(Enum(("text", "object")), "What an answer becomes without output_schema."),
        "tools": Field(ArrayOf(Text(max=129)), "Functions that it may call: names, or service.function."),
        "functions": Field(
            OneOf(
                {
                    "array": ArrayOf(
                        Shape(
                            "function",
                            {
                                "service": Field(Text(blank=True), "Its service.", required=True),
                                "function": Field(Text(), "Its name, or *.", required=True),
                            },
                        )
                    ),
                    "null": Const((None,)),
                }
            ),
            "Functions by service and name; null: all that the run may use.",
        ),
        "context": Field(Json(template=True), "Data for its functions, which the model never sees."),
        "tags": Field(Json(template=True, types=("object",)), "Names and values that go with its events."),
        "max_turns": Field(Number(minimum=1, integer=True), "How often the model is called at most.", 10),
        "max_tool_calls": Field(Number(minimum=1, integer=True), "How many functions are called.", 50),
        "parallel_tool_calls": Field(FLAG, "Whether functions are called together.", True),
        "examples": Field(ArrayOf(EXAMPLE), "Inputs with their answers, shown to the model first."),
        "accept_truncated": Field(FLAG, "Whether the text of an answer that is cut off is taken.", False),
        "registered": Field(FLAG, "Whether the name is that of a registered agent.", False),
    },
    code=None,
    synonyms={"prompt": "system_prompt", "instructions": "system_prompt", "schema": "output_schema"},
)

AGENT = OneOf({"object": _AGENT, "string": _NAMES})
"""An agent, or the name of a registered one."""

_OWN: dict[type[Any], Kind] = {
    AgentSpec: AGENT,
    Approval: APPROVAL,
    Budget: BUDGET,
    Cache: CACHE,
    ModelRef: MODEL,
    Policy: POLICY,
    ServiceSpec: SERVICE,
}


def ir_document() -> Shape:
    """Return the shape of a whole graph document, with the present kinds."""
    return _graph(tuple(KINDS))


@lru_cache(maxsize=4)
def _graph(kinds: tuple[str, ...]) -> Shape:
    return _Maker().graph


class _Maker:
    """Makes the shapes of one table of kinds. A graph may stand in a graph: that shape holds itself."""

    def __init__(self) -> None:
        fields: dict[str, Field] = {}
        self.graph = Shape(
            "document",
            fields,
            synonyms={"steps": "nodes", "title": "name", "inputs_schema": "input_schema"},
        )
        self._made: dict[type[Any], Kind] = {}
        fields.update(self._top())

    def _top(self) -> dict[str, Field]:
        node = self._node()
        made = self._fields(Workflow, skip=frozenset({"nodes", "version", "inputs"}))
        made = {key: msgspec.structs.replace(field, required=False) for key, field in made.items()}
        retry = Shape("defaults", {}, other=POLICY)
        first = {
            "version": Field(Json(), 'The version of the format: "v0".', "v0"),
            "format": Field(Enum(("ir/v0",)), "The format, as the keys say it too."),
            "$schema": Field(Text(blank=True), "The schema for editors. It has no meaning for a run."),
            "nodes": Field(ArrayOf(node, max=_MOST_NODES), about("nodes"), required=False),
            "defaults": Field(retry, about("defaults")),
            "inputs": STEP_DOCUMENT.fields["inputs"],
        }
        return {**first, **made}

    def _node(self) -> Shape:
        variants = {name: self._fields(kind.spec) for name, kind in KINDS.items()}
        for name, fields in variants.items():
            fields.update(_more(name, fields))
            for key in ("id", "index"):
                fields.pop(key)
        variants |= {alias: variants[name] for alias, name in ALIASES.items()}
        own = {
            "id": Field(_NAMES, about("id")),
            "type": Field(_NAMES, about("type"), values=tuple(sorted(variants))),
            "index": Field(Number(minimum=0, integer=True), about("index")),
        }
        synonyms = {"kind": "type", "node_type": "type", "target": "next", "config": "input", "if": "guard"}
        return Shape("node", own, by="type", variants=variants, synonyms=synonyms, lenient=True)

    def _fields(self, spec: type[Any], skip: frozenset[str] = frozenset()) -> dict[str, Field]:
        info = cast("inspect.StructType", inspect.type_info(spec))
        made: dict[str, Field] = {}
        for field in info.fields:
            key = field.encode_name
            if key in skip or key == "call_policy":
                continue
            default = field.default if _is_plain(field.default) else msgspec.UNSET
            kind = self._kind(field.type, key)
            made[key] = Field(kind, about(key), default, required=field.required, code="E_EMPTY_FIELD")
        return made

    def _kind(self, found: inspect.Type, key: str) -> Kind:
        if key in _SCHEMAS:
            return Schema()
        if key in _PROMPTS and not isinstance(found, inspect.AnyType):
            return Json(template=True, types=("string",))
        match found:
            case inspect.StrType():
                return _NAMES if key in _LITERAL else _TEXT
            case inspect.BoolType():
                return FLAG
            case inspect.IntType():
                return Number(integer=True)
            case inspect.FloatType():
                return Number() if key in _PLAIN_NUMBERS else Duration()
            case inspect.LiteralType():
                return Enum(tuple(str(value) for value in found.values), trim=True)
            case inspect.VarTupleType() | inspect.ListType():
                return ArrayOf(self._kind(found.item_type, key))
            case inspect.DictType():
                return self._map(found, key)
            case inspect.StructType():
                return self._struct(found.cls, key)
            case inspect.UnionType():
                return self._union(found, key)
            case _:
                return Json(template=key not in _CONSTANT)

    def _map(self, found: inspect.DictType, key: str) -> Kind:
        if isinstance(found.value_type, inspect.AnyType):
            return Json(template=key not in _CONSTANT, types=("object",))
        return Map(self._kind(found.value_type, key), any_key=True)

    def _struct(self, spec: type[Any], key: str) -> Kind:
        if issubclass(spec, Workflow):
            return self.graph
        if spec in _OWN:
            return _OWN[spec]
        if spec not in self._made:
            shape = Shape(key, self._fields(spec), synonyms=_SYNONYMS.get(spec.__name__, {}))
            self._made[spec] = shape
        return self._made[spec]

    def _union(self, found: inspect.UnionType, key: str) -> Kind:
        """Return the kind of an optional field, or one that its JSON type chooses."""
        parts = [t for t in found.types if not isinstance(t, inspect.NoneType)]
        if {type(part) for part in parts} == {inspect.IntType, inspect.FloatType}:
            return Number()
        kinds = [self._kind(part, key) for part in parts]
        if len(kinds) == 1:
            return kinds[0]
        by_type: dict[str, Kind] = {}
        for kind in kinds:
            for name in _json_types(kind):
                by_type.setdefault(name, kind)
        return OneOf(by_type)


_MOST_NODES = 1_000
_CONSTANT = frozenset({"metadata", "globals", "default", "const", "options"})
_SYNONYMS = {
    "Edge": {"from": "source", "to": "target", "condition": "when"},
    "Route": {"condition": "when", "if": "when", "target": "next", "to": "next"},
}


def _more(name: str, fields: dict[str, Field]) -> dict[str, Field]:
    """Return what a document may write at a node of a kind beside the fields of its Struct."""
    if name != "agent":
        return {}
    del fields["budget"]
    agent = _AGENT.fields
    more = {key: agent[key] for key in ("tools", "output_schema")}
    return {**more, "budget": Field(BUDGET, about("budget"))}


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool) and value is not msgspec.UNSET


def _json_types(kind: Kind) -> tuple[str, ...]:
    match kind:
        case Number():
            return ("number",)
        case Duration():
            return "string", "number"
        case ArrayOf():
            return ("array",)
        case Map() | Shape():
            return ("object",)
        case Const():
            return "boolean", "null"
        case Json():
            return kind.types or ("string", "number", "boolean", "null", "array", "object")
        case OneOf():
            return tuple(kind.by_type)
        case _:
            return ("string",)


def is_default(value: Any, field: Field) -> bool:
    """Return True for a value that means the same as leaving the field out.

    msgspec leaves out a default by identity, which numbers of the source do not have.
    """
    return type(value) is type(field.default) and value == field.default


def is_expression(key: str) -> bool:
    """Return True for a field that is one expression or path."""
    return key in EXPRESSIONS or key.endswith("_path") or key == "from"
