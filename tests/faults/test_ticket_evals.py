"""The eval suite of the ticket example, with the embedded model: its report is that of the README."""

from __future__ import annotations

import re

import pytest

from agentflow import Runtime
from agentflow.evals.report import to_text
from agentflow.evals.runner import run_eval
from tests.integration.test_ticket_triage import EXAMPLE
from tests.unit.models.local_model import environment


def without_times(report: str) -> list[str]:
    return [re.sub(r"[\d.]+ m?s", "… ms", line) for line in report.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.local_model
@pytest.mark.timeout(600)
async def test_the_report_of_the_suite_is_that_of_the_readme(monkeypatch, tmp_path):
    for name, value in environment(tmp_path / "models").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGENTFLOW_MODEL", "local:smollm2-135m")
    monkeypatch.setenv("TRIAGE_DATA", str(tmp_path / "data"))
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}") as runtime:
        report = await run_eval(EXAMPLE / "evals" / "suite.yaml", runtime)
    said = re.search(r"```text\n(passed  ticket 13.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    assert said is not None
    assert without_times(to_text(report)) == without_times(said[1])
    scores = {case.case_id: case.evaluations[-1].score for case in report.cases}
    assert [name for name, score in scores.items() if score != 1.0] == [
        f"ticket {n}" for n in (13, 17, 18, 19)
    ]
