"""Random documents, made from the tables of the loader: right, edges first, and with a value put wrong."""

from __future__ import annotations

import copy
import random
from typing import Any

from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    ErrorName,
    Field,
    Id,
    Json,
    Kind,
    Map,
    Number,
    OneOf,
    Schema,
    Shape,
    Text,
)
from agentflow.definition.vocabulary import AGENT_LIST, STEP_DOCUMENT

__all__ = ["Author"]


class Author:
    """Writes documents that the tables allow, edges first, from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def document(self) -> Any:
        return self.value(self.chance.choice([STEP_DOCUMENT, AGENT_LIST]))

    def value(self, kind: Kind) -> Any:
        match kind:
            case ArrayOf():
                return [self.value(kind.of) for _ in range(self.chance.randint(kind.min, 2))]
            case Map():
                keys = ["x-a", "header", "A b"] if kind.any_key else ["a", "default", "x-a"]
                return {key: self.value(kind.of) for key in keys if self.chance.random() < 0.4}
            case OneOf():
                return self.value(self.chance.choice(list(kind.by_type.values())))
            case Shape():
                return self.object(kind)
            case _:
                return copy.deepcopy(self.chance.choice(leaves(kind)))

    def object(self, shape: Shape) -> Any:
        fields = dict(shape.fields)
        if shape.by is not None:
            chosen = self.chance.choice(list(shape.variants))
            fields |= shape.variants[chosen]
            fields[shape.by] = Field(Enum((chosen,)), "", required=True)
        made = {
            key: self.chance.choice(field.values) if field.values else self.value(field.kind)
            for key, field in fields.items()
            if field.required or self.chance.random() < 0.2
        }
        if self.chance.random() < 0.1:
            made["x-note"] = {"any": []}
        if shape.other is not None and self.chance.random() < 0.3:
            made["top_k"] = self.value(shape.other)
        return made

    def damaged(self, document: Any) -> Any:
        """One value put wrong, somewhere."""
        at = document
        while True:
            key = self.chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if isinstance(at[key], dict | list) and at[key] and self.chance.random() < 0.8:
                at = at[key]
                continue
            at[key] = copy.deepcopy(self.chance.choice(WRONG))
            return document


WRONG = [None, True, 0, -1, 1.5, "", "x", [], {}, ["a"], {"k": 1}, "${{ 1 }}", "\ufeff"]
SCHEMAS = [
    True,
    {"type": "object", "properties": {"x": {"type": ["string", "null"]}}},
    {"$defs": {"a": {}}, "$ref": "#/$defs/a", "x-k": 1, "unknown": 2},
]
JSON = {
    "string": ["1.0", "", "string", "${{ inputs.x }}"],
    "number": [0, 1, 1.0, -1e300],
    "boolean": [True, False],
    "null": [None],
    "array": [[], ["string", "null"], [[1]]],
    "object": [{}, {"k": [1, {"x-": None}]}],
}


def leaves(kind: Kind) -> list[Any]:
    match kind:
        case Text():
            words = ["p", "a", "always()", "openai:m", "x y", "\ufeff", "${{ inputs.x }}", " a ", "🦊"]
            words += ["x" * kind.max] if kind.max else []
            return [*words, "", " "] if kind.blank else words
        case Id():
            return ["a", "b", "A-1", "_", "x" * kind.max]
        case ErrorName():
            return ["timeout", "quota", "http_503"]
        case Duration():
            return ["1ms", "0.5s", "2m", "1h", "1d", 1, 0.001, 1e9, 3_153_600_000]
        case Number():
            low = 0 if kind.minimum is None else kind.minimum
            high = 10**30 if kind.maximum is None else kind.maximum
            return [low, high] if kind.integer else [low, high, (low + high) / 2]
        case Const():
            return list(kind.allowed)
        case Enum():
            return list(kind.values)
        case Schema():
            return SCHEMAS
        case Json():
            return [value for name in kind.types or JSON for value in JSON[name]]
        case _:
            raise AssertionError(kind)
