"""A run that only waits is its log and nothing else: no actor, no memory, no task. The next message
wakes it."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.engine import Bindings, RunState, compile_graph
from agentflow.events.memory import MemoryLog
from agentflow.events.tracing import RunTracer
from agentflow.runtime.log_replay import Fold, FoldCache
from agentflow.runtime.runs_supervisor import Alarms
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock, seconds

MANY = 100


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def model() -> ScriptedModel:
    return ScriptedModel(lambda r: {"ok": True})


def at_work(runtime: Runtime) -> list[str]:
    (runs,) = [a for a in runtime.system.tree().children if a.path == "/runs"]
    return [a.path.rpartition("/")[2] for a in runs.children]


ASKING = document(step("a", approval={"timeout": "1h"}))


class TestWaiting:
    @virtual
    async def test_it_has_no_actor_and_no_task(self):
        async with Runtime(models=[model()], clock=LoopClock()) as runtime:
            await run_until_idle()
            actors, tasks = count(runtime.system.tree()), len(asyncio.all_tasks())
            handle = await runtime.submit(ASKING, {})
            assert (await handle.result()).state == "waiting"
            await run_until_idle()
            assert count(runtime.system.tree()) == actors
            assert len(asyncio.all_tasks()) == tasks
            assert runtime._registry.launches == {}
            assert runtime._registry.live == {}

    @virtual
    async def test_so_has_one_that_is_paused_or_over(self):
        async with Runtime(models=[model()], clock=LoopClock()) as runtime:
            paused = await runtime.submit(ASKING, {})
            await paused.result()
            await runtime.pause(paused.workflow_id)
            await paused.result()
            await runtime.run(document(step("a")), {})
            await run_until_idle()
            assert at_work(runtime) == []
            assert runtime._registry.launches == {}

    @virtual
    async def test_an_answer_wakes_the_one_that_it_is_for(self):
        async with Runtime(models=[model()], clock=LoopClock()) as runtime:
            definition = runtime.load(ASKING)
            handles = [await runtime.submit(definition, {}) for _ in range(20)]
            for handle in handles:
                await handle.result()
            await run_until_idle()
            lengths = {h.workflow_id: len(await types_of(runtime, h.workflow_id)) for h in handles}
            await runtime.decide(handles[7].workflow_id, granted=True, step_id="a")
            assert at_work(runtime) in ([handles[7].workflow_id], [])
            assert (await handles[7].result()).state == "completed"
            await run_until_idle()
            for handle in handles[:7] + handles[8:]:
                assert len(await types_of(runtime, handle.workflow_id)) == lengths[handle.workflow_id]
                assert (await handle.result()).state == "waiting"

    @virtual
    async def test_deadlines_of_many_all_come(self):
        async with Runtime(models=[model()], clock=LoopClock(), max_concurrent_runs=3) as runtime:
            began = seconds()
            definition = runtime.load(ASKING)
            handles = [await runtime.submit(definition, {}) for _ in range(100)]
            await asyncio.sleep(1800)
            await runtime.decide(handles[0].workflow_id, granted=True, step_id="a")
            for handle in handles:
                assert [e.type async for e in handle.events()][-1] in (
                    "workflow.failed",
                    "workflow.completed",
                )
            assert seconds() - began == pytest.approx(3600, abs=1)
            denied = [h for h in handles if "approval.denied" in await types_of(runtime, h.workflow_id)]
            assert denied == handles[1:]
            for handle in handles:
                await must_be_sound(runtime, handle.workflow_id)

    @virtual
    async def test_the_index_of_deadlines_is_bounded_and_each_comes_at_its_time(self, monkeypatch):
        """Those that the index drops are read from the store when the ones before them have passed, also
        after a failure of the actor that keeps it; what was submitted since goes among them."""
        monkeypatch.setattr("agentflow.runtime.run_registry.MAX_ALARMS", 4)
        async with Runtime(clock=LoopClock()) as runtime:
            index = runtime._registry._table.alarms
            index._limit = 4
            began = seconds()

            async def submit(minutes: int) -> None:
                nodes = [
                    {"id": "start", "type": "start", "next": "w"},
                    {"id": "w", "type": "wait", "duration": minutes * 60, "next": "end"},
                    {"id": "end", "type": "end"},
                ]
                graph = {"version": "v0", "name": "w", "nodes": nodes}
                await (await runtime.submit(graph, {}, workflow_id=f"wf_{minutes:03}")).result()

            for minutes in [*range(40, 0, -1), *range(41, 61)]:
                await submit(minutes)
                assert len(index) <= 8
            ended: dict[str, int] = {}
            for minute in range(1, 62):
                await asyncio.sleep(began + minute * 60 + 1 - seconds())
                if minute == 20:
                    runtime.system.find("/runs").tell(Alarms(due=None))  # type: ignore[arg-type]  # a bug
                if minute == 30:
                    await submit(90)
                await run_until_idle()
                rows = (await runtime.log.runs(limit=100)).items
                ended = {row.workflow_id: minute for row in rows if row.ended} | ended
                assert len(index) <= 8
                assert len(runtime._registry._timelines) <= 4
            assert ended == {f"wf_{minute:03}": minute for minute in range(1, 61)}
            await asyncio.sleep(3_600)
            await run_until_idle()
            assert (await runtime.record("wf_090")).state == "completed"
            assert len(index) == 0

    @virtual
    async def test_a_deadline_of_a_paused_run_waits_for_the_resume(self):
        async with Runtime(models=[model()], clock=LoopClock()) as runtime:
            handle = await runtime.submit(ASKING, {})
            await handle.result()
            await runtime.pause(handle.workflow_id)
            await asyncio.sleep(7200)
            assert (await types_of(runtime, handle.workflow_id))[-1] == "workflow.paused"
            await runtime.resume(handle.workflow_id)
            assert (await handle.rest()).error.code == "approval_denied"

    @virtual
    async def test_a_command_that_comes_just_when_it_goes_to_rest(self):
        """Whatever the moment, the command is obeyed once and the run goes on."""
        for ticks in range(40):
            log = MemoryLog()
            async with Runtime(log, models=[model()], clock=LoopClock()) as runtime:
                handle = await runtime.submit(ASKING, {})
                for _ in range(ticks):
                    await asyncio.sleep(0)
                pausing = asyncio.ensure_future(runtime.pause(handle.workflow_id))
                await asyncio.sleep(0)
                signalling = asyncio.ensure_future(runtime.signal(handle.workflow_id, "s"))
                await asyncio.gather(pausing, signalling)
                await runtime.resume(handle.workflow_id)
                await runtime.decide(handle.workflow_id, granted=True, step_id="a")
                assert (await handle.result()).state == "completed"
                types = [e.type for e in await must_be_sound(log, handle.workflow_id)]
                assert types.count("signal.received") == types.count("workflow.paused") == 1

    async def test_many_cost_little(self, tmp_path):
        """What is kept of a waiting run is its log, on the disk, and a timer for its deadline."""
        async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", models=[model()]) as runtime:
            definition = runtime.load(ASKING)

            async def wait(many: int) -> None:
                for _ in range(many):
                    assert (await (await runtime.submit(definition, {})).result()).state == "waiting"
                await asyncio.sleep(0.05)
                gc.collect()

            await wait(20)
            tracemalloc.start()
            await wait(1)
            before = tracemalloc.get_traced_memory()[0]
            await wait(MANY)
            used = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert at_work(runtime) == []
        print(f"{used / MANY:.0f} bytes a waiting run")
        assert used / MANY < 2_500


class Watched(MemoryLog):
    """Notes from where logs are folded."""

    def __init__(self) -> None:
        super().__init__()
        self.folded_from: list[int] = []

    async def read(self, workflow_id, from_offset=0, limit=256):
        if limit > 2:
            self.folded_from.append(from_offset)
        return await super().read(workflow_id, from_offset, limit)


ITEMS = 24


def asking_for_each() -> dict:
    agent = {"systemPrompt": "p", "input": "${{ item }}", "resultSchema": {}}
    agent["attachedFunctions"] = [{"service": "desk", "function": "pay"}]
    more = {"for_each": "${{ inputs.items }}", "approval": {"before": "calls"}, "agent": agent}
    graph = document({"type": "run", "id": "a", **more}, max_parallel=64)
    return {**graph, "inputs": {"items": {"type": "array"}}}


def paying() -> ScriptedModel:
    return ScriptedModel(lambda r: {"ok": r.messages[-1].content} if r.messages[-1].role == "tool" else PAY)


PAY = call("desk__pay")


class TestARunThatIsAnsweredManyTimes:
    def opened(self, log, desk) -> Runtime:
        return Runtime(log, models=[paying()], services=[desk.service()], clock=LoopClock())

    async def asked(self, runtime: Runtime) -> tuple[str, list[str]]:
        handle = await runtime.submit(asking_for_each(), {"items": list(range(ITEMS))})
        assert (await handle.result()).state == "waiting"
        await run_until_idle()
        return handle.workflow_id, [r.request_id for r in await runtime.requests(handle.workflow_id)]

    @virtual
    async def test_its_log_is_not_folded_from_the_start_each_time(self):
        log, desk = Watched(), Desk()
        async with self.opened(log, desk) as runtime:
            run, asked = await self.asked(runtime)
            log.folded_from.clear()
            for request in asked:
                last = await log.last(run)
                handle = await runtime.decide(run, granted=True, request_id=request)
                result = await handle.result()
                await run_until_idle()
                assert log.folded_from[0] == last + 1
                assert 0 not in log.folded_from
                log.folded_from.clear()
            assert (result.state, desk.calls) == ("completed", ITEMS)
            await must_be_sound(log, run)

    @virtual
    async def test_what_others_wrote_meanwhile_counts(self):
        log, desk = Watched(), Desk()
        async with self.opened(log, desk) as one, self.opened(log, desk) as other:
            run, asked = await self.asked(one)
            for turn, request in enumerate(asked):
                runtime = (one, other)[turn // 2 % 2]
                await (await runtime.decide(run, granted=turn % 3 != 0, request_id=request)).result()
                await run_until_idle()
            events = await must_be_sound(log, run)
        ended = [e for e in events if e.type in ("tool.call_completed", "approval.denied")]
        assert len(ended) == ITEMS
        assert desk.calls == sum(turn % 3 != 0 for turn in range(ITEMS))
        assert events[-1].type == "workflow.completed"

    @virtual
    async def test_what_was_folded_without_its_functions_serves_nobody(self):
        """To pause a run its models and functions need not be here; to go on they must."""
        log, desk = Watched(), Desk()
        async with self.opened(log, desk) as runtime:
            run, asked = await self.asked(runtime)
        async with self.opened(log, desk) as runtime:
            await runtime.pause(run)
            await run_until_idle()
            await (await runtime.resume(run)).result()
            for request in asked:
                handle = await runtime.decide(run, granted=True, request_id=request)
                result = await handle.result()
            await must_be_sound(log, run)
        assert (result.state, desk.calls) == ("completed", ITEMS)

    @virtual
    async def test_it_costs_no_memory_for_long(self):
        log, desk = Watched(), Desk()
        async with self.opened(log, desk) as runtime:
            run, asked = await self.asked(runtime)
            assert len(runtime._registry._folds._kept) == 1
            await asyncio.sleep(60)
            assert runtime._registry._folds._kept == {}
            log.folded_from.clear()
            await (await runtime.decide(run, granted=True, request_id=asked[0])).result()
            assert log.folded_from[0] == 0


def test_only_so_many_are_kept_and_none_that_went_on():
    async def keeping() -> None:
        plan = compile_graph(Runtime().load(ASKING).workflow)
        folds = FoldCache()

        def fold(name: str, events: int, more: int = 0) -> Fold:
            state = RunState(name, plan, Bindings())
            state.next_offset = events + more
            return Fold(state, RunTracer(name), events)

        for number in range(40):
            folds.keep(fold(f"wf_{number}", 1000))
        assert [folds.take(f"wf_{n}", plan, Bindings()) is not None for n in range(40)] == [False] * 24 + [
            True
        ] * 16
        for kept in (fold("wf_a", 150_000), fold("wf_b", 100_000), fold("wf_c", 10), fold("wf_d", 900, 1)):
            folds.keep(kept)
        assert [folds.take(f"wf_{x}", plan, Bindings()) is not None for x in "abcd"] == [
            False,
            True,
            False,
            False,
        ]
        folds.keep(fold("wf_e", 1000))
        assert folds.take("wf_e", compile_graph(Runtime().load(ASKING).workflow), Bindings()) is None
        folds.clear()

    asyncio.run(keeping())


def count(actor) -> int:
    return 1 + sum(count(child) for child in actor.children)
