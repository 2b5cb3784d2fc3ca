"""Runs that stand still until somebody decides: steps held after a failure, budgets that are used up."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import virtual
from agentflow import Runtime, engine
from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Budget, Options
from agentflow.errors import CommandRefused, ConfigurationError
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError, ModelProfile
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step, types_of
from tests.integration.virtual import LoopClock
from tests.unit.engine.driver import Driver, agent
from tests.unit.engine.driver import steps as steps_graph


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


class Broken(ScriptedModel):
    """Fails for the prompts in `bad`; counts its answers by prompt and input."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.answers: list[str] = []

        def answer(request):
            prompt, said = request.messages[0].content, request.messages[1].content
            if prompt in self.bad or said in self.bad:
                return ModelError(ErrorInfo(category="agent", code="agent_error", message="broken"))
            self.answers.append(f"{prompt} {said}")
            return {"said": said}

        super().__init__(answer)


HOLD = {"on_failure": "hold"}


class TestHeld:
    @virtual
    async def test_retry_after_a_restart(self):
        log, model = MemoryLog(), Broken("b")
        steps = document(step("a"), step("b"), step("c", depends_on=["b"]))
        async with opened(log, model=model) as runtime:
            handle = await runtime.submit(steps, {}, options=HOLD)
            result = await handle.result()
            assert (result.state, result.pause) == ("paused", "failure")
            assert {k: v.state for k, v in result.steps.items()} == {
                "a": "succeeded",
                "b": "failed",
                "c": "pending",
            }
        async with opened(log, model=model) as runtime:
            assert await runtime.recover() == []  # it waits for a person, not for a process
            await runtime.retry(handle.workflow_id, "b")
            assert (await handle_of(runtime, handle).result()).state == "paused"
            model.bad.clear()
            again = await runtime.retry(handle.workflow_id, "b")
            result = await again.result()
            assert result.state == "completed"
            assert result.steps["b"].attempt == 3
            events = await must_be_sound(runtime, handle.workflow_id)
        assert model.answers == ["a go", "b go", "c go"]
        assert [e.type for e in events].count("workflow.paused") == 2
        await log.close()

    @virtual
    async def test_skip_done_and_fail(self):
        for action, more, state, after in (
            ("skip", {}, "completed", "skipped"),
            ("done", {"output": {"by": "hand"}}, "completed", "succeeded"),
            ("fail", {}, "failed", "skipped"),
        ):
            model = Broken("a")
            async with opened(model=model) as runtime:
                steps = document(
                    step("a"), step("b", depends_on=["a"], input="${{ steps.a.outputs.result }}")
                )
                handle = await runtime.submit(steps, {}, options=HOLD)
                await handle.result()
                await refused("not_failed", runtime.retry(handle.workflow_id, "b", action))
                await refused("step_not_found", runtime.retry(handle.workflow_id, "z", action))
                await runtime.retry(handle.workflow_id, "a", action, by="ann", **more)
                result = await handle.rest()
                await must_be_sound(runtime, handle.workflow_id)
            assert (result.state, result.steps["b"].state) == (state, after)
            assert model.answers == (['b {"by":"hand"}'] if action == "done" else [])

    @virtual
    async def test_a_plain_resume_tries_all_again(self):
        model = Broken("a", "b")
        async with opened(model=model) as runtime:
            handle = await runtime.submit(document(step("a"), step("b"), step("c")), {}, options=HOLD)
            assert (await handle.result()).pause == "failure"
            model.bad.clear()
            await runtime.resume(handle.workflow_id)
            result = await handle.result()
            assert result.state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert sorted(model.answers) == ["a go", "b go", "c go"]

    @virtual
    async def test_one_of_two_held_steps_is_decided_about(self):
        model = Broken("a", "b")
        async with opened(model=model) as runtime:
            handle = await runtime.submit(document(step("a"), step("b")), {}, options=HOLD)
            await handle.result()
            await runtime.retry(handle.workflow_id, "a", "done", output=1)
            assert (await handle.result()).state == "paused"
            await runtime.retry(handle.workflow_id, "b", "done", output=2)
            assert (await handle.result()).output == {"a": 1, "b": 2}

    @virtual
    async def test_iterations_that_succeeded_are_kept(self):
        log, model = MemoryLog(), Broken("3")
        steps = document(step("a", for_each="${{ inputs.all }}", input="${{ item }}"))
        async with opened(log, model=model) as runtime:
            handle = await runtime.submit(steps, {"all": [1, 2, 3, 4]}, options=HOLD)
            assert (await handle.result()).pause == "failure"
        model.bad.clear()
        async with opened(log, model=model) as runtime:
            result = await (await runtime.retry(handle.workflow_id, "a")).result()
            assert result.output == {"a": [{"said": str(n)} for n in (1, 2, 3, 4)]}
            await must_be_sound(runtime, handle.workflow_id)
        assert sorted(model.answers) == [f"a {n}" for n in (1, 2, 3, 4)]
        await log.close()

    @virtual
    async def test_cancel_while_it_is_held(self):
        async with opened(model=Broken("a")) as runtime:
            handle = await runtime.submit(document(step("a"), step("b", depends_on=["a"])), {}, options=HOLD)
            await handle.result()
            await handle.cancel()
            assert (await handle.rest()).state == "cancelled"
            await must_be_sound(runtime, handle.workflow_id)


def handle_of(runtime, handle):
    return runtime._handle(handle.workflow_id)


PRICED = ModelProfile(input_price=1000.0, output_price=1000.0, max_output_tokens=0)


def told(words: int):
    return lambda request: "word " * words


class TestBudgets:
    @virtual
    async def test_a_run_pauses_and_goes_on_with_a_larger_one_also_after_a_restart(self):
        log = MemoryLog()
        steps = document(step("a"), step("b", depends_on=["a"]), budget={"max_model_calls": 1})
        model = Broken()
        async with opened(log, model=model) as runtime:
            handle = await runtime.submit(steps, {})
            result = await handle.result()
            assert (result.state, result.pause) == ("paused", "budget")
            record = await runtime.record(handle.workflow_id)
            assert record.budget.limits["max_model_calls"] == 1
            assert record.budget.used["max_model_calls"] == 1
        async with opened(log, model=model) as runtime:
            assert await runtime.recover() == []
            error = await refused(
                "budget_too_small", runtime.resume(handle.workflow_id, budget={"max_model_calls": 1})
            )
            assert error.details["limit"] == "max_model_calls"
            again = await runtime.resume(handle.workflow_id)  # without a larger one it stops again
            assert (await again.result()).pause == "budget"
            await runtime.resume(handle.workflow_id, budget={"max_model_calls": 2})
            assert (await again.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert len(model.answers) == 2
        await log.close()

    @virtual
    async def test_the_tighter_of_document_and_submission(self):
        for document_says, submission_says in ((1, 5), (5, 1)):
            model = Broken()
            steps = document(step("a"), step("b"), budget={"max_model_calls": document_says})
            async with opened(model=model) as runtime:
                handle = await runtime.submit(steps, {}, budget={"max_model_calls": submission_says})
                assert (await handle.result()).pause == "budget"
            assert len(model.answers) == 1

    @virtual
    async def test_fail(self):
        steps = document(
            step("a"), step("b", depends_on=["a"]), budget={"max_model_calls": 1, "on_exceeded": "fail"}
        )
        async with opened() as runtime:
            handle = await runtime.submit(steps, {})
            result = await handle.rest()
            await must_be_sound(runtime, handle.workflow_id)
        assert (result.state, result.error.code) == ("failed", "budget_exceeded")

    @virtual
    async def test_ask(self):
        choices = (({"choice": "raise", "limit": 2}, "completed"), ({"choice": "fail"}, "failed"))
        for choice, state in (*choices, (None, "failed")):
            steps = document(
                step("a"), step("b", depends_on=["a"]), budget={"max_model_calls": 1, "on_exceeded": "ask"}
            )
            async with opened() as runtime:
                handle = await runtime.submit(steps, {})
                assert (await handle.result()).state == "waiting"
                (asked,) = await runtime.requests()
                assert asked.request_type == "budget"
                for bad in ({"choice": "raise"}, {"choice": "raise", "limit": 1}):
                    await refused(
                        "invalid_response", runtime.answer(handle.workflow_id, asked.request_id, bad)
                    )
                if choice is None:
                    await runtime.withdraw(handle.workflow_id, asked.request_id, "not now")
                else:
                    await runtime.answer(handle.workflow_id, asked.request_id, choice)
                result = await handle.rest()
                assert result.state == state
                assert result.error is None or result.error.code == "budget_exceeded"
                await must_be_sound(runtime, handle.workflow_id)

    @virtual
    async def test_a_step_has_its_own(self):
        desk = Desk()

        def answer(request):
            asked = sum(m.role == "tool" for m in request.messages)
            return (
                call("desk__look") if asked < 3 and request.messages[0].content == "a" else {"asked": asked}
            )

        model = ScriptedModel(answer)
        steps = document(step("a", functions=["look"], budget={"max_tool_calls": 1}), step("b"))
        async with opened(desk=desk, model=model) as runtime:
            handle = await runtime.submit(steps, {})
            result = await handle.result()
            assert (result.pause, result.steps["b"].state) == ("budget", "succeeded")
            assert desk.calls == 1
            await refused(
                "budget_too_small", runtime.resume(handle.workflow_id, budget={"max_tool_calls": 1})
            )
            await runtime.resume(handle.workflow_id, budget={"max_tool_calls": 9})
            assert (await handle.result()).output["a"] == {"asked": 3}
            await must_be_sound(runtime, handle.workflow_id)
        assert set(desk.executions.values()) == {1}

    @virtual
    async def test_function_calls_of_a_graph_count_too(self):
        desk = Desk()
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("pay", "look", "pay"), {}, budget={"max_tool_calls": 2})
            assert (await handle.result()).pause == "budget"
            assert desk.calls == 2
            await runtime.resume(handle.workflow_id, budget={"max_tool_calls": 3})
            assert (await handle.result()).state == "completed"
            await must_be_sound(runtime, handle.workflow_id)
        assert set(desk.executions.values()) == {1}

    @virtual
    async def test_money_and_tokens(self):
        model = ScriptedModel(told(10), profile=PRICED)
        plain = step("a", schema={"type": "string"})
        async with opened(model=model) as runtime:
            steps = document(plain, {**plain, "id": "b", "depends_on": ["a"]})
            # A call may read 180 tokens: 16, 8 for each of 2 messages, 3 bytes of them, and the schema with
            # the sentence around it. The first one uses 12.
            for budget in ({"max_cost_usd": 0.19}, {"max_tokens": 190}):
                handle = await runtime.submit(steps, {}, budget=budget)
                result = await handle.result()
                assert result.pause == "budget", result
                assert result.usage.cost_usd == pytest.approx(0.012)
                (key,) = budget
                await runtime.resume(handle.workflow_id, budget={key: 1000})
                assert (await handle.result()).state == "completed"

    @virtual
    async def test_a_price_that_nobody_knows(self):
        model = ScriptedModel(told(1), profile=ModelProfile())
        steps = document(step("a"), budget={"max_cost_usd": 1})
        async with opened(model=model) as runtime:
            error = await refused("budget_unpriced", runtime.submit(steps, {}))
            assert error.details["model"] == "scripted:m"
            await refused(
                "budget_unpriced", runtime.submit(document(step("a")), {}, budget={"max_cost_usd": 1})
            )
            assert await runtime.rows() == []

    @virtual
    async def test_time(self):
        async def answer(request):
            await asyncio.sleep(50)
            return {}

        async with opened(model=ScriptedModel(answer)) as runtime:
            steps = document(step("a"), step("b", depends_on=["a"]))
            handle = await runtime.submit(steps, {}, budget={"max_duration_s": 60})
            result = await handle.rest()
            assert (result.state, result.error.code) == ("failed", "run_deadline")
            await must_be_sound(runtime, handle.workflow_id)

    @virtual
    async def test_steps(self):
        async with opened() as runtime:
            steps = document(step("a"), step("b", depends_on=["a"]), budget={"max_steps": 1})
            handle = await runtime.submit(steps, {})
            assert (await handle.result()).pause == "budget"
            await refused("budget_too_small", runtime.resume(handle.workflow_id, budget={"max_steps": 1}))
            await runtime.resume(handle.workflow_id, budget={"max_steps": 2})
            assert (await handle.result()).state == "completed"

    @virtual
    async def test_what_the_submission_leaves_open_the_document_says(self):
        steps = document(step("a"), step("b"), budget={"max_model_calls": 1, "on_exceeded": "fail"})
        async with opened() as runtime:
            handle = await runtime.submit(steps, {}, budget={"max_tokens": 10_000})
            assert (await handle.rest()).error.code == "budget_exceeded"
            handle = await runtime.submit(steps, {}, budget={"on_exceeded": "pause"})
            assert (await handle.result()).pause == "budget"
            await runtime.resume(handle.workflow_id, budget={"max_model_calls": 2})
            assert (await handle.result()).state == "completed"

    @virtual
    async def test_a_larger_one_changes_nothing_else(self):
        steps = document(step("a", approval=True), step("b"), budget={"max_steps": 1, "on_exceeded": "fail"})
        async with opened() as runtime:
            handle = await runtime.submit(steps, {})
            await handle.result()
            await runtime.pause(handle.workflow_id)
            await runtime.resume(handle.workflow_id, budget={"max_tokens": 100})
            await runtime.decide(handle.workflow_id, granted=True, step_id="a")
            assert (await handle.rest()).error.code == "budget_exceeded"

    def test_what_a_failed_call_used_counts(self):
        """When its adapter knows: a call that broke off in the middle of its answer has its price too."""
        workflow = steps_graph(agent("a"), options=Options(budget=Budget(max_tokens=60)))
        driver = Driver(workflow)
        (call,) = driver.waiting
        error = ErrorInfo(category="transient", code="server_error", message="broke off", retryable=True)
        used = Usage(input_tokens=30, output_tokens=10, model_calls=1)
        driver.advance(
            engine.model_failed(
                driver.state,
                call.call_id,
                error,
                retry_after=None,
                duration_ms=1,
                now=driver.now,
                draw=0.0,
                usage=used,
            )
        )
        driver.now = engine.next_due(driver.state)
        driver.advance([])
        assert (driver.state.status, driver.state.pause) == ("paused", "budget")
        assert driver.state.usage == used
        assert driver.state.paused_for["used"] == 40

    @virtual
    async def test_a_budget_that_is_none(self):
        async with opened() as runtime:
            wrong = ({"max_token": 1}, {"max_tokens": -1}, {"max_tokens": True}, {"on_exceeded": "cry"})
            for budget in wrong:
                with pytest.raises(ConfigurationError, match="budget"):
                    await runtime.submit(document(step("a")), {}, budget=budget)
            handle = await runtime.submit(document(step("a")), {}, budget={"max_model_calls": 0})
            assert (await handle.result()).pause == "budget"
            length = len(await types_of(runtime, handle.workflow_id))
            for budget in (*wrong, {"max_model_calls": "many"}):
                with pytest.raises(ConfigurationError, match="budget"):
                    await runtime.resume(handle.workflow_id, budget=budget)
            assert len(await types_of(runtime, handle.workflow_id)) == length
