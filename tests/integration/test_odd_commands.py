"""Commands at odd moments and about odd runs: while the Runtime is closed, huge outputs, strange names."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import AgentflowError, Runtime, Service, function
from agentflow.errors import CommandRefused, ConfigurationError
from agentflow.events.memory import MemoryLog
from agentflow.runtime.run_handle import RunHandle
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


class TestWhileTheRuntimeIsClosed:
    @pytest.mark.parametrize("ticks", range(0, 60, 3))
    @virtual
    async def test_each_command_is_refused_or_carried_out_and_the_closing_does_not_wait_for_it(self, ticks):
        """At every moment of the closing: what it says it did is in the log, what it refused is not."""
        log, desk = MemoryLog(), Desk(pay=True)
        runtime = opened(log, desk=desk, grace=5)
        await runtime.__aenter__()
        handle = await runtime.submit(chain("pay", "look"), {})
        waits = await runtime.submit(document(step("a", approval=True)), {})
        await desk.entered.wait()
        await waits.result()
        began = seconds()
        closing = asyncio.ensure_future(runtime.__aexit__(None, None, None))
        for _ in range(ticks):
            await asyncio.sleep(0)
        commands = {
            "signal.received": lambda: runtime.signal(handle.workflow_id, "s"),
            "approval.granted": lambda: runtime.decide(waits.workflow_id, granted=True, step_id="a"),
            "workflow.cancel_requested": lambda: runtime.cancel(handle.workflow_id),
        }
        answers = await asyncio.gather(*(told() for told in commands.values()), return_exceptions=True)
        await closing
        assert seconds() - began <= 6
        written = await types_of(log, handle.workflow_id) + await types_of(log, waits.workflow_id)
        for type, answer in zip(commands, answers, strict=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, AgentflowError), answer
            else:
                assert type in written
            assert (type in written) == (not isinstance(answer, BaseException)), (ticks, type, answer)
        for run in (handle, waits):
            await must_be_sound(log, run.workflow_id, ended=False)
            row = await log.run(run.workflow_id)
            assert row.owner is None or row.ended  # nobody claims a run that has ended
        await log.close()

    @virtual
    async def test_whoever_waits_is_told(self):
        desk = Desk(pay=True)
        runtime = opened(desk=desk, grace=1)
        await runtime.__aenter__()
        handle = await runtime.submit(chain("pay"), {})
        await desk.entered.wait()
        resting = asyncio.ensure_future(handle.result())
        await run_until_idle()
        await runtime.__aexit__(None, None, None)
        assert (await resting).state == "paused"
        with pytest.raises(AgentflowError):
            await runtime.resume(handle.workflow_id)

    @virtual
    async def test_no_caller_waits_for_ever_when_actors_are_killed(self):
        """They are when they would not end in time; then nobody tells that they have."""
        desk = Desk(pay=True)
        runtime = opened(desk=desk, grace=1)
        await runtime.__aenter__()
        handle = await runtime.submit(chain("pay"), {})
        await desk.entered.wait()
        runtime.system.find("/bus").kill()
        waiting = [asyncio.ensure_future(handle.result())]
        waiting += [asyncio.ensure_future(runtime.signal(handle.workflow_id, f"{n}")) for n in range(2)]
        await asyncio.sleep(1)
        runtime.system.find("/runs").kill()
        await runtime.__aexit__(None, None, None)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(a, AgentflowError | RunHandle) for a in answers), answers

    @virtual
    async def test_a_resume_in_the_middle_of_it_leaves_a_run_that_can_be_recovered(self):
        log, desk = MemoryLog(), Desk(pay=True)
        runtime = opened(log, desk=desk, grace=60)
        await runtime.__aenter__()
        handle = await runtime.submit(chain("pay", "look"), {})
        await desk.entered.wait()
        closing = asyncio.ensure_future(runtime.__aexit__(None, None, None))
        await run_until_idle()
        with pytest.raises(AgentflowError):
            await runtime.resume(handle.workflow_id)
        desk.gates["pay"].set()
        began = seconds()
        await closing
        assert seconds() - began < 1
        async with opened(log, desk=desk) as again:
            assert await again.recover() == [handle.workflow_id]
            assert (await (await again.attach(handle.workflow_id)).result()).state == "completed"
            await must_be_sound(log, handle.workflow_id)
        assert set(desk.executions.values()) == {1}
        await log.close()


class TestOddRuns:
    @pytest.mark.parametrize("size", [1_000_000, 5_000_000])
    async def test_a_huge_output(self, tmp_path, size):

        @function(side_effect="read")
        def dump() -> str:
            """Much."""
            return "x" * size

        service = Service.of("desk", dump)
        url = f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, services=[service]) as runtime:
            handle = await runtime.submit(chain("dump", "dump"), {})
            result = await handle.rest()
            await must_be_sound(runtime, handle.workflow_id)
            if size < 1 << 20:
                assert len(result.output) == size
                fork = await runtime.fork(handle.workflow_id, from_step="t1")
                assert len((await fork.result()).output) == size
            else:  # more than a function may give (page 000 §4)
                assert result.error.code == "invalid_tool_output"

    @virtual
    async def test_names_in_any_script(self):
        async with opened(desk=Desk()) as runtime:
            labels = {"Stadt": "Zürich", "城市": "東京", "\u202e": "\U0001f600"}
            handle = await runtime.submit(
                document(step("a", approval={"message": "Zahlen? ${{ inputs.wer }} \u2028"})),
                {"wer": "Жанна 🚀"},
                labels=labels,
                idempotency_key="ключ-🔑",
                by="Ω",
            )
            assert (await handle.result()).state == "waiting"
            again = await runtime.submit(
                document(step("a", approval={"message": "Zahlen? ${{ inputs.wer }} \u2028"})),
                {"wer": "Жанна 🚀"},
                labels=labels,
                idempotency_key="ключ-🔑",
                by="Ω",
            )
            assert again.workflow_id == handle.workflow_id
            (asked,) = await runtime.requests()
            assert asked.subject["message"] == "Zahlen? Жанна 🚀 \u2028"
            await runtime.decide(handle.workflow_id, granted=False, step_id="a", reason="なし", by="\x00\x07")
            assert "なし" in (await handle.rest()).error.message
            await must_be_sound(runtime, handle.workflow_id)

    @pytest.mark.parametrize("id", ["wf_", "wf_ä", "wf_" + "x" * 65, "x", "wf_a/b", "wf_a\n", ""])
    async def test_ids_that_are_none(self, id):
        async with Runtime(services=[Desk().service()]) as runtime:
            with pytest.raises(ConfigurationError):
                await runtime.submit(chain("look"), {}, workflow_id=id)
            done = await runtime.run(chain("look"), {})
            with pytest.raises(ConfigurationError):
                await runtime.fork(done.workflow_id, as_id=id)

    @virtual
    async def test_what_no_event_can_hold_changes_nothing(self):
        text, deep = "\ud800", []
        for _ in range(10_000):
            deep = [deep]
        async with opened(desk=Desk()) as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), {})
            await handle.result()
            id = handle.workflow_id
            before = await types_of(runtime, id)
            commands = [
                lambda: runtime.decide(id, granted=True, step_id="a", reason=text),
                lambda: runtime.pause(id, reason=text),
                lambda: runtime.cancel(id, text),
                lambda: runtime.cancel(id, grace=float("inf")),
                lambda: runtime.withdraw(id, "req_1", text),
            ]
            for value in (text, {text: 1}, float("nan"), {1: 2}, {"a": {3}}, b"x", deep):
                commands.append(lambda value=value: runtime.signal(id, "s", value))
                commands.append(lambda value=value: runtime.answer(id, "req_1", value))
            for command in commands:
                with pytest.raises(CommandRefused) as caught:
                    await command()
                assert caught.value.code == "invalid_parameter"
            with pytest.raises(ConfigurationError):
                await runtime.submit(document(step("a")), {}, labels={"x": text})
            with pytest.raises(ConfigurationError):
                await runtime.fork(id, labels={text: "x"})
            assert len(await runtime.rows()) == 1
            assert await types_of(runtime, id) == before
            await runtime.decide(id, granted=True, step_id="a")
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, id)

    @virtual
    async def test_many_calls_that_wait_for_consent(self):
        def answer(request):
            return {"ok": 1} if any(m.role == "tool" for m in request.messages) else call("desk__pay")

        desk = Desk()
        async with opened(desk=desk, model=ScriptedModel(answer, max_concurrency=50)) as runtime:
            asking = step("a", functions=["pay"], approval={"before": "calls"}, input="${{ item }}")
            handle = await runtime.submit(
                document({**asking, "for_each": "${{ inputs.all }}"}), {"all": list(range(200))}
            )
            assert (await handle.result()).state == "waiting"
            asked = await runtime.requests()
            assert len(asked) == 200
            decisions = [
                runtime.decide(handle.workflow_id, granted=n % 2 == 0, request_id=r.request_id)
                for n, r in enumerate(asked)
            ]
            await asyncio.gather(*decisions)
            async for _ in handle.events():
                pass
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert desk.calls == 100
        assert set(desk.executions.values()) == {1}
