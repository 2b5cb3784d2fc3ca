"""Random workflows of the simulation, the models and functions that serve them, and their effects outside."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from agentflow import Service, ToolContext, function
from agentflow.definition.failure import ErrorInfo
from agentflow.events.envelope import decode
from agentflow.models import ModelError, ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.faults.simulated.world import World
from tests.integration.support.runs import chain, document, step

__all__ = ["Outside", "random_workflow"]

_PACES = (0.0, 0.0, 0.01, 0.5, 3.0)


class Outside:
    """What models and functions do to the world, which no crash undoes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(world.rng.random())
        self.executions: Counter[str] = Counter()
        self.unsafe: set[str] = set()
        self.problems: list[str] = []
        self.calm = False
        """True when nothing fails any more, so that runs can come to their ends."""

    def _fails(self, share: float) -> bool:
        return not self.calm and self._rng.random() < share

    async def _answer(self, request: ModelRequest) -> Any:
        await asyncio.sleep(self._rng.choice(_PACES))
        if self._fails(0.12):
            kind: Any = self._rng.choice(("transient", "rate_limited", "timeout"))
            retry_after = self._rng.choice((None, 1.0)) if kind == "rate_limited" else None
            raise ModelError(ErrorInfo(category=kind, code=kind, message="busy"), retry_after=retry_after)
        if self._fails(0.02):
            raise ModelError(ErrorInfo(category="quota", code="insufficient_quota", message="no credit"))
        if request.tools and request.messages[-1].role != "tool":
            chosen = [self._rng.choice(request.tools).name for _ in range(self._rng.randint(1, 2))]
            return [call(name) for name in chosen]
        return {"ok": True}

    def model(self) -> ScriptedModel:
        return ScriptedModel(self._answer)

    async def _execute(self, ctx: ToolContext, *, unsafe: bool) -> dict[str, Any]:
        key = ctx.idempotency_key
        store = self._world.store
        for row in await store.read(ctx.workflow_id, 0, 100_000):
            if row.type == "tool.call_completed":
                data: Any = decode(row.body).data
                if data.tool_call_id == ctx.call_id:
                    self.problems.append(f"{key} has a recorded result and was executed again")
        self.executions[key] += 1
        if unsafe:
            self.unsafe.add(key)
        await asyncio.sleep(self._rng.choice(_PACES))
        if self._fails(0.08):
            raise RuntimeError("the function failed")
        return {"n": self.executions[key]}

    def service(self) -> Service:
        @function(side_effect="read")
        async def look(ctx: ToolContext) -> dict:
            """Looks."""
            return await self._execute(ctx, unsafe=False)

        @function(side_effect="external")
        async def pay(ctx: ToolContext) -> dict:
            """Pays."""
            return await self._execute(ctx, unsafe=True)

        @function(side_effect="external", idempotent=True)
        async def wire(ctx: ToolContext) -> dict:
            """Wires, once for each key."""
            return await self._execute(ctx, unsafe=False)

        return Service.of("desk", look, pay, wire)


def random_workflow(rng: random.Random) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A workflow, its input, and the options of its submission."""
    if rng.random() < 0.25:
        return chain(*rng.choices(("look", "pay", "wire"), k=rng.randint(1, 4))), {}, _options(rng)
    steps = [_step(rng, i) for i in range(rng.randint(1, 4))]
    more: dict[str, Any] = {}
    if rng.random() < 0.2:
        more["timeout"] = rng.choice(("2s", "30s"))
    if rng.random() < 0.2:
        more["max_parallel"] = 1
    return document(*steps, **more), {"items": list(range(rng.randint(0, 4)))}, _options(rng)


def _step(rng: random.Random, i: int) -> dict[str, Any]:
    more: dict[str, Any] = {}
    after = [f"s{j}" for j in range(i) if rng.random() < 0.5]
    if after:
        more["depends_on"] = after
    if rng.random() < 0.3:
        more["for_each"] = "${{ inputs.items }}"
        more["input"] = "${{ item }}"
    if rng.random() < 0.25:
        more["approval"] = rng.choice((True, {"timeout": "5s"}, {"timeout": "1h", "on_denied": "skip"}))
    elif rng.random() < 0.2:
        more["approval"] = {"before": "calls"}
    if rng.random() < 0.2:
        more["timeout"] = rng.choice(("1s", "20s"))
    if rng.random() < 0.5:
        more["retry"] = {"max_attempts": rng.randint(2, 4), "backoff": rng.choice(("100ms", "2s"))}
    if rng.random() < 0.15:
        more["budget"] = {"max_model_calls": 1, "on_exceeded": rng.choice(("pause", "ask", "fail"))}
    if rng.random() < 0.2:
        more["required"] = False
    functions = rng.choice(("none", ["look"], ["look", "pay"], ["wire"]))
    return step(f"s{i}", functions=functions, **more)


def _options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["on_failure"] = rng.choice(("halt", "hold"))
    if rng.random() < 0.2:
        options["on_unknown"] = "fail"
    return options
