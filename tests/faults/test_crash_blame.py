"""daemon D4: recovery blames by evidence (page 000 §11.4).

Processes die in a simulated world: every death leaves the store as it was and calls open. One poisonous run
among many is paused alone; innocent ones go on, however often the process is killed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentflow import Runtime, Service, ToolContext, function
from agentflow.events.envelope import decode
from agentflow.runtime.crash_ledger import MAX_COUNT
from tests.faults.simulated.invariants import assert_log_invariants
from tests.faults.simulated.world import LifeLog, World
from tests.integration.support.runs import chain

ROOT = Path(__file__).parents[2]
POISON = "wf_poison"


class Crowd:
    """Innocent runs of two calls of a harmless function, and perhaps a poisonous one, over many lives."""

    def __init__(self, innocents: int, *, poison: bool, pace: float = 0.01, delay: float = 0.0) -> None:
        self.world = World(1)
        self.innocents = innocents
        self.pace = pace
        self.delay = delay
        self.poison = poison
        self.at_once = 500
        self.log: LifeLog
        self.at_work: set[str] = set()
        self.most = 0
        self.starts = 0

    def service(self) -> Service:
        @function(side_effect="read", timeout=1_000_000)
        async def look(ctx: ToolContext) -> dict:
            """Looks."""
            self.at_work.add(ctx.workflow_id)
            self.most = max(self.most, len(self.at_work))
            try:
                if ctx.workflow_id == POISON:
                    await asyncio.sleep(self.delay)
                    self.log.die()
                    await asyncio.Event().wait()
                await asyncio.sleep(self.pace)
            finally:
                self.at_work.discard(ctx.workflow_id)
            return {}

        return Service.of("desk", look, max_concurrency=self.at_once)

    def start(self, killed_after: float | None = None, *, drained: bool = False) -> None:
        """Live one life: the first submits, the others recover. It ends by the poison, by a kill, or when all
        runs rest."""
        self.starts += 1
        self.at_work.clear()
        self.most = 0
        self.world.live(lambda: self._life(killed_after, drained))

    async def _life(self, killed_after: float | None, drained: bool) -> None:
        self.log = log = LifeLog(self.world)
        runtime = self.world.runtime(log, services=[self.service()], max_concurrent_runs=500, grace=0.01)
        await runtime.__aenter__()
        work = asyncio.ensure_future(self._submit(runtime) if self.starts == 1 else self._recover(runtime))
        waits = {work, log.died}
        await asyncio.wait(waits, timeout=killed_after, return_when=asyncio.FIRST_COMPLETED)
        if log.dead:
            return
        if work.done():
            work.result()
        if drained:
            work.cancel()
            await runtime.__aexit__(None, None, None)
        else:
            log.die()

    async def _submit(self, runtime: Runtime) -> None:
        ids = [f"wf_{i}" for i in range(self.innocents)]
        if self.poison:
            ids.insert(len(ids) // 2, POISON)
        graph = runtime.load(chain("look", "look"))
        await asyncio.gather(*(runtime.submit(graph, {}, workflow_id=run) for run in ids))
        await asyncio.sleep(10**6)

    async def _recover(self, runtime: Runtime) -> None:
        for run in await runtime.recover():
            await (await runtime.attach(run)).result()

    def states(self) -> dict[str, str]:
        """The state of every run."""

        async def read() -> dict[str, str]:
            rows = (await self.world.store.runs(limit=500)).items
            return {row.workflow_id: row.state for row in rows}

        return asyncio.run(read())

    def events(self, run: str) -> list:
        async def read() -> list:
            return [decode(row.body) for row in await self.world.store.read(run, 0, 10_000)]

        return asyncio.run(read())


@pytest.mark.parametrize(
    "pace",
    [
        pytest.param(0.01, id="quick calls"),
        pytest.param(30.0, id="calls longer than a trial", marks=pytest.mark.slow),
    ],
)
def test_one_poisonous_run_among_200_is_paused_alone_by_the_sixth_start(pace):
    crowd = Crowd(200, poison=True, pace=pace)
    crowd.at_once = 8
    while crowd.states().get(POISON) != "paused":
        assert crowd.starts < 6, "the poisonous run is still at work after the sixth start"
        crowd.start()
        assert crowd.starts > 1 or POISON in crowd.states()
    states = crowd.states()
    paused = [run for run, state in states.items() if state == "paused"]
    assert paused == [POISON]
    last = crowd.events(POISON)[-1].data
    assert (last.reason, last.by) == ("recovery_limit", "runtime")
    assert "/t0#0" in last.detail
    crowd.start()
    assert set(crowd.states().values()) == {"completed", "paused"}
    for run in states:
        assert_log_invariants(crowd.events(run), ended=run != POISON)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))])
@pytest.mark.parametrize(
    "pace",
    [
        pytest.param(0.3, id="calls of 0.3 s", marks=pytest.mark.slow),
        pytest.param(3.0, id="calls of 3 s"),
    ],
)
def test_200_innocent_runs_go_on_through_30_kills(seed, pace):
    rng = random.Random(seed)
    crowd = Crowd(200, poison=False, pace=pace)
    crowd.start(killed_after=0.2)
    assert list(crowd.states().values()) == ["running"] * 200
    for _ in range(29):
        crowd.start(killed_after=rng.choice((0.001, 0.01, 0.05, 0.3, 2.0)))
        assert "paused" not in crowd.states().values()
    assert crowd.starts == 30
    crowd.start()
    assert set(crowd.states().values()) == {"completed"}
    for run in crowd.states():
        assert_log_invariants(crowd.events(run))


@pytest.mark.slow
@pytest.mark.parametrize("innocents", [10, 200])
@pytest.mark.timeout(300)
def test_real_processes_that_kill_themselves(innocents, tmp_path):
    """SIGKILL from inside, six starts of a real process on SQLite; the sixth pauses the poisonous run."""
    command = [sys.executable, "-m", "tests.faults.killed.crowd", str(tmp_path / "runs.db"), str(innocents)]
    codes, output = [], ""
    for _ in range(6):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
        codes.append(done.returncode)
        output = done.stdout
    assert codes == [-signal.SIGKILL] * 5 + [0], done.stderr
    assert output == f"state {POISON} paused\n"  # all others came to their ends before
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db:
        states = dict(db.execute("SELECT state, count(*) FROM run GROUP BY state"))
    assert states == {"completed": innocents, "paused": 1}


def test_after_one_crash_all_are_taken_up_at_once_and_after_the_second_one_at_a_time():
    crowd = Crowd(20, poison=False, pace=0.5)
    crowd.start(killed_after=0.3)
    crowd.start(killed_after=0.3)
    assert crowd.most == 20
    crowd.start(killed_after=0.3)
    assert crowd.most == 1


def test_a_call_of_minutes_on_trial_lets_the_next_begin_after_a_second():
    crowd = Crowd(20, poison=False, pace=300.0)
    for _ in range(2):
        crowd.start(killed_after=5.0)
    began = crowd.world.elapsed
    crowd.start()
    assert crowd.most == 20
    assert crowd.world.elapsed - began < 20 * 1.1 + 2 * 300 + 5
    assert set(crowd.states().values()) == {"completed"}


def test_a_drain_is_no_crash():
    crowd = Crowd(20, poison=False, pace=10.0)
    crowd.start(killed_after=0.5)
    crowd.start(killed_after=0.5)
    crowd.start(killed_after=0.5, drained=True)
    for _ in range(4):
        crowd.start(killed_after=0.5, drained=True)
        assert crowd.most == 20
    crowd.start(killed_after=0.5)
    crowd.start(killed_after=0.5)
    assert crowd.most == 20  # the first crash of a new row
    crowd.start(killed_after=0.5)
    assert crowd.most == 1


def test_a_life_of_ten_minutes_after_its_last_trial_ends_the_row():
    crowd = Crowd(3, poison=False, pace=2_000.0)
    crowd.start(killed_after=1.0)
    crowd.start(killed_after=1.0)
    crowd.start(killed_after=700.0)
    crowd.start(killed_after=1.0)
    assert crowd.most == 3


def test_a_slow_poison_is_found_by_a_longer_trial():
    """It does harm 6 s after its take-up; trials last 1, 2, 4, 8 s."""
    crowd = Crowd(20, poison=True, delay=6.0, pace=60.0)
    while crowd.states().get(POISON) != "paused":
        assert crowd.starts < 12
        crowd.start()
    assert [run for run, state in crowd.states().items() if state == "paused"] == [POISON]


def test_a_resumed_run_is_given_a_new_chance():
    crowd = Crowd(2, poison=True)
    while crowd.states().get(POISON) != "paused":
        crowd.start()
    crowd.delay = 10**6
    crowd.poison = False

    async def resume(runtime: Runtime) -> None:
        await runtime.resume(POISON)
        await asyncio.sleep(1)

    crowd._recover = resume  # type: ignore[method-assign]
    crowd.start()
    del crowd.__dict__["_recover"]
    crowd.start(killed_after=5.0)
    assert crowd.states()[POISON] == "running"
    assert MAX_COUNT == 3


def test_a_run_that_cannot_be_taken_up_holds_up_no_other_and_is_not_on_trial_for_ever():
    crowd = Crowd(5, poison=False, pace=1.0)
    crowd.start(killed_after=0.5)
    crowd.start(killed_after=0.5)
    graph = crowd.world.store._definitions.popitem()  # the graph of all of them

    async def taken_up(runtime: Runtime) -> None:
        await runtime.recover()
        await asyncio.sleep(100)
        crowd.world.store._definitions.update([graph])

    crowd._recover = taken_up  # type: ignore[method-assign]
    crowd.start()
    saved = crowd.world.store._cursors["recovery"]
    assert '"crashes":2' in saved
    assert '"trial":null' in saved
    del crowd.__dict__["_recover"]
    crowd.start()
    assert set(crowd.states().values()) == {"completed"}
