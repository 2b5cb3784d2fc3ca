"""Mistakes put into a copy of engine and runtime: those of an outside review, and others on joins, policies,
frames and gates. At least 90 % are caught by the quick tests; the rest are explained.

Slow: each mistake costs a run of the tests that should notice it, about half a minute.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.mutants.run import TIMEOUT_S, copy_package, run_mutant
from tests.faults.mutants.table import EXPLAINED, MUTANTS, Mutant

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_package(tmp_path_factory.mktemp("mutants"))


@pytest.mark.parametrize("name", MUTANTS, ids=lambda name: name.replace(" ", "-"))
def test_a_mistake_is_caught_or_explained(name: str, folder: Path) -> None:
    expected = "survived" if name in EXPLAINED else "caught"
    assert run_mutant(folder, MUTANTS[name]) == expected


def test_at_least_nine_of_ten_are_caught() -> None:
    assert len(EXPLAINED) <= 0.1 * len(MUTANTS)
    assert set(EXPLAINED) <= set(MUTANTS)


def test_without_a_mistake_the_same_tests_pass(folder: Path) -> None:
    tests = tuple(dict.fromkeys(test for mutant in MUTANTS.values() for test in mutant.tests))
    assert run_mutant(folder, Mutant((), tests), cpu_limit_s=600) == "survived"
