"""A store that loses its answers to appends: each batch is looked up by its id, and is in the log once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import CommitUnknown
from agentflow.events.log import Append
from agentflow.events.sqlite import SqliteLog

calls: list[int] = []


@function(side_effect="write")
async def add(x: int) -> dict[str, int]:
    calls.append(x)
    return {"x": x + 1}


def chain(steps: int) -> Workflow:
    ids = [f"n{i}" for i in range(steps)] + ["end"]
    nodes = [ToolNode(id=ids[i], index=i, tool="desk.add", next=ids[i + 1]) for i in range(steps)]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=steps))
    )


class LosesAnswers(SqliteLog):
    """Loses the answer to every second append, by turns of one that was committed and one that was not."""

    appends = lost = 0

    def append(self, batch: Append) -> asyncio.Future[None]:
        self.appends += 1
        if not batch.expected or self.appends % 2:
            return super().append(batch)
        self.lost += 1
        return asyncio.ensure_future(self._lose(super().append(batch) if self.lost % 2 else None))

    async def _lose(self, committed: asyncio.Future[None] | None) -> None:
        if committed is not None:
            await committed
        raise CommitUnknown("the connection is gone")


@pytest.mark.parametrize("runs", [1, 20])
async def test_every_batch_is_in_the_log_once(tmp_path: Path, runs: int):
    calls.clear()
    log = LosesAnswers(tmp_path / "runs.db")
    async with Runtime(log, services=[Service.of("desk", add)]) as runtime:
        definition = runtime.load(chain(4))
        results: list[Any] = await asyncio.gather(*(runtime.run(definition, {"x": 0}) for _ in range(runs)))
        for result in results:
            assert result.output == {"x": 4}
            events = await log.read(result.workflow_id, 0, 1_000)
            assert [event.offset for event in events] == list(range(len(events)))
            assert sum(event.type == "tool.call_completed" for event in events) == 4
    assert log.lost >= 2
    assert sorted(calls) == sorted(list(range(4)) * runs)
    await log.close()
