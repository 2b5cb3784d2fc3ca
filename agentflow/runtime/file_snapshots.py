"""What the expected files of a step are before it starts (page 004 §9). Blocks: call it in a thread.

Nothing outside the workspace is opened, and nothing but a regular file is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["MAX_HASHED_BYTES", "snapshot_files"]

MAX_HASHED_BYTES = 64 << 20
"""A larger file is known by its size and its time alone, so that a step does not wait for gigabytes."""

_ABSENT: dict[str, Any] = {"exists": False, "size": None, "mtime": None, "sha256": None}
_CHUNK = 1 << 20


def snapshot_files(workspace: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return {exists, size, mtime, sha256} of each file, by its name; mtime in nanoseconds."""
    root = Path(workspace).resolve()
    return {name: _snapshot(root, name) for name in names}


def _snapshot(root: Path, name: str) -> dict[str, Any]:
    try:
        real = (root / name).resolve()
        if root not in real.parents:
            return dict(_ABSENT)
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError, RuntimeError):
        return dict(_ABSENT)
    try:
        found = os.fstat(descriptor)
        is_file = stat.S_ISREG(found.st_mode)
        digest = _digest(descriptor) if is_file and found.st_size <= MAX_HASHED_BYTES else None
        return {"exists": True, "size": found.st_size, "mtime": found.st_mtime_ns, "sha256": digest}
    except OSError:
        return dict(_ABSENT)
    finally:
        os.close(descriptor)


def _digest(descriptor: int) -> str:
    hashed, left = hashlib.sha256(), MAX_HASHED_BYTES
    while left > 0 and (chunk := os.read(descriptor, min(_CHUNK, left))):
        hashed.update(chunk)
        left -= len(chunk)
    return hashed.hexdigest()
