"""The kernel's own view: strace notes every call that a program makes to its files, or kills it at one."""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.calls import Call

__all__ = ["CHANGES", "record", "run_killed", "strace_works"]

ROOT = Path(__file__).parents[2]
CHANGES = (
    *("write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "ftruncate", "truncate", "fallocate"),
    *("unlink", "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat"),
)
"""Every call by which a file may be changed or made durable."""


@functools.cache
def strace_works() -> bool:
    """Whether a program can be traced here; containers often forbid it."""
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(["strace", "-f", "-o", os.devnull, "true"], capture_output=True, check=False)
    return done.returncode == 0


def _spawn(command: list[str], *arguments: str) -> tuple[int, list[str]]:
    """Run the workload under strace; its code and the lines that it said, through a socket: the calls for
    that are none of those that are counted."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                ["strace", "-f", *command, sys.executable, "-B", "-m", "tests.faults.workload", *arguments],
                cwd=ROOT,
                stdout=theirs,
                stderr=subprocess.PIPE,
            )
        with process:
            said = b""
            while chunk := ours.recv(1 << 16):
                said += chunk
            _, errors = process.communicate()
    code = process.returncode
    assert code in (0, -9, 137), errors.decode()
    return code, [line.decode() for line in said.split(b"\n")[:-1]]


def run_killed(call: str, number: int, *arguments: str, only: Path | None = None) -> tuple[bool, list[str]]:
    """Kill the workload when one of its threads makes `call` (on the file `only`) for the n-th time; whether
    it came to that, and what was said before."""
    command = ["-e", f"trace={call}", "-o", os.devnull]
    command += ["-e", f"inject={call}:signal=SIGKILL:when={number}"]
    if only is not None:
        command += ["-P", str(only)]
    code, said = _spawn(command, *arguments)
    return code != 0, said


def record(root: Path, trace: Path, *arguments: str) -> list[Call]:
    """What the workload did below `root`, noted in the file `trace`."""
    command = ["-y", "-xx", "-s", "1000000", "-o", str(trace)]
    command += ["-e", f"trace={','.join(CHANGES)},openat,sendto"]
    code, _ = _spawn(command, *arguments)
    assert code == 0
    reader = _Reader(str(root.resolve()))
    with trace.open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            reader.take(line.rstrip("\n"))
    return reader.calls


_LINE = re.compile(r"(\d+) +(.*)")
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_HEX = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"(\d+)<([^>]*)>")


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode() if "\\x" in escaped else escaped


@dataclass
class _Reader:
    """Makes calls of lines. A call that took a while stands in two, with those of other threads between."""

    root: str
    calls: list[Call] = field(default_factory=list)
    _begun: dict[str, str] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _directories: set[str] = field(default_factory=lambda: {"."})
    _ends: dict[str, int] = field(default_factory=dict)

    def take(self, line: str) -> None:
        match = _LINE.match(line)
        if match is None:
            return
        pid, text = match.groups()
        if text.endswith(_UNFINISHED):
            text = text.removesuffix(_UNFINISHED)
            self._begun[pid] = text
            for call in self._sync(text, "sync_begins"):
                self.calls.append(call)
            return
        resumed = _RESUMED.match(text)
        if resumed is not None:
            text = self._begun.pop(pid) + resumed[1]
        call = _CALL.match(text)
        if call is not None and int(call[3]) >= 0:
            self.calls += self._calls(call[1], call[2], int(call[3]))

    def _below(self, path: str) -> str | None:
        if path == self.root:
            return "."
        if not path.startswith(self.root + "/") or path.endswith(("-shm", " (deleted)")):
            return None
        return path[len(self.root) + 1 :]

    def _sync(self, text: str, kind: str) -> Generator[Call, None, None]:
        name, _, arguments = text.partition("(")
        fd = _FD.match(arguments)
        path = self._below(_text(fd[2])) if fd is not None else None
        if name in ("fsync", "fdatasync") and path is not None and path not in self._directories:
            yield Call(kind, path)  # type: ignore[arg-type]

    def _calls(self, name: str, arguments: str, result: int) -> Generator[Call, None, None]:
        if name.startswith(("openat", "unlink", "rename", "mkdir")):
            paths = [self._below(_text(found)) for found in _HEX.findall(arguments)]
            yield from self._on_names(name, arguments, paths)
            return
        fd = _FD.match(arguments)
        if fd is None:
            return
        if name == "sendto" and fd[1] == "1":
            yield Call("said", "", data=self._data(arguments).rstrip(b"\n"))
            return
        path = self._below(_text(fd[2]))
        if path is None:
            return
        if name in ("write", "pwrite64"):
            at = int(arguments.rsplit(",", 1)[1]) if name == "pwrite64" else self._ends.get(path, 0)
            self._ends[path] = at + result
            yield Call("write", path, at, self._data(arguments)[:result])
        elif name == "ftruncate":
            yield Call("truncate", path, int(arguments.rsplit(",", 1)[1]))
        elif name in ("fsync", "fdatasync"):
            yield Call("sync_directory" if path in self._directories else "sync", path)
        else:
            raise AssertionError(f"{name} of {path} is not known to the disk")

    def _on_names(self, name: str, arguments: str, paths: list[str | None]) -> Generator[Call, None, None]:
        path = paths[0]
        if path is None:
            return
        if name == "openat":
            if "O_CREAT" in arguments and path not in self._names:
                self._names.add(path)
                yield Call("create", path)
            elif "O_TRUNC" in arguments:
                yield Call("truncate", path)
            if "O_TRUNC" in arguments or "O_EXCL" in arguments:
                self._ends[path] = 0
        elif name.startswith("mkdir"):
            self._names.add(path)
            self._directories.add(path)
            yield Call("mkdir", path)
        elif name.startswith("unlink"):
            self._names.discard(path)
            yield Call("unlink", path)
        else:
            assert name.startswith("rename")
            assert paths[1] is not None
            self._names.discard(path)
            self._names.add(paths[1])
            yield Call("rename", path, to=paths[1])

    @staticmethod
    def _data(arguments: str) -> bytes:
        found = _HEX.search(arguments)
        assert found is not None
        return bytes.fromhex(found[1].replace("\\x", ""))
