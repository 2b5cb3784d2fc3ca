"""The circuit of a provider key (page 000 §9; agents-models-tools "No circuit")."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.testing import virtual
from agentflow import Runtime
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError
from agentflow.runtime.circuit_breaker import Circuit, CircuitOpen
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, log_of, step
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def error(category: Category, code: str) -> ErrorInfo:
    return ErrorInfo(category=category, code=code, message="no", retryable=True)


DOWN = error("transient", "network_error")


class Provider(ScriptedModel):
    """Fails while it is down; remembers when it was asked."""

    def __init__(self, info: ErrorInfo = DOWN, *, until: float = float("inf"), takes: float = 0.0) -> None:
        self.times: list[float] = []

        async def answer(_: Any) -> Any:
            self.times.append(seconds())
            await asyncio.sleep(takes)
            return ModelError(info) if seconds() < until else {"ok": True}

        super().__init__(answer)

    def asked_before(self, time: float) -> int:
        return sum(t < time for t in self.times)


async def run(provider: ScriptedModel, count: int, **agent: Any) -> tuple[list[Any], list[Any]]:
    log = MemoryLog()
    made = step("a")
    made["agent"] |= agent
    async with Runtime(log, models=[provider], clock=LoopClock()) as runtime:
        handles = [await runtime.submit(document(made), {}) for _ in range(count)]
        results = [await handle.rest() for handle in handles]
        events = [e for h in handles for e in await log_of(log, h.workflow_id)]
    return results, events


@pytest.mark.parametrize("takes", [0.0, 0.05, 2.0])
@virtual
async def test_thirty_agents_on_a_dead_provider_make_ten_requests_in_thirty_seconds(takes: float) -> None:
    provider = Provider(takes=takes)
    results, events = await run(provider, 30)
    assert {r.state for r in results} == {"failed"}
    assert provider.asked_before(30.5) <= 10
    assert len(provider.times) <= 12  # one probe for each 30 s
    codes = {e.data.error.code for e in events if e.type == "model.call_failed"}
    assert codes == {"network_error", "circuit_open"}


@virtual
async def test_calls_go_on_once_the_probe_was_answered() -> None:
    provider = Provider(until=20.0)
    results, _ = await run(provider, 30)
    assert {r.state for r in results} == {"completed"}
    assert provider.asked_before(29) <= 9


@pytest.mark.parametrize(
    ("category", "code"),
    [("rate_limited", "rate_limited"), ("auth", "authentication_failed"), ("invalid_input", "x")],
)
@virtual
async def test_a_provider_that_refuses_is_not_down(category: Category, code: str) -> None:
    provider = Provider(error(category, code))
    _, events = await run(provider, 12)
    codes = {e.data.error.code for e in events if e.type == "model.call_failed"}
    assert codes == {code}


@virtual
async def test_a_kept_back_call_goes_to_its_fallback_at_once() -> None:
    dead = Provider()
    spare = ScriptedModel(lambda _: {"ok": True}, name="spare")
    log = MemoryLog()
    made = step("a")
    made["agent"]["fallback"] = ["spare:m"]
    async with Runtime(log, models=[dead, spare], clock=LoopClock()) as runtime:
        handles = [await runtime.submit(document(made), {}) for _ in range(30)]
        began = seconds()
        results = [await handle.result() for handle in handles]
        assert seconds() - began < 29
    assert {r.state for r in results} == {"completed"}
    assert len(dead.times) <= 10


async def opened() -> Circuit:
    """Return a circuit that opened at this moment."""
    circuit = Circuit()
    for _ in range(5):
        circuit.record(await circuit.admit(), DOWN)
    return circuit


@virtual
async def test_one_probe_while_the_circuit_is_half_open() -> None:
    circuit = await opened()
    with pytest.raises(CircuitOpen) as caught:
        await circuit.admit()
    assert caught.value.retry_after == pytest.approx(30)
    await asyncio.sleep(30)
    probe = await circuit.admit()
    waiting = [asyncio.create_task(circuit.admit()) for _ in range(3)]
    await asyncio.sleep(1)
    assert not any(task.done() for task in waiting)
    circuit.record(probe, None, conclusive=False)  # the probe was cancelled: another call takes its place
    await asyncio.sleep(1)
    (second,) = [task for task in waiting if task.done()]
    circuit.record(second.result(), DOWN)
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert sorted(type(r).__name__ for r in done) == ["AdmittedCall", "CircuitOpen", "CircuitOpen"]


@pytest.mark.parametrize("conclusive", [True, False], ids=["failed", "cancelled"])
@virtual
async def test_an_older_call_that_ends_beside_the_probe_admits_no_second_one(conclusive: bool) -> None:
    circuit = Circuit()
    older = await circuit.admit()
    for _ in range(5):
        circuit.record(await circuit.admit(), DOWN)
    await asyncio.sleep(30)
    probe = await circuit.admit()
    waiting = asyncio.create_task(circuit.admit())
    await asyncio.sleep(1)
    circuit.record(older, DOWN, conclusive=conclusive)
    await asyncio.sleep(1)
    assert not waiting.done()
    circuit.record(probe, None)
    await waiting


@virtual
async def test_an_older_call_that_fails_beside_the_probe_does_not_open_the_circuit_longer() -> None:
    circuit = Circuit()
    older = await circuit.admit()
    for _ in range(5):
        circuit.record(await circuit.admit(), DOWN)
    await asyncio.sleep(30)
    probe = await circuit.admit()
    circuit.record(probe, DOWN)
    await asyncio.sleep(20)
    circuit.record(older, DOWN)
    with pytest.raises(CircuitOpen) as caught:
        await circuit.admit()
    assert caught.value.retry_after == pytest.approx(10)


@virtual
async def test_an_answer_of_an_older_call_closes_the_circuit_and_the_probe_is_a_call_like_others() -> None:
    circuit = Circuit()
    older = await circuit.admit()
    for _ in range(5):
        circuit.record(await circuit.admit(), DOWN)
    await asyncio.sleep(30)
    probe = await circuit.admit()
    circuit.record(older, None)
    calls = [await circuit.admit() for _ in range(4)]
    circuit.record(probe, DOWN)
    for call in calls:
        circuit.record(call, None)
    await circuit.admit()


@virtual
async def test_an_answer_between_failures_keeps_the_circuit_closed() -> None:
    circuit = Circuit()
    for _ in range(10):
        for _ in range(4):
            circuit.record(await circuit.admit(), DOWN)
        circuit.record(await circuit.admit(), None)
    await circuit.admit()
