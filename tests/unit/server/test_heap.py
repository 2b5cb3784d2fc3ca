"""When the daemon makes a full garbage collection, and what it sets for the interpreter."""

from __future__ import annotations

import gc
import sys

import pytest

from agentflow.server.heap import Heap, tuned_interpreter

FULL: list[int] = []


@pytest.fixture(autouse=True)
def note_full_collections():
    """Note the full collections of this process in FULL."""
    FULL.clear()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            FULL.append(1)

    gc.callbacks.append(note)
    yield
    gc.callbacks.remove(note)


def test_while_the_daemon_runs_the_interpreter_makes_no_full_collection():
    gc.unfreeze()  # what tests/conftest.py froze
    before = gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
    with tuned_interpreter():
        FULL.clear()
        kept = [[n] for n in range(600_000)]  # the collector of CPython would make five
        assert FULL == []
        assert gc.get_freeze_count() > 0
        assert sys.getswitchinterval() == pytest.approx(0.001)
    assert len(kept) == 600_000
    assert (gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()) == before


class Cycle:
    ended = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Cycle.ended += 1


def test_a_small_heap_is_collected_and_a_large_one_after_an_hour():
    with tuned_interpreter():
        heap = Heap()
        began = heap.collected_at
        for now, blocks, collects in [(1, 100_000, True), (2, 600_000, False), (3_700, 600_000, True)]:
            cycle = Cycle()
            gc.collect(0)
            gc.collect(1)  # the cycle is old now
            del cycle
            ended = Cycle.ended
            assert heap.check(began + now, blocks) is collects
            assert (Cycle.ended > ended) is collects


def test_nothing_is_collected_where_nothing_became_old():
    with tuned_interpreter():
        heap = Heap()
        gc.collect()
        FULL.clear()
        assert not heap.check(heap.collected_at + 9_999, 0)
        assert FULL == []
