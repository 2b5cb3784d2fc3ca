"""A SQLite store that can only be read, and errors of storage when one is opened (durability 9)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from agentflow.errors import ConfigurationError, LogCorrupt, StorageUnavailable, StoreError
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.events.sqlite import ReadOnlySqliteLog, SqliteLog
from tests.unit.events.support import ROOT, all_offsets, batch, run_appender

MOUNTING = ("unshare", "--mount")


def can_mount():
    if shutil.which("unshare") is None:
        return False
    command = [*MOUNTING, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


async def write(path, count=3):
    log = SqliteLog(path)
    await log.append(batch(0, count))
    return log


async def refuses_all_writes(log):
    for call in (
        lambda: log.append(batch(0, workflow_id="wf_b")),
        lambda: log.claim("wf_a", this_process()),
        lambda: log.put_blob(b"x"),
        lambda: log.probe(),
    ):
        with pytest.raises(StorageUnavailable, match="read only"):
            await call()


async def test_a_store_is_read_beside_its_writer(tmp_path):
    path = tmp_path / "log.db"
    log = await write(path)
    reader = open_log(f"sqlite:{path}", read_only=True)
    before = sorted(p.name for p in tmp_path.iterdir())
    assert await all_offsets(reader, "wf_a") == [0, 1, 2]
    seen = await reader.foreign_writes()
    await log.append(batch(3))
    assert await all_offsets(reader, "wf_a") == [0, 1, 2, 3]
    assert await reader.foreign_writes() != seen
    assert reader.is_alive((await reader.run("wf_a")).owner)
    await refuses_all_writes(reader)
    await log.append(batch(4))
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    await reader.close()
    await log.close()


async def test_a_closed_store_is_read_without_leaving_a_file(tmp_path):
    path = tmp_path / "log.db"
    await (await write(path)).close()
    reader = open_log(f"sqlite:{path}", read_only=True)
    assert await all_offsets(reader, "wf_a") == [0, 1, 2]
    await reader.close()
    assert "log.db" in [p.name for p in tmp_path.iterdir()]


def test_a_store_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no store"):
        open_log(f"sqlite:{tmp_path}/log.db", read_only=True)
    assert list(tmp_path.iterdir()) == []


READER = """
import asyncio, subprocess, sys
from agentflow.cli import main
path, killed, *words = sys.argv[1:]
def mount(*options): subprocess.run(["mount", *options], check=True)
mount("-t", "tmpfs", "none", "/mnt")
subprocess.run(f"cp {path}* /mnt/", shell=True, check=True)
if killed != "killed":
    subprocess.run("rm -f /mnt/log.db-shm", shell=True, check=True)
mount("-o", "remount,ro", "/mnt")
sys.argv = ["agentflow", *words]
main()
"""


def on_a_read_only_file_system(path, *words, killed=""):
    """What a command says in a namespace where the store's file system is mounted read-only."""
    return subprocess.run(
        [*MOUNTING, sys.executable, "-c", READER, str(path), killed, *words, "--store", "sqlite:/mnt/log.db"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(path.parent)},
        check=False,
    )


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a file system")
def test_commands_read_a_store_on_a_read_only_file_system(tmp_path):
    path = tmp_path / "log.db"

    async def fill():
        await (await write(path)).close()

    asyncio.run(fill())
    listed = on_a_read_only_file_system(path, "list", "--read-only")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "wf_a" in listed.stdout
    events = on_a_read_only_file_system(path, "events", "wf_a", "--no-follow")
    assert events.returncode == 0, events.stderr
    assert [json.loads(line)["offset"] for line in events.stdout.splitlines()] == [0, 1, 2]
    refused = on_a_read_only_file_system(path, "rm", "wf_a")
    assert refused.returncode in (5, 74), refused.stderr


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a file system")
@pytest.mark.parametrize(
    "index",
    [pytest.param("killed", id="with its index", marks=pytest.mark.slow), pytest.param("", id="without it")],
)
def test_events_that_are_only_in_the_write_ahead_log_are_not_left_out(tmp_path, index):
    """A killed process has left them there; where they cannot be read, that is said."""
    path = tmp_path / "log.db"
    acknowledged = [int(word) for word in run_appender(f"sqlite:{path}", "wf_a", 30)]

    async def leave_a_log():
        log = SqliteLog(path)
        await log.append(batch(max(acknowledged) + 1, workflow_id="wf_a", epoch=await claimed(log)))
        for suffix in ("", "-wal", "-shm"):
            shutil.copy(f"{path}{suffix}", f"{tmp_path}/copy{suffix}")
        await log.close()

    async def claimed(log):
        return await log.claim("wf_a", this_process())

    asyncio.run(leave_a_log())
    for suffix in ("", "-wal", "-shm"):
        shutil.move(f"{tmp_path}/copy{suffix}", f"{path}{suffix}")
    events = on_a_read_only_file_system(path, "events", "wf_a", "--no-follow", killed=index)
    offsets = [json.loads(line)["offset"] for line in events.stdout.splitlines()]
    if events.returncode == 0:
        assert offsets == list(range(max(acknowledged) + 2))
    else:
        assert events.returncode == 74
        assert "holds events that are not in it yet" in events.stderr
        assert "copy both files" in events.stderr


# -- what opening says


def test_a_header_that_was_overwritten_is_damage(tmp_path):
    path = tmp_path / "log.db"

    async def fill():
        await (await write(path)).close()

    asyncio.run(fill())
    whole = path.read_bytes()
    for start, stop in ((0, 16), (0, 40), (0, 100), (16, 24)):
        path.write_bytes(whole[:start] + os.urandom(stop - start) + whole[stop:])
        for open_it in (SqliteLog, ReadOnlySqliteLog):
            with pytest.raises(StoreError) as caught:
                open_it(path)
            assert not isinstance(caught.value, ConfigurationError)
            assert isinstance(caught.value, LogCorrupt), (start, stop, caught.value)


def test_a_truncated_store_is_damage(tmp_path):
    path = tmp_path / "log.db"

    async def fill():
        await (await write(path, 200)).close()

    asyncio.run(fill())
    whole = path.read_bytes()
    for length in (300, 5_000, len(whole) - 4_096):
        path.write_bytes(whole[:length])
        with pytest.raises(LogCorrupt):
            SqliteLog(path)


FAILING = """
import asyncio, sys
from agentflow.cli import main
sys.argv = ["agentflow", "list", "--store", sys.argv[1]]
main()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("openat", "EACCES"),
        pytest.param("openat", "EIO", marks=pytest.mark.slow),
        pytest.param("pread64", "EIO", marks=pytest.mark.slow),
    ],
)
def test_an_error_of_the_disk_at_open_is_an_error_of_storage(tmp_path, error, call):
    path = tmp_path / "log.db"

    async def fill():
        await (await write(path)).close()

    asyncio.run(fill())
    said = subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", os.devnull, "-P", str(path)),
            *("-e", f"trace={call}", "-e", f"inject={call}:error={error}"),
            *(sys.executable, "-c", FAILING, f"sqlite:{path}"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)},
        check=False,
    )
    assert said.returncode == 74, said.stderr
    assert said.stderr.startswith("error storage_unavailable: ")
    assert "hint:" in said.stderr


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_an_input_output_error_of_a_write_is_final_and_the_hint_names_the_disk(tmp_path):
    """SQLite gives the code that a quota gives too; the disk of this one has space."""
    log = await write(tmp_path / "log.db")
    tracer = subprocess.Popen(  # noqa: ASYNC220
        [
            *("strace", "-f", "-qq", "-o", os.devnull, "-P", str(tmp_path / "log.db-wal")),
            *("-p", str(os.getpid()), "-e", "trace=pwrite64", "-e", "inject=pwrite64:error=EIO"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        offset, refused = 3, None
        async with asyncio.timeout(20):
            while refused is None:
                try:
                    await log.append(batch(offset))
                    offset += 1
                except StoreError as error:
                    refused = error
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
    assert not refused.transient, refused
    assert log.failure is not None
    assert "check it" in refused.hint
    assert "space" not in refused.hint
    with pytest.raises(StoreError):
        await log.append(batch(offset))
    await log.close()
