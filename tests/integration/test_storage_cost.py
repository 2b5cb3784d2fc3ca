"""What a step of a durable run costs on the disk: bytes of the log, and pages of a commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.events.group import Job
from agentflow.events.sqlite.writer import SqliteStore

STEPS = 100
FRAME_BYTES = 4_096 + 24


@function(side_effect="read")
async def add(x: int) -> dict[str, int]:
    return {"x": x + 1}


def chain() -> Workflow:
    ids = [f"n{i}" for i in range(STEPS)] + ["end"]
    nodes = [ToolNode(id=ids[i], index=i, tool="desk.add", next=ids[i + 1]) for i in range(STEPS)]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=STEPS))
    )


# pyright: reportPrivateUsage=false


async def test_a_step_takes_one_commit_of_three_pages_and_500_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, lengths = tmp_path / "runs.db", list[int]()
    commit = SqliteStore._commit

    def counting(store: SqliteStore, group: list[Job], leaving: Callable[[], None], patient: bool) -> None:
        written = store._written
        commit(store, group, leaving, patient)
        if store._written != written:
            lengths.append(Path(f"{path}-wal").stat().st_size)

    async with Runtime(f"sqlite:{path}", services=[Service.of("desk", add)]) as runtime:
        definition = runtime.load(chain())
        await runtime.run(definition, {"x": 0})
        with monkeypatch.context() as patch:
            patch.setattr(SqliteStore, "_commit", counting)
            result = await runtime.run(definition, {"x": 0}, workflow_id="wf_measured")
    assert result.output == {"x": STEPS}
    commits, frames = len(lengths) - 1, (lengths[-1] - lengths[0]) / FRAME_BYTES
    assert STEPS <= commits <= STEPS + 3
    assert frames / commits <= 3
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(
            "SELECT length(body) FROM batch JOIN run ON run.id = run WHERE workflow_id = 'wf_measured'"
            " AND first > 0 AND count = 4"
        ).fetchall()
        json_bytes, pages = db.execute(
            "SELECT sum(bytes), (SELECT page_count FROM pragma_page_count) FROM run"
        ).fetchone()
    assert len(rows) >= STEPS - 2
    assert sum(size for (size,) in rows) / len(rows) <= 500
    assert pages * 4_096 <= 1.3 * json_bytes
