"""Annotations of handlers: the type tags that they stand for, and how well a value fits them.

A tag is the name of a class, or `list[tag]`. The rank of a value tells the handlers apart that take it: exact
type, nearest base class, member of a union, `Any` (page 002 §3).
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    Literal,
    Never,
    NoReturn,
    NotRequired,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

__all__ = [
    "Rank",
    "classes_in",
    "is_any",
    "members_of",
    "mixed_lists",
    "mixed_tag",
    "name_of",
    "rank",
    "shown",
    "tags_of_annotation",
    "type_keys",
]

Rank = tuple[int, ...]
"""Smaller is nearer; ranks of one value are compared."""

_LITERAL, _EXACT, _BASE, _UNION, _ANY = -1, 0, 1, 2, 3
_FAR = 1_000
"""A container whose elements may be anything is nearer than `Any`, and further than any union."""
_NONE = type(None)
_NOTHING = (Never, NoReturn)


def is_any(annotation: Any) -> bool:
    """Return whether every value fits: `Any`, `object`, or a type variable without a bound."""
    plain = _plain(annotation)
    return plain is Any or plain is object


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, also of nested ones; another annotation is its own, Never has none."""
    plain = _plain(annotation)
    if plain in _NOTHING:
        return ()
    if get_origin(plain) in (Union, types.UnionType):
        return tuple(dict.fromkeys(m for part in get_args(plain) for m in members_of(part)))
    return (plain,)


def tags_of_annotation(annotation: Any) -> tuple[str, ...]:
    """Return the tags of the values that an annotation stands for; `Any` for every value."""
    return tuple(dict.fromkeys(tag for member in members_of(annotation) for tag in _tags(member)))


def _tags(member: Any) -> Iterator[str]:
    origin, args = get_origin(member), get_args(member)
    if member is Any or member is object:
        yield "Any"
    elif member is None:
        yield "None"
    elif origin is Literal:
        yield from dict.fromkeys(_class_tag(type(value)) for value in args)
    elif (member is list or origin in (list, Sequence)) and not args:
        yield "list[Any]"
    elif origin in (list, Sequence):
        tags = tags_of_annotation(args[0])
        for tag in tags:
            yield f"list[{tag}]"
        if len(tags) > 1:
            yield mixed_tag(tags)
    elif is_typeddict(member) or member is Mapping or origin is Mapping:
        yield "dict"
    elif member is Set or origin is Set:
        yield "set"
    else:
        yield _class_tag(origin or member)


def mixed_tag(tags: tuple[str, ...]) -> str:
    """Return the tag of lists whose elements are of several types."""
    return f"list[{' | '.join(sorted(tags))}]"


def mixed_lists(annotation: Any) -> dict[str, Any]:
    """Return the lists of a union that an annotation names, by their tag."""
    found: dict[str, Any] = {}
    for member in members_of(annotation):
        args = get_args(member)
        if get_origin(member) in (list, Sequence) and len(tags := tags_of_annotation(args[0])) > 1:
            found[mixed_tag(tags)] = member
    return found


def _class_tag(kind: Any) -> str:
    return "None" if kind is _NONE else str(getattr(kind, "__name__", kind))


def name_of(annotation: Any) -> str:
    """Return the tags of an annotation as one text."""
    return " | ".join(dict.fromkeys(_name(member) for member in members_of(annotation))) or "Never"


def _name(member: Any) -> str:
    tags = tuple(_tags(member))
    return tags[-1] if len(tags) > 1 and tags[-1].startswith("list[") else " | ".join(tags)


def shown(annotation: Any) -> str:
    """Return an annotation as error messages show it: `dict[str, int] | Literal['a']`."""
    return " | ".join(dict.fromkeys(_shown(member) for member in members_of(annotation))) or "Never"


def _shown(member: Any) -> str:
    origin, args = get_origin(member), get_args(member)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if args and isinstance(origin, type):
        return f"{origin.__name__}[{', '.join('...' if a is Ellipsis else shown(a) for a in args)}]"
    return member.__name__ if is_typeddict(member) else _name(member)


def type_keys(annotation: Any, _inside: tuple[Any, ...] = ()) -> tuple[Hashable, ...]:
    """Return what tells the types apart that an annotation stands for: equal keys are taken by equal values.

    One for each member of a union and each value of a Literal. Of a generic class only the class counts,
    because its values do not know their parameters; containers are known by their elements, a TypedDict by
    its keys, inside itself by its class.
    """
    keys: dict[Hashable, None] = {}
    for member in members_of(annotation):
        origin, args = get_origin(member), get_args(member)
        if origin is Literal:
            for value in cast("tuple[Hashable, ...]", args):
                keys["Literal", type(value), value] = None
        elif is_any(member):
            keys[Any] = None
        elif member is None:
            keys[_NONE] = None
        elif is_typeddict(member) and member not in _inside:
            required, types = _keys_of(member)
            around = (*_inside, member)
            found = frozenset((name, _key(kind, around)) for name, kind in types.items())
            keys["TypedDict", required, found] = None
        elif not all(is_any(arg) for arg in args if arg is not Ellipsis) and _is_container(origin):
            parts = tuple(arg if arg is Ellipsis else _key(arg, _inside) for arg in args)
            keys[origin, parts] = None
        else:
            keys[origin or member] = None
    return tuple(keys)


def _key(annotation: Any, inside: tuple[Any, ...]) -> Hashable:
    return frozenset(type_keys(annotation, inside))


def _is_container(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, _CONTAINERS) or kind in (Sequence, Set, Mapping))


def classes_in(annotation: Any, _inside: tuple[Any, ...] = ()) -> Iterator[type]:
    """Yield every class that an annotation names, inside lists, unions and TypedDicts too; Any is none."""
    for member in members_of(annotation):
        origin, args = get_origin(member), get_args(member)
        if origin is Literal:
            yield from (type(value) for value in args)
            continue
        if member is Any:
            continue
        if is_typeddict(origin or member):  # its values are dicts; it may name itself
            if member not in _inside:
                for value in _keys_of(origin or member)[1].values():
                    yield from classes_in(value, (*_inside, member))
            continue
        kind = origin or member
        if isinstance(kind, type):
            yield kind
        for arg in args:
            if arg is not Ellipsis:
                yield from classes_in(arg, _inside)


def rank(annotation: Any, value: Any) -> Rank | None:
    """Return how near a value is to an annotation; None if it does not fit. Checks each element."""
    if type(value) is annotation:  # what most handlers take
        return (_UNION, _FAR) if isinstance(value, _CONTAINERS) else (_EXACT,)
    plain = _plain(annotation)
    if plain is Any or plain is object:
        return (_ANY,)
    if plain in _NOTHING:
        return None
    origin, args = get_origin(plain), get_args(plain)
    if origin in (Union, types.UnionType):
        found = [r for member in args if (r := rank(member, value)) is not None]
        return (_UNION, *min(found)) if found else None
    if plain is None:
        return (_EXACT,) if value is None else None
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in args)
        return (_LITERAL,) if fits else None
    if is_typeddict(plain):
        return _rank_keys(plain, value)
    return _rank_class(origin or plain, args, value)


_CONTAINERS = (list, tuple, set, frozenset, dict)


def _rank_keys(kind: Any, value: Any) -> Rank | None:
    if not isinstance(value, dict):
        return None
    members = cast("dict[Any, Any]", value)
    required, types = _keys_of(kind)
    if not required <= members.keys() <= types.keys():
        return None
    fits = all(_fits_key(types[key], member) for key, member in members.items())
    return (_BASE, 0) if fits else None


def _fits_key(annotation: Any, value: Any) -> bool:
    """Return whether a value fits a key; an int fits `float`, as for type checkers."""
    if rank(annotation, value) is not None:
        return True
    return type(value) is int and float in members_of(annotation)


@lru_cache(maxsize=1_024)
def _keys_of(kind: Any) -> tuple[frozenset[str], Mapping[str, Any]]:
    """Return the required keys of a TypedDict and the types of all; Any where a name in them is not defined.

    `__required_keys__` does not know NotRequired where annotations are texts (PEP 563).
    """
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:
        return kind.__required_keys__, dict.fromkeys(kind.__annotations__, Any)
    required = {
        name
        for name, hint in hints.items()
        if get_origin(hint) is Required
        or (name in kind.__required_keys__ and get_origin(hint) is not NotRequired)
    }
    bare = {n: get_args(h)[0] if get_origin(h) in (Required, NotRequired) else h for n, h in hints.items()}
    return frozenset(required), bare


def _rank_class(kind: Any, args: tuple[Any, ...], value: Any) -> Rank | None:
    if not isinstance(kind, type) or not _is_instance(value, kind):
        return None
    mro = type(value).__mro__
    near: Rank = (_EXACT,) if type(value) is kind else (_BASE, mro.index(kind) if kind in mro else _FAR)
    if isinstance(value, _CONTAINERS):
        return _rank_elements(near, args, value)
    return near


def _is_instance(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a Protocol that is not checked at run time
        return False


def _rank_elements(near: Rank, args: tuple[Any, ...], value: Any) -> Rank | None:
    """Return the rank of a container: that of its worst element, if the annotation says anything of them."""
    if not args or all(is_any(arg) for arg in args if arg is not Ellipsis):
        return (_UNION, _FAR)
    worst = near
    for annotation, element in _unlike(args, value) or _elements(args, value):
        found = rank(annotation, element)
        if found is None:
            return None
        worst = max(worst, (_UNION, _FAR) if found[0] == _ANY else found)
    if isinstance(value, tuple) and Ellipsis not in args and len(args) != len(cast("tuple[Any, ...]", value)):
        return None
    return worst


def _unlike(args: tuple[Any, ...], value: Any) -> list[tuple[Any, Any]] | None:
    """Return one element of each class, if all elements of a class have the same rank; else None.

    A list of a million numbers is judged by one of them. Ranks of containers and literals depend on values.
    """
    if isinstance(value, dict) or (isinstance(value, tuple) and Ellipsis not in args):
        return None
    elements = cast("list[Any]", value)
    kinds = set(map(type, elements))
    if len(kinds) == len(elements) or any(issubclass(kind, _CONTAINERS) for kind in kinds):
        return None
    if any(get_origin(member) is Literal for member in members_of(args[0])):
        return None
    return [(args[0], next(e for e in elements if type(e) is kind)) for kind in kinds]


def _elements(args: tuple[Any, ...], value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        for key, element in cast("dict[Any, Any]", value).items():
            yield args[0], key
            yield args[-1], element
    elif isinstance(value, tuple) and Ellipsis not in args:
        yield from zip(args, cast("tuple[Any, ...]", value), strict=False)
    else:
        for element in cast("list[Any]", value):
            yield args[0], element


def _plain(annotation: Any) -> Any:
    """Take away what does not change the type: Annotated, NewType, type aliases and type variables."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, TypeVar):
            annotation = annotation.__bound__ or Any
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation
