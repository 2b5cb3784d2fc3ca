"""agentflow: one agent step, a ScriptedModel and one async Python function.

`agentflow (effects)` calls a function with effects outside, which begins once the intent to call it is
committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentflow import Runtime, Service, function
from agentflow.definition.ir import AgentNode, AgentSpec, EndNode, FunctionRef, ModelRef, StartNode, Workflow
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel, call


@function(side_effect="none")
async def add(x: int) -> int:
    return x + 1


@function(side_effect="external")
async def add_outside(x: int) -> int:
    return x + 1


def workflow(calls: int, name: str) -> Workflow:
    agent = AgentSpec(
        name="counter",
        system_prompt="Count with the tool.",
        model=ModelRef(provider="scripted", model="counter"),
        functions=(FunctionRef("bench", name),),
        max_turns=calls + 1,
        max_tool_calls=calls,
    )
    nodes = (StartNode(id="start", next="count"), AgentNode(id="count", agent=agent, next="end"))
    return Workflow(name="loop", nodes=(*nodes, EndNode(id="end", index=1)))


def script(calls: int, name: str) -> Any:
    def answer(request: ModelRequest) -> Any:
        answered = (len(request.messages) - 2) // 2  # as the peers' models count: nothing is looked through
        if answered < calls:
            return call(f"bench__{name}", x=answered)
        assert request.messages[-1].content == str(calls), request.messages[-1].content
        return "done"

    return answer


def case(calls: int, *, durable: bool, tool: Any = add) -> Any:
    name = "add" if tool is add else "add_outside"

    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Any]:
        model = ScriptedModel(script(calls, name))
        store = f"sqlite:{folder / 'runs.db'}" if durable else "memory:"
        async with Runtime(store, models=[model], services=[Service.of("bench", tool)]) as runtime:
            definition = runtime.load(workflow(calls, name))

            async def once() -> int:
                result = await runtime.run(definition, "Go.")
                assert result.output == "done", result.output
                assert len(model.requests) == calls + 1
                model.requests.clear()
                return calls + 1

            yield once

    return opened


SUBJECTS = {
    "agentflow": {
        "loop1_memory": case(1, durable=False),
        "loop50_memory": case(50, durable=False),
        "loop1_sqlite": case(1, durable=True),
        "loop50_sqlite": case(50, durable=True),
    },
    "agentflow (effects)": {
        "loop1_sqlite": case(1, durable=True, tool=add_outside),
        "loop50_sqlite": case(50, durable=True, tool=add_outside),
    },
}
