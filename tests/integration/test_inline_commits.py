"""Commits on the loop and batches that nobody waits for, in whole runs: what is written when, and in which
order it is shown."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    EndNode,
    FunctionRef,
    ModelRef,
    Node,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.events import group, pace
from agentflow.events.envelope import StoredEvent
from agentflow.events.group import GroupCommit, Job
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel, call

STEPS = 40


@function(side_effect="none")
async def plain(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="read")
async def fetch(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="none")
def threaded(x: int) -> dict[str, int]:
    return {"x": x + 1}


def chain(*functions: str) -> Workflow:
    ids = [f"n{i}" for i in range(len(functions))] + ["end"]
    nodes: list[Node] = [
        ToolNode(id=ids[i], index=i, tool=f"desk.{name}", next=ids[i + 1]) for i, name in enumerate(functions)
    ]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=len(ids)))
    )


def opened(url: str, **options: Any) -> Runtime:
    return Runtime(url, services=[Service.of("desk", plain, fetch, threaded)], **options)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a commit takes here, it counts as short."""
    monkeypatch.setattr(pace, "LONGEST_SYNC_S", 1e9)
    monkeypatch.setattr(pace, "LONGEST_HOLD_S", 2e9)
    monkeypatch.setattr(
        group, "_WATCH_INTERVAL_S", 3_600.0
    )  # the thread has the store for a moment when it looks after it


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that nobody waits for is written with one that somebody waits for, or not before tomorrow."""
    monkeypatch.setattr(group, "_LAZY_S", 86_400.0)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each group that is written: whether it was on the loop."""
    seen: list[bool] = []
    write = GroupCommit._write  # pyright: ignore[reportPrivateUsage]

    def noting(self: GroupCommit, jobs: list[Job], leaving: Any, *, on_loop: bool) -> bool:
        if any(job.batch is not None for job in jobs):
            seen.append(on_loop)
        return write(self, jobs, leaving, on_loop=on_loop)

    monkeypatch.setattr(GroupCommit, "_write", noting)
    return seen


@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.usefixtures("short")
async def test_a_step_with_an_effect_is_one_commit_on_the_loop_with_one_sync(
    kind: str, tmp_path: Path, commits: list[bool], monkeypatch: pytest.MonkeyPatch
):
    syncs: list[int] = []
    fdatasync = os.fdatasync

    def counted(descriptor: int) -> None:
        syncs.append(descriptor)
        fdatasync(descriptor)

    async with opened(f"{kind}:{tmp_path / 'log'}") as runtime:
        definition = runtime.load(chain(*["fetch"] * STEPS))
        await runtime.run(definition, {"x": 0})
        commits.clear()
        monkeypatch.setattr(os, "fdatasync", counted)
        result = await runtime.run(definition, {"x": 0})
        monkeypatch.undo()
    assert result.output == {"x": STEPS}
    assert STEPS <= len(commits) <= STEPS + 2
    assert all(commits)
    if kind == "file":  # SQLite syncs by itself, once a commit
        assert len(syncs) == len(commits)


@pytest.mark.usefixtures("short", "patient")
async def test_functions_without_effects_share_commits_and_are_shown_in_order(
    tmp_path: Path, commits: list[bool], monkeypatch: pytest.MonkeyPatch
):
    async with opened(f"sqlite:{tmp_path / 'runs.db'}") as runtime:
        definition = runtime.load(chain(*["plain"] * STEPS))
        await runtime.run(definition, {"x": 0})
        shown: list[int] = []
        publish = runtime.hub.publish

        def noted(workflow_id: str, events: Sequence[StoredEvent]) -> None:
            shown.extend(event.offset for event in events)
            publish(workflow_id, events)

        monkeypatch.setattr(runtime.hub, "publish", noted)
        commits.clear()
        result = await runtime.run(definition, {"x": 0})
        last = await runtime.log.last(result.workflow_id)
    assert result.output == {"x": STEPS}
    assert len(commits) <= 5
    assert shown == list(range(last + 1))


@pytest.mark.usefixtures("patient")
async def test_nothing_waits_for_a_batch_that_nobody_should_wait_for(tmp_path: Path):
    mixed = ["plain", "plain", "fetch", "threaded", "plain", "threaded", "fetch", "plain"]
    async with opened(f"sqlite:{tmp_path / 'runs.db'}") as runtime:
        definition = runtime.load(chain(*mixed))
        results = await asyncio.gather(*(runtime.run(definition, {"x": n}) for n in range(10)))
        assert [result.output for result in results] == [{"x": n + len(mixed)} for n in range(10)]


@pytest.mark.usefixtures("patient")
async def test_a_command_waits_for_no_other_batch(tmp_path: Path):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @function(side_effect="none")
    async def held(x: int) -> dict[str, int]:
        begun.set()
        await go_on.wait()
        return {"x": x}

    services = [Service.of("desk", plain, held)]
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", services=services) as runtime:
        run = await runtime.submit(runtime.load(chain("plain", "plain", "held", "plain")), {"x": 0})
        await begun.wait()
        await runtime.pause(run.workflow_id)
        go_on.set()
        assert (await run.result()).state == "paused"
        await runtime.resume(run.workflow_id)
        assert (await run.result()).output == {"x": 3}


async def test_what_nobody_waits_for_is_shown_while_its_function_works(tmp_path: Path):
    never = asyncio.Event()

    @function(side_effect="none")
    async def held(x: int) -> dict[str, int]:
        await never.wait()
        return {"x": x}

    async with Runtime(
        f"sqlite:{tmp_path / 'runs.db'}", services=[Service.of("desk", plain, held)]
    ) as runtime:
        run = await runtime.submit(runtime.load(chain("plain", "held")), {"x": 0})
        async with aclosing(runtime.events(run.workflow_id, types=["tool.call_started"])) as events:
            started = [(await anext(events)).step for _ in range(2)]
        assert started == ["n0", "n1"]
        await runtime.cancel(run.workflow_id, mode="hard")


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_the_first_event_of_a_run_costs_one_sync(kind: str, tmp_path: Path, commits: list[bool]):
    async with opened(f"{kind}:{tmp_path / 'log'}") as runtime:
        definition = runtime.load(chain("fetch"))
        await runtime.run(definition, {"x": 0})
        seen: list[int] = []

        def noted(workflow_id: str, events: Sequence[StoredEvent]) -> None:
            seen.append(len(commits))

        publish, runtime.hub.publish = runtime.hub.publish, noted
        commits.clear()
        run = await runtime.submit(definition, {"x": 0})
        assert seen[0] == 1
        runtime.hub.publish = publish
        await run.result()


@pytest.mark.parametrize(("name", "a_turn"), [("plain", 1), ("fetch", 2)])
@pytest.mark.usefixtures("short", "patient")
async def test_a_turn_of_an_agent_is_one_commit_and_one_more_for_a_call_with_effects(
    name: str, a_turn: int, tmp_path: Path, commits: list[bool]
):
    def answer(request: ModelRequest) -> Any:
        called = (len(request.messages) - 2) // 2
        return call(f"desk__{name}", x=called) if called < STEPS else "done"

    agent = AgentSpec(
        name="a",
        system_prompt="Count.",
        model=ModelRef(provider="scripted", model="m"),
        functions=(FunctionRef("desk", name),),
        max_turns=STEPS + 1,
        max_tool_calls=STEPS,
    )
    nodes = (StartNode(id="start", next="a"), AgentNode(id="a", agent=agent, next="end"))
    graph = Workflow(name="loop", nodes=(*nodes, EndNode(id="end", index=1)))
    async with opened(f"sqlite:{tmp_path / 'runs.db'}", models=[ScriptedModel(answer)]) as runtime:
        await runtime.run(graph, "Go.")  # the thread measures the first commits
        commits.clear()
        result = await runtime.run(graph, "Go.")
    assert result.output == "done"
    assert len(commits) == a_turn * STEPS + 2  # and those of the beginning and the end
    assert all(commits[1:])
