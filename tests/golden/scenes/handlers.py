"""A scene of executors, whose handlers do the work of their nodes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from agentflow import Executor, Never, WorkflowBuilder, WorkflowContext, handler, response_handler
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
