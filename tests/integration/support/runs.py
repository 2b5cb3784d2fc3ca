"""What the tests of commands, limits and storage share: documents, functions that can be held up and count
their executions by call, and the rules that every log must keep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.events.envelope import Event, decode
from agentflow.events.log import EventLog

__all__ = ["Desk", "chain", "document", "log_of", "must_be_sound", "step", "types_of"]

TERMINAL = ("workflow.completed", "workflow.failed", "workflow.cancelled")


def step(id: str, *, functions: Any = "none", prompt: str | None = None, **more: Any) -> dict[str, Any]:
    """A step of a document; `functions` are names of the service `desk`."""
    attached = functions if functions == "none" else [{"service": "desk", "function": f} for f in functions]
    agent = {
        "systemPrompt": prompt or id,
        "input": more.pop("input", "go"),
        "attachedFunctions": attached,
        "resultSchema": more.pop("schema", {}),
    }
    return {"type": "run", "id": id, "agent": agent, **more}


def document(*steps: dict[str, Any], **workflow: Any) -> dict[str, Any]:
    """A document of these steps."""
    return {"version": "1.0", "workflow": {"steps": list(steps), **workflow}}


def chain(*tools: str, name: str = "chain") -> Workflow:
    """A graph that calls these functions of the service `desk`, one after another, without any model."""
    ids = [f"t{i}" for i in range(len(tools))]
    following = [*ids[1:], "__end"]
    nodes = [
        ToolNode(id=id, tool=f"desk.{tool}", next=after, input={}, index=i)
        for i, (id, tool, after) in enumerate(zip(ids, tools, following, strict=True))
    ]
    return Workflow(
        name=name,
        nodes=(StartNode(id="__start", next=ids[0]), *nodes, EndNode(id="__end", index=len(ids), drain=True)),
    )


class Desk:
    """The service `desk`: `look` is harmless, `pay` and `wire` are not. Each waits at its gate when
    that is closed."""

    def __init__(self, **closed: bool) -> None:
        self.executions: Counter[str] = Counter()  # by idempotency key
        self.runs: list[str] = []  # in the order in which they were first at work here
        self.at_work: set[str] = set()
        self.most = 0
        self.entered = asyncio.Event()
        self.cancelled = 0
        self.pace: Callable[[], float] = lambda: 0.0  # seconds that a function takes beside its gate
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.gates = {name: asyncio.Event() for name in ("look", "pay", "wire")}
        for name, gate in self.gates.items():
            if not closed.get(name):
                gate.set()

    @property
    def calls(self) -> int:
        """How many executions there were."""
        return self.executions.total()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something about this desk; looked at whenever a function begins or ends."""
        if not condition():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append((condition, future))
            await future

    def _look(self) -> None:
        for condition, future in self._watchers:
            if not future.done() and condition():
                future.set_result(None)

    async def _work(self, name: str, ctx: ToolContext) -> dict[str, Any]:
        self.executions[ctx.idempotency_key] += 1
        if ctx.workflow_id not in self.runs:
            self.runs.append(ctx.workflow_id)
        self.at_work.add(ctx.workflow_id)
        self.most = max(self.most, len(self.at_work))
        self.entered.set()
        self._look()
        try:
            await self.gates[name].wait()
            await asyncio.sleep(self.pace())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.at_work.discard(ctx.workflow_id)
            self._look()
        return {"done": name}

    def service(self, **more: Any) -> Service:
        """What a Runtime gets."""

        @function(side_effect="read")
        async def look(ctx: ToolContext) -> dict:
            """Looks."""
            return await self._work("look", ctx)

        @function(side_effect="external")
        async def pay(ctx: ToolContext) -> dict:
            """Pays."""
            return await self._work("pay", ctx)

        @function
        async def wire(ctx: ToolContext) -> dict:
            """Nobody knows what it does."""
            return await self._work("wire", ctx)

        return Service.of("desk", look, pay, wire, **more)


async def log_of(log: EventLog | Runtime, workflow_id: str) -> list[Event[Any]]:
    """All durable events of a run."""
    store = log.log if isinstance(log, Runtime) else log
    found: list[Event[Any]] = []
    while rows := await store.read(workflow_id, len(found), 1000):
        found += [decode(row.body) for row in rows]
    return found


async def types_of(log: EventLog | Runtime, workflow_id: str) -> list[str]:
    """The types of its events."""
    return [event.type for event in await log_of(log, workflow_id)]


async def must_be_sound(log: EventLog | Runtime, workflow_id: str, *, ended: bool = True) -> list[Event[Any]]:
    """The events of a run, which keep every rule that holds for all: no gap, one end at most and nothing
    behind it, every call ended once by the end, and no result for a call twice. Calls of its base count."""
    events = await log_of(log, workflow_id)
    assert [e.offset for e in events] == list(range(len(events)))
    assert events[0].type == "workflow.started"
    terminal = [e for e in events if e.type in TERMINAL]
    assert len(terminal) <= 1
    assert not terminal or events[-1] is terminal[0]
    assert not ended or terminal, events[-1]
    opened: set[str] = set()
    done: set[str] = set()
    for e in [*await _base(log, events), *events]:
        call = getattr(e.data, "tool_call_id", None) or getattr(e.data, "model_call_id", None)
        if e.type.endswith("call_started"):
            assert call not in opened, f"{call} was begun twice at once"
            assert call not in done, f"{call} has its result and was made again"
            opened.add(call)
        elif e.type.endswith(("call_completed", "call_failed")):
            assert call in opened, f"{call} ended without having begun"
            opened.discard(call)
            if e.type.endswith("completed"):
                done.add(call)
    assert not terminal or not opened, f"{opened} have no end"
    return events


async def _base(log: EventLog | Runtime, events: list[Event[Any]]) -> list[Event[Any]]:
    """What a fork begins with; nothing of a run that is none."""
    saved = events[1].data if len(events) > 1 else None
    if getattr(saved, "kind", None) != "fork_base":
        return []
    store = log.log if isinstance(log, Runtime) else log
    body = await store.get_blob(saved.ref)
    assert body is not None
    return [decode(line) for line in body.split(b"\n") if line]
