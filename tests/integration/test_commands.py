"""What people tell runs, end to end: approvals, answers, pauses, held steps, budgets, cancels."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.errors import CommandRefused, InvalidAnswer, RunNotFound, RunTerminal, UnknownRequest
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def paying(*names: str):
    """A model that asks for these functions, all at once, then says how they ended."""

    def answer(request):
        told = [m.content for m in request.messages if m.role == "tool"]
        if told or not names or request.messages[0].content == "You end.":
            return {"told": told}
        return [call(f"desk__{name}") for name in names]

    return ScriptedModel(answer)


def opened(log=None, *, desk: Desk | None = None, model=None, **more) -> Runtime:
    services = [] if desk is None else [desk.service()]
    models = [model or ScriptedModel(lambda r: {"ok": True})]
    return Runtime(log or MemoryLog(), models=models, services=services, clock=LoopClock(), **more)


async def refused(code: str, awaitable) -> CommandRefused:
    with pytest.raises(CommandRefused) as caught:
        await awaitable
    assert caught.value.code == code
    return caught.value


YAML = """
version: "1.0"
inputs: {{n: {{type: integer}}}}
workflow:
  steps:
    - type: run
      id: pays
      approval: {approval}
      agent:
        systemPrompt: You pay.
        input: "${{{{ inputs.n }}}}"
        attachedFunctions: [{{service: desk, function: look}}, {{service: desk, function: pay}}]
        resultSchema: {{}}
    - type: run
      id: after
      depends_on: [pays]
      agent: {{systemPrompt: You end., input: x, attachedFunctions: none, resultSchema: {{}}}}
"""


@pytest.fixture
def yaml(tmp_path):
    def written(approval: str) -> str:
        path = tmp_path / "flow.yaml"
        path.write_text(YAML.format(approval=approval))
        return str(path)

    return written


class TestApprovals:
    @virtual
    async def test_a_step_waits_and_starts_with_what_was_agreed_to(self, yaml):
        desk, model = Desk(), paying("pay")
        async with opened(desk=desk, model=model) as runtime:
            handle = await runtime.submit(yaml("{message: 'Pay ${{ inputs.n }}?'}"), {"n": 7})
            assert (await handle.result()).state == "waiting"
            (asked,) = await runtime.requests(handle.workflow_id)
            assert (asked.kind, asked.step_id) == ("step", "pays")
            assert asked.subject["message"] == "Pay 7?"
            assert desk.calls == 0
            assert model.requests == []
            await runtime.decide(handle.workflow_id, granted=True, step_id="pays", by="ann", via="cli")
            assert (await handle.result()).state == "completed"
            events = await must_be_sound(runtime, handle.workflow_id)
        (granted,) = [e.data for e in events if e.type == "approval.granted"]
        assert (granted.by, granted.via, granted.digest) == ("ann", "cli", asked.digest)
        assert desk.calls == 1

    @virtual
    async def test_denied_fails_or_skips(self, yaml):
        for on_denied, state in (("fail", "failed"), ("skip", "completed")):
            async with opened(desk=Desk(), model=paying("pay")) as runtime:
                handle = await runtime.submit(yaml(f"{{on_denied: {on_denied}}}"), {"n": 7})
                await handle.result()
                await runtime.decide(handle.workflow_id, granted=False, step_id="pays", reason="too dear")
                result = await handle.rest()
                assert result.state == state
                assert result.steps["after"].state == "skipped"
                events = await must_be_sound(runtime, handle.workflow_id)
            if on_denied == "fail":
                assert result.error.code == "approval_denied"
            else:
                (skipped,) = [e.data for e in events if e.type == "workflow.step_skipped"][:1]
                assert (skipped.reason, skipped.detail) == ("approval_denied", "too dear")

    @virtual
    async def test_the_calls_that_a_document_names_are_asked_about_and_a_denied_one_goes_to_the_model(
        self, yaml
    ):
        for before, names in (("calls", ["look", "pay"]), ("side_effects", ["pay"])):
            desk, model = Desk(), paying("look", "pay")
            async with opened(desk=desk, model=model) as runtime:
                handle = await runtime.submit(yaml(f"{{before: {before}}}"), {"n": 7})
                assert (await handle.result()).state == "waiting"
                asked = await runtime.requests(handle.workflow_id, kind="tool")
                assert [a.subject["function"] for a in asked] == names
                if len(asked) > 1:  # which one?
                    with pytest.raises(UnknownRequest):
                        await runtime.decide(handle.workflow_id, granted=False, step_id="pays")
                for request in asked:
                    granted = request.subject["function"] == "look"
                    await runtime.decide(handle.workflow_id, granted=granted, request_id=request.request_id)
                result = await handle.result()
                assert result.state == "completed"
                await must_be_sound(runtime, handle.workflow_id)
            assert desk.calls == 1
            told = [m.content for r in model.requests for m in r.messages if m.role == "tool"]
            assert sum("denied" in text for text in told) == 1

    async def test_a_function_that_its_service_declares_so(self, tmp_path):
        (tmp_path / "bank.py").write_text(
            "from agentflow import function\n"
            "@function(side_effect='read')\n"
            "def balance() -> int:\n    return 5\n"
        )
        path = tmp_path / "flow.yaml"
        path.write_text(
            "version: '1.0'\n"
            "services: {bank: {type: python, module: bank, functions: {balance: {approval: true}}}}\n"
            "workflow:\n  steps:\n"
            "    - {type: run, id: a, agent: {systemPrompt: x, input: x, resultSchema: {},\n"
            "       attachedFunctions: [{service: bank, function: balance}]}}\n"
        )
        model = ScriptedModel([call("bank__balance"), {"ok": 1}])
        async with Runtime(models=[model]) as runtime:
            handle = await runtime.submit(str(path), {})
            assert (await handle.result()).state == "waiting"
            await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert (await handle.result()).output == {"a": {"ok": 1}}
        assert model.requests[-1].messages[-1].content == "5"

    @virtual
    async def test_the_first_decision_holds_also_after_the_end_of_the_run(self, yaml):
        async with opened(desk=Desk(), model=paying("pay")) as runtime:
            handle = await runtime.submit(yaml("true"), {"n": 7})
            await handle.result()
            (asked,) = await runtime.requests()
            id, request = handle.workflow_id, asked.request_id
            await refused(
                "digest_mismatch", runtime.decide(id, granted=True, request_id=request, digest="sha256:0")
            )
            await runtime.decide(id, granted=True, request_id=request, digest=asked.digest)
            before = await types_of(runtime, id)
            for _ in range(2):
                await runtime.decide(id, granted=True, request_id=request)
                conflict = await refused(
                    "decision_conflict", runtime.decide(id, granted=False, request_id=request)
                )
                assert conflict.details["decision"] == "granted"
                assert (await handle.result()).state == "completed"  # and once more after the end
            assert (await types_of(runtime, id)).count("approval.granted") == before.count("approval.granted")
            with pytest.raises(RunTerminal):
                await runtime.decide(id, granted=True, request_id="req_other")
            await runtime.decide(id, granted=True, step_id="pays")
            await refused("decision_conflict", runtime.decide(id, granted=False, step_id="pays"))
            assert (await types_of(runtime, id)).count("approval.granted") == before.count("approval.granted")
            await must_be_sound(runtime, id)

    @virtual
    async def test_what_names_nothing_is_refused_and_changes_nothing(self, yaml):
        async with opened(desk=Desk()) as runtime:
            handle = await runtime.submit(yaml("true"), {"n": 7})
            await handle.result()
            id = handle.workflow_id
            before = await types_of(runtime, id)
            with pytest.raises(UnknownRequest):
                await runtime.decide(id, granted=True, request_id="req_none")
            with pytest.raises(UnknownRequest):
                await runtime.decide(id, granted=True, step_id="after")
            await refused("step_not_found", runtime.decide(id, granted=True, step_id="nowhere"))
            await refused("invalid_parameter", runtime.decide(id, granted=True))
            await refused(
                "invalid_parameter", runtime.decide(id, granted=True, step_id="a", request_id="req_1")
            )
            with pytest.raises(RunNotFound):
                await runtime.decide("wf_none", granted=True, step_id="a")
            assert await types_of(runtime, id) == before

    @virtual
    async def test_nobody_decides_in_time_though_no_actor_is_there(self, yaml):
        async with opened(desk=Desk()) as runtime:
            began = seconds()
            handle = await runtime.submit(yaml("{timeout: 2h}"), {"n": 7})
            await handle.result()
            await run_until_idle()
            assert runs_at_work(runtime) == []
            result = await ended(runtime, handle.workflow_id)
            assert seconds() - began == pytest.approx(7200, abs=0.1)
            events = await must_be_sound(runtime, handle.workflow_id)
        assert result.error.code == "approval_denied"
        (denied,) = [e.data for e in events if e.type == "approval.denied"]
        assert (denied.via, denied.by) == ("deadline", "system")

    @virtual
    async def test_the_deadline_passes_while_no_process_is_there(self, yaml):
        log = MemoryLog()
        async with opened(log, desk=Desk()) as runtime:
            handle = await runtime.submit(yaml("{timeout: 1h}"), {"n": 7})
            await handle.result()
        await asyncio.sleep(7200)
        for _ in range(2):  # once
            async with opened(log, desk=Desk()) as runtime:
                await runtime.recover()
                assert (await ended(runtime, handle.workflow_id)).error.code == "approval_denied"
        events = await must_be_sound(log, handle.workflow_id)
        assert [e.type for e in events].count("approval.denied") == 1
        await log.close()

    @virtual
    async def test_the_deadline_is_ahead_when_the_next_process_starts(self, yaml):
        log = MemoryLog()
        async with opened(log, desk=Desk()) as runtime:
            handle = await runtime.submit(yaml("{timeout: 1h}"), {"n": 7})
            await handle.result()
        await asyncio.sleep(1800)
        async with opened(log, desk=Desk()) as runtime:
            began = seconds()
            await runtime.recover()
            assert (await ended(runtime, handle.workflow_id)).state == "failed"
            assert seconds() - began == pytest.approx(1800, abs=1)
        await log.close()

    @virtual
    async def test_two_people_at_once(self, yaml):
        async with opened(desk=Desk(), model=paying("pay")) as runtime:
            handle = await runtime.submit(yaml("true"), {"n": 7})
            await handle.result()
            (asked,) = await runtime.requests()
            decide = [
                runtime.decide(handle.workflow_id, granted=n % 2 == 0, request_id=asked.request_id)
                for n in range(6)
            ]
            outcomes = await asyncio.gather(*decide, return_exceptions=True)
            assert [getattr(o, "code", "done") for o in outcomes] == ["done", "decision_conflict"] * 3
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)


def runs_at_work(runtime: Runtime) -> list[str]:
    """The paths of all actors below the one that holds the runs."""
    (runs,) = [a for a in runtime.system.tree().children if a.path == "/runs"]
    return [a.path for a in runs.children]


async def ended(runtime: Runtime, workflow_id: str):
    """The result of a run, once it has ended."""
    async for _ in runtime.events(workflow_id):
        pass
    return await runtime.rest(workflow_id)


async def left_open(log, desk: Desk, graph=None, model=None) -> str:
    """A run whose payment was at work when its process ended: it may have happened."""
    async with opened(log, desk=desk, grace=0.01, model=model) as runtime:
        handle = await runtime.submit(graph or chain("pay"), {})
        await desk.entered.wait()
        await run_until_idle()
    return handle.workflow_id


class TestAnswers:
    @virtual
    async def test_all_or_none(self):
        log, desk = MemoryLog(), Desk(pay=True)
        run = await left_open(log, desk, two_payments(), paying("pay"))
        async with opened(log, desk=desk, model=paying()) as runtime:
            handle = await runtime.resume(run)
            assert (await handle.result()).state == "waiting"
            first, second = await runtime.requests(run)
            done, bad = {"choice": "done", "output": {"paid": 1}}, {"choice": "perhaps"}
            before = await types_of(runtime, run)
            with pytest.raises(InvalidAnswer) as caught:
                await runtime.answer_all(run, {first.request_id: done, second.request_id: bad})
            assert caught.value.details["path"] == "/choice"
            with pytest.raises(UnknownRequest):
                await runtime.answer_all(run, {first.request_id: done, "req_none": done})
            assert await types_of(runtime, run) == before
            assert len(await runtime.requests(run)) == 2
            await runtime.answer_all(run, {first.request_id: done, second.request_id: done}, by="ann")
            assert (await handle.result()).output == {x: {"told": ['{"paid":1}']} for x in "ab"}
            events = await must_be_sound(runtime, run)
        assert [e.data.by for e in events if e.type == "input.received"] == ["ann", "ann"]
        assert set(desk.executions.values()) == {1}
        await log.close()

    @virtual
    async def test_the_same_again_and_another_one(self):
        log, desk = MemoryLog(), Desk(pay=True)
        run = await left_open(log, desk)
        async with opened(log, desk=desk) as runtime:
            await (await runtime.resume(run)).result()
            (asked,) = await runtime.requests(run)
            answer = {"choice": "done", "output": {"paid": 1}}
            desk.gates["pay"].set()
            for _ in range(3):
                handle = await runtime.answer(run, asked.request_id, answer)
                await refused("already_answered", runtime.answer(run, asked.request_id, {"choice": "retry"}))
                await refused("already_answered", runtime.withdraw(run, asked.request_id, "no"))
                assert (await handle.result()).output == {"paid": 1}
            await must_be_sound(runtime, run)
        await log.close()

    @virtual
    async def test_retry_calls_it_again_with_the_same_key(self):
        log, desk = MemoryLog(), Desk(pay=True)
        run = await left_open(log, desk)
        async with opened(log, desk=desk) as runtime:
            await (await runtime.resume(run)).result()
            (asked,) = await runtime.requests(run)
            desk.gates["pay"].set()
            handle = await runtime.answer(run, asked.request_id, {"choice": "retry"})
            assert (await handle.result()).output == {"done": "pay"}
        assert list(desk.executions.values()) == [2]
        await log.close()

    @virtual
    async def test_a_question_that_is_taken_back(self):
        log, desk = MemoryLog(), Desk(pay=True)
        run = await left_open(log, desk)
        async with opened(log, desk=desk) as runtime:
            await (await runtime.resume(run)).result()
            (asked,) = await runtime.requests(run)
            with pytest.raises(UnknownRequest):
                await runtime.withdraw(run, "req_none", "no")
            handle = await runtime.withdraw(run, asked.request_id, "nobody knows", by="ann")
            result = await handle.rest()
            assert await runtime.requests(run) == []
            await runtime.withdraw(run, asked.request_id, "again")  # it holds already
            await refused("request_closed", runtime.answer(run, asked.request_id, {"choice": "retry"}))
            events = await must_be_sound(runtime, run)
        (closed,) = [e.data for e in events if e.type.startswith("input.") and e.type != "input.requested"]
        assert (closed.EVENT_TYPE, closed.reason) == ("input.cancelled", "nobody knows")
        assert closed.request_id == asked.request_id
        assert result.state == "failed"
        assert result.error.details["step_id"] == asked.step_id
        assert desk.calls == 1
        await log.close()

    @virtual
    async def test_an_approval_is_not_answered_and_taken_back_it_is_denied(self, yaml):
        async with opened(desk=Desk()) as runtime:
            handle = await runtime.submit(yaml("true"), {"n": 7})
            await handle.result()
            (asked,) = await runtime.requests()
            with pytest.raises(UnknownRequest, match="approval"):
                await runtime.answer(handle.workflow_id, asked.request_id, True)
            await runtime.withdraw(handle.workflow_id, asked.request_id, "never mind", by="ann")
            assert (await handle.rest()).error.code == "approval_denied"
            events = await must_be_sound(runtime, handle.workflow_id)
        (denied,) = [e.data for e in events if e.type == "approval.denied"]
        assert (denied.by, denied.reason) == ("ann", "never mind")


def two_payments():
    return document(step("a", functions=["pay"]), step("b", functions=["pay"]))
