"""For how long 16 clients hold the daemon's event loop with the worst documents and inputs.

    python -m tests.faults.loop_lag [NAME …]

The limit is 100 ms.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import msgspec

from tests.faults.test_schema_bounds import WORST

ROOT = Path(__file__).parents[2]
CLIENTS: Final = 16
LIMIT_MS: Final = 100.0


@contextmanager
def daemon(folder: Path) -> Generator[None]:
    env = {**os.environ, "OTEL_SDK_DISABLED": "true", "AGENTFLOW_MODEL": "scripted:m"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.lagging", str(folder)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def bodies(name: str) -> dict[str, bytes]:
    """The schema as that of an input with the value, and as that of an agent's result."""
    schema, value = WORST[name]
    agent = {"systemPrompt": "s", "input": "go", "attachedFunctions": "none"}
    step = {"type": "run", "id": "a", "agent": {**agent, "resultSchema": {}}}
    given = {"version": "1.0", "inputs": {"x": {"schema": schema}}, "workflow": {"steps": [step]}}
    result = {**step, "agent": {**agent, "resultSchema": schema}}
    asked = {"version": "1.0", "workflow": {"steps": [result]}}
    return {
        "input": msgspec.json.encode({"definition": given, "input": {"x": value}}),
        "result": msgspec.json.encode({"definition": asked, "input": {}}),
    }


async def post_all(folder: Path, body: bytes) -> set[int]:
    transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:

        async def post(number: int) -> int:
            path: Any = ("/validate", "/workflows")[number % 2]
            headers = {"Content-Type": "application/json"}
            return (await client.post(path, content=body, headers=headers)).status_code

        return set(await asyncio.gather(*(post(number) for number in range(CLIENTS))))


async def measure(name: str, folder: Path) -> dict[str, float]:
    """Return for how many milliseconds the loop was held at most, by kind of document."""
    held: dict[str, float] = {}
    with daemon(folder):
        await post_all(folder, msgspec.json.encode({"definition": {"agents": []}, "input": {}}))
        for kind, body in bodies(name).items():
            (folder / "lag").write_text("")
            statuses = await post_all(folder, body)
            assert statuses <= {200, 201, 413, 422}, (kind, statuses)
            lags = [float(line) for line in (folder / "lag").read_text().split()]
            held[kind] = max(lags, default=0.0)
    return held


def main() -> int:
    """Print a line for each document; return 1 if one of them holds the loop beyond the limit."""
    over = 0
    for name in sys.argv[1:] or WORST:
        with TemporaryDirectory() as folder:
            held = asyncio.run(measure(name, Path(folder)))
        over |= max(held.values()) > LIMIT_MS
        print(
            f"{name:32} " + "  ".join(f"{kind} {value:8.1f} ms" for kind, value in held.items()), flush=True
        )
    return over


if __name__ == "__main__":
    sys.exit(main())
