"""Reducers: how the writes of one shared key are folded, by name (page 002 §7).

A reducer is pure: `fn(value, update)` returns the new value and changes neither. `value` is None before the
first write of a key without a default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["REDUCERS", "is_built_in", "register"]

Reducer = Callable[[Any, Any], Any]


def _append(value: Any, update: Any) -> Any:
    return [update] if value is None else [*value, update]


def _extend(value: Any, update: Any) -> Any:
    return list(update) if value is None else [*value, *update]


def _add(value: Any, update: Any) -> Any:
    return update if value is None else value + update


def _max(value: Any, update: Any) -> Any:
    return update if value is None else max(value, update)


def _min(value: Any, update: Any) -> Any:
    return update if value is None else min(value, update)


def _union(value: Any, update: Any) -> Any:
    found = [] if value is None else list(value)
    return found + [item for i, item in enumerate(update) if item not in found and item not in update[:i]]


def _merge(value: Any, update: Any) -> Any:
    return dict(update) if value is None else {**value, **update}


def _last(value: Any, update: Any) -> Any:
    return update


REDUCERS: dict[str, Reducer] = {
    "append": _append,
    "extend": _extend,
    "add": _add,
    "max": _max,
    "min": _min,
    "union": _union,
    "merge": _merge,
    "last": _last,
}
"""The built-in reducers and those that were registered, by name."""

_BUILT_IN = frozenset(REDUCERS)


def is_built_in(name: str) -> bool:
    """Return whether a reducer is none that users wrote."""
    return name in _BUILT_IN


def register(name: str, fn: Reducer) -> None:
    """Give a reducer of your own a name. Raises ValueError if the name means another function already."""
    if name in _BUILT_IN or REDUCERS.get(name, fn) is not fn:
        raise ValueError(f'reducer "{name}" is already registered')
    REDUCERS[name] = fn
