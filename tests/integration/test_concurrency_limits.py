"""At most so many runs at work, the others wait their turn in the order in which they came."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import AgentflowError, Runtime
from agentflow.errors import QueueFull, RunExists
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


async def finish(handles) -> list[str]:
    results = await asyncio.gather(*(h.rest() for h in handles))
    return [r.state for r in results]


class TestLimit:
    @pytest.mark.parametrize("store", ["memory", "sqlite"])
    async def test_never_more_than_the_limit_and_all_end_in_their_order(self, store, tmp_path):
        desk = Desk(look=True)
        url = "memory:" if store == "memory" else f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, services=[desk.service()], max_concurrent_runs=3) as runtime:
            graph = runtime.load(chain("look", "pay", "look"))
            handles = [await runtime.submit(graph, {}) for _ in range(200)]
            assert len(desk.at_work) == 3
            desk.gates["look"].set()
            assert set(await finish(handles)) == {"completed"}
            assert desk.most == 3
            order = [h.workflow_id for h in handles]
            # Three are on their way at once, so each is at most two places from its own.
            assert all(abs(order.index(run) - place) <= 2 for place, run in enumerate(desk.runs))
            for handle in handles:
                await must_be_sound(runtime, handle.workflow_id)
                assert (await handle.result()).state == "completed"
        assert set(desk.executions.values()) == {1}

    async def test_submitted_all_at_once(self):
        desk = Desk()
        async with Runtime(services=[desk.service()], max_concurrent_runs=3) as runtime:
            graph = runtime.load(chain("look", "pay"))
            results = await asyncio.gather(*(runtime.run(graph, {}) for _ in range(200)))
            assert {r.state for r in results} == {"completed"}
        assert desk.most == 3

    async def test_runs_that_end_while_others_are_being_begun(self, tmp_path):
        """The place of a run that ends is given to one whose first event is still on its way to the disk."""
        desk = Desk()
        url = f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, services=[desk.service()], max_concurrent_runs=1) as runtime:
            graph = runtime.load(chain("look"))

            async def some() -> None:
                for _ in range(25):
                    result = await (await runtime.submit(graph, {})).result()
                    assert result.state == "completed"

            await asyncio.gather(*(some() for _ in range(4)))
        assert desk.most == 1

    @virtual
    async def test_a_run_that_waits_for_a_person_gives_its_place_away(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()) as runtime:
            asking = document(step("a", functions=["look"], approval=True))
            runtime.models.register(ScriptedModel(lambda r: "{}"))
            waits = await runtime.submit(asking, {})
            assert (await waits.result()).state == "waiting"
            busy = await runtime.submit(chain("look"), {})
            await desk.entered.wait()
            await runtime.decide(waits.workflow_id, granted=True, step_id="a")
            await run_until_idle()
            assert len(desk.at_work) == 1
            desk.gates["look"].set()
            assert await finish([waits, busy]) == ["completed", "completed"]

    @virtual
    async def test_commands_take_up_no_more_runs_than_the_limit(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=2, clock=LoopClock()) as runtime:
            graph = runtime.load(chain("look", "look"))
            handles = [await runtime.submit(graph, {}) for _ in range(6)]
            for handle in handles:
                await runtime.pause(handle.workflow_id, in_flight="suspend")
            desk.gates["look"].set()
            assert set(await finish(handles)) == {"paused"}
            desk.gates["look"].clear()
            for handle in handles:
                await runtime.resume(handle.workflow_id)
            await run_until_idle()
            assert len(desk.at_work) == 2
            desk.gates["look"].set()
            assert set(await finish(handles)) == {"completed"}
            assert desk.most == 2

    async def test_the_queue_is_full(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1, max_queued_runs=2) as runtime:
            graph = runtime.load(chain("look"))
            handles = [await runtime.submit(graph, {}) for _ in range(3)]
            with pytest.raises(QueueFull):
                await runtime.submit(graph, {}, workflow_id="wf_refused")
            assert len(await runtime.rows()) == 3
            desk.gates["look"].set()
            assert await finish(handles) == ["completed"] * 3
            assert (await runtime.run(graph, {}, workflow_id="wf_refused")).state == "completed"


class TestQueued:
    @virtual
    async def test_it_is_begun_and_pending_and_its_events_can_be_followed(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()) as runtime:
            graph = runtime.load(chain("look"))
            first, queued = [await runtime.submit(graph, {}) for _ in range(2)]
            assert (await runtime.record(queued.workflow_id)).state == "pending"
            assert await types_of(runtime, queued.workflow_id) == ["workflow.started"]

            async def follow() -> list[str]:
                return [e.type async for e in queued.events()]

            following = asyncio.ensure_future(follow())
            await run_until_idle()
            assert not following.done()
            desk.gates["look"].set()
            assert (await following)[-1] == "workflow.completed"
            assert (await first.result()).state == "completed"

    @virtual
    async def test_cancel_ends_it_at_once(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()) as runtime:
            graph = runtime.load(chain("look"))
            first, second, third = [await runtime.submit(graph, {}) for _ in range(3)]
            waiting = asyncio.ensure_future(second.rest())
            await run_until_idle()
            await second.cancel("no more")
            assert (await waiting).state == "cancelled"
            assert (await second.rest()).state == "cancelled"
            assert await types_of(runtime, second.workflow_id) == [
                "workflow.started",
                "workflow.cancel_requested",
                "workflow.cancelled",
            ]
            assert not third_done(third, desk)
            desk.gates["look"].set()
            assert await finish([first, third]) == ["completed", "completed"]
            assert desk.calls == 2

    @virtual
    async def test_pause_keeps_it_from_its_turn_and_resume_puts_it_at_the_end(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()) as runtime:
            graph = runtime.load(chain("look"))
            first, second, third = [await runtime.submit(graph, {}) for _ in range(3)]
            await runtime.pause(second.workflow_id)
            assert (await second.result()).state == "paused"
            await runtime.resume(second.workflow_id)
            await run_until_idle()
            assert desk.runs == [first.workflow_id]
            desk.gates["look"].set()
            assert await finish([first, second, third]) == ["completed"] * 3
            assert desk.runs == [h.workflow_id for h in (first, third, second)]

    @virtual
    async def test_one_that_was_resumed_and_has_no_place_can_be_stopped_again(self):
        for stop, state in (("pause", "paused"), ("cancel", "cancelled")):
            desk = Desk(pay=True)
            async with Runtime(
                services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()
            ) as runtime:
                mine = await runtime.submit(chain("look", "pay"), {})
                await desk.until(lambda desk=desk: desk.calls == 2)
                await runtime.pause(mine.workflow_id)
                desk.gates["pay"].set()
                assert (await mine.result()).state == "paused"
                desk.gates["pay"].clear()
                other = await runtime.submit(chain("pay"), {})
                await runtime.resume(mine.workflow_id)
                assert (await runtime.record(mine.workflow_id)).state == "running"
                resting = asyncio.ensure_future(mine.rest())
                await run_until_idle()
                assert not resting.done()
                await getattr(runtime, stop)(mine.workflow_id)
                assert (await resting).state == state
                await must_be_sound(runtime, mine.workflow_id, ended=stop == "cancel")
                desk.gates["pay"].set()
                assert (await other.rest()).state == "completed"
                if stop == "pause":
                    await runtime.resume(mine.workflow_id)
                    assert (await mine.result()).state == "completed"
            assert set(desk.executions.values()) == {1}

    @virtual
    async def test_a_deadline_passes_though_there_is_no_place(self):
        desk = Desk(look=True)
        async with Runtime(
            models=[ScriptedModel(lambda r: "{}")],
            services=[desk.service()],
            max_concurrent_runs=1,
            clock=LoopClock(),
        ) as runtime:
            waits = await runtime.submit(document(step("a", approval={"timeout": "10s"})), {})
            await waits.rest()
            busy = await runtime.submit(chain("look"), {})
            await asyncio.sleep(20)
            assert "approval.denied" in await types_of(runtime, waits.workflow_id)
            desk.gates["look"].set()
            assert await finish([busy, waits]) == ["completed", "failed"]
            await must_be_sound(runtime, waits.workflow_id)

    @virtual
    async def test_a_signal_does_not_bring_its_turn_nearer(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()) as runtime:
            graph = runtime.load(chain("look"))
            handles = [await runtime.submit(graph, {}) for _ in range(3)]
            await runtime.signal(handles[2].workflow_id, "hurry")
            await run_until_idle()
            assert desk.runs == [handles[0].workflow_id]
            desk.gates["look"].set()
            assert await finish(handles) == ["completed"] * 3
            assert desk.runs == [h.workflow_id for h in handles]

    async def test_its_id_is_taken(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1) as runtime:
            graph = runtime.load(chain("look"))
            await runtime.submit(graph, {})
            await runtime.submit(graph, {}, workflow_id="wf_mine")
            with pytest.raises(RunExists):
                await runtime.submit(graph, {"other": 1}, workflow_id="wf_mine")
            with pytest.raises(RunExists):
                await runtime.submit(graph, {}, workflow_id="wf_mine", idempotency_key="k")
            with pytest.raises(RunExists):
                await runtime.fork("wf_mine", as_id="wf_mine")
            desk.gates["look"].set()
            assert (await (await runtime.attach("wf_mine")).result()).state == "completed"

    async def test_many_in_the_queue_end_quickly(self):
        desk = Desk()
        async with Runtime(services=[desk.service()], max_concurrent_runs=2) as runtime:
            graph = runtime.load(chain("look"))
            handles = [await runtime.submit(graph, {}) for _ in range(500)]
            assert set(await finish(handles)) == {"completed"}


class ReadCountingLog(MemoryLog):
    """Notes the runs whose rows and events were read."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_read: list[str] = []
        self.logs_read: list[str] = []

    async def run(self, workflow_id: str):
        self.rows_read.append(workflow_id)
        return await super().run(workflow_id)

    async def read(self, workflow_id: str, from_offset: int = 0, limit: int = 256):
        self.logs_read.append(workflow_id)
        return await super().read(workflow_id, from_offset, limit)


class TestItsTurn:
    """A run that had to queue goes on from what `submit` made of it."""

    async def _read_of_five(self, log: ReadCountingLog, value: dict, meanwhile=None) -> list[int]:
        """Queue five runs behind another, do what is to happen `meanwhile`, and let all end.

        Returns the numbers of the runs that were read after that.
        """
        desk = Desk(look=True)
        async with Runtime(
            log, services=[desk.service()], max_concurrent_runs=1, clock=LoopClock()
        ) as runtime:
            graph = runtime.load(chain("look"))
            handles = [await runtime.submit(graph, value) for _ in range(6)]
            if meanwhile is not None:
                await meanwhile(runtime, [handle.workflow_id for handle in handles])
            await run_until_idle()
            log.rows_read.clear()
            log.logs_read.clear()
            desk.gates["look"].set()
            results = await asyncio.gather(*(handle.result() for handle in handles))
            assert [r.state for r in results] == ["completed"] * 6
            assert desk.runs == [handle.workflow_id for handle in handles]
            read = {*log.logs_read, *log.rows_read}
            for handle in handles:
                await must_be_sound(runtime, handle.workflow_id)
            return [n for n, handle in enumerate(handles) if handle.workflow_id in read]

    @virtual
    async def test_nothing_is_read(self):
        assert await self._read_of_five(ReadCountingLog(), {"n": 1}) == []

    @virtual
    async def test_the_log_is_read_of_a_run_that_another_command_or_process_had(self):
        async def meanwhile(runtime: Runtime, runs: list[str]) -> None:
            await runtime.signal(runs[2], "hurry")
            async with Runtime(log, services=[Desk().service()], clock=LoopClock()) as other:
                await other.pause(runs[4])
            await runtime.resume(runs[4])

        log = ReadCountingLog()
        assert await self._read_of_five(log, {}, meanwhile) == [2, 4]

    @virtual
    async def test_the_log_is_read_of_a_run_whose_input_is_too_large_to_be_kept(self):
        read = await self._read_of_five(ReadCountingLog(), {"text": "x" * 70_000})
        assert read == [1, 2, 3, 4, 5]


def third_done(handle, desk) -> bool:
    return handle.workflow_id in desk.runs


class TestClosing:
    async def test_with_a_full_queue_all_can_be_recovered(self):
        log, desk = MemoryLog(), Desk(pay=True)
        async with Runtime(log, services=[desk.service()], max_concurrent_runs=2, grace=0.05) as runtime:
            graph = runtime.load(chain("look", "pay"))
            handles = [await runtime.submit(graph, {}) for _ in range(10)]
            waiting = asyncio.ensure_future(handles[9].result())
            await desk.entered.wait()
            await runtime.pause(handles[8].workflow_id)
        assert (await waiting).state == "pending"
        desk.gates["pay"].set()
        async with Runtime(log, services=[desk.service()], max_concurrent_runs=2) as runtime:
            taken = await runtime.recover()
            assert handles[8].workflow_id not in taken
            assert len(taken) == 9
            results = [await (await runtime.attach(id)).result() for id in taken]
            states = sorted(r.state for r in results)
            for result in results:
                if result.state == "waiting":  # its payment may have happened
                    (request,) = await runtime.requests(result.workflow_id)
                    await runtime.answer(result.workflow_id, request.request_id, {"choice": "done"})
            assert states.count("waiting") <= 2
            for id in taken:
                assert (await (await runtime.attach(id)).result()).state == "completed"
                await must_be_sound(runtime, id)
            assert (await runtime.resume(handles[8].workflow_id)).workflow_id == handles[8].workflow_id
            assert (await (await runtime.attach(handles[8].workflow_id)).result()).state == "completed"
        assert desk.most <= 2
        assert set(desk.executions.values()) == {1}
        await log.close()

    @virtual
    async def test_a_new_run_is_refused(self):
        desk = Desk(look=True)
        runtime = Runtime(services=[desk.service()], grace=5, clock=LoopClock())
        await runtime.__aenter__()
        graph = runtime.load(chain("look"))
        first = await runtime.submit(graph, {})
        await desk.entered.wait()
        closing = asyncio.ensure_future(runtime.__aexit__(None, None, None))
        await run_until_idle()
        with pytest.raises(AgentflowError, match="closed"):
            await runtime.submit(graph, {})
        with pytest.raises(AgentflowError, match="clos"):
            await runtime.pause(first.workflow_id)
        desk.gates["look"].set()
        await closing
        assert (await first.result()).state == "paused"
