"""A payload of 1 MB on its way through a run: stored once, named on the wire, whole for code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.events.backup import backup_store, verify_store
from agentflow.events.blobs import LARGE_BYTES, blob_hash
from agentflow.events.retention import RetentionPolicy
from agentflow.records.export import export_run, open_export
from agentflow.records.read_model import ReadModel
from agentflow.runtime.retention import collect
from tests.unit.server.kit import serving

PAYLOAD = {"rows": [f"row {n}" for n in range(85_000)]}  # 1 MB
JSON = msgspec.json.encode(PAYLOAD["rows"])
SIZE = len(JSON)
NAME = blob_hash(JSON)
FAR = 1 << 62

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@function(side_effect="none")
async def hand_on(rows: list[str]) -> dict[str, Any]:
    return {"rows": rows}


def chain(steps: int = 4) -> Workflow:
    ids = [f"n{i}" for i in range(steps)] + ["end"]
    nodes = [ToolNode(id=ids[i], index=i, tool="desk.hand_on", next=ids[i + 1]) for i in range(steps)]
    return Workflow(
        name="chain", nodes=(StartNode(id="start", next="n0"), *nodes, EndNode(id="end", index=steps))
    )


SERVICES = (Service.of("desk", hand_on),)


def url_of(kind: str, folder: Path) -> str:
    return {"sqlite": f"sqlite:{folder / 'runs.db'}", "file": f"file:{folder / 'runs'}"}[kind]


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.fixture(params=["sqlite", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


async def test_it_is_stored_once_and_all_that_reads_it_gets_it_whole(kind: str, tmp_path: Path):
    store, copy = tmp_path / "store", tmp_path / "copy"
    store.mkdir()
    url = url_of(kind, store)
    async with Runtime(url, services=SERVICES) as runtime:
        result = await runtime.run(runtime.load(chain()), PAYLOAD, workflow_id="wf_large")
        assert result.output == PAYLOAD
        fork = await (await runtime.fork("wf_large", from_step="n2")).result()
        assert fork.output == PAYLOAD
        assert (await runtime.record(fork.workflow_id)).input == PAYLOAD
        assert (await runtime.state("wf_large")).output == PAYLOAD
        steps = runtime.events("wf_large", types=["workflow.step_completed"])
        whole = [event.data.output async for event in steps]
        assert whole == [PAYLOAD] * 6  # with start and end
    assert bytes_in(store) < 1.05 * SIZE + 150_000

    # After a restart, in a copy, and in an exported file.
    assert (await verify_store(url)).sound
    await backup_store(url, copy)
    async with Runtime(f"{kind}:{copy}", services=SERVICES) as runtime:
        assert (await runtime.state("wf_large")).output == PAYLOAD
        assert (await runtime.fold(fork.workflow_id)).ended
        lines = [line async for line in export_run(runtime.log, fork.workflow_id)]
        file = tmp_path / "log.ndjson"
        file.write_bytes(b"\n".join(lines) + b"\n")
    opened = await open_export(file)
    assert (await ReadModel(opened.log).record(fork.workflow_id)).output == PAYLOAD
    wire = [e.wire for e in await opened.log.read(fork.workflow_id)]
    assert max(map(len, wire)) < LARGE_BYTES


async def test_retention_removes_it_with_the_last_run(kind: str, tmp_path: Path):
    async with Runtime(url_of(kind, tmp_path), services=SERVICES) as runtime:
        definition = runtime.load(chain(1))
        for run in ("wf_a", "wf_b"):
            await runtime.run(definition, PAYLOAD, workflow_id=run)
        await runtime.delete("wf_a")
        await runtime.log.sweep(FAR)
        assert (await runtime.state("wf_b")).output == PAYLOAD
        if runtime.log.trims:
            policy = RetentionPolicy(mode="age", max_age=0, trim_to_events=1)
            await collect(runtime.log, policy, FAR)
            await runtime.log.sweep(FAR)
            assert (await runtime.record("wf_b")).output == PAYLOAD
            (last,) = await runtime.log.read("wf_b", (await runtime.log.last("wf_b")))
            assert json.loads(last.body)["data"]["output"] == PAYLOAD
        await runtime.delete("wf_b")
        assert (await runtime.log.sweep(FAR)).blobs == 1
        assert await runtime.log.get_blob(NAME) is None


async def test_the_api_names_it_and_gives_it(tmp_path: Path):
    async with serving(tmp_path, services=SERVICES) as served, served.http() as http:
        definition = served.runtime.load(chain(2))
        await served.runtime.run(definition, PAYLOAD, workflow_id="wf_large")
        reference = {"$blob": NAME, "size": SIZE, "type": "json"}
        path = "/workflows/wf_large"
        for query, wanted in (("", {"rows": reference}), ("&expand=true", PAYLOAD)):
            lines = (await http.get(f"{path}/events?follow=false{query}")).content.splitlines()
            outputs = [json.loads(line)["data"].get("output") for line in lines]
            assert [each for each in outputs if each is not None] == [wanted] * 7  # 2 calls, 4 steps, the run
            history = (await http.get(f"{path}/history?{query}")).json()
            assert [step["output"] for step in history["steps"]][-1] == wanted
        answer = await http.get(f"/blobs/{NAME}")
        assert answer.json() == PAYLOAD["rows"]
        exported = (await http.get(f"{path}/log")).content.splitlines()
        events = [line for line in map(json.loads, exported) if "data" in line]
        assert events[-1]["data"]["output"] == PAYLOAD
        assert (await http.get(path)).json()["output"] == PAYLOAD


async def test_agents_hand_on_a_large_answer_once(tmp_path: Path):
    from agentflow.testing import ScriptedModel

    answer = "word " * 80_000  # 400 kB, as plain text

    def speak(request: Any) -> str:
        return answer

    document = {
        "agents": [
            {"name": name, "system_prompt": "Speak.", "model": "scripted:m"} for name in ("one", "two")
        ]
    }
    async with Runtime(f"sqlite:{tmp_path / 'runs.db'}", models=[ScriptedModel(speak)]) as runtime:
        result = await runtime.run(runtime.load(document), "go")
        assert result.output == answer
        lines = [event.body for event in await runtime.log.read(result.workflow_id)]
    assert sum(map(len, lines)) > 8 * len(answer)
    assert bytes_in(tmp_path) < 1.1 * len(answer) + 150_000
