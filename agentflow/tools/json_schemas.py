"""Schemas that others wrote, as schemas of Draft 2020-12 that stand by themselves.

They come from OpenAPI 3.0 (its own dialect), OpenAPI 3.1, and from servers that still speak Draft 7. A local
`$ref` is replaced by what it means; a schema that contains itself, or would grow too large, keeps its
references and gets `$defs`.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, cast
from urllib.parse import unquote

from agentflow.definition.ir import canonical_json
from agentflow.tools.schema_check import schema_problem

__all__ = ["Dialect", "SchemaBook", "Unusable", "modern"]

Dialect = Literal["openapi-3.0", "2020-12"]

_MAX_NODES: Final = 5_000
_MAX_NODES_AT_ALL: Final = 50_000
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


class SchemaBook:
    """The schemas of one document. Not for use from several threads."""

    def __init__(self, document: Any, dialect: Dialect) -> None:
        self._document = document
        self._dialect = dialect
        self._kept: set[str] = set()
        self._keep_all = False
        self._cyclic: set[str] = set()
        self._names: dict[str, str] = {}
        self._nodes = 0

    def resolve(self, ref: Any) -> Any:
        """What a reference inside the document stands for. Raises Unusable."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise Unusable(
                f'$ref "{str(ref)[:200]}" is remote; only references inside the document are followed'
            )
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

    def standalone(self, parts: dict[str, Any], build: Any) -> dict[str, Any]:
        """The schema that `build` makes of the converted `parts`, checked, with the `$defs` they need.

        Raises Unusable.
        """
        self._kept, self._keep_all, self._names = set(), False, {}
        while True:
            self._cyclic, self._nodes = set(), 0
            try:
                made = {name: self._walk(part, (), 0) for name, part in parts.items()}
                defs = self._definitions()
            except _TooLarge:
                if self._keep_all:
                    raise Unusable("its schema is too large, or nested too deeply") from None
                self._keep_all, self._kept, self._names = True, set(), {}
                continue
            if not self._cyclic - self._kept:
                break
            self._kept |= self._cyclic
        schema: dict[str, Any] = build(made)
        if defs:
            schema["$defs"] = defs
        if (wrong := schema_problem(schema)) is not None:
            raise Unusable(f"its schema is not valid: {wrong}")
        return schema

    def _definitions(self) -> dict[str, Any]:
        defs: dict[str, Any] = {}
        done: set[str] = set()
        while pending := [ref for ref in self._names if ref not in done]:
            for ref in pending:
                done.add(ref)
                defs[self._names[ref]] = self._walk(self.resolve(ref), (ref,), 0)
        return defs

    def _walk(self, schema: Any, inside: tuple[str, ...], depth: int) -> Any:
        self._nodes += 1
        limit = _MAX_NODES_AT_ALL if self._keep_all else _MAX_NODES
        if self._nodes > limit or depth > _MAX_DEPTH:
            raise _TooLarge
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Unusable("a schema is no object")
        members = cast("dict[str, Any]", schema)
        if "$dynamicRef" in members:
            raise Unusable("$dynamicRef is not supported")
        if "$ref" in members:
            return self._reference(members, inside, depth)
        made: dict[str, Any] = {}
        for key, value in members.items():
            if key in _DROPPED or key.startswith("x-"):
                continue
            made[key] = self._keyword(key, value, inside, depth)
        if self._dialect == "openapi-3.0":
            made = _from_openapi_30(made, members)
        _drop_read_only(made, members)
        return made

    def _keyword(self, key: str, value: Any, inside: tuple[str, ...], depth: int) -> Any:
        if key in _ONE and isinstance(value, dict | bool):
            return self._walk(value, inside, depth + 1)
        if key in _SEVERAL and isinstance(value, list):
            return [self._walk(item, inside, depth + 1) for item in cast("list[Any]", value)]
        if key in _NAMED and isinstance(value, dict):
            named = cast("dict[str, Any]", value)
            return {name: self._walk(item, inside, depth + 1) for name, item in named.items()}
        return value

    def _reference(self, members: dict[str, Any], inside: tuple[str, ...], depth: int) -> Any:
        ref = members["$ref"]
        target = self.resolve(ref)
        if self._keep_all or ref in self._kept:
            made: Any = {"$ref": f"#/$defs/{self._name(ref)}"}
        elif ref in inside:
            self._cyclic.add(ref)
            return True  # for now: the next round keeps this reference
        else:
            made = self._walk(target, (*inside, ref), depth + 1)
        beside = {k: v for k, v in members.items() if k != "$ref" and k not in _DROPPED and k[:2] != "x-"}
        if self._dialect == "openapi-3.0" or not beside:
            return made
        converted = {k: self._keyword(k, v, inside, depth) for k, v in beside.items()}
        if converted.keys() <= {"description", "title", "default"} and isinstance(made, dict):
            return {**cast("dict[str, Any]", made), **converted}
        return {**converted, "allOf": [made, *converted.get("allOf", ())]}

    def _name(self, ref: str) -> str:
        name = self._names.get(ref)
        if name is None:
            stem = re.sub(r"\W", "_", _unescaped(ref.rpartition("/")[2]), flags=re.ASCII) or "root"
            name, taken = stem, set(self._names.values())
            while name in taken:
                name = f"{stem}_{len(taken)}"
            self._names[ref] = name
        return name


class _TooLarge(Exception):
    """Written out, the schema has too many parts."""


def modern(schema: Any) -> dict[str, Any]:
    """An argument schema that a server gave, of 2020-12 or an older draft, as one of 2020-12.

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
    """What Draft 7 writes in another way. References are left alone: places stay where they are."""
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
    """Properties that only answers have are not asked for."""
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
