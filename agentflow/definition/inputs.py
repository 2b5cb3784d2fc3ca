"""The inputs of one run: which are needed, and whether given values fit (page 001 §2, §3 phase S).

A run of an agent list takes any JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.ir import InputSpec, NodeBase, Workflow
from agentflow.definition.json_values import json_problems
from agentflow.definition.kinds import kind_of
from agentflow.definition.report import Report, shown
from agentflow.definition.source_tree import Place, child_pointer

__all__ = [
    "ANY_INPUT",
    "InputNeeds",
    "RequiredInput",
    "breach",
    "check_input_values",
    "check_whole_input",
    "needs_of",
]

Locate = Callable[[str], Place]


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


def needs_of(workflow: Workflow) -> InputNeeds:
    """Return what a graph says of its inputs itself: those that it declares; without a declaration, any
    JSON."""
    if workflow.inputs is None:
        return ANY_INPUT
    required = [RequiredInput(name=name, used=False) for name, s in workflow.inputs.items() if s.required]
    return InputNeeds(named=True, required=tuple(required), known=tuple(workflow.inputs))


def breach(schema: dict[str, Any] | bool, value: Any) -> tuple[str, str] | None:
    """Return the first breach of a valid schema by a value: JSON pointer and message; None if there is
    none."""
    from agentflow.definition.schemas import validate

    issues = validate(schema, value)
    return (issues[0].path, issues[0].message) if issues else None


def check_input_values(
    needs: InputNeeds,
    declared: dict[str, InputSpec] | None,
    places: Locate,
    inputs: Any,
    report: Report,
) -> Any:
    """Return the inputs of one run with defaults filled in; problems (phase S) go to the report.

    `places` gives the place of a declaration: JSON pointer → (line, column).
    """
    for _, problem, _ in json_problems(inputs):
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
            hint = f"give it: --input {need.name}=VALUE"
            report.error("E_INPUT_MISSING", message, (need.line, need.column), need.path, hint=hint)
    for name in values:
        if name not in needs.known and not needs.open:
            hint = report.did_you_mean(name, needs.known)
            report.warning("W_INPUT_EXTRA", f'input "{shown(name)}" is not used', hint=hint)
    return values


def _input_schema(start: Any) -> dict[str, Any] | bool | None:
    return start.input_schema


def check_whole_input(workflow: Workflow, places: Locate, value: Any, report: Report) -> None:
    """Check the input of one run by `input_schema` of the graph and of its start (page 003 §4)."""
    starts: Iterable[NodeBase] = (node for node in workflow.nodes if kind_of(node).is_start)
    for pointer, schema in (
        ("/input_schema", workflow.input_schema),
        *(("/nodes", _input_schema(start)) for start in starts),
    ):
        problem = breach(schema, value) if schema is not None else None
        if problem is not None:
            where = f", at {shown(problem[0])}" if problem[0] else ""
            message = f"input: {shown(problem[1], 200)}{where}"
            report.error("E_INPUT_INVALID", message, places(pointer), pointer)


def _check_one(name: str, spec: InputSpec, values: dict[str, Any], places: Locate, report: Report) -> None:
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
