"""`--read-only`: what its help says holds for every kind of store, and beside a live daemon."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from agentflow import Runtime
from agentflow.errors import ConfigurationError
from agentflow.events.open import open_log
from tests.integration.test_operators import agentflow
from tests.unit.events.support import batch
from tests.unit.server.daemon import document
from tests.unit.server.kit import ECHO, echo
from tests.unit.server.process import Process


def fill(url: str) -> None:
    async def within() -> None:
        async with Runtime(url, models=[echo()]) as runtime:
            await (await runtime.submit(ECHO, "x", workflow_id="wf_a")).result()

    asyncio.run(within())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_store_is_read_and_nothing_in_it_changes(tmp_path, scheme):
    store = tmp_path / "stores" / "log"
    url = f"{scheme}:{store}"
    fill(url)
    before = contents(store.parent)
    for words in (["list", "--json"], ["log", "wf_a"]):
        found = agentflow(*words, "--read-only", "--store", url, folder=tmp_path)
        assert (found.returncode, found.stderr) == (0, "")
        assert "wf_a" in found.stdout
    after = contents(store.parent)
    assert {name: after[name] for name in before} == before
    assert all(name.endswith(("-wal", "-shm")) for name in after.keys() - before.keys())


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_no_store_is_made_in_order_to_be_read(tmp_path, scheme):
    found = agentflow("list", "--read-only", "--store", f"{scheme}:{tmp_path}/none/log", folder=tmp_path)
    assert found.returncode == 4
    assert "there is no store" in found.stderr
    assert not (tmp_path / "none").exists()


def test_a_store_in_memory_has_nothing_to_read(tmp_path):
    found = agentflow("list", "--read-only", "--store", "memory:", folder=tmp_path)
    assert found.returncode == 78
    assert "in memory" in found.stderr
    with pytest.raises(ConfigurationError, match="in memory"):
        open_log("memory:", read_only=True)


def test_a_sqlite_store_is_read_beside_its_daemon(tmp_path):
    with Process(tmp_path) as daemon:
        transport = httpx.HTTPTransport(uds=daemon.socket.removeprefix("unix:"))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as http:
            body = {"definition": document("echo"), "input": "x"}
            run = http.post("/workflows?wait=30", json=body).json()["workflow_id"]
            url = f"sqlite:{tmp_path}/runs.db"
            listed = agentflow("list", "--json", "--read-only", "--store", url, folder=tmp_path)
            assert [item["workflow_id"] for item in json.loads(listed.stdout)["items"]] == [run]
            assert (
                "completed" in agentflow("show", run, "--read-only", "--store", url, folder=tmp_path).stdout
            )
            assert http.get("/healthz").json()["status"] == "ok"


async def test_a_file_store_is_not_read_beside_its_process_and_the_error_says_what_to_do(tmp_path):
    url = f"file:{tmp_path}/log"
    log = open_log(url)
    await log.append(batch(0))
    found = await asyncio.to_thread(agentflow, "list", "--read-only", "--store", url, folder=tmp_path)
    await log.close()
    assert found.returncode == 78
    assert "in use by another process" in found.stderr
    assert "backup" in found.stderr


def test_the_help_says_which_stores_are_read_beside_a_daemon(tmp_path):
    text = " ".join(agentflow("list", "--help", folder=tmp_path).stdout.split())
    assert "a sqlite: store even beside a daemon, a file: store only while no process has it open" in text
