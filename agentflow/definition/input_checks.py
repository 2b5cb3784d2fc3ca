"""The inputs that a step document declares, and those that its references imply (page 001 §1.4, §2)."""

from __future__ import annotations

from typing import Any

from agentflow.definition.common_checks import check_embedded_schema, checked_schema
from agentflow.definition.expression_checks import InputUse
from agentflow.definition.inputs import InputNeeds, RequiredInput
from agentflow.definition.ir import InputSpec
from agentflow.definition.report import NOWHERE, Report
from agentflow.definition.structure import Found

__all__ = ["compile_inputs", "input_needs"]


def compile_inputs(document: Found, report: Report) -> dict[str, InputSpec] | None:
    """Return the declared inputs, with checked schemas; None if there is no `inputs`. One that is wrong, and
    was reported as that, takes any value."""
    declared = document.get("inputs")
    if declared is None:
        return None
    sound = dict(declared.items())
    names = [name for name in declared.json() if not name.startswith("x-")]
    return {name: _input(name, sound[name], report) if name in sound else InputSpec() for name in names}


def _input(name: str, found: Found, report: Report) -> InputSpec:
    schema = _schema(name, found, report)
    default = found.get("default")
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
    """Return the inputs that a step document needs, each with its first place."""
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
    """Return the first use of each name that makes it required, in document order."""
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
