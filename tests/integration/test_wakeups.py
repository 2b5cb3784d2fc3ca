"""A start that finds many waiting runs: none is folded only to see when it falls due, and none is missed."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.engine import limits
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def asking(**approval):
    return document(step("a", approval=approval or True))


def opened(log, **more) -> Runtime:
    return Runtime(log, models=[ScriptedModel(lambda r: {"ok": True})], **{"clock": LoopClock(), **more})


async def begun(log, *graphs, **more) -> list[str]:
    """Runs that wait, left by a process."""
    async with opened(log) as runtime:
        handles = [await runtime.submit(graph, {}, **more) for graph in graphs]
        for handle in handles:
            assert (await handle.result()).state == "waiting"
    return [handle.workflow_id for handle in handles]


class Counting(MemoryLog):
    """Counts the reads that fold a log."""

    folds = 0

    async def read(self, workflow_id, from_offset=0, limit=256):
        self.folds += limit > 2
        return await super().read(workflow_id, from_offset, limit)


@pytest.fixture
def unnamed_timers(monkeypatch):
    """Logs as an older version wrote them."""
    waiting = limits.waiting
    bare = lambda state: msgspec.structs.replace(waiting(state), timers=())  # noqa: E731
    monkeypatch.setattr(limits, "waiting", bare)
    return monkeypatch


class TestWhatIsRead:
    @virtual
    async def test_runs_that_wait_are_neither_folded_nor_taken_up(self):
        log = Counting()
        runs = await begun(log, *[asking(timeout="1h"), asking()] * 20)
        async with opened(log) as runtime:
            log.folds = 0
            assert await runtime.recover() == runs
            await run_until_idle()
            assert log.folds == 0
            assert runtime._registry.launches == {}
        await log.close()

    @virtual
    async def test_the_next_deadline_is_named_at_the_end(self):
        log = MemoryLog()
        (run,) = await begun(
            log, document(*(step(x, approval={"timeout": f"{n}h"}) for n, x in ((3, "a"), (2, "b"))))
        )
        async with opened(log) as runtime:
            requests = await runtime.requests(run)
            last = [event async for event in runtime.events(run, follow=False)][-1].data
        earlier = min(requests, key=lambda r: r.deadline)
        assert last.timers == (f"approval {earlier.request_id} {earlier.deadline}",)
        assert len(last.requests) == 2
        await log.close()


class TestNoDeadlineIsMissed:
    @virtual
    async def test_after_a_restart_with_a_clock_that_was_set_back(self):
        log, clock = Counting(), LoopClock()
        (run,) = await begun(log, asking(timeout="1h"))
        clock.step = -10_000_000_000
        began = seconds()
        async with opened(log, clock=clock) as runtime:
            await runtime.recover()
            assert [event.type async for event in runtime.events(run)][-1] == "workflow.failed"
        assert seconds() - began == pytest.approx(3600, abs=1)
        await must_be_sound(log, run)
        await log.close()

    @virtual
    async def test_one_that_comes_later_and_one_that_has_passed(self):
        log = Counting()
        late, soon, never = await begun(log, asking(timeout="1h"), asking(timeout="3h"), asking())
        await asyncio.sleep(7200)
        began = seconds()
        async with opened(log) as runtime:
            await runtime.recover()
            await runtime.recover()  # the same again changes nothing
            assert (await (await runtime.attach(late)).rest()).error.code == "approval_denied"
            assert seconds() == began
            events = [event.type async for event in runtime.events(soon)]
            assert seconds() - began == pytest.approx(3600, abs=1)
            assert events[-1] == "workflow.failed"
            await asyncio.sleep(10**6)
            assert (await types_of(runtime, never))[-1] == "workflow.waiting"
            for run in (late, soon):
                assert (await types_of(runtime, run)).count("approval.denied") == 1
                await must_be_sound(log, run)
        await log.close()

    @virtual
    async def test_of_a_log_that_ends_with_something_else(self):
        log = MemoryLog()
        (run,) = await begun(log, asking(timeout="1h"))
        async with opened(log) as runtime:
            await runtime.signal(run, "hello")
        await asyncio.sleep(7200)
        async with opened(log) as runtime:
            assert (await types_of(runtime, run))[-1] == "signal.received"
            await runtime.recover()
            assert (await (await runtime.attach(run)).rest()).error.code == "approval_denied"
        await log.close()

    @virtual
    @pytest.mark.parametrize("by", ["approval", "document", "budget"])
    async def test_of_logs_that_do_not_name_it(self, unnamed_timers, by):
        graph = {
            "approval": asking(timeout="1h"),
            "document": document(step("a", approval=True), timeout="1h"),
            "budget": asking(),
        }[by]
        more = {"budget": {"max_duration_s": 3600}} if by == "budget" else {}
        log = MemoryLog()
        (run,) = await begun(log, graph, **more)
        unnamed_timers.undo()
        unnamed_timers.setenv("AGENTFLOW_MODEL", "scripted:m")
        began = seconds()
        async with opened(log) as runtime:
            await runtime.recover()
            types = [event.type async for event in runtime.events(run)]
        assert types[-1] == "workflow.failed"
        assert seconds() - began == pytest.approx(3600, abs=1)
        await log.close()

    @virtual
    async def test_a_run_that_moves_meanwhile_keeps_its_own_deadline(self):
        """Whatever the moment of the command, the deadline that is left comes once, at its time."""
        graph = document(*(step(x, approval={"timeout": f"{n}h"}) for n, x in ((1, "a"), (2, "b"))))
        for ticks in range(0, 30, 2):
            log = MemoryLog()
            (run,) = await begun(log, graph)
            began = seconds()
            async with opened(log) as runtime:
                recovering = asyncio.ensure_future(runtime.recover())
                for _ in range(ticks):
                    await asyncio.sleep(0)
                await runtime.decide(run, granted=True, step_id="a")
                await recovering
                types = [event.type async for event in runtime.events(run)]
            assert types.count("approval.denied") == 1
            assert seconds() - began == pytest.approx(7200, abs=1)
            await log.close()

    @virtual
    async def test_two_processes_wake_it_once(self):
        log = MemoryLog()
        runs = await begun(log, *[asking(timeout="1h")] * 5)
        async with opened(log) as one, opened(log) as other:
            await asyncio.gather(one.recover(), other.recover())
            await asyncio.sleep(3700)
            for run in runs:
                events = await must_be_sound(log, run)
                assert [e.type for e in events].count("approval.denied") == 1
        await log.close()


@pytest.mark.parametrize("store", ["sqlite:{}/runs.db", "file:{}/runs"])
async def test_real_stores(store, tmp_path):
    url = store.format(tmp_path)
    models = [ScriptedModel(lambda r: {"ok": True})]
    async with Runtime(url, models=models) as runtime:
        begin = time.monotonic()
        graphs = [asking(timeout="200ms"), asking(timeout="1200ms"), asking(timeout="1h"), asking()]
        handles = [await runtime.submit(graph, {}) for graph in graphs]
        runs = [handle.workflow_id for handle in handles]
    await asyncio.sleep(max(0, begin + 0.3 - time.monotonic()))
    async with Runtime(url, models=models) as runtime:
        assert await runtime.recover() == runs
        for run in runs[:2]:
            assert [event.type async for event in runtime.events(run)][-1] == "workflow.failed"
            await must_be_sound(runtime, run)
        assert time.monotonic() - begin > 1.2
        for run in runs[2:]:
            assert (await types_of(runtime, run))[-1] == "workflow.waiting"
