"""What is said about a text that is no expression: message, place, and how to write it right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.expressions import tokens as t
from agentflow.definition.expressions.errors import ExpressionError
from agentflow.definition.expressions.signatures import SIGNATURES

__all__ = ["LITERALS", "unclosed", "unexpected", "unknown_function", "unknown_name"]

LITERALS: Final = {"null": None, "true": True, "false": False}

_HINTS: Final = {
    "=": "compare with ==",
    "&": "write &&",
    "and": "write &&",
    "|": "write ||",
    "or": "write ||",
    "in": "write contains(list, value)",
    "?": "write case(condition, then, otherwise)",
    "+": "there is no arithmetic; join texts with format or with several ${{ }}",
    "-": "there is no arithmetic",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic",
    "%": "there is no arithmetic",
    "`": "quote a string with ' or \"",
    "“": "quote a string with ' or \"",
    "”": "quote a string with ' or \"",
    "‘": "quote a string with ' or \"",
    "’": "quote a string with ' or \"",
    "$": "write the name without $",
}


def unclosed(offset: int) -> ExpressionError:
    """Return the error of a `${{`, or a quote, that is never closed; in YAML most often cut off by a
    comment."""
    return ExpressionError("E_EXPR_UNCLOSED", "not closed", offset, 'quote the value, " #" begins a comment')


def unexpected(token: t.Token, before: t.Token | None, wanted: str | None) -> ExpressionError:
    """Return the error of a token that cannot stand here, after `before`; `wanted` is the only one that
    could."""
    kind, text, offset = token
    if kind == t.BAD and text in ("'", '"'):
        return unclosed(offset)
    if kind == t.BAD and len(text) > 1:
        return ExpressionError("E_EXPR_SYNTAX", f'"{_shown(text)}" is not a number', offset, None, len(text))
    if kind == t.END:
        message = "expression ends too early"
    elif kind in (t.SINGLE, t.DOUBLE):
        message = f"unexpected string {_shown(text)}"
    else:
        message = f'unexpected "{_shown(text)}"'
    if wanted is not None:
        message += f', expected "{wanted}"'
    return ExpressionError("E_EXPR_SYNTAX", message, offset, _hint(token, before), max(1, len(text)))


def _hint(token: t.Token, before: t.Token | None) -> str | None:
    kind, text, _ = token
    if kind in (t.SINGLE, t.DOUBLE):
        return None
    if before is not None:
        literal = before[1] in LITERALS or before[0] in (t.SINGLE, t.DOUBLE, t.NUMBER)
        if literal and (kind == t.TAIL or text == "["):
            return "a literal has no members; put it in parentheses to read one"
        if before[1] == "not":
            return "write !"
        if before[1] == "<" and text == ">":
            return "write !="
    if kind == t.NUMBER and text.startswith("-"):
        return "there is no arithmetic"
    return _HINTS.get(text)


def unknown_name(name: str, offset: int, known: Sequence[str]) -> ExpressionError:
    """Return the error of a name that is no root here."""
    function = SIGNATURES.get(name.lower())
    if function is not None:
        hint: str | None = f"write {function.name}({'…' if function.most else ''})"
    elif name == "node_outputs" and "nodes" in known:
        hint = "write nodes.<id>.output"
    else:
        hint = did_you_mean(name, known)
    return ExpressionError("E_EXPR_NAME", f'unknown name "{_shown(name)}"', offset, hint, len(name))


def unknown_function(name: str, offset: int, known: Sequence[str]) -> ExpressionError:
    """Return the error of a name that is no function here."""
    hint = did_you_mean(name, known) or "known: " + ", ".join(known)
    return ExpressionError("E_EXPR_FUNCTION", f'unknown function "{_shown(name)}"', offset, hint, len(name))


def _shown(text: str) -> str:
    if len(text) == 1 and not text.isprintable():
        return f"U+{ord(text):04X}"
    return text if len(text) <= 40 else text[:39] + "…"
