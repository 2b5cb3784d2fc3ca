"""Seeded random graphs of all kinds, driven through failures, time, crashes, pauses and cancels."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from agentflow import engine
from agentflow.definition.ir import (
    BatchNode,
    CacheReadNode,
    CacheWriteNode,
    ConditionNode,
    DebounceNode,
    Edge,
    EndNode,
    ErrorRoute,
    EventTriggerNode,
    FilterNode,
    GlobalUpdate,
    HumanNode,
    LoopNode,
    MapNode,
    MergeNode,
    Options,
    ParallelNode,
    Policy,
    ReduceNode,
    RetryCompensateNode,
    Route,
    RouterNode,
    StartNode,
    SubgraphNode,
    ThrottleNode,
    ToolNode,
    TransformNode,
    WaitNode,
    Workflow,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.held_steps import retry_all, settle_held
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault

INPUT = {"items": [3, 1, 2], "none": [], "n": 1, "k": "a", "yes": True, "no": "No", "name": "go"}


class Maker:
    """Makes a block of nodes that a token enters at one node and leaves to another."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[Any] = []
        self.edges: list[Edge] = []
        self.names = 0

    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}{self.names}"

    def chain(self, after: str | None, depth: int, length: int) -> str:
        """Return the entry of a chain that leads to `after`; None ends a child path."""
        target = after
        for _ in range(length):
            target = self.block(target, depth)
        assert target is not None
        return target

    def block(self, after: str | None, depth: int) -> str:
        kinds = ["tool", "tool", "wait", "event", "value", "write"]
        if after is not None:
            kinds += ["array", "read", "debounce", "throttle", "human", "compensate"]
        if depth:
            kinds += ["parallel", "merge", "body", "items"]
            if after is not None:
                kinds += ["condition", "router", "loop", "subgraph", "merge", "window"]
        kind = self.rng.choice(kinds)
        return getattr(self, f"_{kind}")(after, depth)

    def _common(self) -> dict[str, Any]:
        rng, more = self.rng, {}
        if rng.random() < 0.1:
            more["on_error"] = rng.choice(["skip", "skip", "fail"])
        if rng.random() < 0.15:
            more["set_globals"] = {"g": rng.choice(["input.n", "input.items"])}
        if rng.random() < 0.15:
            op = rng.choice(["append", "increment"])
            source = {"source": "input.n"} if op == "append" else {}
            more["update_globals"] = {op: GlobalUpdate(op=op, **source)}
        return more

    def add(self, node: Any) -> str:
        self.nodes.append(node)
        return node.id

    def _tool(self, after: str | None, depth: int) -> str:
        rng, more = self.rng, self._common()
        if rng.random() < 0.3:
            retry = RetryPolicy(max_attempts=2, backoff=Backoff(initial=0.5), retry_on=("tool",))
            more["policy"] = Policy(retry=retry, timeout=rng.choice([None, 1.0]))
        if rng.random() < 0.1 and after is not None:
            more["on_error"] = ErrorRoute(next=after, codes=rng.choice([(), ("tool",), ("other",)]))
        if rng.random() < 0.05:
            more["required"] = False
        return self.add(ToolNode(id=self.name("tool"), tool="s.call", next=after, **more))

    def _wait(self, after: str | None, depth: int) -> str:
        node = WaitNode(
            id=self.name("wait"), duration=self.rng.choice([0.1, 2.0]), next=after, **self._common()
        )
        return self.add(node)

    def _event(self, after: str | None, depth: int) -> str:
        """A trigger that nothing signals, so that its time always ends; or a comparison."""
        more: dict[str, Any] = {"timeout": self.rng.choice([0.1, 2.0])}
        if self.rng.random() < 0.5:
            more = {"event_path": self.rng.choice(["input.name", "input.n"])}
        node = EventTriggerNode(id=self.name("event"), event="go", next=after, **more, **self._common())
        return self.add(node)

    def _human(self, after: str, depth: int) -> str:
        """A question that a value decides, or whose time ends."""
        more: dict[str, Any] = {"decision_path": self.rng.choice(["input.yes", "input.no", "input.n"])}
        if self.rng.random() < 0.5:
            more = {"timeout": 1.0, "on_timeout": after}
        ways = {"on_approve": after, "on_reject": self.chain(after, max(0, depth - 1), 1)}
        return self.add(HumanNode(id=self.name("human"), **ways, **more, **self._common()))

    def _compensate(self, after: str, depth: int) -> str:
        tools = {"tool": "s.call", "compensate_tool": "s.call", "max_retries": self.rng.choice([0, 1])}
        return self.add(
            RetryCompensateNode(id=self.name("compensate"), next=after, **tools, **self._common())
        )

    def _array(self, after: str | None, depth: int) -> str:
        path = self.rng.choice(["input.items", "input.items", "input.n"])
        return self.add(
            BatchNode(id=self.name("array"), items_path=path, size=2, next=after, **self._common())
        )

    def _value(self, after: str | None, depth: int) -> str:
        rng, more = self.rng, {"next": after, **self._common()}
        path = rng.choice(["input.items", "input.items", "input.none", "input.n"])
        kind = rng.choice(["reduce", "source", "filter", "transform"])
        if kind == "reduce":
            operation: Any = rng.choice(["count", "sum", "avg", "concat", "last"])
            return self.add(ReduceNode(id=self.name(kind), items_path=path, operation=operation, **more))
        if kind == "source":
            name = self.name(kind)
            source = rng.choice([n.id for n in self.nodes] or [name])
            return self.add(ReduceNode(id=name, source=source, operation="count", **more))
        if kind == "filter":
            text = rng.choice(["item > 1", "index > 0", "item > 'x'"])
            return self.add(FilterNode(id=self.name(kind), items_path=path, expression=text, **more))
        text = rng.choice(["[1, 2]", "input.items", "input.n > 'x'"])
        return self.add(TransformNode(id=self.name(kind), expression=text, **more))

    def _cache(self) -> dict[str, Any]:
        scope = self.rng.choice(["run", "run", "definition", "global"])
        return {"key_path": self.rng.choice(["input.k", "input.k", "input.n"]), "scope": scope}

    def _read(self, after: str, depth: int) -> str:
        name = self.name("read")
        miss = self.chain(after, depth - 1, 1) if depth and self.rng.random() < 0.5 else None
        return self.add(CacheReadNode(id=name, next=after, on_miss=miss, **self._cache(), **self._common()))

    def _write(self, after: str | None, depth: int) -> str:
        ttl = self.rng.choice([None, 1.0])
        more = {**self._cache(), **self._common()}
        return self.add(
            CacheWriteNode(id=self.name("write"), value_path="input.n", ttl=ttl, next=after, **more)
        )

    def _gate(self, mode: str) -> dict[str, Any]:
        rng, more = self.rng, self._common()
        more["key_path"] = rng.choice(["input.k", "input.k", "input.k", "input.n"])
        if rng.random() < 0.3 and mode not in ("trailing", "delay"):
            return {**more, "window_steps": rng.choice([1, 3])}
        return {**more, "window": rng.choice([0.5, 3.0]), "scope": rng.choice(["run", "run", "definition"])}

    def _debounce(self, after: str, depth: int) -> str:
        mode: Any = self.rng.choice(["leading", "trailing"])
        other = self.chain(after, depth - 1, 1) if depth and self.rng.random() < 0.5 else None
        more = self._gate(mode)
        node = DebounceNode(id=self.name("debounce"), mode=mode, next=after, on_suppressed=other, **more)
        return self.add(node)

    def _throttle(self, after: str, depth: int) -> str:
        mode: Any = self.rng.choice(["drop", "delay"])
        limit = self.rng.choice([1, 2])
        return self.add(
            ThrottleNode(id=self.name("throttle"), mode=mode, limit=limit, next=after, **self._gate(mode))
        )

    def _window(self, after: str | None, depth: int) -> str:
        more: dict[str, Any] = {"size": self.rng.choice([None, 1, 2])}
        if self.rng.random() < 0.4:
            more["max_wait"] = 1.5
        if self.rng.random() < 0.3:
            more["key_path"] = "input.n"
        return self.add(BatchNode(id=self.name("window"), next=after, **more))

    def _condition(self, after: str, depth: int) -> str:
        name = self.name("if")
        ways = [self.chain(after, depth - 1, self.rng.randint(1, 2)), after]
        text = self.rng.choice(["input.n > 0", "input.n > 1", "input.n > 'x'", "last_tool_output"])
        return self.add(ConditionNode(id=name, expression=text, on_true=ways[0], on_false=ways[1]))

    def _router(self, after: str, depth: int) -> str:
        name = self.name("router")
        routes = tuple(
            Route(when=self.rng.choice(["true", "false", "globals.g"]), next=self.chain(after, depth - 1, 1))
            for _ in range(2)
        )
        return self.add(RouterNode(id=name, routes=routes, default=after))

    def _loop(self, after: str, depth: int) -> str:
        name = self.name("loop")
        more: dict[str, Any] = {"max_iterations": 2}
        if self.rng.random() < 0.5:
            more["on_limit"] = after
        text = self.rng.choice([f"nodes.{name}.count < 2", "true", "false"])
        body = self.chain(name, depth - 1, 1)
        return self.add(LoopNode(id=name, condition=text, body=body, next=after, **more))

    def _branches(self, next: str | None, depth: int) -> tuple[str, ...]:
        count = self.rng.randint(1, 3)
        return tuple(
            self.chain(self.rng.choice([next, None]) if next else None, depth - 1, self.rng.randint(1, 2))
            for _ in range(count)
        )

    def _parallel(self, after: str | None, depth: int) -> str:
        name, branches = self.name("parallel"), self._branches(after, depth)
        how = self.rng.choice(["fail", "collect"])
        node = ParallelNode(
            id=name,
            branches=branches,
            next=after,
            max_in_flight=self.rng.choice([1, 2, 8]),
            on_branch_error=how,
            **self._common(),
        )
        return self.add(node)

    def _merge(self, after: str | None, depth: int) -> str:
        name, merge = self.name("parallel"), self.name("merge")
        branches = self._branches(merge, depth)
        rule = self.rng.choice(["first", "all", "quorum"])
        more: dict[str, Any] = {"rule": rule}
        if rule == "quorum":
            more["quorum"] = self.rng.randint(1, len(branches))
        if rule != "all":
            more["rest"] = self.rng.choice(["cancel", "drain"])
        if self.rng.random() < 0.4:
            more["timeout"] = self.rng.choice([0.01, 1.0])
            if after is not None and self.rng.random() < 0.5:
                more["on_timeout"] = after
        if self.rng.random() < 0.3:
            more["on_branch_error"] = self.rng.choice(["fail", "collect"])
        self.add(MergeNode(id=merge, sources=branches, next=after, **more))
        how = self.rng.choice(["fail", "collect"])
        fork = ParallelNode(id=name, branches=branches, next=merge, on_branch_error=how, max_in_flight=2)
        return self.add(fork)

    def _body(self, after: str | None, depth: int) -> str:
        name = self.name("map")
        body = self.chain(
            self.rng.choice([after, None]) if after else None, depth - 1, self.rng.randint(1, 2)
        )
        more: dict[str, Any] = {}
        if self.rng.random() < 0.5:
            more["input"] = self.rng.choice([{"i": "${{ item }}"}, "${{ item > 'x' }}"])
        return self._map(name, after, body=body, **more)

    def _items(self, after: str | None, depth: int) -> str:
        return self._map(self.name("map"), after, tool="s.call")

    def _map(self, name: str, after: str | None, **more: Any) -> str:
        rng = self.rng
        path = rng.choice(["input.items", "input.items", "input.none", "input.n"])
        how = rng.choice(["fail", "collect", "skip"])
        node = MapNode(
            id=name,
            items_path=path,
            next=after,
            max_in_flight=rng.choice([1, 2]),
            on_item_error=how,
            **self._common(),
            **more,
        )
        return self.add(node)

    def _subgraph(self, after: str, depth: int) -> str:
        name = self.name("sub")
        inner = type(self)(self.rng)
        start = inner.chain("__end", depth - 1, self.rng.randint(1, 2))
        graph = whole(inner.nodes, start, drain=self.rng.random() < 0.5, edges=tuple(inner.edges))
        return self.add(SubgraphNode(id=name, inline=graph, next=after, input=INPUT, **self._common()))


def whole(nodes: list[Any], start: str, *, drain: bool = True, **more: Any) -> Workflow:
    placed = tuple(msgspec.structs.replace(n, index=i) for i, n in enumerate(nodes))
    end = EndNode(id="__end", index=len(nodes), drain=drain)
    return Workflow(name="w", nodes=(StartNode(id="__start", next=start), *placed, end), **more)


def random_graph(rng: random.Random) -> Workflow:
    maker = Maker(rng)
    start = maker.chain("__end", 2, rng.randint(1, 3))
    edges: tuple[Edge, ...] = ()
    if rng.random() < 0.3:
        edges = (Edge(source="__start", target=maker.chain("__end", 1, 1)),)
    options = Options(
        max_parallel=rng.choice([1, 2, 8]),
        on_failure=rng.choice(["continue", "continue", "halt", "hold"]),
        max_steps=rng.choice([20, 1_000, 1_000]),
        timeout=rng.choice([None, None, None, 3.0]),
    )
    return whole(maker.nodes, start, drain=rng.random() < 0.7, edges=edges, options=options)


class Fate:
    """One seed: a graph, and what becomes of its run."""

    def __init__(self, seed: int, graph: Workflow | None = None) -> None:
        self.rng = random.Random(seed)
        self.cancel = 0.01 if self.rng.random() < 0.1 else 0.0
        self.driver = Driver(
            graph or random_graph(self.rng), INPUT, call=lambda name, parameters: self.execute()
        )

    def execute(self) -> Any:
        if self.rng.random() < 0.12:
            raise Fault("tool", "tool")
        return self.rng.choice([1, {"x": [1]}, None])

    def run(self) -> Driver:
        for turn in range(3_000):
            if self.driver.state.terminal:
                check(self.driver)
                return self.driver
            if turn % 16 == 0:
                assert view(self.driver.state) == view(self.driver.refold())
            self.move()
            assert not (asked := orphans(self.driver.state)), f"{asked} are asked for work that has ended"
        raise AssertionError("the run does not end")

    def move(self) -> None:
        driver, rng = self.driver, self.rng
        if self.befall():
            return
        if driver.waiting and rng.random() < 0.9:
            driver.answer(rng.choice(driver.waiting))
        else:
            due = engine.next_due(driver.state, driver.now)
            where = f"{driver.state.status}, open {sorted(driver.state.open)}"
            assert driver.waiting or due is not None, f"stuck: {where}"
            driver.now = driver.now + 300_000 if driver.waiting or due is None else max(driver.now, due)
            driver.advance([])

    def befall(self) -> bool:
        """Let a pause, a cancel or a crash come between, and end a pause; False if nothing does."""
        driver, state, rng = self.driver, self.driver.state, self.rng
        if state.status == "paused":
            driver.now += 1_000
            if state.held_steps and rng.random() < 0.7:
                step = rng.choice(sorted(state.held_steps))
                action = rng.choice(["retry", "skip", "done", "fail"])
                driver.advance(settle_held(state, step, action, driver.now, by="test", output=1))
            else:
                resumed = ev.WorkflowResumed(reason=None, by="test")
                driver.advance([*retry_all(state, driver.now, by="test"), resumed])
        elif rng.random() < 0.02:
            how = rng.choice(["drain", "suspend"])
            driver.advance([ev.WorkflowPaused(reason="operator", detail=None, by="test", in_flight=how)])
        elif rng.random() < self.cancel:
            driver.advance([ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="test")])
            driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
        elif len(driver.batches) > 1 and rng.random() < 0.05:
            self.crash()
        else:
            return False
        return True

    def crash(self) -> None:
        driver = self.driver
        cut = self.rng.choice([*driver.batches[-3:], len(driver.log)])
        last = driver.log[max(cut, 1) - 1][0]
        if cut and not isinstance(last, ev.WorkflowPaused):
            driver.batches = [b for b in driver.batches if b < cut]
            driver.crash(cut)


def orphans(state: RunState) -> list[str]:
    """Return open requests of activations that have ended. Those of handlers are messages, and may outlive
    the activation that sent them."""
    requests = [r for r in state.requests.values() if not r.activation.node.kind.sends]
    return [r.request_id for r in requests if r.activation.key not in state.activations]


def view(state: RunState) -> dict[str, Any]:
    """What must be the same however the state came about."""
    paths = {
        key: (path.live, sorted(path.work), path.stopped, repr(path.error), path.output, path.frame.nodes)
        for key, path in state.paths.items()
    }
    return {
        "status": (state.status, state.next_offset, state.steps_done, state.failed_steps),
        "work": (list(state.activations), [a.key for a in state.arrived], sorted(state.open), state.running),
        "changed": set(state.changed),
        "nodes": {i: (n.status, n.visits, n.live, n.slots, n.count) for i, n in state.nodes.items()},
        "paths": paths,
        "globals": state.root.frame.globals,
        "timers": (dict(state.timers), sorted(state.scheduled)),
        "memory": (state.memory.cache, _gates(state.memory.gates)),
        "steps": {key: (path.steps, _gates(path.gates)) for key, path in state.paths.items()},
    }


def _gates(gates: Any) -> dict[Any, Any]:
    """Return what gates remember; an arrival that waits is named by its key."""
    return {
        key: (g.seen, g.passes, g.latest and g.latest.key, [a.key for a in g.queue])
        for key, g in gates.items()
    }


_ENDS = (ev.WorkflowStepCompleted, ev.WorkflowStepFailed, ev.WorkflowStepSkipped)
_OVER = (ev.WorkflowCompleted, ev.WorkflowFailed, ev.WorkflowCancelled)


def check(driver: Driver) -> None:
    """The log is legal: activations begin and end once, and before their openers; the end is last."""
    begun: set[tuple[str, int | None]] = set()
    ended: set[tuple[str, int | None]] = set()
    calls: dict[str, Any] = {}
    timers: set[tuple[str, str]] = set()
    for data, offset, _ in driver.log:
        where = (getattr(data, "activation", ""), getattr(data, "iteration", None))
        if isinstance(data, ev.WorkflowStepStarted):
            assert where not in begun | ended, f"{where} was started twice"
            begun.add(where)
            for opener, _ in ended:
                assert not where[0].startswith(f"{opener}."), f"{where} began behind the end of {opener}"
        elif isinstance(data, _ENDS):
            assert where not in ended, f"{where} ended twice"
            assert where not in calls.values(), f"{where} ended with an open call"
            ended.add(where)
            inside = [w for w in begun - ended if w[0].startswith(f"{where[0]}.")]
            assert not inside, f"{where} ended before {inside}"
        elif isinstance(data, ev.ToolCallStarted):
            calls[data.tool_call_id] = where
        elif isinstance(data, ev.ToolCallCompleted | ev.ToolCallFailed):
            del calls[data.tool_call_id]
        elif isinstance(data, ev.TimerScheduled):
            timers.add((data.timer_id, where[0]))
        elif isinstance(data, ev.TimerFired | ev.TimerCancelled):
            timers.remove((data.timer_id, where[0]))
        elif isinstance(data, _OVER):
            assert offset == len(driver.log) - 1, "the terminal event is not the last"
    assert not calls, "the run ended with open calls"
    assert begun <= ended, f"the run ended with open steps {begun - ended}"
    assert not timers, f"the run ended with armed timers {timers}"
    state = driver.state
    assert view(state) == view(driver.refold())
    if not state.cancel_requested:
        assert list(state.paths) == [""], "child paths are left"
