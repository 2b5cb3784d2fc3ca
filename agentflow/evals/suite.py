"""The files of an eval: the suite, in YAML or JSON, and its dataset, a JSON object a line (page 003 §13)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.expressions import ExpressionError
from agentflow.definition.paths import parse_value_path
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

    Without `expected_output` the evaluators alone judge. `recording` is the id of the recorded run that a
    suite with `replay` runs the case from, on the recorded input if the case has none.
    """

    id: _Text
    input: Any | UnsetType = UNSET
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

    def invalid(pointer: str, message: str, hint: str | None = None) -> EvalError:
        line, column = Positions(root).at(pointer)
        place = f"{file}:{line}:{column}" if line is not None else str(file)
        return EvalError("invalid_suite", f"{place}: {message}", hint=hint)

    try:
        suite = msgspec.convert(to_value(root), EvalSuite)
    except msgspec.ValidationError as error:
        problem = explain(error, EvalSuite)
        raise invalid(problem.pointer, problem.sentence("the suite"), problem.hint) from None
    _check(suite, invalid)
    return suite


def _said(report: Report) -> str:
    found: list[Diagnostic] = report.diagnostics()
    return "\n".join(d.render() for d in found)


def _check(suite: EvalSuite, invalid: Callable[..., EvalError]) -> None:
    comparison = suite.comparison
    if comparison.mode == "paths" and not comparison.paths:
        raise invalid("/comparison", 'comparison.mode is "paths", and comparison.paths has none')
    if comparison.mode == "exact" and comparison.paths:
        raise invalid("/comparison/paths", "comparison.paths has no effect", 'set comparison.mode to "paths"')
    paths = {f"/comparison/paths/{i}": path for i, path in enumerate(comparison.paths)}
    ids: set[str] = set()
    for i, custom in enumerate(suite.custom_evals):
        if custom.id in ids:
            raise invalid(f"/custom_evals/{i}/id", f'custom_evals has the id "{custom.id}" twice')
        if custom.id in ("exact", "paths"):
            message = f'custom_evals: the id "{custom.id}" is that of a comparison'
            raise invalid(f"/custom_evals/{i}/id", message)
        ids.add(custom.id)
        parts = {"actual_path": custom.actual_path, "expected_path": custom.expected_path}
        paths |= {f"/custom_evals/{i}/{key}": path for key, path in parts.items() if path is not None}
    for pointer, path in paths.items():
        try:
            parse_value_path(path)
        except ExpressionError as error:
            said = (
                error.message
                if error.code == "E_INVALID_PATH"
                else f'"{path}" is not a path: {error.message}'
            )
            raise invalid(pointer, said, error.hint) from None


def load_dataset(
    path: str | os.PathLike[str],
    *,
    replay: Literal["Always", "Mixed"] | None = None,
    is_judged: bool = True,
) -> list[Case]:
    """Read the records of a dataset in their order; blank lines are skipped.

    Each states its input or, with `replay`, its recording, and unless evaluators judge (`is_judged`) its
    expected output. Raises EvalError.
    """
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

        def invalid(message: str, hint: str | None = None, line: int = line) -> EvalError:
            return EvalError("invalid_dataset", f"{file}:{line}: {message}", line=line, hint=hint)

        if case.id in lines:
            raise invalid(f'the id "{case.id}" is that of line {lines[case.id]} too')
        if replay is not None and case.recording is None:
            message = f'case "{case.id}" has no recording, and the suite says replay: {replay}'
            raise invalid(message, "name the recorded run as `recording`")
        if replay is None and case.input is UNSET:
            raise invalid(f'case "{case.id}" has no input', "state `input`, null if the workflow takes none")
        if case.expected_output is UNSET and not is_judged:
            message = f'case "{case.id}" has no expected_output, and no evaluator judges it'
            raise invalid(message, "state expected_output, or custom_evals in the suite")
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
