"""Random graphs of all kinds: whatever happens, a run ends, and its log is legal and folds to its state."""

from __future__ import annotations

import pytest

from agentflow.engine import IllegalEvent
from agentflow.events import catalogue as ev
from tests.unit.engine.kinds.random_graphs import Fate

BROKEN = (AssertionError, LookupError, ValueError, AttributeError, TypeError, IllegalEvent, RuntimeError)


def failures(seeds: range) -> dict[int, BaseException]:
    """Run these seeds; return what went wrong with which."""
    found: dict[int, BaseException] = {}
    for seed in seeds:
        try:
            Fate(seed).run()
        except BROKEN as error:
            found[seed] = error
    return found


def test_every_run_ends_with_a_legal_log():
    """300 seeds; `Driver.advance` asks every decision twice."""
    found = failures(range(300))
    assert not found, f"{len(found)} of 300 seeds fail; {next(iter(found.items()))!r}"


def test_a_crash_behind_every_batch_leads_to_a_legal_end():
    for seed in range(40):
        whole = Fate(seed).run()
        for cut in whole.batches[1:]:
            fate = Fate(seed)
            fate.run()
            driver = fate.driver
            if isinstance(driver.log[cut - 1][0], ev.WorkflowPaused | ev.WorkflowCancelRequested):
                continue
            driver.batches = [b for b in driver.batches if b < cut]
            driver.now = driver.log[cut - 1][2]
            driver.crash(cut)
            fate.run()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_every_run_of_many_ends_with_a_legal_log(part: int):
    found = failures(range(1_000 + part * 1_000, 2_000 + part * 1_000))
    assert not found, f"{len(found)} of 1,000 seeds fail; {next(iter(found.items()))!r}"
