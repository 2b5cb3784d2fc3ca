"""One daemon a store: two would take the same runs up, and each would be refused by the other's writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agentflow.errors import ConfigurationError
from agentflow.events.files import make_directories

__all__ = ["lock_store"]


@contextmanager
def lock_store(url: str) -> Generator[None]:
    """Hold the store for the time of a daemon. ConfigurationError when another daemon has it.

    Only files of SQLite need it: a `file:` store is locked by its log, `memory:` is private.
    """
    scheme, _, rest = url.partition(":")
    if scheme != "sqlite":
        yield
        return
    path = Path(rest[2:] if rest.startswith("///") else rest)
    beside = path.with_name(path.name + ".daemon")
    try:
        make_directories(beside.parent)
        fd = os.open(beside, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{beside} cannot be made: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            raise ConfigurationError(
                f"another daemon{f' (pid {holder})' if holder.isdecimal() else ''} serves the store {url}",
                hint="use that one, or name another store with --store",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)
