"""A program for the tests: opens a log, forks, and says what the child and another process may do.

    python -m tests.unit.events.forker URL

The child appends, reads and closes, prints the name of each error, and lives until its input ends; the parent
exits at once, without closing the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import warnings

from agentflow.errors import AgentflowError, LogFailed
from agentflow.events.open import open_log
from tests.unit.events.support import batch


async def in_child(log) -> None:
    for name, call in (
        ("append", lambda: log.append(batch(1))),
        ("read", lambda: log.read("wf_a")),
        ("run", lambda: log.run("wf_a")),
    ):
        try:
            await asyncio.wait_for(call(), 5)
            print(name, "done", flush=True)
        except (AgentflowError, TimeoutError) as error:
            print(name, type(error).__name__, "forked" in str(error), flush=True)
    with contextlib.suppress(LogFailed):  # a log in memory has nothing to close, and says so
        await asyncio.wait_for(log.close(), 5)
    print("closed", flush=True)
    sys.stdin.read()


async def open_and_fill(url):
    log = open_log(url)
    await log.append(batch(0))
    return log


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
    with asyncio.Runner() as runner:
        log = runner.run(open_and_fill(sys.argv[1]))
        if os.fork() == 0:
            asyncio.set_event_loop(None)
            asyncio.run(in_child(log))
        os._exit(0)


if __name__ == "__main__":
    main()
