"""DBOS: a workflow of async steps; each step's result is a row, committed before the next begins.

Its system database is SQLite, as in the other cases, and workflows run in the process of the caller: there is
no server whose processor time would be missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dbos import DBOS

LENGTH = 100
WIDTH = 100
RUNS, SHORT = 100, 10

logging.getLogger("dbos").setLevel(logging.ERROR)


@DBOS.step()
async def add(x: int) -> int:
    return x + 1


@DBOS.step()
async def work(item: int) -> int:
    return item


@DBOS.workflow()
async def chain(length: int) -> int:
    x = 0
    for _ in range(length):
        x = await add(x)
    return x


@DBOS.workflow()
async def fan_out(width: int) -> int:
    return sum(await asyncio.gather(*(work(item) for item in range(width))))


@asynccontextmanager
async def launched(folder: Path) -> AsyncIterator[None]:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder / 'dbos.sqlite'}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()
        # It has shut down the executor that it gave to this loop.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def case(workflow: Any, size: int, output: int, steps: int, runs: int = 1) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Callable[[], Any]]:
        async with launched(folder):

            async def one() -> int:
                result = await workflow(size)
                assert result == output, result
                return steps

            async def many() -> int:
                return sum(await asyncio.gather(*(one() for _ in range(runs))))

            yield one if runs == 1 else many

    return opened


SUBJECTS = {
    f"dbos {version('dbos')}": {
        "chain100_sqlite": case(chain, LENGTH, LENGTH, LENGTH),
        "fanout100_sqlite": case(fan_out, WIDTH, sum(range(WIDTH)), WIDTH + 2),
        "concurrent100x10_sqlite": case(chain, SHORT, SHORT, SHORT, RUNS),
    }
}
