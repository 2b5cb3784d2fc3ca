"""Ends a run of the fault suites with one line per store, and fails it when anything was lost."""

from __future__ import annotations

import pytest

from tests.faults.tally import TALLIES, verdict
from tests.faults.workload import SIZES, small_files


@pytest.fixture(params=["sqlite", "file"])
def kind(request):
    """The store under test."""
    return request.param


@pytest.fixture
def tally(kind):
    """Where this test counts what it does to the store."""
    return TALLIES[kind]


@pytest.fixture
def files_are_small(monkeypatch):
    """Segments close and checkpoints come soon, in this process too."""
    for module, name in SIZES:
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    small_files()


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.OK and not all(tally.clean for tally in TALLIES.values()):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    lines = verdict()
    if lines:
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)
