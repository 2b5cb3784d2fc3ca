"""Presence check: the files of an open store are still at their paths, and the disk works.

The database is never opened here: closing any descriptor of it would give up the POSIX locks that SQLite
holds on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from agentflow.events.identity import FileIdentity

__all__ = ["StoreFiles", "side_file", "takes_writes"]

_SMALLEST_FILE = 512  # bytes; a database that was opened has a header at least

# After these nothing was written, and the same write may succeed later. Without a free descriptor nothing is
# known of the disk; a broken one fails the next write too.
_REFUSALS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE})


def side_file(path: Path, suffix: str) -> Path:
    """Return the path of `-wal` or `-shm`, which SQLite puts beside the file that a symbolic link names."""
    return Path(os.path.realpath(path) + suffix)


class StoreFiles:
    """The database, its write-ahead log and the index of that, as they are open in this process.

    Made when a connection has read or written, so that all three are there.
    """

    def __init__(self, path: Path) -> None:
        self.wal = side_file(path, "-wal")
        self._files = [FileIdentity(path, least=_SMALLEST_FILE)]
        for part in (self.wal, side_file(path, "-shm")):
            with contextlib.suppress(FileNotFoundError):
                self._files.append(FileIdentity(part))

    def problem(self) -> str | None:
        """Return what happened to one of the files, or None. Takes about 5 µs."""
        for file in self._files:
            problem = file.problem()
            if problem is not None:
                return problem
        return None

    def wal_bytes(self) -> int:
        """Return the length of the write-ahead log on the disk."""
        try:
            return self.wal.stat().st_size
        except OSError:
            return 0


def takes_writes(path: Path) -> bool:
    """Return False if the disk of the store refuses a write for lack of space, quota or permission, or if
    the process has no free descriptor to try it.

    SQLite reports such a refusal and a broken disk by the same code, so a small file is written at the
    position of the longest file of the store, which tells them apart.
    """
    probe = side_file(path, "-disk")
    at = 0
    for file in (path, side_file(path, "-wal")):
        with contextlib.suppress(OSError):
            at = max(at, file.stat().st_size)
    try:
        descriptor = os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(descriptor, bytes(64 << 10), at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.errno not in _REFUSALS
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return True
