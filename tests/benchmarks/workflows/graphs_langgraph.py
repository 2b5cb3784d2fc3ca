"""LangGraph: StateGraphs whose state is the message, compiled once, a new thread for each run.

In memory there is no checkpointer. Durable runs use AsyncSqliteSaver with durability `sync`: a step is stored
before the next one begins (WAL, synchronous=FULL).
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

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

LENGTH = 100
SMALL: dict[str, Any] = {"task": "t", "text": "hello world", "hop": 0}
BIG: dict[str, Any] = {"task": "t", "items": [{"id": i, "text": "x" * 80} for i in range(500)], "hop": 0}


class Line(TypedDict):
    message: dict[str, Any]


class Fan(TypedDict):
    message: dict[str, Any]
    done: Annotated[list[dict[str, Any]], operator.add]
    total: int


def chain(length: int, saver: Any, keeps: int = 0) -> Any:
    fields: Any = {"message": dict[str, Any], **{f"s{i}": str for i in range(length) if keeps}}
    graph = StateGraph(TypedDict("Kept", fields) if keeps else Line)
    names = [f"n{i}" for i in range(length)]

    def made(number: int) -> Any:
        async def hop(state: Any) -> dict[str, Any]:
            more = {f"s{number}": "x" * keeps} if keeps else {}
            return {"message": {**state["message"], "hop": number}, **more}

        return hop

    for number, name in enumerate(names):
        graph.add_node(name, made(number))
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    return graph.compile(checkpointer=saver)


def fan(width: int, saver: Any, delay: float) -> Any:
    graph = StateGraph(Fan)

    async def source(state: Fan) -> dict[str, Any]:
        return {"message": dict(state["message"])}

    async def join(state: Fan) -> dict[str, Any]:
        return {"total": len(state["done"])}

    def made(number: int) -> Any:
        async def work(state: Fan) -> dict[str, Any]:
            if delay:
                await asyncio.sleep(delay)
            return {"done": [{"i": number}]}

        return work

    graph.add_node("source", source)
    graph.add_node("join", join)
    names = [f"w{i}" for i in range(width)]
    graph.add_edge(START, "source")
    for number, name in enumerate(names):
        graph.add_node(name, made(number))
        graph.add_edge("source", name)
    graph.add_edge(names, "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def saving(folder: Path, durable: bool) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    if not durable:
        yield None, {}
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        yield saver, {"durability": "sync"}


def config() -> Any:
    return {"recursion_limit": 2000, "configurable": {"thread_id": uuid.uuid4().hex}}


def line_case(
    length: int = LENGTH, *, message: Any = SMALL, keeps: int = 0, durable: bool = False, runs: int = 1
) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async with saving(folder, durable) as (saver, more):
            graph = chain(length, saver, keeps)

            async def one() -> int:
                result = await graph.ainvoke({"message": message}, config(), **more)
                assert result["message"]["hop"] == length - 1
                return length

            async def once() -> int:
                return sum(await asyncio.gather(*(one() for _ in range(runs))))

            yield once

    return opened


def fan_case(width: int, delay: float = 0, *, durable: bool = False) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async with saving(folder, durable) as (saver, more):
            graph = fan(width, saver, delay)

            async def once() -> int:
                result = await graph.ainvoke({"message": SMALL, "done": []}, config(), **more)
                assert result["total"] == width
                return width + 2

            yield once

    return opened


@asynccontextmanager
async def resuming(folder: Path) -> AsyncIterator[Any]:
    async with saving(folder, True) as (saver, more):
        graph, thread = chain(LENGTH, saver), config()
        await graph.ainvoke({"message": SMALL}, thread, **more)
        before = [s.config async for s in graph.aget_state_history(thread) if s.next == (f"n{LENGTH - 1}",)][
            -1
        ]

        async def once() -> int:
            result = await graph.ainvoke(None, before, **more)
            assert result["message"]["hop"] == LENGTH - 1
            return 1

        yield once


SUBJECTS = {
    f"langgraph {version('langgraph')}": {
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
    }
}
