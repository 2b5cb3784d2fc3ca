"""Microsoft Agent Framework: function executors; one instance is one run at a time, so each has its own.

In memory without checkpoints, but with `(history kept)` one for each superstep. Durable runs write a file
for each superstep (FileCheckpointStorage), without fsync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Never

from agent_framework import (
    FileCheckpointStorage,
    FunctionExecutor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowContext,
)

logging.disable(logging.CRITICAL)

LENGTH = 100
SMALL: dict[str, Any] = {"task": "t", "text": "hello world", "hop": 0}
BIG: dict[str, Any] = {"task": "t", "items": [{"id": i, "text": "x" * 80} for i in range(500)], "hop": 0}


def chain(length: int, storage: Any = None, keeps: int = 0) -> Any:
    def made(number: int) -> FunctionExecutor:
        async def hop(message: dict, ctx: WorkflowContext[dict]) -> None:
            if keeps:
                ctx.set_state(f"s{number}", "x" * keeps)
            await ctx.send_message({**message, "hop": number})

        return FunctionExecutor(hop, id=f"n{number}")

    async def last(message: dict, ctx: WorkflowContext[Never, dict]) -> None:
        await ctx.yield_output({**message, "hop": message["hop"] + 1})

    nodes = [*(made(i) for i in range(length - 1)), FunctionExecutor(last, id="last")]
    builder = WorkflowBuilder(
        start_executor=nodes[0],
        max_iterations=10 * length,
        name="chain",
        checkpoint_storage=storage,
        output_from=[nodes[-1]],
    )
    return builder.add_chain(nodes).build()


def fan(width: int, delay: float, storage: Any = None) -> Any:
    async def source(message: dict, ctx: WorkflowContext[dict]) -> None:
        await ctx.send_message(message)

    def made(number: int) -> FunctionExecutor:
        async def work(message: dict, ctx: WorkflowContext[dict]) -> None:
            if delay:
                await asyncio.sleep(delay)
            await ctx.send_message({"i": number})

        return FunctionExecutor(work, id=f"w{number}")

    async def join(messages: list[dict], ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(len(messages))

    begin, end = FunctionExecutor(source, id="source"), FunctionExecutor(join, id="join")
    workers = [made(i) for i in range(width)]
    builder = WorkflowBuilder(start_executor=begin, name="fan", checkpoint_storage=storage, output_from=[end])
    return builder.add_fan_out_edges(begin, workers).add_fan_in_edges(workers, end).build()


def storage_of(folder: Path, durable: bool) -> Any:
    return FileCheckpointStorage(str(folder)) if durable else None


def line_case(
    length: int = LENGTH, *, message: Any = SMALL, keeps: int = 0, durable: bool = False, runs: int = 1
) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        flows = [chain(length, storage_of(folder, durable), keeps) for _ in range(runs)]

        async def one(flow: Any) -> int:
            result = await flow.run(message)
            assert result.get_outputs()[-1]["hop"] == length - 1
            return length

        async def once() -> int:
            return sum(await asyncio.gather(*(one(flow) for flow in flows)))

        yield once

    return opened


def fan_case(width: int, delay: float = 0, *, durable: bool = False) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        flow = fan(width, delay, storage_of(folder, durable))

        async def once() -> int:
            result = await flow.run(SMALL)
            assert result.get_outputs() == [width]
            return width + 2

        yield once

    return opened


@asynccontextmanager
async def resuming(folder: Path) -> AsyncIterator[Any]:
    storage = FileCheckpointStorage(str(folder))
    flow = chain(LENGTH, storage)
    await flow.run(SMALL)
    points = sorted(await storage.list_checkpoints(workflow_name="chain"), key=lambda p: p.iteration_count)
    before = next(p for p in reversed(points) if p.messages)

    async def once() -> int:
        result = await chain(LENGTH, storage).run(checkpoint_id=before.checkpoint_id)
        assert result.get_outputs()[-1]["hop"] == LENGTH - 1
        return 1

    yield once


@asynccontextmanager
async def line_with_history(folder: Path) -> AsyncIterator[Any]:
    storage = InMemoryCheckpointStorage()
    flow = chain(LENGTH, storage)
    runs = 0

    async def once() -> int:
        nonlocal runs
        result = await flow.run(SMALL)
        assert result.get_outputs()[-1]["hop"] == LENGTH - 1
        runs += 1
        return LENGTH

    yield once
    assert len(await storage.list_checkpoint_ids(workflow_name="chain")) >= runs * LENGTH


NAME = f"agent-framework {version('agent-framework-core')}"
SUBJECTS = {
    f"{NAME} (history kept)": {"graph_chain100_memory": line_with_history},
    NAME: {
        "graph_chain100_memory": line_case(),
        "graph_chain100_52kb_memory": line_case(message=BIG),
        "graph_fan100_memory": fan_case(100),
        "graph_fan100_10ms_memory": fan_case(100, 0.01),
        "graph_fan1000_memory": fan_case(1000),
        "graph_concurrent200x10_memory": line_case(10, runs=200),
        "graph_chain100_durable": line_case(durable=True),
        "graph_chain100_1kib_durable": line_case(keeps=1024, durable=True),
        "graph_chain200_durable": line_case(200, durable=True),
        "graph_fan100_durable": fan_case(100, durable=True),
        "graph_resume100_durable": resuming,
    },
}
