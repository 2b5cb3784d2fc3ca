"""Payloads: Python values as JSON and back, by type tags (page 002 §3).

A value is encoded once, when it is sent, and decoded anew for each receiver, so that no two handlers share a
mutable object. A tag names a class that the workflow knows: nothing is imported by name, nothing is pickled.
Inside a container whose elements have no declared type, a value that is no JSON of its own carries its tag:
`{"$type": "Claim", "id": "c-7"}`, `{"$type": "date", "$value": "2026-05-01"}`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import marshal
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, cast, get_args, get_origin

import msgspec
from msgspec import UNSET

from agentflow.definition.json_values import json_problems
from agentflow.errors import MessageNotEncodable
from agentflow.executors.annotations import classes_in, members_of, mixed_lists, rank, tags_of_annotation
from agentflow.lazy import LazySequence

__all__ = [
    "BUILTINS",
    "Encoded",
    "Payloads",
    "TypeTagClash",
    "convert",
    "has_empty_list",
    "is_encodable",
    "register_type",
    "schema_of",
    "tags_of",
]

_CONTAINERS: tuple[Any, ...] = (list, dict, tuple, set, frozenset)
_TYPE, _VALUE = "$type", "$value"
_TAGGED = b'"$type"'
_PACKED = "__packed__"
"""The attribute of a Struct that names the fields whose values carry their tags."""
_PLAIN = frozenset((type(None), bool, int, float, str))
_EXACT = frozenset((type(None), bool, int, str))
_TEXT = frozenset((str,))
_MAX_NESTING = 150
"""Below what the check of values allows, which says where they are nested too deeply."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder()
_FRAMES = frozenset({"abc", "enum", "msgspec", "msgspec._core", "typing"})
"""Modules whose base classes say nothing about a value."""

BUILTINS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        bool,
        int,
        float,
        str,
        list,
        dict,
        tuple,
        set,
        frozenset,
        bytes,
        bytearray,
        dt.datetime,
        dt.date,
        dt.time,
        dt.timedelta,
        uuid.UUID,
        decimal.Decimal,
    )
} | {"None": type(None)}
"""What every workflow can send, by tag."""


class _Registered(NamedTuple):
    kind: type
    encode: Callable[[Any], Any] | None
    decode: Callable[[Any], Any] | None


_registered: dict[type, _Registered] = {}


def register_type(
    kind: type,
    *,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> None:
    """Let every workflow send values of a class, by its name.

    `encode` gives JSON or something that msgspec encodes, `decode` makes the value of the JSON; classes that
    msgspec knows (Struct, dataclass, enum) and those with pydantic's `model_dump` and `model_validate` need
    neither. Register before the workflow is built. Raises TypeError if the class cannot be encoded, and
    ValueError if its name means a builtin type.
    """
    if BUILTINS.get(kind.__name__, kind) is not kind:
        raise ValueError(f'"{kind.__name__}" is the tag of a builtin type; give the class another name')
    if (encode is None) != (decode is None):
        raise TypeError("register_type needs both encode and decode, or neither")
    if encode is None and not is_encodable(kind):
        raise TypeError(f"{kind.__name__} has no JSON form; give encode= and decode=")
    _registered[kind] = _Registered(kind, encode, decode)


def is_encodable(kind: Any) -> bool:
    """Return whether values of a class have a JSON form of their own."""
    if kind in BUILTINS.values() or kind is object or kind in _registered:
        return True
    if issubclass(kind, msgspec.Struct | enum.Enum) or dataclasses.is_dataclass(kind):
        return True
    is_named_tuple = tuple in kind.__mro__ and hasattr(kind, "_fields")
    return is_named_tuple or all(
        callable(getattr(kind, name, None)) for name in ("model_validate", "model_dump")
    )


def tags_of(value: Any) -> tuple[str, tuple[str, ...]]:
    """Return the tag of a value and those of its base classes.

    A list has the tag of its elements, if they are of one class; the bases are then lists of their bases.
    """
    kind = _class_of(value)
    if kind is list:
        return _tags_of_list(cast("list[Any]", value))
    return _tags_of_class(kind)


def _tags_of_list(items: list[Any]) -> tuple[str, tuple[str, ...]]:
    if not items:
        return "list", ("list[Any]",)
    first, bases = tags_of(items[0])
    common = [first, *bases]
    for tag, above in _tags_of_elements(items[1:]):
        common = [name for name in common if name == tag or name in above]
    names = [f"list[{name}]" for name in common if name != "list[Any]"]
    if not names:
        return "list", ("list[Any]",)
    return names[0], (*names[1:], "list", "list[Any]")


def _tags_of_elements(items: list[Any]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Return what `tags_of` returns for the elements, without repetitions: of a class, all have the same."""
    kinds = set(map(type, items))
    found = {_tags_of_class(kind) for kind in kinds if kind is not list}
    if list in kinds:
        lists = cast("list[list[Any]]", [item for item in items if type(item) is list])
        found |= {_tags_of_list(item) for item in lists}
    return found


def _tags_of_class(kind: Any) -> tuple[str, tuple[str, ...]]:
    return _tag(kind), tuple(_tag(b) for b in kind.__mro__[1:-1] if b.__module__ not in _FRAMES)


def _class_of(value: object) -> Any:
    return type(value)


def _tag(kind: Any) -> str:
    return "None" if kind is type(None) else kind.__name__


class Encoded(NamedTuple):
    """A payload: its tag, the tags of its base classes, and the JSON value."""

    tag: str
    bases: tuple[str, ...]
    value: Any


class TypeTagClash(Exception):
    """Two classes of one workflow have one name; carries both."""

    def __init__(self, tag: str, first: type, second: type) -> None:
        super().__init__(f'"{tag}" is the tag of {_place(first)} and of {_place(second)}')
        self.tag, self.first, self.second = tag, first, second


def _place(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class Payloads:
    """The types that one workflow knows, by tag. Raises TypeTagClash if two have one name."""

    def __init__(self, annotations: Iterable[Any] = ()) -> None:
        self.types: dict[str, type] = dict(BUILTINS)
        self._mixed: dict[str, Any] = {}  # lists of a union, by their tag
        for kind in _registered:
            self._add(kind)
        for annotation in annotations:
            self.add(annotation)

    def add(self, annotation: Any) -> None:
        """Let the workflow know all classes that an annotation names. Raises TypeTagClash."""
        for kind in classes_in(annotation):
            if is_encodable(kind):
                self._add(kind)
        self._mixed.update(mixed_lists(annotation))

    def _add(self, kind: type) -> None:
        tag = _tag(kind)
        known = self.types.setdefault(tag, kind)
        if known is not kind and kind is not object:
            raise TypeTagClash(tag, known, kind)

    def find(self, tag: str) -> type | None:
        """Return the class of a tag: one that is known, or the subclass of one that is known."""
        known = self.types.get(tag)
        if known is not None:
            return known
        found = {
            below
            for kind in self.types.values()
            if kind not in BUILTINS.values()
            for below in _below(kind)
            if below.__name__ == tag
        }
        return found.pop() if len(found) == 1 else None

    # -- values to JSON --------------------------------------------------------------------------

    def encode(self, value: Any, declared: Any = Any) -> Encoded:
        """Return the payload of a value that is sent. `declared` gives a list its tag that is empty, or in
        which one is.

        Raises MessageNotEncodable.
        """
        try:
            return self._encode(value, declared)
        except RecursionError:
            raise _refused(value, "it contains itself, or is nested too deeply") from None

    def _encode(self, value: Any, declared: Any) -> Encoded:
        tag, bases = tags_of(value)
        if _class_of(value) is list:
            if has_empty_list(value) and (lists := _lists_of(declared, value)):
                tag, bases = lists[0], (*lists[1:], tag, *bases)
            fits = [name for name, kind in self._mixed.items() if rank(kind, value) is not None]
            bases = (*bases, *(name for name in fits if name not in (tag, *bases)))
        if (copied := _copied(value)) is not UNSET:
            return Encoded(tag, bases, copied)
        if _class_of(value) is list:
            inner = self._inner(tag)
            made: Any = [self._plain(i) if inner and type(i) is inner else self.pack(i) for i in value]
        elif _class_of(value) in _CONTAINERS:
            made = self._contents(value)
        else:
            made = self._plain(value)
        return Encoded(tag, bases, _checked(made, value))

    def pack(self, value: Any) -> Any:
        """Return a value as JSON, with its tag where it is no plain JSON. Raises MessageNotEncodable."""
        kind = _class_of(value)
        if kind in _PLAIN:
            return value
        if kind is list or (kind is dict and _TYPE not in value):
            return self._contents(value)
        if kind in (tuple, set, frozenset, dict):
            return {_TYPE: _tag(kind), _VALUE: self._contents(value)}
        made = self._plain(value)
        if _class_of(made) is dict and _TYPE not in made:
            return {_TYPE: _tag(kind), **made}
        return {_TYPE: _tag(kind), _VALUE: made}

    def keep(self, value: Any) -> Any:
        """Return a value as it is kept in state or asked: packed and checked. Raises MessageNotEncodable."""
        if (copied := _copied(value)) is not UNSET:
            return copied
        try:
            return _checked(self.pack(value), value)
        except RecursionError:
            raise _refused(value, "it contains itself, or is nested too deeply") from None

    def _contents(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self.pack(item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, set | frozenset):
            packed = [self.pack(item) for item in cast("set[Any]", value)]
            return sorted(packed, key=lambda item: msgspec.json.encode(item, order="deterministic"))
        return [self.pack(item) for item in value]

    def _plain(self, value: Any) -> Any:
        """Return the JSON of one value of a class that the workflow knows, without its tag."""
        kind = _class_of(value)
        if kind in _PLAIN:
            return value
        if self.find(_tag(kind)) is not kind:
            problem = f"{_place(kind)} is a type that this workflow does not know"
            hint = "annotate a handler with it, or call agentflow.register_type on it before build()"
            raise MessageNotEncodable(problem, hint=hint)
        try:
            made = msgspec.to_builtins(value, str_keys=True, enc_hook=_encode_other)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise _refused(value, str(error)) from None
        for name in getattr(kind, _PACKED, ()):
            made[name] = self.pack(getattr(value, name))
        return made

    def _inner(self, tag: str) -> type | None:
        """Return the class whose elements stand without tags in a list of this tag."""
        if not tag.startswith("list[") or tag.startswith("list[list"):
            return None
        return self.find(tag[5:-1])

    # -- JSON to values --------------------------------------------------------------------------

    def decode(self, tag: str, value: Any, bases: Iterable[str] = ()) -> Any:
        """Return a new value of the class that a tag names; of a class that is gone, of its nearest base.

        Without any, the JSON value itself. Raises ValueError if the JSON does not fit the class.
        """
        if tag.startswith("list") and isinstance(value, list):
            inner = self._inner(tag)
            items = cast("list[Any]", value)
            if inner is None or inner in _CONTAINERS:
                return [self.unpack(item) for item in items]
            if inner in _PLAIN and _PLAIN.issuperset(map(type, items)):
                return items.copy()
            return [self._read(inner, item) for item in items]
        for name in (tag, *bases):
            kind = self.find(name)
            if kind is not None:
                return self._read(kind, value)
        return self.unpack(value)

    def unpack(self, value: Any) -> Any:
        """Return what `pack` or `keep` was given, as new objects."""
        if type(value) in _PLAIN:
            return value
        body = _encoder.encode(value)
        return self._unpack(value) if _TAGGED in body else _decoder.decode(body)

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._unpack(item) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        members = cast("dict[str, Any]", value)
        tag = members.get(_TYPE)
        kind = self.find(tag) if isinstance(tag, str) else None
        if kind is None:
            return {key: self._unpack(item) for key, item in members.items()}
        if _VALUE in members and len(members) == 2:
            return self._read(kind, members[_VALUE])
        return self._read(kind, {key: item for key, item in members.items() if key != _TYPE})

    def _read(self, kind: type, value: Any) -> Any:
        if type(value) in _PLAIN and kind in _PLAIN:
            return value  # True in a list of int stays what it is
        if kind in _CONTAINERS:
            return self._container(kind, value)
        if isinstance(value, dict) and _TYPE in value and kind is not dict:
            return self.unpack(value)  # an element of a subclass, which carries its own tag
        made = convert(value, kind)
        if packed := getattr(kind, _PACKED, ()):
            made = msgspec.structs.replace(made, **{n: self.unpack(getattr(made, n)) for n in packed})
        return made

    def _container(self, kind: type, value: Any) -> Any:
        if isinstance(value, dict):
            if _PLAIN.issuperset(map(type, cast("dict[str, Any]", value).values())):
                return cast("dict[str, Any]", value).copy()
            return {key: self.unpack(item) for key, item in cast("dict[str, Any]", value).items()}
        return kind(self.unpack(item) for item in value)


def _copied(value: Any) -> Any:
    """Return a deep copy of a list or dict that is JSON of builtin classes through and through; else UNSET.

    All of it runs in C. `marshal` refuses instances of subclasses, which would equal their copy; what else is
    no JSON does not equal what comes back.
    """
    if type(value) not in (list, dict):
        return UNSET
    try:
        if _is_flat(members := cast("dict[Any, Any]", value)):
            return UNSET if _TAGGED in _encoder.encode(members) else members.copy()
        marshal.dumps(value)
        body = _encoder.encode(value)
        if _TAGGED in body or _nesting(body) > _MAX_NESTING:
            return UNSET
        made = _decoder.decode(body)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return UNSET
    return made if made == value else UNSET


def _is_flat(members: Any) -> bool:
    """Return whether this is a dict of texts, whole numbers, truth values and None alone, which are JSON if
    they can be encoded; a float may have no JSON."""
    if type(members) is not dict:
        return False
    found = cast("dict[Any, Any]", members)
    return _EXACT.issuperset(map(type, found.values())) and _TEXT.issuperset(map(type, found))


def _nesting(body: bytes) -> int:
    """Return how deep JSON is nested at most; brackets in its texts count as well."""
    brackets = body.translate(None, _NO_BRACKETS)
    if len(brackets) <= 2 * _MAX_NESTING:
        return 0
    return max(accumulate(1 if b in b"[{" else -1 for b in brackets))


def convert(value: Any, annotation: Any) -> Any:
    """Return JSON as a value of an annotated type. Raises ValueError if it does not fit.

    1.0 is an integer, as JSON Schema has it, by which answers are judged.
    """
    try:
        return msgspec.convert(value, annotation, str_keys=True, strict=True, dec_hook=_decode_other)
    except msgspec.ValidationError:
        whole = _with_integers(value)
        if whole is value:
            raise
        return msgspec.convert(whole, annotation, str_keys=True, strict=True, dec_hook=_decode_other)


def _with_integers(value: Any) -> Any:
    """Return JSON with an int for each float without a fraction; the value itself if it has none."""
    if type(value) is float:
        return int(value) if value.is_integer() else value
    if type(value) is list:
        items = cast("list[Any]", value)
        changed = [_with_integers(item) for item in items]
        return changed if any(a is not b for a, b in zip(items, changed, strict=True)) else items
    if type(value) is dict:
        members = cast("dict[str, Any]", value)
        found = {key: _with_integers(item) for key, item in members.items()}
        return found if any(found[key] is not members[key] for key in members) else members
    return value


def _encode_other(value: Any) -> Any:
    kind = _class_of(value)
    known = _registered.get(kind)
    if known is not None and known.encode is not None:
        return known.encode(value)
    if isinstance(value, LazySequence):
        return cast("LazySequence[Any]", value).made()
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _decode_other(kind: type, value: Any) -> Any:
    known = _registered.get(kind)
    if known is not None and known.decode is not None:
        return known.decode(value)
    validate = getattr(kind, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise NotImplementedError(f"{kind.__name__} cannot be made of JSON")


def _checked(made: Any, value: Any) -> Any:
    for pointer, message, _ in json_problems(made):
        raise _refused(value, f"{message}{f' at {pointer}' if pointer else ''}")
    return made


def _refused(value: Any, reason: str) -> MessageNotEncodable:
    return MessageNotEncodable(
        f"a {type(value).__name__} cannot be encoded: {reason}",
        hint="send builtins, enums, dates, dataclasses or Structs, or call agentflow.register_type",
    )


def _below(kind: type) -> Iterable[type]:
    seen: set[type] = set()
    todo = type.__subclasses__(kind)
    while todo:
        found = todo.pop()
        if found not in seen:
            seen.add(found)
            todo += type.__subclasses__(found)
    return seen


def has_empty_list(items: list[Any]) -> bool:
    """Return whether a list does not say of which type it is: it is empty, or a list in it is."""
    if list not in set(map(type, items)):
        return not items
    return any(has_empty_list(cast("list[Any]", item)) for item in items if type(item) is list)


def _lists_of(annotation: Any, value: list[Any]) -> list[str]:
    """Return the tags of the lists of an annotation that a value fits."""
    kinds = [
        list[element]
        for member in members_of(annotation)
        if get_origin(member) in (list, Sequence)
        for element in members_of(get_args(member)[0])
    ]
    tags = [tag for kind in kinds if rank(kind, value) is not None for tag in tags_of_annotation(kind)]
    return [tag for tag in dict.fromkeys(tags) if tag != "list[Any]"]


def schema_of(annotation: Any) -> Mapping[str, Any] | bool:
    """Return the JSON Schema that an answer of this type must satisfy; True where there is none."""
    try:
        (root,), parts = msgspec.json.schema_components(
            [annotation], schema_hook=lambda _: {}, ref_template="#/$defs/{name}"
        )
    except (TypeError, ValueError):
        return True
    return {**root, "$defs": parts} if parts else root or True
