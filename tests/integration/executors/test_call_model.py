"""`ctx.call_model`: recorded, bounded by budgets, made again only if it came to nothing (page 002 §3)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentflow import (
    Executor,
    ModelAnswer,
    RetryPolicy,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
)
from agentflow.definition.conversation import Usage
from agentflow.errors import CommandRefused
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel
from tests.integration.executors.crashes import cut_log, drive
from tests.integration.support.runs import must_be_sound

POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])


class Point(msgspec.Struct, frozen=True):
    x: int


class Models(ScriptedModel):
    """Counts what it is asked."""

    def __init__(self, answer: Any = lambda request: f"re: {request.messages[-1].content}") -> None:
        self.asked: list[str] = []

        def script(request: Any) -> Any:
            self.asked.append(request.messages[-1].content)
            return answer(request)

        super().__init__(script)


def asking(handle: Any, policy: Any = "superstep", **options: Any) -> Workflow:
    @executor(id="ask", **options)
    async def ask(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await handle(text, ctx)

    return WorkflowBuilder("asking", policy=policy).set_start_executor(ask).build()


async def events_of(runtime: Runtime, run_id: str, prefix: str) -> list[Any]:
    rows = await runtime.log.read(run_id, 0, 10_000)
    return [event.data for row in rows if (event := decode(row.body)).type.startswith(prefix)]


@POLICIES
async def test_the_answer_of_a_model_is_returned_recorded_and_charged(policy: str):
    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        answer = await ctx.call_model(text, model="scripted:m", system="be brief", temperature=0.5)
        assert isinstance(answer, ModelAnswer)
        await ctx.yield_output(answer.text)

    model = Models()
    async with Runtime(MemoryLog(), models=[model]) as runtime:
        result = await runtime.run(asking(handle, policy), "hello")
        started, completed = await events_of(runtime, result.workflow_id, "model.")
        await must_be_sound(runtime, result.workflow_id)
    assert result.get_outputs() == ["re: hello"]
    assert (started.provider, started.model, started.agent_name) == ("scripted", "m", None)
    assert started.parameters == {"temperature": 0.5}
    assert [m.role for m in started.messages] == ["system", "user"]
    assert completed.model_call_id == started.model_call_id
    assert result.usage.model_calls == 1


async def test_an_output_type_gives_a_value_and_a_wrong_answer_is_asked_for_again():
    answers = iter(["none", '{"x": "1"}', '{"x": 3}'])

    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        answer = await ctx.call_model(text, model="scripted:m", output_type=Point)
        assert answer.data == Point(3)
        await ctx.yield_output(str(answer.usage.model_calls))

    model = Models(lambda _: next(answers))
    async with Runtime(MemoryLog(), models=[model]) as runtime:
        result = await runtime.run(asking(handle), "where")
    assert result.get_outputs() == ["3"]
    assert model.asked[0] == "where"
    assert "does not satisfy" in model.asked[1]


async def test_a_later_attempt_gets_the_recorded_answers_and_makes_what_failed_again():
    failures = iter([True, False])
    attempts: list[int] = []

    def answer(request: Any) -> Any:
        if request.messages[-1].content == "second" and next(failures):
            raise ConnectionError("gone")
        return request.messages[-1].content

    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        attempts.append(ctx.attempt)
        first = await ctx.call_model("first", model="scripted:m")
        again = await ctx.call_model("first", model="scripted:m")
        second = await ctx.call_model("second", model="scripted:m")
        await ctx.yield_output(f"{first.text} {again.text} {second.text}")

    model = Models(answer)
    retry = RetryPolicy(max_attempts=3, backoff="1ms", timeout=None)
    async with Runtime(MemoryLog(), models=[model]) as runtime:
        result = await runtime.run(asking(handle, retry=retry), "x")
        await must_be_sound(runtime, result.workflow_id)
    assert result.get_outputs() == ["first first second"]
    assert attempts == [1, 2]
    assert model.asked == ["first", "first", "second", "second"]


async def test_a_failed_call_raises_what_the_handler_may_catch():
    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        try:
            await ctx.call_model("x", model="scripted:m")
        except ModelError as error:
            await ctx.yield_output(error.info.code)

    def fail(_: Any) -> Any:
        raise ValueError("a bug")

    async with Runtime(MemoryLog(), models=[Models(fail)]) as runtime:
        result = await runtime.run(asking(handle), "x")
    assert result.get_outputs() == ["agent_error"]


LIMITS = pytest.mark.parametrize(
    ("budget", "limit"), [({"max_model_calls": 1}, "max_model_calls"), ({"max_tokens": 40}, "max_tokens")]
)


async def thrice(text: str, ctx: WorkflowContext[Never, str]) -> None:
    for number in range(3):
        await ctx.call_model(f"{number}" * 30, model="scripted:m", max_tokens=16)
    await ctx.yield_output("done")


@LIMITS
async def test_a_call_that_does_not_fit_the_budget_is_not_made(budget: dict[str, Any], limit: str):
    model = Models()
    async with Runtime(MemoryLog(), models=[model]) as runtime:
        given = {**budget, "on_exceeded": "fail"}
        result = await runtime.run(asking(thrice), "x", budget=given, raise_on_failure=False)
        await must_be_sound(runtime, result.workflow_id)
    assert (result.state, result.error.code, result.error.category) == ("failed", "budget_exceeded", "budget")
    assert limit in result.error.message
    assert len(model.asked) <= 1


@LIMITS
@POLICIES
async def test_a_run_pauses_at_its_budget_and_a_larger_one_lets_the_handler_go_on(
    budget: dict[str, Any], limit: str, policy: str
):
    model = Models()
    async with Runtime(MemoryLog(), models=[model]) as runtime:
        run = await runtime.submit(asking(thrice, policy), "x", budget=budget)
        assert (await run.result()).state == "paused"
        (paused,) = await events_of(runtime, run.workflow_id, "workflow.paused")
        assert (paused.reason, list(paused.budget["limit"])) == ("budget", [limit])
        before = len(model.asked)
        with pytest.raises(CommandRefused, match=limit):
            await run.resume(budget={limit: budget[limit] * before})
        assert (await (await run.resume(budget={limit: 10_000})).result()).get_outputs() == ["done"]
        await must_be_sound(runtime, run.workflow_id)
    assert len(set(model.asked)) == len(model.asked) == 3  # nothing is paid for twice


@POLICIES
async def test_a_person_is_asked_for_a_larger_budget_and_may_refuse(policy: str):
    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        try:
            await thrice(text, ctx)
        except ModelError as error:
            await ctx.yield_output(error.info.code)

    budget = {"max_model_calls": 1, "on_exceeded": "ask"}
    for answers, wanted in ((["raise", "raise"], "done"), (["raise", "fail"], "budget_exceeded")):
        model = Models()
        async with Runtime(MemoryLog(), models=[model]) as runtime:
            run = await runtime.submit(asking(handle, policy), "x", budget=budget)
            for limit, choice in enumerate(answers, 2):
                result = await run.result()
                assert result.state == "waiting"
                (asked,) = result.pending_requests
                assert asked.data["limit"] == "max_model_calls"
                value = {"choice": choice, "limit": limit} if choice == "raise" else {"choice": choice}
                run = await run.answer_all({asked.request_id: value})
            assert (await run.result()).get_outputs() == [wanted]
            await must_be_sound(runtime, run.workflow_id)
        assert len(set(model.asked)) == len(model.asked) == (3 if wanted == "done" else 2)


async def test_a_handler_that_gives_its_call_up_withdraws_the_question():
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        if text == "other":
            await given_up.wait()  # so that the run does not rest meanwhile
            return
        asking = asyncio.ensure_future(ctx.call_model("x", model="scripted:m"))
        await begun.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await ctx.yield_output("without")
        given_up.set()

    @executor(id="a")
    async def a(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await handle(text, ctx)

    @executor(id="b")
    async def b(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await handle("other", ctx)

    built = WorkflowBuilder("two").set_start_executor(a, b).build()
    async with Runtime(MemoryLog(), models=[Models()]) as runtime:
        run = await runtime.submit(built, "x", budget={"max_model_calls": 0, "on_exceeded": "ask"})
        async for event in run.events():
            if event.type == "input.requested":
                begun.set()
        assert (await run.result()).get_outputs() == ["without"]
        (closed,) = await events_of(runtime, run.workflow_id, "input.cancelled")
        assert closed.reason == "handler_ended"
        await must_be_sound(runtime, run.workflow_id)


@POLICIES
async def test_a_fork_of_a_run_that_waits_for_its_budget_asks_anew(policy: str):
    model = Models()
    async with Runtime(MemoryLog(), models=[model]) as runtime:
        run = await runtime.submit(
            asking(thrice, policy), "x", budget={"max_model_calls": 1, "on_exceeded": "ask"}
        )
        (asked,) = (await run.result()).pending_requests
        forked = await run.fork()
        (anew,) = (await forked.result()).pending_requests
        assert anew.request_id != asked.request_id
        forked = await forked.answer_all({anew.request_id: {"choice": "raise", "limit": 9}})
        assert (await forked.result()).get_outputs() == ["done"]
        assert (await run.result()).state == "waiting"
        await must_be_sound(runtime, forked.workflow_id)
    assert len(model.asked) == 3


@pytest.mark.parametrize("mode", ["Always", "Mixed"])
async def test_a_replay_of_a_run_that_asked_for_budget_asks_nobody(mode: Any):
    async with Runtime(MemoryLog(), models=[Models()]) as runtime:
        run = await runtime.submit(asking(thrice), "x", budget={"max_model_calls": 1, "on_exceeded": "ask"})
        (asked,) = (await run.result()).pending_requests
        await (await run.answer_all({asked.request_id: {"choice": "raise", "limit": 9}})).result()
        again = await (await runtime.replay(run.workflow_id, mode)).result()
        assert (again.state, again.get_outputs()) == ("completed", ["done"])


@POLICIES
async def test_two_handlers_wait_for_room_in_the_budget_and_overdraw_it_never(policy: str):
    async def slow(request: Any) -> Any:
        await asyncio.sleep(0)
        return "ok"

    class Twice(Executor):
        @handler
        async def on_text(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            answer = await ctx.call_model(text, model="scripted:m", max_tokens=100)
            await ctx.yield_output(answer.text)

    built = WorkflowBuilder("two", policy=policy).set_start_executor(Twice("a"), Twice("b")).build()
    async with Runtime(MemoryLog(), models=[ScriptedModel(slow)]) as runtime:
        result = await runtime.run(built, "x", budget={"max_tokens": 200})
        found = await events_of(runtime, result.workflow_id, "model.call_")
        await must_be_sound(runtime, result.workflow_id)
    assert result.get_outputs() == ["ok", "ok"]
    assert [type(one).__name__ for one in found] == ["ModelCallStarted", "ModelCallCompleted"] * 2


async def test_a_run_goes_on_from_behind_every_event_and_pays_for_no_answer_twice():
    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        one = await ctx.call_model("one", model="scripted:m")
        two = await ctx.call_model("two", model="scripted:m")
        await ctx.yield_output(f"{one.text} {two.text}")

    def built() -> Any:
        return asking(handle)

    log, model = MemoryLog(), Models()
    async with Runtime(log, models=[model]) as runtime:
        handle_ = await runtime.submit(built(), "x")
        whole = await drive(runtime, handle_.workflow_id)
        rows = await log.read(handle_.workflow_id, 0, 1000)
    assert whole.outputs == ["re: one re: two"]
    for upto in range(1, len(rows)):
        again, fresh = built(), Models()
        cut = await cut_log(handle_.workflow_id, again, rows[:upto])
        recorded = sum(row.type == "model.call_completed" for row in rows[:upto])
        ended = any(row.type == "workflow.step_completed" for row in rows[:upto])
        async with Runtime(cut, models=[fresh]) as runtime:
            runtime.register(again)
            await runtime.recover()
            assert await drive(runtime, handle_.workflow_id) == whole
            await must_be_sound(runtime, handle_.workflow_id)
        assert len(fresh.asked) == (0 if ended else 2 - recorded), f"cut behind {rows[upto - 1].type}"


@pytest.mark.parametrize("mode", ["soft", "hard"])
async def test_cancelling_while_a_model_answers_leaves_a_closed_history(mode: Any):
    begun, release = asyncio.Event(), asyncio.Event()

    async def holding(request: Any) -> Any:
        begun.set()
        await release.wait()
        return "late"

    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.call_model("x", model="scripted:m")

    async with Runtime(MemoryLog(), models=[ScriptedModel(holding)]) as runtime:
        run = await runtime.submit(asking(handle), "x")
        await begun.wait()
        await run.cancel("enough", mode=mode)
        result = await run.result(raise_on_failure=False)
        assert result.state == "cancelled"
        (_, failed) = await events_of(runtime, run.workflow_id, "model.call_")
        assert failed.error.code == "cancelled"
        await must_be_sound(runtime, run.workflow_id)
        release.set()


async def test_an_unknown_model_is_named():
    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.call_model("x", model="nobody:m")

    async with Runtime(MemoryLog(), models=[Models()]) as runtime:
        result = await runtime.run(asking(handle), "x", raise_on_failure=False)
    assert "nobody" in result.error.message


async def test_messages_of_a_conversation_are_a_prompt_and_anything_else_is_refused():
    from agentflow import Message

    async def handle(text: str, ctx: WorkflowContext[Never, str]) -> None:
        answer = await ctx.call_model(
            [Message("user", "a"), Message("assistant", "b"), Message("user", "c")], model="scripted:m"
        )
        await ctx.yield_output(answer.text)
        for wrong in ([], [3]):
            with pytest.raises(TypeError, match="prompt"):
                await ctx.call_model(wrong, model="scripted:m")

    async with Runtime(MemoryLog(), models=[Models()]) as runtime:
        result = await runtime.run(asking(handle), "x")
    assert result.get_outputs() == ["re: c"]
    assert result.usage == Usage(model_calls=1) or result.usage.model_calls == 1
