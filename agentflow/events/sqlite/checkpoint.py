"""Moves the write-ahead log into the database file, beside the writer.

An automatic checkpoint would hold up the commit that triggers it for 6–35 ms; here a thread with a connection
of its own does the copying. Under constant load it can never finish by itself, since the writer goes on: then
it asks the writer to copy the small rest between two commits, so that the file is used again from its start.

It never begins while all that was committed may have been copied: then the next commit may begin the log anew
at that moment, and SQLite before 3.51.3 can take pages of the new log for copied that were not.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["Checkpointer"]

_LONG_WAL_FRAMES = 16_384  # 64 MiB of 4 KiB pages


class Checkpointer:
    """The thread. Its connection is open when the constructor returns, so that a checkpoint needs no
    descriptor. `failed` is called from it with each error and says whether to give up; `begun` gives the
    number of the newest commit, which may be under way. Raises sqlite3.Error if the file cannot be opened.
    """

    def __init__(self, path: Path, failed: Callable[[sqlite3.Error], bool], begun: Callable[[], int]) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA schema_version").fetchone()  # opens the write-ahead log and its index
        except sqlite3.Error:
            self._db.close()
            raise
        self._failed = failed
        self._begun = begun
        self._written = self._copied = 0
        self._due = threading.Event()
        self._stopping = False
        self.rest_is_writers = False
        """Set here; until the writer has copied the rest, this thread keeps away."""
        self._thread = threading.Thread(target=self._work, name="agentflow-checkpoint", daemon=True)
        self._thread.start()

    def nudge(self, written: int) -> None:
        """Request a copy up to this commit, which is complete; return at once."""
        self._written = written
        self._due.set()

    def has_to_copy(self, written: int) -> bool:
        """Return whether the log holds a commit up to `written` that may not have been copied yet."""
        return self.rest_is_writers or written > self._copied

    def rest_is_copied(self) -> None:
        """Record that the writer has copied the rest. For the writer thread, between two commits."""
        self._copied = self._begun()
        self.rest_is_writers = False

    def stop(self) -> None:
        """End the thread; blocks until a checkpoint under way is done."""
        self._stopping = True
        self._due.set()
        self._thread.join()

    def _work(self) -> None:
        given_up = False
        while True:
            self._due.wait()
            self._due.clear()
            if self._stopping:
                break
            if not given_up and not self.rest_is_writers and self._written > self._copied:
                given_up = self._copy()
                # A commit that begins from now on is not copied yet; one that had begun may be.
                self._copied = self._begun()
        self._db.close()

    def _copy(self) -> bool:
        db = self._db
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA checkpoint_fullfsync = ON")
            _, frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            return self._failed(error)
        if frames > _LONG_WAL_FRAMES:
            self.rest_is_writers = True
        return False
