"""JSON Schema, Draft 2020-12: are schemas valid, and do values satisfy them (page 001 §5.5).

Nothing is ever fetched: a `$ref` must stay inside its schema. `format` is not asserted. Neither a schema
nor a value makes these functions raise: what cannot be judged is reported. jsonschema is imported when it
is first needed (it takes longer than all of the rest), compiled validators are kept by content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.meta_schema import bad_identifiers, invalid_parts
from agentflow.definition.metered import metered, validator_class
from agentflow.definition.patterns import TooCostly, compile_pattern
from agentflow.definition.subschemas import Subschema, endless, resolver_of, subschemas

__all__ = [
    "DIALECT",
    "SchemaIssue",
    "SchemaProblem",
    "check_applicable",
    "check_schema",
    "validate",
    "validator",
]

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


# --- schemas


def check_schema(schema: Any) -> list[SchemaProblem]:
    """Everything that is wrong with the schema itself, at most ten problems. Empty when it is valid."""
    try:
        dialect = _dialect_problem("", schema)
        problems = [dialect] if dialect is not None else _meta_problems(schema)
        problems = problems or _inner_problems(cast("Schema", schema))
    except RecursionError:
        return [SchemaProblem("", "schema is nested too deeply")]
    return problems[:MAX_ISSUES]


def _dialect_problem(path: str, schema: Any) -> SchemaProblem | None:
    dialect = cast("dict[str, Any]", schema).get("$schema") if isinstance(schema, dict) else None
    if dialect is None or str(dialect).removesuffix("#") == DIALECT:
        return None
    hint = f'write "{DIALECT}", or leave $schema out'
    place = f"{path}/$schema"
    return SchemaProblem(place, f"$schema {_json(dialect)} is not Draft 2020-12, at #{place}", None, hint)


def _meta_problems(schema: Any) -> list[SchemaProblem]:
    """Breaches of the meta-schema, one for each place."""
    found: dict[str, SchemaProblem] = {}
    for path, name in bad_identifiers(schema):
        problem = SchemaProblem(path, f"$id {_json(name)} is no URI, at #{path}")
        found[path] = problem
    for path, part in invalid_parts(schema):
        from jsonschema import Draft202012Validator

        meta: Any = Draft202012Validator(Draft202012Validator.META_SCHEMA)
        for error in meta.iter_errors(part):
            problem = _meta_problem(error, path)
            found.setdefault(problem.path, problem)
            if len(found) == MAX_ISSUES:
                return sorted(found.values())
    return sorted(found.values())


def _meta_problem(error: Any, owner: str) -> SchemaProblem:
    path = owner + _pointer(error.absolute_path)
    # Not a property of that name: only the keyword has alternatives in the meta-schema.
    if error.validator != "anyOf" or not path.endswith("/type"):
        return SchemaProblem(path, f"{_short(error.message)}, at #{path}")
    named = error.instance
    if isinstance(named, list):
        names = cast("list[Any]", named)
        unknown = [i for i, name in enumerate(names) if name not in TYPES]
        if not unknown:
            return SchemaProblem(path, f"type {_json(names)} is empty or repeats a name, at #{path}")
        named = names[unknown[0]]
        path += f"/{unknown[0]}"
    hint = did_you_mean(named, TYPES) if isinstance(named, str) else None
    return SchemaProblem(path, f"{_json(named)} is not a JSON Schema type, at #{path}", None, hint)


def _inner_problems(schema: Schema) -> list[SchemaProblem]:
    """What the meta-schema does not see: references, and the dialects of parts."""
    problems: list[SchemaProblem] = []
    for part in subschemas(schema):
        dialect = _dialect_problem(part.path, part.schema)
        if dialect is not None:
            problems.append(dialect)
        for key, ref, target in part.references:
            if isinstance(target, dict | bool):
                continue
            remote = not ref.startswith("#")
            place = f"{part.path}/{key}"
            text = "is remote" if remote else "leads nowhere" if target is None else "leads to no schema"
            hint = "copy it under $defs" if remote else "define it under $defs"
            problems.append(SchemaProblem(place, f'{key} "{_short(ref)}" {text}, at #{place}', "E_REF", hint))
    return problems


def check_applicable(schema: Schema) -> list[SchemaProblem]:
    """Why a schema in which `check_schema` finds nothing could still judge no value: a pattern that is no
    regular expression here, or a reference to itself that never goes into the value."""
    found = list(subschemas(schema))
    problems = [problem for part in found for problem in _pattern_problems(part)]
    for path in endless(found):
        message = f"it refers to itself without end, at #{path}"
        problems.append(SchemaProblem(path, message, None, "refer to it from a property or an item"))
    return problems[:MAX_ISSUES]


def _pattern_problems(part: Subschema) -> Iterable[SchemaProblem]:
    keys = cast("dict[str, Any]", part.schema.get("patternProperties") or {})
    patterns: list[tuple[str, Any]] = [("/pattern", part.schema.get("pattern"))]
    patterns.extend((f"/patternProperties/{_escape(key)}", key) for key in keys)
    for place, pattern in patterns:
        if not isinstance(pattern, str):
            continue
        try:
            bounded = compile_pattern(pattern).bounded
        except (re.error, OverflowError) as error:
            message = f"{_json(pattern)} is not a regular expression here ({error}), at #{part.path}{place}"
            yield SchemaProblem(part.path + place, message)
        except RecursionError:
            message = f"a pattern is nested too deeply, at #{part.path}{place}"
            yield SchemaProblem(part.path + place, message)
        else:
            if not bounded:
                message = f"{_json(pattern)} may have to try 2ⁿ ways, at #{part.path}{place}"
                hint = "write it without references back, or without a repeat inside a repeat"
                yield SchemaProblem(part.path + place, message, None, hint)


# --- values


def validate(schema: Schema, value: Any) -> list[SchemaIssue]:
    """The first ten breaches, by path; empty when `value` satisfies `schema`."""
    return [] if schema is True else validator(schema)(value)


def validator(schema: Schema) -> Callable[[Any], list[SchemaIssue]]:
    """`validate` for one schema; equal schemas share one validator."""
    return _validator(msgspec.json.encode(schema, order="sorted"))


@lru_cache(maxsize=512)
def _validator(body: bytes) -> Callable[[Any], list[SchemaIssue]]:
    from referencing.exceptions import Unresolvable

    schema = msgspec.json.decode(body)
    # Without a retriever: a remote $ref raises, it is never fetched.
    try:
        compiled: Any = validator_class()(schema, _resolver=resolver_of(schema))
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        # No schema at all: whoever checks it is told where; here there is only nothing to judge by.
        reason = _short(f"its schema cannot be applied: {error}")
        return lambda value: [SchemaIssue("", reason)]

    def check(value: Any) -> list[SchemaIssue]:
        try:
            return metered(lambda: _first(compiled.iter_errors(value)))
        except TooCostly:
            reason = "judging it by its schema would take too many steps"
        except RecursionError:
            reason = "value is nested too deeply, or its schema refers to itself without end"
        except Unresolvable as error:
            reason = f"its schema cannot be resolved: {error}"
        except (re.error, OverflowError, ValueError) as error:
            reason = f"its schema cannot be applied: {error}"
        return [SchemaIssue("", _short(reason))]

    return check


def _first(errors: Iterable[Any]) -> list[SchemaIssue]:
    found: list[tuple[list[tuple[bool, int, str]], SchemaIssue]] = []
    for error in errors:
        steps = list(error.absolute_path)
        # Elements by number, members by name.
        order = [(isinstance(s, str), s if isinstance(s, int) else 0, str(s)) for s in steps]
        found.append((order, SchemaIssue(_pointer(steps), _short(error.message))))
        if len(found) == 50 * MAX_ISSUES:
            break
    return [issue for _, issue in sorted(found)[:MAX_ISSUES]]


def _json(value: Any) -> str:
    return _short(msgspec.json.encode(value).decode())


def _short(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:200]} … {message[-80:]}"


def _pointer(steps: Iterable[Any]) -> str:
    return "".join(f"/{_escape(step)}" for step in steps)


def _escape(token: object) -> str:
    return str(token).replace("~", "~0").replace("/", "~1")
