"""Replays of child runs and handlers of executors: the record answers, nothing starts (page 003 §9)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import (
    Backoff,
    Executor,
    RetryPolicy,
    Runtime,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    response_handler,
)
from agentflow.definition.ir import Approval, SubgraphNode, ToolNode
from agentflow.records.trace import encode_trace
from tests.integration.support.runs import Desk, log_of, must_be_sound
from tests.integration.test_child_run_crashes import Lives
from tests.integration.test_child_runs import BAD, does, parent, whole
from tests.integration.virtual import LoopClock

FORMS = {
    "calls": whole(does("pay")),
    "asks": whole(does("pay", approval=Approval(before="step"))),
    "fails": whole(ToolNode(id="t", tool="bad.fail", input={}, next="__end")),
    "nests": whole(SubgraphNode(id="sub", graph="leaf", next="__end"), graphs={"leaf": whole(does("pay"))}),
}


async def traces(runtime: Runtime, *runs: str) -> list[bytes]:
    return [encode_trace(await runtime.trace(run, "logical")) for run in runs]


async def recorded(runtime: Runtime, form: str) -> None:
    handle = await runtime.submit(parent(FORMS[form]), {}, workflow_id="wf_a")
    result = await handle.rest()
    for asked in result.pending_requests:
        result = await (await runtime.decide("wf_a", granted=True, request_id=asked.request_id)).rest()
    assert result.state == ("failed" if form == "fails" else "completed")


@pytest.mark.parametrize("form", list(FORMS))
@virtual
async def test_always_serves_a_child_run_from_its_record(form: str):
    desk = Desk()
    async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
        await recorded(runtime, form)
        calls, runs = desk.calls, len((await runtime.log.runs()).items)
        again = await (await runtime.replay("wf_a", "Always", as_id="wf_b")).rest()
        first = await runtime.record("wf_a")
        assert (again.state, again.output) == (first.state, first.output), again.error
        assert (desk.calls, len((await runtime.log.runs()).items)) == (calls, runs + 1)
        one, two = await traces(runtime, "wf_a", "wf_b")
        assert one == two
        await must_be_sound(runtime.log, "wf_b")
        ends = [
            e.data
            for e in await log_of(runtime.log, "wf_b")
            if e.type.startswith("workflow.step_") and e.step == "sub"
        ]
        assert ends[-1].replayed.workflow_id == "wf_a"


@virtual
async def test_always_misses_a_child_run_that_has_no_end():
    desk = Desk(pay=True)
    async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
        await runtime.submit(parent(FORMS["calls"]), {}, workflow_id="wf_a")
        await run_until_idle()
        runs = len((await runtime.log.runs()).items)
        failed = await (await runtime.replay("wf_a", "Always", as_id="wf_b")).rest()
        assert (failed.state, failed.error.code) == ("failed", "replay_miss")
        assert len((await runtime.log.runs()).items) == runs + 1
        desk.gates["pay"].set()


@virtual
async def test_always_refuses_a_child_run_with_another_input():
    desk = Desk()
    async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
        await recorded(runtime, "calls")
        other = await (await runtime.replay("wf_a", "Always", input={"other": 1})).rest()
        assert (other.state, other.error.code) == ("failed", "replay_divergence")
        assert desk.calls == 2


@pytest.mark.parametrize("form", ["calls", "asks"])
@virtual
async def test_mixed_serves_a_child_run_that_completed(form: str):
    desk = Desk()
    async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
        await recorded(runtime, form)
        runs = len((await runtime.log.runs()).items)
        await (await runtime.replay("wf_a", "Mixed", as_id="wf_b")).rest()
        assert len((await runtime.log.runs()).items) == runs + 1


def test_a_replay_that_dies_at_any_commit_starts_no_child_run():
    for dies_at in range(40):
        stage = Lives()
        calls: list[str] = []

        async def pay(name: str, ctx: Any, calls: list[str] = calls) -> Any:
            calls.append(ctx.idempotency_key)
            return {"done": name}

        stage._execute = pay  # type: ignore[method-assign]

        async def record(runtime: Any) -> None:
            await runtime.submit(parent(FORMS["asks"]), {}, workflow_id="wf_a")
            await run_until_idle()
            for asked in await runtime.requests("wf_a"):
                await runtime.decide("wf_a", granted=True, request_id=asked.request_id)
            await run_until_idle()

        async def replay(runtime: Any) -> None:
            await runtime.replay("wf_a", "Always", as_id="wf_b")
            await run_until_idle()

        async def go_on(runtime: Any) -> None:
            await run_until_idle()

        stage.life(record)
        before = len(calls)
        died = stage.life(replay, dies_at=dies_at)
        if died:
            stage.life(go_on)
        assert len(calls) == before
        rows = {row.workflow_id: row for row in asyncio.run(stage.store.runs(limit=50)).items}
        assert len(rows) == (3 if "wf_b" in rows else 2)
        if "wf_b" in rows:
            assert rows["wf_b"].state == "completed"
        if not died:
            return
    raise AssertionError("more than 40 commits")


# -- handlers --------------------------------------------------------------------------------------

CALLED: Counter[str] = Counter()


@executor(id="split")
async def split(text: str, ctx: WorkflowContext[str]) -> None:
    CALLED["split"] += 1
    ctx.set_shared_state("seen", text)
    for word in text.split():
        await ctx.send_message(word)


class Ask(Executor):
    @handler
    async def on_word(self, word: str, ctx: WorkflowContext[str, str]) -> None:
        CALLED["ask"] += 1
        if word == "two":
            await ctx.request_info(word, bool)
        else:
            await ctx.yield_output(word)

    @response_handler
    async def on_answer(self, asked: str, answer: bool, ctx: WorkflowContext[str, str]) -> None:
        CALLED["answer"] += 1
        await ctx.yield_output(f"{asked} {answer} {ctx.get_shared_state('seen')}")


def words() -> Any:
    builder = WorkflowBuilder("words").add_shared("seen", str, default="")
    return builder.set_start_executor(split).add_edge(split, Ask(id="ask")).build()


async def test_always_serves_handlers_from_their_record():
    CALLED.clear()
    workflow = words()
    async with Runtime() as runtime:
        handle = await runtime.submit(workflow, "one two", workflow_id="wf_a")
        (asked,) = (await handle.rest()).pending_requests
        first = await (await runtime.answer("wf_a", asked.request_id, True)).result()
        called = CALLED.copy()
        again = await (await runtime.replay("wf_a", "Always", as_id="wf_b")).result(raise_on_failure=False)
        assert (again.state, again.output) == ("completed", first.output), again.error
        assert called == CALLED
        one, two = await traces(runtime, "wf_a", "wf_b")
        assert one == two
        outputs = [
            [e.data.value for e in await log_of(runtime.log, run) if e.type == "output"]
            for run in ("wf_a", "wf_b")
        ]
        assert outputs[0] == outputs[1] != []
        await (await runtime.replay("wf_a", "Refresh")).rest()
        assert CALLED["split"] == called["split"] + 1


async def test_always_serves_a_handler_that_was_tried_again():
    tries: list[int] = []

    @executor(id="flaky", retry=RetryPolicy(max_attempts=3, backoff=Backoff(initial=0.001)))
    async def flaky(text: str, ctx: WorkflowContext[str, str]) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        await ctx.yield_output(text)

    workflow = WorkflowBuilder("flaky").set_start_executor(flaky).build()
    async with Runtime() as runtime:
        first = await runtime.run(workflow, "x", workflow_id="wf_a")
        again = await (await runtime.replay("wf_a", "Always", as_id="wf_b")).result(raise_on_failure=False)
        assert (again.state, again.output, len(tries)) == ("completed", first.output, 3), again.error
        one, two = await traces(runtime, "wf_a", "wf_b")
        assert one == two
