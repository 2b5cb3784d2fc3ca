"""The vocabulary in which document formats are written down: what a key may hold.

Only data; `structure` checks a document against it. Kinds nest; `Shape` is an object with known
keys, `Map` one with free keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "ArrayOf",
    "Const",
    "Duration",
    "Enum",
    "Field",
    "Id",
    "Json",
    "Kind",
    "Map",
    "Number",
    "OneOf",
    "Shape",
    "Text",
]


@dataclass(frozen=True, slots=True)
class Text:
    """A string; not blank unless `blank`. `template`: `${{ }}` is evaluated in it."""

    max: int | None = None
    blank: bool = False
    template: bool = False


@dataclass(frozen=True, slots=True)
class Id:
    """A name: `^[A-Za-z_][A-Za-z0-9_-]{0,63}$` (`max` more characters for other limits)."""

    max: int = 64


@dataclass(frozen=True, slots=True)
class Duration:
    """`1.5s`, `500ms` … or seconds as a number, > 0. The checked value is seconds."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number ≥ `minimum` and ≤ `maximum`; no fraction with `integer`. Booleans are none."""

    minimum: float | None = None
    maximum: float | None = None
    integer: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """Exactly one of these booleans or null."""

    allowed: tuple[bool | None, ...]


@dataclass(frozen=True, slots=True)
class Enum:
    """One of these strings."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Json:
    """Any JSON value of the types in `types` (all if empty). `template`: every string inside is one."""

    template: bool = False
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array."""

    of: Kind
    max: int | None = None


@dataclass(frozen=True, slots=True)
class Map:
    """An object with free keys, which are Ids unless `any_key`."""

    of: Kind
    any_key: bool = False


@dataclass(frozen=True, slots=True)
class OneOf:
    """The kind that is meant follows from the JSON type: `string`, `number`, `boolean`, `null`, `array`,
    `object`. `code`: reported instead of E_TYPE and E_VALUE."""

    by_type: Mapping[str, Kind]
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """What stands behind one key. `code`: reported instead of E_REQUIRED when it is missing."""

    kind: Kind
    required: bool = False
    code: str = "E_REQUIRED"


@dataclass(frozen=True, slots=True)
class Shape:
    """An object with known keys.

    `other` = what further keys may hold (None: there are none). `refused` keys are unknown even then.
    `code`: reported instead of E_TYPE and E_VALUE inside. `by`: a key whose value chooses the further
    fields, from `variants`.
    """

    name: str
    fields: Mapping[str, Field]
    other: Kind | None = None
    refused: frozenset[str] = frozenset()
    code: str | None = None
    by: str | None = None
    variants: Mapping[str, Mapping[str, Field]] = field(default_factory=dict[str, Mapping[str, Field]])


Kind = Text | Id | Duration | Number | Const | Enum | Json | ArrayOf | Map | OneOf | Shape
