"""A program for the tests: claims RUN of the store URL, says so, and holds it until it is killed.

    python holder.py URL RUN [fork|exec]

Prints `held PID` with its process id as it sees it, or the name of the error. With `fork` it leaves a child
behind that sleeps, with `exec` a child that runs another program; both outlive it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

from agentflow.errors import AgentflowError
from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.events.owner import this_process


async def main(url: str, run: str, more: str = "") -> None:
    log = open_log(url)
    try:
        epoch = await log.claim(run, this_process())
    except AgentflowError as error:
        print(type(error).__name__, flush=True)
        await log.close()
        return
    if epoch == 1:
        meta = RunMeta(name=None, definition_hash="d", created_at=1, owner=this_process())
        event = StoredEvent(0, 1, "agent.processing", b"{}")
        await log.append(Append(run, 1, 0, [event], "running", meta))
    if more == "fork":
        child = os.fork()
        if not child:
            time.sleep(60)  # noqa: ASYNC251 — there is no loop in a child
            os._exit(0)
    elif more == "exec":
        command = ["sleep", "60"]
        child = subprocess.Popen(command, close_fds=False, stdout=subprocess.DEVNULL).pid  # noqa: ASYNC220
    else:
        child = 0
    print("held", os.getpid(), child, flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
