"""Opens a directory as a store: takes its lock, recovers what is there, says why it cannot be opened."""

from __future__ import annotations

import errno
import fcntl
import os

import msgspec

from agentflow.errors import AgentflowError, ConfigurationError, StoreError
from agentflow.events.files import make_directories, sync_path
from agentflow.events.rows import Notice
from agentflow.events.segments.closing import Closed, load_closed, save_closed
from agentflow.events.segments.files import PARTS, StoreFiles
from agentflow.events.segments.first_form import load_removed
from agentflow.events.segments.recovery import Recovered, recover
from agentflow.events.segments.store import SegmentStore

__all__ = ["Opened", "open_directory"]

# The path cannot be a store, whatever state the disk is in.
_WRONG_PATH = frozenset(
    {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)


class Opened(msgspec.Struct, frozen=True):
    """An open directory. `lock` is the descriptor that holds it; `store` is None if it is read-only."""

    lock: int | None
    found: Recovered
    store: SegmentStore | None


def open_directory(files: StoreFiles, *, read_only: bool) -> Opened:
    """Open the store; one on a read-only file system is opened read-only.

    Raises ConfigurationError if the path cannot be a store, another process has it or a newer version wrote
    it, LogCorrupt if it is damaged and whose events are lost cannot be told, StoreError if the disk fails.
    """
    try:
        if not read_only:
            try:
                return _open(files, read_only=False)
            except OSError as error:
                if error.errno != errno.EROFS:
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
        if not read_only:
            files.probe_file.unlink(missing_ok=True)
        found = _recover(files, read_only=read_only)
        return Opened(lock, found, None if read_only else SegmentStore(files, found))
    except (OSError, AgentflowError):
        if lock is not None:
            os.close(lock)
        raise


def _recover(files: StoreFiles, *, read_only: bool) -> Recovered:
    closed = load_closed(files.closed)
    removed = load_removed(files.removed, closed, read_only=read_only)
    found = recover(files, removed, closed, read_only=read_only)
    if found.outdated and not read_only:
        save_closed(files.closed, Closed(found.segment, found.end, found.batch, removed.length, found.last))
    cut = removed.torn_bytes
    if cut and not read_only:
        text = f"{cut} bytes of a removal that was never acknowledged were cut off {files.removed.name}"
        found.notices.append(Notice(kind="torn_tail", text=text, bytes=cut))
    return found


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
    except OSError as error:
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise
        raise ConfigurationError(
            f"the store {files.directory} is in use by another process",
            hint="use that process, read a copy (`agentflow backup`), or use a `sqlite:` store, "
            "which several can share",
        ) from error
    return lock
