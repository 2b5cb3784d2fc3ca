"""The daemon with a probe of its event loop: `python -m tests.faults.lagging FOLDER`.

Every 10 ms the probe notes in FOLDER/lag how late it was, in milliseconds, where that is more than 5 ms. What
other programs of the machine delay is no hold of the loop: the CPU time of this process in the gap is the
upper limit of what it can have been held by its own work.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from agentflow.config import Config, ServerConfig
from agentflow.server import serve
from agentflow.testing import ScriptedModel

_TICK_S = 0.01


async def probe(file: Path) -> None:
    with file.open("a", buffering=1) as notes:
        while True:
            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.sleep(_TICK_S)
            late = time.perf_counter() - wall - _TICK_S
            held = min(late, time.process_time() - cpu)
            if held > 0.005:
                notes.write(f"{held * 1000:.1f}\n")


def main(folder: Path) -> None:
    tasks: list[asyncio.Task[None]] = []

    def ready(names: object) -> None:
        tasks.append(asyncio.get_running_loop().create_task(probe(folder / "lag")))
        print("ready", flush=True)

    config = Config(
        store=f"sqlite:{folder / 'runs.db'}",
        server=ServerConfig(socket=str(folder / "s"), listen=(), drain=5, require_token=False),
    )
    serve(config, models=[ScriptedModel(lambda request: "{}")], on_ready=ready)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
