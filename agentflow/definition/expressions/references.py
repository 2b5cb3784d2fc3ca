"""What an expression reads: its paths from the roots, for the static checks of the loader (page 001 §6.1)."""

from __future__ import annotations

from typing import Literal

import msgspec

from agentflow.definition.expressions.nodes import (
    Call,
    Compare,
    Digits,
    Index,
    Lit,
    Logic,
    Member,
    Node,
    Not,
    Path,
    Segment,
)

__all__ = ["Reference", "SegmentKind", "collect_references"]

SegmentKind = Literal["root", "member", "digits", "index", "dynamic", "projection"]


class Reference(msgspec.Struct, frozen=True):
    """One path from a root.

    `path[i]` is what segment i reads: the name of the root or member (str), a number (int, from `[0]` or
    `.0`), or None where it is not known before the run. `kinds[i]` says which: `root`; `member` (`.name`,
    `['name']`); `digits` (`.0`, an element, or the member "0" of an object); `index` (`[0]`); `dynamic`
    (`[expr]`, or a literal that can be no key); `projection` (`*`, after which a segment applies to each
    element). `offsets[i]` is where the name, number, `*` or key begins in the source. `optional`: it
    stands in the left operand of `||`. `whole`: the expression is this path and nothing else.
    """

    path: tuple[str | int | None, ...]
    kinds: tuple[SegmentKind, ...]
    offsets: tuple[int, ...]
    optional: bool = False
    whole: bool = False


def collect_references(tree: Node) -> tuple[Reference, ...]:
    """Return all references of a tree, in the order of the text."""
    found: list[Reference] = []
    _collect(tree, False, found)
    if isinstance(tree, Path) and isinstance(tree.base, str):
        outer = next(at for at, reference in enumerate(found) if reference.offsets[0] == tree.offset)
        found[outer] = msgspec.structs.replace(found[outer], whole=True)
    return tuple(sorted(found, key=lambda reference: reference.offsets[0]))


def _collect(node: Node, optional: bool, found: list[Reference]) -> None:
    match node:
        case Lit():
            pass
        case Path():
            if isinstance(node.base, str):
                found.append(_reference(node.base, node.segments, node.offset, optional))
            else:
                _collect(node.base, optional, found)
            for segment in node.segments:
                if isinstance(segment, Index):
                    _collect(segment.key, optional, found)
        case Not():
            _collect(node.operand, optional, found)
        case Logic():
            *left, last = node.operands
            for operand in left:
                _collect(operand, optional or node.operator == "||", found)
            _collect(last, optional, found)
        case Compare():
            _collect(node.first, optional, found)
            for _, operand, _ in node.rest:
                _collect(operand, optional, found)
        case Call():
            for argument in node.arguments:
                _collect(argument, optional, found)


def _reference(root: str, segments: tuple[Segment, ...], offset: int, optional: bool) -> Reference:
    path: list[str | int | None] = [root]
    kinds: list[SegmentKind] = ["root"]
    offsets = [offset]
    for segment in segments:
        name, kind = _described(segment)
        path.append(name)
        kinds.append(kind)
        offsets.append(segment.offset)
    return Reference(tuple(path), tuple(kinds), tuple(offsets), optional)


def _described(segment: Segment) -> tuple[str | int | None, SegmentKind]:
    match segment:
        case Member():
            return segment.name, "member"
        case Digits():
            return int(segment.text), "digits"
        case Index(key=Lit(value=bool())):
            return None, "dynamic"
        case Index(key=Lit(value=int() | float() as number)) if number == int(number):
            return int(number), "index"
        case Index():
            return None, "dynamic"
        case _:
            return None, "projection"
