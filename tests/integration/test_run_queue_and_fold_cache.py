"""The queue of runs and the cache of replayed states, without a Runtime around them."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from agentflow import engine
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.command_messages import Pause
from agentflow.runtime.log_replay import Fold, FoldCache
from agentflow.runtime.run_launch import RunLaunch, RunTable
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


async def test_a_table_counts_the_runs_that_take_a_slot(driver: Driver):
    """Each start and end of a run asks for the number: to count anew made the recovery of n runs n² work."""
    table, state, where = RunTable(), driver.state, cast(Directory, None)

    def add(workflow_id: str, *, queued: bool = False, is_child: bool = False) -> None:
        launch = RunLaunch(
            workflow_id, state.graph, state.bindings, where, epoch=1, queued=queued, is_child=is_child
        )
        table.add(launch)
        assert table.running == sum(launch.takes_slot for launch in table.launches.values())

    add("wf_1")
    add("wf_2", queued=True)
    add("wf_child", is_child=True)
    assert table.running == 1
    add("wf_2")  # its turn has come
    add("wf_1", queued=True)
    add("wf_3")
    assert table.running == 2
    for workflow_id in ("wf_1", "wf_2", "wf_unknown", "wf_2", "wf_child", "wf_3"):
        table.remove(workflow_id)
    assert table.running == 0


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
