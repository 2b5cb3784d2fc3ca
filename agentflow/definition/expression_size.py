"""How large an expression is, by the limits of its format (page 003 §6)."""

from __future__ import annotations

from agentflow.definition.expressions import Expression
from agentflow.definition.expressions.nodes import Call, Compare, Index, Lit, Logic, Node, Not, Path
from agentflow.definition.origin import ExpressionLimits

__all__ = ["exceeded"]


def exceeded(expression: Expression, limits: ExpressionLimits) -> str | None:
    """Return the limit that an expression passes, as `64 operators`; None if it keeps them all."""
    if len(expression.source.strip()) > limits.characters:
        return f"{limits.characters:,} characters"
    operators = segments = deepest = 0
    todo = [(expression.tree, 1)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        operators += _operators(node)
        if isinstance(node, Path):
            segments = max(segments, len(node.segments))
        todo += [(inner, depth + 1) for inner in _inner(node)]
    if operators > limits.operators:
        return f"{limits.operators} operators"
    if deepest > limits.depth:
        return f"{limits.depth} levels"
    return f"{limits.segments} segments in a path" if segments > limits.segments else None


def _operators(node: Node) -> int:
    match node:
        case Not():
            return 1
        case Logic():
            return len(node.operands) - 1
        case Compare():
            return len(node.rest)
        case _:
            return 0


def _inner(node: Node) -> list[Node]:
    match node:
        case Lit():
            return []
        case Not():
            return [node.operand]
        case Logic():
            return list(node.operands)
        case Compare():
            return [node.first, *(right for _, right, _ in node.rest)]
        case Call():
            return list(node.arguments)
        case Path():
            base = [] if isinstance(node.base, str) else [node.base]
            return base + [segment.key for segment in node.segments if isinstance(segment, Index)]
