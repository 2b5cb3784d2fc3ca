"""Meaning of errors of SQLite and of files for a store: permanent, transient, or damage."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Literal

from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    LogCorrupt,
    LogFailed,
    StorageUnavailable,
    StoreError,
)
from agentflow.events.sqlite.checks import HINT
from agentflow.events.sqlite.presence import takes_writes

__all__ = ["APPLICATION_ID", "failure_of", "foreign_file", "no_file", "unusable"]

APPLICATION_ID = 0x61666C77  # "aflw": tells our files from other SQLite databases
_MAGIC = b"SQLite format 3\0"
# What stands in the head of our files beside the magic: the mark, at offset 68, and the schema.
_MARKS = (APPLICATION_ID.to_bytes(4, "big"), b"workflow_id TEXT NOT NULL UNIQUE")
_HEAD_BYTES = 256 << 10
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
# A write was refused (no space, quota, limit of size, read-only) before any sync of it: the transaction is
# undone, and the next one writes over what is there of it.
# A broken disk may fail a write too: see `failure_of`.
_UNTAKEN = frozenset({"SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"})
_SPACE_HINT = "see that the store's disk has space and can be written to; runs go on by themselves"
_DISK_HINT = (
    "the disk reports errors: check it and the system's log, then start again; what was acknowledged is kept"
)
_OPEN_HINT = (
    "see that the process has free file descriptors (LimitNOFILE, `ulimit -n`) and may read and write the "
    "store's directory; runs go on by themselves"
)
_BROKEN = ("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_PROTOCOL")

_ACCESS_HINT = (
    "see that this user may read and write the file and its directory, and that the disk works; "
    "`--read-only` needs to read only"
)
_NO_PATH = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

Effect = Literal["final", "later", "refused"]


def failure_of(error: sqlite3.Error, path: Path | None = None) -> tuple[AgentflowError, Effect]:
    """Return what a failed commit means: `final` stops the log, `later` may be better, `refused`: no disk's
    fault.

    A full disk or a busy database took nothing, nor did a file that could not be opened: SQLITE_CANTOPEN is
    mostly a lack of descriptors (`StoreFiles` notices a deleted file). After a failed sync it is unknown what
    is on the disk, and a second sync may falsely succeed. SQLite gives one code for a quota and for a broken
    disk: a small write beside the store `path` tells which it was.
    """
    name: str = getattr(error, "sqlite_errorname", None) or type(error).__name__
    text = f"the store failed: {error} ({name})"
    if name.startswith(_DAMAGED):
        return LogCorrupt(text), "final"
    broken = name == "SQLITE_IOERR_WRITE" and path is not None and takes_writes(path)
    if name in _UNTAKEN and not broken:
        return StorageUnavailable(text, hint=_SPACE_HINT), "later"
    if name.startswith("SQLITE_CANTOPEN"):
        return StorageUnavailable(text, hint=_OPEN_HINT), "later"
    if name.startswith(_BROKEN):
        return LogFailed(text, hint=_DISK_HINT), "final"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_NOMEM")):
        return StorageUnavailable(text), "later"
    return StoreError(text), "refused"


def no_file(path: Path, error: OSError) -> AgentflowError:
    """Return the error for a path that cannot be opened: ConfigurationError if it can be no store, else
    StoreError."""
    text = f"the store {path} cannot be opened: {error.strerror}"
    if error.errno in _NO_PATH:
        return ConfigurationError(text, hint="choose a path in a directory (`--store sqlite:FILE`)")
    if error.errno in _FULL:
        return StorageUnavailable(text, hint=_SPACE_HINT)
    return StoreError(text, hint=_ACCESS_HINT)


def foreign_file(path: Path) -> AgentflowError:
    """Return the error for a file that is no database: of another kind, or a store that was damaged."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_MAGIC) or any(mark in head for mark in _MARKS):
        return LogCorrupt(f"{path} is damaged: its header is not that of a database", hint=HINT)
    return ConfigurationError(
        f"{path} is not an SQLite database",
        hint="name another file; this one was left as it is",
    )


def unusable(error: sqlite3.Error | UnicodeError, path: Path) -> AgentflowError:
    """Return what it means that the store could not be opened. Reads the head of the file."""
    name: str = getattr(error, "sqlite_errorname", None) or type(error).__name__
    text = f"the store {path} cannot be opened: {error} ({name})"
    if isinstance(error, UnicodeError):  # a name in the schema that the message quotes
        return LogCorrupt(f"the store {path} is damaged: its schema cannot be read", hint=HINT)
    if name == "SQLITE_NOTADB":
        return foreign_file(path)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StorageUnavailable(text)
    if name == "SQLITE_FULL" or name.startswith("SQLITE_READONLY"):
        return StorageUnavailable(text, hint=_SPACE_HINT)
    if name.startswith(_DAMAGED):
        return LogCorrupt(f"the store {path} is damaged: {error}", hint=HINT)
    if name.startswith("SQLITE_IOERR"):
        return StoreError(text, hint=_DISK_HINT)
    return StoreError(text, hint=_ACCESS_HINT)
