"""Warnings about expressions that parse and refer to what is there, but cannot mean what they say.

    W_COMPARE_VALUE    a value outside the enum (or const) of the schema: `intent == 'Refund'`
    W_COMPARE_TYPE     types that are never equal, or have no order: `score > "3"`
    W_IF_CONSTANT      a condition that is true, or false, in every run
    W_NOT_EXPRESSION   a reference outside `${{ }}`, which stays text: `{{ inputs.x }}`, `${ inputs.x }`

Careful as `static_types`: where a schema leaves anything open, nothing is said. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, cast

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.expressions.nodes import Compare, Lit, Logic, Node, Not, Path, unparse
from agentflow.definition.report import shown
from agentflow.definition.static_types import RootSchemas, schema_of, value_types

__all__ = ["Lint", "TextReference", "lint_comparison", "lint_condition", "text_references"]

_SHOWN_VALUES = 6
_ORDERED = frozenset({"number", "string"})
_NULL = frozenset({"null"})


class Lint(NamedTuple):
    """A warning at an offset of an expression's source."""

    code: str
    message: str
    offset: int
    hint: str | None


class TextReference(NamedTuple):
    """A reference in a text that is no expression: where it stands, its path, and how to write it."""

    offset: int
    root: str
    name: str
    written: str
    is_bare: bool
    hint: str


def lint_comparison(node: Compare, roots: RootSchemas) -> Lint | None:
    """Return what is wrong with a comparison of two operands, or None."""
    if len(node.rest) != 1:
        return None  # the result of the first comparison is compared further
    operator, right, offset = node.rest[0]
    left = node.first
    equality = operator in ("==", "!=", "===", "!==")
    if equality:
        for value, other in ((right, left), (left, right)):
            lint = _outside_values(value, other, roots)
            if lint is not None:
                return lint
    types = value_types(left, roots), value_types(right, roots)
    if types[0] is None or types[1] is None:
        return None
    known = types[0] - _NULL, types[1] - _NULL
    if not known[0] or not known[1]:
        return None
    common = known[0] & known[1]
    if common & _ORDERED or (equality and common):
        return None
    literal = right if isinstance(right, Lit) else left if isinstance(left, Lit) else None
    names = _listed(known[0]), _listed(known[1])
    outcome = f'which are never equal with "{operator}"' if equality else "which fails the step"
    return Lint(
        "W_COMPARE_TYPE",
        f"{names[0]} is compared with {names[1]}, {outcome}",
        literal.offset if literal is not None else offset,
        _other_spelling(literal, known[1] if literal is left else known[0]),
    )


def _outside_values(literal: Node, other: Node, roots: RootSchemas) -> Lint | None:
    """Return the lint for a literal that a path, by the enum or const of its schema, never has."""
    if not isinstance(literal, Lit) or literal.value is None or not isinstance(other, Path):
        return None
    schema = schema_of(other, roots)
    if not isinstance(schema, dict):
        return None
    level = cast("dict[str, Any]", schema)
    values: Any = [level["const"]] if "const" in level else level.get("enum")
    if not isinstance(values, list) or not values:
        return None
    allowed = cast("list[Any]", values)
    if any(_is_equal(literal.value, value) for value in allowed):
        return None
    words = [value for value in allowed if isinstance(value, str)]
    near = did_you_mean(literal.value, words) if isinstance(literal.value, str) and words else None
    listed = ", ".join(shown(str(value), 30) for value in allowed[:_SHOWN_VALUES])
    more = ", …" if len(allowed) > _SHOWN_VALUES else ""
    message = f"{shown(unparse(other))} is never {shown(unparse(literal))}"
    return Lint("W_COMPARE_VALUE", message, literal.offset, near or f"it is one of {listed}{more}")


def _is_equal(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _listed(types: Collection[str]) -> str:
    return " or ".join(sorted(types))


def _other_spelling(literal: Lit | None, wanted: Collection[str]) -> str | None:
    """Return the hint that writes a literal as the type of what it is compared with."""
    if literal is None:
        return "compare values of one type"
    value = literal.value
    if isinstance(value, str):
        bare = value.strip()
        if "number" in wanted and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", bare):
            return f"write {bare} without quotes"
        if "boolean" in wanted and bare.lower() in ("true", "false"):
            return f"write {bare.lower()} without quotes"
        return f"compare with a value of type {_listed(wanted)}"
    if "string" in wanted:
        return f"write '{unparse(literal)}' in quotes"
    return f"compare with a value of type {_listed(wanted)}"


def lint_condition(tree: Node) -> Lint | None:
    """Return the lint for a condition with the same truth in every run. A literal string is W_IF_STRING."""
    if isinstance(tree, Lit) and isinstance(tree.value, str):
        return None
    truth = _truth(tree)
    if truth is None:
        return None
    hint = "leave it out" if truth else "take the step away, or compare with an input"
    return Lint("W_IF_CONSTANT", f"the condition is always {str(truth).lower()}", 0, hint)


def _truth(node: Node) -> bool | None:
    match node:
        case Lit():
            return bool(node.value)
        case Not():
            inner = _truth(node.operand)
            return None if inner is None else not inner
        case Logic():
            decisive = node.operator == "||"
            found = {_truth(operand) for operand in node.operands}
            if decisive in found:
                return decisive
            return None if None in found else not decisive
        case Compare(first=Lit(value=a), rest=((operator, Lit(value=b), _),)) if operator[0] in "=!":
            return _is_equal(a, b) == (operator[0] == "=")
        case _:
            return None


_ROOTS = r"(?P<root>steps|inputs|item)"
_PATH = r"(?P<path>(?:\.[A-Za-z_0-9*][\w-]*|\[[^\]\n]{1,80}\])+)"
_EXPRESSION = re.compile(r"\$\{\{(?:'[^']*'|\"[^\"]*\"|[^'\"}]|\}(?!\}))*\}\}")


_REFERENCE = re.compile(
    r"(?P<open>(?:\$\{|\$\(|%\{|\{\{|<%=?|\{)[ \t]*)?"
    rf"(?<![\w.$/-]){_ROOTS}{_PATH}(?P<close>[ \t]*(?:\}}\}}?|\)|%>))?"
)


def text_references(text: str) -> Iterator[TextReference]:
    """Yield the references of a template outside `${{ }}`: in braces of another kind, or in none."""
    if "inputs" not in text and "steps" not in text and "item" not in text:
        return
    masked = _EXPRESSION.sub(lambda match: " " * len(match[0]), text) if "${{" in text else text
    for match in _REFERENCE.finditer(masked):
        path = match["path"].rstrip(".")
        name = re.match(r"\.([\w-]+)|\[['\"]?([^\]'\"]+)", path)
        if name is None:
            continue
        opening = match["open"] or ""
        written = f"{match['root']}{path}"
        yield TextReference(
            match.start(),
            match["root"],
            name[1] or name[2],
            shown(match[0].strip(), 60),
            not opening,
            f"write ${{{{ {shown(written, 60)} }}}}",
        )
