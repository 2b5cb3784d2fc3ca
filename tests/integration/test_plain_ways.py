"""The short ways of the end of a call and of a handler, and the runs that must not take them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from agentflow import Runtime, Service, engine, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.executors import Executor, Never, WorkflowContext, handler
from tests.integration.executors.graphs import build, types

VALIDATED = {"replay_mode": "validate_recorded_trace"}


class Pass(Executor):
    @handler
    async def on_number(self, number: int, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(number + 1)


class Last(Executor):
    @handler
    async def on_number(self, number: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(number)


@function(side_effect="read")
async def plain(x: int) -> dict[str, int]:
    return {"x": x + 1}


def handlers() -> Any:
    return build(Pass("a"), Pass("b"), Last("c"), edges=[("a", "b"), ("b", "c")])


def calls() -> Workflow:
    ids = ["n0", "n1", "n2", "end"]
    nodes = [ToolNode(id=i, index=n, tool="desk.plain", next=ids[n + 1]) for n, i in enumerate(ids[:3])]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=3))
    )


GRAPHS = {"complete_plain_handler": (handlers, 1), "complete_plain_call": (calls, {"x": 1})}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of the short ways was taken to its end."""
    found: Counter[str] = Counter()

    def count(name: str) -> None:
        original = getattr(engine, name)

        def counting(*arguments: Any) -> Any:
            result = original(*arguments)
            found[name] += result is not None
            return result

        monkeypatch.setattr(engine, name, counting)

    for name in GRAPHS:
        count(name)
    return found


@pytest.mark.parametrize("way", GRAPHS)
async def test_a_run_whose_trace_is_checked_takes_no_short_way(taken: Counter[str], way: str):
    make, message = GRAPHS[way]
    async with Runtime(services=[Service.of("desk", plain)]) as runtime:
        await (await runtime.submit(make(), message, workflow_id="wf_short")).result()
        assert taken[way] > 0
        taken.clear()
        run = await runtime.submit(make(), message, workflow_id="wf_checked", options=VALIDATED)
        await run.result()
        assert not taken
        shorts, checked = [await types(runtime, run) for run in ("wf_short", "wf_checked")]
        assert checked == shorts, "the same events, and no system.error"


@pytest.mark.parametrize("way", GRAPHS)
@pytest.mark.parametrize("policy", ["Always", "Mixed"])
async def test_a_replay_takes_no_short_way(taken: Counter[str], way: str, policy: Any):
    make, message = GRAPHS[way]
    async with Runtime(services=[Service.of("desk", plain)]) as runtime:
        first = await runtime.submit(make(), message, workflow_id="wf_first")
        output = (await first.result()).output
        taken.clear()
        again = await runtime.replay("wf_first", policy, as_id="wf_again")
        assert (await again.result()).output == output
        assert not taken
