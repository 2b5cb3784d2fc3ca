"""Opens a directory as a store: takes its lock, recovers what is there, says why it cannot be opened."""

from __future__ import annotations

import errno
import fcntl
import os

from agentflow.errors import AgentflowError, ConfigurationError, StoreError
from agentflow.events.files import make_directories, sync_path
from agentflow.events.rows import Notice
from agentflow.events.segments.files import PARTS, StoreFiles
from agentflow.events.segments.index import Index
from agentflow.events.segments.recovery import recover
from agentflow.events.segments.store import SegmentStore

__all__ = ["Opened", "open_directory"]

# The path cannot be a store, whatever state the disk is in.
_WRONG_PATH = frozenset(
    {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)


Opened = tuple[int | None, Index, list[Notice], SegmentStore | None]
"""The descriptor that holds the lock, what was found, and the store to write to, None if it is read-only."""


def open_directory(files: StoreFiles, *, read_only: bool) -> Opened:
    """Open the store; one on a read-only file system is opened read-only.

    Raises ConfigurationError if the path cannot be a store, another process has it or a newer version wrote
    it, LogCorrupt if it is damaged and whose events are lost cannot be told, StoreError if the disk fails.
    """
    try:
        try:
            return _open(files, read_only=read_only)
        except OSError as error:
            if read_only or error.errno != errno.EROFS:
                raise
            return _open(files, read_only=True)
    except OSError as error:
        problem = f"the store {files.directory} cannot be opened: {error.strerror}"
        if error.errno in _WRONG_PATH:
            hint = "choose a directory that you may write to (`--store file:DIR`)"
            raise ConfigurationError(problem, hint=hint) from error
        hint = "check the disk, and that the directory and its files may be read and written"
        raise StoreError(problem, hint=hint) from error


def _open(files: StoreFiles, *, read_only: bool) -> Opened:
    if read_only and not files.segments.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no store to read")
    if not read_only:
        for part in PARTS:
            make_directories(files.directory / part)
        sync_path(files.segments)
    lock = _take_lock(files, read_only=read_only)
    try:
        index, notices = recover(files, read_only=read_only)
        return lock, index, notices, None if read_only else SegmentStore(files, index)
    except (OSError, AgentflowError):
        if lock is not None:
            os.close(lock)
        raise


def _take_lock(files: StoreFiles, *, read_only: bool) -> int | None:
    """Take the directory for this process: it is free again when the descriptor is closed, by a kill too.

    A copy that is only read may be without a lock file. A forked child has to close its descriptor (see
    `forked`); programs that are started do not inherit it.
    """
    try:
        lock = os.open(files.lock, os.O_RDONLY if read_only else os.O_CREAT | os.O_RDWR, 0o600)
    except FileNotFoundError:
        if read_only:
            return None
        raise
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if read_only else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigurationError(
            f"the store {files.directory} is in use by another process",
            hint="use that process, read a copy (`agentflow backup`), or use a `sqlite:` store, "
            "which several can share",
        ) from error
    except OSError:
        os.close(lock)
        raise
    return lock
