"""Commands of a model as processes with limits: time, output, memory, processes, directory, environment.

Where Linux lets it, a command sees no processes but its own. What files it may read are those of its user:
run the daemon as a user, or in a container, that has no more than commands may have.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

__all__ = ["Limits", "Outcome", "is_started_here", "run_confined"]

_LAUNCHER: Final = str(Path(__file__).with_name("confined_launcher.py"))
_GRACE_S: Final = 5.0
_MAX_ANCESTORS: Final = 256
_at_work: set[int] = set()
"""Launchers of commands that are at work."""
_POLL_S: Final = 0.1
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one command. `output_bytes` counts standard output and standard error apart."""

    timeout_s: float
    output_bytes: int
    memory_bytes: int
    processes: int
    file_bytes: int = 1 << 30


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command came to. `exit_code` is 128 + n for signal n; None if its time was over."""

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool
    truncated: bool


async def run_confined(
    command: Sequence[str], folder: Path, limits: Limits, *, stdin: bytes | None = None
) -> Outcome:
    """Run a command in a folder and return when it, and all that it started, has ended.

    At the end of its time, or if the caller is cancelled, every process that it started is killed, also one
    that left its session. Nothing of this process's environment is handed on. Raises OSError.
    """
    spec: dict[str, Any] = {
        "command": list(command),
        "memory": limits.memory_bytes,
        "processes": limits.processes,
        "files": limits.file_bytes,
        "cpu": int(limits.timeout_s) + 1,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", _LAUNCHER),
        msgspec.json.encode(spec).decode(),
        stdin=DEVNULL if stdin is None else PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
        env={"PATH": _PATH, "HOME": str(folder), "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    _at_work.add(process.pid)
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        asyncio.create_task(_read(pipe, limits.output_bytes)) for pipe in (process.stdout, process.stderr)
    ]
    feeder = asyncio.create_task(_feed(process, stdin))
    timed_out = False
    try:
        try:
            async with asyncio.timeout(limits.timeout_s):
                await _exited(process)
        except TimeoutError:
            timed_out = True
            await _end(process)
        if process.returncode is not None and process.returncode < 0:
            await asyncio.to_thread(_kill_session, process.pid)
        found = await asyncio.wait_for(asyncio.gather(*readers), _GRACE_S)
    except TimeoutError:  # a process that cannot be killed holds a pipe
        found = [(b"", True), (b"", True)]
    finally:
        _at_work.discard(process.pid)
        if process.returncode is None:
            await asyncio.shield(asyncio.ensure_future(_end(process)))
        for task in (feeder, *readers):
            task.cancel()
        await asyncio.gather(feeder, *readers, return_exceptions=True)
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()
    (stdout, cut_out), (stderr, cut_err) = found
    return Outcome(
        exit_code=None if timed_out else process.returncode,
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        timed_out=timed_out,
        truncated=cut_out or cut_err,
    )


def is_started_here(pid: int) -> bool:
    """Return whether a process was started by a command that this process runs now, directly or not."""
    for _ in range(_MAX_ANCESTORS):
        if pid in _at_work:
            return True
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            pid = int(fields[1])  # behind the name: state, parent
        except (OSError, IndexError, ValueError):
            return False
        if pid <= 1:
            return False
    return False


async def _read(pipe: asyncio.StreamReader, limit: int) -> tuple[bytes, bool]:
    """Return the first bytes of a pipe, and whether there were more: those are read and thrown away, so that
    the process does not wait for a reader."""
    kept = bytearray()
    cut = False
    while part := await pipe.read(1 << 16):
        room = limit - len(kept)
        kept += part[:room]
        cut = cut or len(part) > room
    return bytes(kept), cut


async def _feed(process: Process, stdin: bytes | None) -> None:
    if stdin is None or process.stdin is None:
        return
    with suppress(OSError):
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()


async def _exited(process: Process) -> None:
    """Wait until the launcher has ended; `wait` alone also waits for all that hold its pipes."""
    ended = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None and not ended.done():
            await asyncio.wait({ended}, timeout=_POLL_S)
    finally:
        ended.cancel()


def _kill_session(session: int) -> None:
    """Kill what is left of a session whose launcher was killed, as its command can do."""
    for _ in range(10):
        left: list[int] = []
        for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
            with suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", name, "stat").read_bytes() if name.isdigit() else b""
                fields = stat.rpartition(b")")[2].split()
                if fields and fields[0] != b"Z" and int(fields[3]) == session:
                    left.append(int(name))
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return


async def _end(process: Process) -> None:
    """Let the launcher kill what it started; then kill its group."""
    with suppress(ProcessLookupError):
        process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            await _exited(process)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(_kill_session, process.pid)
    await _exited(process)
