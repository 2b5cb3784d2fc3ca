"""Standing still and ending: pause, resume and cancel at every state of a run, here and from elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import CommandRefused, Fenced, RunNotFound, RunTerminal
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import Owner
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def opened(log=None, *, desk: Desk | None = None, model=None, **more) -> Runtime:
    services = [] if desk is None else [desk.service()]
    models = [model or ScriptedModel(lambda r: {"ok": True})]
    return Runtime(log or MemoryLog(), models=models, services=services, clock=LoopClock(), **more)


async def refused(code: str, awaitable) -> CommandRefused:
    with pytest.raises(CommandRefused) as caught:
        await awaitable
    assert caught.value.code == code
    return caught.value


class Slow(ScriptedModel):
    """Answers when it is let; each model call is counted. First asks for `wanted`, then is done."""

    def __init__(self, *wanted: str) -> None:
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        self.cancelled = 0

        async def answer(request):
            self.entered.set()
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if wanted and all(m.role != "tool" for m in request.messages):
                return [call(f"desk__{name}") for name in wanted]
            return {"ok": True}

        super().__init__(answer)


class TestPause:
    @virtual
    async def test_drain_lets_the_step_in_flight_end_and_begins_no_other(self):
        model = Slow("look")
        desk = Desk()
        async with opened(desk=desk, model=model) as runtime:
            steps = document(step("a", functions=["look"]), step("b", depends_on=["a"]))
            handle = await runtime.submit(steps, {})
            await model.entered.wait()
            await runtime.pause(handle.workflow_id, reason="lunch", by="ann")
            assert (await runtime.record(handle.workflow_id)).state == "paused"
            resting = asyncio.ensure_future(handle.result())
            await run_until_idle()
            assert not resting.done()
            model.leave.set()
            result = await resting
            assert (result.state, result.pause) == ("paused", "operator")
            assert {k: v.state for k, v in result.steps.items()} == {"a": "succeeded", "b": "pending"}
            assert model.cancelled == 0
            assert len(model.requests) == 2
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "completed"
            events = await must_be_sound(runtime, handle.workflow_id)
        (paused,) = [e.data for e in events if e.type == "workflow.paused"]
        assert (paused.reason, paused.detail, paused.by) == ("operator", "lunch", "ann")

    @virtual
    async def test_suspend_cuts_model_calls_off_and_makes_them_again(self):
        model = Slow()
        async with opened(model=model) as runtime:
            handle = await runtime.submit(document(step("a")), {})
            await model.entered.wait()
            await runtime.pause(handle.workflow_id, in_flight="suspend")
            assert (await handle.result()).state == "paused"
            await run_until_idle()
            assert model.cancelled == 1
            model.leave.set()
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert len(model.requests) == 2

    @virtual
    async def test_suspend_waits_for_functions_and_keeps_their_results(self):
        desk, model = Desk(pay=True), Slow("pay")
        model.leave.set()
        async with opened(desk=desk, model=model) as runtime:
            handle = await runtime.submit(document(step("a", functions=["pay"])), {})
            await desk.entered.wait()
            await runtime.pause(handle.workflow_id, in_flight="suspend")
            resting = asyncio.ensure_future(handle.result())
            await asyncio.sleep(30)
            assert not resting.done()
            desk.gates["pay"].set()
            assert (await resting).state == "paused"
            assert (await types_of(runtime, handle.workflow_id))[-1] == "tool.call_completed"
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert desk.calls == 1
        assert len(model.requests) == 2

    @virtual
    async def test_resume_while_the_step_in_flight_still_drains(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay", "look"), {})
            await desk.entered.wait()
            await runtime.pause(handle.workflow_id)
            await runtime.resume(handle.workflow_id)
            desk.gates["pay"].set()
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert set(desk.executions.values()) == {1}

    @virtual
    async def test_what_holds_already_writes_nothing(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            id = handle.workflow_id
            await desk.entered.wait()
            length = len(await types_of(runtime, id))
            await runtime.resume(id)
            assert len(await types_of(runtime, id)) == length
            await refused("invalid_transition", runtime.resume(id, budget={"max_tokens": 5}))
            await runtime.pause(id)
            await runtime.pause(id, in_flight="suspend")
            assert len(await types_of(runtime, id)) == length + 1
            desk.gates["pay"].set()
            assert (await handle.result()).state == "paused"
            await runtime.pause(id)  # and when no actor is there any more
            assert (await types_of(runtime, id)).count("workflow.paused") == 1

    @virtual
    async def test_a_waiting_run(self):
        async with opened() as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            assert (await handle.result()).state == "waiting"
            await runtime.pause(handle.workflow_id)
            assert (await handle.result()).state == "paused"
            await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert (await handle.result()).state == "paused"
            assert runtime.models is not None
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)

    @virtual
    async def test_time_limits_stand_still(self):
        model = Slow()
        async with opened(model=model) as runtime:
            handle = await runtime.submit(document(step("a", timeout="60s")), {})
            await model.entered.wait()
            await asyncio.sleep(50)
            await runtime.pause(handle.workflow_id, in_flight="suspend")
            await handle.result()
            await asyncio.sleep(10_000)
            await runtime.resume(handle.workflow_id)
            resumed = seconds()
            result = await handle.rest()
            assert result.error.code == "step_deadline"
            assert seconds() - resumed == pytest.approx(10, abs=0.1)

    @virtual
    async def test_time_limits_stand_still_while_no_process_is_there(self):
        log, model = MemoryLog(), Slow()
        async with opened(log, model=model) as runtime:
            handle = await runtime.submit(document(step("a", timeout="60s")), {})
            await model.entered.wait()
            await asyncio.sleep(50)
        await asyncio.sleep(10_000)
        async with opened(log, model=Slow()) as runtime:
            resumed = seconds()
            result = await (await runtime.resume(handle.workflow_id)).rest()
            assert result.error.code == "step_deadline"
            assert seconds() - resumed == pytest.approx(10, abs=0.1)
        await log.close()

    @virtual
    async def test_a_quota_that_ends_while_a_run_drains_keeps_its_time_limits(self):
        async def answer(request):
            entered.set()
            await leave.wait()
            if len(model.requests) == 1:
                raise ModelError(ErrorInfo(category="quota", code="insufficient_quota", message="no money"))
            await asyncio.Event().wait()

        entered, leave, model = asyncio.Event(), asyncio.Event(), ScriptedModel(lambda r: answer(r))
        async with opened(model=model) as runtime:
            handle = await runtime.submit(document(step("a", timeout="60s")), {})
            await entered.wait()
            await asyncio.sleep(50)
            await runtime.pause(handle.workflow_id)
            leave.set()
            assert (await handle.result()).pause == "quota"
            await asyncio.sleep(10_000)
            await runtime.resume(handle.workflow_id)
            resumed = seconds()
            assert (await handle.rest()).error.code == "step_deadline"
            assert seconds() - resumed == pytest.approx(10, abs=0.1)

    @virtual
    async def test_the_log_has_gone_on_since(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            id = handle.workflow_id
            await desk.entered.wait()
            last = (await runtime.log.run(id)).last_offset
            for command in (
                runtime.pause(id, expected_offset=last - 1),
                runtime.cancel(id, expected_offset=0),
                runtime.signal(id, "s", expected_offset=0),
            ):
                error = await refused("offset_mismatch", command)
                assert error.details["last_offset"] == last
            assert (await runtime.log.run(id)).last_offset == last
            await runtime.pause(id, expected_offset=last)
            desk.gates["pay"].set()
            await handle.result()
            await refused("offset_mismatch", runtime.resume(id, expected_offset=last))
            assert (await runtime.record(id)).state == "paused"

    @virtual
    async def test_ended_runs_and_none(self):
        async with opened(desk=Desk()) as runtime:
            result = await runtime.run(chain("look"), {})
            id = result.workflow_id
            length = len(await types_of(runtime, id))
            with pytest.raises(RunTerminal):
                await runtime.pause(id)
            with pytest.raises(RunTerminal):
                await runtime.retry(id, "t0")
            with pytest.raises(RunTerminal):
                await runtime.signal(id, "s")
            with pytest.raises(RunTerminal):
                await runtime.resume(id, budget={"max_tokens": 5})
            assert (await (await runtime.resume(id)).result()).state == "completed"
            assert (await (await runtime.cancel(id)).result()).state == "completed"
            assert len(await types_of(runtime, id)) == length
            for command in (runtime.pause, runtime.resume, runtime.cancel):
                with pytest.raises(RunNotFound):
                    await command("wf_none")

    @virtual
    async def test_a_signal_that_comes_twice(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            await desk.entered.wait()
            for _ in range(2):
                await runtime.signal(handle.workflow_id, "hurry", {"n": 1}, signal_id="sig_1")
            desk.gates["pay"].set()
            await handle.result()
            await runtime.signal(handle.workflow_id, "hurry", {"n": 1}, signal_id="sig_1")
            assert (await types_of(runtime, handle.workflow_id)).count("signal.received") == 1


NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


class TestElsewhere:
    @pytest.mark.skipif(not can_unshare(), reason="needs the right to make a process namespace")
    async def test_a_run_whose_owner_is_in_another_namespace_is_not_taken_over(self, tmp_path):
        """durability 4: its process id means nothing here; its payment is made once."""
        url = f"sqlite:{tmp_path / 'runs.db'}"
        child = subprocess.Popen(  # noqa: ASYNC220 — it returns at once
            [*NAMESPACE, sys.executable, "-m", "tests.integration.support.holder", url, "wf_held"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        try:
            assert await asyncio.to_thread(child.stdout.readline) == "paying\n"
            desk = Desk()
            async with Runtime(url, services=[desk.service()]) as runtime:
                for command in (runtime.resume, runtime.pause, runtime.cancel):
                    with pytest.raises(Fenced):
                        await command("wf_held")
                assert (await runtime.recover()) == ["wf_held"]
                assert (await runtime.record("wf_held")).state == "running"
            assert desk.calls == 0
        finally:
            child.kill()
            child.wait()
            child.stdout.close()

    async def test_a_run_of_another_process_that_lives_and_then_is_dead(self, tmp_path):
        """Its payment was at work when it was killed, so a person must say what became of it."""
        url = f"sqlite:{tmp_path / 'runs.db'}"
        child = subprocess.Popen(  # noqa: ASYNC220 — it returns at once
            [sys.executable, "-m", "tests.integration.support.holder", url, "wf_held"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdout is not None
        try:
            assert await asyncio.to_thread(child.stdout.readline) == "paying\n"
            desk = Desk()
            async with Runtime(url, services=[desk.service()]) as runtime:
                before = await types_of(runtime, "wf_held")
                for command in (runtime.pause, runtime.resume, runtime.cancel):
                    with pytest.raises(Fenced):
                        await command("wf_held")
                assert await runtime.recover() == ["wf_held"]
                assert (await runtime.record("wf_held")).state == "running"
                assert await types_of(runtime, "wf_held") == before
                child.kill()
                await asyncio.to_thread(child.wait)
                handle = await runtime.resume("wf_held")
                assert (await handle.result()).state == "waiting"
                (asked,) = await runtime.requests("wf_held")
                await runtime.answer("wf_held", asked.request_id, {"choice": "done", "output": 1})
                assert (await handle.result()).output == {"done": "look"}
                await must_be_sound(runtime, "wf_held")
            assert desk.calls == 1
        finally:
            child.kill()
            child.wait()
            child.stdout.close()

    @virtual
    async def test_pause_and_cancel_of_a_run_that_nobody_works_on_begin_nothing(self):
        for what in ("pause", "cancel"):
            log, desk = MemoryLog(), Desk(look=True)
            run = await abandoned(log, desk)
            async with opened(log) as runtime:  # without its functions, which are not needed
                handle = await getattr(runtime, what)(run)
                result = await handle.rest()
                assert result.state == {"pause": "paused", "cancel": "cancelled"}[what]
                await must_be_sound(runtime, run, ended=what == "cancel")
            assert desk.calls == 1
            await log.close()

    @virtual
    async def test_a_stale_owner_writes_nothing_more(self):
        """Two Runtimes believe that they own a run: the first is thought to be dead, and is not."""
        log, desk = MemoryLog(), Desk(pay=True)
        async with opened(log, desk=desk, grace=0.01) as stale:
            first = await stale.submit(chain("pay", "look"), {})
            await desk.entered.wait()
            await log.release(first.workflow_id, (await log.run(first.workflow_id)).owner)
            async with opened(log, desk=desk) as runtime:
                second = await runtime.resume(first.workflow_id)
                assert (await second.result()).state == "waiting"
                desk.gates["pay"].set()
                with pytest.raises(Fenced):
                    await first.result()
                (asked,) = await runtime.requests(first.workflow_id)
                await runtime.answer(first.workflow_id, asked.request_id, {"choice": "done", "output": 1})
                assert (await second.result()).state == "completed"
                await must_be_sound(runtime, first.workflow_id)
        assert desk.calls == 2
        await log.close()


def dead_owner() -> Owner:
    return Owner(2**22 + 1, "never", "dead")


async def abandoned(log: MemoryLog, desk: Desk) -> str:
    """A run whose process was killed while a harmless function was at work."""
    runtime = opened(log, desk=desk, grace=0.0)
    await runtime.__aenter__()
    handle = await runtime.submit(chain("look", "pay"), {})
    await desk.entered.wait()
    await dies(runtime, log, handle.workflow_id)
    assert (await types_of(log, handle.workflow_id))[-1] == "tool.call_started"
    return handle.workflow_id


async def dies(runtime: Runtime, log: MemoryLog, workflow_id: str) -> None:
    """As a kill would: nothing more is written of this run, and it is nobody's."""
    await log.release(workflow_id, runtime.owner)
    await log.claim(workflow_id, dead_owner())  # fences what the first one would still write
    await runtime.__aexit__(None, None, None)


class TestCancel:
    @virtual
    async def test_soft_lets_a_function_end_in_its_grace_and_records_what_it_did(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay", "look"), {})
            await desk.entered.wait()
            await runtime.cancel(handle.workflow_id, "enough", grace=5)
            await asyncio.sleep(4)
            desk.gates["pay"].set()
            assert (await handle.rest()).state == "cancelled"
            events = await must_be_sound(runtime, handle.workflow_id)
        assert desk.cancelled == 0
        assert desk.calls == 1
        assert "tool.call_completed" in [e.type for e in events]
        assert events[-1].data.unknown_calls == ()
        assert not events[-1].data.forced

    @virtual
    async def test_the_grace_is_over(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            await desk.entered.wait()
            began = seconds()
            await runtime.cancel(handle.workflow_id, grace=5)
            result = await handle.rest()
            assert result.state == "cancelled"
            assert seconds() - began == pytest.approx(5, abs=0.1)
            await run_until_idle()
            assert desk.cancelled == 1
            events = await must_be_sound(runtime, handle.workflow_id)
        assert len(events[-1].data.unknown_calls) == 1

    @virtual
    async def test_hard_is_at_once_and_a_second_cancel_only_hardens(self):
        for first, second in (("hard", None), ("soft", "hard"), ("soft", "soft")):
            desk = Desk(pay=True)
            async with opened(desk=desk) as runtime:
                handle = await runtime.submit(chain("pay"), {})
                await desk.entered.wait()
                began = seconds()
                await runtime.cancel(handle.workflow_id, mode=first)
                if second is not None:
                    await asyncio.sleep(1)
                    await runtime.cancel(handle.workflow_id, mode=second)
                await handle.rest()
                passed = {None: 0, "hard": 1, "soft": 5}[second]
                assert seconds() - began == pytest.approx(passed, abs=0.1)
                events = await must_be_sound(runtime, handle.workflow_id)
            assert [e.type for e in events].count("workflow.cancel_requested") == 1
            assert events[-1].data.forced == (passed < 5)

    @virtual
    async def test_an_agent_whose_functions_are_at_work(self):
        desk, model = Desk(pay=True, look=True), Slow("pay", "look")
        model.leave.set()
        async with opened(desk=desk, model=model) as runtime:
            handle = await runtime.submit(document(step("a", functions=["pay", "look"])), {})
            await desk.entered.wait()
            await run_until_idle()
            await runtime.cancel(handle.workflow_id)
            await asyncio.sleep(1)
            desk.gates["pay"].set()
            began = seconds()
            assert (await handle.rest()).state == "cancelled"
            assert seconds() - began == pytest.approx(4, abs=0.1)
            events = await must_be_sound(runtime, handle.workflow_id)
        assert [e.data.tool_name for e in events if e.type == "tool.call_completed"] == ["desk__pay"]
        assert len(model.requests) == 1

    @virtual
    async def test_a_run_that_stands_still(self):
        desk = Desk()
        async with opened(desk=desk) as runtime:
            paused = await runtime.submit(document(step("a", approval=True)), {})
            await paused.result()
            await runtime.pause(paused.workflow_id)
            await paused.result()
            waiting = await runtime.submit(document(step("a", approval={"timeout": "1h"})), {})
            await waiting.result()
            for handle in (paused, waiting):
                await handle.cancel("enough")
                assert (await handle.rest()).state == "cancelled"
                await handle.cancel("enough")
                events = await must_be_sound(runtime, handle.workflow_id)
                assert [e.type for e in events][-3:] == [
                    "approval.denied",
                    "workflow.step_failed",
                    "workflow.cancelled",
                ]
            await asyncio.sleep(7200)  # the deadline of the second one wakes nobody
            assert (await types_of(runtime, waiting.workflow_id))[-1] == "workflow.cancelled"

    @virtual
    async def test_in_the_middle_of_a_drain(self):
        desk = Desk(pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            await desk.entered.wait()
            await runtime.pause(handle.workflow_id)
            await runtime.cancel(handle.workflow_id)
            await refused("invalid_transition", runtime.pause(handle.workflow_id))
            await refused("invalid_transition", runtime.resume(handle.workflow_id))
            desk.gates["pay"].set()
            assert (await handle.rest()).state == "cancelled"
            await must_be_sound(runtime, handle.workflow_id)

    @virtual
    async def test_the_runtime_is_closed_in_the_grace(self):
        log, desk = MemoryLog(), Desk(pay=True)
        async with opened(log, desk=desk, grace=2) as runtime:
            handle = await runtime.submit(chain("pay"), {})
            await desk.entered.wait()
            await runtime.cancel(handle.workflow_id, grace=60)
        assert (await handle.rest()).state == "cancelled"
        await must_be_sound(log, handle.workflow_id)
        await log.close()

    @virtual
    async def test_a_process_that_dies_in_the_grace(self):
        """Whoever recovers the store ends the run, also one that stood still."""
        for paused in (False, True):
            log, desk = MemoryLog(), Desk(look=True)
            runtime = opened(log, desk=desk, grace=0.0)
            await runtime.__aenter__()
            handle = await runtime.submit(chain("look", "pay"), {})
            await desk.entered.wait()
            if paused:
                await runtime.pause(handle.workflow_id)
            await runtime.cancel(handle.workflow_id, grace=60)
            await dies(runtime, log, handle.workflow_id)
            async with opened(log, desk=desk) as other:
                assert await other.recover() == [handle.workflow_id]
                assert (await (await other.attach(handle.workflow_id)).rest()).state == "cancelled"
                await must_be_sound(log, handle.workflow_id)
            assert desk.calls == 1
            await log.close()


class TestCallersThatGoAway:
    """A cancelled task leaves nothing half begun: what it began goes on."""

    @pytest.mark.parametrize("ticks", range(12))
    async def test_submit(self, ticks, tmp_path):
        desk = Desk()
        url = f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, services=[desk.service()], max_concurrent_runs=1) as runtime:
            graph = runtime.load(chain("look"))
            asking = asyncio.ensure_future(runtime.submit(graph, {}, workflow_id="wf_mine"))
            for _ in range(ticks):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            # It is there and goes to its end, or was never begun and can be begun now.
            handle = await runtime.submit(graph, {}, workflow_id="wf_mine")
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, "wf_mine")
        assert desk.calls == 1

    @pytest.mark.parametrize("ticks", range(12))
    async def test_submit_into_the_queue(self, ticks):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()], max_concurrent_runs=1) as runtime:
            graph = runtime.load(chain("look"))
            first = await runtime.submit(graph, {})
            asking = asyncio.ensure_future(runtime.submit(graph, {}, workflow_id="wf_mine"))
            for _ in range(ticks):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            desk.gates["look"].set()
            await first.result()
            rows = await runtime.rows()
            if len(rows) == 2:
                assert (await (await runtime.attach("wf_mine")).result()).state == "completed"

    @pytest.mark.parametrize("ticks", range(16))
    async def test_resume(self, ticks, tmp_path):
        desk = Desk()
        url = f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, models=[ScriptedModel(lambda r: {})], services=[desk.service()]) as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            await handle.result()
            await runtime.pause(handle.workflow_id)
            await handle.result()
            asking = asyncio.ensure_future(runtime.resume(handle.workflow_id))
            for _ in range(ticks):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            await runtime.resume(handle.workflow_id)
            assert (await handle.result()).state == "waiting"
            assert (await types_of(runtime, handle.workflow_id)).count("workflow.resumed") == 1
            # and nobody keeps it from another Runtime
            async with Runtime(url, models=[ScriptedModel(lambda r: {})]) as other:
                again = await other.decide(handle.workflow_id, granted=True, step_id="a")
                assert (await again.result()).state == "completed"

    @pytest.mark.parametrize("ticks", range(16))
    async def test_fork(self, ticks):
        desk = Desk()
        async with Runtime(services=[desk.service()]) as runtime:
            source = await runtime.run(chain("look", "pay"), {})
            asking = asyncio.ensure_future(runtime.fork(source.workflow_id, from_step="t1", as_id="wf_fork"))
            for _ in range(ticks):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            if len(await runtime.rows()) == 2:
                assert (await (await runtime.attach("wf_fork")).result()).state == "completed"
                await must_be_sound(runtime, "wf_fork")
