"""`complete_plain_handler` against `decide` and `evolve`: the same events and the same state on any graph.

The seeded graphs of `test_message_graphs`, with their failures, questions, crashes and time. Before the end
of each handler the log is folded into a twin, on which the plain way is not taken.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from agentflow import engine
from agentflow.definition.ir import Edge
from tests.unit.engine.handlers import Context, Graph, completed, graph, node
from tests.unit.engine.test_message_graphs import World
from tests.unit.engine.test_plain_calls import dump

SEEDS = 150
MANY_SEEDS = 10_000


class TwoWays(Graph):
    """A driver that takes the end of each handler by `complete_plain_handler`, and compares."""

    plain = 0

    def complete(self, context: Context) -> None:
        context.result = None  # the handlers of executors have none
        if context.requests:
            super().complete(context)
            return
        twin = self.refold()
        wanted = self._without_plain(twin, context)
        before = dump(self.state)
        effects: list[Any] = []
        events = engine.complete_plain_handler(
            self.state,
            context.key,
            context.attempt,
            context.messages,
            context.kept,
            context.writes,
            self.now,
            effects,
        )
        if events is None:
            assert dump(self.state) == before, "changed, though nothing was done"
            super().complete(context)
            return
        self.plain += 1
        found = [effect for data in events if (effect := engine.effect_of(data)) is not None]
        # The handler has returned and made no call: nothing is left to be released.
        assert found[0] == engine.Release(context.key)
        assert effects == found[1:]
        self.batches.append(len(self.log))
        for offset, data in enumerate(events, self.state.next_offset - len(events)):
            self.log.append((data, offset, self.now))
        for effect in effects:
            self._begin(effect)
        if not engine.has_more(self.state):
            assert engine.decide(self.state, self.now) == []
        self.advance([])
        assert [data for data, _, _ in self.log][-len(wanted) :] == wanted
        assert dump(self.state) == dump(twin)

    def _without_plain(self, twin: engine.RunState, context: Context) -> list[Any]:
        events: list[Any] = []
        moves = completed(twin, context, self.now)
        while moves:
            for data in moves:
                engine.evolve(twin, data, twin.next_offset, self.now)
                events.append(data)
            moves = engine.decide(twin, self.now)
        return events


class TwoWaysWorld(World):
    driver = TwoWays


def play(seeds: range, policy: str) -> int:
    plain = 0
    for seed in seeds:
        try:
            run = TwoWaysWorld(seed, policy, calm=seed % 2 == 0).go()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        assert isinstance(run, TwoWays)
        plain += run.plain
    return plain


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_a_plain_handler_gives_the_events_and_the_state_that_decide_and_evolve_give(policy: str):
    assert play(range(SEEDS), policy) > SEEDS


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_a_plain_handler_gives_the_same_on_many_graphs(policy: str):
    assert play(range(SEEDS, MANY_SEEDS // 2), policy) > MANY_SEEDS // 2


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_every_handler_of_a_chain_is_plain(policy: str):
    names = [f"n{i}" for i in range(50)]
    edges = list(pairwise(names))
    run = TwoWays(graph(*map(node, names), edges=edges, options={"policy": policy}), 1, handlers={})
    assert run.go().state.status == "completed"
    assert run.plain == len(names)


@pytest.mark.parametrize("policy", ["eager", "superstep"])
def test_every_handler_of_a_fan_out_and_its_join_is_plain(policy: str):
    names = [f"w{i}" for i in range(20)]
    edges = [Edge(source="first", target=n, kind="fan_out", group="out", name=f"o{n}") for n in names]
    edges += [Edge(source=n, target="join", kind="fan_in", group="in", name=f"i{n}") for n in names]
    nodes = map(node, ["first", *names, "join"])
    run = TwoWays(graph(*nodes, edges=edges, options={"policy": policy}), 1, handlers={})
    assert run.go().state.status == "completed"
    assert run.inputs("join") == [[1] * len(names)]
    assert run.plain == len(names) + 2
