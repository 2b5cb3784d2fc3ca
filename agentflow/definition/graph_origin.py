"""Where a graph that was written as a document comes from (`ir/v0`, node YAML): values with places.

The graph has nearly the form of the document. What was moved or renamed is entered under its pointer; what
stands below is found by walking on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from agentflow.definition.origin import ExpressionLimits, Origin, Written
from agentflow.definition.report import NOWHERE
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Array, Node, Object, Place, Scalar, child_pointer, split_pointer
from agentflow.definition.structure import Found

__all__ = ["GraphOrigin"]


class GraphOrigin(Origin):
    """The origin of a graph document.

    `refused` are pointers of values that were reported as wrong and replaced, `unsure` those of nodes whose
    ways cannot be judged for that reason: nothing more is told of either. `has_gaps`: ways of the document
    were reported as wrong and left out, so that no way of any node can be judged.
    """

    counts = False
    limits = ExpressionLimits()

    def __init__(self, source: Source | None = None) -> None:
        self.refused: set[str] = set()
        self.unsure: set[str] = set()
        self.has_gaps = False
        self.hidden: frozenset[str] = frozenset()
        self.excused: set[str] = set()
        self._source = source
        self._found: dict[str, Found] = {}

    @property
    def is_damaged(self) -> bool:
        """True if a part of the graph is missing: then its ways are not judged."""
        return self.has_gaps or bool(self.refused or self.unsure)

    def enter(self, pointer: str, found: Found) -> None:
        """Tell where the value at a pointer of the graph stands."""
        self._found[pointer] = found

    def find(self, pointer: str) -> tuple[Place, str] | None:
        if pointer in self.unsure or self._is_refused(pointer):
            return None
        if self.has_gaps and _WHOLE_NODE.search(pointer):
            return None
        found, rest = self._nearest(pointer)
        if found is None:
            return NOWHERE, pointer
        node, place, path = found.node, found.place, found.pointer
        for token in split_pointer(rest):
            member = _member(node, token)
            if member is None:
                return (found.key if node is found.node else place), path
            node, path = member, child_pointer(path, token)
            place = node.line, node.column
        return place, path

    def strings(self, pointer: str, value: Any) -> Iterator[Written]:
        if self._is_refused(pointer):
            return
        if isinstance(value, str):
            yield self._written(pointer, value)
        elif isinstance(value, list | tuple):
            for i, item in enumerate(cast("list[Any]", value)):
                yield from self.strings(f"{pointer}/{i}", item)
        elif isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                yield from self.strings(child_pointer(pointer, key), item)

    def is_excused(self, name: str, known: Any) -> bool:
        return name in self.excused

    def is_unsure(self, pointer: str) -> bool:
        return pointer in self.unsure

    def _written(self, pointer: str, text: str) -> Written:
        found, rest = self._nearest(pointer)
        node: Node | None = found.node if found is not None else None
        path = found.pointer if found is not None else pointer
        for token in split_pointer(rest):
            node = _member(node, token) if node is not None else None
            path = child_pointer(path, token)
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            return Written(text, path)
        start = node.value.find(text)
        if start < 0:
            return Written(text, path)
        return Written(text, path, self._source, node, start)

    def _nearest(self, pointer: str) -> tuple[Found | None, str]:
        above = pointer
        while above not in self._found:
            if not above:
                return None, pointer
            above = above.rpartition("/")[0]
        return self._found[above], pointer[len(above) :]

    def _is_refused(self, pointer: str) -> bool:
        if not self.refused:
            return False
        while pointer and pointer not in self.refused:
            pointer = pointer.rpartition("/")[0]
        return bool(pointer)


_WHOLE_NODE = re.compile(r"/nodes/[0-9]+$")


def _member(node: Node, token: str) -> Node | None:
    if isinstance(node, Object):
        member = node.members.get(token)
        return member.node if member else None
    if isinstance(node, Array) and token.isdigit() and int(token[:7]) < len(node.items):
        return node.items[int(token)]
    return None
