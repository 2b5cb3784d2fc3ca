"""The web app of the examples on uvicorn, killed by itself right behind the commit of one event.

`python -m tests.integration.support.killed_app LISTENER OFFSET`: the
descriptor of a listening socket; OFFSET -1 kills nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import uvicorn

from agentflow.events.log import Append
from agentflow.events.sqlite.log import SqliteLog
from examples.web_app.app import create_app


def kill_behind(offset: int) -> None:
    """Kill this process when an event at this offset, or behind it, has been committed."""
    append = SqliteLog.append

    def killing(self: SqliteLog, batch: Append) -> asyncio.Future[None]:
        committed = append(self, batch)

        def kill(done: asyncio.Future[None]) -> None:
            if done.exception() is None and batch.events[-1].offset >= offset:
                os.kill(os.getpid(), signal.SIGKILL)

        committed.add_done_callback(kill)  # before any other part of the process hears of it
        return committed

    SqliteLog.append = killing  # type: ignore[method-assign]


if __name__ == "__main__":
    descriptor, offset = map(int, sys.argv[1:])
    if offset >= 0:
        kill_behind(offset)
    config = uvicorn.Config(create_app, factory=True, log_level="error")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])
