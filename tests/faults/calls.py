"""What a program did to the files below a directory: the calls that a disk can lose, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

__all__ = ["Call", "Hook", "Kind"]

Kind = Literal[
    *("create", "mkdir", "write", "truncate", "unlink", "rename"),
    *("sync", "sync_begins", "sync_fails", "sync_directory"),
    "said",
]


class Call(NamedTuple):
    """One call; `path` is relative to the directory. `at`: position of a write, length of a truncate.

    A sync covers what was written before its `sync_begins`. What was written before a `sync_fails` stays to
    be seen but counts as written out, so that later syncs pass it by. `said` is a line of the program's own
    output.
    """

    kind: Kind
    path: str
    at: int = 0
    data: bytes = b""
    to: str = ""


Hook = Callable[[Call], int]
"""Called before a call is made; an errno other than 0 makes it fail instead."""
