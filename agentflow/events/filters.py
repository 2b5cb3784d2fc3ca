"""Choosing events by type: exact names and families such as `tool.*` (page 000 §8.1)."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TypeFilter"]


class TypeFilter:
    """Whether a type is wanted. `*` alone wants every type; ValueError for any other place of a star."""

    __slots__ = ("_exact", "_prefixes")

    def __init__(self, patterns: Iterable[str]) -> None:
        exact: set[str] = set()
        prefixes: list[str] = []
        for pattern in patterns:
            if pattern == "*":
                prefixes.append("")
            elif pattern.endswith(".*") and "*" not in pattern[:-1]:
                prefixes.append(pattern[:-1])
            elif "*" in pattern or not pattern:
                raise ValueError(f"{pattern!r} is not a type: write a name, or a family such as `tool.*`")
            else:
                exact.add(pattern)
        self._exact = frozenset(exact)
        self._prefixes = tuple(prefixes)

    def __call__(self, event_type: str) -> bool:
        return event_type in self._exact or event_type.startswith(self._prefixes)
