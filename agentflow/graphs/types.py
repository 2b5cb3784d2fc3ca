"""Which messages can reach which handlers, by the types that both declare (page 002 §13).

An edge is refused only if nothing that its source may send can ever be taken by its target: a value of a
declared class may be of a subclass, and a base class may be declared for what is of a class below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, get_args, get_origin, is_typeddict

from agentflow.executors.annotations import is_any, members_of, shown

__all__ = ["can_match", "can_match_element", "names_of"]

_LISTS = (list, Sequence, Collection, Iterable)


def can_match(sent: Iterable[Any], taken: Iterable[Any]) -> bool:
    """Return whether a value of one of the types `sent` may be of one of those `taken`."""
    accepted = [member for one in taken for member in members_of(one)]
    return any(_meets(a, b) for one in sent for a in members_of(one) for b in accepted)


def can_match_element(sent: Iterable[Any], taken: Iterable[Any]) -> bool:
    """Return whether values of the types `sent` may be the elements of a list that is taken."""
    elements: list[Any] = []
    for member in (member for one in taken for member in members_of(one)):
        if is_any(member):
            elements.append(Any)
        elif (get_origin(member) or member) in _LISTS:
            elements += get_args(member) or (Any,)
    return can_match(sent, elements)


def names_of(annotations: Iterable[Any]) -> str:
    """Return types as messages show them: `int | Claim`, or "nothing"."""
    return " | ".join(dict.fromkeys(shown(one) for one in annotations)) or "nothing"


def _meets(sent: Any, taken: Any) -> bool:
    if is_any(sent) or is_any(taken):
        return True
    return any(_related(a, b) and _elements(sent, taken) for a in _classes(sent) for b in _classes(taken))


def _related(sent: Any, taken: Any) -> bool:
    if not isinstance(sent, type) or not isinstance(taken, type):
        return True  # what no class stands for is seen when a value comes
    return _is_below(sent, taken) or _is_below(taken, sent)


def _is_below(kind: type, base: type) -> bool:
    try:
        return issubclass(kind, base)
    except TypeError:  # a Protocol with data members
        return True


def _classes(annotation: Any) -> tuple[Any, ...]:
    if annotation is None:
        return (type(None),)
    origin = get_origin(annotation)
    if origin is Literal:
        values: tuple[Any, ...] = get_args(annotation)
        return tuple(value.__class__ for value in values)
    return (dict,) if is_typeddict(annotation) else (origin or annotation,)


def _elements(sent: Any, taken: Any) -> bool:
    """Return whether the elements of two containers fit; one that says nothing of them fits all."""
    if get_origin(sent) is Literal or get_origin(taken) is Literal:
        return True
    ours, theirs = get_args(sent), get_args(taken)
    if not ours or not theirs or Ellipsis in (*ours, *theirs) or len(ours) != len(theirs):
        return True
    return all(can_match([a], [b]) for a, b in zip(ours, theirs, strict=True))
