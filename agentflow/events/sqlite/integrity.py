"""Integrity check of SQLite: its pages and indexes, once in each process.

A checksum in a row says nothing of a row that a damaged page hides. The check reads the whole file, 8 ms for
each MB. So a small file is checked before it is used, and a large one beside the work, when the process turns
out to be one that stays.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from agentflow.errors import LogCorrupt
from agentflow.events.sqlite.checks import HINT

__all__ = ["Integrity", "check_integrity", "is_small"]

_SMALL_BYTES = 2 << 20
_DELAY_S = 2.0


def is_small(path: Path) -> bool:
    """Return whether the file is checked before it is used."""
    return path.stat().st_size <= _SMALL_BYTES


def check_integrity(db: sqlite3.Connection, path: Path) -> None:
    """Raise LogCorrupt if a row, or an entry of an index, is missing, or not where it should be."""
    found: str = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise LogCorrupt(f"the store {path} is damaged: {found}", hint=HINT)


class Integrity:
    """Checks a large file after a while, in a thread; `failed` is called from it if that finds damage."""

    def __init__(self, path: Path, failed: Callable[[LogCorrupt], None]) -> None:
        self._path = path
        self._failed = failed
        self._stopping = threading.Event()
        self._db: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._work, name="agentflow-integrity", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a check under way is given up."""
        self._stopping.set()
        while self._thread.is_alive():
            db = self._db
            if db is not None:
                db.interrupt()
            self._thread.join(0.05)

    def _work(self) -> None:
        while not self._stopping.wait(_DELAY_S):
            try:
                db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            except sqlite3.Error:  # no free descriptor: the check is put off, not left out
                continue
            self._check(db)
            return

    def _check(self, db: sqlite3.Connection) -> None:
        try:
            db.execute("PRAGMA query_only = ON")
            self._db = db
            if not self._stopping.is_set():
                check_integrity(db, self._path)
        except LogCorrupt as damage:
            self._failed(damage)
        except sqlite3.Error as error:
            name: str = getattr(error, "sqlite_errorname", "")
            if not self._stopping.is_set() and name.startswith("SQLITE_CORRUPT"):
                self._failed(LogCorrupt(f"the store {self._path} is damaged: {error}", hint=HINT))
        finally:
            self._db = None
            db.close()
