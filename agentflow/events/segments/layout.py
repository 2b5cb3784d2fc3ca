"""The names of the files of a store in a directory. No I/O."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import quote

__all__ = ["PARTS", "Layout"]

PARTS = ("segments", "blobs", "definitions", "consumers", "snapshots")
_BLOB = re.compile(r"sha256:([0-9a-f]{64})")


class Layout:
    """Paths below `directory`; its folders are PARTS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "lock"
        self.closed = directory / "closed"
        self.removed = directory / "removed.ndjson"  # of the first version
        self.probe = directory / "probe"
        self.segments = directory / "segments"
        self.blobs = directory / "blobs"
        self.definitions = directory / "definitions"
        self.consumers = directory / "consumers"
        self.snapshots = directory / "snapshots"

    def segment(self, number: int) -> Path:
        """The file of a segment; they count from 1."""
        return self.segments / f"{number:08d}.ndjson"

    def blob(self, name: str) -> Path | None:
        """The file of a blob; None if that is no name of one."""
        match = _BLOB.fullmatch(name)
        return None if match is None else self.blobs / match[1]

    def inner_names(self, blob: Path) -> Path:
        """The file that says what a blob names itself."""
        return blob.with_suffix(".names")

    def definition(self, hash: str) -> Path:
        """The file of a definition."""
        return self.definitions / f"{quote(hash, safe='')}.source"

    def cursor(self, consumer: str) -> Path:
        """The file that holds where a consumer stands."""
        return self.consumers / f"{quote(consumer, safe='')}.cursor"

    def snapshots_of(self, workflow_id: str, kind: str | None = None) -> Path:
        """The folder of a run's snapshots, of all kinds or of one. Hashed: a name of any length and content
        becomes a name of a file."""
        folder = self.snapshots / _short(workflow_id)
        return folder if kind is None else folder / _short(kind)


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:32]
