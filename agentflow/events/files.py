"""Directories and files that outlive a power failure."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = [
    "make_directories",
    "make_durable",
    "put_file",
    "replace_file",
    "sync_directory",
    "sync_file",
    "sync_path",
]

_PART = 64 << 10


def make_directories(directory: Path) -> None:
    """Make what is missing, durably, for the owner alone (the rule of the XDG base directories). OSError."""
    missing = [p for p in (directory, *directory.parents) if not p.exists()]
    for level in reversed(missing):
        level.mkdir(mode=0o700, exist_ok=True)
        sync_directory(level.parent)


def open_durably(path: Path) -> int:
    """Open a file to read and write; its name is durable, also if it was created now. Raises OSError."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        sync_directory(path.parent)
    except OSError:
        os.close(fd)
        raise
    return fd


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable. OSError."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable, whichever process wrote them. OSError."""
    sync_directory(path)  # it is the same call


def sync_path(directory: Path) -> None:
    """Make `directory` itself durable, and all above it: a process that made one of them may have died before
    it synced the one above. What this user must not open was not made by this user."""
    for level in directory.parents:
        with contextlib.suppress(OSError):
            sync_directory(level)


def put_file(path: Path, data: bytes) -> None:
    """Write a file that is either whole and durable or not there; one that exists stays. OSError."""
    if path.exists():
        sync_directory(path.parent)  # the process that put it there may have died before this
    else:
        replace_file(path, data)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that at any time the old or the new one is there, whole; durable at return. OSError."""
    draft = path.with_name(path.name + ".tmp")
    fd = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def make_durable(path: Path, start: int | None = None) -> None:
    """Sync a file from `start` on (None: its last part) to the disk. Raises OSError.

    A process that was killed may have left its last write to the page cache, and one whose sync failed has
    left pages there that count as clean. Written again they are not, and this sync is a true one.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        at = max(0, size - _PART) if start is None else start
        while at < size:
            at += os.pwrite(fd, os.pread(fd, min(size - at, 1 << 20), at), at)
        os.fsync(fd)
    finally:
        os.close(fd)
