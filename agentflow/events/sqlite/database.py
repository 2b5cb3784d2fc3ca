"""Opening the database file: who may, how it must be set, which schema it has; and what its errors mean.

A file that is not ours, or newer than this release, is refused before anything in it is changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Callable, Generator
from pathlib import Path

from agentflow.errors import (
    AgentflowError,
    ConfigurationError,
    StoreError,
)
from agentflow.events.files import make_directories, sync_file, sync_path
from agentflow.events.references import names_in, parent_of
from agentflow.events.sqlite.checks import add_checks
from agentflow.events.sqlite.failures import APPLICATION_ID, foreign_file, no_file, unusable
from agentflow.events.sqlite.integrity import check_integrity, is_small
from agentflow.events.sqlite.migration import add_batches, execute_script

__all__ = [
    "BUSY_MS",
    "check_readable",
    "check_version",
    "connect_reader",
    "network_file_system",
    "open_database",
]

_SCHEMA_VERSION = 6
_OLDEST_READABLE = 5  # without a migration
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables
_SMALLEST_FILE = 512  # bytes; a smaller one SQLite would take for an empty database, and write over
BUSY_MS = 5_000  # how long a commit waits for another process's commit

# Shared-memory locks, which WAL rests on, do not work between machines.
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "fuse.sshfs", "fuse.s3fs", "glusterfs", "lustre"}
)


def _add_retention(db: sqlite3.Connection) -> None:
    """Migrate version 1 to 2. What a run names and its size are read off its events, which takes a while."""
    for column in (
        "parent TEXT",
        "earliest_offset INTEGER NOT NULL DEFAULT 0",
        "bytes INTEGER NOT NULL DEFAULT 0",
    ):
        db.execute(f"ALTER TABLE run ADD COLUMN {column}")
    execute_script(db, "retention.sql")
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


def _add_labels(db: sqlite3.Connection) -> None:
    """Migrate version 3 to 4: add an index of the labels of runs."""
    execute_script(db, "labels.sql")
    db.execute(
        "INSERT OR IGNORE INTO label (name, value, created_at, workflow_id)"
        " SELECT key, value, created_at, workflow_id FROM run, json_each(labels)"
    )


def _allow_references(db: sqlite3.Connection) -> None:
    """Migrate version 5 to 6: batches may name blobs and other batches, which earlier releases pass over."""


# From a version to the next; runs inside the transaction that also sets the version.
_MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _add_retention,
    2: add_checks,
    3: _add_labels,
    4: add_batches,
    5: _allow_references,
}


def open_database(path: Path) -> sqlite3.Connection:
    """Open the writing connection, on a file of the present schema; created if there is none. Blocks for some
    ms.

    Raises ConfigurationError if the path can be no store or the file is another program's, StoreError if the
    storage does not allow it: no access, no space, a broken disk, damage.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        wanted = ".".join(map(str, _OLDEST_SQLITE))
        raise ConfigurationError(f"SQLite {sqlite3.sqlite_version} is too old, {wanted} is needed")
    created = _prepare_file(path)
    db: sqlite3.Connection | None = None
    try:
        left_over = _log_length(path)
        db = _connect(path)
        check_version(db, path)
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
        raise unusable(error, path) from error
    return db


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)


def _fold_in(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Make durable what a killed process has left in the write-ahead log, before anybody is shown it.

    The last connection that closes copies it into the file, syncs that and removes the log. It is the last
    one if it alone can lock the file, so a process that lives is never disturbed; such a one shows nothing
    that it has not synced.
    """
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA checkpoint_fullfsync = ON")
    db.close()
    if _log_length(path):  # another process has it open, or there was no space
        with contextlib.suppress(FileNotFoundError):
            sync_file(Path(f"{path}-wal"))
    return _connect(path)


def _log_length(path: Path) -> int:
    try:
        return Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def connect_reader(path: Path, *, immutable: bool = False) -> sqlite3.Connection:
    """Open a connection that cannot write. For one thread at a time.

    `immutable`: no process writes to the file, so that no other file is needed beside it.
    """
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if immutable else ''}",
        uri=True,
        timeout=BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,
    )
    db.execute("PRAGMA query_only = ON")
    db.text_factory = _text
    return db


def _text(value: bytes) -> str:
    """Decode text, also if the disk has changed it: the checksum of its row finds that, and other rows stay
    readable."""
    return value.decode(errors="replace")


def network_file_system(path: Path, mountinfo: str) -> str | None:
    """Return the type of the network file system that holds `path`, by the text of /proc/self/mountinfo."""
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
    """Create the file, or check that it can be a store; return True if it was created."""
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
                raise foreign_file(path) from None
            return False
    except OSError as error:
        raise no_file(path, error) from error
    return True


def check_version(db: sqlite3.Connection, path: Path) -> None:
    tables = _has_tables(db)  # first: another process may make them, and its mark, at this moment
    version, application = _pragma(db, "user_version"), _pragma(db, "application_id")
    if application not in (0, APPLICATION_ID) or (application == 0 and tables):
        raise ConfigurationError(
            f"{path} is an SQLite database of another program", hint="name another file for the store"
        )
    if version > _SCHEMA_VERSION:
        raise ConfigurationError(
            f"{path} was written by a newer agentflow (schema {version}, this one knows {_SCHEMA_VERSION})",
            hint="upgrade agentflow, or name another file for the store",
        )


def check_readable(db: sqlite3.Connection, path: Path) -> None:
    """Raise if this release cannot read the store as it is: ConfigurationError, or StoreError for a store of
    an earlier release, which must be migrated first."""
    check_version(db, path)
    version = _pragma(db, "user_version")
    if version < _OLDEST_READABLE:
        raise StoreError(
            f"{path} was written by an earlier agentflow (schema {version})",
            hint="open it once without --read-only, which migrates it",
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
        check_version(db, path)  # again: another process may have been here since
        version = _pragma(db, "user_version")
        if version == 0:
            execute_script(db, "schema.sql")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        else:
            for step in range(version, _SCHEMA_VERSION):
                _MIGRATIONS[step](db)
        if version != _SCHEMA_VERSION:
            db.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


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
