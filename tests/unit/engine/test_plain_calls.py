"""`complete_plain_call` against `decide` and `evolve`: the same events and the same state on any graph.

Each seed makes a graph of calls with gates, limits, loops and branches here and there, and answers its calls
in random order, with failures, lost calls, clock steps and crashes. Before each answer the log is folded into
a twin, on which the plain way is taken.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from agentflow import engine
from agentflow.definition.ir import Budget, ConditionNode, Options, Policy, ToolNode, Workflow
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.graph import Edge, Graph, Node
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.state import OpenCall, RunState, Timers
from tests.unit.engine.driver import Driver, Fault, graph, steps, tool

SEEDS = 100
MANY_SEEDS = 10_000


def dump(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Return a value that is equal for equal states: slots, members and elements; objects that come again by
    number. JSON values and records are written out: whether two places share one is not seen."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, str | int | float | bool | bytes | frozenset | type):
        return value
    if isinstance(value, Graph | Node | Edge | Kind):
        return id(value)
    is_record = isinstance(value, msgspec.Struct) and value.__struct_config__.frozen
    if not (is_record or type(value) in (dict, list, tuple)):
        if id(value) in seen:
            return f"#{seen[id(value)]}"
        seen[id(value)] = len(seen)
    if isinstance(value, Timers):
        return dict(value)  # what is left in its heap is no deadline
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, [dump(v, seen) for v in msgspec.structs.astuple(value)])
    if isinstance(value, Mapping):
        return [(dump(k, seen), dump(v, seen)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return [dump(v, seen) for v in value]
    if isinstance(value, set):
        return sorted(map(str, value))
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names += list(getattr(value, "__dict__", ()))
    return (type(value).__name__, [(name, dump(getattr(value, name, None), seen)) for name in names])


class TwoWays(Driver):
    """A driver that takes the result of each call by `complete_plain_call`, and compares."""

    plain = 0

    def answer(self, call: OpenCall) -> None:
        if call.call_id not in self.state.calls:
            super().answer(call)
            return
        try:
            record = call.activation.tool
            result = self.call(record.name, record.parameters)
        except Fault as fault:
            self.call, kept = _raising(fault), self.call
            super().answer(call)
            self.call = kept
            return
        self.waiting.remove(call)
        self.now += 1000
        wanted, twin = self._plainly(call.call_id, result)
        effects: list[Any] = []
        events = engine.complete_plain_call(self.state, call.call_id, result, 1, self.now, effects)
        if events is None:
            assert dump(self.state) == dump(self.refold()), "changed, though nothing was done"
            self.advance(engine.tool_completed(self.state, call.call_id, result, 1))
            return
        self.plain += 1
        self._keep(events)
        wanted_effects = [e for data in events if (e := engine.effect_of(data)) is not None]
        # The only call of the activation has its result: nothing is left to be released.
        assert wanted_effects[0] == engine.Release(call.activation.key)
        assert effects == wanted_effects[1:]
        if not engine.has_more(self.state):
            assert engine.decide(self.state, self.now) == []
        self.advance([])
        assert [data for data, _, _ in self.log][-len(wanted) :] == wanted
        assert dump(self.state) == dump(twin)

    def _keep(self, events: list[Any]) -> None:
        first = self.state.next_offset - len(events)
        for offset, data in enumerate(events, first):
            self.log.append((data, offset, self.now))
            effect = engine.effect_of(data)
            if isinstance(effect, engine.StartCall):
                self.waiting.append(self.state.calls[effect.call_id])

    def _plainly(self, call_id: str, result: Any) -> tuple[list[Any], RunState]:
        twin = self.refold()
        events: list[Any] = []
        moves = engine.tool_completed(twin, call_id, result, 1)
        while moves:
            for data in moves:
                engine.evolve(twin, data, twin.next_offset, self.now)
                events.append(data)
            moves = engine.decide(twin, self.now)
        return events, twin


def _raising(fault: Fault) -> Any:
    def fail(name: str, parameters: Any) -> Any:
        raise fault

    return fail


class Seed:
    """The dice of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.wild = seed % 3  # how much stands in the way: nothing, little, much

    def chance(self, p: float) -> bool:
        return self.rng.random() < p * (0, 0.3, 1)[self.wild]

    def node(self, i: int, names: list[str], **more: Any) -> ToolNode:
        if self.chance(0.2):
            policy = RetryPolicy(max_attempts=2, backoff=Backoff(initial=0.1), retry_on=("transient",))
            more["policy"] = Policy(retry=policy, timeout=60.0 if self.chance(0.3) else None)
        if self.chance(0.1):
            more["guard"] = "${{ inputs.go }}" if self.chance(0.5) else "${{ true }}"
        if self.chance(0.1):
            more["for_each"] = "${{ inputs.list }}"
        if self.chance(0.1):
            more["required"] = False
        if self.chance(0.1):
            more["budget"] = Budget(max_tool_calls=5)
        value = {"x": "${{ inputs.n }}"} if self.rng.random() < 0.5 else {"x": i}
        if self.chance(0.1):
            value = {"x": "${{ inputs.n.missing.deep }}"}
        return ToolNode(id=names[i], index=i, tool=f"s.{names[i]}", input=value, **more)

    def workflow(self) -> Workflow:
        count = self.rng.randint(2, 9)
        names = [f"n{i}" for i in range(count)]
        options = Options(
            max_parallel=self.rng.choice([1, 2, 8]),
            on_failure="halt" if self.chance(0.3) else "continue",
            timeout=1e6 if self.chance(0.3) else None,
            max_steps=self.rng.choice([5, 40]) if self.chance(0.3) else 60,
        )
        if self.rng.random() < 0.5:
            made = [
                self.node(
                    i,
                    names,
                    depends_on=tuple(self.rng.sample(names[:i], self.rng.randint(0, min(i, 3)))),
                    join=self.rng.choice(["all_succeeded", "all_terminal"]),
                )
                for i in range(count)
            ]
            return steps(*made, options=options)
        nodes: list[Any] = []
        for i in range(count):
            following = names[i + 1] if i + 1 < count else "__end"
            if self.chance(0.2) and i:
                back = self.rng.choice([*names, "__end"])
                again = f"nodes.{names[i]}.visits < 3"
                nodes.append(ConditionNode(id=names[i], expression=again, on_true=back, on_false=following))
            else:
                nodes.append(self.node(i, names, next=following))
        return graph(*nodes, options=options)

    def result(self, name: str, parameters: Any) -> Any:
        if self.chance(0.15):
            raise Fault("transient", "server_error", unknown=self.chance(0.1))
        return self.rng.choice([{"x": 1}, None, [1, {"a": "b"}], "text", 3.5])

    def tools(self, workflow: Workflow) -> dict[str, Any]:
        checked = not self.chance(0.2)
        found: dict[str, Any] = {}
        for node in workflow.nodes:
            if isinstance(node, ToolNode):
                effect = self.rng.choice(["none", "read", "external"])
                info = tool(node.id, side_effect=effect, idempotent=effect != "external")
                asks = self.chance(0.05)
                found[node.id] = [msgspec.structs.replace(info, self_checked=checked, needs_approval=asks)]
        return found

    def play(self) -> TwoWays:
        workflow = self.workflow()
        driver = TwoWays(
            workflow,
            {"n": 1, "list": [1, 2], "go": self.rng.random() < 0.5},
            tools=self.tools(workflow),
            call=self.result,
        )
        for _ in range(300):
            if driver.state.terminal:
                break
            if self.chance(0.05):
                driver.crash()
            if self.chance(0.05):
                driver.now -= self.rng.randint(1, 10_000_000)
            if driver.waiting:
                driver.answer(self.rng.choice(driver.waiting))
                continue
            due = engine.next_due(driver.state, driver.now)
            if due is None:
                break
            driver.now = max(driver.now, due)
            driver.advance([])
        return driver


def play(seeds: range) -> int:
    plain = 0
    for seed in seeds:
        try:
            plain += Seed(seed).play().plain
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return plain


def test_a_plain_call_gives_the_events_and_the_state_that_decide_and_evolve_give():
    assert play(range(SEEDS)) > SEEDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_plain_call_gives_the_same_on_many_graphs():
    assert play(range(SEEDS, MANY_SEEDS)) > MANY_SEEDS


@pytest.mark.parametrize("count", [100])
def test_every_call_but_the_last_of_a_chain_is_plain(count: int):
    names = [f"n{i}" for i in range(count)]
    nodes = [ToolNode(id=n, tool=f"s.{n}", next=m) for n, m in zip(names, [*names[1:], "__end"], strict=True)]
    tools = {n: [msgspec.structs.replace(tool(n), self_checked=True)] for n in names}
    driver = TwoWays(graph(*nodes), {"x": 0}, tools=tools)
    assert driver.run().status == "completed"
    assert driver.plain == count
