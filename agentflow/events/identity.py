"""Tells whether the files that are open are still those at their paths.

A deleted, moved or replaced file goes on taking writes through its open descriptor, and they are on no disk
that the next start will read. An inode is not given to another file while a descriptor holds it, so device
and inode tell.
"""

from __future__ import annotations

import os
from pathlib import Path

from agentflow.errors import LogFailed

__all__ = ["FileIdentity", "store_lost"]


class FileIdentity:
    """Device and inode of an open file, and the path at which it must stay.

    `descriptor` is that of the open file; without it the file that is at the path now is meant. A file of
    less than `least` bytes was emptied by another program.
    """

    __slots__ = ("_least", "_name", "_shown", "path")

    def __init__(self, path: Path, descriptor: int | None = None, *, least: int = 0) -> None:
        status = os.stat(path) if descriptor is None else os.fstat(descriptor)
        self.path = path
        self._name = str(path)  # it is looked up at every commit
        self._shown = (status.st_dev, status.st_ino)
        self._least = least

    def problem(self) -> str | None:
        """Return what happened to the file, or None if it is still there. One system call."""
        try:
            status = os.stat(self._name)
        except FileNotFoundError:
            return f"{self.path} was deleted or moved"
        except OSError as error:
            return f"{self.path} cannot be found any more: {error.strerror}"
        if (status.st_dev, status.st_ino) != self._shown:
            return f"{self.path} was replaced by another file"
        if status.st_size < self._least:
            return f"{self.path} was emptied"
        return None

    def verify(self) -> None:
        """Raise LogFailed unless the file is still at its path."""
        problem = self.problem()
        if problem is not None:
            raise store_lost(problem)


def store_lost(problem: str) -> LogFailed:
    """Return the failure of a log whose file has gone from its path."""
    return LogFailed(
        f"the store failed: {problem}; nothing was acknowledged since",
        hint="stop this process, put the store back or restore a copy, then start again",
    )
