"""Runs that are taken up again: after a drain, a death, a supervisor that keeps dying; without code."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import AgentflowError, DefinitionError, Runtime
from agentflow.errors import StorageUnavailable
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import Owner
from agentflow.runtime import SystemClock
from agentflow.runtime.crash_ledger import RecoveryLedger
from agentflow.runtime.run_stepper import RunStepper
from agentflow.runtime.runs_supervisor import Alarms
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, log_of, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


class Bomb(SystemClock):
    """A clock that raises while it is armed: a bug of the supervisor, wherever it looks at the time."""

    def __init__(self, armed: bool = False) -> None:
        super().__init__()
        self.armed = armed
        self.raised = 0

    def now(self) -> int:
        if self.armed and isinstance(sys._getframe(1).f_locals.get("self"), RunStepper):
            self.raised += 1
            raise RuntimeError("a bug")
        return super().now()


class CountingLog(MemoryLog):
    """Counts the reads of definitions."""

    def __init__(self) -> None:
        super().__init__()
        self.definitions = 0

    async def get_definition(self, digest: str) -> bytes | None:
        self.definitions += 1
        await asyncio.sleep(0)  # as a store on disk, where others ask meanwhile
        return await super().get_definition(digest)


async def test_runs_of_one_definition_that_are_taken_up_together_read_it_once():
    """A thousand of them decoded it a thousand times, since none found it in the cache yet."""
    log, desk, count = CountingLog(), Desk(look=True), 8
    async with Runtime(log, services=[desk.service()], grace=0) as runtime:
        for _ in range(count):
            await runtime.submit(chain("look"), {})
    log.definitions = 0
    desk.gates["look"].set()
    async with Runtime(log, services=[desk.service()]) as runtime:
        found = await runtime.recover()
        for run in found:
            await (await runtime.attach(run)).result()
    assert len(found) == count
    assert log.definitions == 1


class TestASupervisorThatKeepsDying:
    async def test_the_run_is_paused_and_resume_tries_again(self):
        desk, clock = Desk(look=True), Bomb()
        async with Runtime(services=[desk.service()], clock=clock) as runtime:
            handle = await runtime.submit(chain("look", "pay"), {})
            await desk.entered.wait()
            clock.armed = True
            desk.gates["look"].set()
            with pytest.raises(AgentflowError, match="a bug"):
                await handle.result()
            assert await paused(runtime, handle.workflow_id) == "recovery_limit"
            with pytest.raises(AgentflowError, match="a bug"):  # it still dies, and tries again all the same
                await (await runtime.resume(handle.workflow_id)).result()
            assert await paused(runtime, handle.workflow_id) == "recovery_limit"
            clock.armed = False
            again = await runtime.resume(handle.workflow_id)
            assert (await again.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert desk.executions.total() == 3  # the one whose answer nobody took, that one again, the payment

    async def test_another_runtime_may_have_it(self):
        log, desk, clock = MemoryLog(), Desk(look=True), Bomb()
        async with Runtime(log, services=[desk.service()], clock=clock) as runtime:
            handle = await runtime.submit(chain("look"), {})
            await desk.entered.wait()
            clock.armed = True
            desk.gates["look"].set()
            with pytest.raises(AgentflowError, match="a bug"):
                await handle.result()
            last = (await log_of(runtime, handle.workflow_id))[-1]
            assert last.data.reason == "recovery_limit"  # whoever is told of the failure finds the pause
            async with Runtime(log, services=[desk.service()]) as other:
                assert (await (await other.resume(handle.workflow_id)).result()).state == "completed"

    async def test_a_command_whose_supervisor_dies_of_it_is_answered(self):
        """It died between the command and its answer: the next one is told the same."""
        for after in range(1, 6):
            desk = Desk(look=True)
            clock = Countdown()
            async with Runtime(services=[desk.service()], clock=clock) as runtime:
                handle = await runtime.submit(chain("look"), {})
                await desk.entered.wait()
                clock.left = after
                try:
                    await asyncio.wait_for(runtime.pause(handle.workflow_id), 5)
                except AgentflowError:
                    await runtime.pause(handle.workflow_id)
                clock.left = 0
                desk.gates["look"].set()
                assert (await handle.result()).state == "paused"
                types = await types_of(runtime, handle.workflow_id)
                assert types.count("workflow.paused") == 1
                await runtime.resume(handle.workflow_id)
                assert (await handle.result()).state == "completed"
                await must_be_sound(runtime, handle.workflow_id)

    async def test_one_that_dies_when_it_is_taken_up(self):
        log, clock = MemoryLog(), Bomb()
        async with Runtime(log, models=[ScriptedModel(lambda r: {})]) as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            await handle.result()
        clock.armed = True
        async with Runtime(log, models=[ScriptedModel(lambda r: {})], clock=clock) as runtime:
            with pytest.raises(AgentflowError):
                await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert await paused(runtime, handle.workflow_id) == "recovery_limit"
            clock.armed = False
            await runtime.resume(handle.workflow_id)
            again = await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert (await again.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)

    async def test_a_failure_of_the_actor_that_holds_all_supervisors_ends_no_run(self):
        """It takes its runs up again by itself; whoever waits for a result gets it."""
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()]) as runtime:
            handles = [await runtime.submit(chain("look"), {}) for _ in range(3)]
            await desk.entered.wait()
            results = [asyncio.ensure_future(handle.result()) for handle in handles]
            runs = runtime.system.find("/runs")
            runs.tell(Alarms(due=None))  # type: ignore[arg-type]  # a bug
            desk.gates["look"].set()
            for handle, result in zip(handles, results, strict=True):
                assert (await result).state == "completed"
                assert (await handle.result()).state == "completed"
                await must_be_sound(runtime, handle.workflow_id)


class Countdown(SystemClock):
    """Raises once, at the n-th look that a supervisor takes from now on."""

    left = 0

    def now(self) -> int:
        if self.left and isinstance(sys._getframe(1).f_locals.get("self"), RunStepper):
            self.left -= 1
            if not self.left:
                raise RuntimeError("a bug")
        return super().now()


async def paused(runtime: Runtime, workflow_id: str) -> str:
    """Why it is paused, once the log says so."""
    while True:
        last = (await log_of(runtime, workflow_id))[-1]
        if last.type == "workflow.paused":
            return last.data.reason
        await asyncio.sleep(0.01)


FLOW = """
version: "1.0"
services: {bank: {type: python, module: bank}}
workflow:
  steps:
    - type: run
      id: a
      agent:
        {systemPrompt: a, input: x, resultSchema: {}, attachedFunctions: [{service: bank, function: pay}]}
    - {type: run, id: b, depends_on: [a],
       agent: {systemPrompt: b, input: x, resultSchema: {}, attachedFunctions: none}}
"""
BANK = """
from agentflow import function
@function(side_effect="external")
def pay() -> int:
    return 5
"""


class TestCodeThatIsGone:
    @pytest.fixture
    def flow(self, tmp_path):
        (tmp_path / "bank.py").write_text(BANK)
        (tmp_path / "flow.yaml").write_text(FLOW)
        return tmp_path / "flow.yaml"

    @pytest.mark.parametrize("stopped", ["drained", "killed"])
    async def test_it_is_paused_until_the_code_is_back(self, flow, stopped):
        log = MemoryLog()
        entered = asyncio.Event()

        async def stuck(request):
            entered.set()
            await asyncio.Event().wait()

        def answer(request):
            if request.tools and request.messages[-1].role != "tool":
                return call("bank__pay")
            return {"told": request.messages[-1].content}

        async with Runtime(log, models=[ScriptedModel(stuck)], grace=0.01) as runtime:
            handle = await runtime.submit(str(flow), {})
            await entered.wait()
            run = handle.workflow_id
            if stopped == "killed":
                await log.release(run, runtime.owner)
                await log.claim(run, dead())
        (flow.parent / "bank.py").rename(flow.parent / "gone.py")
        before = await types_of(log, run)
        assert before[-1] == ("model.call_started" if stopped == "killed" else "workflow.paused")
        async with Runtime(log, models=[ScriptedModel(answer)]) as runtime:
            with pytest.raises(DefinitionError):
                await runtime.resume(run)
            assert await types_of(log, run) == before
            assert await runtime.recover() == [run]
            await (await runtime.attach(run)).result()
            record = await runtime.record(run)
            assert record.state == "paused"
            assert record.pause == ("definition_unavailable" if stopped == "killed" else "drain")
            with pytest.raises(DefinitionError):
                await runtime.resume(run)
            (flow.parent / "gone.py").rename(flow.parent / "bank.py")
            handle = await runtime.resume(run)
            assert (await handle.result()).output == {"b": {"told": "x"}}
            events = await must_be_sound(log, run)
        assert [e.type for e in events].count("tool.call_completed") == 1
        await log.close()

    async def test_it_can_be_made_to_stand_still_and_ended(self, flow):
        log, entered = MemoryLog(), asyncio.Event()

        async def stuck(request):
            entered.set()
            await asyncio.Event().wait()

        async with Runtime(log, models=[ScriptedModel(stuck)], grace=0.01) as runtime:
            handle = await runtime.submit(str(flow), {})
            await entered.wait()
            await log.release(handle.workflow_id, runtime.owner)
            await log.claim(handle.workflow_id, dead())
        (flow.parent / "bank.py").unlink()
        async with Runtime(log) as runtime:  # nor is there a model
            await runtime.pause(handle.workflow_id, reason="no code")
            assert (await runtime.record(handle.workflow_id)).pause == "operator"
            await runtime.cancel(handle.workflow_id)
            await must_be_sound(log, handle.workflow_id)
        await log.close()


def dead() -> Owner:
    return Owner(2**22 + 1, "never", "dead")


class TestRecover:
    @virtual
    async def test_only_what_nobody_paused_and_has_not_ended(self):
        log, desk = MemoryLog(), Desk(look=True)
        runs: dict[str, str] = {}
        models = [ScriptedModel(lambda r: {})]
        async with opened(log, desk) as runtime:
            for name in ("ended", "operator", "waiting", "drained", "answered"):
                graph = (
                    document(step("a", approval=True)) if name in ("waiting", "answered") else chain("look")
                )
                handle = await runtime.submit(graph, {}, labels={"name": name})
                runs[handle.workflow_id] = name
                if name == "ended":
                    await handle.cancel()
                    await handle.rest()
                elif name == "operator":
                    await runtime.pause(handle.workflow_id, in_flight="suspend")
            await run_until_idle()
        drained = next(id for id, name in runs.items() if name == "drained")
        async with opened(log, desk, models=models) as runtime:
            # Something is written behind the pause that the drain wrote.
            await runtime.signal(drained, "hello")
            assert (await runtime.record(drained)).state == "paused"
        desk.gates["look"].set()
        async with opened(log, desk, models=models) as runtime:
            taken = await runtime.recover()
            assert sorted(runs[id] for id in taken) == ["answered", "drained", "waiting"]
            assert (await (await runtime.attach(drained)).result()).state in ("completed", "waiting")
            again = await runtime.recover()  # what is at work, or waits, is left as it is
            assert drained not in again or (await runtime.record(drained)).state == "waiting"
            for id in taken:
                await must_be_sound(log, id, ended=False)
        await log.close()

    @virtual
    async def test_runs_that_nobody_finished_are_finished_once(self):
        log, desk = MemoryLog(), Desk(pay=True)
        async with opened(log, desk) as runtime:
            handles = [await runtime.submit(chain("look", "pay", "look"), {}) for _ in range(5)]
            await desk.until(lambda: desk.calls == 10)
        desk.gates["pay"].set()
        async with opened(log, desk, max_concurrent_runs=2) as runtime:
            assert len(await runtime.recover()) == 5
            await runtime.recover()
            for handle in handles:
                again = await runtime.attach(handle.workflow_id)
                assert (await again.result()).state == "waiting"
                (asked,) = await runtime.requests(handle.workflow_id)
                await runtime.answer(handle.workflow_id, asked.request_id, {"choice": "done"})
                assert (await again.result()).state == "completed"
                await must_be_sound(log, handle.workflow_id)
        assert set(desk.executions.values()) == {1}
        await log.close()

    async def test_a_log_that_cannot_be_read_says_so(self):
        log = Unreadable()
        async with Runtime(log, models=[ScriptedModel(lambda r: {})]) as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            await handle.result()
            log.broken = True
            with pytest.raises(StorageUnavailable, match="no disk"):
                await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            log.broken = False
            await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert (await handle.result()).state == "completed"
        await log.close()


class Unreadable(MemoryLog):
    """Gives the first event of a run and no other."""

    broken = False

    async def read(self, workflow_id, from_offset=0, limit=256):
        if self.broken and limit > 1:
            raise StorageUnavailable("no disk")
        return await super().read(workflow_id, from_offset, limit)


def opened(log, desk: Desk, **more) -> Runtime:
    more.setdefault("models", [ScriptedModel(lambda r: {})])
    return Runtime(log, services=[desk.service()], clock=LoopClock(), grace=0.01, **more)


@pytest.mark.parametrize("crashes", [0, 1, 5, 2_000, 10**9])
async def test_a_trial_is_bounded_however_many_crashes_there_were(crashes):
    """daemon D4: a crash loop under a service manager counts 2,000 within hours."""
    log = MemoryLog()
    record = {"owner": {"pid": 1, "started": "gone", "token": "t"}, "crashes": crashes}
    await log.save_cursor("recovery", json.dumps(record))
    ledger = RecoveryLedger(log, Owner(2, "here", "u"))
    await ledger.begin_life([], None)
    assert ledger.crashes == crashes + 1
    assert 1 <= ledger.trial_s <= 10
    await log.close()
