"""Owner of a run: one incarnation of one process.

Two facts tell whether an owner lives. On a store that processes share, it holds an operating-system lock on
a file beside the store (`owner_locks`), which the kernel releases when the process ends and which is seen
from every container that mounts the volume. An owner without such a lock (a store of one process, a row of
the first version) is looked up by process id; the id alone is not enough, since ids are used again, so the
owner also names when its process started.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from agentflow.errors import Fenced
from agentflow.events.forked import after_fork

__all__ = ["Owner", "next_epoch", "this_process"]


class Owner(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process incarnation."""

    pid: int
    started: str
    """Tells two processes of one pid apart."""
    token: str
    """Tells two owners in one process apart."""
    lock: str = ""
    """Name of the lock file that the process holds where stores are shared; "" in rows of version 1."""

    def alive(self) -> bool:
        """Return whether that process still runs, as far as this machine's process ids tell."""
        started = _started(self.pid)
        return started is not None and started == self.started


_current: Owner | None = None


def this_process() -> Owner:
    """Return the owner that stands for this process; the same at every call, another one after a fork."""
    global _current
    pid = os.getpid()
    if _current is None or _current.pid != pid:
        _current = Owner(pid, _started(pid) or "", secrets.token_hex(8), secrets.token_hex(16))
    return _current


def _forget() -> None:
    global _current
    _current = None


after_fork(_forget)


def next_epoch(
    workflow_id: str, epoch: int, holder: Owner | None, claimant: Owner, alive: bool | None = None
) -> int:
    """Return the epoch at which `claimant` owns a run that `holder` has at `epoch`.

    `alive`: whether the holder lives, where the store knows it by a lock; else its pid is looked up.
    Raises Fenced while the holder lives.
    """
    if holder == claimant:
        return epoch
    if holder is not None and (holder.alive() if alive is None else alive):
        raise Fenced(
            f"{workflow_id} is owned by process {holder.pid}, which is running",
            hint=f"use that process, or end it (pid {holder.pid}, by its own count) and try again",
        )
    return epoch + 1


def _started(pid: int) -> str | None:
    """Return a text that no other process of this pid has had, or None if there is no such process now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return _started_without_proc(pid)
    except OSError:
        return None
    # The command name, in parentheses, may hold blanks; start time is field 22, state field 3.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in ("Z", "X"):  # ended, but not yet waited for
        return None
    return f"{_boot_id()}:{fields[19]}"


def _started_without_proc(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return ""
    return ""


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
