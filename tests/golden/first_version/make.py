"""Make one store, under the first version:

    git worktree add FOLDER 0a76281
    PYTHONPATH=FOLDER python tests/golden/first_version/make.py NAME STORE.db

The process kills itself in the middle of the run, as `kill -9` would.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from pathlib import Path

from agentflow import load_text


def _world():
    spec = importlib.util.spec_from_file_location("world", Path(__file__).parent / "world.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def main(name: str, store: str) -> None:
    """Begin the run and die where all that hangs was asked and the log is quiet."""
    module = _world()
    submission, value, hangs = module.RUNS[name]
    world = module.World(hangs)
    async with world.runtime(f"sqlite:{store}") as runtime:
        definition = load_text(submission) if isinstance(submission, str) else submission
        await runtime.submit(definition, value, workflow_id=f"wf_{name}")
        await world.all_hang.wait()
        await asyncio.sleep(2)  # what goes on beside it comes to its end
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(*sys.argv[1:]))
