"""Whole-run simulation: a real Runtime on a virtual clock, with crashes, refusals of the store, clock steps,
and commands, all from a seed.

    make simulate SEEDS=10000
    python -m tests.faults.simulate --seeds 100 [--from 0] [--jobs 2]
    python -m tests.faults.simulate --seed 4711

In each seed a few random workflows live through several processes. The last one has no faults and brings
every run to its end. Then every log must be legal and terminal, no recorded effect may have been executed
again, no unsafe call may have been executed twice but by a person's answer, and no timer may have fired
without need.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentflow import Runtime
from agentflow.errors import AgentflowError
from agentflow.events.envelope import Event, decode
from agentflow.runtime.run_handle import RunHandle
from tests.faults.simulated.invariants import TERMINAL, assert_log_invariants
from tests.faults.simulated.workflows import Outside, random_workflow
from tests.faults.simulated.world import LifeLog, World, counting_wakes, intercepting

RESTING = ("completed", "failed", "cancelled", "paused", "waiting")
_CHUNK = 100
_RAISED = {"max_model_calls": 1_000}


class Simulation:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = self.world.rng
        self.outside = Outside(self.world)
        self.answers: Counter[str] = Counter()  # `retry` by call: a person asked for another execution
        self.told: list[str] = []
        self.closing = False
        self.commands: list[asyncio.Future[None]] = []  # of this life, that nobody waits for yet
        self.events = 0
        self.runs = 0

    def run(self) -> None:
        """Live all lives, then judge. Raises AssertionError."""
        crashes = self.rng.choice((0, 1, 1, 2, 3, 5))
        with intercepting(counting_wakes(self.world)):
            for life in range(crashes + 1):
                self.world.live(lambda last=life == crashes: self._life(last))
        asyncio.run(self._judge())

    # -- one life -------------------------------------------------------------------------------

    async def _life(self, last: bool) -> None:
        rng = self.rng
        dies_at = None if last else rng.randrange(1, 40)
        log = LifeLog(self.world, dies_at=dies_at, acknowledges=rng.random() < 0.5)
        runtime = self.world.runtime(
            log,
            models=[self.outside.model()],
            services=[self.outside.service()],
            max_concurrent_runs=rng.choice((1, 2, 64)),
            grace=rng.choice((0.01, 5.0)),
        )
        await runtime.__aenter__()
        self.commands.clear()
        driver = asyncio.ensure_future(self._drive(runtime, log, last))
        await asyncio.wait({driver, log.died}, return_when=asyncio.FIRST_COMPLETED)
        if driver.done():
            driver.result()
            if not log.dead:
                self.closing = True
                await runtime.__aexit__(None, None, None)

    async def _drive(self, runtime: Runtime, log: LifeLog, last: bool) -> None:
        if self.world.lives:
            await runtime.recover()
        for _ in range(self.rng.randint(0 if self.runs else 1, 2)):
            await self._submit(runtime)
        for _ in range(self.rng.randint(0, 12)):
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01, 0.3, 2.0, 30.0)))
            await self._act(runtime, log)
        if last:
            log.refuses_until = -1.0
            self.outside.calm = True
            await asyncio.gather(*self.commands)
            await self._bring_to_an_end(runtime)
        elif self.rng.random() < 0.7:
            await asyncio.sleep(self.rng.choice((1.0, 20.0)))
            log.die()
            await asyncio.sleep(3600)

    async def _submit(self, runtime: Runtime) -> None:
        workflow, value, options = random_workflow(self.rng)
        run_id = f"wf_{self.runs}"
        self.runs += 1
        with suppress(AgentflowError):
            handle = await runtime.submit(workflow, value, workflow_id=run_id, options=options)
            if self.rng.random() < 0.5:
                self._watch(handle)

    def _watch(self, handle: RunHandle) -> None:
        async def resting() -> None:
            with suppress(AgentflowError):
                state = (await handle.rest()).state
                if state not in RESTING and not self.closing:
                    self.outside.problems.append(f"result() returned a run that is {state}")

        self.pending = asyncio.ensure_future(resting())

    async def _rows(self) -> list[Any]:
        return (await self.world.store.runs(limit=500, order="asc")).items

    async def _act(self, runtime: Runtime, log: LifeLog) -> None:
        rng = self.rng
        rows = await self._rows()
        what = rng.choice(
            (
                "step",
                "refuse",
                "pause",
                "resume",
                "cancel",
                "answer",
                "answer",
                "retry",
                "fork",
                "signal",
                "wait",
            )
        )
        self.told.append(what)
        if what == "step":
            self.world.step += rng.choice((-3_600_000_000, -60_000_000, 60_000_000, 3_600_000_000))
        elif what == "refuse":
            log.refuses_until = asyncio.get_running_loop().time() + rng.choice((0.1, 3.0))
        elif rows:
            run = rng.choice(rows).workflow_id
            work = self._command(runtime, what, run)
            if rng.random() < 0.5:
                await work
            else:
                self.commands.append(asyncio.ensure_future(work))

    async def _command(self, runtime: Runtime, what: str, run: str) -> None:
        rng = self.rng
        with suppress(AgentflowError):
            if what == "pause":
                await runtime.pause(run, in_flight=rng.choice(("drain", "suspend")))
            elif what == "resume":
                self._watch(await runtime.resume(run))
            elif what == "cancel" and rng.random() < 0.4:
                await runtime.cancel(run, mode=rng.choice(("soft", "hard")), grace=rng.choice((0.0, 1.0)))
            elif what == "answer":
                await self._answer(runtime, run)
            elif what == "retry":
                await runtime.retry(run, "s0", rng.choice(("retry", "skip", "fail")))
            elif what == "fork" and self.runs < 6:
                self.runs += 1
                await runtime.fork(run, as_id=f"wf_{self.runs - 1}")
            elif what == "signal":
                await runtime.signal(run, "go")

    async def _answer(self, runtime: Runtime, run: str) -> None:
        for request in await runtime.requests(run):
            if request.kind != "input":
                granted = self.rng.random() < 0.7
                await runtime.decide(run, request_id=request.request_id, granted=granted)
                continue
            value = self._value(request)
            await runtime.answer(run, request.request_id, value)

    def _value(self, request: Any) -> dict[str, Any]:
        properties = request.response_schema["properties"]
        choice = self.rng.choice(properties["choice"]["enum"])
        call_id = request.subject.get("tool_call_id")
        if choice == "retry" and call_id is not None:
            self.answers[call_id] += 1
        if choice == "raise":
            return {"choice": "raise", "limit": 1_000}
        return {"choice": choice}

    async def _bring_to_an_end(self, runtime: Runtime) -> None:
        for _ in range(300):
            rows = [row for row in await self._rows() if f"workflow.{row.state}" not in TERMINAL]
            if not rows:
                return
            for row in rows:
                with suppress(AgentflowError):
                    if row.state == "paused":
                        await self._resume(runtime, row.workflow_id)
                    else:
                        await self._answer(runtime, row.workflow_id)
            await asyncio.sleep(10)
        left = {row.workflow_id: row.state for row in await self._rows()}
        raise AssertionError(f"runs do not end: {left}")

    async def _resume(self, runtime: Runtime, run: str) -> None:
        state = await runtime.fold(run)
        budget = _RAISED if state.pause == "budget" else None
        if state.held_steps:
            await runtime.retry(run, next(iter(state.held_steps)), self.rng.choice(("retry", "skip", "fail")))
        await runtime.resume(run, budget=budget)

    # -- the judgement --------------------------------------------------------------------------

    async def _judge(self) -> None:
        store = self.world.store
        for row in await self._rows():
            events = [decode(e.body) for e in await store.read(row.workflow_id, 0, 1_000_000)]
            self.events += len(events)
            base: list[Event[Any]] = []
            saved: Any = events[1].data if len(events) > 1 else None
            if getattr(saved, "kind", None) == "fork_base":
                body = await store.get_blob(saved.ref)
                assert body is not None
                base = [decode(line) for line in body.split(b"\n") if line]
            try:
                assert_log_invariants(events, base)
            except AssertionError as error:
                raise AssertionError(f"{row.workflow_id}: {error}") from None
            wakes, most = self.world.wakes[row.workflow_id], 20 + 2 * len(events)
            assert wakes <= most, f"{row.workflow_id}: {wakes} wake-ups for {len(events)} events"
        assert not self.outside.problems, self.outside.problems
        for key in self.outside.unsafe:
            asked = self.answers[key.rpartition("/")[2]]
            times = self.outside.executions[key]
            assert times <= 1 + asked, (
                f"{key} was executed {times} times, a person asked {asked} times for it"
            )


def simulate(seed: int) -> Simulation:
    """Run one seed. Raises what it finds."""
    simulation = Simulation(seed)
    simulation.run()
    return simulation


def simulate_all(seeds: Sequence[int], *, loud: bool = False) -> tuple[Counter[str], list[str]]:
    """Run these seeds in this process; what happened, and how each that failed can be repeated."""
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # its life ended before it began
    os.environ["AGENTFLOW_MODEL"] = "scripted:m"
    totals, failures = Counter[str](), list[str]()
    for seed in seeds:
        try:
            done = simulate(seed)
        except Exception as error:
            if loud:
                traceback.print_exc()
            failures.append(
                f"seed {seed} fails: {type(error).__name__}: {str(error)[:300]}\n"
                f"repeat it: python -m tests.faults.simulate --seed {seed}"
            )
            continue
        totals["lives"] += done.world.lives
        totals["runs"] += done.runs
        totals["wake-ups"] += done.world.wakes.total()
        totals["events"] += done.events
    return totals, failures


def main() -> int:
    """Run the seeds that the arguments name; the exit code says whether all were sound."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.simulate")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one, with its traceback")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.seed is not None:
        totals, failures = simulate_all([given.seed], loud=True)
        print("\n".join(failures) or f"seed {given.seed} is sound: {dict(totals)}")
        return bool(failures)
    began = time.monotonic()
    totals, failures = Counter[str](), list[str]()
    seeds = range(given.first, given.first + given.seeds)
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    # A process for each chunk: abandoned event loops are not given back by the collector in full.
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for found, failed in pool.imap_unordered(simulate_all, chunks):
            totals += found
            failures += failed
            for line in failed:
                print(line, flush=True)
    seconds = time.monotonic() - began
    print(f"{given.seeds} seeds, {len(failures)} failed, {dict(totals)}, {seconds:.1f} s")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
