"""Comparison of a result with what was expected: as a subset, or at paths (page 003 §13)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from agentflow.definition.paths import ABSENT, ValuePath

__all__ = ["Mismatch", "compare_paths", "compare_subset", "node_at"]


class Mismatch(NamedTuple):
    """The first place where a result differs, as `$.a.b[0]`, with both values there."""

    path: str
    expected: Any
    actual: Any

    @property
    def reason(self) -> str:
        """Return the difference as a sentence."""
        if self.actual is ABSENT and self.expected is ABSENT:
            return f"{self.path} is absent in the result and in expected_output"
        if self.actual is ABSENT:
            return f"{self.path} is absent in the result, expected {_shown(self.expected)}"
        if self.expected is ABSENT:
            return f"{self.path} is {_shown(self.actual)}, and absent in expected_output"
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


def compare_paths(expected: Any, actual: Any, paths: Iterable[ValuePath]) -> Mismatch | None:
    """Return the first path at which one side has no value, or both have different ones."""
    for path in paths:
        wanted, given = path.read(expected), path.read(actual)
        if wanted is ABSENT or given is ABSENT:
            return Mismatch(path.text, wanted, given)
        if found := compare_subset(wanted, given):
            return Mismatch(path.text + found.path[1:], found.expected, found.actual)
        if found := compare_subset(given, wanted):
            return Mismatch(path.text + found.path[1:], found.actual, found.expected)
    return None


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
