"""The daemon with a probe of its event loop: `python -m tests.faults.lagging FOLDER`.

Every 10 ms the probe notes in FOLDER/lag how late it was, in milliseconds, where that is more than 5 ms. What
other programs of the machine delay is no hold of the loop: the time that the loop's thread was ready and had
no processor is taken away (Linux counts it), and the CPU time of this process in the gap is the upper limit.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

from agentflow.config import Config, ServerConfig
from agentflow.server import serve
from agentflow.testing import ScriptedModel

_TICK_S = 0.01


def kept_waiting() -> float:
    """Return for how many seconds this thread was ready and had no processor; 0 where that is not counted."""
    try:
        counted = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(counted.split()[1]) / 1e9


async def probe(file: Path) -> None:
    with file.open("a", buffering=1) as notes:
        while True:
            wall, cpu, queued = time.perf_counter(), time.process_time(), kept_waiting()
            await asyncio.sleep(_TICK_S)
            late = time.perf_counter() - wall - _TICK_S - (kept_waiting() - queued)
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
