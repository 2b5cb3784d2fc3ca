"""A scene of executors, whose handlers do the work of their nodes."""

from __future__ import annotations

from typing import Any

from agentflow import Executor, WorkflowBuilder, WorkflowContext, handler
from tests.golden.scenes.support import rest
from tests.golden.stage import RUN, Stage, scene


class Split(Executor):
    """Sends each word of a text."""

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[str]) -> None:
        for word in text.split():
            await ctx.send_message(word)


class Shout(Executor):
    """Gives out each word in capitals."""

    @handler
    async def on_word(self, word: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(word.upper())


@scene("handlers send messages and give out what they make")
def executor(stage: Stage) -> None:
    split = Split("split")
    graph = WorkflowBuilder("words").set_start_executor(split).add_edge(split, Shout("shout")).build()

    async def life(runtime: Any) -> None:
        await runtime.submit(graph, "one two", workflow_id=RUN)
        result = await rest(runtime)
        assert result.state == "completed", result

    stage.process(life)
