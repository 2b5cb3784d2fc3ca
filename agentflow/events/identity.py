"""Tells whether the files of an open store are still the files under its path.

Writes to a file whose directory was deleted succeed and are lost: the descriptor keeps the file alive until
it is closed. Device and inode of the path and of the descriptor differ then, or the path is gone. An inode
number is not used again while a descriptor is open, so a replaced file cannot pass for the old one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agentflow.errors import LogFailed

__all__ = ["CHECK_INTERVAL_S", "FileIdentity", "IdentityWatch"]

CHECK_INTERVAL_S = 0.5
"""Seconds between two checks of an open store; a loss is to be noticed within one second."""


class FileIdentity(NamedTuple):
    """Device and inode of a file."""

    device: int
    inode: int

    @classmethod
    def of(cls, file: Path | int) -> FileIdentity:
        """Return the identity of a path or of a descriptor. Raises OSError."""
        found = os.stat(file)
        return cls(found.st_dev, found.st_ino)

    @classmethod
    def check(cls, path: Path, fd: int) -> None:
        """Raise LogFailed unless `path` is the file that is open as `fd`."""
        cls.of(fd).verify(path)

    def verify(self, path: Path) -> None:
        """Raise LogFailed unless `path` is this file."""
        try:
            same = FileIdentity.of(path) == self
            problem = "was replaced"
        except FileNotFoundError:
            same, problem = False, "was deleted"
        except OSError as error:
            same, problem = False, f"cannot be reached ({error.strerror})"
        if not same:
            raise LogFailed(
                f"{path} {problem} while the store was open",
                hint="put the store back and start again; nothing is acknowledged until then",
            )


class IdentityWatch:
    """Thread that calls `check` at each interval, so that an idle store notices its loss too.

    It ends when `check` returns False: then the store has failed for good.
    """

    def __init__(self, check: Callable[[], bool]) -> None:
        self._check = check
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="agentflow-log-watch", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended; return False if it has not by then. Blocks."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the thread; blocks until a check that runs is done."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(CHECK_INTERVAL_S) and self._check():
            pass
