"""Burr: an application of 100 actions in a ring, kept for all runs, which halt behind the last one.

That is kinder to it than the others get: its set-up for a run is not in the figures. Its parallel form
(MapStates) wants a new application for each run. Durable runs use its two SQLite persisters, `(history kept)`
its persister in memory: the state behind every action.
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
from burr.core.persistence import AsyncInMemoryPersister, SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

logging.disable(logging.CRITICAL)

LENGTH = 100
WIDTH = 100
RUNS, SHORT = 100, 10


@action(reads=["x"], writes=["x"])
async def add(state: State) -> State:
    return state.update(x=state["x"] + 1)


@action(reads=["x"], writes=["x"])
def add_plainly(state: State) -> State:
    return state.update(x=state["x"] + 1)


@action(reads=["item"], writes=["done"])
async def work(state: State) -> State:
    return state.update(done=state["item"])


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
        for i in range(WIDTH):
            yield state.update(item=i)

    async def reduce(self, state: State, states: Any) -> State:
        return state.update(total=sum([s["done"] async for s in states]))


def ring(node: Any, length: int) -> Any:
    names = [f"n{i}" for i in range(length)]
    graph = GraphBuilder().with_actions(**dict.fromkeys(names, node))
    return graph.with_transitions(*zip(names, [*names[1:], names[0]], strict=True)).build()


def application(graph: Any) -> ApplicationBuilder:
    builder = ApplicationBuilder().with_graph(graph).with_state(x=0).with_entrypoint("n0")
    return builder.with_identifiers(app_id=uuid.uuid4().hex)


async def round_trip(app: Any, length: int) -> None:
    before = app.state["x"]
    *_, state = await app.arun(halt_after=[f"n{length - 1}"])
    assert state["x"] - before == length


@asynccontextmanager
async def chain_in_memory(folder: Path) -> AsyncIterator[Any]:
    app = application(ring(add, LENGTH)).build()

    async def once() -> int:
        await round_trip(app, LENGTH)
        return LENGTH

    yield once


@asynccontextmanager
async def chain_with_history(folder: Path) -> AsyncIterator[Any]:
    persister, key = AsyncInMemoryPersister(), "bench"
    builder = application(ring(add, LENGTH)).with_identifiers(app_id=key, partition_key=key)
    app = await builder.with_state_persister(persister).abuild()

    async def once() -> int:
        await round_trip(app, LENGTH)
        return LENGTH

    yield once
    for sequence in range(app.sequence_id - LENGTH + 1, app.sequence_id + 1):
        kept = await persister.load(key, key, sequence)
        assert kept is not None
        assert kept["state"]["x"] == sequence + 1


@asynccontextmanager
async def fan_in_memory(folder: Path) -> AsyncIterator[Any]:
    async def once() -> int:
        builder = ApplicationBuilder().with_actions(fan=Fan()).with_transitions()
        app = builder.with_entrypoint("fan").with_state().build()
        *_, state = await app.arun(halt_after=["fan"])
        assert state["total"] == sum(range(WIDTH))
        return WIDTH + 2

    yield once


@asynccontextmanager
async def chain_with_sqlite(folder: Path) -> AsyncIterator[Any]:
    persister = SQLitePersister(str(folder / "state.db"), "state")
    persister.initialize()
    app = application(ring(add_plainly, LENGTH)).with_state_persister(persister).build()

    async def once() -> int:
        before = app.state["x"]
        *_, state = app.run(halt_after=[f"n{LENGTH - 1}"])
        assert state["x"] - before == LENGTH
        return LENGTH

    with persister:
        yield once


@asynccontextmanager
async def persisting(folder: Path) -> AsyncIterator[Any]:
    persister = await AsyncSQLitePersister.from_values(str(folder / "state.db"), "state")
    await persister.initialize()
    try:
        yield persister
    finally:
        await persister.cleanup()


@asynccontextmanager
async def chain_with_aiosqlite(folder: Path) -> AsyncIterator[Any]:
    async with persisting(folder) as persister:
        app = await application(ring(add, LENGTH)).with_state_persister(persister).abuild()

        async def once() -> int:
            await round_trip(app, LENGTH)
            return LENGTH

        yield once


@asynccontextmanager
async def many_with_aiosqlite(folder: Path) -> AsyncIterator[Any]:
    async with persisting(folder) as persister:
        graph = ring(add, SHORT)
        apps = [await application(graph).with_state_persister(persister).abuild() for _ in range(RUNS)]

        async def once() -> int:
            await asyncio.gather(*(round_trip(app, SHORT) for app in apps))
            return RUNS * SHORT

        yield once


NAME = f"burr {version('burr')}"
SUBJECTS = {
    NAME: {
        "chain100_memory": chain_in_memory,
        "fanout100_memory": fan_in_memory,
        "chain100_sqlite": chain_with_sqlite,
    },
    f"{NAME} (history kept)": {"chain100_memory": chain_with_history},
    f"{NAME} (aiosqlite)": {
        "chain100_sqlite": chain_with_aiosqlite,
        "concurrent100x10_sqlite": many_with_aiosqlite,
    },
}
