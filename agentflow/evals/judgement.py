"""Comparison of a result with what was expected: as a subset, or at paths (page 003 §13)."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, cast

__all__ = ["ABSENT", "Mismatch", "compare_paths", "compare_subset", "node_at", "value_at"]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""In the place of a value that does not exist."""


class Mismatch(NamedTuple):
    """The first place where a result differs, as `$.a.b[0]`, with both values there."""

    path: str
    expected: Any
    actual: Any

    @property
    def reason(self) -> str:
        """Return the difference as a sentence."""
        if self.actual is ABSENT:
            return f"{self.path} is absent"
        if self.expected is ABSENT:
            return f"{self.path} was not expected"
        return f"{self.path} is {_shown(self.actual)}, expected {_shown(self.expected)}"


_LONGEST = 200


def _shown(value: Any) -> str:
    if isinstance(value, str) and len(value) > _LONGEST:
        value = value[:_LONGEST] + "…"
    elif isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(cast('list[Any]', value))}"
    return json.dumps(value, ensure_ascii=False)


def _equal(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal: 6 equals 6.0, but true is no number."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return (type(a) is type(b) or _are_numbers(a, b)) and a == b


def _are_numbers(a: Any, b: Any) -> bool:
    return isinstance(a, int | float) and isinstance(b, int | float)


def compare_subset(expected: Any, actual: Any) -> Mismatch | None:
    """Return the first mismatch: what is expected must be there, objects may have more members, arrays not
    fewer items."""
    todo: list[tuple[str, Any, Any]] = [("$", expected, actual)]
    while todo:
        path, wanted, given = todo.pop()
        if given is ABSENT:
            return Mismatch(path, wanted, ABSENT)
        if isinstance(wanted, dict) and isinstance(given, dict):
            members = cast("dict[str, Any]", wanted)
            found = cast("dict[str, Any]", given)
            todo += [
                (child(path, key), value, found.get(key, ABSENT)) for key, value in reversed(members.items())
            ]
        elif isinstance(wanted, list) and isinstance(given, list):
            items, others = cast("list[Any]", wanted), cast("list[Any]", given)
            todo += [
                (f"{path}[{i}]", items[i], others[i] if i < len(others) else ABSENT)
                for i in reversed(range(len(items)))
            ]
        elif not _equal(wanted, given):
            return Mismatch(path, wanted, given)
    return None


def compare_paths(expected: Any, actual: Any, paths: tuple[str, ...]) -> Mismatch | None:
    """Return the first path at which one side has no value, or both have different ones."""
    for path in paths:
        wanted, given = value_at(expected, path), value_at(actual, path)
        whole = "$" + (path if path.startswith(("[", ".")) else f".{path.removeprefix('$.')}")
        if wanted is ABSENT or given is ABSENT:
            return Mismatch(whole, wanted, given)
        found = compare_subset(wanted, given) or compare_subset(given, wanted)
        if found is not None:
            return Mismatch(whole + found.path[1:], value_at(wanted, found.path), value_at(given, found.path))
    return None


_SEGMENT = re.compile(r"\.?(?:([^.\[\]'\"]+)|\[(\d+)\]|\['([^']*)'\]|\[\"([^\"]*)\"\])")


def value_at(value: Any, path: str) -> Any:
    """Return the value at a path, or ABSENT: `a.b[0]['c']`; `.0` is `[0]`; a leading `$` is ignored."""
    rest = path.strip().removeprefix("$")
    place = 0
    while place < len(rest):
        match = _SEGMENT.match(rest, place)
        if match is None:
            return ABSENT
        place = match.end()
        name, index, single, double = match.groups()
        key = single if single is not None else double if double is not None else name
        if isinstance(value, dict) and index is None:
            value = cast("dict[str, Any]", value).get(key, ABSENT)
        elif isinstance(value, list) and (index is not None or (key is not None and key.isdigit())):
            at = int(index if index is not None else key)
            items = cast("list[Any]", value)
            value = items[at] if at < len(items) else ABSENT
        else:
            return ABSENT
        if value is ABSENT:
            return ABSENT
    return value


def child(path: str, key: str) -> str:
    """Return the path of a member."""
    if re.fullmatch(r"[A-Za-z_][\w-]*", key):
        return f"{path}.{key}"
    escaped = key.replace("'", "\\'")
    return f"{path}['{escaped}']"


_NODE = re.compile(r"\$\.(?:outputs|steps|nodes|node_outputs)(?:\.([A-Za-z_][\w-]*)|\['((?:[^'\\]|\\')*)'\])")


def node_at(path: str) -> str | None:
    """Return the id of the node whose output lies at a path of an output object, or None."""
    match = _NODE.match(path)
    return None if match is None else match[1] or match[2]
