"""LangGraph: a StateGraph compiled once, a new thread for each run.

In memory there is no checkpointer, but with `(history kept)` InMemorySaver, which keeps a checkpoint of every
step. Durable runs use AsyncSqliteSaver in its two modes: `sync` stores a step before the next one begins, as
agentflow always does, `async`, the default, while it runs.
"""

from __future__ import annotations

import asyncio
import operator
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

LENGTH = 100
WIDTH = 100
RUNS, SHORT = 100, 10


class Counter(TypedDict):
    x: int


class Fan(TypedDict):
    done: Annotated[list[int], operator.add]
    total: int


async def add(state: Counter) -> Counter:
    return {"x": state["x"] + 1}


def chain(length: int, saver: Any) -> Any:
    graph = StateGraph(Counter)
    names = [f"n{i}" for i in range(length)]
    for name in names:
        graph.add_node(name, add)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


async def source(state: Fan) -> dict[str, Any]:
    return {}


async def work(item: int) -> dict[str, Any]:
    return {"done": [item]}


async def join(state: Fan) -> dict[str, Any]:
    return {"total": sum(state["done"])}


def spread(state: Fan) -> list[Send]:
    return [Send("work", i) for i in range(WIDTH)]


def fan_out(saver: Any) -> Any:
    graph = StateGraph(Fan)
    for node in (source, work, join):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "source")
    graph.add_conditional_edges("source", spread, ["work"])
    graph.add_edge("work", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=saver)


async def run(graph: Any, state: Any, key: str, expected: int, **more: Any) -> Any:
    config = {"recursion_limit": 1000, "configurable": {"thread_id": uuid.uuid4().hex}}
    result = await graph.ainvoke(state, config, **more)
    assert result[key] == expected, result[key]
    return config


def chain_case(durability: str | None, length: int = LENGTH, runs: int = 1) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async with saving(folder, durability) as (saver, more):
            graph = chain(length, saver)

            async def once() -> int:
                await asyncio.gather(*(run(graph, {"x": 0}, "x", length, **more) for _ in range(runs)))
                return length * runs

            yield once

    return opened


@asynccontextmanager
async def chain_with_history(folder: Path) -> AsyncIterator[Any]:
    graph, last = chain(LENGTH, InMemorySaver()), None

    async def once() -> int:
        nonlocal last
        last = await run(graph, {"x": 0}, "x", LENGTH, durability="sync")
        return LENGTH

    yield once
    kept = [state.values["x"] async for state in graph.aget_state_history(last) if state.values]
    assert kept == list(range(LENGTH, -1, -1)), kept


def fan_case(durability: str | None) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async with saving(folder, durability) as (saver, more):
            graph = fan_out(saver)

            async def once() -> int:
                await run(graph, {"done": []}, "total", sum(range(WIDTH)), **more)
                return WIDTH + 2

            yield once

    return opened


@asynccontextmanager
async def saving(folder: Path, durability: str | None) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    if durability is None:
        yield None, {}
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        yield saver, {"durability": durability}


def durable(mode: str) -> dict[str, Any]:
    return {
        "chain100_sqlite": chain_case(mode),
        "fanout100_sqlite": fan_case(mode),
        "concurrent100x10_sqlite": chain_case(mode, SHORT, RUNS),
    }


NAME = f"langgraph {version('langgraph')}"
SUBJECTS = {
    NAME: {"chain100_memory": chain_case(None), "fanout100_memory": fan_case(None)},
    f"{NAME} (history kept)": {"chain100_memory": chain_with_history},
    f"{NAME} (sync)": durable("sync"),
    f"{NAME} (async)": durable("async"),
}
