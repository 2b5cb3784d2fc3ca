"""Is a JSON Schema valid, and can it judge a value here (page 001 §5.5)?

Nothing is ever fetched: a `$ref` must stay inside its schema. A schema never makes these functions raise.
jsonschema is imported when it is first needed: it takes longer than all of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from agentflow.definition.breach_texts import breach_text
from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.meta_schema import bad_identifiers, invalid_parts
from agentflow.definition.patterns import PatternError, compile_pattern
from agentflow.definition.schema_cost import MAX_PARTS
from agentflow.definition.schema_texts import escape, json_short, pointer, shorten
from agentflow.definition.subschemas import Subschema, endless, subschemas

__all__ = ["DIALECT", "MAX_ISSUES", "TYPES", "Schema", "SchemaProblem", "check_applicable", "check_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_ISSUES = 10
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

Schema = dict[str, Any] | bool


class SchemaProblem(NamedTuple):
    """What is wrong with a schema. `path` points into it; `code` is E_REF for a `$ref` that leaves it, else
    None: the caller knows whose schema it is. `message` names the place as `#/path`."""

    path: str
    message: str
    code: str | None = None
    hint: str | None = None


def check_schema(schema: Any) -> list[SchemaProblem]:
    """Return what is wrong with the schema itself, at most ten problems; empty if it is valid."""
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
    return SchemaProblem(
        place, f"$schema {json_short(dialect)} is not Draft 2020-12, at #{place}", None, hint
    )


def _meta_problems(schema: Any) -> list[SchemaProblem]:
    """Return breaches of the meta-schema, one for each place."""
    found: dict[str, SchemaProblem] = {}
    for path, name in bad_identifiers(schema):
        problem = SchemaProblem(path, f"$id {json_short(name)} is no URI, at #{path}")
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
    path = owner + pointer(error.absolute_path)
    # Not a property of that name: only the keyword has alternatives in the meta-schema.
    if error.validator != "anyOf" or not path.endswith("/type"):
        return SchemaProblem(path, f"{shorten(breach_text(error))}, at #{path}")
    named = error.instance
    if isinstance(named, list):
        names = cast("list[Any]", named)
        unknown = [i for i, name in enumerate(names) if name not in TYPES]
        if not unknown:
            return SchemaProblem(path, f"type {json_short(names)} is empty or repeats a name, at #{path}")
        named = names[unknown[0]]
        path += f"/{unknown[0]}"
    hint = did_you_mean(named, TYPES) if isinstance(named, str) else None
    return SchemaProblem(path, f"{json_short(named)} is not a JSON Schema type, at #{path}", None, hint)


def _inner_problems(schema: Schema) -> list[SchemaProblem]:
    """Return the problems that the meta-schema does not see: references, and the dialects of parts."""
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
            problems.append(
                SchemaProblem(place, f'{key} "{shorten(ref)}" {text}, at #{place}', "E_REF", hint)
            )
    return problems


def check_applicable(schema: Schema) -> list[SchemaProblem]:
    """Return why a schema in which `check_schema` finds nothing could still judge no value.

    A pattern is no regular expression here, or a reference to itself never goes into the value.
    """
    found = list(subschemas(schema))
    if len(found) > MAX_PARTS:
        message = f"it has {len(found):,} subschemas, more than {MAX_PARTS:,}"
        return [SchemaProblem("", message, None, "split the value that it describes")]
    problems = [problem for part in found for problem in _pattern_problems(part)]
    for path in endless(found):
        message = f"it refers to itself without end, at #{path}"
        problems.append(SchemaProblem(path, message, None, "refer to it from a property or an item"))
    return problems[:MAX_ISSUES]


def _pattern_problems(part: Subschema) -> Iterable[SchemaProblem]:
    keys = cast("dict[str, Any]", part.schema.get("patternProperties") or {})
    patterns: list[tuple[str, Any]] = [("/pattern", part.schema.get("pattern"))]
    patterns.extend((f"/patternProperties/{escape(key)}", key) for key in keys)
    for place, pattern in patterns:
        if not isinstance(pattern, str):
            continue
        try:
            bounded = compile_pattern(pattern).bounded
        except PatternError as error:
            message = f"{json_short(pattern)} is not a regular expression ({error}), at #{part.path}{place}"
            hint = "patterns follow ECMA-262 with the flag u"
            yield SchemaProblem(part.path + place, message, None, hint)
        else:
            if not bounded:
                message = f"{json_short(pattern)} may have to try 2ⁿ ways, at #{part.path}{place}"
                hint = "write it without looking around, or without a repeat inside a repeat"
                yield SchemaProblem(part.path + place, message, None, hint)
