"""Program that starts one command under limits and ends all that the command leaves behind.

It runs by itself, as `python -I -S confined_launcher.py SPEC`, and imports the standard library alone. Where
Linux lets it, the command has a PID namespace with a /proc of its own: it can neither see nor signal what is
outside, so that no environment of the daemon is read there, and all that it starts ends with its init.
Elsewhere this program is the reaper of its descendants: a process that leaves its session, or whose parent
ends, stays below it and is found. It ends with the exit status of the command, 128 + n for signal n.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02
_KILL_TIMEOUT_S = 3.0
_TOO_MANY = 125
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18


class _Stop(Exception):
    """SIGTERM: the time is over, or the daemon has gone."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stop


def main() -> int:
    spec = json.loads(sys.argv[1])
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _stop)
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the daemon ended before it could tell
        return 1
    child, own = _start_isolated(spec)
    if child == 0:
        child = os.fork()
        if child == 0:
            _exec(spec)
    try:
        return _wait(child, spec["processes"], own)
    except _Stop:
        return 124
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _kill_all(child)


def _start_isolated(spec: dict[str, Any]) -> tuple[int, int]:
    """Start the command in a PID namespace; return the process that ends with its status, and how many
    processes of this program there are below this one. (0, 0) if the system does not let it."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.close(ours)
            _hold(spec, theirs)
        os._exit(1)
    os.close(theirs)
    with open(ours, "rb") as answer:
        if answer.read(1):
            return child, 2
    os.waitpid(child, 0)
    return 0, 0


def _hold(spec: dict[str, Any], answer: int) -> None:
    """Make the namespace, and wait for its init: whoever makes one stays outside."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | (_CLONE_NEWUSER if uid else 0)) != 0:
        return
    if uid:  # only what its user is outside
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
    init = os.fork()
    if init == 0:
        with suppress(BaseException):
            _be_init(spec, libc, answer)
        os._exit(1)
    os.close(answer)
    code = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _be_init(spec: dict[str, Any], libc: Any, answer: int) -> None:
    """Be the first process of the namespace: when it ends, the kernel kills all others."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    hidden = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    if libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        return
    if libc.mount(b"proc", b"/proc", b"proc", hidden, None) != 0:
        return
    child = os.fork()
    if child == 0:
        _exec(spec)
    os.write(answer, b"1")
    os.close(answer)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _exec(spec: dict[str, Any]) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        for kind, limit in (
            (resource.RLIMIT_AS, spec["memory"]),
            (resource.RLIMIT_CPU, spec["cpu"]),
            (resource.RLIMIT_FSIZE, spec["files"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, 256),
        ):
            hard = resource.getrlimit(kind)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, limit))
        command: list[str] = spec["command"]
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(127)


def _wait(child: int, most: int, own: int) -> int:
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
            if pid == 0:
                break
        if len(_descendants()) > most + own:
            sys.stderr.write(f"more than {most} processes: all were killed\n")
            sys.stderr.flush()
            return _TOO_MANY
        time.sleep(_POLL_S)


def _descendants() -> set[int]:
    """Return the processes below this one. Without /proc, none."""
    parents: dict[int, int] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return set()
    for name in names:
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as stream:
                fields = stream.read().rpartition(b")")[2].split()
                if fields[0] != b"Z":
                    parents[int(name)] = int(fields[1])
    own = os.getpid()
    found: set[int] = set()
    for pid in parents:
        line: list[int] = []
        at = pid
        while at in parents and at != own and at not in found and len(line) < 10_000:
            line.append(at)
            at = parents[at]
        if at == own or at in found:
            found.update(line)
    return found


def _kill_all(child: int) -> None:
    """Stop every descendant, so that none starts another meanwhile, and kill them, until none is left."""
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    end = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < end:
        left = _descendants()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, number)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if not left:
            return
        time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
