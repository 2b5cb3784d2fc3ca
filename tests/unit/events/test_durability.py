"""What every durable log survives: kill -9 at any moment, and a disk that fails to sync."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from agentflow.errors import LogClosed, LogFailed, StorageUnavailable
from agentflow.events.open import open_log
from tests.unit.events.support import all_offsets, batch, run_appender, start_appender


@pytest.fixture(params=["sqlite", "file"])
def url(request, tmp_path):
    return f"{request.param}:{tmp_path}/log"


async def check_gapless(url, workflow_id, acknowledged):
    log = open_log(url)
    offsets = await all_offsets(log, workflow_id)
    assert offsets == list(range(len(offsets)))
    assert len(offsets) > acknowledged
    assert await log.last(workflow_id) == len(offsets) - 1
    await log.close()


def test_nothing_acknowledged_is_lost_when_the_process_is_killed(url):
    seed = random.Random(7)
    acknowledged = -1
    for _ in range(8):
        process = start_appender(url, "wf_k")
        with process:
            lines = [process.stdout.readline()]  # it runs, and at least one batch is acknowledged
            time.sleep(seed.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        assert all(line.strip().isdigit() for line in lines[:-1]), lines
        whole = [int(line) for line in lines if line.endswith(b"\n")]
        assert whole == sorted(whole)
        acknowledged = max(acknowledged, *whole)
        asyncio.run(check_gapless(url, "wf_k", acknowledged))


FAILING_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static int left = -1;
static int fails(void) {
    if (left < 0) left = atoi(getenv("SYNCS_THAT_SUCCEED"));
    if (left == 0) { left = 1000000; errno = EIO; return 1; }  /* one failure; later ones succeed, falsely */
    left--;
    return 0;
}
int fsync(int fd) { return fails() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int fdatasync(int fd) { return fails() ? -1 : ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
"""


@pytest.fixture(scope="module")
def failing_sync(tmp_path_factory):
    """A library that makes one sync of a program fail, as a dying disk does."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    directory = tmp_path_factory.mktemp("sync")
    source, library = directory / "sync.c", directory / "sync.so"
    source.write_text(FAILING_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def test_the_first_failed_sync_ends_the_log(url, failing_sync):
    run_appender(url, "wf_s", 5)
    lines = run_appender(url, "wf_s", 400, LD_PRELOAD=str(failing_sync), SYNCS_THAT_SUCCEED="12")
    failed = lines.index("LogFailed")
    acknowledged = [int(line) for line in lines[:failed]]
    assert acknowledged, "the sync failed before anything was acknowledged; raise the number"
    assert {line for line in lines[failed:] if line != "failure"} == {"LogFailed"}
    assert lines[-2:] == ["failure", "LogFailed"]
    asyncio.run(check_gapless(url, "wf_s", acknowledged[-1]))
    assert int(run_appender(url, "wf_s", 1)[-1]) > acknowledged[-1]  # a new process goes on


async def test_a_store_that_takes_nothing_says_so_and_when_that_is_over(url):
    """With no space left, as by a quota: nothing is acknowledged, no offset used; `probe` tells the end."""
    log = open_log(url)
    await log.append(batch(0, 2))
    await log.probe()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        for call in (
            lambda: log.append(batch(2)),
            lambda: log.put_blob(b"blob"),
            lambda: log.put_definition("h", b"source"),
            lambda: log.save_cursor("c", "cursor"),
            log.probe,
            lambda: log.append(batch(2)),
        ):
            with pytest.raises(StorageUnavailable) as caught:
                await call()
            assert caught.value.transient
            assert caught.value.hint
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.failure is None
    assert await log.load_cursor("c") is None
    await log.probe()
    await log.append(batch(2))
    assert await all_offsets(log, "wf_a") == [0, 1, 2]
    await log.close()
    with pytest.raises(LogClosed) as closed:
        await log.probe()
    assert closed.value.transient  # another process may open it
    assert not isinstance(closed.value, LogFailed)


async def test_after_a_failed_sync_nothing_is_asked_to_wait(tmp_path, monkeypatch):
    log = open_log(f"file:{tmp_path}/log")
    await log.append(batch(0))

    def fail(fd):
        raise OSError(errno.EIO, "the disk is dying")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        with pytest.raises(LogFailed):
            await log.append(batch(1))
    for call in (log.append(batch(1)), log.probe(), log.put_blob(b"x"), log.save_cursor("c", "x")):
        with pytest.raises(LogFailed) as caught:
            await call
        assert not caught.value.transient
    assert isinstance(log.failure, LogFailed)
    assert await all_offsets(log, "wf_a") == [0]
    await log.close()
