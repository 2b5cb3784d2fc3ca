"""From a URL to the log behind it (page 000 §7)."""

from __future__ import annotations

import os
from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.events.log import EventLog
from agentflow.events.memory import MemoryLog

__all__ = ["open_log", "store_path"]


def open_log(url: str, *, read_only: bool = False, archive: str | None = None) -> EventLog:
    """Open the log that `url` names: `memory:`, `sqlite:FILE` or `file:DIR`. Blocks for some ms.

    `sqlite:runs.db` is relative to the working directory, `sqlite:/var/runs.db` and `sqlite:///var/runs.db`
    are the same absolute file. With `read_only`, and where this user may read a SQLite store but not write
    to it, appends are refused. Beside a process that writes, a `sqlite:` store can be read, but no `file:`
    store.

    `archive` names the object store in which runs are looked for that the store has archived.

    Raises ConfigurationError if there can be no store of that name, StoreError if it cannot be opened.
    """
    if archive is not None:
        from agentflow.events.archive import open_archive
        from agentflow.events.archived import with_archive

        opened = open_archive(archive)
        return with_archive(open_log(url, read_only=read_only), opened)
    if url == "memory:":
        if read_only:
            raise ConfigurationError(
                "a store in memory is empty when it is opened, so there is nothing to read",
                hint="name a store in files: `sqlite:FILE` or `file:DIR`",
            )
        return MemoryLog()
    scheme, path = store_path(url)
    # Imported when wanted: a log in memory needs neither.
    if scheme == "sqlite":
        from agentflow.events.sqlite import ReadOnlySqliteLog, SqliteLog

        return ReadOnlySqliteLog(path) if read_only or _only_readable(path) else SqliteLog(path)
    from agentflow.events.segments import SegmentLog

    return SegmentLog(path, read_only=read_only)


def store_path(url: str) -> tuple[str, Path]:
    """Return the scheme and the path of the URL of a store in files. Raises ConfigurationError."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        problem = "nothing may follow `memory:`" if rest else "a store in memory has no files"
        raise ConfigurationError(f"{url!r}: {problem}")
    if colon and scheme in ("sqlite", "file"):
        path = rest[2:] if rest.startswith("///") else rest
        if not path or path.startswith(("//", ":")):
            raise ConfigurationError(
                f"{url!r} names no path", hint=f"write {scheme}:PATH or {scheme}:///PATH"
            )
        return scheme, Path(path)
    if colon and scheme in ("postgresql", "postgres"):
        raise ConfigurationError(
            "this release has no PostgreSQL store",  # the URL may hold a password
            hint="use `sqlite:FILE`; one daemon serves a machine",
        )
    raise ConfigurationError(
        f"{url!r} is not the URL of a store",
        hint="the known stores are `memory:`, `sqlite:FILE` and `file:DIR`",
    )


def _only_readable(path: Path) -> bool:
    """Return whether there is a file that this user may read, but not write to: its permissions, or those of
    its directory, or the file system do not allow it."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return False
    return not (os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK))
