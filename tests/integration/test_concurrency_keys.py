"""Runs that share a `concurrency_key`: one is at work at a time, also after a restart (page 002 §8)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentflow import ConcurrencyRejected, Runtime, Workflow, WorkflowBuilder, WorkflowContext, executor
from agentflow.errors import InvalidOptions, RunNotFound, RunTerminal
from agentflow.events.memory import MemoryLog
from agentflow.runtime import concurrency_keys
from agentflow.runtime.concurrency_keys import ConcurrencyKeys
from tests.conformance.graphs.rows import asks, built
from tests.integration.support.runs import must_be_sound
from tests.unit.cli.support import Sandbox
from tests.unit.server.kit import ECHO, serving


class Work:
    """A workflow whose one handler says that it is at work, and waits until its run may end."""

    def __init__(self) -> None:
        self.at_work: set[str] = set()
        self.order: list[str] = []
        self.most = 0
        self.gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()

        @executor(id="work")
        async def work(value: str, ctx: WorkflowContext[Any, str]) -> None:
            async with self._changed:
                self.at_work.add(ctx.workflow_id)
                self.order.append(ctx.workflow_id)
                self.most = max(self.most, len(self.at_work))
                self._changed.notify_all()
            try:
                await self.gate(ctx.workflow_id).wait()
            finally:
                self.at_work.discard(ctx.workflow_id)
            await ctx.yield_output(value)

        self.workflow: Workflow = WorkflowBuilder("keyed").set_start_executor(work).build()

    def gate(self, run_id: str) -> asyncio.Event:
        return self.gates.setdefault(run_id, asyncio.Event())

    async def until(self, run_id: str) -> None:
        """Wait until the handler of a run is at work."""
        async with self._changed:
            await self._changed.wait_for(lambda: run_id in self.at_work)

    async def begin(self, runtime: Runtime, name: str, key: str | None = "k", **options: Any) -> Any:
        given = {"concurrency_key": key, **options} if key is not None else options
        return await runtime.submit(self.workflow, name, workflow_id=f"wf_{name}", options=given)


async def states(runtime: Runtime) -> dict[str, str]:
    return {row.workflow_id: row.state for row in await runtime.rows()}


async def test_the_runs_of_a_key_are_at_work_one_after_another_in_their_order():
    work = Work()
    async with Runtime(MemoryLog()) as runtime:
        runs = [await work.begin(runtime, name) for name in "abc"]
        other = await work.begin(runtime, "other", key="another")
        free = await work.begin(runtime, "free", key=None)
        for run in (other, free, runs[0]):
            await work.until(run.workflow_id)
        found = await states(runtime)
        assert [found[f"wf_{name}"] for name in "bc"] == ["pending", "pending"]
        for run in (other, free):
            work.gate(run.workflow_id).set()
            assert (await run.result()).state == "completed"
        work.most = 0
        work.order.clear()
        for run in runs:
            await work.until(run.workflow_id)
            work.gate(run.workflow_id).set()
            assert (await run.result()).get_outputs() == [run.workflow_id.removeprefix("wf_")]
        assert work.order == ["wf_b", "wf_c"]
        assert work.most == 1
        for run in runs:
            await must_be_sound(runtime.log, run.workflow_id)


async def test_a_rejected_run_leaves_nothing_and_is_taken_when_the_key_is_free():
    work = Work()
    async with Runtime(MemoryLog()) as runtime:
        first = await work.begin(runtime, "a")
        await work.until("wf_a")
        with pytest.raises(ConcurrencyRejected) as refused:
            await work.begin(runtime, "b", on_conflict="reject")
        assert refused.value.code == "concurrency_rejected"
        assert refused.value.details == {"concurrency_key": "k", "workflow_id": "wf_a", "state": "running"}
        with pytest.raises(RunNotFound):
            await runtime.record("wf_b")
        work.gate("wf_a").set()
        await first.result()
        second = await work.begin(runtime, "b", on_conflict="reject")
        repeated = await work.begin(runtime, "b", on_conflict="reject")
        assert (repeated.workflow_id, repeated.created) == ("wf_b", False), "a repeat is no conflict"
        work.gate("wf_b").set()
        assert (await second.result()).state == "completed"


async def test_a_run_cancels_all_before_it():
    work = Work()
    async with Runtime(MemoryLog()) as runtime:
        olds = [await work.begin(runtime, name) for name in "ab"]
        await work.until("wf_a")
        new = await work.begin(runtime, "c", on_conflict="cancel_previous")
        work.gate("wf_c").set()
        assert (await new.result()).state == "completed"
        for old in olds:
            result = await old.result(raise_on_failure=False)
            assert result.state == "cancelled"
            assert "wf_c replaces it" in str(result.events[-1].data)
            await must_be_sound(runtime.log, old.workflow_id)
        assert work.order == ["wf_a", "wf_c"], "the run that queued was never at work"
        assert work.most == 1


async def test_a_run_that_waits_or_is_paused_holds_its_key():
    flow = built("eager", asks("a")).build()
    async with Runtime(MemoryLog()) as runtime:
        first = await runtime.submit(flow, 1, options={"concurrency_key": "k"})
        question = (await first.result()).pending_requests[0]
        second = await runtime.submit(flow, 2, options={"concurrency_key": "k"})
        await first.pause()
        with pytest.raises(ConcurrencyRejected):
            await runtime.submit(flow, 3, options={"concurrency_key": "k", "on_conflict": "reject"})
        assert (await second.record()).state == "pending"
        await first.resume()
        await first.answer(question.request_id, 5)
        assert (await first.result()).state == "completed"
        assert (await second.result()).state == "waiting"


async def test_commands_reach_a_run_that_waits_for_its_key():
    work = Work()
    async with Runtime(MemoryLog()) as runtime:
        a, b, c = [await work.begin(runtime, name) for name in "abc"]
        await work.until("wf_a")
        await b.pause()
        await b.resume()
        assert (await b.record()).state in ("pending", "running")
        assert "wf_b" not in work.at_work
        await c.cancel(reason="not needed")
        assert (await c.result(raise_on_failure=False)).state == "cancelled"
        with pytest.raises(RunTerminal):
            await c.pause()
        work.gate("wf_a").set()
        await a.result()
        await work.until("wf_b")
        work.gate("wf_b").set()
        assert (await b.result()).state == "completed"
        assert work.most == 1
        for run in (a, b, c):
            await must_be_sound(runtime.log, run.workflow_id)


async def test_a_run_that_a_command_lets_go_on_before_its_turn_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
):
    work, look, may_look = Work(), ConcurrencyKeys._look, asyncio.Event()

    async def look_later(keys: ConcurrencyKeys, key: str) -> None:
        await may_look.wait()
        await look(keys, key)

    may_look.set()
    monkeypatch.setattr(ConcurrencyKeys, "_look", look_later)
    async with Runtime(MemoryLog()) as runtime, asyncio.timeout(10):
        first, second = [await work.begin(runtime, name) for name in "ab"]
        await work.until("wf_a")
        may_look.clear()
        waiting = asyncio.create_task(second.result())
        work.gate("wf_a").set()
        await first.result()
        work.gate("wf_b").set()
        await runtime.resume("wf_b")
        assert [e.type async for e in runtime.events("wf_b")][-1] == "workflow.completed"
        may_look.set()
        assert (await waiting).state == "completed"
        assert (await second.result()).state == "completed"


async def test_a_paused_run_at_its_turn_holds_the_key_until_it_is_resumed():
    work = Work()
    async with Runtime(MemoryLog()) as runtime:
        a, b, c = [await work.begin(runtime, name) for name in "abc"]
        await work.until("wf_a")
        await b.pause()
        work.gate("wf_a").set()
        await a.result()
        assert (await states(runtime))["wf_c"] == "pending"
        await b.resume()
        await work.until("wf_b")
        for run in (b, c):
            work.gate(run.workflow_id).set()
            assert (await run.result()).state == "completed"
        assert work.order == ["wf_a", "wf_b", "wf_c"]


@pytest.mark.parametrize("recovers", ["all", "the one that queued"])
async def test_after_a_restart_the_order_is_the_same(recovers: str, tmp_path: Path):
    url, work = f"sqlite:{tmp_path / 'runs.db'}", Work()
    async with Runtime(url) as runtime:
        for name in "ab":
            await work.begin(runtime, name)
        await work.until("wf_a")
    work.order.clear()
    async with Runtime(url) as runtime:
        runtime.register(work.workflow)
        if recovers == "all":
            await runtime.recover()
        else:
            await (await runtime.attach("wf_b")).resume()
            assert (await states(runtime))["wf_b"] == "pending"
            await (await runtime.attach("wf_a")).resume()
        await work.until("wf_a")
        for name in "ab":
            work.gate(f"wf_{name}").set()
            assert (await runtime.result(f"wf_{name}")).state == "completed"
    assert work.order == ["wf_a", "wf_b"]
    assert work.most == 1


async def test_what_a_run_replaces_is_cancelled_after_a_crash_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url, work = f"sqlite:{tmp_path / 'runs.db'}", Work()
    async with Runtime(url, max_concurrent_runs=1) as runtime:
        await work.begin(runtime, "a")
        await work.until("wf_a")
        lost = asyncio.Event()

        async def lose(*_: object) -> None:
            lost.set()

        with monkeypatch.context() as patched:  # the process dies before it cancels
            patched.setattr(ConcurrencyKeys, "_cancel_quietly", lose)
            await work.begin(runtime, "b", on_conflict="cancel_previous")
            await lost.wait()
    async with Runtime(url) as runtime:
        runtime.register(work.workflow)
        work.gate("wf_b").set()
        await runtime.recover()
        assert (await runtime.result("wf_b")).state == "completed"
        assert (await runtime.result("wf_a", raise_on_failure=False)).state == "cancelled"
    assert work.most == 1


async def test_a_run_of_another_process_holds_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(concurrency_keys, "_POLL_S", 0.02)
    url, work = f"sqlite:{tmp_path / 'runs.db'}", Work()
    async with Runtime(url) as one, Runtime(url) as two:
        a = await work.begin(one, "a")
        await work.until("wf_a")
        b = await work.begin(two, "b")
        with pytest.raises(ConcurrencyRejected):
            await work.begin(two, "c", on_conflict="reject")
        for run in (a, b):
            work.gate(run.workflow_id).set()
            assert (await run.result()).state == "completed"
        assert work.most == 1


async def test_a_fork_queues_and_cancels_nothing():
    flow = built("eager", asks("a")).build()
    async with Runtime(MemoryLog()) as runtime:
        options = {"concurrency_key": "k", "on_conflict": "cancel_previous"}
        source = await runtime.submit(flow, 1, options=options)
        request = (await source.result()).pending_requests[0].request_id
        fork = await source.fork()
        assert (await source.record()).state == "waiting"
        assert (await fork.record()).last_offset == 1, "it has its base and nothing more"
        await source.answer(request, 5)
        assert (await source.result()).state == "completed"
        assert (await fork.result()).state == "waiting"


async def test_a_child_run_has_no_key_of_its_own():
    from agentflow import WorkflowExecutor
    from tests.conformance.graphs.rows import gives

    inner = built("eager", gives("in", int), name="inner").build()
    outer = built("eager", WorkflowExecutor(inner, id="sub")).build()
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(outer, 1, options={"concurrency_key": "k"})
        assert result.state == "completed"


async def test_fifty_runs_of_five_keys():
    work = Work()
    work.gate = lambda run_id: _open()
    async with Runtime(MemoryLog(), max_concurrent_runs=3) as runtime:
        runs = [await work.begin(runtime, f"r{i}", key=f"k{i % 5}") for i in range(50)]
        found = Counter([(await run.result()).state for run in runs])
        assert found == {"completed": 50}
        for key in range(5):
            mine = [int(run.removeprefix("wf_r")) for run in work.order]
            mine = [number for number in mine if number % 5 == key]
            assert mine == sorted(mine)
        assert work.most <= 3


def _open() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


@pytest.mark.parametrize(
    ("options", "place", "words"),
    [
        ({"concurrency_key": ""}, "/options/concurrency_key", "text of 1 to"),
        ({"concurrency_key": 3}, "/options/concurrency_key", "text of 1 to"),
        ({"concurrency_key": "k", "on_conflict": "wait"}, "/options/on_conflict", "cancel_previous"),
        ({"on_conflict": "reject"}, "/options/on_conflict", "concurrency_key"),
    ],
)
async def test_wrong_options_are_refused_with_their_place(options: Any, place: str, words: str):
    async with Runtime(MemoryLog()) as runtime:
        with pytest.raises(InvalidOptions) as refused:
            await Work().begin(runtime, "a", key=None, **options)
        (problem,) = refused.value.diagnostics
        assert problem.path == place
        assert words in problem.message
        assert await runtime.rows() == []


async def test_a_workflow_takes_the_key_as_an_option_of_its_runs():
    work = Work()
    flow = work.workflow
    first = await flow.start("a", workflow_id="wf_a", concurrency_key="k")
    await work.until("wf_a")
    with pytest.raises(ConcurrencyRejected):
        await flow.run("b", concurrency_key="k", on_conflict="reject")
    second = asyncio.create_task(
        flow.run("c", workflow_id="wf_c", concurrency_key="k", on_conflict="cancel_previous")
    )
    await work.until("wf_c")
    assert (await first.result(raise_on_failure=False)).state == "cancelled"
    work.gate("wf_c").set()
    assert (await second).get_outputs() == ["c"]


async def test_the_api_refuses_with_409_and_its_client_raises(tmp_path: Path):
    flow = built("eager", asks("a"), name="held").build()
    async with serving(tmp_path) as served:
        options = {"concurrency_key": "k"}
        held = await served.runtime.submit(flow, 1, workflow_id="wf_held", options=options)
        await held.result()
        options["on_conflict"] = "reject"
        async with served.http() as http:
            answer = await http.post("/workflows", json={"definition": ECHO, "options": options})
        assert (answer.status_code, answer.json()["code"]) == (409, "concurrency_rejected")
        assert answer.json()["details"]["workflow_id"] == "wf_held"
        async with served.client() as client:
            with pytest.raises(ConcurrencyRejected) as refused:
                await client.submit(ECHO, options=options)
        assert refused.value.details["state"] == "waiting"


ASKING = """\
version: "1.0"
workflow:
  steps:
    - type: run
      id: ask
      approval: true
      agent: {systemPrompt: go, input: x, attachedFunctions: none, resultSchema: {type: string}}
"""


def test_the_command_line_takes_a_key_and_what_to_do_about_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sandbox = Sandbox(tmp_path)
    try:
        sandbox.write("asks.yaml", ASKING)
        sandbox.env |= {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "AGENTFLOW_MODEL": "openai:test"}
        words = ("run", "asks.yaml", "--concurrency-key", "k")
        assert sandbox.invoke(*words, "--id", "wf_a").exit_code == 9
        refused = sandbox.invoke(*words, "--id", "wf_b", "--on-conflict", "reject")
        assert refused.exit_code == 5, refused.stderr
        assert 'wf_a (waiting) holds the concurrency key "k"' in refused.stderr
        replacing = sandbox.invoke(*words, "--id", "wf_c", "--on-conflict", "cancel_previous")
        assert (replacing.exit_code, "wf_c waits for wf_a" in replacing.stderr) == (9, True)
        states = {
            row["workflow_id"]: row["state"]
            for row in json.loads(sandbox.invoke("list", "--json").stdout)["items"]
        }
        assert states == {"wf_a": "cancelled", "wf_c": "waiting"}
    finally:
        sandbox.close()
