"""Handlers as a user writes them; pyright and mypy check each line of this file. Never executed."""

from __future__ import annotations

import msgspec

from agentflow import Backoff, RetryPolicy
from agentflow.executors import Executor, Never, WorkflowContext, executor, handler, response_handler


class Claim(msgspec.Struct, frozen=True):
    id: str


class Risk(msgspec.Struct, frozen=True):
    value: float


class HighRisk(Risk, frozen=True):
    pass


class Desk(Executor):
    @handler
    async def on_claim(self, claim: Claim, ctx: WorkflowContext[Risk, str]) -> None:
        await ctx.send_message(Risk(0.1))
        await ctx.send_message(HighRisk(0.9))
        await ctx.send_message(claim)  # rejected
        await ctx.yield_output("done")
        await ctx.yield_output(1)  # rejected

    @handler
    async def on_risk(self, risk: Risk, ctx: WorkflowContext) -> None:
        await ctx.send_message(risk)  # rejected
        await ctx.yield_output("x")  # rejected
        await ctx.request_info(risk, bool)

    @handler
    async def on_text(self, text: str, ctx: WorkflowContext[int]) -> None:
        await ctx.send_message(1)
        await ctx.yield_output(1)  # rejected

    @response_handler
    async def on_answer(self, risk: Risk, pay: bool, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(str(pay))
        await ctx.send_message("x")  # rejected
        found: str = await ctx.run_once("look", look, 3)
        wrong: int = await ctx.run_once("look", look, 3)  # rejected
        await ctx.yield_output(found + str(wrong))


def look(number: int) -> str:
    return str(number)


@executor(id="rules")
def rules(claim: Claim) -> Risk:
    return Risk(0.5)


@executor
async def registry(claim: Claim, ctx: WorkflowContext[Claim | Risk]) -> None:
    await ctx.send_message(claim)
    await ctx.send_message(Risk(1))
    await ctx.send_message("x")  # rejected


PATIENT = RetryPolicy(
    max_attempts=4,
    backoff=Backoff(initial="200ms", max=10),
    max_elapsed="2m",
    timeout="5s",
    retry_on=["tool"],
)


@executor(id="patient", retry=PATIENT, timeout="1m")
async def patient(claim: Claim) -> Risk:
    return Risk(0.5)


class Patient(Executor):
    retry = RetryPolicy(backoff="1s", timeout=None)
    timeout = "30s"

    @handler
    async def on_claim(self, claim: Claim, ctx: WorkflowContext) -> None: ...


wrong_delay = Backoff(initial=b"1")  # rejected
wrong_timeout = RetryPolicy(timeout=b"1")  # rejected
name: str = rules.id + registry.id
number: int = rules.id  # rejected
