"""durability 5 and 7: delays go by monotonic time though the wall clock steps, and no timer spins.

On the virtual clock; `LoopClock.step` is how far the wall clock is off.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import StorageUnavailable
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError
from agentflow.runtime import SystemClock
from agentflow.runtime.runs_supervisor import Overdue
from agentflow.runtime.supervisor_messages import Wake
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.faults.simulated.world import intercepting
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock, seconds

MINUTE, HOUR = 60_000_000, 3_600_000_000
STEPS = [-HOUR, -MINUTE, MINUTE, HOUR]
BUSY = ModelError(ErrorInfo(category="transient", code="server_error", message="busy"))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def failing(times: int) -> ScriptedModel:
    left = [BUSY] * times
    return ScriptedModel(lambda request: left.pop() if left else {"ok": True})


RETRY = {"max_attempts": 4, "backoff": "2s", "jitter": 0}


class PacedModel(ScriptedModel):
    """A model that takes 3 s for each answer."""

    async def complete(self, request, **more):
        await asyncio.sleep(3)
        return await super().complete(request, **more)


@pytest.mark.parametrize("size", STEPS)
class TestStepsOfTheWallClock:
    @virtual
    async def test_a_backoff_of_2_s_fires_after_2_s(self, size):
        clock = LoopClock()
        async with Runtime(models=[failing(1)], clock=clock) as runtime:
            handle = await runtime.submit(document(step("a", retry=RETRY)), {})
            await run_until_idle()
            await asyncio.sleep(0.5)
            clock.step = size
            assert (await handle.result()).state == "completed"
            assert seconds() == pytest.approx(2, abs=0.01)
            events = await must_be_sound(runtime, handle.workflow_id)
        # Events hold wall time.
        assert (events[-1].timestamp > events[0].timestamp) == (size > 0)

    @virtual
    async def test_a_duration_is_how_long_it_took(self, size):
        clock, desk = LoopClock(), Desk()
        desk.pace = lambda: 5.0
        async with Runtime(services=[desk.service()], clock=clock) as runtime:
            handle = await runtime.submit(chain("look"), {})
            await asyncio.sleep(1)
            clock.step = size
            await handle.result()
            events = await must_be_sound(runtime, handle.workflow_id)
        lasted = [
            e.data.duration_ms for e in events if e.type in ("workflow.step_completed", "workflow.completed")
        ]
        assert lasted == [pytest.approx(5000, abs=20)] * 2

    @virtual
    async def test_a_call_lasts_by_the_clock_of_the_runtime(self, size):
        """The actors of models and services read the time of the process: they took 0 ms."""
        clock, desk = LoopClock(), Desk()
        desk.pace = lambda: 5.0
        model = PacedModel(lambda request: call("desk__look") if len(request.messages) < 3 else {"ok": True})
        async with Runtime(services=[desk.service()], models=[model], clock=clock) as runtime:
            handle = await runtime.submit(document(step("a", functions=["look"])), {})
            await asyncio.sleep(1)
            clock.step = size
            assert (await handle.result()).state == "completed"
            events = await must_be_sound(runtime, handle.workflow_id)
        ends = ("model.call_completed", "tool.call_completed")
        lasted = [(e.type, e.data.duration_ms) for e in events if e.type in ends]
        assert lasted == [(ends[0], 3000), (ends[1], 5000), (ends[0], 3000)]

    @virtual
    async def test_a_limit_of_a_step_and_one_of_a_run_keep_their_length(self, size):
        for more in ({"step": {"timeout": "10s"}}, {"run": {"timeout": "10s"}}):
            clock, gate, began = LoopClock(), asyncio.Event(), seconds()

            async def stuck(request, gate=gate):
                await gate.wait()

            async with Runtime(models=[ScriptedModel(stuck)], clock=clock, grace=0.01) as runtime:
                graph = document(step("a", **more.get("step", {})), **more.get("run", {}))
                handle = await runtime.submit(graph, {})
                await asyncio.sleep(1)
                clock.step = size
                assert (await handle.rest()).state == "failed"
                assert seconds() - began == pytest.approx(10, abs=0.01)

    @virtual
    async def test_an_approval_that_nobody_works_on_keeps_its_time(self, size):
        clock = LoopClock()
        async with Runtime(models=[failing(0)], clock=clock) as runtime:
            graph = document(step("a", approval={"timeout": "1h"}))
            handle = await runtime.submit(graph, {})
            assert (await handle.result()).state == "waiting"
            await asyncio.sleep(600)
            clock.step = size
            await runtime.signal(handle.workflow_id, "touched")  # folds the log anew
            await asyncio.sleep(600)
            clock.step = 0
            await runtime.signal(handle.workflow_id, "again")
            types = [event.type async for event in handle.events()]
            assert types.count("approval.denied") == 1
            assert seconds() == pytest.approx(3600, abs=1)

    @virtual
    async def test_after_a_restart_the_wall_clock_counts_but_never_backwards(self, size):
        log, clock = MemoryLog(), LoopClock()
        async with Runtime(log, models=[failing(9)], clock=clock, grace=0.01) as runtime:
            handle = await runtime.submit(document(step("a", retry=RETRY)), {})
            await asyncio.sleep(0.5)
        clock.step = size
        async with Runtime(log, models=[failing(0)], clock=clock) as runtime:
            began = seconds()
            assert (await (await runtime.resume(handle.workflow_id)).result()).state == "completed"
            assert seconds() - began <= 2.01
        await log.close()


@virtual
async def test_a_clock_without_a_monotonic_time_takes_that_of_the_loop():
    class Plain:
        step = 0

        def now(self) -> int:
            return 1_700_000_000_000_000 + round(seconds() * 1e6) + self.step

        def draw(self) -> float:
            return 0.5

    clock = Plain()
    async with Runtime(models=[failing(1)], clock=clock) as runtime:
        handle = await runtime.submit(document(step("a", retry=RETRY)), {})
        await asyncio.sleep(0.5)
        clock.step = -HOUR
        assert (await handle.result()).state == "completed"
        assert seconds() == pytest.approx(2, abs=0.01)


def test_the_system_clock_never_steps_in_its_monotonic_time(monkeypatch):
    clock = SystemClock()
    before = clock.monotonic()
    true = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true() - 3_600 * 10**9)
    monkeypatch.setattr(
        clock, "_start", clock._start - 2_000_000
    )  # it looks at the wall at most once a second
    monkeypatch.setattr(clock, "_anchor", clock._anchor - 2_000_000)
    assert clock.now() < true() // 1000 - 3_500_000_000
    assert 0 <= clock.monotonic() - before < 60_000_000


class Wakes:
    """Counts the wake-ups of runs."""

    def __init__(self) -> None:
        self.count = 0

    def wants(self, message_type: type) -> bool:
        return message_type in (Wake, Overdue)

    def handling(self, ref, message, trace):
        self.count += 1
        return nullcontext()


class Refusing(MemoryLog):
    """Takes nothing while `full`."""

    full = False

    def append(self, batch):
        if not self.full:
            return super().append(batch)
        refused = asyncio.get_running_loop().create_future()
        refused.set_exception(StorageUnavailable("no space"))
        return refused


def paying_or_busy(request):
    return call("desk__pay") if request.tools else BUSY


@pytest.mark.parametrize("state", ["store refuses", "paused", "being cancelled", "being parked"])
@virtual
async def test_no_timer_is_armed_twice_with_delay_0(state):
    """durability 5: deadlines pass while nothing can follow from them: a few wake-ups, where 27,864 were."""
    wakes, log, desk = Wakes(), Refusing(), Desk(pay=True)
    models = [ScriptedModel(paying_or_busy)]
    retry = {"max_attempts": 4, "backoff": "1s", "jitter": 0}
    graph = document(
        step("a", functions=["pay"], timeout="3s", approval={"before": "never"}),
        step("b", retry=retry),
        timeout="5s",
    )
    with intercepting(wakes):
        runtime = Runtime(log, services=[desk.service()], models=models, clock=LoopClock(), grace=20.0)
        await runtime.__aenter__()
    run = (await runtime.submit(graph, {})).workflow_id
    await desk.entered.wait()
    log.full = state == "store refuses"
    if state == "paused":
        await runtime.pause(run)
    elif state == "being cancelled":
        await runtime.cancel(run, grace=20.0)
    closing = asyncio.ensure_future(runtime.__aexit__(None, None, None)) if state == "being parked" else None
    await asyncio.sleep(15)
    assert wakes.count <= 6
    last = (await types_of(log, run))[-1]
    assert last not in ("workflow.failed", "workflow.cancelled")  # nothing could follow yet
    log.full = False
    desk.gates["pay"].set()
    if state == "paused":
        await runtime.resume(run)
    if closing is None:
        await runtime.rest(run)
    await (closing or runtime.__aexit__(None, None, None))
    assert wakes.count <= 10
    last = (await types_of(log, run))[-1]
    assert (
        last
        == {
            "store refuses": "workflow.failed",
            "paused": "workflow.failed",
            "being cancelled": "workflow.cancelled",
            "being parked": "workflow.paused",
        }[state]
    )
