"""Does the work of the suite in a process of its own: `subject.py COUNTER CASE…`.

Prints a JSON line for each case: its steps, and the count of a run after one that warmed up. With the
counter `memory` the bytes of compiled plans are printed instead.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec

from actors.kernel import scheduler
from agentflow import Runtime, Service
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel, call
from tests.benchmarks.instructions.counters import open_counter
from tests.benchmarks.instructions.graphs import FUNCTIONS, SHAPES, Work
from tests.golden.adapter import compile_graph, drive, summary

CPU_ROUNDS = 5
VALGRIND_SLOWER = 50


def answer(request: ModelRequest) -> Any:
    """Add one to the input; with a function, call it as often as the input says."""
    if not request.tools:
        return {"x": msgspec.json.decode(request.messages[-1].content)["x"] + 1}
    called = (len(request.messages) - 2) // 2
    if called < msgspec.json.decode(request.messages[1].content)["x"]:
        return call("bench__add", x=called)
    return {"x": called}


def work_of(case: str) -> Work:
    """Return the work of `[engine ]SHAPE SIZE`."""
    shape, _, size = case.removeprefix("engine ").rpartition(" ")
    return SHAPES[shape](int(size))


async def measure(case: str, runtime: Runtime, count: Callable[[], int], rounds: int) -> dict[str, object]:
    """Do the work once to warm up, then `rounds` times; the least count is the figure."""
    work = work_of(case)
    alone = case.startswith("engine ")
    plan = compile_graph(work.graph) if alone else None
    definition = None if alone or work.executors else runtime.load(work.graph)
    workflow = work.executors.with_checkpointing(runtime).build() if work.executors else None

    async def once() -> None:
        if workflow is not None:
            result = await workflow.run(work.input)
            assert result.output == work.output, result
            return
        if definition is None:
            state = drive(plan, work.graph, work.input, lambda parameters: {"x": parameters["x"] + 1})
            assert summary(state)["output"] == work.output
            return
        result = await runtime.run(definition, work.input)
        assert result.output == work.output, result

    await once()
    counts: list[int] = []
    for _ in range(rounds):
        gc.collect()
        began = count()
        await once()
        counts.append(count() - began)
    return {"case": case, "steps": work.steps, "count": min(counts)}


async def main(counter: str, cases: list[str]) -> None:
    """Measure the cases, one after another."""
    logging.disable(logging.WARNING)  # the watchdog of slow handlers, of which valgrind makes many
    if counter == "valgrind":
        scheduler.SLICE *= VALGRIND_SLOWER  # as much work in a slice as without it
    count = open_counter(counter)
    service = Service.of("bench", *FUNCTIONS, max_concurrency=100)
    async with Runtime(services=[service], models=[ScriptedModel(answer)]) as runtime:
        for case in cases:
            rounds = CPU_ROUNDS if counter == "cpu" else 1
            print(json.dumps(await measure(case, runtime, count, rounds)), flush=True)


def memory(cases: list[str]) -> None:
    """Print the bytes that the compiled plan of each graph takes, beside the graph itself."""
    for case in cases:
        work = work_of(case)
        compile_graph(work.graph)  # what is cached for all graphs alike
        gc.collect()
        tracemalloc.start()
        plan = compile_graph(work.graph)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del plan
        print(json.dumps({"case": case, "steps": work.steps, "count": used}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        memory(sys.argv[2:])
    else:
        asyncio.run(main(sys.argv[1], sys.argv[2:]))
