"""A log or Runtime that is used in a child of `os.fork` fails at once; the parent goes on (durability 4)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress

import pytest

from agentflow.errors import LogFailed
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.runtime import Runtime
from tests.unit.events.support import all_offsets, batch

DOCUMENT = "workflow: {name: w, steps: [{id: a, type: tool, function: noop}]}"


def in_child(work):
    """What `work()`, awaited in a new loop, raised in a forked child, as text; also whether it hung."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(work())
            said = "nothing was raised"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    until = time.monotonic() + 10
    ended = 0
    while not ended and time.monotonic() < until:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    if not ended:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    said = os.read(read, 4_096).decode()
    os.close(read)
    return said if ended else "it hung"


@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/log.db"])
def test_every_use_of_a_log_in_a_child_is_refused(tmp_path, url):
    with asyncio.Runner() as runner:
        log = open_log(url.format(tmp_path))

        async def append(offset):
            await log.append(batch(offset))

        runner.run(append(0))

        async def write():
            await log.append(batch(1))

        calls = [
            write,
            lambda: log.read("wf_a"),
            lambda: log.run("wf_a"),
            lambda: log.runs(),
            lambda: log.query(),
            lambda: log.claim("wf_a", this_process()),
            lambda: log.put_blob(b"x"),
            lambda: log.probe(),
            lambda: log.close(),
        ]
        for call in calls:
            said = in_child(call)
            assert said.startswith("LogFailed: the store was opened before this process was forked"), said
        runner.run(append(1))
        assert runner.run(all_offsets(log, "wf_a")) == [0, 1]
        runner.run(log.close())


def test_a_log_that_was_not_used_before_the_fork_is_refused_too(tmp_path):
    log = open_log(f"sqlite:{tmp_path}/log.db")

    async def write():
        await log.append(batch(0))

    async def write_and_close():
        await write()
        await log.close()

    assert in_child(write).startswith("LogFailed")
    asyncio.run(write_and_close())


def test_a_runtime_in_a_child_refuses_a_submission(tmp_path):
    with asyncio.Runner() as runner:
        runtime = Runtime(f"sqlite:{tmp_path}/log.db")
        runner.run(runtime.__aenter__())
        for call in (
            lambda: runtime.submit(DOCUMENT),
            lambda: runtime.run(DOCUMENT),
            lambda: runtime.rows(),
            lambda: runtime.recover(),
            lambda: runtime.cancel("wf_a"),
            lambda: runtime.__aexit__(None, None, None),
        ):
            said = in_child(call)
            assert said.startswith("LogFailed: the Runtime was opened before this process was forked"), said
        assert runner.run(runtime.rows()) == []
        runner.run(runtime.__aexit__(None, None, None))


def test_a_runtime_that_is_opened_in_the_child_works(tmp_path):
    """As servers do that load the application first and fork then."""
    runtime = Runtime(f"sqlite:{tmp_path}/log.db")

    async def opened():
        async with runtime:
            await runtime.log.append(batch(0))
            assert runtime.log.is_alive((await runtime.log.run("wf_a")).owner)
            assert runtime.owner.lock == this_process().lock

    assert in_child(opened) == "nothing was raised"


def test_a_fork_inside_the_loop_is_refused_as_well(tmp_path):
    async def main():
        log = open_log(f"sqlite:{tmp_path}/log.db")
        await log.append(batch(0))
        pid = os.fork()
        if pid == 0:
            try:
                log.append(batch(1))
            except LogFailed:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7  # noqa: ASYNC222
        await log.append(batch(1))
        await log.close()

    asyncio.run(main())
