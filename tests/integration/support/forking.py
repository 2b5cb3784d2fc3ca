"""A program for the tests: forks inside an open Runtime that works, and tells how the children ended.

    python -m tests.integration.support.forking STORE MODE COUNT

The last line of its output is a JSON object: the exit codes of the children, and the states of the runs.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import time
import warnings

from agentflow import Runtime, Service, function
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.unit.server.kit import ECHO

PATIENCE_S = 10.0
TOOLS = {
    "agents": [
        {"name": "a", "system_prompt": "fork", "model": "scripted:m", "tools": ["forks.here", "forks.aside"]}
    ]
}


def wait(pid: int) -> int | str:
    """Return the exit code of a child; kill one that hangs."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "it hung"


ended: list[int | str | None] = []


@function(side_effect="read")
async def here() -> str:
    """Fork on the event loop."""
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    ended.append(wait(pid))
    return "forked"


@function(side_effect="read")
def aside() -> str:
    """Fork in a thread."""
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    ended.append(wait(pid))
    return "forked"


def answer(request):
    if request.messages[-1].role == "user" and request.messages[0].content == "fork":
        return call(f"forks__{mode.removeprefix('tool ')}")
    return "done"


def leave_by_exit() -> None:
    sys.exit(3)


async def fork(runtime: Runtime) -> bool:
    """Fork once; True in a child that is to fall out of the block."""
    if mode.startswith("tool"):
        await (await runtime.submit(TOOLS, "x")).result()
        return False
    if mode == "multiprocessing":
        process = multiprocessing.get_context("fork").Process(target=leave_by_exit)
        process.start()
        process.join(PATIENCE_S)
        ended.append("it hung" if process.exitcode is None else process.exitcode)
        process.kill()
        return False
    pid = os.fork()
    if pid:
        ended.append(wait(pid))
        return False
    if mode == "exit":
        sys.exit(3)
    if mode == "raise":
        raise RuntimeError("of the child")
    return True


async def main(store: str, count: int) -> None:
    states: set[str] = set()
    stopping = False
    model = ScriptedModel(answer, max_concurrency=64)
    async with Runtime(store, models=[model], services=[Service.of("forks", here, aside)]) as runtime:

        async def work() -> None:
            while not stopping:
                handles = [await runtime.submit(ECHO, "x") for _ in range(5)]
                states.update([(await handle.result()).state for handle in handles])

        working = [asyncio.create_task(work()) for _ in range(2)]
        for _ in range(count):
            await asyncio.sleep(0.002)  # the writer thread is somewhere else at each fork
            if await fork(runtime):
                return
        stopping = True
        await asyncio.gather(*working)
    print(
        json.dumps({"children": sorted(set(map(str, ended))), "count": len(ended), "states": sorted(states)})
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
    mode = sys.argv[2]
    asyncio.run(main(sys.argv[1], int(sys.argv[3])))
