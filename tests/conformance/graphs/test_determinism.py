"""§6: whatever the latencies, and in whatever order handlers end, a superstep graph comes to the same.

Actors are served in an order drawn from a seed, and each handler takes a time drawn from it, before its work
and behind it; the clock is virtual.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from actors.testing import run as on_virtual_clock
from agentflow import reducers
from agentflow.runtime.executor_actor import ExecutorActor
from tests.conformance.graphs.crashes import Outcome, run_whole, runs_again
from tests.conformance.graphs.rows import Run, built, gathers, gives, node
from tests.conformance.graphs.test_rows import ROWS, Row

_ROWS = [pytest.param(row, id=f"{row.rule}: {row.title}") for row in ROWS if "superstep" in row.policies]


def outcome_with(monkeypatch: pytest.MonkeyPatch, run: Run, seed: int | None) -> tuple[Outcome, list[str]]:
    """Run with the latencies of a seed; return what came of it, and the order in which nodes ended."""
    attempt, random = ExecutorActor._attempt, Random(seed)

    async def late(self: Any, message: Any) -> Any:
        if seed is not None:
            await asyncio.sleep(random.random())
        staged = await attempt(self, message)
        if seed is not None:
            await asyncio.sleep(random.random())
        return staged

    async def main() -> tuple[Outcome, list[str]]:
        outcome, _, events = await run_whole(run)
        return outcome, [e.data.activation for e in events if e.type == "workflow.step_completed"]

    with monkeypatch.context() as patch:
        patch.setattr(ExecutorActor, "_attempt", late)
        return on_virtual_clock(main(), seed=seed)


@pytest.mark.parametrize("row", _ROWS)
def test_a_row_comes_to_the_same_whatever_the_latencies(row: Row, monkeypatch: pytest.MonkeyPatch):
    run = row.make("superstep")
    wanted, _ = outcome_with(monkeypatch, run, None)
    seed = len(row.title)
    assert outcome_with(monkeypatch, run, seed)[0] == wanted, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("row", _ROWS)
def test_a_row_comes_to_the_same_with_many_seeds(row: Row, monkeypatch: pytest.MonkeyPatch):
    run = row.make("superstep")
    wanted, _ = outcome_with(monkeypatch, run, None)
    for seed in range(30):
        assert outcome_with(monkeypatch, run, seed)[0] == wanted, f"seed {seed}"


def layers(width: int, depth: int) -> Run:
    """Layers of nodes, each joined to all of the next; all write shared and private state, and give out."""

    def cell(layer: int, column: int) -> Any:
        async def work(value: Any, ctx: Any) -> None:
            seen = sorted(map(str, ctx.get_shared_state("seen", [])))
            ctx.set_shared_state("seen", f"{layer}.{column}")
            ctx.set_state("n", ctx.get_state("n", 0) + 1)
            await ctx.yield_output([ctx.activation, len(seen), value])
            await ctx.send_message(value + column)

        return node(f"n{layer}_{column}", work, takes=(int,), sends=(int,), gives=(list,))

    flow = built("superstep", *(cell(0, i) for i in range(width)))
    flow.add_shared("seen", list, reducer=reducers.append)
    for layer in range(1, depth):
        below = [cell(layer, i) for i in range(width)]
        for column in range(width):
            flow.add_fan_out_edges(f"n{layer - 1}_{column}", below)
    flow.add_fan_in_edges([f"n{depth - 1}_{i}" for i in range(width)], gathers("j"))
    return Run(workflow=flow.build(), message=0)


def test_messages_state_and_outputs_are_those_of_the_whole_whatever_ends_first(
    monkeypatch: pytest.MonkeyPatch,
):
    run = layers(3, 3)
    wanted, _ = outcome_with(monkeypatch, run, None)
    assert (wanted.state, len(wanted.outputs)) == ("completed", 3 + 9 + 27 + 9)
    orders: set[tuple[str, ...]] = set()
    for seed in range(4):
        found, order = outcome_with(monkeypatch, run, seed)
        assert found == wanted, f"seed {seed}"
        orders.add(tuple(order))
    assert len(orders) == 4, "the seeds do not shuffle anything"


@pytest.mark.slow
def test_a_wide_graph_comes_to_the_same_whatever_the_latencies(monkeypatch: pytest.MonkeyPatch):
    run = layers(4, 4)
    wanted, _ = outcome_with(monkeypatch, run, None)
    for seed in range(100):
        assert outcome_with(monkeypatch, run, seed)[0] == wanted, f"seed {seed}"


@pytest.mark.slow
def test_a_wide_graph_goes_on_from_behind_every_event():
    async def main() -> None:
        run = layers(3, 3)
        outcome, rows, _ = await run_whole(run)
        await runs_again(run, outcome, rows, range(1, len(rows)))

    on_virtual_clock(main())


def test_the_same_log_gives_the_same_state_and_the_same_continuation():
    """Folded twice, and taken up twice from each of its events, a log gives equal events."""

    async def continued(run: Run, rows: Any, upto: int) -> list[Any]:
        from agentflow import Runtime
        from tests.conformance.graphs.crashes import RUN
        from tests.integration.executors.crashes import cut_log, drive
        from tests.integration.support.runs import log_of
        from tests.integration.virtual import LoopClock

        clock = LoopClock()
        cut = await cut_log(RUN, run.workflow, list(rows[:upto]))  # type: ignore[arg-type]
        clock.step = rows[upto - 1].ts - clock.now()
        async with Runtime(cut, clock=clock) as runtime:
            runtime.register(run.workflow)
            await runtime.recover()
            await drive(runtime, RUN)
            return [(e.type, e.data) for e in await log_of(runtime, RUN)]

    async def main() -> None:
        flow = built("superstep", gives("a"), gives("b"))
        flow.add_shared("k", int, default=0)
        run = Run(workflow=flow.build(), message=1)
        _, rows, _ = await run_whole(run)
        for upto in range(1, len(rows)):
            assert await continued(run, rows, upto) == await continued(run, rows, upto)

    on_virtual_clock(main())
