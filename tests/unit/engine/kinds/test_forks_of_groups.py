"""Forks of runs with child paths and inner graphs: a step inside is begun anew with what opened it."""

from __future__ import annotations

from typing import Any

from agentflow.definition.ir import ParallelNode, SubgraphNode
from agentflow.engine import BaseEvent, base_of, cut_of
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, call, graph
from tests.unit.engine.kinds.random_graphs import INPUT, Fate

SAVED = ev.SystemStateSaved(kind="fork_base", ref="sha256:0", schema_version=1, size=0, sha256="0")


def fork(source: Driver, upto: int, cut: frozenset[str] = frozenset(), input: Any = None) -> Driver:
    """Return a run that begins with the events of another one before `upto`."""
    driver = object.__new__(Driver)
    driver.__dict__ |= source.__dict__
    first = source.log[0][0]
    events = [BaseEvent(data, ts) for data, _, ts in source.log[:upto]]
    driver.log, driver.batches, driver.waiting, driver.found = [], [], [], {}
    driver.state = type(source.state)("wf_2", source.plan, source.bindings)
    driver.state.base = [events[i] for i in base_of(events, cut)]
    driver.advance([first, SAVED])
    return driver


def groups() -> Any:
    inner = graph(call("x", "y"), call("y", "__end"))
    return graph(
        call("before", "fork"),
        ParallelNode(id="fork", branches=("a", "b"), next="sub"),
        call("a", "sub"),
        call("b", "sub"),
        SubgraphNode(id="sub", inline=inner, next="after"),
        call("after", "__end"),
    )


def started(driver: Driver) -> list[str]:
    return [e.step_id for e in driver.events(ev.WorkflowStepStarted)]


def test_a_step_of_a_branch_is_begun_anew_with_its_group():
    source = Driver(groups(), INPUT)
    source.run()
    assert cut_of(source.plan, ["a"]) >= {"a", "b", "fork", "sub", "sub/x", "after"} - {"sub/x"}
    driver = fork(source, len(source.log) - 1, cut_of(source.plan, ["a"]))
    assert driver.run().status == "completed"
    assert started(driver) == ["fork", "a", "b", "sub", "sub/x", "sub/y", "after"]


def test_a_step_of_an_inner_graph_is_begun_anew_with_its_graph():
    source = Driver(groups(), INPUT)
    source.run()
    driver = fork(source, len(source.log) - 1, cut_of(source.plan, ["sub/y"]))
    assert driver.run().status == "completed"
    assert started(driver) == ["sub", "sub/x", "sub/y", "after"]


def test_a_fork_at_every_batch_of_random_graphs_folds():
    """What was open in the old run is open in the new one; what was cut is not there."""
    for seed in range(60):
        source = Fate(seed).run()
        last = len(source.log) - 1
        for upto in [*source.batches[1:], last]:
            state = fork(source, min(upto, last)).state
            assert state.next_offset >= 2
        for step in source.plan.all_nodes:
            if not source.plan.all_nodes[step].is_silent:
                fork(source, last, cut_of(source.plan, [step]))
