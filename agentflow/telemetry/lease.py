"""Of the processes that share a store, one sends the spans of all: otherwise each would send them.

The lease is a lock on a file beside the store. The kernel gives it up when its holder dies, however that
happens. A store that only one process can open needs none; two who share such a log in one process see each
other here.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from agentflow.events.log import EventLog

__all__ = ["Lease"]


_senders: WeakKeyDictionary[EventLog, Lease] = WeakKeyDictionary()


class Lease:
    """Try it again and again: its holder may end at any moment."""

    def __init__(self, log: EventLog) -> None:
        path: Any = getattr(log, "path", None)
        self._log = log
        self._path = Path(f"{path}.spans.lock") if log.shared and isinstance(path, Path) else None
        self._file: int | None = None

    def held(self) -> bool:
        """Return whether this process may send; takes the lease if it is free. Blocks for some µs."""
        if self._file is not None:
            return True
        if self._path is None:
            return _senders.setdefault(self._log, self) is self
        try:
            import fcntl
        except ImportError:  # no such locks here: better spans twice than none
            self._path = None
            return self.held()
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:  # nor can there be any beside this store
            self._path = None
            return self.held()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._file = file
        return True

    def release(self) -> None:
        """Let another process send. Idempotent."""
        if _senders.get(self._log) is self:
            del _senders[self._log]
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
