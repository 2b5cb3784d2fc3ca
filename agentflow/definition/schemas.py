"""JSON Schema, Draft 2020-12: are schemas valid, and do values satisfy them (page 001 §5.5).

Nothing is ever fetched: a `$ref` must stay inside its schema. `format` is not asserted. jsonschema is
imported when it is first needed, compiled validators are kept by content.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

__all__ = ["DIALECT", "RefProblem", "SchemaIssue", "check_schema", "ref_problems", "validate"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_ISSUES = 10

Schema = dict[str, Any] | bool


class SchemaIssue(NamedTuple):
    """One breach. `path` is a JSON pointer into the value, empty for the value itself."""

    path: str
    message: str


class RefProblem(NamedTuple):
    """A `$ref` that leaves its schema: `remote` when it names another document, else it leads nowhere."""

    path: str
    ref: str
    remote: bool


def check_schema(schema: Any) -> list[SchemaIssue]:
    """What is wrong with the schema itself; paths point into it. Empty when it is valid."""
    if isinstance(schema, dict):
        dialect = cast(dict[str, Any], schema).get("$schema")
        if dialect is not None and str(dialect).rstrip("#") != DIALECT:
            return [SchemaIssue("/$schema", f"{dialect!r} is not {DIALECT}")]
    from jsonschema import Draft202012Validator

    meta: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)
    return _sorted(meta.iter_errors(schema))


def ref_problems(schema: Any) -> list[RefProblem]:
    """Every `$ref` and `$dynamicRef` that does not lead to a place inside `schema`, in document order."""
    anchors = {node.get(k) for _, node in _objects(schema, "") for k in ("$anchor", "$dynamicAnchor")}
    problems: list[RefProblem] = []
    for path, node in _objects(schema, ""):
        for key in ("$ref", "$dynamicRef"):
            ref = node.get(key)
            if not isinstance(ref, str):
                continue
            if not ref.startswith("#"):
                problems.append(RefProblem(f"{path}/{key}", ref, True))
            elif not _leads_somewhere(schema, ref[1:], anchors):
                problems.append(RefProblem(f"{path}/{key}", ref, False))
    return problems


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
