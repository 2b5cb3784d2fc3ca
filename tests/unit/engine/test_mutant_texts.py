"""The mistakes of `tests/faults/mutants` can still be made: each replaces a text that its module has once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.mutants.table import MUTANTS

PACKAGE = Path(__file__).parents[3] / "agentflow"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_can_be_made(name: str):
    for module, old, _ in MUTANTS[name].edits:
        assert (PACKAGE / module).read_text(encoding="utf-8").count(old) == 1


@pytest.mark.parametrize("name", MUTANTS)
def test_the_tests_that_should_notice_it_exist(name: str):
    missing = [test for test in MUTANTS[name].tests if not (PACKAGE.parent / test).exists()]
    assert missing == []
