"""A SQLite store that is only read: beside the process that writes to it, or where nothing can be written.

It takes no lock that a writer waits for, and mends nothing; SQLite may leave an empty `-wal` and its `-shm`.
Writes are refused as a matter of the storage, so a command that needs one ends with exit 74.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    LogClosed,
    StorageUnavailable,
    StoreError,
)
from agentflow.events.forked import ForkGuard
from agentflow.events.owner import Owner
from agentflow.events.owner_locks import OwnerLocks
from agentflow.events.read_only import ReadOnlyWrites
from agentflow.events.sqlite.database import check_readable, connect_reader
from agentflow.events.sqlite.failures import unusable
from agentflow.events.sqlite.presence import side_file
from agentflow.events.sqlite.reader import Readers
from agentflow.events.sqlite.reading import SqliteReading

__all__ = ["ReadOnlySqliteLog", "open_read_only"]


def open_read_only(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Return a connection that cannot write, and whether the file is taken for one that never changes.

    Raises ConfigurationError if there is no store, StoreError if it cannot be read.
    """
    if not path.exists():
        raise ConfigurationError(f"there is no store {path}", hint="name a store that exists with --store")
    for immutable in (False, True):
        db = connect_reader(path, immutable=immutable)
        try:
            check_readable(db, path)
        except (sqlite3.Error, UnicodeError, AgentflowError) as error:
            db.close()
            if isinstance(error, AgentflowError):
                raise
            if immutable or not _needs_files(error):
                raise unusable(error, path) from error
            _check_no_log(path)
            continue
        return db, immutable
    raise AssertionError  # the second attempt returns or raises


def _needs_files(error: Exception) -> bool:
    """Return whether SQLite failed because it cannot create the write-ahead log and its index."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))


def _check_no_log(path: Path) -> None:
    wal = side_file(path, "-wal")
    if wal.exists() and wal.stat().st_size:
        raise StoreError(
            f"the store {path} cannot be read here: {wal.name} holds events that are not in it yet",
            hint="copy both files to a directory that you may write to, and name the copy with --store",
        )


class ReadOnlySqliteLog(ReadOnlyWrites, SqliteReading):
    """An EventLog over the file `path`, which must exist. Writes raise StorageUnavailable."""

    failure: AgentflowError | None = None

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.url = f"sqlite:{path}"
        self._watcher, immutable = open_read_only(self.path)
        self._watching = threading.Lock()
        self._readers = Readers(self.path, immutable=immutable)
        self._locks = OwnerLocks(self.path)
        self._closed = False
        self._fork_guard = ForkGuard("the store")

    def is_alive(self, owner: Owner) -> bool:
        """Implement `EventLog.is_alive`."""
        return self._locks.is_alive(owner)

    async def foreign_writes(self) -> int:
        """Implement `EventLog.foreign_writes`: SQLite's own number of what others have committed."""
        self._check_open()
        return await asyncio.to_thread(self._data_version)

    def _data_version(self) -> int:
        with self._watching:
            return 0 if self._closed else self._watcher.execute("PRAGMA data_version").fetchone()[0]

    def _check_open(self) -> None:
        self._fork_guard.check()
        if self._closed:
            raise LogClosed

    def _refusal(self) -> AgentflowError:
        self._check_open()
        return StorageUnavailable(
            f"the store {self.path} is open to be read only",
            hint="leave --read-only out, or see that this user may write to the file and its directory",
        )

    async def register(self, owner: Owner) -> None:
        """Refuse, because the store is only read."""
        self._refuse()

    async def release(self, workflow_id: str, owner: Owner) -> None:
        """Do nothing: a process that only reads owns no run."""

    async def close(self) -> None:
        """Implement `EventLog.close`."""
        self._fork_guard.check()
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self._readers.close()
        with self._watching:
            self._watcher.close()
