"""A scene of executors, whose handlers do the work of their nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from agentflow import Executor, Never, WorkflowBuilder, WorkflowContext, handler, response_handler
from agentflow.definition.policy import RetryPolicy
from agentflow.errors import OutcomeUnknown
from agentflow.models import ModelError
from tests.golden.scenes.support import rest
from tests.golden.stage import RUN, Stage, failure, scene


async def _count(text: str) -> int:
    return len(text)


async def _fail() -> None:
    raise ValueError("no")


class Split(Executor):
    """Sends each word of a text, with two recorded calls and two of models, one of which fails each."""

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.run_once("count", _count, text, side_effect="none")
        await ctx.call_model(text, model="scripted:m", system="greet")
        with suppress(ModelError):
            await ctx.call_model(text, model="scripted:m", system="fail")
        try:
            await ctx.run_once("fail", _fail, side_effect="none")
        except Exception:
            for word in text.split():
                await ctx.send_message(word)


class Shout(Executor):
    """Gives out each word in capitals, if a person lets it."""

    @handler
    async def on_word(self, word: str, ctx: WorkflowContext) -> None:
        await ctx.request_info(word, str)

    @response_handler
    async def on_answer(self, word: str, answer: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{word.upper()}{answer}")


@scene("handlers make recorded calls, ask models, send messages, ask a person, and give out what they make")
def executor(stage: Stage) -> None:
    stage.says("greet", "hello")
    stage.says("fail", failure("invalid_input"))
    split = Split("split")
    graph = WorkflowBuilder("words").set_start_executor(split).add_edge(split, Shout("shout")).build()

    stage.workflows = [graph]

    async def life(runtime: Any) -> None:
        handle = await runtime.submit(graph, "one two", workflow_id=RUN)
        result = await rest(runtime)
        while result.pending_requests:
            await runtime.answer(RUN, result.pending_requests[0].request_id, "!")
            result = await handle.rest()
        assert result.state == "completed", result

    stage.process(life)


class Greet(Executor):
    """Gives out what a model says to each word."""

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        for word in text.split():
            await ctx.yield_output((await ctx.call_model(word, model="scripted:m", system="greet")).text)


@scene("a handler waits until a person raises its budget, and makes no call twice")
def handler_budget(stage: Stage) -> None:
    stage.says("greet", "hello", "hi", "hey")
    graph = WorkflowBuilder("greetings").set_start_executor(Greet("greet")).build()
    stage.workflows = [graph]

    async def life(runtime: Any) -> None:
        budget = {"max_model_calls": 1, "on_exceeded": "ask"}
        handle = await runtime.submit(graph, "one two three", workflow_id=RUN, budget=budget)
        (asked,) = (await rest(runtime)).pending_requests
        await runtime.answer(RUN, asked.request_id, {"choice": "raise", "limit": 2})
        (asked,) = (await handle.rest()).pending_requests
        await runtime.answer(RUN, asked.request_id, {"choice": "raise", "limit": 3})
        assert (await handle.rest()).state == "completed"

    stage.process(life)


class Pay(Executor):
    """Makes three payments; the first attempt ends while each of them is under way."""

    retry = RetryPolicy(max_attempts=2)

    @handler
    async def on_amount(self, amount: int, ctx: WorkflowContext[Never, str]) -> None:
        begun = asyncio.Semaphore(0)

        async def pay(name: str) -> str:
            begun.release()
            if ctx.attempt == 1:
                await asyncio.Event().wait()
            return f"paid {name}"

        async def say(name: str) -> None:
            try:
                told = await ctx.run_once(name, pay, name)
            except OutcomeUnknown:
                told = f"{name} is lost"
            await ctx.yield_output(told)

        if ctx.attempt == 1:
            async with asyncio.TaskGroup() as group:
                for name in ("first", "second", "third"):
                    group.create_task(ctx.run_once(name, pay, name))
                    await begun.acquire()
                raise ConnectionError("the bank is away")
        for name in ("first", "second", "third"):
            await say(name)


@scene("a person says what came of calls of a handler whose outcome was lost: again, done, failed")
def handler_outcome(stage: Stage) -> None:
    graph = WorkflowBuilder("payments").set_start_executor(Pay("pay")).build()
    stage.workflows = [graph]

    async def life(runtime: Any) -> None:
        handle = await runtime.submit(graph, 3, workflow_id=RUN)
        choices = ({"choice": "retry"}, {"choice": "done", "output": "paid before"}, {"choice": "fail"})
        for choice in choices:
            (asked,) = (await rest(runtime)).pending_requests
            await runtime.answer(RUN, asked.request_id, choice)
            result = await handle.rest()
        assert result.state == "completed", result

    stage.process(life)
