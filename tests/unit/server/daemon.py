"""A program for the tests: the daemon, with a scripted model and a function whose effects can be counted.

    python -m tests.unit.server.daemon FOLDER [HOST:PORT …]

The store and the socket lie in FOLDER; `effects.touch(key)` adds a line to FOLDER/effects. The model calls it
once with what it is asked, then answers; a prompt `slow` makes each answer take 0.2 s. Where the daemon
listens is printed to stdout when it is ready.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from agentflow import Service, function
from agentflow.config import Config, ServerConfig
from agentflow.models import ModelRequest
from agentflow.server import serve
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

SLOW = 0.2


def effects(folder: Path) -> Service:
    """One line for each call, whole lines only, whoever else writes."""

    @function(name="touch", side_effect="external")
    async def touch(key: str) -> dict[str, str]:
        """Does something that must be done once."""
        fd = os.open(folder / "effects", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            os.write(fd, f"{key}\n".encode())
        finally:
            os.close(fd)
        return {"touched": key}

    return Service.of("effects", touch)


async def answer(request: ModelRequest) -> Any:
    system, last = request.messages[0].content, request.messages[-1]
    if "slow" in system:
        await asyncio.sleep(SLOW)
    if "touch" in system and last.role == "user":
        return call("effects__touch", key=last.content)
    return "done"


def document(*prompts: str) -> dict[str, Any]:
    """An agent list for this daemon; agents whose prompt says `touch` have the function."""
    listed = [
        {
            "name": f"agent_{i}",
            "system_prompt": prompt,
            "model": "scripted:m",
            "tools": ["effects.touch"] if "touch" in prompt else [],
        }
        for i, prompt in enumerate(prompts)
    ]
    return {"agents": listed}


def main(folder: Path, listen: tuple[str, ...]) -> None:
    config = Config(
        store=f"sqlite:{folder / 'runs.db'}",
        server=ServerConfig(socket=str(folder / "s"), listen=listen, drain=15),
    )
    serve(
        config,
        services=[effects(folder)],
        models=[ScriptedModel(lambda request: answer(request), max_concurrency=500)],
        on_ready=lambda names: print(*names, flush=True),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
