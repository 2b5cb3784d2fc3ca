"""Schemas that others wrote, as schemas of Draft 2020-12 that stand by themselves.

They come from OpenAPI 3.0 (its own dialect), OpenAPI 3.1, and from servers that still speak Draft 7. A local
`$ref` is replaced by what it means; a schema that contains itself, or is large, stays a reference and comes
along in `$defs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import unquote

from agentflow.definition.ir import canonical_json
from agentflow.tools.ref_graph import RefGraph
from agentflow.tools.schema_check import keyword_problem, schema_problem

__all__ = ["Dialect", "SchemaBook", "Unusable", "modern"]

Dialect = Literal["openapi-3.0", "2020-12"]

_MAX_INLINE: Final = 200
_MAX_NODES: Final = 50_000
_MAX_DEPTH: Final = 60

_ONE: Final = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_SEVERAL: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset({"dependentSchemas", "patternProperties", "properties"})
# What describes the API and not the value, and what would change the meaning of the references.
_DROPPED: Final = frozenset(
    {"$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$schema", "$vocabulary", "definitions"}
    | {
        "deprecated",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "nullable",
        "readOnly",
        "writeOnly",
    }
    | {"xml"}
)


class Unusable(Exception):
    """A schema cannot be offered; the message says why."""


class _Made(NamedTuple):
    """A converted schema: its value, how many schemas it is made of, and the references that it keeps."""

    value: Any
    nodes: int
    kept: frozenset[str]


class SchemaBook:
    """The schemas of one document; each is converted once, however many functions use it. Not for use from
    several threads."""

    def __init__(self, document: Any, dialect: Dialect) -> None:
        self._document = document
        self._dialect = dialect
        self._graph = RefGraph(self._raw)
        self._made: dict[str, _Made | str] = {}  # a text says why there is none
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def resolve(self, ref: Any) -> Any:
        """Return what a reference inside the document stands for. Raises Unusable."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            shown = str(ref)[:200]
            raise Unusable(f'$ref "{shown}" is remote; only references inside the document are followed')
        value = self._document
        for token in ref[1:].split("/")[1:] if ref != "#" else ():
            key = _unescaped(token)
            if isinstance(value, dict) and key in value:
                value = cast("dict[str, Any]", value)[key]
            elif isinstance(value, list) and key.isdigit() and int(key[:9]) < len(cast("list[Any]", value)):
                value = cast("list[Any]", value)[int(key[:9])]
            else:
                raise Unusable(f'$ref "{ref[:200]}" leads nowhere')
        return value

    def _raw(self, ref: str) -> Any:
        try:
            return self.resolve(ref)
        except Unusable:
            return None  # reported where the reference is used

    def standalone(
        self, parts: dict[str, Any], build: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the schema that `build` makes of the converted `parts`, with the `$defs` that they need. The
        definitions are shared between the schemas of a book. Raises Unusable."""
        walk = _Walk(self)
        schema = build({name: walk.schema(part, 0) for name, part in parts.items()})
        wrong = keyword_problem(schema)
        if wrong is not None:
            raise Unusable(f"its schema is not valid: {wrong}")
        nodes, pending, defs = walk.nodes, list(walk.kept), dict[str, Any]()
        while pending:
            ref = pending.pop()
            if self._names[ref] in defs:
                continue
            made = self.converted(ref)
            defs[self._names[ref]] = made.value
            nodes += made.nodes
            pending += made.kept
        if nodes > _MAX_NODES:
            raise Unusable("its schema is too large")
        if defs:
            schema["$defs"] = defs
        return schema

    def converted(self, ref: str) -> _Made:
        """Return the schema that a reference stands for. Raises Unusable."""
        made = self._made.get(ref)
        if made is None:
            made = self._made[ref] = self._convert(ref)
        if isinstance(made, str):
            raise Unusable(made)
        return made

    def _convert(self, ref: str) -> _Made | str:
        try:
            if self._graph.is_endless(ref):
                raise Unusable(f'$ref "{ref[:200]}" refers to itself without end')
            walk = _Walk(self)
            value = walk.schema(self.resolve(ref), 0)
            wrong = keyword_problem(value) if isinstance(value, dict) else None
            if wrong is not None:
                raise Unusable(f"its schema is not valid: {wrong} of {ref[:200]}")
        except Unusable as reason:
            return str(reason)
        except RecursionError:
            return "its schema is nested too deeply"
        return _Made(value, walk.nodes, frozenset(walk.kept))

    def is_kept(self, ref: str) -> bool:
        """Return whether a reference stays one."""
        return self._graph.is_cyclic(ref) or self.converted(ref).nodes > _MAX_INLINE

    def name(self, ref: str) -> str:
        """Return the name under which a schema stands in `$defs`."""
        name = self._names.get(ref)
        if name is None:
            stem = re.sub(r"\W", "_", _unescaped(ref.rpartition("/")[2]), flags=re.ASCII) or "root"
            name = stem
            while name in self._taken:
                name = f"{stem}_{len(self._taken)}"
            self._taken.add(name)
            self._names[ref] = name
        return name

    @property
    def is_openapi_30(self) -> bool:
        return self._dialect == "openapi-3.0"


class _Walk:
    """Converts one schema."""

    def __init__(self, book: SchemaBook) -> None:
        self._book = book
        self.nodes = 0
        self.kept: set[str] = set()

    def schema(self, schema: Any, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise Unusable("its schema is too large, or nested too deeply")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Unusable("a schema is no object")
        members = cast("dict[str, Any]", schema)
        if "$dynamicRef" in members:
            raise Unusable("$dynamicRef is not supported")
        if "$ref" in members:
            return self._reference(members, depth)
        made: dict[str, Any] = {}
        for key, value in members.items():
            if key not in _DROPPED and not key.startswith("x-"):
                made[key] = self._keyword(key, value, depth)
        if self._book.is_openapi_30:
            made = _from_openapi_30(made, members)
        _drop_read_only(made, members)
        return made

    def _keyword(self, key: str, value: Any, depth: int) -> Any:
        if key in _ONE and isinstance(value, dict | bool):
            return self.schema(value, depth + 1)
        if key in _SEVERAL and isinstance(value, list):
            return [self.schema(item, depth + 1) for item in cast("list[Any]", value)]
        if key in _NAMED and isinstance(value, dict):
            named = cast("dict[str, Any]", value)
            return {name: self.schema(item, depth + 1) for name, item in named.items()}
        return value

    def _reference(self, members: dict[str, Any], depth: int) -> Any:
        ref = members["$ref"]
        self._book.resolve(ref)
        if self._book.is_kept(ref):
            self.kept.add(ref)
            value: Any = {"$ref": f"#/$defs/{self._book.name(ref)}"}
        else:
            made = self._book.converted(ref)
            value = made.value
            self.nodes += made.nodes
            self.kept |= made.kept
        beside = {k: v for k, v in members.items() if k != "$ref" and k not in _DROPPED and k[:2] != "x-"}
        if self._book.is_openapi_30 or not beside:
            return value
        converted = {k: self._keyword(k, v, depth) for k, v in beside.items()}
        if converted.keys() <= {"description", "title", "default"} and isinstance(value, dict):
            return {**cast("dict[str, Any]", value), **converted}
        return {**converted, "allOf": [value, *converted.get("allOf", ())]}


def modern(schema: Any) -> dict[str, Any]:
    """Return an argument schema that a server gave, of 2020-12 or an older draft, as one of 2020-12.

    Raises Unusable when it is none, or describes no object.
    """
    if not isinstance(schema, dict):
        raise Unusable("its schema is no object")
    made: dict[str, Any] = _modern(cast("dict[str, Any]", schema), 0)
    made.setdefault("type", "object")
    if made["type"] != "object":
        raise Unusable("its arguments are no object")
    if (wrong := schema_problem(made)) is not None:
        raise Unusable(f"its schema is not valid: {wrong}")
    try:
        canonical_json(made)
    except (RecursionError, ValueError, TypeError, OverflowError):
        raise Unusable("its schema cannot be written down") from None
    return made


def _modern(value: Any, depth: int) -> Any:
    """Return what Draft 7 writes in another way. References are left alone: places stay where they are."""
    if depth > _MAX_DEPTH or not isinstance(value, dict):
        return value
    members = cast("dict[str, Any]", value)
    made: dict[str, Any] = {}
    for key, inner in members.items():
        if key in ("$schema", "$id", "id") and isinstance(inner, str):
            continue
        if key in _ONE:
            made[key] = _modern(inner, depth + 1)
        elif key in _SEVERAL and isinstance(inner, list):
            made[key] = [_modern(item, depth + 1) for item in cast("list[Any]", inner)]
        elif key in _NAMED | {"$defs", "definitions"} and isinstance(inner, dict):
            named = cast("dict[str, Any]", inner)
            made[key] = {name: _modern(item, depth + 1) for name, item in named.items()}
        else:
            made[key] = inner
    if isinstance(made.get("items"), list):
        made["prefixItems"] = [_modern(item, depth + 1) for item in made.pop("items")]
        if "additionalItems" in made:
            made["items"] = _modern(made.pop("additionalItems"), depth + 1)
    return made


def _from_openapi_30(made: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(made.get(exclusive), bool) and made.pop(exclusive) and bound in made:
            made[exclusive] = made.pop(bound)
    if given.get("nullable") is not True:
        return made
    kind = made.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [made, {"type": "null"}]} if made else made
    made["type"] = [kind, "null"]
    if isinstance(made.get("enum"), list) and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
    return made


def _drop_read_only(made: dict[str, Any], given: dict[str, Any]) -> None:
    """Remove the properties that only answers have."""
    properties = given.get("properties")
    if not isinstance(properties, dict) or "properties" not in made:
        return
    for name, inner in cast("dict[str, Any]", properties).items():
        if isinstance(inner, dict) and cast("dict[str, Any]", inner).get("readOnly") is True:
            made["properties"].pop(name, None)
            if isinstance(made.get("required"), list):
                made["required"] = [r for r in made["required"] if r != name]


def _unescaped(token: str) -> str:
    return unquote(token).replace("~1", "/").replace("~0", "~")
