"""The report of an eval: for a person, for a program, and for a CI as JUnit XML (page 003 §13)."""

from __future__ import annotations

import re
from typing import Any, Literal
from xml.etree import ElementTree

import msgspec

__all__ = [
    "CaseError",
    "CaseResult",
    "EvalReport",
    "Evaluation",
    "Summary",
    "report_of",
    "to_junit",
    "to_text",
]

CaseStatus = Literal["passed", "failed", "error"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One judgement of a case, by the comparison or a custom evaluator. `path` is where it differs."""

    id: str
    passed: bool
    score: float | None = None
    reason: str | None = None
    path: str | None = None
    metadata: dict[str, Any] | None = None


class CaseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a case has no judgement: `workflow_run_failed`, `human_input_unanswered`, `custom_eval_failed`."""

    code: str
    message: str


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a case. `first_failed_path` is as `$.a.b[0]`, in the node `first_failed_node` if known."""

    case_id: str
    status: CaseStatus
    first_failed_node: str | None = None
    first_failed_path: str | None = None
    expected: Any = None
    actual: Any = None
    evaluations: tuple[Evaluation, ...] = ()
    workflow_id: str | None = None
    error: CaseError | None = None
    duration_ms: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of cases; `pass_rate` is passed by total, from 0 to 1."""

    total: int
    passed: int
    failed: int
    error_cases: int
    pass_rate: float


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report, its cases in the order of the dataset."""

    suite_id: str
    status: CaseStatus
    summary: Summary
    cases: tuple[CaseResult, ...]


def report_of(suite_id: str, cases: list[CaseResult]) -> EvalReport:
    """Return the report of these results: in error if one case is, else failed if one is."""
    counts = {
        status: sum(case.status == status for case in cases) for status in ("passed", "failed", "error")
    }
    return EvalReport(
        suite_id=suite_id,
        status="error" if counts["error"] else "failed" if counts["failed"] else "passed",
        summary=Summary(
            total=len(cases),
            passed=counts["passed"],
            failed=counts["failed"],
            error_cases=counts["error"],
            pass_rate=counts["passed"] / len(cases) if cases else 0.0,
        ),
        cases=tuple(cases),
    )


def to_text(report: EvalReport) -> str:
    """Return the report for a person: each case that did not pass with its reasons, and the counts."""
    width = max((len(case.case_id) for case in report.cases), default=0)
    lines: list[str] = []
    for case in report.cases:
        lines.append(f"{case.status:<6}  {case.case_id:<{width}}  {case.duration_ms} ms")
        if case.status != "passed":
            lines += [f"        {line}" for line in _reasons(case)]
    total = report.summary
    lines.append(
        f"{report.suite_id}: {total.passed} of {total.total} passed ({total.pass_rate:.0%}),"
        f" {total.failed} failed, {total.error_cases} in error"
    )
    return "\n".join(lines)


def _reasons(case: CaseResult) -> list[str]:
    found: list[str] = []
    if case.error is not None:
        found.append(f"{case.error.code}: {case.error.message}")
    for judged in case.evaluations:
        if not judged.passed:
            score = "" if judged.score is None else f" (score {judged.score:g})"
            found.append(f"{judged.id}{score}: {judged.reason or 'not passed'}")
    if case.first_failed_node is not None:
        found.append(f"node {case.first_failed_node}")
    if case.workflow_id is not None:
        found.append(f"run {case.workflow_id}")
    return found


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: EvalReport) -> bytes:
    """Return the report as JUnit XML: one test case for each case, which CI systems show."""
    total = report.summary
    seconds = sum(case.duration_ms for case in report.cases) / 1000
    counts = {"tests": str(total.total), "failures": str(total.failed), "errors": str(total.error_cases)}
    root = ElementTree.Element("testsuites", counts | {"time": f"{seconds:.3f}"})
    suite = ElementTree.SubElement(
        root, "testsuite", counts | {"name": _xml(report.suite_id), "time": f"{seconds:.3f}"}
    )
    for case in report.cases:
        made = ElementTree.SubElement(
            suite,
            "testcase",
            {
                "classname": _xml(report.suite_id),
                "name": _xml(case.case_id),
                "time": f"{case.duration_ms / 1000:.3f}",
            },
        )
        if case.status != "passed":
            reasons = _xml("\n".join(_reasons(case)))
            tag = "error" if case.status == "error" else "failure"
            ElementTree.SubElement(made, tag, {"message": reasons.partition("\n")[0]}).text = reasons
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
