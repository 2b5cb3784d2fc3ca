"""Opening the database file: who may, how it must be set, which schema it has; and what its errors mean.

A file that is not ours, or newer than this release, is refused before anything in it is changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Generator
from importlib import resources
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
from agentflow.events.files import make_directories, sync_file, sync_path
from agentflow.events.references import names_in, parent_of
from agentflow.events.sqlite.checks import HINT, add_checks
from agentflow.events.sqlite.integrity import check_integrity, is_small

__all__ = ["connect_reader", "failure_of", "network_file_system", "open_database"]

_APPLICATION_ID = 0x61666C77  # "aflw": tells our files from other SQLite databases
_SCHEMA_VERSION = 3
_MAGIC = b"SQLite format 3\0"
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_SMALLEST_FILE = 512  # bytes; a smaller one SQLite would take for an empty database, and write over
_BUSY_MS = 5_000  # how long a commit waits for another process's commit

# Shared-memory locks, which WAL rests on, do not work between machines.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "fuse.s3fs", "glusterfs", "lustre"}
)

_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
# A write was refused (no space, quota, limit of size, read-only) before any sync of it: the transaction is
# undone, and the next one writes over what is there of it.
_UNTAKEN = frozenset({"SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"})
_SPACE_HINT = "see that the store's disk has space and can be written to; runs go on by themselves"
_BROKEN = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PROTOCOL")

Effect = Literal["final", "later", "refused"]


def _add_retention(db: sqlite3.Connection) -> None:
    """Version 1 to 2. What a run names and its size are read off its events, which may take a while."""
    for column in (
        "parent TEXT",
        "earliest_offset INTEGER NOT NULL DEFAULT 0",
        "bytes INTEGER NOT NULL DEFAULT 0",
    ):
        db.execute(f"ALTER TABLE run ADD COLUMN {column}")
    _execute_script(db, "retention.sql")
    db.execute("UPDATE run SET bytes = (SELECT sum(length(body)) FROM event WHERE event.run = run.id)")
    names: set[tuple[int, str]] = set()
    for run, offset, type_name, body in db.execute(
        "SELECT run, offset, name, body FROM event JOIN event_type ON event_type.id = event.type"
    ):
        names.update((run, name) for name in names_in(body))
        if offset == 0 and type_name == "workflow.started":
            db.execute("UPDATE run SET parent = ? WHERE id = ?", (parent_of(body), run))
    names.update(db.execute("SELECT id, definition_hash FROM run"))
    db.executemany("INSERT INTO reference (run, name) VALUES (?, ?)", names)


# From a version to the next; runs inside the transaction that also sets the version.
_MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _add_retention, 2: add_checks}


def open_database(path: Path) -> sqlite3.Connection:
    """The connection that writes, on a file of today's schema; made if there is none. Blocks for some ms.

    ConfigurationError when the path, the file or this machine's SQLite does not allow it.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        wanted = ".".join(map(str, _OLDEST_SQLITE))
        raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old, {wanted} is needed")
    created = _prepare_file(path)
    db: sqlite3.Connection | None = None
    try:
        left_over = _log_length(path)
        db = _connect(path)
        _check_version(db, path)
        if left_over:
            db = _fold_in(db, path)
        _set_durable(db, path)
        _migrate(db, path)
        if not created and is_small(path):
            check_integrity(db, path)
    except (sqlite3.Error, UnicodeError, AgentflowError) as error:
        if db is not None:
            db.close()
        if created and not path.stat().st_size:  # else another process has begun to use it
            path.unlink()
        if isinstance(error, AgentflowError):
            raise
        raise _unusable(error, path) from error
    return db


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False)


def _fold_in(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Make durable what a killed process has left in the write-ahead log, before anybody is shown it.

    The last connection that closes copies it into the file, syncs that and removes the log. It is the last
    one if it alone can lock the file, so a process that lives is never disturbed; such a one shows nothing
    that it has not synced.
    """
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA checkpoint_fullfsync = ON")
    db.close()
    if _log_length(path):  # somebody else has it, or there was no space
        with contextlib.suppress(FileNotFoundError):
            sync_file(Path(f"{path}-wal"))
    return _connect(path)


def _log_length(path: Path) -> int:
    try:
        return Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. For one thread at a time."""
    db = sqlite3.connect(
        f"{path.as_uri()}?mode=ro",
        uri=True,
        timeout=_BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    db.execute("PRAGMA query_only = ON")
    return db


def failure_of(error: sqlite3.Error) -> tuple[AgentflowError, Effect]:
    """What a failed commit means: `final` stops the log, `later` may be better, `refused`: no disk's fault.

    A full disk or a busy database took nothing. After a failed sync nobody knows what is on the disk, and a
    second sync may falsely succeed.
    """
    name: str = getattr(error, "sqlite_errorname", None) or type(error).__name__
    text = f"the store failed: {error} ({name})"
    if name.startswith(_DAMAGED):
        return LogCorrupt(text), "final"
    if name in _UNTAKEN:
        return StorageUnavailable(text, hint=_SPACE_HINT), "later"
    if name.startswith(_BROKEN):
        return LogFailed(
            text, hint="check the disk, then start again; what was acknowledged is kept"
        ), "final"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_NOMEM")):
        return StorageUnavailable(text), "later"
    return StoreError(text), "refused"


def network_file_system(path: Path, mountinfo: str) -> str | None:
    """The type of the network file system that holds `path`, by the text of /proc/self/mountinfo."""
    best, found = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split(" ", 1)[0]
        if len(fields) < 5:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        if (path == mount or mount in path.parents) and len(mount.parts) >= best:
            best, found = len(mount.parts), kind
    return found if found in _NETWORK_FILE_SYSTEMS else None


def _prepare_file(path: Path) -> bool:
    """See to it that the file is there and can be ours; True when it was made now."""
    with contextlib.suppress(OSError):
        kind = network_file_system(path, Path("/proc/self/mountinfo").read_text())
        if kind is not None:
            raise ConfigurationError(
                f"{path} is on a network file system ({kind}), where SQLite cannot keep its promises",
                hint="put the store on a local disk",
            )
    try:
        make_directories(path.parent)
        sync_path(path.parent)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            # Looked at from outside: when a process closes a file by whatever descriptor, it loses all its
            # POSIX locks on it, and with them those of a store that it has open.
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(
                    f"the store {path} cannot be opened: it is no file", hint="name a file, new or of a store"
                ) from None
            if 0 < status.st_size < _SMALLEST_FILE and not Path(f"{path}-journal").exists():
                raise _foreign(path) from None
            return False
    except OSError as error:
        raise ConfigurationError(
            f"the store {path} cannot be opened: {error.strerror}",
            hint="choose a path in a directory that you may write to (`--store sqlite:FILE`)",
        ) from error
    return True


def _check_version(db: sqlite3.Connection, path: Path) -> None:
    tables = _has_tables(db)  # first: another process may make them, and its mark, at this moment
    version, application = _pragma(db, "user_version"), _pragma(db, "application_id")
    if application not in (0, _APPLICATION_ID) or (application == 0 and tables):
        raise ConfigurationError(
            f"{path} is an SQLite database of another program", hint="name another file for the store"
        )
    if version > _SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} was written by a newer agentflow (schema {version}, this one knows {_SCHEMA_VERSION})",
            hint="upgrade agentflow, or name another file for the store",
        )


def _set_durable(db: sqlite3.Connection, path: Path) -> None:
    """Set what durability rests on, and believe only what is read back."""
    if not _pragma(db, "page_count"):  # for a new file; it would write to an old one, and change nothing
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    db.execute("PRAGMA synchronous = FULL")
    if mode != "wal" or _pragma(db, "synchronous") != 2:
        raise ConfigurationError(
            f"{path}: SQLite does not take WAL with synchronous=FULL here (journal_mode={mode})",
            hint="put the store on a local disk",
        )
    # Checkpoints run off the path of acknowledgements: see `checkpoint`.
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("PRAGMA fullfsync = ON")  # macOS: plain fsync does not reach the platter
    db.execute("PRAGMA checkpoint_fullfsync = ON")
    db.execute("PRAGMA cache_size = -16384")


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    with _transaction(db):
        _check_version(db, path)  # again: another process may have been here since
        version = _pragma(db, "user_version")
        if version == 0:
            _execute_script(db, "schema.sql")
            _execute_script(db, "retention.sql")
            add_checks(db)
            db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        else:
            for step in range(version, _SCHEMA_VERSION):
                _MIGRATIONS[step](db)
        if version != _SCHEMA_VERSION:
            db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _execute_script(db: sqlite3.Connection, name: str) -> None:
    # Not `executescript`, which commits the transaction that it finds.
    for statement in resources.files("agentflow.events.sqlite").joinpath(name).read_text().split(";\n"):
        db.execute(statement)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Generator[None, None, None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def _has_tables(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is not None


def _foreign(path: Path) -> AgentflowError:
    """A file of another kind was named by mistake; one that says it is a database has been damaged."""
    with path.open("rb") as file:
        ours = file.read(len(_MAGIC)) == _MAGIC
    if ours:
        return LogCorrupt(f"{path} is damaged; restore it from a copy, this one was left as it is")
    return ConfigurationError(
        f"{path} is not an SQLite database, or its header is damaged",
        hint="name another file; this one was left as it is",
    )


def _unusable(error: sqlite3.Error | UnicodeError, path: Path) -> AgentflowError:
    name: str = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if isinstance(error, UnicodeError):  # a name in the schema that the message quotes
        return LogCorrupt(f"the store {path} is damaged: its schema cannot be read", hint=HINT)
    if name == "SQLITE_NOTADB":
        return _foreign(path)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL")):
        return StorageUnavailable(f"the store {path} cannot be opened now: {error}")
    if name.startswith(_DAMAGED):
        return LogCorrupt(f"the store {path} is damaged: {error}")
    return ConfigurationError(
        f"the store {path} cannot be opened: {error}",
        hint="the file, its directory and their file system must be writable",
    )
