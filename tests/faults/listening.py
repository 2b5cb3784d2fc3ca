"""A process that is killed when its listener has got the event OFFSET: `OFFSET STORE FILE`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agentflow import Listener, Runtime, Service, function
from agentflow.events.envelope import Event
from agentflow.testing import ScriptedModel, call
from tests.integration.support.runs import document, step

RUN = "wf_heard"


@function(side_effect="read")
def look() -> str:
    """Look."""
    return "seen"


def listener(file: Path, kill_at: int | None = None) -> Listener:
    """A listener that writes what it gets, one line each, and may end the process behind one."""

    def write(workflow_id: str, event: Event[Any]) -> None:
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{workflow_id} {event.offset} {event.type}\n")
            out.flush()
            os.fsync(out.fileno())
        if event.offset == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return Listener("audit", write)


def open_runtime(store: str, *listeners: Listener) -> Runtime:
    model = ScriptedModel([call("desk__look"), "done"])
    return Runtime(store, models=[model], services=[Service.of("desk", look)], listeners=listeners)


async def main(offset: int, store: str, file: Path) -> None:
    made = step("a", functions=["look"])
    del made["agent"]["resultSchema"]
    made["agent"]["model"] = "scripted:m"
    async with open_runtime(store, listener(file, offset)) as runtime:
        await runtime.run(document(made), {}, workflow_id=RUN)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
