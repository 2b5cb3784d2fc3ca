"""The inputs of a workflow: declarations, names that references imply, and the values of one run.

Page 001 §1.4 (`inputs`), §2 (undeclared inputs), §3 phase S. A run of an agent list takes any JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.definition.common_checks import breach, check_embedded_schema, checked_schema
from agentflow.definition.ir import InputSpec
from agentflow.definition.nodes import Positions, child_pointer
from agentflow.definition.report import NOWHERE, Report, shown
from agentflow.definition.structure import Found

if TYPE_CHECKING:
    from agentflow.definition.expression_checks import InputUse

__all__ = ["ANY_INPUT", "InputNeeds", "RequiredInput", "check_input_values", "compile_inputs", "input_needs"]


class RequiredInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input that a run must be given, with the first place that uses it (or declares it)."""

    name: str
    line: int | None = None
    column: int | None = None
    path: str | None = None
    used: bool = True


class InputNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of a definition take.

    `named`: the inputs are an object with members of these names (else any JSON). `known` are the names
    declared or referenced; `open`: an expression reads all of them, so that none is superfluous.
    """

    named: bool
    required: tuple[RequiredInput, ...] = ()
    known: tuple[str, ...] = ()
    open: bool = False


ANY_INPUT = InputNeeds(named=False)


def compile_inputs(document: Found, report: Report) -> dict[str, InputSpec] | None:
    """The declared inputs, checked with their defaults; None if there is no `inputs`."""
    declared = document.get("inputs")
    if declared is None:
        return None if not document.has("inputs") else {}
    return {name: _input(name, found, report) for name, found in declared.items()}


def _input(name: str, found: Found, report: Report) -> InputSpec:
    schema = _schema(name, found, report)
    default = found.get("default")
    if default is not None:
        problem = breach(schema, default.value)
        if problem is not None:
            inner, message = problem
            place = Positions(default.node).at(inner)
            message = f'default of input "{name}": {shown(message, 200)}{_at(inner)}'
            report.error("E_INPUT_INVALID", message, place, default.pointer + inner)
    return InputSpec(
        schema=schema,
        required=found.plain("required", default is None),
        has_default=default is not None,
        default=default.value if default else None,
        description=found.plain("description"),
    )


def _schema(name: str, found: Found, report: Report) -> dict[str, Any] | bool:
    schema, short = found.get("schema"), found.get("type")
    if schema is not None and short is not None:
        message = f'input "{name}" has both "schema" and "type"'
        report.error("E_VALUE", message, short.key, short.pointer, hint="move the type into the schema")
    if schema is not None:
        return check_embedded_schema(schema, "E_INPUT_SCHEMA", f'input "{name}": ', report)
    if short is None:
        return True
    return checked_schema({"type": short.value}, found, "E_INPUT_SCHEMA", f'input "{name}": ', report)


def input_needs(
    document: Found, declared: dict[str, InputSpec] | None, uses: list[InputUse], all_used: bool
) -> InputNeeds:
    """The inputs that a step document needs, each with its first place."""
    first: dict[str, InputUse] = {}
    wanted: set[str] = set()
    for use in uses:
        earlier = first.get(use.name)
        if earlier is None or _before(use, earlier):
            first[use.name] = use
        if not use.optional:
            wanted.add(use.name)
    if declared is not None:
        inputs = document.get("inputs")
        required = [
            _needed(name, first.get(name), inputs.get(name) if inputs else None)
            for name, spec in declared.items()
            if spec.required
        ]
        return InputNeeds(named=True, required=tuple(required), known=tuple(declared))
    required = [_needed(use.name, use, None) for use in _first_needed(uses) if use.name in wanted]
    return InputNeeds(named=True, required=tuple(required), known=tuple(first), open=all_used)


def _first_needed(uses: list[InputUse]) -> list[InputUse]:
    """The first use of each name that makes it required, in document order."""
    first: dict[str, InputUse] = {}
    for use in uses:
        if not use.optional and (use.name not in first or _before(use, first[use.name])):
            first[use.name] = use
    return sorted(first.values(), key=lambda use: use.place if use.place[0] else (0, 0))


def _before(use: InputUse, other: InputUse) -> bool:
    if use.place[0] is None or other.place[0] is None:
        return False
    return (use.place[0], use.place[1] or 0) < (other.place[0], other.place[1] or 0)


def _needed(name: str, use: InputUse | None, declaration: Found | None) -> RequiredInput:
    if use is not None:
        return RequiredInput(name=name, line=use.place[0], column=use.place[1], path=use.path)
    line, column = declaration.key if declaration else NOWHERE
    path = declaration.pointer if declaration else None
    return RequiredInput(name=name, line=line, column=column, path=path, used=False)


def check_input_values(
    needs: InputNeeds, declared: dict[str, InputSpec] | None, places: Any, inputs: Any, report: Report
) -> Any:
    """The inputs of one run with defaults filled in; problems (phase S) go to the report.

    `places` gives the place of a declaration: JSON pointer → (line, column).
    """
    problem = _json_problem(inputs)
    if problem is not None:
        report.error("E_INPUT_INVALID", f"input is not JSON: {problem}")
        return inputs
    if not needs.named:
        return inputs
    if inputs is None:
        inputs = {}
    if not isinstance(inputs, Mapping):
        report.error("E_TYPE", "input must be an object with a member for each input")
        return inputs
    values = dict(cast("Mapping[str, Any]", inputs))
    for name, spec in (declared or {}).items():
        _check_one(name, spec, values, places, report)
    for need in needs.required:
        if need.name not in values:
            where = f", used at {need.line}:{need.column}" if need.used and need.line else ""
            message = f'input "{need.name}" is required{where}'
            report.error("E_INPUT_MISSING", message, (need.line, need.column), need.path)
    for name in values:
        if name not in needs.known and not needs.open:
            hint = report.did_you_mean(name, needs.known)
            report.warning("W_INPUT_EXTRA", f'input "{shown(name)}" is not used', hint=hint)
    return values


def _check_one(name: str, spec: InputSpec, values: dict[str, Any], places: Any, report: Report) -> None:
    if name not in values:
        if spec.has_default:
            values[name] = spec.default
        return
    problem = breach(spec.schema, values[name])
    if problem is not None:
        pointer = child_pointer("/inputs", name)
        inner = child_pointer("", name) + problem[0]
        message = f'input "{name}": {shown(problem[1], 200)}, at {shown(inner)}'
        report.error("E_INPUT_INVALID", message, places(pointer), pointer)


def _at(path: str) -> str:
    return f", at {shown(path)}" if path else ""


def _json_problem(value: Any) -> str | None:
    """Why a Python value is no JSON, or None. Does not recurse."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        if depth > _MAX_INPUT_DEPTH:
            return f"nested deeper than {_MAX_INPUT_DEPTH}"
        if isinstance(item, Mapping):
            for key, member in cast("Mapping[Any, Any]", item).items():
                if not isinstance(key, str):
                    return f"key {shown(repr(key))} is not a string"
                todo += [(key, depth), (member, depth + 1)]
        elif isinstance(item, list | tuple):
            todo += [(member, depth + 1) for member in cast("list[Any]", item)]
        elif isinstance(item, str):
            if any("\ud800" <= c <= "\udfff" for c in item) if not item.isascii() else False:
                return "a string holds a lone surrogate"
        elif isinstance(item, float):
            if not math.isfinite(item):
                return f"{item} is no JSON number"
        elif item is not None and not isinstance(item, bool | int):
            return f"{type(item).__name__} is no JSON type"
    return None


_MAX_INPUT_DEPTH = 200
