"""JSON Schema, Draft 2020-12: are schemas valid, and do values satisfy them (page 001 §5.5).

Nothing is ever fetched: a `$ref` must stay inside its schema. `format` is not asserted. jsonschema is
imported when it is first needed, compiled validators are kept by content.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

from agentflow.definition.diagnostics import did_you_mean

__all__ = ["DIALECT", "SchemaIssue", "SchemaProblem", "check_schema", "validate"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_ISSUES = 10
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

Schema = dict[str, Any] | bool


class SchemaIssue(NamedTuple):
    """One breach. `path` is a JSON pointer into the value, empty for the value itself."""

    path: str
    message: str


class SchemaProblem(NamedTuple):
    """What is wrong with a schema. `path` points into it; `code` is E_REF for a `$ref` that leaves it, else
    None: the caller knows whose schema it is. `message` names the place as `#/path`."""

    path: str
    message: str
    code: str | None = None
    hint: str | None = None


def check_schema(schema: Any) -> list[SchemaProblem]:
    """Everything that is wrong with the schema itself, at most ten problems. Empty when it is valid."""
    if isinstance(schema, dict):
        dialect = cast(dict[str, Any], schema).get("$schema")
        if dialect is not None and str(dialect).rstrip("#") != DIALECT:
            hint = f'write "{DIALECT}", or leave $schema out'
            message = f"$schema {dialect!r} is not Draft 2020-12, at #/$schema"
            return [SchemaProblem("/$schema", message, None, hint)]
    from jsonschema import Draft202012Validator

    meta: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    found: dict[str, SchemaProblem] = {}
    for error in meta.iter_errors(schema):
        problem = _problem(error)
        found.setdefault(problem.path, problem)
        if len(found) == MAX_ISSUES:
            break
    return sorted(found.values()) or _ref_problems(schema)


def _problem(error: Any) -> SchemaProblem:
    path = "".join(f"/{_escape(p)}" for p in error.absolute_path)
    if error.absolute_path and error.absolute_path[-1] == "type":
        name = error.instance
        hint = did_you_mean(name, TYPES) if isinstance(name, str) else None
        text = msgspec.json.encode(name).decode()
        return SchemaProblem(path, f"{_short(text)} is not a JSON Schema type, at #{path}", None, hint)
    return SchemaProblem(path, f"{_short(error.message)}, at #{path}")


def _ref_problems(schema: Any) -> list[SchemaProblem]:
    """Every `$ref` and `$dynamicRef` that does not lead to a place inside `schema`, in document order."""
    anchors = {node.get(k) for _, node in _objects(schema, "") for k in ("$anchor", "$dynamicAnchor")}
    problems: list[SchemaProblem] = []
    for path, node in _objects(schema, ""):
        for key in ("$ref", "$dynamicRef"):
            ref = node.get(key)
            place = f"{path}/{key}"
            if not isinstance(ref, str):
                continue
            if not ref.startswith("#"):
                message = f'{key} "{_short(ref)}" is remote, at #{place}'
                problems.append(SchemaProblem(place, message, "E_REF", "copy it under $defs"))
            elif not _leads_somewhere(schema, ref[1:], anchors):
                message = f'{key} "{_short(ref)}" leads nowhere, at #{place}'
                problems.append(SchemaProblem(place, message, "E_REF", "define it under $defs"))
    return problems[:MAX_ISSUES]


def validate(schema: Schema, value: Any) -> list[SchemaIssue]:
    """The first ten breaches, in a stable order; empty when `value` satisfies `schema`."""
    if schema is True:
        return []
    validator = _validator(msgspec.json.encode(schema, order="sorted"))
    return _sorted(validator.iter_errors(value))


@lru_cache(maxsize=512)
def _validator(body: bytes) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry without a retriever: a remote $ref raises, it is never fetched.
    return Draft202012Validator(msgspec.json.decode(body), registry=Registry())


def _sorted(errors: Any) -> list[SchemaIssue]:
    found: list[SchemaIssue] = []
    for error in errors:
        path = "".join(f"/{_escape(p)}" for p in error.absolute_path)
        found.append(SchemaIssue(path, _short(error.message)))
        if len(found) == 50 * MAX_ISSUES:
            break
    return sorted(found)[:MAX_ISSUES]


def _short(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:200]} … {message[-80:]}"


def _escape(token: object) -> str:
    return str(token).replace("~", "~0").replace("/", "~1")


def _objects(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        members = cast(dict[str, Any], node)
        yield path, members
        for key, child in members.items():
            if key not in ("const", "enum", "default", "examples"):
                yield from _objects(child, f"{path}/{_escape(key)}")
    elif isinstance(node, list):
        for i, child in enumerate(cast(list[Any], node)):
            yield from _objects(child, f"{path}/{i}")


def _leads_somewhere(schema: Any, fragment: str, anchors: set[Any]) -> bool:
    if fragment and not fragment.startswith("/"):
        return fragment in anchors
    node = schema
    for token in fragment.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        if isinstance(node, dict) and name in node:
            node = cast(dict[str, Any], node)[name]
        elif isinstance(node, list) and name.isdigit() and int(name) < len(cast(list[Any], node)):
            node = cast(list[Any], node)[int(name)]
        else:
            return False
    return True
