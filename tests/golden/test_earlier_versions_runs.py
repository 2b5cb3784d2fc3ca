"""Runs that earlier versions left in the middle are opened, shown, resumed and completed by this one.

Those of the first version have the first schema, those of the second one row for each event. Each store is a
SQLite database with the write-ahead log that a killed process left behind; NAME.ndjson holds its events as
its own version read them.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.events.envelope import decode
from tests.faults.simulated.invariants import assert_log_invariants
from tests.golden.first_version.world import World

HERE = Path(__file__).parent

OUTPUTS: dict[str, Any] = {
    "steps": {
        "each": [{"said": f"each {i}"} for i in range(4)],
        "report": {"said": "report"},
        "escalated": "skipped",
    },
    "agents": "write: done",
    "loop": {"x": 5},
}
CALLS = {
    "steps": {"each 1": 1, "each 2": 1, "each 3": 1, "send": 1, "report": 1},
    "agents": {"settle": 1, "write": 1},
    "loop": {"add 3": 1, "add 4": 1},
}
"""What is asked after the resume; nothing whose result is in the log."""


@pytest.fixture(params=["steps", "agents", "loop"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["first", "second"])
def stores(request: pytest.FixtureRequest) -> Path:
    return HERE / f"{request.param}_version" / "stores"


@pytest.fixture
def store(name: str, stores: Path, tmp_path: Path) -> str:
    with tarfile.open(stores / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return f"sqlite:{tmp_path / name}.db"


@pytest.fixture
def stored(name: str, stores: Path) -> list[bytes]:
    return (stores / f"{name}.ndjson").read_bytes().splitlines()


async def lines_of(runtime: Runtime, name: str) -> list[bytes]:
    return [row.body for row in await runtime.log.read(f"wf_{name}", 0, 10_000)]


async def complete(runtime: Runtime, name: str) -> Any:
    """Answer what the run asks until it rests for good."""
    run = f"wf_{name}"
    while (result := await (await runtime.attach(run)).rest()).state == "waiting":
        for request in await runtime.requests(run):
            if request.kind == "step":
                await runtime.decide(run, granted=True, request_id=request.request_id, by="ann")
            else:
                answer = {"choice": "done", "output": {"paid": "by hand"}}
                await runtime.answer(run, request.request_id, answer, by="ann")
    return result


async def test_it_is_opened_and_its_log_is_read(name: str, store: str, stored: list[bytes]):
    async with World().runtime(store) as runtime:
        assert await lines_of(runtime, name) == stored


async def test_it_is_shown(name: str, store: str, stored: list[bytes]):
    async with World().runtime(store) as runtime:
        run = f"wf_{name}"
        record = await runtime.record(run)
        assert (record.workflow_id, record.state, record.last_offset) == (
            run,
            "running",
            len(stored) - 1,
        )
        history = await runtime.history(run)
        assert {step.step_id for step in history.steps} <= {
            node.id for node in (await runtime.graph(run)).nodes
        }
        assert [row.workflow_id for row in await runtime.rows()] == [run]
        asked = [request.kind for request in await runtime.requests(run)]
        assert asked == (["step"] if name == "steps" else [])


@pytest.mark.parametrize("how", ["resume", "recover"])
async def test_it_is_completed_and_what_was_stored_stays(
    name: str, how: str, store: str, stored: list[bytes]
):
    world, run = World(), f"wf_{name}"
    async with world.runtime(store) as runtime:
        if how == "resume":
            await runtime.resume(run)
        else:
            assert await runtime.recover() == [run]
        result = await complete(runtime, name)
        lines = await lines_of(runtime, name)
    assert (result.state, result.output) == ("completed", OUTPUTS[name])
    assert dict(world.calls) == CALLS[name]
    assert lines[: len(stored)] == stored
    assert_log_invariants([decode(line) for line in lines])
    async with World().runtime(store) as runtime:  # and the whole log is there for the next process
        assert await lines_of(runtime, name) == lines


async def test_it_is_forked_from_the_middle(name: str, store: str, stored: list[bytes]):
    """A fork reads the old events as its base."""
    async with World().runtime(store) as runtime:
        handle = await runtime.fork(f"wf_{name}", offset=8, as_id="wf_fork")
        while (result := await handle.rest()).state == "waiting":
            for request in await runtime.requests("wf_fork"):
                await runtime.decide("wf_fork", granted=True, request_id=request.request_id)
        assert (result.state, result.output) == ("completed", OUTPUTS[name])
        assert await lines_of(runtime, name) == stored
