"""Paths: the `*_path` fields of nodes, into the scope, and those of evals, into a value (page 003 §3)."""

from __future__ import annotations

from typing import Any, Final, cast

from agentflow.definition.expressions import Expression, ExpressionError, parse
from agentflow.definition.expressions.nodes import Digits, Index, Lit, Member, Path, Star
from agentflow.definition.expressions.paths import MISSING, lookup

__all__ = ["ABSENT", "ValuePath", "parse_path", "parse_value_path"]

_VALUE: Final = "value"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()
"""In the place of a value that does not exist, which is not null."""


class ValuePath:
    """A path into a value; `text` is its whole form, as `$.a.b[0]`."""

    __slots__ = ("_tree", "text")

    def __init__(self, text: str, tree: Path) -> None:
        self.text = text
        self._tree = tree

    def read(self, value: Any) -> Any:
        """Return what is at the path, or ABSENT."""
        for segment in self._tree.segments:
            match segment:
                case Member():
                    key: Any = segment.name
                case Digits():
                    key = int(segment.text) if isinstance(value, list) else segment.text
                case Index():
                    key = cast("Lit", segment.key).value
                case Star():
                    raise AssertionError("a path names one place")
            value = lookup(value, key)
            if value is MISSING:
                return ABSENT
        return value


def parse_path(text: str, roots: frozenset[str] | None) -> Expression:
    """Return the expression of a path such as `nodes.a.output.rows[0]`; a leading `$.` is ignored.

    Raises ExpressionError, with code E_INVALID_PATH if the text is an expression and no path.
    """
    expression = parse(text.strip().removeprefix("$."), roots=roots)
    _path_of(expression, text, "write it as nodes.a.output")
    return expression


def parse_value_path(text: str) -> ValuePath:
    """Return a path into a value such as `a.b[0]`, `$.a`, `['a b']` or, for the whole value, `$`.

    Raises ExpressionError, as `parse_path` does.
    """
    rest = text.strip().removeprefix("$")
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    tree = _path_of(parse(_VALUE + rest, roots=frozenset({_VALUE})), text, "write it as $.a.b[0]")
    return ValuePath(f"${rest}", tree)


def _path_of(expression: Expression, text: str, hint: str) -> Path:
    tree = expression.tree
    if not isinstance(tree, Path) or not isinstance(tree.base, str):
        raise ExpressionError("E_INVALID_PATH", f'"{text}" is not a path', 0, hint)
    for segment in tree.segments:
        constant = isinstance(segment, Index) and isinstance(segment.key, Lit)
        if not constant and not isinstance(segment, Member | Digits):
            raise ExpressionError(
                "E_INVALID_PATH", f'"{text}" is not a path', segment.offset, "name each member"
            )
    return tree
