"""Does a value satisfy a JSON Schema, and if not, why (page 001 §5.5)?

`format` is not asserted. Neither a schema nor a value makes these functions raise: what cannot be judged is
reported. Compiled validators are kept by content.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import msgspec

from agentflow.definition.patterns import Pattern
from agentflow.definition.schema_cost import (
    INLINE_UNITS,
    MAX_LEVELS,
    MAX_PARTS,
    MAX_UNITS,
    compile_patterns,
    cost_of,
    has_at_most,
    measure,
    shape_of,
)
from agentflow.definition.schema_errors import breaches
from agentflow.definition.schema_problems import MAX_ISSUES, Schema
from agentflow.definition.schema_texts import pointer, shorten
from agentflow.definition.subschemas import endless, subschemas

__all__ = ["SchemaIssue", "Validator", "answer_aside", "is_costly", "validate", "validator"]

LONG_SCHEMA_BYTES = 4 * 1024
"""Bytes of JSON text beyond which a schema is compiled elsewhere: 2 to 3 µs each."""
EXPLAINED_INLINE_UNITS = 20_000
"""Units of judging beyond which saying why not leaves the event loop: it takes some 50 times as long."""


class SchemaIssue(NamedTuple):
    """One breach. `path` is a JSON pointer into the value, empty for the value itself."""

    path: str
    message: str


def validate(schema: Schema, value: Any) -> list[SchemaIssue]:
    """Return the first ten breaches, by path; empty when `value` satisfies `schema`.

    Costs at most 0.5 s of CPU whatever schema and value are: beyond that the one issue says so.
    """
    return [] if schema is True else validator(schema)(value)


def validator(schema: Schema) -> Validator:
    """Return `validate` for one schema; equal schemas share one validator."""
    return _validator(msgspec.json.encode(schema, order="sorted"))


def is_costly(schema: Schema, value: Any) -> bool:
    """Return whether `validate` may take more than 20 ms of CPU and has no answer yet."""
    return schema is not True and validator(schema).is_costly(value)


Elsewhere = Callable[[bytes, bytes], list[SchemaIssue] | None]
Judge = Callable[[Any, bytes], list[SchemaIssue]]
_elsewhere: Elsewhere | None = None


def answer_aside(judge: Elsewhere | None) -> None:
    """Let `judge` answer costly questions, given as JSON text of schema and value.

    It may block its thread, or return None: then the question is answered in place, as all are without it.
    """
    global _elsewhere
    _elsewhere = judge


@lru_cache(maxsize=512)
def _validator(body: bytes) -> Validator:
    return Validator(body)


class Validator:
    """Judges values by one schema: whether by jsonschema-rs, why not by jsonschema.

    It is compiled at the first value that is judged here: 1 MiB of schema takes up to 1 s. Where costly
    questions go elsewhere, a schema of more than 4 KiB is never compiled in this process.
    """

    __slots__ = ("_answers", "_body", "_brief", "_compiled", "_cost", "_engine", "_quick", "_refusal")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._refusal: str | None = None
        self._answers: dict[bytes, list[SchemaIssue]] = {}
        self._cost = cost_of([], {})
        self._engine: Any = None
        self._compiled = False
        self._quick = self._brief = 0.0

    def _prepare(self) -> None:
        """Compile the schema; two threads that do it at once come to the same."""
        if self._compiled:
            return
        try:
            self._compile(msgspec.json.decode(self._body))
        except RecursionError:
            self._refusal = "its schema is nested too deeply"
        except Exception as error:
            # `check_schema` reports where it is wrong; here it means only that no value can be judged.
            self._refusal = shorten(f"its schema cannot be applied: {error}")
        weights = self._cost.by_level[-1]
        if self._cost.plain:
            # A value has at most a node for each two bytes of its text, and a character for each byte.
            self._quick = INLINE_UNITS / (weights.node / 2 + weights.char)
        self._brief = self._quick / INLINE_UNITS * EXPLAINED_INLINE_UNITS
        self._compiled = True

    def _compile(self, schema: Any) -> None:
        from jsonschema_rs import Draft202012Validator, FancyRegexOptions

        parts = list(subschemas(schema))
        if len(parts) > MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS:,} subschemas")
        if endless(parts):
            self._refusal = "its schema refers to itself without end"
            return
        patterns = compile_patterns(parts)
        self._cost = cost_of(parts, patterns)
        if self._cost.by_level[0].node > self._cost.limit:
            self._refusal = _TOO_COSTLY
            return
        for part in parts:
            _translate(part.schema, patterns)
        options = FancyRegexOptions(backtrack_limit=MAX_UNITS)
        self._engine = Draft202012Validator(
            schema, validate_formats=False, offline=True, pattern_options=options, mask="the value"
        )

    def __call__(self, value: Any) -> list[SchemaIssue]:
        try:
            body = msgspec.json.encode(value)
            if self._is_long:
                return self._kept(value, body, self._aside)
            if not self._compiled:
                self._prepare()
            if self._refusal is not None:
                return [SchemaIssue("", self._refusal)]
            if len(body) <= self._quick or self._is_cheap(body):
                return self._judge(value, body)
            return self._kept(value, body, self._carefully)
        except RecursionError:
            return [SchemaIssue("", "value is nested too deeply")]
        except (TypeError, ValueError) as error:
            return [SchemaIssue("", shorten(f"value cannot be judged: {error}"))]

    def is_costly(self, value: Any) -> bool:
        """Return whether `validate` may take more than 20 ms of CPU and has no answer yet.

        Takes at most some 10 ms itself: a value of more than 150,000 nodes is costly without another look,
        also if its answer is known; a thread finds that.
        """
        if not has_at_most(value, _LARGE_NODES):
            return True
        try:
            body = msgspec.json.encode(value)
            if not self._is_long:
                self._prepare()
                if self._refusal is not None or len(body) <= min(self._quick, self._brief):
                    return False
                if self._is_cheap(body) and (self._is_brief(body) or self._engine.is_valid(value)):
                    return False
        except (RecursionError, TypeError, ValueError):
            return False
        return _digest(body) not in self._answers

    @property
    def _is_long(self) -> bool:
        """True if not even the schema is to be compiled in this process."""
        return len(self._body) > LONG_SCHEMA_BYTES and _elsewhere is not None

    def _is_cheap(self, body: bytes) -> bool:
        """Return whether judging takes at most 20 ms, by a bound that does not look into the value."""
        units, levels = self._bound(body)
        return units <= INLINE_UNITS and levels <= MAX_LEVELS

    def _is_brief(self, body: bytes) -> bool:
        """Return whether saying why not takes at most 20 ms, by the same bound."""
        return len(body) <= self._brief or self._bound(body)[0] <= EXPLAINED_INLINE_UNITS

    def _bound(self, body: bytes) -> tuple[float, int]:
        size = measure(body)
        levels = body.count(b"[") + body.count(b"{") + 1
        return self._cost.units(size, levels, size.characters), levels

    def _judge(self, value: Any, body: bytes) -> list[SchemaIssue]:
        if self._engine.is_valid(value):
            return []
        if self._is_brief(body):
            return self._why(value, body)
        return self._kept(value, body, self._aside)

    def _kept(self, value: Any, body: bytes, judge: Judge) -> list[SchemaIssue]:
        """Return the answer that was found before, aside, in a thread; else that of `judge`, and keep it."""
        name = _digest(body)
        found = self._answers.get(name)
        if found is None:
            found = judge(value, body)
            while len(self._answers) >= _MAX_ANSWERS:
                self._answers.pop(next(iter(self._answers)), None)
            self._answers[name] = found
        return list(found)

    def _carefully(self, value: Any, body: bytes) -> list[SchemaIssue]:
        units = self._units(value, body)
        return (self._aside if INLINE_UNITS < units <= self._cost.limit else self._here)(value, body)

    def _units(self, value: Any, body: bytes) -> float:
        shape = shape_of(value)
        if shape.levels > MAX_LEVELS and not self._cost.plain:
            raise RecursionError
        return self._cost.units(measure(body), shape.levels, shape.longest)

    def _aside(self, value: Any, body: bytes) -> list[SchemaIssue]:
        found = _elsewhere(self._body, body) if _elsewhere is not None else None
        return self._here(value, body) if found is None else found

    def _here(self, value: Any, body: bytes) -> list[SchemaIssue]:
        self._prepare()
        if self._refusal is not None:
            return [SchemaIssue("", self._refusal)]
        if not self._is_cheap(body) and self._units(value, body) > self._cost.limit:
            return [SchemaIssue("", _TOO_COSTLY)]
        return [] if self._engine.is_valid(value) else self._why(value, body)

    def _why(self, value: Any, body: bytes) -> list[SchemaIssue]:
        size = len(body)
        steps = self._cost.steps(self._bound(body)[0] if self._is_cheap(body) else self._units(value, body))
        found = breaches(self._body, value, steps) if size <= _EXPLAINED and steps > 0 else []
        ordered: list[tuple[list[tuple[bool, int, str]], SchemaIssue]] = []
        for steps, message in found:
            # Elements by number, members by name.
            order = [(isinstance(s, str), s if isinstance(s, int) else 0, str(s)) for s in steps]
            ordered.append((order, SchemaIssue(pointer(steps), shorten(message))))
        return [issue for _, issue in sorted(ordered)[:MAX_ISSUES]] or [self._first(value, size)]

    def _first(self, value: Any, size: int) -> SchemaIssue:
        """Return the breach that the engine finds first, where asking for it is cheap."""
        from jsonschema_rs import ValidationError

        branches = self._cost.alternatives
        few = branches < 2 or self._cost.parts <= _BRANCHING_PARTS
        if few and size * max(branches, 1) <= _COPIED:
            try:
                self._engine.validate(value)
            except ValidationError as error:
                keyword = next((k for k in reversed(error.schema_path) if isinstance(k, str)), "false")
                message = f"the value breaks the keyword {shorten(keyword)} of its schema"
                return SchemaIssue(pointer(error.instance_path), message)
        return SchemaIssue("", "value does not satisfy its schema; saying where would take too many steps")


_LARGE_NODES = 150_000
"""Nodes of a value beyond which it is not even written as JSON to find its cost: 10 million took 4.9 s."""
_MAX_ANSWERS = 64
"""Costly answers that one validator keeps."""
_EXPLAINED = 256 * 1024
"""Bytes of JSON text up to which a value is copied to be explained."""
_COPIED = 16 * 1024 * 1024
"""Bytes that the engine may copy to say which breach it found first."""
_BRANCHING_PARTS = 2_000
"""Subschemas of a schema with branches up to which the engine is asked: it makes 20 µs of error in each."""
_TOO_COSTLY = "judging it by its schema would take too many steps"


def _translate(schema: dict[str, Any], patterns: dict[str, Pattern]) -> None:
    """Write the patterns right in a schema as the engine reads them."""
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = patterns[schema["pattern"]].engine
    names = schema.get("patternProperties")
    if isinstance(names, dict):
        made: dict[str, Any] = {}
        for source, inner in cast("dict[str, Any]", names).items():
            engine = patterns[source].engine
            while engine in made:  # two patterns may be written alike
                engine += "(?:)"
            made[engine] = inner
        schema["patternProperties"] = made


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
