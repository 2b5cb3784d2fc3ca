"""A scene of executors, whose handlers do the work of their nodes."""

from __future__ import annotations

from typing import Any

from agentflow import Executor, WorkflowBuilder, WorkflowContext, handler, response_handler
from tests.golden.scenes.support import rest
from tests.golden.stage import RUN, Stage, scene


async def _count(text: str) -> int:
    return len(text)


async def _fail() -> None:
    raise ValueError("no")


class Split(Executor):
    """Sends each word of a text, with two recorded calls, one of which fails."""

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.run_once("count", _count, text, side_effect="none")
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


@scene("handlers make recorded calls, send messages, ask a person, and give out what they make")
def executor(stage: Stage) -> None:
    split = Split("split")
    graph = WorkflowBuilder("words").set_start_executor(split).add_edge(split, Shout("shout")).build()

    async def life(runtime: Any) -> None:
        handle = await runtime.submit(graph, "one two", workflow_id=RUN)
        result = await rest(runtime)
        while result.pending_requests:
            await runtime.answer(RUN, result.pending_requests[0].request_id, "!")
            result = await handle.rest()
        assert result.state == "completed", result

    stage.process(life)
