"""Who owns a run: one incarnation of one process on this machine.

A process id alone is not enough, since ids are used again: the owner also names when its process started.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec

from agentflow.errors import Fenced

__all__ = ["Owner", "next_epoch", "this_process"]


class Owner(msgspec.Struct, frozen=True):
    """A process incarnation: `started` tells two processes of one pid apart, `token` two owners in one."""

    pid: int
    started: str
    token: str

    def alive(self) -> bool:
        """Whether that process still runs on this machine."""
        started = _started(self.pid)
        return started is not None and started == self.started


_current: Owner | None = None


def this_process() -> Owner:
    """The owner that stands for this process; the same at every call, another one after a fork."""
    global _current
    pid = os.getpid()
    if _current is None or _current.pid != pid:
        _current = Owner(pid, _started(pid) or "", secrets.token_hex(8))
    return _current


def next_epoch(workflow_id: str, epoch: int, holder: Owner | None, claimant: Owner) -> int:
    """The epoch at which `claimant` owns a run that `holder` has at `epoch`; Fenced while that one lives."""
    if holder == claimant:
        return epoch
    if holder is not None and holder.alive():
        raise Fenced(
            f"{workflow_id} is owned by process {holder.pid}, which is running",
            hint=f"use that process, or end it (pid {holder.pid}) and try again",
        )
    return epoch + 1


def _started(pid: int) -> str | None:
    """A text that no other process of this pid has had, or None if there is no such process now."""
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
