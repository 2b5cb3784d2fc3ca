"""A graph in a process of its own that may be killed while a handler is at work.

`python -m tests.integration.graphs.traced STORE SPANS stop|go`: with `stop` the handler of `late` says so on
standard output and waits for ever. Spans go to the file SPANS, a line of JSON each.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Never

from opentelemetry.sdk.trace.export import ConsoleSpanExporter

from agentflow import (
    Executor,
    Runtime,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from agentflow.telemetry.sender import Sender
from agentflow.telemetry.telemetry import Telemetry

RUN = "wf_traced"


@executor(id="left")
async def left(value: int) -> int:
    return value + 1


class Late(Executor):
    def __init__(self, id: str, stops: bool = False) -> None:
        super().__init__(id)
        self.stops = stops

    @handler
    async def on(self, value: int, ctx: WorkflowContext[int]) -> None:
        if self.stops:
            print(ctx.traceparent, flush=True)
            await asyncio.Event().wait()
        await ctx.send_message(value + 2)
        await ctx.send_message(value + 3)


class Gather(Executor):
    @handler
    async def on(self, values: list[int], ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(sum(values))


@executor(id="inner")
async def inner(value: int, ctx: WorkflowContext[Never, int]) -> None:
    await ctx.yield_output(value * 10)


@executor(id="end")
async def end(value: int, ctx: WorkflowContext[Never, int]) -> None:
    await ctx.yield_output(value)


def workflow(store: Any = None, *, stops: bool = False, policy: Any = "superstep") -> Workflow:
    child = WorkflowBuilder("child", policy=policy).set_start_executor(inner).build()
    builder = WorkflowBuilder("outer", policy=policy).set_start_executor(left, Late("late", stops))
    builder.add_fan_in_edges([left, "late"], Gather("gather"))
    builder.add_chain(["gather", WorkflowExecutor(child, "sub"), end])
    return (builder if store is None else builder.with_checkpointing(store)).build()


async def main(store: str, spans: str, mode: str) -> None:
    with open(spans, "a", encoding="utf-8") as out:  # noqa: ASYNC230
        exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
        async with Runtime(store, telemetry=Telemetry(sink=Sender(exporter))) as runtime:
            flow = workflow(runtime, stops=mode == "stop")
            if mode == "stop":
                await flow.run(1, workflow_id=RUN)
            else:
                result = await flow.resume(RUN)
                print(result.state, result.output, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
