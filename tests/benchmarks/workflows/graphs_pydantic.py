"""pydantic-graph: graphs of steps, built once. It stores nothing, so it has no durable case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic_graph import GraphBuilder, StepContext, reduce_sum

LENGTH = 100
SMALL: dict[str, Any] = {"task": "t", "text": "hello world", "hop": 0}
BIG: dict[str, Any] = {"task": "t", "items": [{"id": i, "text": "x" * 80} for i in range(500)], "hop": 0}


def chain(length: int) -> Any:
    builder = GraphBuilder(input_type=dict, output_type=dict)

    def made(number: int) -> Any:
        async def hop(ctx: StepContext[None, None, dict]) -> dict:
            return {**ctx.inputs, "hop": number}

        return builder.step(hop, node_id=f"n{number}")

    path = [builder.start_node, *(made(i) for i in range(length)), builder.end_node]
    builder.add(*(builder.edge_from(a).to(b) for a, b in pairwise(path)))
    return builder.build()


def fan(width: int, delay: float) -> Any:
    builder = GraphBuilder(output_type=int)

    async def source(ctx: StepContext[None, None, None]) -> list[int]:
        return list(range(width))

    async def work(ctx: StepContext[None, None, int]) -> int:
        if delay:
            await asyncio.sleep(delay)
        return 1

    first, each = builder.step(source), builder.step(work)
    total = builder.join(reduce_sum, initial=0)
    builder.add(
        builder.edge_from(builder.start_node).to(first),
        builder.edge_from(first).map().to(each),
        builder.edge_from(each).to(total),
        builder.edge_from(total).to(builder.end_node),
    )
    return builder.build()


def line_case(length: int = LENGTH, *, message: Any = SMALL, runs: int = 1) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        graph = chain(length)

        async def one() -> int:
            result = await graph.run(inputs=message)
            assert result["hop"] == length - 1
            return length

        async def once() -> int:
            return sum(await asyncio.gather(*(one() for _ in range(runs))))

        yield once

    return opened


def fan_case(width: int, delay: float = 0) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        graph = fan(width, delay)

        async def once() -> int:
            assert await graph.run() == width
            return width + 2

        yield once

    return opened


SUBJECTS = {
    f"pydantic-graph {version('pydantic-graph')}": {
        "graph_chain100_memory": line_case(),
        "graph_chain100_52kb_memory": line_case(message=BIG),
        "graph_fan100_memory": fan_case(100),
        "graph_fan100_10ms_memory": fan_case(100, 0.01),
        "graph_fan1000_memory": fan_case(1000),
        "graph_concurrent200x10_memory": line_case(10, runs=200),
    }
}
