"""The syntax tree of an expression, and its text (`unparse`).

Nodes are plain data: `offset` counts code points of the expression's source. Chains of one operator are
flat, so that a long expression never makes a deep tree: depth is bounded by the nesting limit alone.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

__all__ = [
    "Call",
    "Compare",
    "Digits",
    "Index",
    "Lit",
    "Logic",
    "Member",
    "Node",
    "Not",
    "Path",
    "Segment",
    "Star",
    "unparse",
]


class Member(msgspec.Struct, frozen=True, gc=False):
    """`.name` or `['name']`: a member of an object."""

    name: str
    offset: int


class Digits(msgspec.Struct, frozen=True, gc=False):
    """`.0`: an element of an array, or the member of an object whose key is these digits."""

    text: str
    offset: int


class Star(msgspec.Struct, frozen=True, gc=False):
    """`.*` or `[*]`: projection; what follows applies to each element."""

    offset: int


class Index(msgspec.Struct, frozen=True, gc=False):
    """`[expr]` for anything but a string literal."""

    key: Node
    offset: int


Segment = Member | Digits | Star | Index


class Lit(msgspec.Struct, frozen=True, gc=False):
    """null, true, false, a number or a string."""

    value: Any
    offset: int


class Path(msgspec.Struct, frozen=True, gc=False):
    """A root name, or the value of a parenthesised expression or a call, and what is read from it."""

    base: str | Node
    segments: tuple[Segment, ...]
    offset: int


class Not(msgspec.Struct, frozen=True, gc=False):
    """`!operand`."""

    operand: Node
    offset: int


class Logic(msgspec.Struct, frozen=True, gc=False):
    """`a && b && …` or `a || b || …`."""

    operator: Literal["&&", "||"]
    operands: tuple[Node, ...]
    offset: int


class Compare(msgspec.Struct, frozen=True, gc=False):
    """`first op right op right …`, all of one precedence, from the left. Each has its operator's offset."""

    first: Node
    rest: tuple[tuple[str, Node, int], ...]
    offset: int


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call; `name` is in the language's own spelling."""

    name: str
    arguments: tuple[Node, ...]
    offset: int


Node = Lit | Path | Not | Logic | Compare | Call

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_EQUALITY = frozenset({"==", "!=", "===", "!=="})
# How tightly a node binds; an operand in parentheses is one that binds less tightly than its place needs.
_UNARY = 5


def unparse(node: Node) -> str:
    """Return the text of a tree, in one canonical spelling: parsing it gives an equal tree, offsets apart."""
    return _text(node)


def _level(node: Node) -> int:
    if isinstance(node, Logic):
        return 1 if node.operator == "||" else 2
    if isinstance(node, Compare):
        return 3 if node.rest[0][0] in _EQUALITY else 4
    return _UNARY


def _operand(node: Node, level: int) -> str:
    text = _text(node)
    return f"({text})" if _level(node) <= level else text


def _text(node: Node) -> str:
    """Write a tree as text, in loops: a comprehension takes a frame of the stack for each level of
    nesting."""
    pieces: list[str] = []
    match node:
        case Lit():
            return _literal(node.value)
        case Not():
            return "!" + _operand(node.operand, _UNARY - 1)
        case Logic():
            level = _level(node)
            for operand in node.operands:
                pieces.append(_operand(operand, level))  # noqa: PERF401
            return f" {node.operator} ".join(pieces)
        case Compare():
            level = _level(node)
            pieces.append(_operand(node.first, level))
            for operator, right, _ in node.rest:
                pieces.append(f" {operator} {_operand(right, level)}")
        case Call():
            for argument in node.arguments:
                pieces.append(_text(argument))  # noqa: PERF401
            return f"{node.name}({', '.join(pieces)})"
        case Path():
            pieces.append(_base(node.base))
            for segment in node.segments:
                pieces.append(_segment(segment))  # noqa: PERF401
    return "".join(pieces)


def _base(base: str | Node) -> str:
    if isinstance(base, str):
        return base
    return _text(base) if isinstance(base, Call) else f"({_text(base)})"


def _segment(segment: Segment) -> str:
    match segment:
        case Member():
            name = segment.name
            return f".{name}" if _NAME.fullmatch(name) else f"[{_literal(name)}]"
        case Digits():
            return f".{segment.text}"
        case Star():
            return ".*"
        case Index():
            return f"[{_text(segment.key)}]"


def _literal(value: Any) -> str:
    match value:
        case None:
            return "null"
        case True:
            return "true"
        case False:
            return "false"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            return repr(value)
