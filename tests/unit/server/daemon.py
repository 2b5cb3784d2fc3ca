"""A program for the tests: the daemon, with a scripted model and a function whose effects can be counted.

    python -m tests.unit.server.daemon FOLDER [HOST:PORT …]

The store and the socket lie in FOLDER. The model answers what it is asked. By its prompt it first calls a
function: `NAME touch` adds a line to FOLDER/effects, `linger SECONDS` takes so long; `slow` makes each answer
take 0.2 s. Where the daemon listens is printed to stdout when it is ready.
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

    @function(name="linger", side_effect="external")
    async def linger(seconds: float) -> dict[str, float]:
        """Takes its time."""
        (folder / "lingers").touch()
        await asyncio.sleep(seconds)
        return {"lingered": seconds}

    return Service.of("effects", touch, linger)


async def answer(request: ModelRequest) -> Any:
    system, last = request.messages[0].content, request.messages[-1]
    asked = next(m.content for m in request.messages if m.role == "user")
    if "slow" in system:
        await asyncio.sleep(SLOW)
    if "touch" in system and last.role == "user":
        return call("effects__touch", key=f"{system.split()[0]}-{asked}")
    if "linger" in system and last.role == "user":
        return call("effects__linger", seconds=float(system.split()[-1]))
    return asked


def document(*prompts: str) -> dict[str, Any]:
    """An agent list for this daemon; agents whose prompt says so have a function."""
    listed = [
        {
            "name": f"agent_{i}",
            "system_prompt": prompt,
            "model": "scripted:m",
            "tools": [f"effects.{name}" for name in ("touch", "linger") if name in prompt],
        }
        for i, prompt in enumerate(prompts)
    ]
    return {"agents": listed}


def main(folder: Path, listen: tuple[str, ...]) -> None:
    config = Config(
        store=f"sqlite:{folder / 'runs.db'}",
        server=ServerConfig(
            socket=str(folder / "s"),
            listen=listen,
            drain=15,
            require_token="AGENTFLOW_TOKEN" in os.environ,
        ),
    )
    serve(
        config,
        services=[effects(folder)],
        models=[ScriptedModel(lambda request: answer(request), max_concurrency=500)],
        on_ready=lambda names: print(*names, flush=True),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
