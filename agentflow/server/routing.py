"""From a path to what stands there: a tree of path segments, asked once a request.

A list of patterns would be tried one after another, which costs more than most answers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Found", "Tree"]

T = TypeVar("T")


class Found(NamedTuple, Generic[T]):
    """What stands at a path, and the names in it as they were sent."""

    value: T
    names: dict[str, str]


class _Node(Generic[T]):
    __slots__ = ("children", "name", "value", "wild")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.wild: _Node[T] | None = None
        self.name = ""  # of the segment that leads to `wild`
        self.value: T | None = None


class Tree(Generic[T]):
    """Paths such as `/workflows/{id}/events`; a segment in braces stands for any that is not empty. A path
    that is written out wins over one with names."""

    def __init__(self, paths: Iterable[tuple[str, T]]) -> None:
        self._root: _Node[T] = _Node()
        for path, value in paths:
            node = self._root
            for segment in path.split("/")[1:]:
                node = self._below(node, segment)
            node.value = value

    @staticmethod
    def _below(node: _Node[T], segment: str) -> _Node[T]:
        if not segment.startswith("{"):
            return node.children.setdefault(segment, _Node())
        if node.wild is None:
            node.wild, node.name = _Node(), segment[1:-1]
        return node.wild

    def find(self, path: str) -> Found[T] | None:
        """Return the route of this path, or None."""
        node = self._root
        names: dict[str, str] = {}
        for segment in path.split("/")[1:]:
            below = node.children.get(segment)
            if below is None and segment:
                below = node.wild
                names[node.name] = segment
            if below is None:
                return None
            node = below
        return None if node.value is None else Found(node.value, names)
