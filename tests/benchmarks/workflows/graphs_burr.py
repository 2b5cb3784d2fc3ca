"""Burr: an application of actions in a ring, kept for all runs, whose state is the message.

That is kinder to it than the others get: its set-up for a run is not in the figures. Durable runs use its
aiosqlite persister, which commits the state behind each action.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from burr.core import ApplicationBuilder, ApplicationContext, GraphBuilder, State, action
from burr.core.parallelism import MapStates
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

logging.disable(logging.CRITICAL)

LENGTH = 100
SMALL: dict[str, Any] = {"task": "t", "text": "hello world", "hop": 0}
BIG: dict[str, Any] = {"task": "t", "items": [{"id": i, "text": "x" * 80} for i in range(500)], "hop": 0}


def ring(length: int, keeps: int = 0) -> Any:
    def made(number: int) -> Any:
        written = ["message", f"s{number}"] if keeps else ["message"]

        @action(reads=["message"], writes=written)
        async def hop(state: State) -> State:
            more = {f"s{number}": "x" * keeps} if keeps else {}
            return state.update(message={**state["message"], "hop": number}, **more)

        return hop

    names = [f"n{i}" for i in range(length)]
    graph = GraphBuilder().with_actions(**{name: made(i) for i, name in enumerate(names)})
    return graph.with_transitions(*zip(names, [*names[1:], names[0]], strict=True)).build()


def application(graph: Any, message: Any) -> ApplicationBuilder:
    builder = ApplicationBuilder().with_graph(graph).with_state(message=message).with_entrypoint("n0")
    return builder.with_identifiers(app_id=uuid.uuid4().hex)


@asynccontextmanager
async def persisting(folder: Path, durable: bool) -> AsyncIterator[Any]:
    if not durable:
        yield None
        return
    persister = await AsyncSQLitePersister.from_values(str(folder / "state.db"), "state")
    await persister.initialize()
    try:
        yield persister
    finally:
        await persister.cleanup()


def line_case(
    length: int = LENGTH, *, message: Any = SMALL, keeps: int = 0, durable: bool = False, runs: int = 1
) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async with persisting(folder, durable) as persister:
            graph, apps = ring(length, keeps), []
            for _ in range(runs):
                builder = application(graph, message)
                apps.append(
                    await (builder.with_state_persister(persister) if persister else builder).abuild()
                )

            async def one(app: Any) -> int:
                *_, state = await app.arun(halt_after=[f"n{length - 1}"])
                assert state["message"]["hop"] == length - 1
                return length

            async def once() -> int:
                return sum(await asyncio.gather(*(one(app) for app in apps)))

            yield once

    return opened


def fan_case(width: int, delay: float = 0) -> Any:
    @action(reads=["item"], writes=["done"])
    async def work(state: State) -> State:
        if delay:
            await asyncio.sleep(delay)
        return state.update(done=1)

    class Fan(MapStates):
        @property
        def reads(self) -> list[str]:
            return []

        @property
        def writes(self) -> list[str]:
            return ["total"]

        def is_async(self) -> bool:
            return True

        def action(self, state: State, inputs: dict[str, Any]) -> Any:
            return work

        async def states(self, state: State, context: ApplicationContext, inputs: dict[str, Any]) -> Any:
            for i in range(width):
                yield state.update(item=i)

        async def reduce(self, state: State, states: Any) -> State:
            return state.update(total=sum([s["done"] async for s in states]))

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async def once() -> int:
            builder = ApplicationBuilder().with_actions(fan=Fan()).with_transitions()
            app = builder.with_entrypoint("fan").with_state().build()
            *_, state = await app.arun(halt_after=["fan"])
            assert state["total"] == width
            return width + 2

        yield once

    return opened


SUBJECTS = {
    f"burr {version('burr')}": {
        "graph_chain100_memory": line_case(),
        "graph_chain100_52kb_memory": line_case(message=BIG),
        "graph_fan100_memory": fan_case(100),
        "graph_fan100_10ms_memory": fan_case(100, 0.01),
        "graph_fan1000_memory": fan_case(1000),
        "graph_concurrent200x10_memory": line_case(10, runs=200),
        "graph_chain100_durable": line_case(durable=True),
        "graph_chain100_1kib_durable": line_case(keeps=1024, durable=True),
        "graph_chain200_durable": line_case(200, durable=True),
    }
}
