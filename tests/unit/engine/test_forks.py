"""A fork goes on from any offset, or from any step, of another run (page 000 §8)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import Approval
from agentflow.engine import BaseEvent, base_of, cut_of
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, chain, steps, tool

SAVED = ev.SystemStateSaved(kind="fork_base", ref="sha256:0", schema_version=1, size=0, sha256="0")


class World:
    """Answers by what was said, and counts what it was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.broken = False

    def model(self, unit: Any, call: Any) -> Any:
        self.asked[unit.key] += 1
        if unit.node.id == "b" and self.broken:
            raise Fault("auth", "authentication_failed")
        if unit.node.id == "a" and len(unit.agent.messages) < 3:
            wanted = ToolCall(id=f"call_{unit.key}", name="s__pay", arguments="{}")
            return Message(role="assistant", content="", tool_calls=(wanted,))
        return f'{{"by": "{unit.node.id}"}}'

    def call(self, name: str, parameters: Any) -> Any:
        self.made[name] += 1
        return 1


def graph(**more: Any) -> Any:
    return steps(
        agent("a", **more),
        agent("b", depends_on=("a",), input="${{ steps.a.outputs.result.by }}"),
        agent("c", for_each="${{ inputs }}"),
        agent("d", depends_on=("b", "c")),
    )


PAY = tool("pay", side_effect="external", idempotent=False)


def start(world: World, workflow: Any) -> Driver:
    driver = Driver(workflow, [1, 2], tools={"a": [PAY]}, model=world.model, call=world.call)
    driver.run()
    return driver


def fork(source: Driver, world: World, upto: int, cut: frozenset[str] = frozenset()) -> Driver:
    """A new run on the first `upto` events of `source`, less the steps in `cut`."""
    events = [BaseEvent(data, ts) for data, _, ts in source.log[:upto]]
    driver = Driver.__new__(Driver)
    driver.__dict__.update(source.__dict__)
    driver.model, driver.call = world.model, world.call
    driver.state = engine.RunState("wf_2", source.plan, source.bindings)
    driver.state.base = [events[i] for i in base_of(events, cut)]
    driver.log, driver.waiting, driver.requests = [], [], []
    driver.now = source.now + 60_000_000
    driver.take([source.log[0][0], SAVED])
    driver.advance(engine.interrupted(driver.state, driver.now))
    return driver


@pytest.mark.parametrize("more", [{}, {"approval": Approval()}], ids=["plain", "asked"])
def test_a_fork_at_every_offset_ends_as_the_run_did_and_repeats_no_recorded_result(more):
    world = World()
    source = start(world, graph(**more))
    if source.state.requests:
        request = next(iter(source.state.requests.values()))
        source.advance(
            engine.commands.decide_request(source.state, request_id=request.request_id, granted=True, by="t")
        )
        source.run()
    assert source.state.status == "completed"
    for upto in range(1, len(source.log) + 1):
        again = World()
        forked = fork(source, again, upto)
        forked.run()
        for request in list(forked.state.requests.values()):
            if isinstance(request.data, ev.ApprovalRequested):
                moves = engine.commands.decide_request(
                    forked.state, request_id=request.request_id, granted=True, by="t"
                )
            else:
                moves = engine.commands.answer(
                    forked.state, {request.request_id: {"choice": "done", "output": 1}}, by="t"
                )
            forked.advance(moves)
            forked.run()
        assert forked.state.status == "completed", upto
        assert forked.state.output == source.state.output, upto
        recorded = Counter(
            e.activation if e.iteration is None else f"{e.activation}[{e.iteration}]"
            for e, _, _ in source.log[:upto]
            if isinstance(e, ev.ModelCallCompleted)
        )
        for key, count in world.asked.items():
            assert again.asked[key] == count - recorded[key], (upto, key)
        if any(isinstance(e, ev.ToolCallStarted) for e, _, _ in source.log[:upto]):
            assert not again.made, "an unsafe call was made again"
        assert forked.state.usage.model_calls == sum(again.asked.values())


def test_a_failed_run_goes_on_from_its_failure():
    world = World()
    world.broken = True
    source = start(world, graph())
    assert source.state.status == "failed"
    again = World()
    cut = cut_of(source.plan, source.state.failed_steps)
    assert cut == {"b", "d", "__end"} or cut == {"b", "d"}
    forked = fork(source, again, len(source.log), cut)
    forked.run()
    assert forked.state.status == "completed"
    assert sorted(again.asked) == ["/b#0", "/d#0"]
    assert not again.made


def test_a_fork_from_a_step_of_a_chain_gets_what_the_step_before_it_gave():
    world = World()
    workflow = chain(agent("a"), agent("b"), agent("c"))
    source = start(world, workflow)
    again = World()
    forked = fork(source, again, len(source.log), cut_of(source.plan, ["b"]))
    forked.run()
    assert forked.state.output == source.state.output
    assert sorted(again.asked) == ["/b#0", "/c#0"]


def test_the_fold_of_a_fork_is_the_same_after_a_restart():
    world = World()
    source = start(world, graph())
    events = [BaseEvent(data, ts) for data, _, ts in source.log[:9]]
    forked = fork(source, World(), 9)
    forked.run()
    state = engine.RunState("wf_2", source.plan, source.bindings)
    state.base = [events[i] for i in base_of(events)]
    for data, offset, ts in forked.log:
        engine.evolve(state, data, offset, ts)
    assert state.output == forked.state.output
    assert {i: n.status for i, n in state.nodes.items()} == {
        i: n.status for i, n in forked.state.nodes.items()
    }


def test_a_step_that_does_not_exist_is_no_cut():
    with pytest.raises(KeyError):
        cut_of(engine.compile_graph(graph()), ["nowhere"])
