"""The processes that are measured: the daemon, and the same HTTP server with nothing behind it.

    python -m tests.benchmarks.server.subject daemon|plain FOLDER

Prints a line when it listens on FOLDER/s and, the daemon, on a port, which it names. Commands on stdin are
answered with one line of JSON: `runs N` runs a workflow N times in this process without HTTP, `write N RATE`
appends N events to the run wf_stream and publishes them as the runtime does (RATE a second, 0: as fast as
the store takes them), `end` ends it, `memory` gives the resident bytes of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agentflow import Runtime
from agentflow.config import ServerConfig
from agentflow.definition.conversation import Usage
from agentflow.events.catalogue import Custom, WorkflowCompleted
from agentflow.events.envelope import Ids
from agentflow.events.families.workflow import StepCounts
from agentflow.events.log import Append, RunMeta
from agentflow.events.sealing import seal
from agentflow.models import ModelRequest
from agentflow.server.app import Application
from agentflow.server.http_server import HttpServer
from agentflow.server.sockets import Listeners
from agentflow.testing import ScriptedModel

DOCUMENT = {
    "agents": [{"name": f"a{i}", "system_prompt": "Answer.", "model": "scripted:m"} for i in range(3)]
}
WAITING = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: ask
      approval: true
      agent: {systemPrompt: go, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""
SLOW = {"agents": [{"name": "a", "system_prompt": "Wait.", "model": "scripted:m"}]}
"""A model that takes its time, as models do."""
CONCURRENT = 16
BATCH, IN_FLIGHT = 16, 64
STREAM = "wf_stream"


async def lines() -> AsyncIterator[list[str]]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.split()


class Subject:
    """The daemon's Runtime, and a log that is written without it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.ids = Ids()
        self.next = 0

    async def runs(self, count: int) -> dict[str, float]:
        definition = self.runtime.load(DOCUMENT)
        gate = asyncio.Semaphore(CONCURRENT)

        async def one() -> None:
            async with gate:
                result = await self.runtime.run(definition, "x")
                assert result.output == "x"

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(count)))
        return {"seconds": time.perf_counter() - began}

    async def write(self, count: int, rate: float) -> dict[str, float]:
        began = time.perf_counter()
        done = 0
        under_way: deque[asyncio.Future[None]] = deque()
        while done < count:
            # The time of writing is what a reader takes the delay from.
            size = 1 if rate else min(BATCH, count - done)
            stamp = time.perf_counter_ns()
            under_way.append(
                self._append([Custom(name="bench", data={"at": stamp, "pad": "x" * 120})] * size)
            )
            done += size
            if len(under_way) >= (1 if rate else IN_FLIGHT):
                await under_way.popleft()
            if rate:
                await asyncio.sleep(max(0.0, began + done / rate - time.perf_counter()))
        for future in under_way:
            await future
        return {"seconds": time.perf_counter() - began}

    async def end(self) -> dict[str, float]:
        await self._append(
            [
                WorkflowCompleted(
                    output=None, output_size=4, duration_ms=0, steps=StepCounts(), skipped=(), usage=Usage()
                )
            ]
        )
        return {}

    def _append(self, data: list[Any]) -> asyncio.Future[None]:
        """As the EventBus does it: published when the commit is done, and never waited for."""
        ts, first = time.time_ns() // 1000, self.next
        stored = seal(data, workflow_id=STREAM, first=first, ts=ts, ids=self.ids)
        self.next += len(data)
        meta = RunMeta(name="bench", definition_hash="d", created_at=ts) if first == 0 else None
        done = self.runtime.log.append(Append(STREAM, 1, first, stored, "running", meta))
        done.add_done_callback(lambda _: self.runtime.hub.publish(STREAM, stored))
        return done


async def daemon(folder: Path) -> None:
    listeners = Listeners()
    listeners.add_unix(folder / "s")
    listeners.add_tcp("127.0.0.1:0")

    async def slow(request: ModelRequest) -> str:
        await asyncio.sleep(0.05)
        return request.messages[-1].content

    def answer(request: ModelRequest) -> Any:
        return slow(request) if request.messages[0].content == "Wait." else request.messages[-1].content

    model = ScriptedModel(answer, max_concurrency=500)
    store = f"{os.environ.get('AGENTFLOW_BENCH_STORE', 'sqlite')}:{folder / 'runs'}"
    async with Runtime(store, models=[model]) as runtime:
        server = HttpServer(Application(runtime, ServerConfig(max_streams=10_000)), listeners)
        serving = asyncio.ensure_future(server.serve())
        await server.started_event.wait()
        print(listeners.listeners[1].sock.getsockname()[1], flush=True)
        subject = Subject(runtime)
        async for command, *arguments in lines():
            match command:
                case "runs":
                    answer = await subject.runs(int(arguments[0]))
                case "write":
                    answer = await subject.write(int(arguments[0]), float(arguments[1]))
                case "end":
                    answer = await subject.end()
                case _:
                    answer = {"bytes": memory()}
            print(json.dumps(answer), flush=True)
        server.stop()
        await serving
    listeners.close()


def memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def plain(folder: Path) -> None:
    """Starlette on uvicorn with a small answer and a stream of bytes: what the framework itself costs."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse, StreamingResponse
    from starlette.routing import Route

    async def answer(request: Any) -> JSONResponse:
        if request.method == "POST":
            await request.json()
        return JSONResponse({"name": "plain", "version": "1"})

    async def stream(request: Any) -> StreamingResponse:
        """So many bytes, in pieces of the size given."""
        total, size = int(request.query_params["total"]), int(request.query_params["size"])
        piece = b"x" * size

        async def pieces() -> AsyncIterator[bytes]:
            for place in range(0, total, size):
                yield piece[: total - place]

        return StreamingResponse(pieces(), media_type="application/x-ndjson")

    routes = [Route("/version", answer, methods=["GET", "POST"]), Route("/stream", stream)]
    app = Starlette(routes=routes)
    listeners = Listeners()
    listeners.add_unix(folder / "s")
    listeners.add_tcp("127.0.0.1:0")
    config = uvicorn.Config(
        app, http="httptools", ws="none", log_config=None, access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener.sock for listener in listeners]))
    print(listeners.listeners[1].sock.getsockname()[1], flush=True)
    async for _ in lines():
        print("{}", flush=True)
    server.should_exit = True
    await serving
    listeners.close()


if __name__ == "__main__":
    from agentflow.server.daemon import loop_factory

    factory = None if os.environ.get("NO_UVLOOP") else loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run({"daemon": daemon, "plain": plain}[sys.argv[1]](Path(sys.argv[2])))
