"""Opens a directory as a store: takes its lock, recovers what is there, says why it cannot be opened."""

from __future__ import annotations

import errno
import fcntl
import os

from agentflow.errors import AgentflowError, ConfigurationError, StoreError
from agentflow.events.files import make_directories, sync_path
from agentflow.events.rows import Notice
from agentflow.events.segments.closing import Closed, load_closed, save_closed
from agentflow.events.segments.first_form import cut_removed, load_removed
from agentflow.events.segments.layout import PARTS, Layout
from agentflow.events.segments.recovery import Recovered, recover
from agentflow.events.segments.store import SegmentStore

__all__ = ["Opened", "open_directory"]

# The path cannot be a store, whatever state the disk is in.
_WRONG_PATH = frozenset(
    {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)


class Opened:
    """An open directory. `lock` is the descriptor that holds it; `store` is None if it is read-only."""

    def __init__(self, lock: int | None, found: Recovered, store: SegmentStore | None) -> None:
        self.lock = lock
        self.found = found
        self.store = store


def open_directory(layout: Layout, *, read_only: bool) -> Opened:
    """Open the store; one on a read-only file system is opened read-only.

    Raises ConfigurationError if the path cannot be a store, another process has it or a newer version wrote
    it, LogCorrupt if it is damaged and whose events are lost cannot be told, StoreError if the disk fails.
    """
    try:
        if not read_only:
            try:
                return _open_writable(layout)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
        return _open_read_only(layout)
    except OSError as error:
        if error.errno in _WRONG_PATH:
            raise ConfigurationError(
                f"the store {layout.directory} cannot be opened: {error.strerror}",
                hint="choose a directory that you may write to (`--store file:DIR`)",
            ) from error
        raise StoreError(
            f"the store {layout.directory} cannot be opened: {error.strerror}",
            hint="check the disk, and that the directory and its files may be read and written",
        ) from error


def _open_writable(layout: Layout) -> Opened:
    for part in PARTS:
        make_directories(layout.directory / part)
    sync_path(layout.directory / PARTS[0])
    lock = os.open(layout.lock, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        _take(lock, fcntl.LOCK_EX, layout)
        found = _recover(layout)
        return Opened(lock, found, SegmentStore(layout, found))
    except (OSError, AgentflowError):
        os.close(lock)
        raise


def _open_read_only(layout: Layout) -> Opened:
    if not layout.segments.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no store to read")
    try:
        lock = os.open(layout.lock, os.O_RDONLY)
    except FileNotFoundError:
        lock = None
    try:
        if lock is not None:
            _take(lock, fcntl.LOCK_SH, layout)
        closed = load_closed(layout.closed)
        found = recover(layout, load_removed(layout.removed, closed), closed, read_only=True)
        return Opened(lock, found, None)
    except (OSError, AgentflowError):
        if lock is not None:
            os.close(lock)
        raise


def _recover(layout: Layout) -> Recovered:
    layout.probe.unlink(missing_ok=True)
    closed = load_closed(layout.closed)
    removed = load_removed(layout.removed, closed)
    if removed.torn_bytes:
        cut_removed(layout.removed, removed.torn_bytes)
    found = recover(layout, removed, closed)
    if found.settled:
        length = layout.removed.stat().st_size if layout.removed.exists() else 0
        save_closed(layout.closed, Closed(found.segment, found.end, found.batch, length, found.last))
    cut = removed.torn_bytes
    if cut:
        text = f"{cut} bytes of a removal that was never acknowledged were cut off {layout.removed.name}"
        found.notices.append(Notice(kind="torn_tail", text=text, bytes=cut))
    return found


def _take(lock: int, mode: int, layout: Layout) -> None:
    """Take the directory for this process: it is free again when the descriptor is closed, by a kill too.

    A forked child has to close its copy (see `forks`); programs that are started do not inherit it.
    """
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"the store {layout.directory} is in use by another process",
            hint="use that process, or a `sqlite:` store, which several can share",
        ) from error
