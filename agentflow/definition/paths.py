"""The `*_path` fields of nodes: a path into the scope, as an expression (page 003 §3)."""

from __future__ import annotations

from agentflow.definition.expressions import Expression, ExpressionError, parse
from agentflow.definition.expressions.nodes import Digits, Index, Lit, Member, Path

__all__ = ["parse_path"]


def parse_path(text: str, roots: frozenset[str] | None) -> Expression:
    """Return the expression of a path such as `nodes.a.output.rows[0]`; a leading `$.` is ignored.

    Raises ExpressionError, with code E_INVALID_PATH if the text is an expression and no path.
    """
    expression = parse(text.strip().removeprefix("$."), roots=roots)
    tree = expression.tree
    if not isinstance(tree, Path) or not isinstance(tree.base, str):
        raise ExpressionError("E_INVALID_PATH", f'"{text}" is not a path', 0, "write it as nodes.a.output")
    for segment in tree.segments:
        constant = isinstance(segment, Index) and isinstance(segment.key, Lit)
        if not constant and not isinstance(segment, Member | Digits):
            raise ExpressionError(
                "E_INVALID_PATH", f'"{text}" is not a path', segment.offset, "name each member"
            )
    return expression
