"""actors D2: one fault at every handler call of every actor of the product, and each run still ends.

A bug is raised before or after a handler, the handler never returns, before or after its work, or the actor
is killed. Whatever it hits, the log is legal and comes to its end, nothing hangs, and no recorded effect is
executed again. Slow: all ten workflows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest

from actors import interceptor
from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import AgentflowError, RunNotFound
from agentflow.events.envelope import decode
from agentflow.models import ModelError
from agentflow.runtime.event_bus import EventBus
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.faults.simulated.invariants import assert_log_invariants
from tests.faults.simulated.world import LifeLog, World, intercepting
from tests.integration.support.runs import chain, document, step

RUN = "wf_a"
BUSY = ErrorInfo(category="transient", code="server_error", message="once")
LIMIT_S = 120.0  # virtual; every workflow here ends within 20 s without a fault
KINDS = ("bug before", "bug after", "hang before", "hang after", "kill")

WORKFLOWS: dict[str, Any] = {
    "chain of functions": chain("look", "look", "pay"),
    "one agent": document(step("a")),
    "chain of agents": document(step("a"), step("b", depends_on=["a"])),
    "fan-out": document(step("a"), step("b"), step("c"), step("d", depends_on=["a", "b", "c"])),
    "for_each": document(step("a", for_each="${{ inputs.items }}", input="${{ item }}")),
    "agent with functions": document(step("a", functions=["look", "pay"])),
    "approval": document(step("a", approval=True), step("b", depends_on=["a"])),
    "calls with consent": document(step("a", functions=["look"], approval={"before": "calls"})),
    "retries": document(step("a", prompt="fails once", retry={"max_attempts": 3, "backoff": "1s"})),
    "held after a failure": document(step("a", prompt="fails once", retry=False)),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Fault:
    """An interceptor: a fault at the n-th handler call of one kind of actor."""

    def __init__(self, actor: str = "", number: int = -1, kind: str = "") -> None:
        self.actor, self.number, self.kind = actor, number, kind
        self.calls: Counter[str] = Counter()

    def wants(self, message_type: type) -> bool:
        return True

    def wrap(self, handler: Any, _: Any) -> Any:
        """Return the handler of a table, with the fault in it. The product has plain handlers only."""

        def handle(actor: Any, message: Any) -> Any:
            ref = actor.ctx.self
            name = kind_of(ref.path)
            self.calls[name] += 1
            if name != self.actor or self.calls[name] != self.number:
                return handler(actor, message)
            if self.kind == "bug before":
                raise RuntimeError("an injected bug")
            if self.kind == "hang before":
                return asyncio.get_running_loop().create_future()
            if self.kind == "kill":
                ref.kill()
            result = handler(actor, message)
            if self.kind == "bug after":
                raise RuntimeError("an injected bug")
            if self.kind == "hang after":
                return asyncio.get_running_loop().create_future()
            return result

        return handle


def kind_of(path: str) -> str:
    if path.startswith("/runs"):
        return ("RunsSupervisor", "RunSupervisor", "AgentActor")[path.count("/") - 1]
    return {"b": "EventBus", "t": "ToolActor", "m": "ModelActor"}[path[1]]


class Trial:
    """One workflow with one fault."""

    def __init__(self, workflow: Any, fault: Fault, hold: bool) -> None:
        self.world = World(7)
        self.workflow, self.fault, self.hold = workflow, fault, hold
        self.executions: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.failures = 0
        self.problems: list[str] = []

    def run(self) -> None:
        with intercepting(self.fault), patch.object(interceptor, "_wrap", self.fault.wrap):
            self.world.live(self._live)
        events = asyncio.run(self._events())
        assert_log_invariants(events)
        assert not self.problems, self.problems
        for key, times in self.executions.items():
            if "pay" in key:
                assert times <= 1 + self.retried[key], f"{key}: {times} executions"

    async def _events(self) -> list[Any]:
        return [decode(row.body) for row in await self.world.store.read(RUN, 0, 10_000)]

    def _model(self) -> ScriptedModel:
        async def answer(request: Any) -> Any:
            await asyncio.sleep(0.05)
            if "fails once" in request.messages[0].content and not self.failures:
                self.failures = 1
                return ModelError(BUSY)
            if request.tools and request.messages[-1].role != "tool":
                return [call(tool.name) for tool in request.tools]
            return {"ok": True}

        return ScriptedModel(answer)

    def _service(self) -> Service:
        async def execute(name: str, ctx: ToolContext) -> dict:
            for event in await self._events():
                if event.type == "tool.call_completed" and event.data.tool_call_id == ctx.call_id:
                    self.problems.append(f"{ctx.idempotency_key} was executed again")
            self.executions[f"{name} {ctx.call_id}"] += 1
            await asyncio.sleep(0.05)
            return {}

        @function(side_effect="read")
        async def look(ctx: ToolContext) -> dict:
            """Looks."""
            return await execute("look", ctx)

        @function(side_effect="external")
        async def pay(ctx: ToolContext) -> dict:
            """Pays."""
            return await execute("pay", ctx)

        return Service.of("desk", look, pay)

    async def _live(self) -> None:
        log = LifeLog(self.world)
        runtime = self.world.runtime(log, models=[self._model()], services=[self._service()], grace=0.01)
        await runtime.__aenter__()
        await asyncio.wait_for(self._to_its_end(runtime), LIMIT_S)

    async def _to_its_end(self, runtime: Runtime) -> None:
        options = {"on_failure": "hold"} if self.hold else {}
        for _ in range(20):
            with suppress(AgentflowError):
                try:
                    await self.world.store.run(RUN)
                except RunNotFound:
                    handle = await runtime.submit(
                        self.workflow, {"items": [1, 2, 3]}, workflow_id=RUN, options=options
                    )
                else:
                    handle = await runtime.attach(RUN)
                state = (await handle.rest()).state
                if state in ("completed", "failed", "cancelled"):
                    return
                assert state in ("waiting", "paused"), f"result() returned a run that is {state}"
                await self._move_on(runtime)
                continue
            with suppress(AgentflowError):  # nobody works on it: take it up, as a daemon's start does
                await runtime.resume(RUN)
        raise AssertionError("the run does not end")

    async def _move_on(self, runtime: Runtime) -> None:
        for request in await runtime.requests(RUN):
            if request.kind != "input":
                await runtime.decide(RUN, request_id=request.request_id, granted=True)
                continue
            self.retried[f"pay {request.subject['tool_call_id']}"] += 1
            await runtime.answer(RUN, request.request_id, {"choice": "retry"})
        await runtime.resume(RUN)


def faults_of(name: str) -> list[tuple[str, int, str]]:
    """Every handler call of a run without a fault, with every kind of fault."""
    fault = Fault()
    Trial(WORKFLOWS[name], fault, "held" in name).run()
    return [
        (actor, number, kind)
        for actor, count in sorted(fault.calls.items())
        for number in range(1, count + 1)
        for kind in KINDS
    ]


def must_survive(name: str, faults: list[tuple[str, int, str]]) -> None:
    failures: list[str] = []
    for actor, number, kind in faults:
        try:
            Trial(WORKFLOWS[name], Fault(actor, number, kind), "held" in name).run()
        except (AssertionError, TimeoutError, RuntimeError, LookupError) as error:
            failures.append(f"{kind} at call {number} of {actor}: {type(error).__name__} {str(error)[:200]}")
    assert not failures, f"{len(failures)} of {len(faults)}:\n" + "\n".join(failures)


@pytest.mark.parametrize("name", ["chain of functions", "one agent"])
def test_a_fault_in_any_handler_hangs_no_run(name):
    faults = faults_of(name)
    assert {actor for actor, _, _ in faults} >= {"EventBus", "RunsSupervisor", "RunSupervisor"}
    must_survive(name, faults)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_fault_at_every_handler_call(name):
    must_survive(name, faults_of(name))


@pytest.mark.parametrize("method", ["_finish", "_enter", "_finish_in_order", "_finish_when_done"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_failure_inside_the_event_bus_hangs_no_run(method, number, after, monkeypatch):
    """A failure of `_finish` is one in a future's callback, outside mailbox and supervision."""
    true, calls = getattr(EventBus, method), 0

    def failing(self: EventBus, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            raise RuntimeError("an injected bug")
        result = true(self, *args)
        if calls == number:
            raise RuntimeError("an injected bug")
        return result

    monkeypatch.setattr(EventBus, method, failing)
    Trial(WORKFLOWS["chain of functions"], Fault(), False).run()
    assert calls >= number
