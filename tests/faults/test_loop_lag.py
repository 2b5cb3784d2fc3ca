"""16 clients post the worst documents and inputs; the daemon's event loop is held for at most 100 ms."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.faults.test_schema_bounds import WORST

ROOT = Path(__file__).parents[2]
CLIENTS = 16
LIMIT_MS = 100.0


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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WORST)
async def test_the_worst_documents_hold_the_loop_no_longer_than_the_limit(name: str, tmp_path: Path):
    with daemon(tmp_path):
        await post_all(tmp_path, msgspec.json.encode({"definition": {"agents": []}, "input": {}}))
        (tmp_path / "lag").write_text("")
        held: dict[str, float] = {}
        for kind, body in bodies(name).items():
            statuses = await post_all(tmp_path, body)
            assert statuses <= {200, 201, 413, 422}, (kind, statuses)
            lags = [float(line) for line in (tmp_path / "lag").read_text().split()]
            held[kind] = max(lags, default=0.0)
    print(f"\n{name}: held for at most {held} ms")
    assert max(held.values()) <= LIMIT_MS
