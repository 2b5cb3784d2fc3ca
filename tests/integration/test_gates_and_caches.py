"""Gates and caches through the real Runtime: a killed process, runs that share a store (page 003 §4)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow import Runtime
from agentflow.definition.ir import CacheReadNode, CacheWriteNode, DebounceNode, SubgraphNode, ThrottleNode
from agentflow.errors import StorageUnavailable
from agentflow.events.memory import MemoryLog
from agentflow.runtime.result_cache import ResultCache
from tests.integration.support.gated_run import ASKING, GRAPHS, RUN, graph

ROOT = Path(__file__).parents[2]


def play(store: Path, name: str, *, until: str | None = None) -> list[str]:
    """Run a process until it ends, or kill it once it prints `until`; return what it printed."""
    command = [sys.executable, "-m", "tests.integration.support.gated_run", f"sqlite:{store}", name]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines: list[str] = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if lines[-1] == until:
                process.kill()
    return lines


QUICK = ("debounce_definition", "throttle")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in GRAPHS]
)
def test_a_timer_of_a_killed_process_fires_once(tmp_path: Path, name: str):
    store = tmp_path / "runs"
    play(store, name, until="timer.scheduled gate")
    lines = play(store, name)
    assert lines[-1] == "result completed"
    counts = Counter(lines)
    assert counts["timer.scheduled gate"] == counts["timer.fired gate"] == 1
    assert counts["workflow.completed"] == 1
    assert all(n == 1 for line, n in counts.items() if line.startswith("workflow.step_completed write"))


@pytest.mark.parametrize("name", ["human", "event", pytest.param("input", marks=pytest.mark.slow)])
def test_an_answer_reaches_a_run_of_a_killed_process_once(tmp_path: Path, name: str):
    assert name in ASKING
    store = tmp_path / "runs"
    first = play(store, name, until="workflow.waiting")
    lines = play(store, name)
    assert lines[-1] == "result completed"
    counts = Counter(lines)
    asked = {"human": "approval.requested gate", "input": "input.requested gate"}
    answered = {"human": "approval.granted gate", "input": "input.received gate", "event": "signal.received"}
    if name in asked:
        assert first.count(asked[name]) == counts[asked[name]] == 1
    assert sum(n for line, n in counts.items() if line.startswith(answered[name])) == 1, lines
    assert counts["workflow.step_completed gate"] == counts["workflow.completed"] == 1


async def outputs(runtime: Runtime, step: str, run: str = RUN) -> list[Any]:
    found = [e async for e in runtime.events(run, follow=False)]
    return [e.data.output for e in found if e.type == "workflow.step_completed" and e.data.step_id == step]


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_the_entries_of_a_store_outlive_run_and_process(tmp_path: Path, scheme: str):
    store = f"{scheme}:{tmp_path / 'runs'}"
    write = CacheWriteNode(id="write", key="k", value_path="input", scope="global", next="__end")
    read = CacheReadNode(id="read", key="k", scope="global", next="__end")
    value = {"big": 2**80, "null": None}
    async with Runtime(store) as runtime:
        await runtime.run(graph(write), value, workflow_id="wf_a")
        await runtime.delete("wf_a")
    async with Runtime(store) as runtime:
        assert (await runtime.run(graph(read), {})).output == {"key": "k", "hit": True, "value": value}


async def test_expired_entries_are_swept():
    async with Runtime() as runtime:
        write = CacheWriteNode(id="write", key="k", value_path="input", scope="global", next="__end")
        await runtime.run(graph(write), 1)
        await runtime.run(graph(msgspec.structs.replace(write, key="short", ttl=1e-6)), 1)
        assert len(await runtime.log.cursors("shared/")) == 2
        assert await ResultCache(runtime.log, runtime.clock).sweep() == 1
        assert len(await runtime.log.cursors("shared/")) == 1


async def test_of_many_runs_at_once_as_many_pass_as_the_limit():
    gate = ThrottleNode(id="gate", key_path="input", window=60.0, limit=3, scope="definition", next="__end")
    async with Runtime() as runtime:
        ids = [f"wf_{i}" for i in range(12)]
        await asyncio.gather(*(runtime.run(graph(gate), "a", workflow_id=run) for run in ids))
        found = [output for run in ids for output in await outputs(runtime, "gate", run)]
    assert Counter(output["throttled"] for output in found) == {False: 3, True: 9}


async def test_of_many_runs_at_once_one_passes_a_debounce():
    gate = DebounceNode(id="gate", key_path="input", window=60.0, scope="definition", next="__end")
    async with Runtime() as runtime:
        ids = [f"wf_{i}" for i in range(12)]
        await asyncio.gather(*(runtime.run(graph(gate), "a", workflow_id=run) for run in ids))
        found = [output for run in ids for output in await outputs(runtime, "gate", run)]
    assert Counter(output["suppressed"] for output in found) == {False: 1, True: 11}


class _Failing(MemoryLog):
    """A store that refuses the first reads of shared records."""

    refusals = 2

    async def load_cursor(self, consumer: str) -> str | None:
        if consumer.startswith("shared/") and self.refusals:
            self.refusals -= 1
            raise StorageUnavailable("the disk is away")
        return await super().load_cursor(consumer)


async def test_a_store_that_refuses_is_asked_again():
    log = _Failing()
    async with Runtime(log) as runtime:
        read = CacheReadNode(id="read", key="k", scope="global", next="__end")
        result = await runtime.run(graph(read), {})
    assert result.output["hit"] is False
    assert log.refusals == 0


async def test_a_gate_inside_a_subgraph_asks_too():
    inner = graph(CacheWriteNode(id="write", key="k", value_path="input", scope="global", next="__end"))
    read = CacheReadNode(id="read", key="k", scope="global", next="__end")
    async with Runtime() as runtime:
        result = await runtime.run(graph(SubgraphNode(id="sub", inline=inner, next="read"), read), 7)
    assert result.output["value"] == 7
