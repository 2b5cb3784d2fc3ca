"""Paths below the directory of a store, and the small files beside its segments.

Blobs are named by their hash; other files begin with a checksum. Methods block and raise OSError; those that
write run on the writer thread.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import zlib
from collections.abc import Iterable, Set
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import make_directories, put_file, replace_file, sync_directory
from agentflow.events.references import named_by, names_in
from agentflow.events.rows import Snapshot
from agentflow.events.rules import blob_hash

__all__ = ["PARTS", "StoreFiles", "content_of", "seal", "unseal"]

PARTS = ("segments", "blobs", "definitions", "consumers", "snapshots")
_BLOB = re.compile(r"sha256:([0-9a-f]{64})")
_CRC_BYTES = 8
_PROBE_BYTES = 64 << 10


class StoreFiles:
    """The files of the store in `directory`; its folders are PARTS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "lock"
        self.closed = directory / "closed"
        self.removed = directory / "removed.ndjson"  # of the first version
        self.probe_file = directory / "probe"
        self.segments, self._blobs, self._definitions, self._consumers, self._snapshots = (
            directory / part for part in PARTS
        )

    def segment(self, number: int) -> Path:
        """Return the path of a segment; they count from 1."""
        return self.segments / f"{number:08d}.ndjson"

    def probe(self) -> None:
        """As `EventLog.probe`."""
        try:
            replace_file(self.probe_file, bytes(_PROBE_BYTES))
        finally:
            self.probe_file.unlink(missing_ok=True)

    # -- blobs and definitions

    def put_blob(self, name: str, data: bytes) -> None:
        """As `EventLog.put_blob`. The names in the blob are noted beside it, before it is there."""
        path, inner = self._blobs / name.removeprefix("sha256:"), sorted(names_in(data))
        if inner and not path.exists():
            replace_file(path.with_suffix(".names"), seal(msgspec.json.encode(inner)))
        _put(path, data)

    def get_blob(self, name: str) -> bytes | None:
        """As `EventLog.get_blob`."""
        match = _BLOB.fullmatch(name)
        found = None if match is None else content_of(self._blobs / match[1])
        if found is not None and blob_hash(found) != name:
            raise LogCorrupt(f"blob {name} is damaged", hint="restore the store from a copy")
        return found

    def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        _put(self._definition(hash), seal(source))

    def get_definition(self, hash: str) -> bytes | None:
        """As `EventLog.get_definition`."""
        return _unsealed(self._definition(hash), f"definition {hash}")

    def _definition(self, hash: str) -> Path:
        return self._definitions / f"{quote(hash, safe='')}.source"

    # -- positions of consumers

    def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        replace_file(self._cursor(consumer), seal(cursor.encode()))

    def drop_cursor(self, consumer: str) -> None:
        """As `EventLog.drop_cursor`."""
        self._cursor(consumer).unlink(missing_ok=True)
        sync_directory(self._consumers)

    def load_cursor(self, consumer: str) -> str | None:
        """As `EventLog.load_cursor`."""
        found = _unsealed(self._cursor(consumer), f"the position of {consumer}")
        return None if found is None else found.decode()

    def cursors(self, prefix: str) -> dict[str, str]:
        """As `EventLog.cursors`."""
        consumers = [unquote(path.stem) for path in self._consumers.glob("*.cursor")]
        found = {consumer: self.load_cursor(consumer) for consumer in consumers}
        return {name: at for name, at in found.items() if at is not None and name.startswith(prefix)}

    def _cursor(self, consumer: str) -> Path:
        return self._consumers / f"{quote(consumer, safe='')}.cursor"

    # -- snapshots

    def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """As `EventLog.put_snapshot`."""
        folder = self._snapshots_of(workflow_id, kind)
        make_directories(folder)
        replace_file(folder / f"{offset}.snapshot", seal(data))

    def latest_snapshot(self, workflow_id: str, kind: str, latest: int) -> Snapshot | None:
        """Return the newest intact snapshot at an offset of at most `latest`."""
        folder = self._snapshots_of(workflow_id, kind)
        for offset in sorted((int(path.stem) for path in folder.glob("*.snapshot")), reverse=True):
            if offset <= latest:
                try:
                    return Snapshot(offset, unseal((folder / f"{offset}.snapshot").read_bytes(), kind))
                except LogCorrupt:
                    continue
        return None

    def drop_snapshots(self, workflow_id: str) -> None:
        """Remove all snapshots of a run."""
        shutil.rmtree(self._snapshots_of(workflow_id), ignore_errors=True)

    def _snapshots_of(self, workflow_id: str, *kind: str) -> Path:
        """Return the folder of a run, or of a kind in it; hashed, so that any text is the name of a file."""
        return self._snapshots.joinpath(
            *(hashlib.sha256(name.encode()).hexdigest()[:32] for name in (workflow_id, *kind))
        )

    # -- removal of what no run names

    def sweep(self, names: Set[str], workflow_ids: Iterable[str], before: int) -> tuple[int, int, int]:
        """Remove blobs and definitions that `names` does not lead to, and snapshots of other runs.

        Returns how many blobs and definitions, and their bytes. Files put at `before` (µs) or later stay: an
        event that is being written may name them.
        """
        blobs = [path for path in self._blobs.iterdir() if not path.suffix]
        young = {f"sha256:{path.name}" for path in blobs if not _is_old(path, before)}
        reached = named_by(names | young, self._inner_names())
        kept = {self._blobs / name.removeprefix("sha256:") for name in reached}
        kept |= {self._definition(name) for name in reached}
        counts = [
            _remove_files([path for path in paths if path not in kept and _is_old(path, before)])
            for paths in (blobs, list(self._definitions.iterdir()))
        ]
        for note in self._blobs.glob("*.names"):
            if not note.with_suffix("").exists():
                note.unlink()
        for folder in set(self._snapshots.iterdir()) - {self._snapshots_of(run) for run in workflow_ids}:
            shutil.rmtree(folder, ignore_errors=True)
        return counts[0][0], counts[1][0], counts[0][1] + counts[1][1]

    def _inner_names(self) -> dict[str, frozenset[str]]:
        """Return the names in each blob. If a note of them is damaged, the blob is read."""
        found: dict[str, frozenset[str]] = {}
        for note in self._blobs.glob("*.names"):
            blob = note.with_suffix("")
            try:
                inner = frozenset(msgspec.json.decode(unseal(note.read_bytes(), note.name), type=list[str]))
            except LogCorrupt:
                inner = names_in(content_of(blob) or b"")
            found[f"sha256:{blob.name}"] = inner
        return found


def seal(data: bytes) -> bytes:
    """Return `data` behind its checksum."""
    return b"%08x" % zlib.crc32(data) + data


def unseal(content: bytes, what: str) -> bytes:
    """Return what was sealed. Raises LogCorrupt, naming `what`, if it is not as it was written."""
    data = content[_CRC_BYTES:]
    if content[:_CRC_BYTES] != b"%08x" % zlib.crc32(data):
        raise LogCorrupt(f"{what} is damaged", hint="restore the store from a copy")
    return data


def content_of(path: Path) -> bytes | None:
    """Return the bytes of a file, None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _unsealed(path: Path, what: str) -> bytes | None:
    content = content_of(path)
    return None if content is None else unseal(content, what)


def _put(path: Path, data: bytes) -> None:
    """Write a file, whole and durable at return; one that exists stays, but is young again."""
    if path.exists():
        now = time.time_ns()  # the time that the kernel would take may be some ms old
        os.utime(path, ns=(now, now))
    put_file(path, data)


def _is_old(path: Path, before: int) -> bool:
    return path.stat().st_mtime_ns // 1000 < before


def _remove_files(paths: list[Path]) -> tuple[int, int]:
    size = sum(path.stat().st_size for path in paths)
    for path in paths:
        path.unlink()
    return len(paths), size
