"""Expressions as the rest of the product uses them: parse once, look at the references, evaluate often."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from agentflow.definition.expressions import nodes
from agentflow.definition.expressions.compiler import compile_node
from agentflow.definition.expressions.errors import EvaluationError, ExpressionError, Fault
from agentflow.definition.expressions.parser import DEFAULT_ROOTS, Parser
from agentflow.definition.expressions.problems import unclosed
from agentflow.definition.expressions.references import Reference, collect_references
from agentflow.definition.expressions.run import Evaluate, Run, StatusView
from agentflow.definition.expressions.values import SMALL_INT, check_size

__all__ = ["MAX_OPERATIONS", "Expression", "find_closing", "parse", "parse_whole", "unwrapped"]

MAX_OPERATIONS: Final = 100_000

_SMALL_STRING = 100_000
_SETS: dict[frozenset[str], frozenset[str]] = {}
_SPACES = " \t\r\n"
_STRING = r"""'[^']*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+\""""
_CLOSING = re.compile(_STRING + r"""|\}\}|['"]""", re.DOTALL)
_OPENING = re.compile(_STRING + r"|\$\{\{", re.DOTALL)


class Expression:
    """A parsed expression. Immutable; may be evaluated any number of times, in any thread.

    All offsets are code points of `source`. `roots` and `status_functions` name what it uses;
    `references` are its paths, in the order of the text. `tree` is its syntax tree (`unparse` writes it).
    """

    __slots__ = (
        *("_compiled", "_operations", "_references", "_room"),
        *("roots", "source", "status_functions", "tree"),
    )

    def __init__(
        self,
        source: str,
        tree: nodes.Node,
        roots: frozenset[str],
        status_functions: frozenset[str],
        operations: int,
    ) -> None:
        self.source = source
        self.tree = tree
        self.roots = roots
        self.status_functions = status_functions
        self._operations = operations
        self._references: tuple[Reference, ...] | None = None
        self._compiled: Evaluate | None = None
        self._room: int | None = None

    def __repr__(self) -> str:
        return f"Expression({self.source!r})"

    @property
    def references(self) -> tuple[Reference, ...]:
        """Every path from a root, repeated as often as it is written."""
        if self._references is None:
            self._references = collect_references(self.tree)
        return self._references

    @property
    def reference(self) -> Reference | None:
        """The one path that the whole expression is, or None: its type is that of the expression."""
        if isinstance(self.tree, nodes.Path) and isinstance(self.tree.base, str):
            return next(reference for reference in self.references if reference.whole)
        return None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The root and the names of members below it if the whole expression is such a path, else None."""
        tree = self.tree
        if not isinstance(tree, nodes.Path) or not isinstance(tree.base, str):
            return None
        members = tuple(s.name for s in tree.segments if isinstance(s, nodes.Member))
        return (tree.base, *members) if len(members) == len(tree.segments) else None

    def evaluate(self, scope: Mapping[str, Any], status: StatusView | None = None) -> Any:
        """Return the value on these roots; a root that is absent is null. Values are shared with `scope`, not
        copied. `status` answers success(), failure() and cancelled().

        Raises EvaluationError. Never blocks; bounded by 100,000 operations and a result of 1 MiB of JSON.
        """
        return self.evaluate_within(Run(scope, status, MAX_OPERATIONS, self._room))

    def within(self, room: int | None) -> Expression:
        """Return the same expression, which may read values of at most so many bytes of JSON; EvaluationError
        with the reason `scope` beyond them. None: any number."""
        if room is None:
            return self
        bounded = Expression(self.source, self.tree, self.roots, self.status_functions, self._operations)
        bounded._room = room
        return bounded

    def evaluate_within(self, run: Run) -> Any:
        """Return the same as `evaluate`, on a meter that several expressions share."""
        run.left -= self._operations
        function = self._compiled
        if function is None:
            function = self._compiled = compile_node(self.tree, self.source)
        value = function(run)
        if value is True or value is False or value is None:
            return value
        if type(value) is str and len(value) < _SMALL_STRING:
            return value
        if type(value) is int and abs(value) < SMALL_INT:
            return value
        try:
            check_size(value)
        except Fault as fault:
            raise EvaluationError(fault.reason, fault.message, 0, self.source) from None
        return value


def parse(
    source: str, *, roots: Collection[str] | None = None, functions: Collection[str] | None = None
) -> Expression:
    """Return the expression of `source`, which has no `${{ }}` around it.

    `roots`: the names that may begin a path (default steps, inputs, item, index). `functions`: the
    functions that may be called (default all); status functions always parse. Raises ExpressionError.
    """
    return _parse_slice(source, 0, len(source), roots, functions)


def parse_whole(
    text: str,
    *,
    bare: bool,
    roots: Collection[str] | None = None,
    functions: Collection[str] | None = None,
) -> Expression:
    """Return the one expression that `text` is: `${{ expr }}` with at most white space around it, or, if
    `bare`, also the expression alone. Its source is `text`, so that all offsets count in `text`.

    Raises ExpressionError; E_EXPR_WHOLE for anything else around or instead of `${{ }}`.
    """
    begin = len(text) - len(text.lstrip(_SPACES))
    if text.startswith("${{", begin):
        end = find_closing(text, begin, begin + 3)
        if text[end + 2 :].strip(_SPACES):
            raise _not_whole(text, begin)
        return _parse_slice(text, begin + 3, end, roots, functions)
    if begin == len(text):
        raise ExpressionError("E_EXPR_SYNTAX", "expression is empty", begin)
    if not bare or _opens_outside_strings(text):
        raise _not_whole(text, begin)
    return _parse_slice(text, begin, len(text), roots, functions)


def unwrapped(text: str) -> str:
    """Return the expression that a text is without its braces, `${{ }}` or `{{ }}`, and a leading `$.`.

    What does not parse as one expression in braces stays as it is, for the checks to report.
    """
    text = text.strip(_SPACES)
    for opening in ("${{", "{{"):
        if text.startswith(opening):
            try:
                end = find_closing(text, 0, len(opening))
            except ExpressionError:
                return text
            if end + 2 == len(text):
                text = text[len(opening) : end].strip(_SPACES)
            break
    return text.removeprefix("$.")


def find_closing(text: str, opening: int, start: int) -> int:
    """Return where the `}}` stands that closes the expression which begins at `start`; strings are passed
    over.

    Raises ExpressionError E_EXPR_UNCLOSED, at the quote that is never closed, or else at `opening`.
    """
    for match in _CLOSING.finditer(text, start):
        token = match[0]
        if token == "}}":
            return match.start()
        if len(token) == 1:
            raise unclosed(match.start())
    raise unclosed(opening)


def _not_whole(text: str, offset: int) -> ExpressionError:
    shown = text.strip(_SPACES)
    if len(shown) > 60:
        shown = shown[:59] + "…"
    return ExpressionError(
        "E_EXPR_WHOLE", f'"{shown}" is a string', offset, "move it all into ${{ }}", len(text.strip(_SPACES))
    )


def _opens_outside_strings(text: str) -> bool:
    return "${{" in text and any(match[0] == "${{" for match in _OPENING.finditer(text))


def _parse_slice(
    text: str,
    start: int,
    end: int,
    roots: Collection[str] | None,
    functions: Collection[str] | None,
) -> Expression:
    if roots is not None:
        # The roots of a graph, whose paths may begin with `$.` (page 003 §3).
        begin = start + len(text[start:end]) - len(text[start:end].lstrip(_SPACES))
        start = begin + 2 if text.startswith("$.", begin, end) else start
    parser = Parser(text, start, end, DEFAULT_ROOTS if roots is None else roots, functions)
    tree = parser.parse()
    roots_used, status_used = _shared(parser.roots_used), _shared(parser.status_used)
    return Expression(text, tree, roots_used, status_used, parser.operations)


def _shared(names: set[str]) -> frozenset[str]:
    """Return the set as one object for all expressions that use the same names: there are few such sets."""
    found = frozenset(names)
    return _SETS.setdefault(found, found)
