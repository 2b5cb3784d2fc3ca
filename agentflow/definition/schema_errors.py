"""Why a value does not satisfy a schema: the breaches by path, found within a bounded number of steps.

`schemas` has the verdict already when it asks here, from jsonschema-rs. jsonschema names the breaches, on a
copy of the value whose parts print as at most 200 characters, and under a meter: every keyword that is
applied is charged for what it may visit. Where the meter ends first, what was found until then is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.definition.breach_texts import breach_text, json_text, listed
from agentflow.definition.patterns import compile_pattern
from agentflow.definition.subschemas import registry_of, subschemas

__all__ = ["Breach", "breaches", "matcher"]

_KEYWORD: Final = 8  # steps that applying a keyword costs beside what it visits, at 3 µs each
_REFERENCE: Final = 30  # steps that following a reference costs
_SHOWN: Final = 200
_SHOWN_ITEMS: Final = 20
_MOST_FOUND: Final = 500
_MOST_NAMES: Final = 500
_ROOT: Final = "urn:agentflow:schema"

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class Breach(NamedTuple):
    """One breach: the steps from the value to its part, and what is wrong there."""

    steps: list[str | int]
    message: str


class _OutOfSteps(Exception):
    """The meter ended."""


class _Meter:
    """What one explanation may still do, and the names of patterns as they were written."""

    __slots__ = ("left", "written")

    def __init__(self, steps: int, written: dict[str, str]) -> None:
        self.left: float = steps
        self.written = written

    def charge(self, steps: float) -> None:
        """Take steps from those that are left. Raises _OutOfSteps if they are not enough."""
        self.left -= steps
        if self.left < 0:
            raise _OutOfSteps


_meter: ContextVar[_Meter] = ContextVar("meter")


def breaches(body: bytes, value: Any, steps: int) -> list[Breach]:
    """Return up to 500 breaches of the schema with this JSON text, in the order in which they are found.

    Empty if the meter ended before the first one; a step takes at most 3 µs.
    """
    names: set[str] = set()
    found: list[Breach] = []
    shown = _copy(value, names)
    schema, written = _without_patterns(body, names)
    token = _meter.set(_Meter(steps, written))
    try:
        for error in _validator(schema).iter_errors(shown):
            found.append(Breach(list(error.absolute_path), breach_text(error)))
            if len(found) == _MOST_FOUND:
                break
    except Exception:
        # The verdict stands without its reason: a library that cannot name the breach here (a number beyond
        # floats, a reference that it resolves otherwise) must not become the answer.
        pass
    finally:
        _meter.reset(token)
    return found


@lru_cache(maxsize=512)
def matcher(source: str) -> Callable[[str], bool]:
    """Return a function that matches a pattern in a text, as the verdict does. Raises PatternError."""
    from jsonschema_rs import Draft202012Validator, FancyRegexOptions

    engine = compile_pattern(source).engine
    return Draft202012Validator({"pattern": engine}, pattern_options=FancyRegexOptions()).is_valid


# --- copies that print briefly


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str.__repr__(self) if len(self) <= _SHOWN else f"{str.__repr__(self[:_SHOWN])[:-1]} …'"


class _Array(list[Any]):
    __slots__ = ("size",)
    size: int

    def __repr__(self) -> str:
        few: list[Any] = list(self) if len(self) <= _SHOWN_ITEMS else [*self[:_SHOWN_ITEMS], _Rest()]
        return _cut(repr(few))


class _Object(dict[str, Any]):
    __slots__ = ("size",)
    size: int

    def __repr__(self) -> str:
        few: dict[str, Any] = {_Text(k): v for k, v in islice(self.items(), _SHOWN_ITEMS)}
        text = repr(few)
        return _cut(text if len(self) <= _SHOWN_ITEMS else f"{text[:-1]}, …}}")


class _Rest:
    def __repr__(self) -> str:
        return "…"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def _copy(value: Any, names: set[str]) -> Any:
    """Return a copy that prints briefly and knows its size in nodes; collect the names of members."""
    if isinstance(value, str):
        return _Text(value) if len(value) > _SHOWN else value
    if isinstance(value, list):
        array = _Array(_copy(item, names) for item in cast("list[Any]", value))
        array.size = 1 + sum(map(_size, array))
        return array
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        names.update(members)
        made = _Object((name, _copy(member, names)) for name, member in members.items())
        made.size = 1 + sum(map(_size, made.values()))
        return made
    return value


def _size(value: Any) -> int:
    return cast("_Array", value).size if isinstance(value, _Array | _Object) else 1


# --- the schema


def _without_patterns(body: bytes, names: set[str]) -> tuple[Any, dict[str, str]]:
    """Return the schema with each pattern of names written as the names of this value that match it.

    jsonschema matches names by Python's `re`, whose dialect is another and whose work is unbounded.
    """
    schema = msgspec.json.decode(body)
    written: dict[str, str] = {}
    if b'"patternProperties"' not in body or not isinstance(schema, dict):
        return _copy(schema, set()), written
    for part in list(subschemas(schema)):
        patterns = part.schema.get("patternProperties")
        if not isinstance(patterns, dict):
            continue
        made: dict[str, Any] = {}
        for source, inner in cast("dict[str, Any]", patterns).items():
            matches = matcher(source)
            found = sorted(name for name in names if matches(name))
            if len(found) > _MOST_NAMES:
                found = found[:_MOST_NAMES]
            literal = f"^(?:{'|'.join(map(_escaped, found))})\\Z" if found else "(?!)"
            # Two patterns may match the same names: an empty look-ahead keeps them apart.
            while literal in made:
                literal += "(?:)"
            made[literal] = inner
            written[literal] = source
        part.schema["patternProperties"] = made
    return _copy(schema, set()), written


def _escaped(name: str) -> str:
    import re

    return re.escape(name)


def _validator(schema: Any) -> Any:
    # The root is a reference: a registry that is crawled before is not crawled again for each name it lacks.
    members = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    name = str(members.get("$id", _ROOT))
    root: Any = {"$ref": name}
    return _validator_class()(root, registry=registry_of(schema, name))


@cache
def _validator_class() -> Any:
    """Return `Draft202012Validator` under the meter."""
    import jsonschema.validators
    from jsonschema import Draft202012Validator

    keywords = cast("Mapping[str, Keyword]", Draft202012Validator.VALIDATORS)
    extend: Any = getattr(jsonschema.validators, "extend")  # noqa: B009 - it has no types
    ours = {name: _metered(name, keyword) for name, keyword in keywords.items()}
    ours["uniqueItems"] = _unique_items
    ours["pattern"] = _pattern
    ours["additionalProperties"] = _metered("additionalProperties", _additional_properties)
    ours["required"] = _metered("required", _required)
    ours["dependentRequired"] = _metered("dependentRequired", _dependent_required)
    return extend(Draft202012Validator, ours)


_VISITORS: Final = frozenset(
    {"items", "contains", "properties", "propertyNames", "patternProperties", "additionalProperties"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)


def _metered(name: str, keyword: Keyword) -> Keyword:
    visits, refers, compares = name in _VISITORS, name in ("$ref", "$dynamicRef"), name in ("enum", "const")

    def metered(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        steps = _KEYWORD + (len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0)
        if refers:
            steps = _REFERENCE
        elif compares and isinstance(instance, _Array | _Object):
            steps += min(
                _size(value), instance.size * (len(cast("list[Any]", value)) if name == "enum" else 1)
            )
        elif visits and isinstance(instance, list | dict):
            patterns = len(cast("dict[str, Any]", value)) if name == "patternProperties" else 1
            steps += len(cast("list[Any]", instance)) * patterns
        _meter.get().charge(steps)
        return keyword(validator, value, instance, schema)

    return metered


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Yield an error if two items are equal, found by a set; jsonschema compares every pair."""
    from jsonschema.exceptions import ValidationError

    if not wanted or not isinstance(instance, list):
        return
    items = cast("list[Any]", instance)
    _meter.get().charge(_KEYWORD + 2 * _size(items))
    if len({_comparable(item) for item in items}) < len(items):
        yield ValidationError("an item twice")


def _comparable(value: Any) -> Any:
    """Return something hashable that is equal exactly for values that are equal in JSON Schema: 1 and 1.0
    are, 1 and true are not."""
    if isinstance(value, bool | None):
        return ("constant", value)
    if isinstance(value, dict):
        return ("object", frozenset((k, _comparable(v)) for k, v in cast("dict[str, Any]", value).items()))
    if isinstance(value, list):
        return ("array", *map(_comparable, cast("list[Any]", value)))
    return value


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    _meter.get().charge(_KEYWORD + 1)
    if isinstance(instance, str) and not matcher(pattern)(str(instance)):
        yield ValidationError("no match")


def _required(validator: Any, names: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    for name in names if isinstance(instance, dict) else ():
        if name not in instance:
            yield ValidationError(f"{json_text(name)} is missing")


def _dependent_required(validator: Any, rules: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    for name, needed in rules.items() if isinstance(instance, dict) else ():
        for other in needed if name in instance else ():
            if other not in instance:
                yield ValidationError(f"{json_text(other)} is missing, which {json_text(name)} needs")


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Yield the error of members by name; jsonschema orders them by chance, and would show the patterns as
    they are written for its engine."""
    import re

    from jsonschema.exceptions import ValidationError

    if not isinstance(instance, dict):
        return
    members = cast("dict[str, Any]", instance)
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extra = [k for k in members if k not in known and not any(re.search(p, k) for p in patterns)]
    if isinstance(inner, dict):
        for key in extra:
            yield from validator.descend(members[key], inner, path=key)
    elif not inner and extra:
        names = listed(sorted(extra))
        many = "" if len(extra) == 1 else "s"
        message = f"unknown member{many} {names}; known: {listed(known) if known else 'none'}"
        if patterns:
            written = _meter.get().written
            message = f"unknown member{many} {names}; known are the patterns "
            message += listed(written.get(pattern, pattern) for pattern in patterns)
            message += f" and {listed(known)}" if known else ""
        yield ValidationError(message)
