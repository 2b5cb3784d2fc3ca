"""The files of an eval: the suite, in YAML or JSON, and its dataset, a JSON object a line (page 003 §13)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.report import Fatal, Report
from agentflow.definition.source import Source, decode, read_file, read_node
from agentflow.definition.source_tree import Positions, to_value
from agentflow.definition.type_errors import explain, undecodable
from agentflow.errors import AgentflowError

__all__ = [
    "Case",
    "Comparison",
    "CustomEval",
    "EvalError",
    "EvalSuite",
    "Execution",
    "load_dataset",
    "load_suite",
]

_Text = Annotated[str, Meta(min_length=1)]


class EvalError(AgentflowError):
    """The suite or its dataset cannot be used; `code` says which of them and why, the message where.

    Codes: `read_suite_failed`, `parse_suite_failed`, `invalid_suite`, `read_dataset_failed`,
    `parse_dataset_line_failed` (details: `line`, counted from 1) and `invalid_dataset`.
    """

    def __init__(self, code: str, message: str, *, line: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.details = {} if line is None else {"line": line}


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the expected output is compared: as a subset (`exact`), or at `paths` of both sides."""

    mode: Literal["exact", "paths"] = "exact"
    paths: tuple[_Text, ...] = ()


class CustomEval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function of `handlers.py` that judges: `{actual, expected, threshold}` to `{passed?, score?, …}`.

    The paths choose a part of the result and of the expected output; absent, it gets the whole.
    """

    id: _Text
    handler: _Text
    actual_path: _Text | None = None
    expected_path: _Text | None = None
    threshold: float = 0.5


class Execution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How cases are run: `timeout` is in seconds for each, `fail_fast` skips the rest after a bad one."""

    timeout: Annotated[float, Meta(gt=0)] | None = None
    fail_fast: bool = False


class EvalSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A suite. Paths of files are relative to its own; `workflow_options` are those of a submission."""

    id: _Text
    workflow_path: _Text
    dataset_path: _Text
    comparison: Comparison = Comparison()
    custom_evals: tuple[CustomEval, ...] = ()
    max_concurrency: Annotated[int, Meta(ge=1, le=256)] = 1
    execution: Execution = Execution()
    workflow_options: dict[str, Any] = {}
    replay: Literal["Always", "Mixed"] | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record of the dataset. `responses`: what people answer, by the id of the node that asks.

    `recording` is the id of the recorded run that a suite with `replay` runs the case from.
    """

    id: _Text
    input: Any = None
    expected_output: Any | UnsetType = UNSET
    custom: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    responses: dict[str, Any] = {}
    recording: str | None = None


def load_suite(path: str | os.PathLike[str]) -> EvalSuite:
    """Read a suite from a YAML or JSON file. Raises EvalError."""
    file = Path(path)
    report = Report(str(file))
    try:
        data, media = read_file(file, report)
    except Fatal:
        raise EvalError("read_suite_failed", _said(report)) from None
    try:
        root = read_node(Source(decode(data, report, media), media, str(file)), report)
    except Fatal:
        raise EvalError("parse_suite_failed", _said(report)) from None
    if report.has_errors:
        raise EvalError("parse_suite_failed", _said(report))
    try:
        suite = msgspec.convert(to_value(root), EvalSuite)
    except msgspec.ValidationError as error:
        problem = explain(error, EvalSuite)
        line, column = Positions(root).at(problem.pointer)
        place = f"{file}:{line}:{column}: " if line is not None else f"{file}: "
        raise EvalError("invalid_suite", place + problem.sentence("the suite"), hint=problem.hint) from None
    _check(suite, file)
    return suite


def _said(report: Report) -> str:
    found: list[Diagnostic] = report.diagnostics()
    return "\n".join(d.render() for d in found)


def _check(suite: EvalSuite, file: Path) -> None:
    def invalid(message: str, hint: str | None = None) -> EvalError:
        return EvalError("invalid_suite", f"{file}: {message}", hint=hint)

    if suite.comparison.mode == "paths" and not suite.comparison.paths:
        raise invalid('comparison.mode is "paths", and comparison.paths has none')
    if suite.comparison.mode == "exact" and suite.comparison.paths:
        raise invalid("comparison.paths has no effect", 'set comparison.mode to "paths"')
    ids = [custom.id for custom in suite.custom_evals]
    for i, id in enumerate(ids):
        if id in ids[:i]:
            raise invalid(f'custom_evals has the id "{id}" twice')
        if id in ("exact", "paths"):
            raise invalid(f'custom_evals: the id "{id}" is that of a comparison')


def load_dataset(path: str | os.PathLike[str]) -> list[Case]:
    """Read the records of a dataset in their order; blank lines are skipped. Raises EvalError."""
    file = Path(path)
    try:
        text = file.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise EvalError("read_dataset_failed", f"{file}: cannot be read: {reason}") from None
    cases = list(_cases(file, text))
    if not cases:
        raise EvalError("invalid_dataset", f"{file}: the dataset has no records")
    lines: dict[str, int] = {}
    for line, case in cases:
        if case.id in lines:
            message = f'{file}:{line}: the id "{case.id}" is that of line {lines[case.id]} too'
            raise EvalError("invalid_dataset", message, line=line)
        lines[case.id] = line
    return [case for _, case in cases]


def _cases(file: Path, text: bytes) -> Iterator[tuple[int, Case]]:
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line, type=Case)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            message = f"{file}:{number}: {undecodable(error, Case)}"
            raise EvalError("parse_dataset_line_failed", message, line=number) from None
