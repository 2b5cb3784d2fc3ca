"""The event loop of the daemon, and that of a Runtime, goes on while documents and models cost much CPU.

The full form, with sixteen clients and every worst document, is `tests/faults/test_loop_lag.py`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.events.envelope import StoredEvent
from agentflow.runtime import event_bus
from agentflow.testing import ScriptedModel
from tests.faults.loop_lag import ROOT, measure, slowness, worst_bodies

HELD_MS = 150.0
"""A fifth of one full garbage collection, a tenth of saying why on the loop."""


@pytest.mark.timeout(120)
async def test_clients_with_a_schema_of_8_000_parts_do_not_hold_the_daemon(tmp_path: Path):
    """It was held for 1.6 s by the schema of an input, and for as long by that of a result."""
    factor = slowness()
    held = await measure(worst_bodies("nested choices"), tmp_path, clients=4)
    assert max(held.values()) <= HELD_MS * factor, held


FIRST_CALL = """
import asyncio, json, os, time
from agentflow import Runtime

ANSWER = json.dumps({
    "id": "a", "model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}).encode()
AGENT = {"name": "a", "system_prompt": "s", "model": "openai:m"}

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    head = f"HTTP/1.1 200 OK\\r\\nContent-Type: application/json\\r\\nContent-Length: {len(ANSWER)}\\r\\n"
    writer.write(head.encode() + b"Connection: close\\r\\n\\r\\n" + ANSWER)
    await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:%d/v1" % server.sockets[0].getsockname()[1]
    held = []

    async def probe():
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.002)
            held.append(time.thread_time() - began)

    async with Runtime() as runtime:
        probing = asyncio.create_task(probe())
        result = await runtime.run({"agents": [AGENT]}, "x")
        assert result.state == "completed", result
        first = max(held)
        held.clear()
        await runtime.run({"agents": [AGENT]}, "x")
        probing.cancel()
    server.close()
    print(json.dumps({"first": first, "later": max(held)}))

asyncio.run(main())
"""

IMPORTING = """
import asyncio, time
began = time.process_time()
import httpx
httpx.create_ssl_context()
print(time.process_time() - began)
"""


def run_python(program: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_first_model_call_imports_its_library_beside_the_loop(monkeypatch: pytest.MonkeyPatch):
    """The HTTP library and the certificates take ten times as long as the call may hold the loop.

    What importing them takes here and now is the measure, so that the speed of the machine does not matter.
    It is CPU time of the loop's own thread, so that other programs and the importing thread do not count.
    """
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-no-service")
    importing, first = run_python(IMPORTING), run_python(FIRST_CALL)["first"]
    assert first <= importing / 4


def test_a_first_run_warns_of_nothing_in_development_mode(monkeypatch: pytest.MonkeyPatch):
    """daily-use 12: the product warned of its own imports. asyncio's reports of slow callbacks go by the wall
    clock, so they are left out: how long the loop is held is measured above."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-no-service")
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", FIRST_CALL],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if " took " not in line] == []


async def test_the_loop_goes_on_between_large_events_of_one_batch(monkeypatch: pytest.MonkeyPatch):
    """Eight runs with 3 MiB of numbers each held it for 145 ms: one batch has the input up to five times."""
    loop = asyncio.get_running_loop()
    turn, encoded = 0, list[tuple[int, int]]()
    store = event_bus.store

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def noting(event: Any, ts: int) -> StoredEvent:
        stored = store(event, ts)
        encoded.append((turn, len(stored.body)))
        return stored

    monkeypatch.setattr(event_bus, "store", noting)
    count()
    agent = {"name": "a", "system_prompt": "s", "model": "scripted:m"}
    async with Runtime(models=[ScriptedModel(["done"])]) as runtime:
        result = await runtime.run({"agents": [agent]}, list(range(100_000)))
    assert result.state == "completed"
    large = [turn for turn, size in encoded if size > 256 * 1024]
    assert len(large) > 2
    assert len(set(large)) == len(large), "two large events in one turn of the loop"
