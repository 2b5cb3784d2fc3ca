"""Graphs in which one kind of work stands in one kind of place, driven through one kind of fate.

What waits (for consent, an answer, a time, a call, a child run, room in a budget) meets every place where
work can stand (branches, bodies, subgraphs, merges, dependencies, two visits of one node). The options of the
run, what stands beside the work, and what happens in which order follow from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from agentflow import engine
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Approval,
    BatchNode,
    Budget,
    Cache,
    DebounceNode,
    Edge,
    EndNode,
    EventTriggerNode,
    ExecutorNode,
    HumanNode,
    LoopNode,
    MapNode,
    MergeNode,
    Options,
    ParallelNode,
    Policy,
    RetryCompensateNode,
    SharedKey,
    StartNode,
    SubgraphNode,
    ThrottleNode,
    WaitNode,
    Workflow,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import MODEL, Fault, call, graph
from tests.unit.engine.handlers import Graph
from tests.unit.engine.kinds.mixed_graphs import PAY, Mixed, agents_of
from tests.unit.engine.kinds.random_graphs import INPUT, whole

__all__ = ["FATES", "PLACES", "WORK", "Met", "takes_dependencies"]

FATES = ("plain", "cancel", "pause", "crash", "fail")

_RETRY = Policy(
    retry=RetryPolicy(max_attempts=2, backoff=Backoff(initial=5.0), retry_on=("tool",)), timeout=8.0
)
_ASKS = Approval()
_INNER = graph(call("y", "__end"))


def _agent(next: str | None, **more: Any) -> AgentNode:
    spec = AgentSpec(name="x", system_prompt="p", model=MODEL, plain_result="object")
    return AgentNode(id="x", agent=spec, next=next, input=1, **more)


def _child(next: str | None, **more: Any) -> SubgraphNode:
    return SubgraphNode(id="x", inline=_INNER, isolation="run", next=next, input=INPUT, **more)


def _items(next: str | None, **more: Any) -> MapNode:
    return MapNode(id="x", items_path="input.items", tool="s.x", next=next, max_in_flight=2, **more)


def _window(kind: Any, mode: Any) -> Callable[[str | None], Any]:
    def make(next: str | None) -> Any:
        if next is None:  # a gate leads on
            return WaitNode(id="x", duration=1.0)
        return kind(id="x", key_path="input.k", window=3.0, mode=mode, next=next)

    return make


def _human(next: str | None) -> HumanNode:
    if next is None:
        return HumanNode(id="x", input_type="text", timeout=6.0)
    return HumanNode(id="x", on_approve=next, on_reject=next)


WORK: dict[str, Callable[[str | None], Any]] = {
    "call": lambda n: call("x", n),
    "call with consent": lambda n: call("x", n, approval=_ASKS),
    "consent that expires": lambda n: call("x", n, approval=Approval(timeout=5.0)),
    "consent or skip": lambda n: call("x", n, approval=Approval(on_denied="skip")),
    "retried call": lambda n: call("x", n, policy=_RETRY),
    "retried call with consent": lambda n: call("x", n, policy=_RETRY, approval=_ASKS),
    "cached call": lambda n: call("x", n, cache=Cache(ttl=5.0)),
    "agent": _agent,
    "agent with consent": lambda n: _agent(n, approval=_ASKS),
    "agent that asks before calls": lambda n: _agent(n, approval=Approval(before="calls")),
    "agent within a budget": lambda n: _agent(n, budget=Budget(max_model_calls=1, on_exceeded="ask")),
    "person": _human,
    "wait": lambda n: WaitNode(id="x", duration=10.0, next=n),
    "wait with consent": lambda n: WaitNode(id="x", duration=10.0, next=n, approval=_ASKS),
    "signal": lambda n: EventTriggerNode(id="x", event="go", next=n, timeout=7.0),
    "compensated call": lambda n: RetryCompensateNode(
        id="x", tool="s.x", compensate_tool="s.x", max_retries=1, next=n, approval=_ASKS
    ),
    "child run": _child,
    "child run with consent": lambda n: _child(n, approval=_ASKS),
    "subgraph that asks": lambda n: SubgraphNode(
        id="x", inline=graph(call("y", "__end", approval=_ASKS)), next=n, input=INPUT
    ),
    "throttled": _window(ThrottleNode, "delay"),
    "debounced": _window(DebounceNode, "trailing"),
    "window": lambda n: BatchNode(id="x", size=2, next=n),
    "items": _items,
    "items with consent": lambda n: _items(n, approval=_ASKS),
    "executor": lambda n: ExecutorNode(id="x", executor="x"),
    "executor with consent": lambda n: ExecutorNode(id="x", executor="x", approval=_ASKS),
}

Make = Callable[[str | None], Any]
_INSIDE_AGENT_OR_CALL = ("call", "agent", "cached", "consent", "retried", "child")


def takes_dependencies(work: str) -> bool:
    """Return whether this work may wait for other steps and be done for each of several items."""
    return work.startswith(_INSIDE_AGENT_OR_CALL)


def _parallel(make: Make, how: Any, **more: Any) -> list[Any]:
    fork = ParallelNode(id="p", branches=("x", "z"), next="__end", on_branch_error=how, **more)
    return [fork, make(None), call("z")]


def _body(make: Make, how: Any, **more: Any) -> list[Any]:
    node = MapNode(id="p", items_path="input.items", body="x", next="__end", on_item_error=how, **more)
    return [node, make(None)]


def _merged(make: Make, how: Any, rule: Any, **more: Any) -> list[Any]:
    fork = ParallelNode(id="p", branches=("x", "z"), next="m", on_branch_error=how)
    merge = MergeNode(id="m", sources=("x", "z"), rule=rule, next="__end", **more)
    return [fork, make("m"), call("z", "m"), merge]


def _within(make: Make, **more: Any) -> SubgraphNode:
    inner = make("__end")
    return SubgraphNode(id="p", inline=whole([inner], "x", edges=_leads(inner)), input=INPUT, **more)


def _items_of(how: Any) -> MapNode:
    return MapNode(
        id="q", items_path="input.items", body="p", next="__end", max_in_flight=2, on_item_error=how
    )


PLACES: dict[str, Callable[[Make, Any], list[Any]]] = {
    "root": lambda make, how: [make("__end")],
    "branch": _parallel,
    "one branch at a time": lambda make, how: _parallel(make, how, max_in_flight=1),
    "branch of an opener that asks": lambda make, how: _parallel(make, how, approval=_ASKS),
    "body": lambda make, how: _body(make, how, max_in_flight=2),
    "one body at a time": lambda make, how: _body(make, how, max_in_flight=1),
    "subgraph": lambda make, how: [_within(make, next="__end")],
    "loop": lambda make, how: [
        LoopNode(id="p", condition="nodes.p.count < 2", body="x", next="__end", max_iterations=3),
        make("p"),
    ],
    "first of branches": lambda make, how: _merged(
        make, how, "first", rest="cancel" if how == "fail" else "drain"
    ),
    "quorum of branches": lambda make, how: _merged(make, how, "quorum", quorum=1, rest="cancel"),
    "all of branches": lambda make, how: _merged(make, how, "all"),
    "branch in a body": lambda make, how: [
        _items_of(how),
        ParallelNode(id="p", branches=("x", "z"), on_branch_error=how),
        make(None),
        call("z"),
    ],
    "subgraph in a body": lambda make, how: [_items_of(how), _within(make)],
    "two visits": lambda make, how: [call("a", "x"), make("__end"), call("b", "x")],
}


def _leads(node: Any) -> tuple[Edge, ...]:
    """Return the edge on of an executor, which has no `next`."""
    return (Edge(source="x", target="__end"),) if isinstance(node, ExecutorNode) else ()


def _steps(make: Make, how: Any, options: Options, *, each: bool) -> Workflow:
    """Return a step that waits for one and is waited for by another."""
    fields: dict[str, Any] = {"join": "all_terminal" if how == "collect" else "all_succeeded"}
    if each:
        fields |= {"for_each": "${{ inputs.items }}", "max_parallel": 2}
    nodes = [
        call("z", join="all_succeeded"),
        msgspec.structs.replace(make(None), depends_on=("z",), **fields),
        call("after", join="all_succeeded", depends_on=("x",)),
    ]
    placed = [msgspec.structs.replace(node, index=i) for i, node in enumerate(nodes)]
    end = EndNode(id="__end", index=len(nodes), drain=True)
    return Workflow(name="w", nodes=(StartNode(id="__start"), *placed, end), options=options)


def met_graph(rng: random.Random, work: str, place: str) -> Workflow:
    """Return the graph of one meeting. `place` may be "step" and "for_each", too."""
    make, how = WORK[work], rng.choice(["fail", "collect"])
    options = Options(
        policy=rng.choice(["eager", "superstep"]),
        max_parallel=rng.choice([1, 2, 8]),
        on_failure=rng.choice(["continue", "halt", "hold"]),
        timeout=rng.choice([None, None, 20.0, 3.0]),
        max_steps=rng.choice([6, 1_000, 1_000]),
        budget=Budget(max_tool_calls=2, on_exceeded="ask") if rng.random() < 0.15 else None,
    )
    if place in ("step", "for_each"):
        eager = msgspec.structs.replace(options, policy="eager")
        return _steps(make, how, eager, each=place == "for_each")
    nodes = PLACES[place](make, how)
    edges = [
        edge for node in nodes if node.id == "x" and place in ("root", "two visits") for edge in _leads(node)
    ]
    if place == "two visits":
        edges.append(Edge(source="__start", target="b"))
    beside: Any = rng.choice([None, call("bad", "__end"), WaitNode(id="early", duration=2.0, next="__end")])
    if beside is not None:
        nodes.append(beside)
        edges.append(Edge(source="__start", target=beside.id))
    keys = {"log": SharedKey(reducer="append"), "own": SharedKey()}
    more: dict[str, Any] = {"edges": tuple(edges), "options": options, "shared": keys}
    return whole(nodes, nodes[0].id, drain=rng.random() < 0.6, **more)


class Met(Mixed):
    """One meeting: a graph, and what befalls its run."""

    def __init__(self, seed: int, work: str, place: str, fate: str) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed} {work} {place} {fate}")
        self.fate = fate
        self.cancel = 0.15 if fate == "cancel" else 0.0
        workflow = met_graph(self.rng, work, place)
        self.driver = Graph(
            workflow,
            INPUT,
            handlers={},
            model=self.say,
            call=lambda name, parameters: self._call(name),
            tools={name: [PAY] for name in agents_of(workflow)},
        )
        self.driver.handlers.update(dict.fromkeys(self.driver.plan.all_nodes, self.handle))

    def _call(self, name: str) -> Any:
        dice = self.rng.random()
        if name == "s__bad" or dice < (0.5 if self.fate == "fail" else 0.12):
            raise Fault("tool", "tool")
        if dice > 0.92:
            raise Fault("timeout", "tool_timeout", unknown=True)
        return 1

    def befall(self) -> bool:
        """Pause, cancel while paused, answer during a drain, or crash, more often than in random graphs."""
        driver, state, rng = self.driver, self.driver.state, self.rng
        if self._looked_up():
            return True
        if state.status == "paused":
            if self.fate == "cancel" and rng.random() < 0.5:
                driver.advance([ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="test")])
                driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
                return True
            if state.draining and driver.waiting and rng.random() < 0.5:
                driver.answer(rng.choice(driver.waiting))
                return True
        elif self.fate == "pause" and rng.random() < 0.2:
            how = rng.choice(["drain", "suspend"])
            driver.advance([ev.WorkflowPaused(reason="operator", detail=None, by="test", in_flight=how)])
            return True
        elif self.fate == "crash" and len(driver.batches) > 1 and rng.random() < 0.3:
            self.crash()
            return True
        elif self.own_requests() and rng.random() < 0.2:
            self.reply()
            return True
        return super().befall()

    def _looked_up(self) -> bool:
        """Answer the oldest look-up of the cache: there is no result."""
        driver = self.driver
        while driver.lookups and not driver.state.terminal:
            key = driver.lookups.pop(0).activation_key
            if driver.found.get(key) == "asked":
                driver.found[key] = None
                driver.advance([])
                return True
        return False

    def reply(self) -> None:
        """Answer one question; a second answer to it is refused and changes nothing."""
        driver, asked = self.driver, self.own_requests()
        budgets = [r for r in asked if getattr(r.data, "request_type", None) == "budget"]
        if budgets:
            value = {"choice": "raise", "limit": 10_000_000}
            driver.now += 1_000
            driver.advance(engine.commands.answer(driver.state, {budgets[0].request_id: value}, by="test"))
            return
        super().reply()
        for request in asked:
            if request.request_id not in driver.state.requests:
                assert not self._again(request), "a second answer changes the run"

    def _again(self, request: Any) -> list[Any]:
        commands, state = engine.commands, self.driver.state
        try:
            if isinstance(request.data, ev.ApprovalRequested):
                return commands.decide_request(state, request_id=request.request_id, granted=True, by="late")
            return commands.answer(state, {request.request_id: "yes"}, by="late")
        except commands.Refused:
            return []
