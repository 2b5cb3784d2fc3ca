"""The validator of JSON Schema values, with a meter: no schema and no value can make it work without end.

A schema of a few lines may ask for 2ⁿ steps: references that are followed twice at each level, patterns,
items that are compared with each other. Every keyword that is applied costs what it may have to look at;
patterns are matched by `patterns`. jsonschema does the rest, and is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar, cast

from agentflow.definition.patterns import Effort, compile_pattern

__all__ = ["metered", "validator_class"]

_REFERENCE = 60  # steps that following a reference costs

_effort: ContextVar[Effort] = ContextVar("effort")

T = TypeVar("T")
Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def metered(judge: Callable[[], T]) -> T:
    """What `judge` gives, a validation with `validator_class` from its beginning to its end.

    Raises TooCostly when that would take more than it may.
    """
    token = _effort.set(Effort())
    try:
        return judge()
    finally:
        _effort.reset(token)


@cache
def validator_class() -> Any:
    """`Draft202012Validator`, with the meter."""
    import jsonschema.validators
    from jsonschema import Draft202012Validator

    keywords = cast("Mapping[str, Keyword]", Draft202012Validator.VALIDATORS)
    extend: Any = getattr(jsonschema.validators, "extend")  # noqa: B009 - it has no types
    ours = {name: _counted(name, keyword) for name, keyword in keywords.items()}
    ours["uniqueItems"] = _unique_items
    ours["pattern"] = _pattern
    ours["patternProperties"] = _pattern_properties
    ours["additionalProperties"] = _additional_properties
    ours["unevaluatedProperties"] = _with_keys_looked_at(ours["unevaluatedProperties"])
    return extend(Draft202012Validator, ours)


def _counted(name: str, keyword: Keyword) -> Keyword:
    looks_at_all = name in (
        "items",
        "contains",
        "properties",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "enum",
        "const",
    )

    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        steps = 1 + (len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0)
        if looks_at_all and isinstance(instance, list | dict):
            steps += len(cast("list[Any]", instance))
        if name in ("$ref", "$dynamicRef"):
            steps = _REFERENCE
        _effort.get().spend(steps)
        return keyword(validator, value, instance, schema)

    return counted


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """jsonschema compares every pair of items."""
    from jsonschema.exceptions import ValidationError

    if not wanted or not isinstance(instance, list):
        return
    items = cast("list[Any]", instance)
    _effort.get().spend(1 + len(items))
    if len({_comparable(item) for item in items}) < len(items):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _comparable(value: Any) -> Any:
    """Something hashable that is equal exactly for values that JSON Schema takes for equal: 1 and 1.0, but
    not 1 and true."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, dict):
        return frozenset((k, _comparable(v)) for k, v in cast("dict[str, Any]", value).items())
    return tuple(map(_comparable, cast("list[Any]", value))) if isinstance(value, list) else value


def _found(pattern: str, text: str) -> bool:
    return compile_pattern(pattern).found(text, _effort.get())


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    members = cast("dict[str, Any]", instance)
    for pattern, inner in patterns.items():
        for key, value in members.items():
            if _found(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    members = cast("dict[str, Any]", instance)
    _effort.get().spend(1 + len(members))
    known = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    extra = [k for k in members if k not in known and not any(_found(p, k) for p in patterns)]
    if isinstance(inner, dict):
        for key in extra:
            yield from validator.descend(members[key], inner, path=key)
    elif not inner and extra:
        names = ", ".join(repr(key) for key in sorted(extra))
        verb = "was" if len(extra) == 1 else "were"
        message = f"Additional properties are not allowed ({names} {verb} unexpected)"
        if patterns:
            listed = ", ".join(repr(pattern) for pattern in sorted(patterns))
            verb = "does" if len(extra) == 1 else "do"
            message = f"{names} {verb} not match any of the regexes: {listed}"
        yield ValidationError(message)


def _with_keys_looked_at(keyword: Keyword) -> Keyword:
    """`unevaluatedProperties` asks Python's matcher about each key; what that costs is asked before."""

    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        if isinstance(instance, dict):
            effort = _effort.get()
            for pattern in _patterns_of_keys(schema):
                for key in cast("dict[str, Any]", instance):
                    compile_pattern(pattern).afford(key, effort)
        return keyword(validator, value, instance, schema)

    return checked


def _patterns_of_keys(schema: Any) -> Iterator[str]:
    """All patterns of `patternProperties` in a schema, wherever they stand."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            node = cast("dict[str, Any]", part)
            found = node.get("patternProperties")
            if isinstance(found, dict):
                yield from cast("dict[str, Any]", found)
            todo += node.values()
        elif isinstance(part, list):
            todo += cast("list[Any]", part)
