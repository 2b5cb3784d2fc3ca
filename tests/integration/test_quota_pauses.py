"""A provider's limit that outlasts the retries (agents-models-tools D3): the run pauses, then goes on."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, log_of, must_be_sound, step
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def limited(retry_after: float | None = 90.0, category: str = "rate_limited") -> ModelError:
    info = ErrorInfo(category=category, code=category, message="too many requests", retryable=True)  # type: ignore[arg-type]
    return ModelError(info, retry_after=retry_after)


class Limited(ScriptedModel):
    """Refuses until a time of the loop, and says how long that is."""

    def __init__(self, until: float = 0.0, *, says: bool = True) -> None:
        self.until = until

        def answer(request):
            left = self.until - seconds()
            return limited(left if says else None) if left > 0 else {"ok": True}

        super().__init__(answer, max_concurrency=64)


def opened(log, model, **more) -> Runtime:
    return Runtime(log, models=[model], **{"clock": LoopClock(), **more})


async def paused(log, run) -> list[ev.WorkflowPaused]:
    return [e.data for e in await log_of(log, run) if isinstance(e.data, ev.WorkflowPaused)]


async def ended(runtime, run) -> list[str]:
    """The types of its events, once there is the last."""
    return [event.type async for event in runtime.events(run)]


class TestByItself:
    @virtual
    async def test_it_goes_on_when_the_provider_said_so(self):
        log, model = MemoryLog(), Limited(90)
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("a")), {})
            result = await handle.result()
            assert (result.state, result.pause) == ("paused", "quota")
            (pause,) = await paused(log, handle.workflow_id)
            assert micros(pause.resume_after) == LoopClock().now() + 90_000_000
            await run_until_idle()
            assert runtime._registry.launches == {}  # it costs no memory meanwhile
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
            assert seconds() == pytest.approx(90, abs=0.1)
        events = await must_be_sound(log, handle.workflow_id)
        resumed = [e.data for e in events if isinstance(e.data, ev.WorkflowResumed)]
        assert [(r.reason, r.by) for r in resumed] == [("quota", "runtime")]
        assert len(model.requests) == 2
        await log.close()

    @virtual
    @pytest.mark.parametrize("restarted_after", [10, 200])
    async def test_it_goes_on_after_a_restart(self, restarted_after):
        """Also when its time has passed while no process was there."""
        log, model = MemoryLog(), Limited(90)
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("a"), step("b")), {})
            await handle.result()
        await asyncio.sleep(restarted_after)
        async with opened(log, model) as runtime:
            assert await runtime.recover() == [handle.workflow_id]
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
            assert seconds() == pytest.approx(max(90, restarted_after), abs=0.1)
        await must_be_sound(log, handle.workflow_id)
        await log.close()

    @virtual
    @pytest.mark.parametrize("back", [60, 3_600, 10**6])
    async def test_a_clock_that_was_set_back_before_the_restart_adds_no_wait(self, back):
        log, model, clock = MemoryLog(), Limited(90), LoopClock()
        async with opened(log, model, clock=clock) as runtime:
            handle = await runtime.submit(document(step("a")), {})
            await handle.result()
        await asyncio.sleep(10)
        clock.step = -back * 1_000_000
        async with opened(log, model, clock=clock) as runtime:
            assert await runtime.recover() == [handle.workflow_id]
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
            assert seconds() == pytest.approx(10 + 90, abs=0.1)  # how long no process was there is not known
        await must_be_sound(log, handle.workflow_id)
        await log.close()

    @virtual
    async def test_calls_that_were_open_at_the_crash_are_made_again(self):
        """One agent pauses the run while the call of another one is open, and the process ends."""
        gate = asyncio.Event()

        async def answer(request):
            if request.messages[0].content == "slow" and len(model.requests) == 2:
                await gate.wait()
            return {"ok": True} if len(model.requests) > 2 else limited()

        log, model = MemoryLog(), ScriptedModel(lambda r: answer(r))
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("slow"), step("a")), {})
            async for event in runtime.events(handle.workflow_id):
                if event.type == "workflow.paused":
                    break
        async with opened(log, model) as runtime:
            await runtime.recover()
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
        await must_be_sound(log, handle.workflow_id)
        await log.close()

    @virtual
    async def test_it_waits_for_a_place_when_its_time_has_come(self):
        log, model = MemoryLog(), Limited(90)
        gate = asyncio.Event()
        slow = ScriptedModel(lambda r: gate.wait(), name="slow")
        blocking = document(step("b"))
        blocking["workflow"]["steps"][0]["agent"]["model"] = "slow:m"
        runtime = Runtime(log, models=[model, slow], clock=LoopClock(), max_concurrent_runs=1)
        async with runtime:
            handle = await runtime.submit(document(step("a")), {})
            await handle.result()
            blocker = await runtime.submit(blocking, {})
            await asyncio.sleep(500)
            assert (await runtime.record(handle.workflow_id)).state == "paused"
            await blocker.cancel(mode="hard")
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
            assert seconds() == pytest.approx(500, abs=1)
        await log.close()

    @virtual
    async def test_thirty_agents_pause_once(self):
        log, model = MemoryLog(), Limited(90)
        async with opened(log, model) as runtime:
            graph = document(*(step(f"s{i}") for i in range(30)), max_parallel=30)
            handle = await runtime.submit(graph, {})
            await handle.result()
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
        assert len(await paused(log, handle.workflow_id)) == 1
        assert len(model.requests) == 60
        await must_be_sound(log, handle.workflow_id)
        await log.close()

    @virtual
    async def test_a_limit_that_lasts_pauses_again(self):
        log, model = MemoryLog(), Limited(90)
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("a")), {})
            await handle.result()
            model.until = 300
            assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
            assert seconds() == pytest.approx(300, abs=0.1)
        assert len(await paused(log, handle.workflow_id)) == 2
        await log.close()


class TestByHand:
    @virtual
    async def test_a_resume_before_its_time_works_and_leaves_no_alarm(self):
        log, model = MemoryLog(), Limited(90)
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("a"), step("b", approval=True, depends_on=["a"])), {})
            await handle.result()
            model.until = 0
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "waiting"
            assert seconds() < 1
            await runtime.pause(handle.workflow_id)
            await asyncio.sleep(1_000)
            assert (await runtime.record(handle.workflow_id)).state == "paused"
        await log.close()

    @virtual
    async def test_without_a_time_it_waits_for_a_resume(self):
        for model in (Limited(90, says=False), ScriptedModel([limited(None, "quota"), {"ok": True}])):
            log = MemoryLog()
            async with opened(log, model) as runtime:
                handle = await runtime.submit(document(step("a", retry=False)), {})
                assert (await handle.result()).pause == "quota"
                await asyncio.sleep(10_000)
                assert (await runtime.record(handle.workflow_id)).state == "paused"
                await runtime.resume(handle.workflow_id)
                assert (await handle.result()).state == "completed"
            await log.close()

    @virtual
    async def test_a_run_that_an_operator_paused_stays_paused(self):
        entered, leave = asyncio.Event(), asyncio.Event()

        async def answer(request):
            entered.set()
            await leave.wait()
            return limited() if len(model.requests) == 1 else {"ok": True}

        log, model = MemoryLog(), ScriptedModel(lambda r: answer(r))
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("a")), {})
            await entered.wait()
            await runtime.pause(handle.workflow_id)
            leave.set()
            await handle.result()
            await asyncio.sleep(10_000)
            assert (await runtime.record(handle.workflow_id)).state == "paused"
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "completed"
        await log.close()

    @virtual
    async def test_a_cancelled_one_is_not_resumed(self):
        log, model = MemoryLog(), Limited(90)
        async with opened(log, model) as runtime:
            handle = await runtime.submit(document(step("a")), {})
            await handle.result()
            await handle.cancel()
            await asyncio.sleep(1_000)
            assert (await handle.rest()).state == "cancelled"
        await must_be_sound(log, handle.workflow_id)
        await log.close()


@virtual
async def test_an_absurd_time_is_bounded():
    log = MemoryLog()
    async with opened(log, ScriptedModel([limited(1e300)])) as runtime:
        handle = await runtime.submit(document(step("a")), {})
        assert (await handle.result()).pause == "quota"
        (pause,) = await paused(log, handle.workflow_id)
        assert pause.resume_after.startswith("21")
    await log.close()


@pytest.mark.parametrize("store", ["sqlite:{}/runs.db", "file:{}/runs"])
async def test_real_stores_and_the_real_clock(store, tmp_path):
    url = store.format(tmp_path)
    model = ScriptedModel([limited(1.0), {"ok": True}])
    graph = document(step("a", retry={"max_attempts": 2, "max_elapsed": "100ms"}))
    async with Runtime(url, models=[model]) as runtime:
        handle = await runtime.submit(graph, {})
        assert (await handle.result()).pause == "quota"
    async with Runtime(url, models=[model]) as runtime:
        assert await runtime.recover() == [handle.workflow_id]
        assert (await ended(runtime, handle.workflow_id))[-1] == "workflow.completed"
        events = await must_be_sound(runtime, handle.workflow_id)
    at = {event.type: micros(event.timestamp) for event in events}
    assert 0.9e6 < at["workflow.resumed"] - at["workflow.paused"] < 10e6
