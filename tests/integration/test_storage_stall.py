"""A store that takes nothing for a while, and one that has failed for good (page 000 §7)."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.errors import LogFailed, StorageUnavailable, StoreError
from agentflow.events.log import Append, EventLog
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


class Full:
    """A log on a disk that is full while `full` says so: for all runs, or for those that it names."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.full: bool | set[str] = False
        self.error: type[StoreError] = StorageUnavailable
        self.refused = 0

    def __getattr__(self, name: str):
        member = getattr(self._log, name)
        if name not in ("claim", "release", "put_definition", "put_blob", "put_snapshot"):
            return member

        async def write(*arguments):
            if self.full is True:
                raise self.error("the disk is full")
            return await member(*arguments)

        return write

    def append(self, batch: Append) -> asyncio.Future[None]:
        full = self.full
        if full is True or (full and batch.workflow_id in full):
            self.refused += 1
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.set_exception(self.error("the disk is full"))
            return future
        return self._log.append(batch)


class Slow:
    """A log that acknowledges its batches late: while it `holds`, only once they are let go."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.holds = False
        self._held: list[tuple[asyncio.Future[None], asyncio.Future[None]]] = []

    def __getattr__(self, name: str):
        return getattr(self._log, name)

    def append(self, batch: Append) -> asyncio.Future[None]:
        stored = self._log.append(batch)
        if not self.holds:
            return stored
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append((stored, held))
        return held

    async def let_go(self) -> int:
        """Acknowledge what is held; return how many batches that were."""
        self.holds = False
        for stored, held in self._held:
            await stored
            held.set_result(None)
        return len(self._held)


def opened(log, *, desk: Desk, model=None, **more) -> Runtime:
    models = [model or ScriptedModel(lambda r: {"ok": True})]
    return Runtime(log, models=models, services=[desk.service()], clock=LoopClock(), **more)


class TestStall:
    @virtual
    async def test_what_an_unsafe_function_did_meanwhile_is_recorded_and_not_asked_about(self):
        log, desk = Full(MemoryLog()), Desk(pay=True)
        async with opened(log, desk=desk) as runtime:
            handle = await runtime.submit(chain("pay", "look"), {})
            await desk.entered.wait()
            log.full = True
            desk.gates["pay"].set()
            await asyncio.sleep(60)
            assert (await types_of(log, handle.workflow_id))[-1] == "tool.call_started"
            assert desk.calls == 1
            log.full = False
            result = await handle.result()
            assert result.output == {"done": "look"}
            events = await must_be_sound(log, handle.workflow_id)
        types = [e.type for e in events]
        assert "input.requested" not in types
        assert types.count("tool.call_completed") == 2
        reasons = [e.data.reason for e in events if e.type in ("workflow.paused", "workflow.resumed")]
        assert reasons == ["storage", "storage"]
        assert set(desk.executions.values()) == {1}
        assert log.refused < 30  # it is tried ever less often, every 5 s at last

    @virtual
    async def test_results_of_several_calls_at_once(self):
        def answer(request):
            asked = sum(m.role == "tool" for m in request.messages)
            return {"asked": asked} if asked else [call("desk__pay"), call("desk__pay"), call("desk__look")]

        log, desk, model = Full(MemoryLog()), Desk(pay=True), ScriptedModel(answer)
        async with opened(log, desk=desk, model=model) as runtime:
            steps = document(step("a", functions=["pay", "look"]), step("b", functions=["pay", "look"]))
            handle = await runtime.submit(steps, {})
            await desk.entered.wait()
            await run_until_idle()
            for n in range(4):
                log.full = not log.full
                if n == 1:
                    desk.gates["pay"].set()
                await asyncio.sleep(0.3)
            log.full = False
            assert (await handle.result()).output == {"a": {"asked": 3}, "b": {"asked": 3}}
            await must_be_sound(log, handle.workflow_id)
        assert set(desk.executions.values()) == {1}
        assert len(model.requests) == 4

    @virtual
    async def test_new_runs_are_refused_and_nothing_is_left_of_them(self):
        log, desk = Full(MemoryLog()), Desk()
        async with opened(log, desk=desk, max_concurrent_runs=1) as runtime:
            graph = runtime.load(chain("look"))
            done = await runtime.run(graph, {})
            for full in (True, {"wf_mine"}):
                log.full = full
                with pytest.raises(StorageUnavailable):
                    await runtime.submit(graph, {}, workflow_id="wf_mine")
                with pytest.raises(StorageUnavailable):
                    await runtime.submit(graph, {}, workflow_id="wf_mine", idempotency_key="k")
                with pytest.raises(StorageUnavailable):
                    await runtime.fork(done.workflow_id, from_step="t0", as_id="wf_mine")
            log.full = False
            assert len(await runtime.rows()) == 1
            assert (await runtime.run(graph, {}, workflow_id="wf_mine")).state == "completed"
        assert desk.calls == 2

    @virtual
    async def test_other_runs_go_on(self):
        log, desk = Full(MemoryLog()), Desk()
        async with opened(log, desk=desk) as runtime:
            desk.gates["look"].clear()
            stalled = await runtime.submit(chain("look", "look"), {})
            await desk.entered.wait()
            log.full = {stalled.workflow_id}
            desk.gates["look"].set()
            assert (await runtime.run(chain("look", "pay"), {})).state == "completed"
            assert (await types_of(log, stalled.workflow_id))[-1] == "tool.call_started"
            log.full = False
            assert (await stalled.result()).state == "completed"

    @virtual
    async def test_a_command_waits_for_the_end_of_a_short_one(self):
        for command, state in (("pause", "paused"), ("cancel", "cancelled")):
            log, desk = Full(MemoryLog()), Desk(look=True)
            async with opened(log, desk=desk) as runtime:
                handle = await stalled(runtime, log, desk)
                began = seconds()
                told = asyncio.ensure_future(getattr(runtime, command)(handle.workflow_id))
                await asyncio.sleep(1)
                assert not told.done()
                log.full = False
                await told
                assert seconds() - began < 6
                assert (await handle.rest()).state == state
                await must_be_sound(log, handle.workflow_id, ended=state == "cancelled")

    @virtual
    async def test_a_command_in_a_long_one_is_refused_and_changes_nothing(self):
        log, desk = Full(MemoryLog()), Desk(look=True)
        async with opened(log, desk=desk) as runtime:
            handle = await stalled(runtime, log, desk)
            told = [runtime.pause(handle.workflow_id), runtime.cancel(handle.workflow_id, mode="hard")]
            began = seconds()
            errors = await asyncio.gather(*told, return_exceptions=True)
            assert [type(e) for e in errors] == [StorageUnavailable] * 2
            assert seconds() - began < 40
            log.full = False
            assert (await handle.result()).state == "completed"
            types = await types_of(log, handle.workflow_id)
            assert "workflow.cancel_requested" not in types
            assert types.count("workflow.paused") == 1  # the stall itself

    @virtual
    async def test_a_cancel_whose_request_meets_the_stall(self):
        log, desk = Full(MemoryLog()), Desk(pay=True)
        async with opened(log, desk=desk) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            await desk.entered.wait()
            log.full = True
            cancelling = asyncio.ensure_future(handle.cancel())
            await asyncio.sleep(3)
            assert not cancelling.done()
            assert desk.cancelled == 0  # not before it is durable
            log.full = False
            await cancelling
            assert (await handle.rest()).state == "cancelled"
            await must_be_sound(log, handle.workflow_id)

    @virtual
    async def test_a_run_at_rest_cannot_be_moved(self):
        log, desk = Full(MemoryLog()), Desk()
        async with opened(log, desk=desk) as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            await handle.result()
            log.full = True
            for _ in range(2):
                with pytest.raises(StorageUnavailable):
                    await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            log.full = False
            await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert (await handle.result()).state == "completed"

    @virtual
    async def test_a_command_that_nobody_can_confirm_may_still_come_to_pass(self):
        """The run could be taken up for it, and then the store took nothing any more."""
        log, desk = Full(MemoryLog()), Desk()
        async with opened(log, desk=desk) as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            await handle.result()
            log.full = {handle.workflow_id}
            with pytest.raises(StorageUnavailable, match="may still"):
                await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            (asked,) = await runtime.requests()
            log.full = False
            assert (await handle.result()).state == "completed"
            await runtime.decide(handle.workflow_id, granted=True, request_id=asked.request_id)
            assert (await types_of(log, handle.workflow_id)).count("approval.granted") == 1

    @virtual
    async def test_what_nobody_asked_for_just_now_waits_for_the_store(self):
        """Runs whose turn comes, and deadlines of runs that wait."""
        log, desk = Full(MemoryLog()), Desk(look=True)
        async with opened(log, desk=desk, max_concurrent_runs=1) as runtime:
            waits = await runtime.submit(document(step("a", approval={"timeout": "10s"})), {})
            await waits.result()
            graph = runtime.load(chain("look"))
            handles = [await runtime.submit(graph, {}) for _ in range(4)]
            await desk.entered.wait()
            desk.gates["look"].set()
            log.full = True
            await asyncio.sleep(60)
            log.full = False
            assert [(await h.result()).state for h in handles] == ["completed"] * 4
            async for _ in waits.events():
                pass
            assert (await waits.rest()).error.code == "approval_denied"

    @virtual
    async def test_the_runtime_is_closed_meanwhile(self):
        """What was not durable cannot be kept; the log is whole, and the closing has an end."""
        log, desk = Full(MemoryLog()), Desk(pay=True)
        async with opened(log, desk=desk, grace=1) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            await desk.entered.wait()
            log.full = True
            desk.gates["pay"].set()
            await run_until_idle()
            began = seconds()
        assert seconds() - began < 60
        log.full = False
        await died(log, handle.workflow_id)
        async with opened(log, desk=desk) as runtime:
            again = await runtime.resume(handle.workflow_id)
            assert (await again.result()).state == "waiting"
            await must_be_sound(log, handle.workflow_id, ended=False)
        assert desk.calls == 1

    @virtual
    async def test_a_call_whose_start_is_durable_after_the_suspension_is_not_made(self):
        """The run is being parked: its log says that the call was begun, and nothing is left to await it."""
        log, desk = Slow(MemoryLog()), Desk(look=True)
        async with opened(log, desk=desk, grace=5) as runtime:
            handle = await runtime.submit(chain("look", "pay"), {})
            await desk.entered.wait()
            log.holds = True
            desk.gates["look"].set()
            await run_until_idle()
            parking = asyncio.ensure_future(runtime._park())
            await run_until_idle()
            assert await log.let_go() > 0
            await parking
            assert "tool.call_started" in (await types_of(log, handle.workflow_id))[-4:]
            assert desk.calls == 1
        await must_be_sound(log, handle.workflow_id, ended=False)


async def died(log, workflow_id: str) -> None:
    """The store could not be told that the run is free; the death of the process tells it."""
    owner = (await log.run(workflow_id)).owner
    assert owner is not None
    await log.release(workflow_id, owner)


async def stalled(runtime: Runtime, log: Full, desk: Desk):
    """A run whose last result the store has refused."""
    handle = await runtime.submit(chain("look", "look"), {})
    await desk.entered.wait()
    log.full = True
    desk.gates["look"].set()
    await asyncio.sleep(0.1)
    assert log.refused
    return handle


class TestFailedForGood:
    @virtual
    async def test_runs_end_here_with_the_error_and_can_go_on_elsewhere(self):
        inner, desk = MemoryLog(), Desk(look=True)
        log = Full(inner)
        log.error = LogFailed
        async with opened(log, desk=desk, grace=0.1) as runtime:
            handle = await runtime.submit(chain("look"), {})
            await desk.entered.wait()
            log.full = True
            desk.gates["look"].set()
            with pytest.raises(StoreError):
                await handle.result()
            with pytest.raises(StoreError):
                await runtime.submit(chain("look"), {})
            with pytest.raises(StoreError):
                await runtime.resume(handle.workflow_id)
        await died(inner, handle.workflow_id)
        async with opened(inner, desk=desk) as runtime:
            assert (await (await runtime.resume(handle.workflow_id)).result()).state == "completed"
            await must_be_sound(inner, handle.workflow_id)
