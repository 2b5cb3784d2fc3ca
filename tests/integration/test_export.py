"""Runs written as files and read again: what their events only name travels with them."""

from __future__ import annotations

import msgspec
import pytest

from agentflow import Runtime
from agentflow.definition.ir import Edge, EndNode, StartNode, Workflow
from agentflow.errors import InvalidExport, StoreError
from agentflow.events.envelope import decode
from agentflow.events.log import Append, RunMeta
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import this_process
from agentflow.records.export import export_run, open_export
from agentflow.records.read_model import ReadModel
from agentflow.testing import ScriptedModel


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


AGENTS = {"agents": [{"name": f"agent {n}", "system_prompt": f"prompt {n}"} for n in range(2)]}


async def write(log, run, path):
    lines = [line async for line in export_run(log, run)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return [msgspec.json.decode(line) for line in lines]


async def run_agents(log, **more):
    async with Runtime(log, models=[ScriptedModel(lambda r: r.messages[-1].content + "!")]) as runtime:
        return (await runtime.run(AGENTS, "go", **more)).workflow_id


async def check_same(log, run, path):
    """What is read of the file is what is read of the store."""
    opened = await open_export(path)
    assert opened.warning is None
    assert opened.log.workflow_id == run
    first, second = ReadModel(log), ReadModel(opened.log)
    for view in ("record", "state", "graph"):
        assert await getattr(first, view)(run) == await getattr(second, view)(run)
    assert await opened.log.read(run, 0, 10_000) == await log.read(run, 0, 10_000)
    row, there = await opened.log.run(run), await log.run(run)
    for name in (
        "state",
        "name",
        "labels",
        "created_at",
        "last_offset",
        "bytes",
        "parent",
        "definition_hash",
    ):
        assert getattr(row, name) == getattr(there, name), name
    return opened.log


async def test_a_document_travels_as_its_source(tmp_path):
    log = MemoryLog()
    run = await run_agents(log, labels={"team": "a"})
    lines = await write(log, run, tmp_path / "run.ndjson")
    assert all("offset" in line for line in lines)
    await check_same(log, run, tmp_path / "run.ndjson")


async def test_a_graph_built_in_python_travels_too(tmp_path):
    log = MemoryLog()
    edges = [Edge(source="start", target="end")]
    graph = Workflow(nodes=[StartNode(id="start"), EndNode(id="end")], edges=edges, name="nothing to do")
    async with Runtime(log) as runtime:
        run = (await runtime.run(graph, {"x": 1})).workflow_id
    await write(log, run, tmp_path / "run.ndjson")
    await check_same(log, run, tmp_path / "run.ndjson")


async def test_a_fork_travels_with_what_it_began_with(tmp_path):
    log = MemoryLog()
    run = await run_agents(log)
    async with Runtime(log, models=[ScriptedModel(lambda r: r.messages[-1].content + "?")]) as runtime:
        steps = list((await runtime.record(run)).steps)
        fork = await runtime.fork(run, from_step=steps[-1])
        await fork.result()
    lines = await write(log, fork.workflow_id, tmp_path / "fork.ndjson")
    assert [line["attachment"] for line in lines if "attachment" in line] == ["blob"]
    await check_same(log, fork.workflow_id, tmp_path / "fork.ndjson")


async def test_blobs_travel_and_so_does_what_they_name(tmp_path):
    log = MemoryLog()
    run = await run_agents(log)
    inner = await log.put_blob(b"inner")
    outer = await log.put_blob(b'{"$blob":"%b"}' % inner.encode())
    copy = MemoryLog()
    for event in await log.read(run, 0, 10_000):
        body = event.body.replace(b'"input":"go"', b'"input":{"$blob":"%b"}' % outer.encode())
        event = msgspec.structs.replace(event, text=body)
        meta = None
        if event.offset == 0:
            meta = RunMeta(name="x", definition_hash=decode(body).data.definition.hash, created_at=event.ts)
        await copy.append(Append(run, 1, event.offset, [event], None, meta))
    await copy.put_blob(b"inner")
    await copy.put_blob(b'{"$blob":"%b"}' % inner.encode())
    lines = await write(copy, run, tmp_path / "run.ndjson")
    assert {line["name"] for line in lines if "attachment" in line} == {inner, outer}
    opened = await open_export(tmp_path / "run.ndjson")
    assert await opened.log.get_blob(inner) == b"inner"
    damaged = (tmp_path / "run.ndjson").read_bytes().replace(b"aW5uZXI=", b"aW5uZXk=")
    (tmp_path / "run.ndjson").write_bytes(damaged)
    with pytest.raises(InvalidExport, match="is not what its name says"):
        await open_export(tmp_path / "run.ndjson")


async def test_every_prefix_of_a_log_has_the_state_that_its_fold_has(tmp_path):
    """The state of a row without decoding is that of the fold, at each event."""
    log = MemoryLog()
    run = await run_agents(log)
    await write(log, run, tmp_path / "run.ndjson")
    lines = (tmp_path / "run.ndjson").read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        path = tmp_path / "part.ndjson"
        path.write_bytes(b"".join(lines[:count]))
        opened = (await open_export(path)).log
        assert (await opened.run(run)).state == (await ReadModel(opened).state(run)).state, count


async def test_a_file_takes_no_writes_and_a_runtime_on_it_changes_nothing(tmp_path):
    log = MemoryLog()
    run = await run_agents(log)
    await write(log, run, tmp_path / "run.ndjson")
    lines = (tmp_path / "run.ndjson").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.ndjson").write_bytes(b"".join(lines[:5]))
    exported = (await open_export(tmp_path / "run.ndjson")).log
    event = (await exported.read(run, 4))[0]
    for refused in (
        exported.append(Append(run, 1, 5, [msgspec.structs.replace(event, offset=5)])),
        exported.put_blob(b"x"),
        exported.put_definition("h", b"x"),
        exported.put_snapshot(run, "k", 1, b"x"),
        exported.save_cursor("c", "x"),
        exported.drop_cursor("c"),
        exported.claim(run, this_process()),
        exported.trim(run, 3),
        exported.delete(run, 1),
        exported.sweep(1),
        exported.probe(),
    ):
        with pytest.raises(StoreError, match="cannot be changed"):
            await refused
    async with Runtime(exported, models=[ScriptedModel(lambda r: "no")]) as runtime:
        with pytest.raises(StoreError, match="cannot be changed"):
            await runtime.resume(run)
    assert await exported.last(run) == 4
