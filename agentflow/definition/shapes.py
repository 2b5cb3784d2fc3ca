"""The vocabulary in which document formats are written down: what a key may hold.

Only data; `structure` checks a document against it. Kinds nest; `Shape` is an object with known
keys, `Map` one with free keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = [
    "ArrayOf",
    "Const",
    "Duration",
    "Enum",
    "ErrorName",
    "Field",
    "Id",
    "Json",
    "Kind",
    "Map",
    "Number",
    "OneOf",
    "Schema",
    "Shape",
    "Text",
]


class Text(msgspec.Struct, frozen=True):
    """A string; not blank unless `blank`. `template`: `${{ }}` is evaluated in it."""

    max: int | None = None
    blank: bool = False
    template: bool = False


class Id(msgspec.Struct, frozen=True):
    """A name: `^[A-Za-z_][A-Za-z0-9_-]{0,63}$` (`max` more characters for other limits)."""

    max: int = 64


class ErrorName(msgspec.Struct, frozen=True):
    """A category of errors of page 000 §9, or the code of an error: a word in snake case, which is not a
    misspelt category."""

    max: int = 64


class Duration(msgspec.Struct, frozen=True):
    """`1.5s`, `500ms` … or seconds as a number, > 0. The checked value is seconds."""


class Number(msgspec.Struct, frozen=True):
    """A number ≥ `minimum` and ≤ `maximum`; no fraction with `integer`. Booleans are none."""

    minimum: float | None = None
    maximum: float | None = None
    integer: bool = False


class Const(msgspec.Struct, frozen=True):
    """Exactly one of these booleans or null."""

    allowed: tuple[bool | None, ...]


class Enum(msgspec.Struct, frozen=True):
    """One of these strings; with `trim` blanks around it are ignored."""

    values: tuple[str, ...]
    trim: bool = False


class Json(msgspec.Struct, frozen=True):
    """Any JSON value of the types in `types` (all if empty). `template`: every string inside is one."""

    template: bool = False
    types: tuple[str, ...] = ()


class Schema(Json, frozen=True):
    """A JSON Schema, Draft 2020-12. Its own rules are checked by its reader."""

    types: tuple[str, ...] = ("object", "boolean")


class ArrayOf(msgspec.Struct, frozen=True):
    """An array. An empty one where one element is needed (`min`) is reported by its reader."""

    of: Kind
    max: int | None = None
    min: int = 0


class Map(msgspec.Struct, frozen=True):
    """An object with free keys, which are Ids unless `any_key`."""

    of: Kind
    any_key: bool = False


class OneOf(msgspec.Struct, frozen=True):
    """The kind that is meant follows from the JSON type: `string`, `number`, `boolean`, `null`, `array`,
    `object`. `code`: reported instead of E_TYPE and E_VALUE."""

    by_type: Mapping[str, Kind]
    code: str | None = None


class Field(msgspec.Struct, frozen=True):
    """What stands behind one key.

    `about`: what it is for, in a sentence or two, for people. `default`: what holds when it is left out, if
    that can be written in its place. `code`: reported instead of E_REQUIRED when it is missing. `values`:
    the only values, where its reader is stricter than its kind.
    """

    kind: Kind
    about: str
    default: Any = msgspec.UNSET
    required: bool = False
    code: str = "E_REQUIRED"
    values: tuple[Any, ...] = ()


class Shape(msgspec.Struct, frozen=True):
    """An object with known keys. `name`: what messages call it.

    `other` = what further keys may hold (None: there are none). `refused` keys are unknown even then.
    `code`: reported instead of E_TYPE and E_VALUE inside. `by`: a key whose value chooses the further
    fields, from `variants`; `lenient`: without a known variant any key goes. `synonyms`: what other tools
    call a key, in snake case.
    """

    name: str
    fields: Mapping[str, Field]
    other: Kind | None = None
    refused: frozenset[str] = frozenset()
    code: str | None = None
    by: str | None = None
    variants: Mapping[str, Mapping[str, Field]] = {}
    synonyms: Mapping[str, str] = {}
    lenient: bool = False


Kind = Text | Id | ErrorName | Duration | Number | Const | Enum | Json | ArrayOf | Map | OneOf | Shape
