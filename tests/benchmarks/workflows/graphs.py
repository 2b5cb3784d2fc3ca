"""agentflow: graphs of executors, built once and run many times (`WorkflowBuilder`).

`agentflow` has the builder's default policy, supersteps; `agentflow (eager)` is the same graph as dataflow.
Durable runs are on SQLite: each event is committed with synchronous=FULL before what follows from it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow import Executor, Never, Runtime, Workflow, WorkflowBuilder, WorkflowContext, executor, handler

LENGTH = 100
SMALL: dict[str, Any] = {"task": "t", "text": "hello world", "hop": 0}
BIG: dict[str, Any] = {"task": "t", "items": [{"id": i, "text": "x" * 80} for i in range(500)]}


def hop(number: int, keeps: int) -> Executor:
    @executor(id=f"n{number}")
    async def step(message: dict, ctx: WorkflowContext[dict]) -> None:
        if keeps:
            ctx.set_shared_state(f"s{number}", "x" * keeps)
        await ctx.send_message({**message, "hop": number})

    return step


@executor(id="last")
async def last(message: dict, ctx: WorkflowContext[Never, dict]) -> None:
    await ctx.yield_output({**message, "hop": message["hop"] + 1})


def chain(length: int, policy: Any, store: Any, keeps: int = 0) -> Workflow:
    nodes = [*(hop(i, keeps) for i in range(length - 1)), last]
    builder = WorkflowBuilder("chain", policy=policy, max_iterations=10 * length)
    return builder.set_start_executor(nodes[0]).add_chain(nodes).with_checkpointing(store).build()


def worker(number: int, delay: float) -> Executor:
    @executor(id=f"w{number}")
    async def work(message: dict, ctx: WorkflowContext[dict]) -> None:
        if delay:
            await asyncio.sleep(delay)
        await ctx.send_message({"i": number})

    return work


class Join(Executor):
    @handler
    async def on_all(self, messages: list[dict], ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(len(messages))


@executor(id="source")
async def source(message: dict, ctx: WorkflowContext[dict]) -> None:
    await ctx.send_message(message)


def fan(width: int, policy: Any, store: Any, delay: float = 0) -> Workflow:
    workers = [worker(i, delay) for i in range(width)]
    builder = WorkflowBuilder("fan", policy=policy).set_start_executor(source)
    builder.add_fan_out_edges(source, workers).add_fan_in_edges(workers, Join("join"))
    return builder.with_checkpointing(store).build()


def running(make: Any, message: Any, wanted: Any, units: int, *, durable: bool = False, runs: int = 1) -> Any:
    """The work: `runs` runs at once, each result checked."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        store = f"sqlite:{folder / 'runs.db'}" if durable else "memory:"
        async with Runtime(store, max_concurrent_runs=max(runs, 64)) as runtime:
            workflow: Workflow = make(runtime)

            async def one() -> int:
                result = await workflow.run(message)
                found = result.output["hop"] if isinstance(result.output, dict) else result.output
                if found != wanted:
                    raise AssertionError(f"the run gave {found!r}, not {wanted!r}")
                return units

            async def once() -> int:
                return sum(await asyncio.gather(*(one() for _ in range(runs))))

            yield once

    return opened


def resuming(policy: Any) -> Any:
    """The work: go on from before the last of 100 steps, as a new run."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        async with Runtime(f"sqlite:{folder / 'runs.db'}") as runtime:
            workflow = chain(LENGTH, policy, runtime)
            result = await workflow.run(SMALL)
            points = [p for p in await workflow.list_checkpoints(result.workflow_id) if p.cause != "terminal"]
            before = points[-2].id

            async def once() -> int:
                fork = await workflow.run_from_checkpoint(before)
                assert fork.output["hop"] == LENGTH - 1
                return 1

            yield once

    return opened


def cases(policy: Any) -> dict[str, Any]:
    def line(length: int = LENGTH, keeps: int = 0, message: Any = SMALL, **more: Any) -> Any:
        return running(lambda r: chain(length, policy, r, keeps), message, length - 1, length, **more)

    def wide(width: int, delay: float = 0, **more: Any) -> Any:
        return running(lambda r: fan(width, policy, r, delay), SMALL, width, width + 2, **more)

    return {
        "graph_chain100_memory": line(),
        "graph_chain100_52kb_memory": line(message=BIG | {"hop": 0}),
        "graph_fan100_memory": wide(100),
        "graph_fan100_10ms_memory": wide(100, 0.01),
        "graph_fan1000_memory": wide(1000),
        "graph_concurrent200x10_memory": line(10, runs=200),
        "graph_chain100_durable": line(durable=True),
        "graph_chain100_1kib_durable": line(keeps=1024, durable=True),
        "graph_chain200_durable": line(200, durable=True),
        "graph_fan100_durable": wide(100, durable=True),
        "graph_resume100_durable": resuming(policy),
    }


SUBJECTS = {"agentflow": cases("superstep"), "agentflow (eager)": cases("eager")}
