"""Runs of executors go on from every event: equal outcomes, recorded calls once (page 002 §8)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import Edge
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.executors import Executor, Never, WorkflowContext, executor, handler, response_handler
from tests.integration.executors.crashes import at_every_event, with_actors_killed, with_supervisors_killed
from tests.integration.executors.graphs import build


class Claim(msgspec.Struct, frozen=True):
    id: str
    amount: int


class Risk(msgspec.Struct):
    claim: str
    value: float


class Verdict(msgspec.Struct, frozen=True):
    pay: bool


ONCE = RetryPolicy(max_attempts=3, backoff=Backoff(initial=0.001), jitter=0)


def claims(calls: Counter[str], *, policy: str = "superstep") -> Any:
    """Fan-out, a recorded call, a join, shared state, a person; the first attempt of `registry` fails."""

    class Intake(Executor):
        @handler
        async def on_claim(self, claim: Claim, ctx: WorkflowContext[Claim]) -> None:
            ctx.set_shared_state("claim", claim)
            await ctx.send_message(claim)

    @executor(id="rules")
    def rules(claim: Claim) -> Risk:
        return Risk(claim.id, 0.9)

    async def fetch(id: str) -> float:
        calls[id] += 1
        return 0.4

    @executor(id="registry", retry=ONCE)
    async def registry(claim: Claim, ctx: WorkflowContext[Risk]) -> None:
        value = await ctx.run_once("lookup", fetch, claim.id, side_effect="read")
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails behind the call")
        await ctx.send_message(Risk(claim.id, value))

    class Desk(Executor):
        @handler
        async def on_risks(self, risks: list[Risk], ctx: WorkflowContext[Never, str]) -> None:
            claim = ctx.get_shared_state("claim")
            ctx.set_state("worst", max(r.value for r in risks))
            await ctx.yield_output(f"asked about {claim.id}")
            await ctx.request_info(claim, Verdict)

        @response_handler
        async def on_verdict(self, claim: Claim, verdict: Verdict, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{claim.id} {verdict.pay} {ctx.get_state('worst')}")

    return build(
        Intake("intake"),
        rules,
        registry,
        Desk("desk"),
        edges=[
            Edge(source="intake", target="rules", kind="fan_out", group="f"),
            Edge(source="intake", target="registry", kind="fan_out", group="f"),
            Edge(source="rules", target="desk", kind="fan_in", group="j"),
            Edge(source="registry", target="desk", kind="fan_in", group="j"),
        ],
        options={"policy": policy},
    )


def pay(request: Any) -> Any:
    assert request["amount"] == 12
    return {"pay": True}


BOTH = pytest.mark.parametrize("policy", ["superstep", "eager"])


@BOTH
async def test_a_run_goes_on_from_behind_every_event(policy: str):
    calls: Counter[str] = Counter()

    def check(before: list[Any], after: list[Any]) -> None:
        done = any(e.type == "tool.call_completed" for e in before)
        assert calls["c-1"] == (0 if done else 1), "a recorded call is made again only if it has no result"
        calls.clear()

    def make() -> Any:
        calls.clear()
        return claims(calls, policy=policy)

    whole = await at_every_event(make, Claim("c-1", 12), answers=pay, check=check)
    assert whole.state == "completed"
    assert whole.outputs == ["asked about c-1", "c-1 True 0.9"]


@BOTH
async def test_a_run_goes_on_when_its_supervisor_is_killed_at_any_commit(policy: str, monkeypatch):
    whole = await with_supervisors_killed(
        monkeypatch, lambda: claims(Counter(), policy=policy), Claim("c-1", 12), answers=pay
    )
    assert whole.outputs == ["asked about c-1", "c-1 True 0.9"]


async def test_a_run_goes_on_when_the_actor_of_an_executor_is_killed_at_any_handler(monkeypatch):
    whole = await with_actors_killed(monkeypatch, lambda: claims(Counter()), Claim("c-1", 12), answers=pay)
    assert whole.outputs == ["asked about c-1", "c-1 True 0.9"]
