"""Locks of the processes that own runs of a shared store: one file for each, in `STORE-owners/`.

A process holds an exclusive `flock` on its file for as long as it has the store open; the kernel releases it
however the process ends, so there is no lease that must run out. Locks are seen from every container that
mounts the volume, unlike process ids. A child of `os.fork` closes its copies of the descriptors at once, else
it would hold the locks of a parent that has died; programs that are executed never get them.

A file whose lock can be taken is left over from a dead process and is removed. A copy of a store has no such
folder, so the runs in it belong to no process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path

from agentflow.errors import StorageUnavailable
from agentflow.events.forked import after_fork
from agentflow.events.identity import FileIdentity
from agentflow.events.owner import Owner

__all__ = ["OwnerLocks"]

_TRIES = 100


class _Held:
    """A locked file of this process; `users` are the open logs that count on it."""

    __slots__ = ("descriptor", "identity", "users")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.descriptor = descriptor
        self.identity = FileIdentity(path, descriptor)
        self.users = 0


_held: dict[Path, _Held] = {}
_guard = threading.Lock()


class OwnerLocks:
    """The locks beside the store `path`, for one open log. Its methods block for some µs; any thread."""

    def __init__(self, path: Path) -> None:
        real = Path(os.path.realpath(path))
        self.folder = real.with_name(real.name + "-owners")
        self._mine: set[Path] = set()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.lock"

    def hold(self, name: str) -> None:
        """Hold the lock `name` until `release`; once for all logs of this process on this store.

        Raises StorageUnavailable if the file cannot be made: without it no run can be owned.
        """
        path = self._path(name)
        if path in self._mine:
            return
        with _guard:
            held = _held.get(path)
            if held is None:
                try:
                    held = _held[path] = _Held(path, _lock(path))
                except OSError as error:
                    raise StorageUnavailable(
                        f"the store cannot record who owns its runs: {path}: {error.strerror}",
                        hint="see that the store's directory has space and can be written to",
                    ) from error
                _remove_stale(self.folder)
            held.users += 1
            self._mine.add(path)

    def is_alive(self, owner: Owner, *, remove: bool = False) -> bool:
        """Return whether the process of `owner` lives; with `remove`, take the file of a dead one away."""
        if not owner.lock:  # a row of the first version
            return owner.alive()
        if not owner.lock.isalnum():
            return False
        path = self._path(owner.lock)
        return path in _held or _is_locked(path, remove=remove)

    def problem(self) -> str | None:
        """Return why a lock of this log does not protect its runs any more, or None."""
        for path in self._mine:
            held = _held.get(path)
            problem = f"{path} is not held" if held is None else held.identity.problem()
            if problem is not None:
                return problem
        return None

    def release(self) -> None:
        """Give up what this log held; the folder goes with the last lock in it. Idempotent."""
        with _guard:
            for path in self._mine:
                held = _held.get(path)
                if held is None:
                    continue
                held.users -= 1
                if not held.users:
                    del _held[path]
                    if held.identity.problem() is None:
                        with contextlib.suppress(OSError):
                            path.unlink()
                    os.close(held.descriptor)
                    with contextlib.suppress(OSError):
                        self.folder.rmdir()  # others have theirs in it, unless it is empty
            self._mine.clear()


def _lock(path: Path) -> int:
    """Create and lock the file; return its descriptor. Raises OSError."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the last process that left took the folder away just now
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Between making it and locking it, another process may have taken it for one left over.
            if FileIdentity(path, descriptor).problem() is None:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(f"{path} is removed again and again")


def _is_locked(path: Path, *, remove: bool) -> bool:
    # A shared lock, so that two processes which look at the same time do not take each other for the owner.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it cannot be told: rather refuse than run twice
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        if remove:
            with contextlib.suppress(OSError):
                path.unlink()
        return False
    finally:
        os.close(descriptor)


def _remove_stale(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path not in _held:
                _is_locked(path, remove=True)


def _forked() -> None:
    """Let go of the parent's locks: closing a copy leaves them with the parent."""
    global _guard
    _guard = threading.Lock()
    for held in _held.values():
        with contextlib.suppress(OSError):
            os.close(held.descriptor)
    _held.clear()


after_fork(_forked)
