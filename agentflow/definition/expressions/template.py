"""Templates: JSON values with `${{ }}` in their strings (page 001 §6.4).

A string that is one expression gives its value, any other string with expressions gives text. Inserted
values are data: they are never read for `${{` again. Mapping keys are never templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from sys import intern
from typing import Any, Final, cast

from agentflow.definition.expressions.errors import EvaluationError, ExpressionError, Fault
from agentflow.definition.expressions.expression import MAX_OPERATIONS, Expression, find_closing, parse
from agentflow.definition.expressions.run import Run, StatusView
from agentflow.definition.expressions.values import MAX_RESULT, SMALL_INT, bounded_text, check_size

__all__ = ["Placed", "Template", "compile_template", "escape_braces"]

# Path (a JSON pointer into the template), offset of the expression's source in that string, expression.
Placed = tuple[str, int, Expression]

# What all expressions of one template may use together, as a multiple of what one may: 1,600,000
# operations and 16 MiB, which is also the size of the largest event.
_SHARE: Final = 16
_MAX_DEPTH: Final = 128
_INT_SIZE: Final = 32  # bytes that no small integer has
_MAX_ERRORS: Final = 200  # as many as a document reports
_SPACES: Final = " \t\r\n"
_MAX_READS: Final = 64
_SMALL_TEXT: Final = 10_000  # 64 of them are far below what a template may make
_LITERAL_BRACES: Final = "${{ '{{' }}"


class _Budget(Run):
    """What is left for one evaluation of one template; the meter of one expression of it at a time."""

    __slots__ = ("operations", "size")

    def __init__(self, scope: Mapping[str, Any], status: StatusView | None) -> None:
        self.scope = scope
        self.status = status
        self.room = None
        self.left = 0
        self.operations = MAX_OPERATIONS * _SHARE
        self.size = MAX_RESULT * _SHARE

    def evaluate(self, path: str, expression: Expression) -> Any:
        before = self.left = self.operations if self.operations < MAX_OPERATIONS else MAX_OPERATIONS
        try:
            value = expression.evaluate_within(self)
        except EvaluationError as error:
            error.path = path
            raise
        self.operations -= before - self.left
        return value

    def take(self, size: int) -> None:
        self.size -= size
        if self.size < 0:
            raise Fault("limit", f"template makes more than {MAX_RESULT * _SHARE:,} bytes of JSON")


Build = Callable[[_Budget], Any]


class Template:
    """A compiled template. Immutable; may be evaluated any number of times.

    `is_constant`: it holds no expression, and its value is the value it was made from. `expressions`:
    every expression with its place, in the order of the value.
    """

    def __init__(self, value: Any, build: Build | None, expressions: tuple[Placed, ...]) -> None:
        self.value = value
        self.expressions = expressions
        self._build = build

    def evaluate(self, scope: Mapping[str, Any], status: StatusView | None = None) -> Any:
        """Return the value on these roots. Parts without an expression, and values from `scope`, are shared,
        not copied: do not change them. Raises EvaluationError, whose `path` is the place in the template."""
        build = self._build
        if isinstance(build, _Reading):
            made = build.read(scope)
            if made is not None:
                return made
        return self.value if build is None else build(_Budget(scope, status))


def compile_template(
    value: Any,
    *,
    braces: Collection[str] = ("${{",),
    text: bool = False,
    roots: Collection[str] | None = None,
    functions: Collection[str] | None = None,
    errors: list[ExpressionError] | None = None,
) -> Template:
    """Return the template of a JSON value.

    `braces`: what opens an expression, `${{` and perhaps `{{`. `text`: a string that is one expression
    gives the text of its value too. `roots`, `functions`: as for `parse`. Raises the first
    ExpressionError, with `path` and the offset in that string; given a list `errors`, appends all of them
    (200 at most) and goes on; the template must not be evaluated then.
    """
    found: list[ExpressionError] = []
    compiler = _Compiler("{{" in braces, text, roots, functions, found)
    build = compiler.compile(value, "", 0)
    if found and errors is None:
        raise found[0]
    if errors is not None:
        errors.extend(found)
    return Template(value, build, tuple(compiler.expressions))


class _Compiler:
    def __init__(
        self,
        both: bool,
        text: bool,
        roots: Collection[str] | None,
        functions: Collection[str] | None,
        errors: list[ExpressionError],
    ) -> None:
        self.expressions: list[Placed] = []
        self._opening = _BOTH if both else _DOLLAR
        self._text = text
        self._roots = roots
        self._functions = functions
        self._errors = errors

    def compile(self, value: Any, path: str, depth: int) -> Build | None:
        """Return what builds the value, or None for a constant."""
        if isinstance(value, str):
            return self._string(value, intern(path))
        if not isinstance(value, Mapping | list | tuple):
            return None
        if depth > _MAX_DEPTH:
            message = f"value is nested deeper than {_MAX_DEPTH}"
            self._errors.append(ExpressionError("E_EXPR_LIMIT", message, 0).shifted(0, path))
            return None
        if isinstance(value, Mapping):
            mapping = cast("Mapping[str, Any]", value)
            members: dict[str, Build] = {}
            first = len(self.expressions)
            for name, member in mapping.items():
                build = self.compile(member, f"{path}/{_escape(name)}", depth + 1)
                if build is not None:
                    members[name] = build
            if not members:
                return None
            reads = _plain_reads(members, path, self.expressions[first:])
            return _object(mapping, members) if reads is None else _Reading(mapping, reads)
        array = cast("list[Any]", value)
        elements: dict[int, Build] = {}
        for index, element in enumerate(array):
            build = self.compile(element, f"{path}/{index}", depth + 1)
            if build is not None:
                elements[index] = build
        return _array(array, elements) if elements else None

    def _string(self, string: str, path: str) -> Build | None:
        if "{{" not in string:
            return None
        pieces: list[str | Expression] = []
        end = 0
        while True:
            match = self._opening.search(string, end)
            if match is None or len(self._errors) >= _MAX_ERRORS:
                break
            opening, start = match.span()
            try:
                closing = find_closing(string, opening, start)
            except ExpressionError as error:
                self._errors.append(error.shifted(0, path))
                return None
            if opening > end:
                pieces.append(string[end:opening])
            inner = string[start:closing]
            start += len(inner) - len(inner.lstrip(_SPACES))
            end = closing + 2
            try:
                expression = parse(inner.strip(_SPACES), roots=self._roots, functions=self._functions)
            except ExpressionError as error:
                self._errors.append(error.shifted(start, path))
                continue
            pieces.append(expression)
            self.expressions.append((path, start, expression))
        if end == 0:
            return None
        if end < len(string):
            pieces.append(string[end:])
        alone = [piece for piece in pieces if not isinstance(piece, str) or piece.strip(_SPACES)]
        if len(alone) == 1 and isinstance(alone[0], Expression):
            return _text_of(alone, path) if self._text else _value_of(alone[0], path)
        return _text_of(pieces, path)


_DOLLAR = re.compile(r"\$\{\{")
_BOTH = re.compile(r"\$?\{\{")


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _object(mapping: Mapping[str, Any], members: dict[str, Build]) -> Build:
    def build(budget: _Budget) -> Any:
        made = dict(mapping)
        for name, member in members.items():
            made[name] = member(budget)
        return made

    return build


_Reads = tuple[tuple[str, str, tuple[str, ...], str, Expression], ...]
"""Of members: the name, the root and the names below it that it reads, its place and its expression."""


def _plain_reads(members: Mapping[str, Build], path: str, placed: list[Placed]) -> _Reads | None:
    """Return what the members of a mapping read if each is one path of names, and they are few."""
    if len(placed) != len(members) or len(members) > _MAX_READS:
        return None
    reads: list[tuple[str, str, tuple[str, ...], str, Expression]] = []
    for (name, build), (at, _, expression) in zip(members.items(), placed, strict=True):
        names = expression.names
        if names is None or getattr(build, "__name__", "") != "value_of" or at != f"{path}/{_escape(name)}":
            return None
        reads.append((name, names[0], names[1:], at, expression))
    return tuple(reads)


class _Reading:
    """Builds a mapping of which each member is one path of names. Small values are read without a budget,
    which counts all others."""

    __slots__ = ("_mapping", "_reads")

    __name__ = "reading"

    def __init__(self, mapping: Mapping[str, Any], reads: _Reads) -> None:
        self._mapping = mapping
        self._reads = reads

    def __call__(self, budget: _Budget) -> Any:
        made = dict(self._mapping)
        for name, _, _, at, expression in self._reads:
            made[name] = _value_of(expression, at)(budget)
        return made

    def read(self, scope: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the mapping; None if a value is not small."""
        made = dict(self._mapping)
        for name, root, names, _, _ in self._reads:
            value: Any = scope.get(root)
            for member in names:
                if value.__class__ is not dict:
                    return None
                value = value.get(member)
            kind = value.__class__
            if not (
                (kind is int and -SMALL_INT < value < SMALL_INT)
                or kind is bool
                or value is None
                or (kind is str and len(value) < _SMALL_TEXT and value.isascii())
            ):
                return None
            made[name] = value
        return made


def _array(array: list[Any], elements: dict[int, Build]) -> Build:
    def build(budget: _Budget) -> Any:
        made = list(array)
        for index, element in elements.items():
            made[index] = element(budget)
        return made

    return build


def _value_of(expression: Expression, path: str) -> Build:
    def value_of(budget: _Budget) -> Any:
        value = budget.evaluate(path, expression)
        if value.__class__ is int and -SMALL_INT < value < SMALL_INT and budget.size > _INT_SIZE:
            budget.size -= len(str(value))
            return value
        try:
            budget.take(check_size(value))
        except Fault as fault:
            raise EvaluationError(fault.reason, fault.message, 0, expression.source, path) from None
        return value

    return value_of


def _text_of(pieces: list[str | Expression], path: str) -> Build:
    def build(budget: _Budget) -> Any:
        texts: list[str] = []
        left = MAX_RESULT
        source = ""
        try:
            for piece in pieces:
                if isinstance(piece, str):
                    text = piece
                else:
                    source = piece.source
                    text = bounded_text(budget.evaluate(path, piece), left)
                texts.append(text)
                left -= len(text)
                if left < 0:
                    raise Fault("limit", f"text is longer than {MAX_RESULT:,} bytes")
            made = "".join(texts)
            budget.take(check_size(made))
        except Fault as fault:
            raise EvaluationError(fault.reason, fault.message, 0, source, path) from None
        return made

    return build


def escape_braces(text: str) -> str:
    """Return `text`, a template in which only `${{` opens an expression, for a reader to whom `{{` does as
    well.

    A literal `{{` becomes `${{ '{{' }}`; expressions stay as they are. Compiled with both braces, the
    result evaluates to what `text` does with `${{` alone.
    """
    if "{{" not in text:
        return text
    pieces: list[str] = []
    end = 0
    replaced = False
    while (match := _BOTH.search(text, end)) is not None:
        opening, start = match.span()
        pieces.append(text[end:opening])
        if start - opening == 2:
            pieces.append(_LITERAL_BRACES)
            replaced = True
            end = start
            continue
        try:
            end = find_closing(text, opening, start) + 2
        except ExpressionError:
            # An error in both readings, at the same place.
            end = opening
            break
        pieces.append(text[opening:end])
    pieces.append(text[end:])
    if replaced and text.strip(_SPACES) == "{{" and text != "{{":
        # Alone between white space the literal would be read as the whole string: keep the space with it.
        return "${{ '" + text + "' }}"
    return "".join(pieces)
