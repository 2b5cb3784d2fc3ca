"""Large values of events: stored once by hash, named in their place (page 000 §1).

`find_blobs` looks for values above 256 KiB in an encoded event: the innermost ones, so that a value which
several steps hand on is the same blob each time. A value may stand where the type of the event does not allow
an object, such as the text of a message; readers are always given that one whole. No I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized, ValuesView
from functools import cache
from typing import Any, Final

import msgspec

__all__ = [
    "LARGE_BYTES",
    "Blob",
    "Shape",
    "blob_hash",
    "extract_blobs",
    "extract_values",
    "insert_blobs",
    "reference_to",
    "shape_of",
]

LARGE_BYTES: Final = 256 << 10
"""A value with more bytes of JSON is a blob."""


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A value that stands beside the text of its event."""

    at: int
    """Position of the reference in the text."""
    name: str
    data: bytes
    """Its JSON."""
    hidden: bool = False
    """True if readers get the value itself, because the type of the event allows no reference there."""

    @property
    def saved(self) -> int:
        """How many bytes longer the value is than its reference."""
        return len(self.data) - len(reference_to(self.name, len(self.data)))


def blob_hash(data: bytes) -> str:
    """Return the name of a blob with these bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def reference_to(name: str, size: int) -> bytes:
    """Return the JSON that stands in the place of a blob."""
    return b'{"$blob":"%b","size":%d,"type":"json"}' % (name.encode(), size)


def insert_blobs(text: bytes, blobs: Iterable[Blob], *, hidden_only: bool = False) -> bytes:
    """Return `text` with its blobs, which are in order, put back; with `hidden_only` those alone."""
    parts: list[bytes] = []
    taken = 0
    for blob in blobs:
        if blob.hidden or not hidden_only:
            parts += (text[taken : blob.at], blob.data)
            taken = blob.at + len(reference_to(blob.name, len(blob.data)))
    parts.append(text[taken:])
    return b"".join(parts)


class Shape(msgspec.Struct, frozen=True):
    """Where in a value any JSON may stand: in all of it (`free`), in members, or in each item."""

    free: bool = False
    members: Mapping[str, Shape] = {}
    each: Shape | None = None

    def of(self, key: str) -> Shape:
        """Return the shape of a member; where one that is not known is ignored, it may be a reference."""
        if self.members:
            return self.members.get(key, _FREE)
        return self if self.free else self.each or _FIXED


_FREE = Shape(free=True)
_FIXED = Shape()


@cache
def shape_of(kind: Any) -> Shape:
    """Return where values of this type hold any JSON."""
    from msgspec import inspect

    return _shape(inspect.type_info(kind), ())


def _shape(info: Any, around: tuple[type, ...]) -> Shape:
    """Return the shape of a type inside the Structs `around`; one that holds itself ends there."""
    from msgspec import inspect

    match info:
        case inspect.AnyType():
            return _FREE
        case inspect.StructType(cls=cls, fields=fields) if cls not in around:
            inside = (*around, cls)
            return Shape(members={field.encode_name: _shape(field.type, inside) for field in fields})
        case inspect.DictType(value_type=each):
            return Shape(each=_shape(each, around))
        case inspect.ListType(item_type=each) | inspect.VarTupleType(item_type=each):
            return Shape(each=_shape(each, around))
        case inspect.UnionType(types=types):
            return next((found for one in types if (found := _shape(one, around)) != _FIXED), _FIXED)
        case inspect.Metadata(type=inner):
            return _shape(inner, around)
        case _:
            return _FIXED


_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_Found = tuple[int, bytes, bool]
"""Position of a value in the whole text, its bytes, and whether it is hidden."""

_MEMBERS: Final = 4096
_LEVELS: Final = 8
"""Lists and objects with more members than this, and what lies deeper, are not looked into: each member costs
an object, and each level another pass over the text, while the event loop waits."""


class _NotCompact(Exception):
    """The JSON was not written by our encoder, so positions in it cannot be told."""


class _Place(msgspec.Struct, frozen=True, gc=False):
    """A value in the text around it."""

    at: int
    """Position in the whole text."""
    shape: Shape
    value: Any
    """What the JSON was made of; None if that is not known."""
    levels: int
    """How many levels below it are looked at."""

    def member(self, position: int, key: str) -> _Place:
        value = self.value.get(key) if isinstance(self.value, dict) else getattr(self.value, key, None)  # pyright: ignore
        return _Place(self.at + position, self.shape.of(key), value, self.levels - 1)

    def item(self, position: int, number: int) -> _Place:
        value = self.value[number] if isinstance(self.value, list | tuple) else None  # pyright: ignore
        return _Place(self.at + position, self.shape.of(""), value, self.levels - 1)


def extract_blobs(body: bytes, data: Any, value: Any = None) -> tuple[bytes, tuple[Blob, ...]]:
    """Return the text of an encoded event without its large values, and these.

    `data` is the type of its data, and `value` the data itself where the caller has it: how many members a
    value has is then known before they are decoded. Takes 3 to 20 ms a MiB.
    """
    return extract_values(body, Shape(members={"data": shape_of(data)}), {"data": value})


def extract_values(body: bytes, shape: Shape, value: Any = None) -> tuple[bytes, tuple[Blob, ...]]:
    """Return compact JSON without its large values, and these; the whole of it is none. `value` is what the
    JSON was made of, where the caller has it."""
    found: list[_Found] = []
    try:
        _inside(body, _Place(0, shape, value, _LEVELS), found)
    except _NotCompact:
        return body, ()
    parts: list[bytes] = []
    blobs: list[Blob] = []
    taken = length = 0
    for at, text, hidden in found:
        name = blob_hash(text)
        parts += (body[taken:at], reference_to(name, len(text)))
        length += at - taken
        blobs.append(Blob(length, name, text, hidden))
        length += len(parts[-1])
        taken = at + len(text)
    parts.append(body[taken:])
    return b"".join(parts), tuple(blobs)


def _inside(text: bytes, place: _Place, found: list[_Found]) -> int:
    """Find the large values inside one; return how long what is left of it is."""
    left, position = len(text), 1
    if place.levels == 0 or (isinstance(place.value, Sized) and len(place.value) > _MEMBERS):
        return left
    if text[:1] == b"{":
        members = _object_decoder.decode(text)
        sizes = _sizes(members.values())
        if not sizes:
            return left
        for (key, raw), size in zip(members.items(), sizes, strict=True):
            position += len(msgspec.json.encode(key)) + 1
            if size > LARGE_BYTES:
                left += _member(text, position, raw, place.member(position, key), found) - size
            position += size + 1
    elif text[:1] == b"[":
        items = _array_decoder.decode(text)
        sizes = _sizes(items)
        if not sizes:
            return left
        for number, (raw, size) in enumerate(zip(items, sizes, strict=True)):
            if size > LARGE_BYTES:
                left += _member(text, position, raw, place.item(position, number), found) - size
            position += size + 1
    return left


def _sizes(values: Sequence[msgspec.Raw] | ValuesView[msgspec.Raw]) -> list[int]:
    """Return the sizes of the members; none if there are too many, or if none is large."""
    if len(values) > _MEMBERS:
        return []
    sizes = [*map(len, map(memoryview, values))]  # twice as fast as asking each
    return sizes if max(sizes, default=0) > LARGE_BYTES else []


def _member(text: bytes, position: int, raw: msgspec.Raw, place: _Place, found: list[_Found]) -> int:
    """Look at a large member; return how long what is left of it is."""
    inner = bytes(raw)
    if not text.startswith(inner, position):
        raise _NotCompact
    before = len(found)
    rest = _inside(inner, place, found)
    if rest <= LARGE_BYTES or not (place.shape.free or (place.shape == _FIXED and len(found) == before)):
        return rest
    del found[before:]
    found.append((place.at, inner, not place.shape.free))
    return len(reference_to(f"sha256:{'0' * 64}", len(inner)))
