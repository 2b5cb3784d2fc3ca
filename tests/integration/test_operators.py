"""What operators do with a store under load: check it, copy it, resume its runs from the copy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Runtime
from agentflow.errors import ConfigurationError, LogCorrupt, StoreError
from agentflow.events.backup import backup_store, verify_store
from agentflow.events.open import open_log
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import Desk, chain, must_be_sound
from tests.unit.events.support import ROOT, all_offsets, batch, change_batch, run_appender, start_appender


def agentflow(*words, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}
    command = [sys.executable, "-c", "from agentflow.cli import main; main()", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False, timeout=60
    )


@contextlib.contextmanager
def loaded(url):
    """A process that appends to wf_a of a store as fast as it can; wf_b is there too."""
    run_appender(url, "wf_b", 5)
    with start_appender(url, "wf_a") as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


async def test_a_store_under_load_is_copied_and_the_copy_is_consistent(tmp_path):
    url = f"sqlite:{tmp_path}/log.db"
    with loaded(url) as writer:
        for n in range(3):
            acknowledged = int(writer.stdout.readline())
            found = await backup_store(url, tmp_path / f"copy{n}.db")
            assert (found.runs, found.sound) == (2, True)
            copy = open_log(f"sqlite:{tmp_path}/copy{n}.db")
            offsets = await all_offsets(copy, "wf_a")
            assert offsets == list(range(len(offsets)))
            assert offsets[-1] >= acknowledged  # it was durable before the copy began
            await copy.close()
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


async def test_the_writer_goes_on_while_its_store_is_checked_and_copied(tmp_path):
    log = open_log(f"sqlite:{tmp_path}/log.db")
    for n in range(0, 3_000, 100):
        await log.append(batch(n, 100, size=3_000, noise=True))
    offset, longest, loop = 3_000, 0.0, asyncio.get_running_loop()
    for work in (verify_store(log.url), backup_store(log.url, tmp_path / "copy.db")):
        task = asyncio.ensure_future(work)
        written = 0
        while not task.done():
            began = loop.time()
            await log.append(batch(offset))
            longest = max(longest, loop.time() - began)
            offset, written = offset + 1, written + 1
        assert (await task).sound
        assert written > 3
    assert longest < 2.0
    await log.close()


async def test_runs_are_resumed_from_a_copy(tmp_path):
    """The daemon of the original holds the run and its payment; the copy goes on by itself."""
    url, desk = f"sqlite:{tmp_path}/runs.db", Desk(look=True)
    async with Runtime(url, services=[desk.service()]) as runtime:
        ended = await runtime.run(chain("pay"), {})
        held = await runtime.submit(chain("look", "pay"), {})
        await desk.entered.wait()
        found = await backup_store(url, tmp_path / "copy.db")
        assert (found.runs, found.sound) == (2, True)
        other = Desk()
        async with Runtime(f"sqlite:{tmp_path}/copy.db", services=[other.service()]) as copied:
            result = await (await copied.resume(held.workflow_id)).result()
            assert result.state == "completed"
            assert (await copied.result(ended.workflow_id)).state == "completed"
            await must_be_sound(copied, held.workflow_id)
        assert other.calls == 2
        desk.gates["look"].set()
        assert (await held.result()).state == "completed"
    assert desk.calls == 3


@pytest.fixture
def damaged(tmp_path):
    path = tmp_path / "log.db"

    async def fill():
        log = open_log(f"sqlite:{path}")
        for run in ("wf_a", "wf_b", "wf_c"):
            for offset in range(20):
                await log.append(batch(offset, workflow_id=run))
        await log.close()

    asyncio.run(fill())
    change_batch(path, 2, 7, "body = x'00'")
    change_batch(path, 3, 4, None)
    return path


def test_verify_names_what_is_damaged(damaged, tmp_path):
    said = agentflow("verify", "--store", f"sqlite:{damaged}", "--json", folder=tmp_path)
    assert said.returncode == 74, said.stderr
    found = json.loads(said.stdout)
    assert found["sound"] is False
    assert [run["workflow_id"] for run in found["damaged"]] == ["wf_b", "wf_c"]
    assert (found["runs"], found["events"]) == (3, 58)


async def test_no_copy_is_left_of_a_damaged_store(damaged, tmp_path):
    with pytest.raises(LogCorrupt, match="so no copy was kept: wf_b"):
        await backup_store(f"sqlite:{damaged}", tmp_path / "copy.db")
    assert {p.name for p in tmp_path.iterdir()} <= {"log.db", "log.db-wal", "log.db-shm"}


async def test_a_copy_overwrites_nothing(tmp_path):
    log = open_log(f"sqlite:{tmp_path}/log.db")
    await log.append(batch(0))
    for target in (tmp_path / "log.db", Path("/dev/null")):
        with pytest.raises(ConfigurationError, match="exists"):
            await backup_store(log.url, target)
    with pytest.raises(ConfigurationError, match="there is no store"):
        await backup_store(f"sqlite:{tmp_path}/none.db", tmp_path / "copy.db")
    assert await all_offsets(log, "wf_a") == [0]
    await log.close()


def test_the_verbs_beside_a_process_that_writes(tmp_path):
    url = f"sqlite:{tmp_path}/log.db"
    with loaded(url):
        verified = agentflow("verify", "--store", url, folder=tmp_path)
        copied = agentflow("backup", tmp_path / "b" / "copy.db", "--store", url, "--json", folder=tmp_path)
        listed = agentflow("list", "--read-only", "--store", url, folder=tmp_path)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.startswith("sound: 2 runs and ")
    assert copied.returncode == 0, copied.stderr
    told = json.loads(copied.stdout)
    assert (told["runs"], told["bytes"]) == (2, (tmp_path / "b" / "copy.db").stat().st_size)
    assert "wf_a" in listed.stdout
    assert asyncio.run(verify_store(f"sqlite:{tmp_path}/b/copy.db")).sound


async def test_a_directory_of_segments_is_checked_and_copied(tmp_path):
    url = f"file:{tmp_path}/log"
    log = open_log(url)
    for n in range(0, 200, 10):
        await log.append(batch(n, 10))
    found = await backup_store(url, tmp_path / "copy")  # while this process has it
    assert (found.runs, found.sound) == (1, True)
    await log.append(batch(200))
    with pytest.raises(ConfigurationError, match="in use"):
        await verify_store(url)
    await log.close()
    assert (await verify_store(url)).events == 201
    copy = open_log(f"file:{tmp_path}/copy")
    assert await all_offsets(copy, "wf_a") == list(range(200))
    await copy.append(batch(200))
    await copy.close()


def test_a_daemon_whose_store_was_deleted_says_so_and_ends_with_74(tmp_path):
    """durability 1: through health at once, and through its exit code at the end."""
    import signal
    import time

    from agentflow.client import SyncClient

    store, socket = tmp_path / "data" / "log.db", tmp_path / "s"
    command = ["serve", "--store", f"sqlite:{store}", "--socket", str(socket)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OTEL_SDK_DISABLED": "true"}
    with subprocess.Popen(
        [sys.executable, "-c", "from agentflow.cli import main; main()", *command],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            while "agentflow serves" not in (said := daemon.stderr.readline()):
                assert said, "the daemon did not start"
            with SyncClient(f"unix:{socket}") as client:
                assert client.health().status == "ok"
                shutil.rmtree(store.parent)
                until = time.monotonic() + 10
                while (health := client.health()).status == "ok":
                    assert time.monotonic() < until
                assert health.status == "failed"
            daemon.send_signal(signal.SIGTERM)
            said = daemon.stderr.read()
            assert daemon.wait() == 74, said
            assert "was deleted or moved" in said
        finally:
            daemon.kill()


def _bind_mounts_work():
    probe = ["unshare", "--mount", "sh", "-c", "mount --bind /etc/hostname /etc/hostname"]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(not _bind_mounts_work(), reason="needs the right to mount files")
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_daemon_on_a_store_that_cannot_be_written_does_not_start(tmp_path, kind):
    """Its directory can be written to, the store cannot: each submission would be refused."""
    store = tmp_path / "log"

    async def make():
        await open_log(f"{kind}:{store}").close()

    asyncio.run(make())
    mounted = f"mount --bind {store} {store} && mount -o remount,bind,ro {store} && exec "
    run = [sys.executable, "-c", "from agentflow.cli import main; main()"]
    command = [*run, "serve", "--store", f"{kind}:{store}", "--socket", str(tmp_path / "s")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OTEL_SDK_DISABLED": "true"}
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted + shlex.join(command)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 74, said.stderr
    assert "cannot be written to" in said.stderr
    assert "agentflow serves" not in said.stderr


async def test_read_only_reads_a_store_of_files(tmp_path):
    url = f"file:{tmp_path}/log"
    with pytest.raises(ConfigurationError, match="there is no store to read"):
        open_log(url, read_only=True)
    log = open_log(url)
    await log.append(batch(0))
    with pytest.raises(ConfigurationError, match="in use"):
        open_log(url, read_only=True)
    await log.close()
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    one, other = open_log(url, read_only=True), open_log(url, read_only=True)
    for reader in (one, other):
        assert reader.read_only
        assert await all_offsets(reader, "wf_a") == [0]
        with pytest.raises(StoreError, match="reading only"):
            await reader.append(batch(1))
        await reader.close()
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


async def test_a_store_with_a_run_of_a_document_is_sound(tmp_path, monkeypatch):
    """The text of a document is kept only if it was registered; a run that names it is not damaged."""
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    document = tmp_path / "flow.yaml"
    document.write_text(
        'version: "1.0"\nworkflow: {steps: [{type: run, id: a, agent: {systemPrompt: p, input: i}}]}\n'
    )
    url = f"sqlite:{tmp_path}/runs.db"
    async with Runtime(url, models=[ScriptedModel(["done"])]) as runtime:
        assert (await runtime.run(document, {})).state == "completed"
    assert (await verify_store(url)).problems == []
    assert (await backup_store(url, tmp_path / "copy.db")).sound
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.db")) as db, db:
        db.execute("DELETE FROM definition")
    assert "is not there" in (await verify_store(url)).problems[0]


async def test_a_store_is_checked_and_copied_by_its_relative_path(tmp_path, monkeypatch):
    run_appender(f"sqlite:{tmp_path}/log.db", "wf_a", 5)
    monkeypatch.chdir(tmp_path)
    assert (await verify_store("sqlite:log.db")).sound
    assert (await backup_store("sqlite:log.db", tmp_path / "copy.db")).runs == 1
