"""A step costs no more instructions than recorded; `make bench SUITE=instructions` counts all cases."""

from __future__ import annotations

import shutil

import pytest

from tests.benchmarks.instructions import recorded
from tests.benchmarks.instructions.__main__ import run_subject

_FIGURES = recorded.read()


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
@pytest.mark.skipif(not _FIGURES, reason="nothing is recorded for this interpreter")
@pytest.mark.timeout(900)
def test_a_step_costs_at_most_a_tenth_more_than_recorded():
    rows = run_subject("valgrind", list(recorded.CASES))
    found = {row["case"]: round(row["count"] / row["steps"]) for row in rows}
    beyond = {
        case: (cost, _FIGURES[case])
        for case, cost in found.items()
        if cost > recorded.TOLERANCE * _FIGURES[case]
    }
    assert not beyond, "instructions a step: found, recorded"
