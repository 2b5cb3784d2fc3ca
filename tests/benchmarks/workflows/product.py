"""agentflow: steps that call an async Python function, and steps that are agents of a scripted model.

A definition is loaded once and run many times, as an application would do it. What `Runtime.run` does for
each run (checking the input, binding models and functions, compiling the plan) is inside the figures.
`agentflow (effects)` calls a function with effects outside, which begins once the intent to call it is
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from agentflow import Runtime, Service, function
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    EndNode,
    ModelRef,
    Node,
    Options,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel

LENGTH = 100
WIDTH = 100
RUNS, SHORT = 100, 10


@function(side_effect="none")
async def add(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="external")
async def add_outside(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="none")
async def source(width: int) -> list[int]:
    return list(range(width))


@function(side_effect="none")
async def work(item: int) -> int:
    return item


@function(side_effect="none")
async def join(values: list[int]) -> int:
    return sum(values)


def chain(length: int, make: Callable[[int, str], Node]) -> Workflow:
    """Nodes that hand their payload on."""
    ids = [f"n{i}" for i in range(length)] + ["end"]
    nodes = [make(i, ids[i + 1]) for i in range(length)]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=length))
    )


def adding(i: int, following: str) -> Node:
    return ToolNode(id=f"n{i}", index=i, tool="bench.add", next=following)


def acting(i: int, following: str) -> Node:
    return ToolNode(id=f"n{i}", index=i, tool="bench.add_outside", next=following)


def asking(i: int, following: str) -> Node:
    agent = AgentSpec(
        name=f"a{i}",
        system_prompt="Add one.",
        model=ModelRef(provider="scripted", model="adder"),
        plain_result="object",
    )
    return AgentNode(id=f"n{i}", index=i, agent=agent, next=following)


def answer(request: ModelRequest) -> dict[str, int]:
    return {"x": msgspec.json.decode(request.messages[-1].content)["x"] + 1}


def fan_out() -> Workflow:
    """One step that gives a list, one activation for each item, one step that adds the results up."""
    steps = (
        ToolNode(
            id="source",
            index=0,
            join="all_succeeded",
            tool="bench.source",
            input={"width": "${{ inputs.width }}"},
        ),
        ToolNode(
            id="work",
            index=1,
            join="all_succeeded",
            depends_on=("source",),
            for_each="${{ steps.source.outputs.result }}",
            max_parallel=WIDTH,
            tool="bench.work",
            input={"item": "${{ item }}"},
        ),
        ToolNode(
            id="join",
            index=2,
            join="all_succeeded",
            depends_on=("work",),
            tool="bench.join",
            input={"values": "${{ steps.work.outputs.result }}"},
        ),
    )
    return Workflow(
        name="fan",
        nodes=(StartNode(id="start"), *steps, EndNode(id="end", index=3, drain=True)),
        options=Options(max_parallel=WIDTH),
    )


@asynccontextmanager
async def runtime(store: str, runs: int) -> AsyncIterator[Runtime]:
    service = Service.of("bench", add, add_outside, source, work, join, max_concurrency=WIDTH)
    models = [ScriptedModel(answer)]
    async with Runtime(store, services=[service], models=models, max_concurrent_runs=runs) as opened:
        yield opened


def case(workflow: Workflow, input: Any, output: Any, steps: int, *, durable: bool, runs: int = 1) -> Any:
    """The work: `runs` runs at once of one definition, each of `steps` steps, each result checked."""

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Callable[[], Any]]:
        store = f"sqlite:{folder / 'runs.db'}" if durable else "memory:"
        async with runtime(store, max(runs, 64)) as here:
            definition = here.load(workflow)

            last = ""

            async def one() -> int:
                nonlocal last
                result = await here.run(definition, input)
                if result.output != output:
                    raise AssertionError(f"the run gave {result.output!r}, not {output!r}")
                last = result.workflow_id
                return steps

            async def many() -> int:
                return sum(await asyncio.gather(*(one() for _ in range(runs))))

            yield one if runs == 1 else many
            # Beside peers that keep a history of each step: so does this.
            events = [event async for event in here.events(last, follow=False)]
            done = sum(event.type == "workflow.step_completed" for event in events)
            assert done == steps + 2, done  # the start and the end too

    return opened


def cases(suffix: str, durable: bool) -> dict[str, Any]:
    made = {
        "chain100": case(chain(LENGTH, adding), {"x": 0}, {"x": LENGTH}, LENGTH, durable=durable),
        "fanout100": case(
            fan_out(),
            {"width": WIDTH},
            {"join": sum(range(WIDTH))},
            WIDTH + 2,
            durable=durable,
        ),
        "chain100_agents": case(chain(LENGTH, asking), {"x": 0}, {"x": LENGTH}, LENGTH, durable=durable),
    }
    return {f"{name}_{suffix}": opened for name, opened in made.items()}


SUBJECTS = {
    "agentflow": {
        **cases("memory", False),
        **cases("sqlite", True),
        "concurrent100x10_sqlite": case(
            chain(SHORT, adding), {"x": 0}, {"x": SHORT}, SHORT, durable=True, runs=RUNS
        ),
    },
    "agentflow (effects)": {
        "chain100_sqlite": case(chain(LENGTH, acting), {"x": 0}, {"x": LENGTH}, LENGTH, durable=True),
        "concurrent100x10_sqlite": case(
            chain(SHORT, acting), {"x": 0}, {"x": SHORT}, SHORT, durable=True, runs=RUNS
        ),
    },
}
