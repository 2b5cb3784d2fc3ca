"""Kept results: page 001 §5.8."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from agentflow import engine
from agentflow.definition.ir import Cache, Edge, EndNode, StartNode, Workflow
from agentflow.engine import CacheHit
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, agent, call, steps, tool
from tests.unit.engine.driver import graph as graph_of


class Store:
    """Kept results, by key; drives a Driver and answers its lookups."""

    def __init__(self) -> None:
        self.kept: dict[str, CacheHit] = {}
        self.asked: list[str] = []

    def run(self, workflow: Workflow, input: Any = None, **more: Any) -> Driver:
        driver = Driver(workflow, input, **more)
        before = driver.take

        def take(moves: list[Any]) -> None:
            for data in moves:
                if isinstance(data, ev.WorkflowStepCompleted):
                    name = (
                        data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
                    )
                    open_one = driver.state.open.get(name)
                    key = engine.result_key(driver.state, open_one) if open_one is not None else None
                    if key is not None and data.cached is UNSET:
                        self.kept[key] = CacheHit(data.output, "wf_1", driver.state.next_offset)
                before([data])

        driver.take = take  # type: ignore[method-assign]
        self.finish(driver)
        return driver

    def finish(self, driver: Driver) -> None:
        while True:
            wanted, driver.lookups = driver.lookups, []
            for lookup in wanted:
                self.asked.append(lookup.key)
                driver.found[lookup.activation_key] = self.kept.get(lookup.key)
            driver.advance([])
            driver.run()
            if not driver.lookups:
                return


CACHE = Cache(ttl=60)


def test_a_result_serves_again_without_any_call():
    store = Store()
    graph = steps(agent("a", cache=CACHE, input="${{ inputs }}"), agent("b", depends_on=("a",)))
    first = store.run(graph, "x")
    assert first.state.status == "completed"
    second = store.run(graph, "x")
    assert second.state.output == first.state.output
    done = next(e for e in second.events(ev.WorkflowStepCompleted) if e.step_id == "a")
    recorded = next(
        o for d, o, _ in first.log if isinstance(d, ev.WorkflowStepCompleted) and d.step_id == "a"
    )
    assert (done.cached.workflow_id, done.cached.offset) == ("wf_1", recorded)
    assert [key for key, _ in second.requests] == ["/b#0"]
    assert [e.step_id for e in second.events(ev.AgentInitialized)] == ["b"]
    assert second.types().index("workflow.step_started") < second.types().index("workflow.step_completed")


def test_another_input_prompt_function_or_document_is_another_result():
    store = Store()
    base = agent("a", cache=CACHE, input="${{ inputs }}")
    store.run(steps(base), "x")
    variants = [
        (steps(base), "y", {}),
        (steps(agent("a", cache=CACHE, input="${{ inputs }}", spec={"system_prompt": "q"})), "x", {}),
        (steps(base), "x", {"tools": {"a": [tool("look", side_effect="read")]}}),
        (steps(base, agent("z")), "x", {}),
    ]
    for graph, value, more in variants:
        driver = store.run(graph, value, **more)
        done = next(e for e in driver.events(ev.WorkflowStepCompleted) if e.step_id == "a")
        assert done.cached is UNSET
        assert [e for e in driver.events(ev.AgentInitialized) if e.step_id == "a"], value


def test_a_global_result_serves_other_documents_and_tags_do_not_count():
    store = Store()
    shared = Cache(ttl=60, scope="global")
    store.run(steps(agent("a", cache=shared, spec={"tags": {"t": "1"}})))
    other = store.run(steps(agent("a", cache=shared, spec={"tags": {"t": "2"}}), agent("z")))
    assert [e.step_id for e in other.events(ev.AgentInitialized)] == ["z"]


def test_a_key_of_its_own_decides_alone():
    store = Store()
    keyed = steps(agent("a", cache=Cache(ttl=60, key="k-${{ inputs.id }}"), input="${{ inputs.text }}"))
    store.run(keyed, {"id": 1, "text": "x"})
    same = store.run(keyed, {"id": 1, "text": "y"})
    assert not same.requests
    assert store.run(keyed, {"id": 2, "text": "y"}).requests


def test_iterations_are_kept_one_by_one_and_in_order():
    store = Store()
    graph = steps(agent("a", cache=CACHE, for_each="${{ inputs }}", input="${{ item }}"))
    store.run(graph, [1, 2])
    driver = store.run(graph, [2, 3, 1])
    assert [key for key, _ in driver.requests] == ["/a#0[1]"]
    assert driver.state.status == "completed"
    assert len(driver.state.output["a"]) == 3


def test_failures_are_not_kept_and_a_bad_key_fails_the_step():
    store = Store()
    graph = steps(agent("a", cache=CACHE, spec={"output_schema": {"type": "object"}}))
    store.run(graph, model=lambda unit, call: "text")
    assert not store.kept
    broken = store.run(steps(agent("a", cache=Cache(ttl=1, key="${{ fromJSON('x') }}"))))
    assert broken.events(ev.WorkflowStepFailed)[0].error.details["path"] == "/cache/key"


def test_the_fold_does_not_depend_on_what_is_kept():
    store = Store()
    graph = steps(agent("a", cache=CACHE), agent("b", depends_on=("a",), cache=CACHE))
    store.run(graph)
    driver = store.run(graph)
    state = driver.refold()
    assert state.output == driver.state.output
    assert state.status == "completed"


def test_a_run_waits_for_the_answer_and_asks_again_after_a_restart():
    graph = steps(agent("a", cache=CACHE))
    driver = Driver(graph)
    assert driver.run().status == "pending"
    assert len(driver.lookups) == 1
    assert driver.types() == ["workflow.started"]
    driver.crash()
    assert len(driver.lookups) == 1


def test_results_of_untrusted_runs_serve_no_trusted_one_and_the_other_way_round():
    store = Store()
    graph = steps(agent("a", cache=CACHE, input="${{ inputs }}"))
    for options in ({}, {"trusted": False}):
        assert [key for key, _ in store.run(graph, "x", options=options).requests] == ["/a#0"]
    assert len(set(store.asked)) == 2
    for options in ({}, {"trusted": False}):
        assert store.run(graph, "x", options=options).requests == []


def test_a_kept_result_writes_globals_as_the_work_does():
    store = Store()
    nodes = (call("a", "__end", cache=CACHE, set_globals={"said": "nodes.a.output.x"}),)
    for served in (False, True):
        driver = store.run(graph_of(*nodes), {"x": 1}, call=lambda name, parameters: parameters)
        assert driver.state.status == "completed"
        assert driver.state.root.frame.globals["said"] == 1
        (end,) = [d for d in driver.events(ev.WorkflowStepCompleted) if d.step_id == "a"]
        assert (end.cached is not UNSET) is served


@pytest.mark.parametrize("routes", [{}, {"when": "message.x == 1"}], ids=["bare", "when"])
def test_a_kept_result_goes_along_the_edges_as_that_of_the_work(routes: dict[str, Any]):
    store = Store()
    nodes = (StartNode(id="__start", next="a"), call("a", cache=CACHE), call("b"), EndNode(id="__end"))
    edges = (Edge(source="a", target="b", **routes), Edge(source="b", target="__end"))
    workflow = Workflow(name="w", nodes=nodes, edges=edges)
    for served in (False, True):
        driver = store.run(workflow, {"x": 1}, call=lambda name, parameters: parameters)
        assert driver.state.status == "completed"
        assert [d.step_id for d in driver.events(ev.WorkflowStepCompleted)] == ["a", "b"]
        (end,) = [d for d in driver.events(ev.WorkflowStepCompleted) if d.step_id == "a"]
        assert (end.cached is not UNSET) is served
