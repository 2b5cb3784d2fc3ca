"""For how long 16 clients hold the daemon's event loop with the worst documents and inputs.

    python -m tests.faults.loop_lag [NAME …]

The limit is 100 ms on a machine that does a fixed piece of work in 10 ms; a slower one has more, by the same
measure. The work is done right before, so that a loaded machine counts as a slow one.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import msgspec

from tests.faults.worst_schemas import WORST

ROOT = Path(__file__).parents[2]
CLIENTS: Final = 16
LIMIT_MS: Final = 100.0

MIB: Final = 1 << 20
VALUES: Final[dict[str, bytes]] = {
    "2 million lists": b"[" + b"[]," * (2 * MIB) + b"[]]",
    "lists of 150 levels": b"[" + (b"[" * 150 + b"]" * 150 + b",") * 800 + b"[]]",
    "200,000 objects": b"[" + b'{"a":[1]},' * 200_000 + b"{}]",
    "distinct names": b"{" + b",".join(b'"name %d":%d' % (n, n) for n in range(200_000)) + b"}",
    "1 million numbers": b"[" + b"1," * MIB + b"1]",
    "500,000 fractions": b"[" + b"1.375," * (MIB // 2) + b"1]",
    "7 MiB of text": b'"' + b'[{\\"\\u00e9 ' * (7 * MIB // 12) + b'"',
    "integers of 4,000 digits": b"[" + b"9" * 4_000 + (b"," + b"9" * 4_000) * 64 + b"]",
    "numbers near the ends of the range": b"[" + b"1e300," * (MIB + MIB // 8) + b"1]",
    "numbers halfway between two": b"[" + b"1e23," * (MIB + MIB // 4) + b"1]",
    "60 KiB of numbers near the ends": b"[" + b"1e300," * 10_000 + b"1]",
    "7 MiB in such integers": b"[" + b"9" * 4_000 + (b"," + b"9" * 4_000) * 1_700 + b"]",
}
"""Inputs that cost to decode, to keep and to write, whatever their schema is."""
_FOR_AN_AGENT: Final = {"agents": [{"name": "a", "system_prompt": "s", "model": "scripted:m"}]}
SUBMISSIONS: Final[dict[str, Any]] = {
    "90,000 labels": {"definition": _FOR_AN_AGENT, "labels": {f"l{n}": "v" for n in range(90_000)}},
    "90,000 options": {"definition": _FOR_AN_AGENT, "options": {f"o{n}": 1 for n in range(90_000)}},
}
"""Bodies that are large where no input is."""
COMMANDS: Final[dict[str, tuple[str, bytes, str]]] = {
    "signal": ("signals", b'{"name":"x","data":%b}', "500,000 fractions"),
    "nested signal": ("signals", b'{"name":"x","data":%b}', "lists of 150 levels"),
    "edited input": ("fork", b'{"offset":0,"edits":{"input":%b}}', "500,000 fractions"),
    "nested input": ("fork", b'{"offset":0,"edits":{"input":%b}}', "lists of 150 levels"),
    "replayed input": ("replay", b'{"input":%b}', "500,000 fractions"),
    "response": ("approvals", b'{"granted":true,"step_id":"a","response":%b}', "500,000 fractions"),
    "a text of addresses": ("/requests/classify", b'{"message":"%b"}', "addresses"),
    "templates": ("/templates", b'{"source":"%b"}', "sequence"),
}
"""Commands to a run that waits: the last part of the path, or the path of another route; the body around a
value, and the name of the value."""
_TEXTS: Final = {"addresses": b"http://a.b/run " * 6_600, "sequence": b"a: [" + b"{b: 1}, " * 120_000 + b"]"}


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


def slowness() -> float:
    """Return how many times longer than 10 ms a fixed piece of work takes here and now; at least 1."""
    best = math.inf
    for _ in range(5):
        began = time.process_time()
        sum(len(str(number)) for number in range(60_000))
        best = min(best, time.process_time() - began)
    return max(1.0, best / 0.010)


async def post_all(folder: Path, body: bytes, clients: int = CLIENTS) -> set[int]:
    transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:

        async def post(number: int) -> int:
            path: Any = ("/validate", "/workflows")[number % 2]
            headers = {"Content-Type": "application/json"}
            return (await client.post(path, content=body, headers=headers)).status_code

        return set(await asyncio.gather(*(post(number) for number in range(clients))))


async def measure(bodies: Mapping[str, bytes], folder: Path, clients: int = CLIENTS) -> dict[str, float]:
    """Return for how many milliseconds the loop was held at most, by kind of body."""
    held: dict[str, float] = {}
    with daemon(folder):
        await post_all(folder, msgspec.json.encode({"definition": {"agents": []}, "input": {}}))
        for kind, body in bodies.items():
            (folder / "lag").write_text("")
            statuses = await post_all(folder, body, clients)
            assert statuses <= {200, 201, 400, 413, 422}, (kind, statuses)
            lags = [float(line) for line in (folder / "lag").read_text().split()]
            held[kind] = max(lags, default=0.0)
    return held


async def measure_command(name: str, folder: Path, clients: int = CLIENTS) -> float:
    """Return for how many milliseconds a command with a large value held the loop at most."""
    path, around, value = COMMANDS[name]
    agent = {"systemPrompt": "s", "input": "go", "attachedFunctions": "none", "resultSchema": {}}
    step = {"type": "run", "id": "a", "approval": {"message": "Go on?"}, "agent": agent}
    definition = {"version": "1.0", "workflow": {"steps": [step]}}
    with daemon(folder):
        transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:
            made = await client.post("/workflows", json={"definition": definition})
            run = f"/workflows/{made.json()['workflow_id']}"
            async with client.stream("GET", f"{run}/events") as stream:
                async for line in stream.aiter_lines():
                    if "approval" in line:
                        break
            (folder / "lag").write_text("")
            body = around % {**VALUES, **_TEXTS}[value]
            headers = {"Content-Type": "application/json"}
            url = path if path.startswith("/") else f"{run}/{path}"
            sent = [client.post(url, content=body, headers=headers) for _ in range(clients)]
            statuses = {answer.status_code for answer in await asyncio.gather(*sent)}
            assert statuses <= {200, 201, 202, 400, 409, 413, 422}, statuses
        lags = [float(line) for line in (folder / "lag").read_text().split()]
    return max(lags, default=0.0)


def worst_bodies(name: str) -> dict[str, bytes]:
    """Return the requests that are made of a schema, a value or a submission of this name."""
    if name in SUBMISSIONS:
        return {"submission": msgspec.json.encode(SUBMISSIONS[name])}
    return bodies(name) if name in WORST else {"value": valued(VALUES[name])}


def valued(value: bytes) -> bytes:
    """Return a submission of a value that no schema describes."""
    return b'{"definition":%b,"input":%b}' % (msgspec.json.encode(_FOR_AN_AGENT), value)


def main() -> int:
    """Print a line for each document; return 1 if one of them holds the loop beyond the limit."""
    over = 0
    for name in sys.argv[1:] or (*WORST, *VALUES, *SUBMISSIONS):
        factor = slowness()
        with TemporaryDirectory() as folder:
            held = asyncio.run(measure(worst_bodies(name), Path(folder)))
        over |= max(held.values()) > LIMIT_MS * factor
        measured = "  ".join(f"{kind} {value:8.1f} ms" for kind, value in held.items())
        print(f"{name:32} {measured}  (machine x {factor:.1f})", flush=True)
    return over


if __name__ == "__main__":
    sys.exit(main())
