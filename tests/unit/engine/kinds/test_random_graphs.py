"""Random graphs of all kinds: whatever happens, a run ends, and its log is legal and folds to its state."""

from __future__ import annotations

import pytest

from agentflow.definition.kinds import KINDS
from agentflow.engine import IllegalEvent
from agentflow.events import catalogue as ev
from tests.unit.engine.kinds.mixed_graphs import Mixed
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


POLICIES = ("eager", "superstep")


def drive_mixed(seeds: range) -> None:
    """Run these seeds under both policies."""
    found: dict[tuple[int, str], BaseException] = {}
    for seed in seeds:
        for policy in POLICIES:
            try:
                Mixed(seed, policy).run()
            except BROKEN as error:
                found[seed, policy] = error
    assert not found, f"{len(found)} of {2 * len(seeds)} runs fail; {next(iter(found.items()))!r}"


def test_every_run_of_mixed_kinds_ends_with_a_legal_log():
    """300 runs: executors, agents, child runs, openers, people and timers meet in one graph."""
    drive_mixed(range(150))


def test_every_kind_stands_in_the_mixed_graphs():
    kinds: set[str] = set()
    for seed in range(60):
        log = Mixed(seed, "eager").run().log
        kinds |= {data.kind for data, _, _ in log if isinstance(data, ev.WorkflowStepStarted)}
    assert kinds >= {kind for kind in KINDS if kind not in ("start", "end", "llm")}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_every_run_of_many_mixed_kinds_ends_with_a_legal_log(part: int):
    drive_mixed(range(1_000 + part * 500, 1_500 + part * 500))


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
