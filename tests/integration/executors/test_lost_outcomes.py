"""Recorded calls of handlers whose result was lost: a person says what came of them (page 000 §11)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from agentflow import Backoff, Never, RetryPolicy, Runtime, Service, WorkflowContext, executor, function
from agentflow.errors import OutcomeUnknown
from agentflow.events.memory import MemoryLog
from tests.integration.executors.crashes import at_every_event
from tests.integration.executors.test_handlers_at_work import build

RETRY = RetryPolicy(max_attempts=2, backoff=Backoff(initial=0.001), jitter=0)


class Payments:
    """A function with an effect; the first call never returns."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.begun = asyncio.Event()

    async def pay(self) -> str:
        self.made.append("paid")
        self.begun.set()
        if len(self.made) == 1:
            await asyncio.Event().wait()
        return f"receipt {len(self.made)}"

    async def outcome(self, call: Coroutine[Any, Any, str], attempt: int) -> str:
        """Return what a call gives; the first attempt of its handler fails while it is open."""
        task = asyncio.ensure_future(call)
        if attempt == 1:
            await self.begun.wait()
            task.cancel()
            raise ConnectionError("the bank is away")
        return await task


def payer(payments: Payments, caught: list[str] | None = None) -> Any:
    @executor(id="payer", retry=RETRY)
    async def pays(value: int, ctx: WorkflowContext[Never, str]) -> None:
        try:
            call = ctx.run_once("pay", payments.pay)
            await ctx.yield_output(await payments.outcome(call, ctx.attempt))
        except OutcomeUnknown as error:
            if caught is None:
                raise
            caught.append(str(error))
            await ctx.yield_output("nobody knows")

    return build(pays)


async def asked(runtime: Runtime, built: Any, **options: Any) -> tuple[str, Any]:
    """Return the id of a new run that waits, and its question: its first attempt ended within the call."""
    handle = await runtime.submit(built, 1, options=options)
    result = await handle.result()
    assert result.state == "waiting"
    (request,) = result.pending_requests
    assert request.request_type == "outcome_unknown"
    assert (await runtime.record(handle.workflow_id)).waiting.requests == (request.request_id,)
    return handle.workflow_id, request


ANSWERS = [
    ({"choice": "retry"}, "receipt 2", ["paid", "paid"]),
    ({"choice": "done", "output": "receipt 1"}, "receipt 1", ["paid"]),
]


@pytest.mark.parametrize(("answer", "output", "made"), ANSWERS, ids=["retry", "done"])
@pytest.mark.parametrize("is_new_process", [False, True], ids=["here", "elsewhere"])
async def test_a_person_says_what_came_of_a_lost_call(
    answer: Any, output: str, made: list[str], is_new_process: bool
):
    log, payments = MemoryLog(), Payments()
    built = payer(payments)
    async with Runtime(log) as runtime:
        run_id, request = await asked(runtime, built)
        assert payments.made == ["paid"]
        assert request.subject["tool_name"] == "once: pay"
        if not is_new_process:
            result = await (await runtime.answer(run_id, request.request_id, answer)).result()
            assert (result.output, payments.made) == (output, made)
            return
    async with Runtime(log) as runtime:
        runtime.register(built)
        result = await (await runtime.answer(run_id, request.request_id, answer)).result()
        assert (result.output, payments.made) == (output, made)


@pytest.mark.parametrize("catches", [False, True], ids=["uncaught", "caught"])
async def test_the_choice_to_fail_is_raised_in_the_handler(catches: bool):
    payments, caught = Payments(), list[str]()
    built = payer(payments, caught if catches else None)
    async with Runtime() as runtime:
        run_id, request = await asked(runtime, built)
        handle = await runtime.answer(run_id, request.request_id, {"choice": "fail"})
        result = await handle.result(raise_on_failure=False)
    assert payments.made == ["paid"]
    if catches:
        told = "once: pay may have been made, its result is lost"
        assert (result.output, caught) == ("nobody knows", [told])
    else:
        assert (result.state, result.error.code) == ("failed", "outcome_unknown")


async def test_a_run_that_is_to_fail_asks_nobody():
    payments = Payments()
    async with Runtime() as runtime:
        handle = await runtime.submit(payer(payments), 1, options={"on_unknown": "fail"})
        result = await handle.result(raise_on_failure=False)
    assert (result.state, result.error.code, payments.made) == ("failed", "outcome_unknown", ["paid"])


async def test_a_fork_asks_about_a_lost_call_by_itself():
    payments = Payments()
    async with Runtime() as runtime:
        run_id, request = await asked(runtime, payer(payments))
        fork = await runtime.fork(run_id)
        (other,) = (await fork.result()).pending_requests
        answer = {"choice": "done", "output": "x"}
        answered = await runtime.answer(fork.workflow_id, other.request_id, answer)
        assert (await answered.result()).output == "x"
        failed = await runtime.answer(run_id, request.request_id, {"choice": "fail"})
        assert (await failed.result(raise_on_failure=False)).state == "failed"
    assert payments.made == ["paid"]


async def test_a_lost_call_of_a_service_is_asked_about_alike():
    payments = Payments()

    @function(side_effect="write")
    async def transfer() -> str:
        return await payments.pay()

    @executor(id="payer", retry=RETRY)
    async def pays(value: int, ctx: WorkflowContext[Never, str]) -> None:
        call = ctx.call_tool("bank.transfer", {})
        await ctx.yield_output(await payments.outcome(call, ctx.attempt))

    services = [Service.of("bank", transfer)]
    async with Runtime(services=services) as runtime:
        run_id, request = await asked(runtime, build(pays))
        assert request.subject["tool_name"] == "bank__transfer"
        answered = await runtime.answer(run_id, request.request_id, {"choice": "done", "output": "r"})
        assert (await answered.result()).output == "r"
    assert payments.made == ["paid"]


async def test_the_question_is_withdrawn_when_its_run_is_cancelled():
    async with Runtime() as runtime:
        run_id, request = await asked(runtime, payer(Payments()))
        await runtime.cancel(run_id)
        log = [event async for event in runtime.events(run_id)]
    (closed,) = [event.data for event in log if event.type == "input.cancelled"]
    assert (closed.request_id, log[-1].type) == (request.request_id, "workflow.cancelled")


async def test_a_crash_at_any_event_repeats_no_call():
    made: list[list[str]] = []

    def make() -> Any:
        calls: list[str] = []
        made.append(calls)

        async def pay() -> str:
            calls.append("paid")
            return "receipt"

        @executor(id="payer")
        async def pays(value: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(await ctx.run_once("pay", pay))

        return build(pays)

    def check(prefix: list[Any], _: list[Any]) -> None:
        was_called = any(event.type == "tool.call_started" for event in prefix)
        assert made[-1] == ([] if was_called else ["paid"])

    def answer(subject: Any) -> Any:
        assert subject["tool_name"] == "once: pay"
        return {"choice": "done", "output": "receipt"}

    assert (await at_every_event(make, 1, answers=answer, check=check)).outputs == ["receipt"]
