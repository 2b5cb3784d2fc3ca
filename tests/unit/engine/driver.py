"""Drives the engine without actors, clock or I/O: every call is answered by a function of the test.

The order in which open calls are answered is the test's to choose, and at any point the log so far can
be folded anew, as after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow import engine
from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    EndNode,
    MapNode,
    ModelRef,
    RetryCompensateNode,
    StartNode,
    SubgraphNode,
    ToolNode,
    Workflow,
    agent_of,
    ir_hash,
)
from agentflow.engine import Activation, Bindings, OpenCall, RunState, StepBinding, ToolInfo
from agentflow.engine.shared_store import applied
from agentflow.events import catalogue as ev

MODEL = ModelRef(provider="scripted", model="m")
OTHER = ModelRef(provider="scripted", model="other")


class Fault(Exception):
    """A model or tool that fails: what the adapter would report."""

    def __init__(self, category: str, code: str, *, retry_after: float | None = None, unknown: bool = False):
        super().__init__(code)
        self.info = ErrorInfo(category=category, code=code, message=code)  # type: ignore[arg-type]
        self.retry_after = retry_after
        self.unknown = unknown


def tool(
    name: str = "add", *, side_effect: Any = "none", idempotent: bool = True, schema: Any = None
) -> ToolInfo:
    return ToolInfo(
        name=f"s__{name}",
        service="s",
        function=name,
        description="",
        input_schema=schema or {"type": "object"},
        schema_hash="h",
        side_effect=side_effect,
        idempotent=idempotent,
        timeout=60,
    )


def agent(id: str, *, index: int = 0, **more: Any) -> AgentNode:
    """A step of a dependency graph."""
    spec = {"name": id, "system_prompt": "p", "model": MODEL, "plain_result": "object"}
    spec.update(more.pop("spec", {}))
    more.setdefault("join", "all_succeeded")
    return AgentNode(id=id, index=index, agent=AgentSpec(**spec), **more)


def steps(*nodes: Any, **more: Any) -> Workflow:
    """A dependency graph of these nodes, in this order."""
    import msgspec

    placed = tuple(msgspec.structs.replace(n, index=i) for i, n in enumerate(nodes))
    return Workflow(
        name="w",
        nodes=(StartNode(id="__start"), *placed, EndNode(id="__end", index=len(nodes), drain=True)),
        **more,
    )


def chain(*nodes: Any, **more: Any) -> Workflow:
    """Nodes that hand a token on, in this order."""
    import msgspec

    ids = [n.id for n in nodes] + ["__end"]
    placed = tuple(
        msgspec.structs.replace(n, index=i, join="any", next=ids[i + 1]) for i, n in enumerate(nodes)
    )
    start = StartNode(id="__start", next=ids[0])
    return Workflow(
        name="w", nodes=(start, *placed, EndNode(id="__end", index=len(nodes), drain=True)), **more
    )


def graph(*nodes: Any, start: str = "", **more: Any) -> Workflow:
    """Nodes with ways of their own, between a start at the first of them and an end `__end` that drains."""
    import msgspec

    placed = tuple(msgspec.structs.replace(n, index=i) for i, n in enumerate(nodes))
    first = StartNode(id="__start", next=start or nodes[0].id)
    last = EndNode(id="__end", index=len(nodes), drain=True)
    return Workflow(name="w", nodes=(first, *placed, last), **more)


def call(id: str, next: str | None = None, **more: Any) -> ToolNode:
    """A node that calls the function `s.ID`, which needs no tools to be named."""
    return ToolNode(id=id, tool=f"s.{id}", next=next, **more)


def _bound(workflow: Workflow, tools: Any, models: Any, prefix: str = "") -> dict[str, StepBinding]:
    found: dict[str, StepBinding] = {}
    for node in workflow.nodes:
        step = prefix + node.id
        if agent_of(node) is not None:
            offered = {t.name: t for t in tools.get(step, [])}
            found[step] = StepBinding(models=models.get(step, (MODEL,)), tools=offered)
        elif isinstance(node, ToolNode) or (isinstance(node, MapNode) and node.tool is not None):
            name = (node.tool or "").rpartition(".")[2]
            offered = {t.name: t for t in tools.get(step, [tool(name, schema={"title": "any"})])}
            found[step] = StepBinding(tools=offered)
        elif isinstance(node, RetryCompensateNode):
            names = (name.rpartition(".")[2] for name in (node.tool, node.compensate_tool))
            known = [tool(name, schema={"title": "any"}) for name in names]
            found[step] = StepBinding(tools={t.name: t for t in tools.get(step, known)})
        elif isinstance(node, SubgraphNode) and node.inline is not None:
            found |= _bound(node.inline, tools, models, f"{step}/")
    return found


class Driver:
    """One run. `log` holds (data, offset, time) of every event."""

    def __init__(
        self,
        workflow: Workflow,
        input: Any = None,
        *,
        tools: dict[str, list[ToolInfo]] | None = None,
        models: dict[str, tuple[ModelRef, ...]] | None = None,
        options: dict[str, Any] | None = None,
        model: Callable[[Activation, OpenCall], Any] | None = None,
        call: Callable[[str, Any], Any] | None = None,
        store: dict[str, Any] | None = None,
        run: str = "wf_1",
    ) -> None:
        self.workflow = workflow
        self.model = model or (lambda activation, call: "{}")
        self.call = call or (lambda name, parameters: parameters)
        self.bindings = Bindings(steps=_bound(workflow, tools or {}, models or {}))
        self.plan = engine.compile_graph(workflow)
        self.name = run
        self.state = RunState(run, self.plan, self.bindings)
        self.store: dict[str, Any] = {} if store is None else store
        """What runs share; a crash does not lose it."""
        self.accesses: list[engine.StoreAccess] = []
        self.asked_at: list[int] = []
        """The length of the log at each access."""
        self.now = 1_000_000
        self.log: list[tuple[Any, int, int]] = []
        self.batches: list[int] = []
        """The lengths of the log before each batch: a store keeps a batch or none of it."""
        self.waiting: list[OpenCall] = []
        self.found: dict[str, Any] = {}
        self.lookups: list[engine.Lookup] = []
        self.requests: list[tuple[str, list[Message]]] = []
        self.advance(
            [
                ev.WorkflowStarted(
                    definition=ev.DefinitionInfo(id="d", name="w", version=None, format="ir/v0", hash="h"),
                    ir_hash=ir_hash(workflow),
                    source="",
                    input=input,
                    options=options or {},
                    labels={},
                    schema_version=1,
                    runtime_version="0",
                    by="test",
                )
            ]
        )

    def take(self, moves: list[Any]) -> None:
        if moves:
            self.batches.append(len(self.log))
        for data in moves:
            offset = self.state.next_offset
            self.log.append((data, offset, self.now))
            engine.evolve(self.state, data, offset, self.now)
            assert self.state.running <= self.state.max_parallel, f"{data.EVENT_TYPE} exceeds max_parallel"
            effect = engine.effect_of(data)
            if isinstance(effect, engine.StartCall) and effect.call_id in self.state.calls:
                self.waiting.append(self.state.calls[effect.call_id])

    def advance(self, moves: list[Any]) -> None:
        self.take(moves)
        while decided := engine.decide(self.state, self.now, self.found):
            assert decided == engine.decide(self.state, self.now, self.found), "asked twice, decided twice"
            if isinstance(decided[0], engine.StoreAccess):
                self.access(decided[0])
            elif isinstance(decided[0], engine.BindGraph):
                given = decided[0].definition()
                assert not isinstance(given, str)
                bound = _bound(given, {}, {})
                self.found[decided[0].activation_key] = engine.BoundGraph(bound)
            elif isinstance(decided[0], engine.Lookup):
                self.found[decided[0].activation_key] = "asked"
                self.lookups.append(decided[0])
            else:
                self.take(decided)
        self.waiting = [call for call in self.waiting if call.call_id in self.state.calls]

    def access(self, access: engine.StoreAccess) -> None:
        """Give the answer of the store, which is a dict that may belong to several drivers."""
        found = applied(access.operation, self.store.get(access.key))
        self.store[access.key], self.found[access.answer_key] = found
        self.accesses.append(access)
        self.asked_at.append(len(self.log))

    def forget_accesses(self, upto: int) -> None:
        """Let the store have only the accesses that were made before the log had `upto` events."""
        kept = [a for a, at in zip(self.accesses, self.asked_at, strict=True) if at < upto]
        self.store.clear()
        for access in kept:
            self.store[access.key], _ = applied(access.operation, self.store.get(access.key))

    def answer(self, call: OpenCall) -> None:
        """Carry out one open call and fold its answer."""
        self.waiting.remove(call)
        self.now += 1000
        state, call_id, now = self.state, call.call_id, self.now
        if call_id not in state.calls:
            return
        try:
            if call.kind == "tool":
                record = call.activation.tool or call.activation.agent.tools[call_id]  # type: ignore[union-attr]
                result = self.call(record.name, record.parameters)
                self.advance(engine.tool_completed(state, call_id, result, 1))
            else:
                self.requests.append((call.activation.key, list(call.activation.agent.messages)))  # type: ignore[union-attr]
                said = self.model(call.activation, call)
                message = said if isinstance(said, Message) else Message(role="assistant", content=said)
                self.advance(
                    engine.model_completed(
                        state,
                        call_id,
                        message=message,
                        finish_reason="stop",
                        response_model="m",
                        response_id=None,
                        usage=Usage(model_calls=1, input_tokens=3, output_tokens=2),
                        duration_ms=1,
                        first_token_ms=None,
                    )
                )
        except Fault as fault:
            if call.kind == "tool":
                moves = engine.tool_failed(
                    state,
                    call_id,
                    fault.info,
                    executed=True,
                    unknown=fault.unknown,
                    duration_ms=1,
                    now=now,
                    draw=0.0,
                )
            else:
                moves = engine.model_failed(
                    state,
                    call_id,
                    fault.info,
                    retry_after=fault.retry_after,
                    duration_ms=1,
                    now=now,
                    draw=0.0,
                )
            self.advance(moves)

    def run(self, choose: Callable[[list[OpenCall]], OpenCall] = lambda calls: calls[0]) -> RunState:
        """Until nothing moves any more; time jumps to the next deadline when only that is left."""
        for _ in range(10_000):
            if self.waiting:
                self.answer(choose(self.waiting))
                continue
            due = engine.next_due(self.state, self.now)
            stands_still = self.state.status == "paused" or (
                self.state.status == "waiting" and self.state.requests
            )
            if self.state.terminal or stands_still or due is None:
                return self.state
            self.now = max(self.now, due)
            self.advance([])
        raise AssertionError("the run does not end")

    def refold(self, upto: int | None = None) -> RunState:
        """The state that the log (or its first `upto` events) gives."""
        state = RunState(self.name, self.plan, self.bindings)
        for data, offset, ts in self.log[:upto]:
            engine.evolve(state, data, offset, ts)
        return state

    def crash(self, upto: int | None = None) -> None:
        """Lose everything but the log's first `upto` events, and go on as a new process would."""
        del self.log[upto if upto is not None else len(self.log) :]
        self.state = self.refold()
        self.waiting, self.found, self.lookups = [], {}, []
        if not self.state.terminal:
            self.advance(engine.interrupted(self.state, self.now))

    def types(self) -> list[str]:
        return [data.EVENT_TYPE for data, _, _ in self.log]

    def events(self, kind: type[Any]) -> list[Any]:
        return [data for data, _, _ in self.log if isinstance(data, kind)]
