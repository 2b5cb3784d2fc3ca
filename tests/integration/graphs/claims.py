"""The example of page 002 §2 with its helpers; pyright checks it as user code (`test_static_types`)."""

from __future__ import annotations

from typing import Never

import msgspec

from agentflow import (
    Backoff,
    Case,
    Default,
    Executor,
    RetryPolicy,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    reducers,
    response_handler,
)


class Claim(msgspec.Struct, frozen=True):
    id: str
    amount: int


class Risk(msgspec.Struct, frozen=True):
    claim_id: str
    value: float


class Verdict(msgspec.Struct, frozen=True):
    pay: bool
    note: str = ""


class Intake(Executor):
    @handler
    async def on_claim(self, claim: Claim, ctx: WorkflowContext[Claim]) -> None:
        ctx.set_state("seen", ctx.get_state("seen", 0) + 1)
        ctx.set_shared_state("claim", claim)
        await ctx.send_message(claim)


@executor(id="rules")
def rules(claim: Claim) -> Risk:
    return Risk(claim.id, 0.9 if claim.amount > 10_000 else 0.1)


async def fetch_row(claim_id: str) -> dict[str, float]:
    return {"risk": 1.0 if claim_id == "c-bad" else 0.6}


@executor(id="registry", retry=RetryPolicy(max_attempts=4, backoff=Backoff(initial="200ms"), timeout="5s"))
async def registry(claim: Claim, ctx: WorkflowContext[Risk]) -> None:
    row = await ctx.run_once("lookup", fetch_row, claim.id, side_effect="read")
    await ctx.add_event("looked_up", {"rows": len(row)})
    await ctx.send_message(Risk(claim.id, row["risk"]))


class Assess(Executor):
    @handler
    async def on_risks(self, risks: list[Risk], ctx: WorkflowContext[Risk, Verdict]) -> None:
        worst = max(risks, key=lambda r: r.value)
        ctx.set_shared_state("history", worst.value)
        if worst.value < 0.5:
            await ctx.yield_output(Verdict(pay=True))
        else:
            await ctx.send_message(worst)


class Desk(Executor):
    @handler
    async def on_risk(self, risk: Risk, ctx: WorkflowContext) -> None:
        await ctx.request_info(risk, Verdict, timeout="48h", on_timeout=Verdict(False, "no answer"))

    @response_handler
    async def on_verdict(self, risk: Risk, verdict: Verdict, ctx: WorkflowContext[Never, Verdict]) -> None:
        await ctx.yield_output(verdict)


@executor(id="block")
async def block(risk: Risk, ctx: WorkflowContext[Never, Verdict]) -> None:
    await ctx.yield_output(Verdict(False, f"{risk.claim_id} is blocked"))


def too_risky(risk: Risk) -> bool:
    return risk.value > 0.95


def by_amount(claim: Claim, targets: list[str]) -> list[str]:
    return targets if claim.amount > 500 else ["rules"]


def builder() -> WorkflowBuilder:
    return (
        WorkflowBuilder("claims", version="4", policy="superstep", max_iterations=100)
        .add_shared("history", list[float], reducer=reducers.append)
        .set_start_executor(Intake("intake"))
        .add_multi_selection_edge_group("intake", [rules, registry], by_amount)
        .add_fan_in_edges([rules, registry], Assess("assess"), on_missing="partial", timeout="1m")
        .add_switch_case_edge_group("assess", [Case(too_risky, block), Default(Desk("desk"))])
    )


workflow = builder().build()
