"""Rewrites the tree of a document as one of another form: values keep places and old pointers."""

from __future__ import annotations

from typing import Any

from agentflow.definition.source_tree import Array, Member, Node, Object, Scalar, child_pointer
from agentflow.definition.structure import Found

__all__ = ["Parts", "Rewriting", "elements_of", "made", "part_of", "parts_of"]

Parts = dict[str, Found]
"""The members of an object to be: each value with place and pointer in the source, its key with its place."""


def part_of(found: Found, key: str) -> Found | None:
    """Return a member as it stands in the source; None if it is absent."""
    return parts_of(found).get(key)


def parts_of(found: Found) -> Parts:
    """Return the members of an object as they stand in the source, without those for extensions."""
    if not isinstance(found.node, Object):
        return {}
    return {
        key: Found(None, member.node, child_pointer(found.pointer, key), (member.line, member.column))
        for key, member in found.node.members.items()
        if not key.startswith("x-")
    }


def elements_of(found: Found) -> list[Found]:
    """Return the elements of an array as they stand in the source."""
    items = found.node.items if isinstance(found.node, Array) else []
    return [
        Found(None, item, f"{found.pointer}/{i}", (item.line, item.column)) for i, item in enumerate(items)
    ]


def made(value: Any, where: Found) -> Found:
    """Return a value that the source implies; problems with it are told at `where`."""
    scalar = Scalar(value, where.node.line, where.node.column, style="double")
    return Found(value, scalar, where.pointer, where.key)


class Rewriting:
    """Makes objects and arrays of parts. After `finish`, `original` gives the pointer that a value had."""

    def __init__(self) -> None:
        self._inside: dict[int, dict[str, Found]] = {}
        self._kept: list[Node] = []
        self._moved: dict[str, str] = {}

    def object(self, parts: Parts, where: Found) -> Found:
        """Return an object of these members, in the place of `where`."""
        members = {key: Member(part.node, *part.key) for key, part in parts.items()}
        return self._made(Object(members, where.node.line, where.node.column), dict(parts), where)

    def array(self, parts: list[Found], where: Found) -> Found:
        """Return an array of these elements, in the place of `where`."""
        node = Array([part.node for part in parts], where.node.line, where.node.column)
        return self._made(node, {str(i): part for i, part in enumerate(parts)}, where)

    def finish(self, root: Found) -> Object:
        """Return the tree of the new document."""
        self._enter("", root)
        assert isinstance(root.node, Object)
        return root.node

    def original(self, pointer: str) -> str:
        """Return the pointer in the source of a value of the new document."""
        above = pointer
        while above not in self._moved:
            above = above.rpartition("/")[0]
        return self._moved[above] + pointer[len(above) :]

    def _made(self, node: Node, parts: Parts, where: Found) -> Found:
        self._kept.append(node)
        self._inside[id(node)] = parts
        return Found(None, node, where.pointer, where.key)

    def _enter(self, pointer: str, found: Found) -> None:
        self._moved[pointer] = found.pointer
        for key, part in self._inside.get(id(found.node), {}).items():
            self._enter(child_pointer(pointer, key), part)
