"""pydantic-graph: a graph built once, run many times. It stores nothing, so it has no durable case."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic_graph import GraphBuilder, StepContext, reduce_sum

LENGTH = 100
WIDTH = 100


async def add(ctx: StepContext[None, None, int]) -> int:
    return ctx.inputs + 1


async def source(ctx: StepContext[None, None, None]) -> list[int]:
    return list(range(WIDTH))


async def work(ctx: StepContext[None, None, int]) -> int:
    return ctx.inputs


@asynccontextmanager
async def chain(folder: Path) -> AsyncIterator[Any]:
    builder = GraphBuilder(input_type=int, output_type=int)
    path = [
        builder.start_node,
        *(builder.step(add, node_id=f"n{i}") for i in range(LENGTH)),
        builder.end_node,
    ]
    builder.add(*(builder.edge_from(a).to(b) for a, b in pairwise(path)))
    graph: Any = builder.build()

    async def once() -> int:
        assert await graph.run(inputs=0) == LENGTH
        return LENGTH

    yield once


@asynccontextmanager
async def fan_out(folder: Path) -> AsyncIterator[Any]:
    builder = GraphBuilder(output_type=int)
    first, each = builder.step(source), builder.step(work)
    total = builder.join(reduce_sum, initial=0)
    builder.add(
        builder.edge_from(builder.start_node).to(first),
        builder.edge_from(first).map().to(each),
        builder.edge_from(each).to(total),
        builder.edge_from(total).to(builder.end_node),
    )
    graph: Any = builder.build()

    async def once() -> int:
        assert await graph.run() == sum(range(WIDTH))
        return WIDTH + 2

    yield once


SUBJECTS = {
    f"pydantic-graph {version('pydantic-graph')}": {"chain100_memory": chain, "fanout100_memory": fan_out}
}
