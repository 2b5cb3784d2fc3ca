"""The tree of a document that was read: plain JSON values that remember where they stand.

Lines and columns count from 1 in code points. A value that came from a Python object has neither
(both None). Trees are finite (no recursion), but a node may be shared by several parents (YAML aliases).
Nothing here knows what a workflow is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

__all__ = [
    "Array",
    "Member",
    "Node",
    "Object",
    "Place",
    "Positions",
    "Scalar",
    "child_pointer",
    "json_type",
    "pointer_of",
    "split_pointer",
    "to_value",
]

Place = tuple[int | None, int | None]
Style = Literal["plain", "single", "double", "literal", "folded", "refused"]


class Scalar(msgspec.Struct, frozen=True):
    """A string, number, boolean or null. `index` is where its text begins in the source.

    The style `refused` stands for a value that was reported already and should be looked at no further.
    """

    value: str | int | float | bool | None
    line: int | None = None
    column: int | None = None
    index: int | None = None
    style: Style = "plain"


class Array(msgspec.Struct, frozen=True):
    """A JSON array."""

    items: list[Node]
    line: int | None = None
    column: int | None = None


class Member(msgspec.Struct, frozen=True):
    """A key of an object with its place, and its value."""

    node: Node
    line: int | None = None
    column: int | None = None


class Object(msgspec.Struct, frozen=True):
    """A JSON object. Keys keep the order of the source."""

    members: dict[str, Member] = {}
    line: int | None = None
    column: int | None = None


Node = Scalar | Array | Object


def to_value(node: Node) -> Any:
    """Return the plain JSON value of a node."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Array):
        return [to_value(item) for item in node.items]
    return {key: to_value(member.node) for key, member in node.members.items()}


def json_type(node: Node) -> str:
    """Return the JSON type of a node, in the words of messages: `a string`, `an array`, `null` …"""
    if isinstance(node, Array):
        return "an array"
    if isinstance(node, Object):
        return "an object"
    value = node.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    return "a string" if isinstance(value, str) else "a number"


def child_pointer(pointer: str, key: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of a member or element below `pointer`."""
    if isinstance(key, int):
        return f"{pointer}/{key}"
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def pointer_of(path: list[str | int]) -> str:
    """Return the JSON pointer of a list of keys and indexes."""
    pointer = ""
    for key in path:
        pointer = child_pointer(pointer, key)
    return pointer


def split_pointer(pointer: str) -> Iterator[str]:
    """Return the reference tokens of a JSON pointer, unescaped."""
    return (token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


class Positions:
    """Where the values of a document stand: JSON pointer → (line, column)."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def at(self, pointer: str) -> Place:
        """Return the place of the value at `pointer`, or of its nearest ancestor that exists."""
        node = self._root
        for token in split_pointer(pointer):
            child = _child(node, token)
            if child is None:
                break
            node = child
        return node.line, node.column

    def find(self, pointer: str) -> tuple[Place, str]:
        """Return the place of what binding names by this pointer, and its pointer in the source."""
        return self.at(pointer), pointer

    def key_at(self, pointer: str) -> Place:
        """Return the place of the key of the member at `pointer`; of an array element, its first token."""
        parent, _, token = pointer.rpartition("/")
        node = self._root
        for step in split_pointer(parent):
            child = _child(node, step)
            if child is None:
                return node.line, node.column
            node = child
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Object) and pointer and name in node.members:
            member = node.members[name]
            return member.line, member.column
        return self.at(pointer)


def _child(node: Node, token: str) -> Node | None:
    if isinstance(node, Object):
        member = node.members.get(token)
        return member.node if member else None
    if isinstance(node, Array) and token.isdigit() and int(token[:7]) < len(node.items):
        return node.items[int(token)]
    return None
