"""Forks: a new run that goes on from a point of another, on its recorded results."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.errors import CommandRefused, LogCorrupt, QueueFull, RunExists, RunNotFound
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, log_of, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def teller() -> ScriptedModel:
    """Pays once for each agent that can, then tells what it got."""

    def answer(request):
        if request.tools and all(m.role != "tool" for m in request.messages):
            return call("desk__pay")
        return {"told": request.messages[-1].content}

    return ScriptedModel(answer)


STEPS = document(
    step("a", functions=["pay"]),
    step("b", depends_on=["a"], input="${{ steps.a.outputs.result.told }}"),
    step("c", depends_on=["b"], functions=["pay"]),
)
PAID = '{"done":"pay"}'
OUTPUT = {"c": {"told": PAID}}


async def settle(runtime: Runtime, handle):
    """The result of a run, about whose unknown calls somebody says that they were made."""
    result = await handle.result()
    while result.state == "waiting":
        for asked in await runtime.requests(handle.workflow_id):
            await runtime.answer(
                handle.workflow_id, asked.request_id, {"choice": "done", "output": {"done": "pay"}}
            )
        result = await handle.result()
    return result


class TestAtAnOffset:
    async def test_every_offset_of_a_run(self, tmp_path):
        """Whatever the point: it ends as the old one did, a recorded model call is not made again, a
        payment that may have happened is asked about and one that is recorded not made."""
        url, desk, model = f"sqlite:{tmp_path / 'runs.db'}", Desk(), teller()
        async with Runtime(url, models=[model], services=[desk.service()]) as runtime:
            source = await runtime.run(STEPS, {})
            old = await runtime.log.read(source.workflow_id, 0, 500)
            events = await log_of(runtime, source.workflow_id)
            assert (len(model.requests), desk.calls) == (5, 2)
            for offset in range(len(events)):
                before, paid = len(model.requests), desk.calls
                handle = await runtime.fork(source.workflow_id, offset=offset)
                result = await settle(runtime, handle)
                assert (result.state, result.output) == ("completed", OUTPUT), offset
                forked = await must_be_sound(runtime, handle.workflow_id)
                assert [e.type for e in forked[:2]] == ["workflow.started", "system.state_saved"]
                assert forked[0].data.forked_from.offset == offset
                kept = events[: offset + 1]
                made = len(model.requests) - before
                assert made == 5 - sum(e.type == "model.call_completed" for e in kept), offset
                begun = sum(e.type == "tool.call_started" for e in kept)
                assert desk.calls - paid == 2 - begun, offset
            assert [r.body for r in await runtime.log.read(source.workflow_id, 0, 500)] == [
                r.body for r in old
            ]
        assert set(desk.executions.values()) == {1}

    async def test_a_fork_of_a_fork_of_a_fork(self, tmp_path):
        url, desk, model = f"sqlite:{tmp_path / 'runs.db'}", Desk(), teller()
        async with Runtime(url, models=[model], services=[desk.service()]) as runtime:
            run = (await runtime.run(STEPS, {})).workflow_id
            for _ in range(3):
                before = len(model.requests)
                handle = await runtime.fork(run, from_step="c")
                assert (await handle.result()).output == OUTPUT
                assert len(model.requests) - before == 2
                run = handle.workflow_id
            end = await runtime.fork(run)
            assert (await end.result()).output == OUTPUT
            record = await runtime.record(end.workflow_id)
            assert record.forked_from.workflow_id == run
        assert desk.calls == 2 + 3
        assert set(desk.executions.values()) == {1}

    async def test_it_outlives_the_process_and_the_old_run(self, tmp_path):
        url, desk = f"sqlite:{tmp_path / 'runs.db'}", Desk()
        async with Runtime(url, models=[teller()], services=[desk.service()]) as runtime:
            source = await runtime.run(STEPS, {})
            desk.gates["pay"].clear()
            desk.entered.clear()
        async with Runtime(url, models=[teller()], services=[desk.service()], grace=0.05) as runtime:
            handle = await runtime.fork(source.workflow_id, from_step="c")
            await desk.entered.wait()
        async with Runtime(url, models=[teller()], services=[desk.service()]) as runtime:
            await runtime.log.delete(source.workflow_id, 1)
            await runtime.log.sweep(2**62)
            desk.gates["pay"].set()
            await runtime.recover()
            result = await settle(runtime, await runtime.attach(handle.workflow_id))
            assert result.output == OUTPUT
            await must_be_sound(runtime, handle.workflow_id)
        assert desk.calls == 3

    @virtual
    async def test_of_a_run_at_work(self):
        """The call that is open there is not made again here unasked; there it ends as if nothing was."""
        desk = Desk(pay=True)
        async with Runtime(services=[desk.service()], clock=LoopClock()) as runtime:
            source = await runtime.submit(chain("look", "pay", "look"), {})
            await desk.until(lambda: desk.calls == 2)
            fork = await runtime.fork(source.workflow_id)
            assert (await fork.result()).state == "waiting"
            desk.gates["pay"].set()
            assert (await source.result()).state == "completed"
            assert (await settle(runtime, fork)).state == "completed"
            await must_be_sound(runtime, source.workflow_id)
            await must_be_sound(runtime, fork.workflow_id)
        assert desk.calls == 4
        assert set(desk.executions.values()) == {1}

    @virtual
    async def test_of_a_run_that_stands_still(self):
        """Its questions stay its own; the fork asks anew."""
        async with Runtime(models=[teller()], services=[Desk().service()], clock=LoopClock()) as runtime:
            source = await runtime.submit(document(step("a", approval=True)), {})
            await source.result()
            await runtime.pause(source.workflow_id)
            await source.result()
            fork = await runtime.fork(source.workflow_id)
            assert (await fork.result()).state == "waiting"
            (mine,) = await runtime.requests(fork.workflow_id)
            (its,) = await runtime.requests(source.workflow_id)
            assert mine.request_id != its.request_id
            assert mine.digest != its.digest
            await runtime.decide(fork.workflow_id, granted=True, step_id="a")
            assert (await fork.result()).state == "completed"
            assert (await source.result()).state == "paused"

    @virtual
    async def test_a_cancelled_run_goes_on(self):
        desk = Desk(pay=True)
        async with Runtime(services=[desk.service()], clock=LoopClock()) as runtime:
            source = await runtime.submit(chain("look", "pay"), {})
            await desk.until(lambda: desk.calls == 2)
            last = (await runtime.log.run(source.workflow_id)).last_offset
            await source.cancel(mode="hard")
            await source.rest()
            desk.gates["pay"].set()
            fork = await runtime.fork(source.workflow_id, offset=last)
            assert (await settle(runtime, fork)).state == "completed"
            assert (await runtime.rest(source.workflow_id)).state == "cancelled"


class TestFromAStep:
    @virtual
    async def test_the_step_and_all_after_it_run_again_and_no_other(self):
        for name, models, calls in (("a", 5, 2), ("b", 3, 1), ("c", 2, 1)):
            desk, model = Desk(), teller()
            async with Runtime(models=[model], services=[desk.service()], clock=LoopClock()) as runtime:
                source = await runtime.run(STEPS, {})
                handle = await runtime.fork(source.workflow_id, from_step=name, labels={"try": name})
                assert (await handle.result()).output == OUTPUT
                assert (len(model.requests) - 5, desk.calls - 2) == (models, calls)
                record = await runtime.record(handle.workflow_id)
                assert (record.forked_from.from_step, record.labels) == (name, {"try": name})
                await must_be_sound(runtime, handle.workflow_id)

    @virtual
    async def test_the_one_that_failed(self):
        bad = True

        def answer(request):
            prompt = request.messages[0].content
            return "no JSON" if bad and prompt == "b" else {"by": prompt}

        schema = {"type": "object", "required": ["by"]}
        model = ScriptedModel(answer)
        async with Runtime(models=[model], clock=LoopClock()) as runtime:
            steps = document(
                step("a"), step("b", depends_on=["a"], schema=schema), step("c", depends_on=["b"])
            )
            handle = await runtime.submit(steps, {})
            assert (await handle.rest()).state == "failed"
            bad = False
            before = len(model.requests)
            fork = await runtime.fork(handle.workflow_id, from_failure=True)
            assert (await fork.result()).output == {"c": {"by": "c"}}
            assert len(model.requests) - before == 2
            with pytest.raises(CommandRefused) as caught:
                await runtime.fork(fork.workflow_id, from_failure=True)
            assert caught.value.code == "not_failed"

    @virtual
    async def test_of_a_run_with_iterations(self):
        model = ScriptedModel(lambda r: {"n": r.messages[1].content})
        steps = document(
            step("a", for_each="${{ inputs.all }}", input="${{ item }}"),
            step("b", depends_on=["a"], input="${{ steps.a.outputs.result }}"),
        )
        async with Runtime(models=[model], clock=LoopClock()) as runtime:
            source = await runtime.run(steps, {"all": [1, 2, 3]})
            length = len(await types_of(runtime, source.workflow_id))
            for offset in range(length):
                handle = await runtime.fork(source.workflow_id, offset=offset)
                result = await handle.result()
                assert result.output == source.output, offset
                await must_be_sound(runtime, handle.workflow_id)
            assert (await (await runtime.fork(source.workflow_id, from_step="b")).result()).output


class TestRefused:
    @virtual
    async def test_a_base_that_is_lost_is_damage_and_not_an_empty_one(self):
        log = MemoryLog()
        async with Runtime(log, services=[Desk().service()], clock=LoopClock()) as runtime:
            source = await runtime.run(chain("look", "pay"), {})
            fork = await runtime.fork(source.workflow_id, from_step="t1")
            await fork.result()
            log._blobs.clear()
            for read in (runtime.fold(fork.workflow_id), runtime.fork(fork.workflow_id)):
                with pytest.raises(LogCorrupt):
                    await read
            assert len(await runtime.rows()) == 2
        await log.close()

    @virtual
    async def test_what_does_not_fit_leaves_nothing(self):
        async with Runtime(services=[Desk().service()], clock=LoopClock()) as runtime:
            source = await runtime.run(chain("look"), {})
            id, last = source.workflow_id, (await runtime.log.run(source.workflow_id)).last_offset
            for more, code in (
                ({"offset": last + 1}, "invalid_parameter"),
                ({"offset": -1}, "invalid_parameter"),
                ({"offset": 1, "from_step": "t0"}, "invalid_parameter"),
                ({"from_step": "nowhere"}, "step_not_found"),
                ({"from_failure": True}, "not_failed"),
            ):
                with pytest.raises(CommandRefused) as caught:
                    await runtime.fork(id, **more)
                assert caught.value.code == code
            with pytest.raises(RunNotFound):
                await runtime.fork("wf_none")
            with pytest.raises(RunExists):
                await runtime.fork(id, as_id=id)
            assert len(await runtime.rows()) == 1

    @virtual
    async def test_it_takes_its_turn_as_any_run(self):
        desk = Desk()
        more = {"max_concurrent_runs": 1, "max_queued_runs": 1, "clock": LoopClock()}
        async with Runtime(services=[desk.service()], **more) as runtime:
            source = await runtime.run(chain("look", "pay"), {})
            desk.gates["look"].clear()
            first = await runtime.submit(chain("look"), {})
            fork = await runtime.fork(source.workflow_id, from_step="t1")
            with pytest.raises(QueueFull):
                await runtime.fork(source.workflow_id, from_step="t1")
            await run_until_idle()
            assert (await types_of(runtime, fork.workflow_id))[-1] == "system.state_saved"
            desk.gates["look"].set()
            assert [(await h.result()).state for h in (first, fork)] == ["completed"] * 2
            await must_be_sound(runtime, fork.workflow_id)

    @virtual
    async def test_many_at_once_from_one(self):
        log, desk = MemoryLog(), Desk()
        async with Runtime(log, services=[desk.service()], clock=LoopClock()) as runtime:
            source = await runtime.run(chain("look", "pay"), {})
            handles = await asyncio.gather(
                *(runtime.fork(source.workflow_id, from_step="t1") for _ in range(30))
            )
            assert {(await h.result()).state for h in handles} == {"completed"}
            assert len({h.workflow_id for h in handles}) == 30
        assert desk.calls == 2 + 30
        assert set(desk.executions.values()) == {1}
        await log.close()
