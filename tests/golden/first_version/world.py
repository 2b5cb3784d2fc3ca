"""The workflows, models and functions of the stored runs. Runs under the first version and under this one.

What has a turn in `hangs` never answers; a process that was killed there left the runs as they are stored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition.ir import ConditionNode, EndNode, ModelRef, StartNode, ToolNode, Workflow
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

__all__ = ["RUNS", "World"]

STEPS = """
version: "1.0"
models: {default: "scripted:m"}
workflow:
  timeout: 2h
  steps:
    - {type: run, id: classify, agent: {systemPrompt: classify, input: "${{ inputs.text }}",
       resultSchema: {type: object}, attachedFunctions: none}}
    - {type: run, id: escalate, depends_on: [classify], if: "steps.classify.outputs.result.urgent",
       agent: {systemPrompt: escalate, input: x, resultSchema: {}, attachedFunctions: none}}
    - {type: run, id: each, depends_on: [classify], for_each: "${{ inputs.items }}", max_parallel: 2,
       timeout: 1h, retry: {max_attempts: 2, backoff: 1s},
       agent: {systemPrompt: "each ${{ index }}", input: "${{ item }}", resultSchema: {},
               attachedFunctions: [{service: desk, function: look}]}}
    - {type: run, id: send, depends_on: [classify], approval: {message: "Send ${{ inputs.text }}?"},
       agent: {systemPrompt: send, input: "${{ steps.classify.outputs.result }}", resultSchema: {},
               attachedFunctions: none}}
    - {type: run, id: report, depends_on: [each, send],
       agent: {systemPrompt: report, input: "${{ steps.each.outputs.result }}", resultSchema: {},
               attachedFunctions: none}}
outputs:
  each: "${{ steps.each.outputs.result }}"
  report: "${{ steps.report.outputs.result }}"
  escalated: "${{ steps.escalate.status }}"
"""

AGENTS = {
    "name": "team",
    "models": {"default": "scripted:m"},
    "agents": [
        {"name": "finder", "system_prompt": "find", "tools": ["desk.look"]},
        {"name": "payer", "system_prompt": "settle", "tools": ["desk.look", "desk.pay"]},
        {"name": "writer", "system_prompt": "write"},
    ],
}

LOOP = Workflow(
    name="loop",
    models={"default": ModelRef(provider="scripted", model="m")},
    nodes=(
        StartNode(id="__start", next="step"),
        ToolNode(id="step", index=0, tool="desk.add", next="more"),
        ConditionNode(
            id="more", index=1, expression="nodes.step.output.x < 5", on_true="step", on_false="__end"
        ),
        EndNode(id="__end", index=2, drain=True),
    ),
)

RUNS: dict[str, tuple[Any, Any, frozenset[str]]] = {
    "steps": (STEPS, {"text": "Hello", "items": ["a", "b", "c", "d"]}, frozenset({"each 1", "each 2"})),
    "agents": (AGENTS, {"question": "where?"}, frozenset({"pay"})),
    "loop": (LOOP, {"x": 0}, frozenset({"add 3"})),
}
"""By name: the submission, its input, and what hangs in the process that is killed."""


class World:
    """Answers of models and functions.

    `calls` counts them; `all_hang` is set once all of `hangs` was asked.
    """

    def __init__(self, hangs: Iterable[str] = ()) -> None:
        self.hangs = frozenset(hangs)
        self.all_hang = asyncio.Event()
        self._begun: set[str] = set()
        self.calls: Counter[str] = Counter()

    async def _begin(self, name: str) -> None:
        self.calls[name] += 1
        if name in self.hangs:
            self._begun.add(name)
            if self._begun == self.hangs:
                self.all_hang.set()
            await asyncio.Event().wait()

    async def _answer(self, request: ModelRequest) -> Any:
        prompt = next(m.content for m in request.messages if m.role == "system")
        turn = sum(m.role == "assistant" for m in request.messages)
        if turn or prompt not in ("find", "settle", "each 0", "each 1"):
            await self._begin(prompt)
        if prompt == "classify":
            return {"urgent": False}
        if not turn and prompt == "settle":
            return [call("desk__look", x=2), call("desk__pay", x=2)]
        if not turn and prompt in ("find", "each 0", "each 1"):
            return call("desk__look", x=1)
        return f"{prompt}: done" if prompt in ("find", "settle", "write") else {"said": prompt}

    def runtime(self, store: str) -> Runtime:
        """Return a Runtime on this store, in this world."""

        @function(side_effect="read")
        async def look(ctx: ToolContext, x: int = 0) -> Any:
            """Look something up."""
            await self._begin("look")
            return {"found": x}

        @function(side_effect="external")
        async def pay(ctx: ToolContext, x: int = 0) -> Any:
            """Pay."""
            await self._begin("pay")
            return {"paid": x}

        @function(side_effect="none")
        async def add(ctx: ToolContext, x: int = 0) -> Any:
            """Add one."""
            await self._begin(f"add {x}")
            return {"x": x + 1}

        desk = Service.of("desk", look, pay, add)
        return Runtime(store, models=[ScriptedModel(self._answer)], services=[desk])
