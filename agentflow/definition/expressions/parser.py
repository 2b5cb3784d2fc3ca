"""From the text of an expression to its tree (page 001 §6.2), with every static check of §6.5.

Precedence climbing over the tokens; chains of one operator are read in a loop. The Python stack grows
with the nesting alone, which is limited to 50. Unknown names, unknown functions and wrong numbers of
arguments are collected, since the text still parses; the first syntax error ends the reading.
"""

from __future__ import annotations

from collections.abc import Collection
from sys import intern
from typing import Final, NoReturn

from agentflow.definition.expressions import problems
from agentflow.definition.expressions import tokens as t
from agentflow.definition.expressions.errors import ExpressionError
from agentflow.definition.expressions.nodes import (
    Call,
    Compare,
    Index,
    Lit,
    Logic,
    Member,
    Node,
    Not,
    Path,
    Segment,
    Star,
)
from agentflow.definition.expressions.problems import LITERALS
from agentflow.definition.expressions.signatures import SIGNATURES, STATUS_FUNCTIONS, Signature

__all__ = ["DEFAULT_ROOTS", "MAX_ARGUMENTS", "MAX_NESTING", "MAX_SOURCE", "Parser"]

MAX_SOURCE: Final = 21_000
MAX_NESTING: Final = 50
MAX_ARGUMENTS: Final = 255
_MAX_ERRORS: Final = 200  # as many as a document reports
DEFAULT_ROOTS: Final = ("steps", "inputs", "item", "index")

_LEVELS: Final = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "===": 3,
    "!=": 3,
    "!==": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
}


class Parser:
    """One reading of `text[start:end]`. `parse` gives the tree or raises ExpressionError."""

    def __init__(
        self,
        text: str,
        start: int,
        end: int,
        roots: Collection[str] = DEFAULT_ROOTS,
        functions: Collection[str] | None = None,
    ) -> None:
        if end - start > MAX_SOURCE:
            raise ExpressionError(
                "E_EXPR_LIMIT", f"expression is longer than {MAX_SOURCE:,} characters", start
            )
        while end > start and text[end - 1] in " \t\r\n":
            end -= 1
        self.roots_used: set[str] = set()
        self.status_used: set[str] = set()
        self._roots = roots
        self._functions = functions
        self._tokens = t.tokenize(text, start, end)
        self._position = 0
        self._nesting = 0
        self._errors: list[ExpressionError] = []

    @property
    def operations(self) -> int:
        """What one evaluation costs before it looks at any value: its words, run or not."""
        return len(self._tokens) - 1

    def parse(self) -> Node:
        """Parse the whole text; return its tree."""
        if len(self._tokens) == 1:
            raise ExpressionError("E_EXPR_SYNTAX", "expression is empty", self._tokens[0][2])
        node = self._expression(1)
        if self._tokens[self._position][0] != t.END:
            self._unexpected()
        if self._errors:
            first = self._errors[0]
            first.also = tuple(self._errors[1:])
            raise first
        return node

    def _expression(self, lowest: int) -> Node:
        """Parse operands joined by operators that bind at least as tightly as `lowest`."""
        left = self._operand()
        tokens = self._tokens
        while True:
            _, operator, offset = tokens[self._position]
            level = _LEVELS.get(operator)
            if level is None or level < lowest:
                return left
            if level <= 2:
                operands = [left]
                chain = operator
                while tokens[self._position][1] == chain:
                    self._position += 1
                    operands.append(self._expression(level + 1))
                left = Logic(chain, tuple(operands), offset)  # pyright: ignore[reportArgumentType]
                continue
            rest: list[tuple[str, Node, int]] = []
            while _LEVELS.get(operator) == level:
                self._position += 1
                rest.append((operator, self._expression(level + 1), offset))
                _, operator, offset = tokens[self._position]
            left = Compare(left, tuple(rest), rest[0][2])

    def _operand(self) -> Node:
        kind, text, offset = self._tokens[self._position]
        if kind == t.PATH:
            return self._named(text, offset)
        if kind == t.SINGLE or kind == t.DOUBLE:
            self._position += 1
            return Lit(t.decode_string(kind, text, offset), offset)
        if kind == t.NUMBER:
            self._position += 1
            return Lit(t.decode_number(text, offset), offset)
        if text == "!" and kind == t.OPERATOR:
            self._enter(offset)
            self._position += 1
            operand = self._operand()
            self._nesting -= 1
            return Not(operand, offset)
        if text == "(" and kind == t.OPERATOR:
            return self._group(offset)
        return self._unexpected()

    def _named(self, text: str, offset: int) -> Node:
        """Parse a root with its path, a call, or a literal word."""
        self._position += 1
        _, following, following_offset = self._tokens[self._position]
        segments: list[Segment] = []
        if "." in text:
            segments = t.split_path(text, offset, 1)
            name = text[: len(text) if not segments else text.index(".")].rstrip(" \t\r\n")
            if name in LITERALS:
                dot = offset + text.index(".")
                raise ExpressionError("E_EXPR_SYNTAX", 'unexpected "."', dot, f"{name} has no members")
        else:
            name = text
            if following == "(":
                return self._call(name, offset, following_offset)
            if name in LITERALS:
                return Lit(LITERALS[name], offset)
        if name in self._roots:
            self.roots_used.add(name)
        else:
            self._unknown_name(name, offset)
        if following == "[" or self._tokens[self._position][0] == t.TAIL:
            self._segments(segments)
        return Path(intern(name), tuple(segments), offset)

    def _group(self, offset: int) -> Node:
        self._enter(offset)
        self._position += 1
        inner = self._expression(1)
        self._expect(")")
        self._nesting -= 1
        segments: list[Segment] = []
        self._segments(segments)
        if not segments:
            return inner
        # Parentheses matter to a path only where they end a projection.
        if isinstance(inner, Path) and not any(isinstance(segment, Star) for segment in inner.segments):
            return Path(inner.base, inner.segments + tuple(segments), inner.offset)
        return Path(inner, tuple(segments), offset)

    def _call(self, written: str, offset: int, opening: int) -> Node:
        self._enter(opening)
        self._position += 1
        arguments = self._arguments()
        self._nesting -= 1
        signature = SIGNATURES.get(written.lower())
        if signature is None or not self._allowed(signature):
            self._unknown_function(written, offset)
            self._segments([])
            return Lit(None, offset)
        if not signature.accepts(len(arguments)):
            self._errors.append(
                ExpressionError(
                    "E_EXPR_ARITY",
                    f"{signature.name} takes {signature.arity}, got {len(arguments)}",
                    offset,
                    length=len(written),
                )
            )
        if signature.name in STATUS_FUNCTIONS:
            self.status_used.add(signature.name)
        call = Call(signature.name, arguments, offset)
        segments: list[Segment] = []
        self._segments(segments)
        return Path(call, tuple(segments), offset) if segments else call

    def _arguments(self) -> tuple[Node, ...]:
        if self._tokens[self._position][1] == ")":
            self._position += 1
            return ()
        arguments: list[Node] = []
        while True:
            if len(arguments) == MAX_ARGUMENTS:
                offset = self._tokens[self._position][2]
                raise ExpressionError(
                    "E_EXPR_LIMIT", f"a call has more than {MAX_ARGUMENTS} arguments", offset
                )
            arguments.append(self._expression(1))
            if self._tokens[self._position][1] != ",":
                self._expect(")")
                return tuple(arguments)
            self._position += 1

    def _segments(self, segments: list[Segment]) -> None:
        """Read `.name`, `.0`, `.*`, `[expr]` and `[*]` as long as they follow each other."""
        while True:
            kind, text, offset = self._tokens[self._position]
            if kind == t.TAIL:
                self._position += 1
                segments.extend(t.split_path(text, offset, 0))
            elif text == "[":
                segments.append(self._bracket(offset))
            else:
                return

    def _bracket(self, offset: int) -> Segment:
        self._enter(offset)
        self._position += 1
        _, text, inner = self._tokens[self._position]
        if text == "*":
            self._position += 1
            segment: Segment = Star(inner)
        else:
            key = self._expression(1)
            literal = isinstance(key, Lit) and isinstance(key.value, str)
            segment = Member(key.value, inner) if literal else Index(key, inner)  # pyright: ignore
        self._expect("]")
        self._nesting -= 1
        return segment

    def _enter(self, offset: int) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise ExpressionError("E_EXPR_LIMIT", f"expression is nested deeper than {MAX_NESTING}", offset)

    def _expect(self, closing: str) -> None:
        if self._tokens[self._position][1] != closing:
            self._unexpected(closing)
        self._position += 1

    def _allowed(self, signature: Signature) -> bool:
        return (
            self._functions is None or signature.name in self._functions or signature.name in STATUS_FUNCTIONS
        )

    def _unexpected(self, wanted: str | None = None) -> NoReturn:
        before = self._tokens[self._position - 1] if self._position else None
        raise problems.unexpected(self._tokens[self._position], before, wanted)

    def _unknown_name(self, name: str, offset: int) -> None:
        if len(self._errors) < _MAX_ERRORS:
            self._errors.append(problems.unknown_name(name, offset, (*self._roots, *LITERALS)))

    def _unknown_function(self, name: str, offset: int) -> None:
        known = [signature.name for signature in SIGNATURES.values() if self._allowed(signature)]
        if len(self._errors) < _MAX_ERRORS:
            self._errors.append(problems.unknown_function(name, offset, known))
