"""The queue of runs and the cache of replayed states, without a Runtime around them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow import engine
from agentflow.runtime.command_messages import Pause
from agentflow.runtime.log_replay import Fold, FoldCache
from agentflow.runtime.run_queue import RunQueue
from tests.unit.engine.driver import Driver, chain, tool
from tests.unit.engine.driver import call as call_of


async def test_a_run_that_comes_waits_behind_those_that_queue_although_a_slot_is_free():
    queue = RunQueue(limit=1, queue=5, count_running=lambda: 0)
    assert not queue.must_wait
    queue.enqueue("wf_first", Pause(by="test"))
    assert queue.must_wait
    assert queue.dequeue() == ("wf_first", Pause(by="test"))
    assert queue.must_wait, "its slot is reserved until it runs"


@pytest.fixture
def driver() -> Driver:
    steps = [call_of(f"t{i}") for i in range(40)]
    driver = Driver(chain(*steps), {"x": 1}, tools={step.id: [tool(step.id)] for step in steps})
    driver.run()
    return driver


def fold_of(driver: Driver) -> Fold:
    known: dict[str, Any] = {"state": driver.state, "events": driver.state.next_offset}
    fields = [known.get(name) for name in Fold._fields]
    return Fold(*fields)  # type: ignore[arg-type]


async def test_a_kept_state_serves_the_bindings_that_it_was_folded_with_and_no_others(driver: Driver):
    cache = FoldCache()
    other = msgspec.structs.replace(driver.bindings, functions=frozenset({"s__other"}))
    cache.keep(fold_of(driver))
    assert cache.take("wf_1", driver.plan, other) is None
    cache.keep(fold_of(driver))
    assert cache.take("wf_1", engine.compile_graph(driver.workflow), driver.bindings) is None
    cache.keep(fold_of(driver))
    found = cache.take("wf_1", driver.plan, driver.bindings)
    assert found is not None
    assert found.state is driver.state
    assert cache.take("wf_1", driver.plan, driver.bindings) is None, "who takes it may change it"
