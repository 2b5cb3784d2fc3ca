"""Retention on runs that were really run: what goes, what stays readable, what a second store shows."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest

from agentflow import Runtime
from agentflow.definition.ir import decode_ir
from agentflow.errors import OffsetTrimmed, RunGone, Unsupported
from agentflow.events.backup import verify_store
from agentflow.events.open import open_log
from agentflow.events.retention import RetentionPolicy
from agentflow.records.read_model import ReadModel
from agentflow.records.runs import StepNotFound
from agentflow.records.trimmed import kept_record
from agentflow.runtime.retention import collect, retention_plan
from agentflow.testing import ScriptedModel
from tests.benchmarks.events.many_runs import key_of, make_store

HOUR = 3_600_000_000


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@pytest.fixture(params=["memory", "sqlite", "file"])
async def log(request, tmp_path):
    log = open_log("memory:" if request.param == "memory" else f"{request.param}:{tmp_path}/log")
    yield log
    await log.close()


AGENTS = {"agents": [{"name": f"agent {n}", "system_prompt": f"prompt {n}"} for n in range(3)]}


async def run_three(log):
    """Three runs of one workflow, in the order in which they ended."""
    model = ScriptedModel(lambda request: request.messages[-1].content + "!")
    async with Runtime(log, models=[model]) as runtime:
        return [(await runtime.run(AGENTS, f"go {n}")).workflow_id for n in range(3)]


def now():
    return time.time_ns() // 1000


def newest_only(limit, **more):
    return RetentionPolicy(mode="size", max_bytes=limit, **more)


async def test_nothing_goes_by_default_and_a_plan_changes_nothing(log):
    ids = await run_three(log)
    collected = await collect(log, RetentionPolicy(), now())
    assert (collected.done, collected.plan.runs) == ([], 3)
    size = (await log.run(ids[2])).bytes
    plan = await retention_plan(log, newest_only(size), now())
    assert [r.workflow_id for r in plan.removals] == ids[:2]
    assert len((await log.runs()).items) == 3


async def test_the_oldest_run_goes_and_its_graph_with_the_last_run_that_has_it(log):
    ids = await run_three(log)
    views = ReadModel(log)
    begin = await views.definition(ids[0])
    size = (await log.run(ids[2])).bytes
    collected = await collect(log, newest_only(size), now() + 2 * HOUR)
    assert [r.workflow_id for r in collected.done] == ids[:2]
    for gone in ids[:2]:
        with pytest.raises(RunGone):
            await views.record(gone)
    assert (await ReadModel(log).record(ids[2])).output == "go 2!!!"
    assert decode_ir(await log.get_definition(begin.ir_hash)) == begin.ir
    collected = await collect(log, newest_only(0), now() + 2 * HOUR)
    assert collected.swept.definitions == 1
    assert await log.get_definition(begin.ir_hash) is None


async def test_a_policy_that_trims_is_refused_by_a_store_that_does_not(tmp_path):
    log = open_log(f"file:{tmp_path}/log")
    ids = await run_three(log)
    before = {run: await log.read(run) for run in ids}
    for call in (collect, retention_plan):
        with pytest.raises(Unsupported, match="trim_to_events = 2") as caught:
            await call(log, newest_only(0, trim_to_events=2), now() + 2 * HOUR)
        assert "sqlite:" in caught.value.hint
    assert {run: await log.read(run) for run in ids} == before
    assert await kept_record(log, ids[0]) is None
    await log.close()


@pytest.mark.parametrize("log", ["memory", "sqlite"], indirect=True)
async def test_a_trimmed_run_still_tells_its_record_its_state_and_its_steps(log):
    ids = await run_three(log)
    views = ReadModel(log)
    before = await views.record(ids[0])
    state, graph = await views.state(ids[0]), await views.graph(ids[0])
    steps = {step: await views.step(ids[0], step) for step in before.steps}
    collected = await collect(log, newest_only(0, trim_to_events=2), now() + 2 * HOUR)
    assert [(r.action, r.workflow_id) for r in collected.done] == [("trim", run) for run in ids]
    row = await log.run(ids[0])
    assert row.last_offset - row.earliest_offset == 1
    views = ReadModel(log)
    record = await views.record(ids[0])
    assert record.earliest_offset == row.earliest_offset
    assert (record.output, record.steps, record.usage) == (before.output, before.steps, before.usage)
    assert await views.state(ids[0]) == await views.state(ids[0], state.offset) == state
    assert {step: await views.step(ids[0], step) for step in steps} == steps
    with pytest.raises(StepNotFound):
        await views.step(ids[0], "no_such_step")
    assert await views.graph(ids[0]) == graph
    for what_only_the_events_tell in (
        views.state(ids[0], 2),
        views.history(ids[0]),
        views.definition(ids[0]),
    ):
        with pytest.raises(OffsetTrimmed):
            await what_only_the_events_tell
    async with Runtime(log) as runtime:
        assert await runtime.record(ids[0]) == record
        assert (await runtime.result(ids[0])).output == before.output
        assert await runtime.graph(ids[0]) == graph
        assert [r.workflow_id for r in await runtime.list()] == ids[::-1]
        assert [e.offset async for e in runtime.events(ids[0])] == [row.last_offset - 1, row.last_offset]
    again = await collect(log, newest_only(0, trim_to_events=2), now() + 2 * HOUR)
    assert again.done == []
    again = await collect(log, newest_only(0, trim_to_events=1), now() + 2 * HOUR)
    assert len(again.done) == 3
    assert (await kept_record(log, ids[0])).output == before.output


async def test_what_was_not_trimmed_has_nothing_kept(log):
    ids = await run_three(log)
    assert await kept_record(log, ids[0]) is None


async def test_retention_of_many_runs_names_some_and_removes_all(tmp_path):
    """A page at a time: more runs than one page of rows, one step of the sweep, and the list of a report."""
    path = tmp_path / "runs.db"
    await asyncio.to_thread(make_store, path, 3_000)
    log = open_log(f"sqlite:{path}")
    policy = RetentionPolicy(mode="size", max_bytes=600 * 500)
    plan = await retention_plan(log, policy, now())
    assert (plan.removal_count, len(plan.removals), plan.runs) == (2_501, 1_000, 3_001)
    assert plan.bytes_after <= 600 * 500 < plan.bytes_after + 601
    done = await collect(log, policy, now())
    assert (done.done_count, len(done.done), done.skipped) == (2_501, 1_000, [])
    left = [row.workflow_id for row in (await log.runs(limit=1_000, order="asc")).items]
    assert left == [key_of(number) for number in range(2_500, 3_000)]
    assert done.swept.bytes > 0
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*), (SELECT count(*) FROM doomed) FROM batch").fetchone() == (500, 0)
    assert (await verify_store(f"sqlite:{path}")).sound
