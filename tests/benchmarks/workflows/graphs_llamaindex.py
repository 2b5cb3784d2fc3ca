"""LlamaIndex workflows: a step and an event class for each hop. It keeps runs in memory alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

LENGTH = 100
SMALL: dict[str, Any] = {"task": "t", "text": "hello world", "hop": 0}
BIG: dict[str, Any] = {"task": "t", "items": [{"id": i, "text": "x" * 80} for i in range(500)], "hop": 0}


def chain(length: int) -> Any:
    """A class of so many steps; the package reads the annotations of its methods."""
    body = ["class Chain(Workflow):"]
    names: dict[str, Any] = {
        "Workflow": Workflow,
        "step": step,
        "StartEvent": StartEvent,
        "StopEvent": StopEvent,
    }
    for i in range(length):
        taken = "StartEvent" if i == 0 else f"E{i}"
        given = "StopEvent" if i == length - 1 else f"E{i + 1}"
        made = f"{{**ev.message, 'hop': {i}}}"
        sent = f"StopEvent(result={made})" if i == length - 1 else f"{given}(message={made})"
        body += ["    @step", f"    async def s{i}(self, ev: {taken}) -> {given}:", f"        return {sent}"]
        if i:
            names[f"E{i}"] = type(
                f"E{i}", (Event,), {"__annotations__": {"message": dict}, "__module__": __name__}
            )
    exec("\n".join(body), names)
    return names["Chain"](timeout=None)


class Task(Event):
    i: int


class Done(Event):
    i: int


def fan(width: int, delay: float) -> Any:
    class Fan(Workflow):
        @step
        async def source(self, ev: StartEvent) -> list[Task]:
            return [Task(i=i) for i in range(width)]

        @step(num_workers=width)
        async def work(self, ev: Task) -> Done:
            if delay:
                await asyncio.sleep(delay)
            return Done(i=ev.i)

        @step
        async def join(self, events: list[Done]) -> StopEvent:
            return StopEvent(result=len(events))

    return Fan(timeout=None)


def line_case(length: int = LENGTH, *, message: Any = SMALL, runs: int = 1) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        flow = chain(length)

        async def one() -> int:
            result = await flow.run(message=message)
            assert result["hop"] == length - 1
            return length

        async def once() -> int:
            return sum(await asyncio.gather(*(one() for _ in range(runs))))

        yield once

    return opened


def fan_case(width: int, delay: float = 0) -> Any:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        flow = fan(width, delay)

        async def once() -> int:
            assert await flow.run() == width
            return width + 2

        yield once

    return opened


SUBJECTS = {
    f"llama-index-workflows {version('llama-index-workflows')}": {
        "graph_chain100_memory": line_case(),
        "graph_chain100_52kb_memory": line_case(message=BIG),
        "graph_fan100_memory": fan_case(100),
        "graph_fan100_10ms_memory": fan_case(100, 0.01),
        "graph_fan1000_memory": fan_case(1000),
        "graph_concurrent200x10_memory": line_case(10, runs=200),
    }
}
