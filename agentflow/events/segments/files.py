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
        self._probe = directory / "probe"
        self.segments, self._blobs, self._definitions, self._consumers, self._snapshots = (
            directory / part for part in PARTS
        )
        self._inner: dict[str, frozenset[str]] = {}

    def segment(self, number: int) -> Path:
        """Return the path of a segment; they count from 1."""
        return self.segments / f"{number:08d}.ndjson"

    def probe(self) -> None:
        """As `EventLog.probe`."""
        try:
            replace_file(self._probe, bytes(_PROBE_BYTES))
        finally:
            self._probe.unlink(missing_ok=True)

    # -- blobs and definitions

    def put_blob(self, name: str, data: bytes) -> None:
        """As `EventLog.put_blob`."""
        _put(self._blobs / name.removeprefix("sha256:"), data)

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
        found = {name: self.load_cursor(name) for name in consumers if name.startswith(prefix)}
        return {name: at for name, at in found.items() if at is not None}

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
            content = content_of(folder / f"{offset}.snapshot") if offset <= latest else None
            if content is not None and content == seal(content[_CRC_BYTES:]):
                return Snapshot(offset, content[_CRC_BYTES:])
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

    def names_in_blobs(self) -> dict[str, frozenset[str]]:
        """Return what each blob names. A whole one is read once while the store is open; a damaged one may
        have named anything.
        """
        blobs = self._all_blobs()
        for name in blobs.keys() - self._inner.keys():
            data = content_of(blobs[name]) or b""
            if blob_hash(data) == name:
                self._inner[name] = names_in(data)
        anything = frozenset((*blobs, *(unquote(path.stem) for path in self._definitions.iterdir())))
        return {name: self._inner.get(name, anything) for name in blobs}

    def sweep(self, names: Set[str], workflow_ids: Iterable[str], before: int) -> tuple[int, int, int]:
        """Remove blobs and definitions that `names` does not lead to, and snapshots of other runs.

        Returns how many blobs and definitions, and their bytes. Files put at `before` (µs) or later stay: an
        event that is being written may name them.
        """
        blobs = self._all_blobs()
        young = {name for name, path in blobs.items() if not _is_old(path, before)}
        kept = named_by(names | young, self.names_in_blobs())
        old_blobs = [path for name, path in blobs.items() if name not in kept]
        definitions = set(self._definitions.iterdir()) - {self._definition(name) for name in kept}
        old_definitions = [path for path in definitions if _is_old(path, before)]
        self._inner = {name: self._inner[name] for name in kept & self._inner.keys()}
        freed = _remove_files(old_blobs) + _remove_files(old_definitions)
        _remove_files(
            [path for path in self._blobs.iterdir() if path.suffix]
        )  # of older versions, of a crash
        for folder in set(self._snapshots.iterdir()) - {self._snapshots_of(run) for run in workflow_ids}:
            shutil.rmtree(folder, ignore_errors=True)
        return len(old_blobs), len(old_definitions), freed

    def _all_blobs(self) -> dict[str, Path]:
        return {f"sha256:{path.name}": path for path in self._blobs.iterdir() if not path.suffix}


def seal(data: bytes) -> bytes:
    """Return `data` behind its checksum."""
    return b"%08x" % zlib.crc32(data) + data


def unseal(content: bytes, what: str) -> bytes:
    """Return what was sealed. Raises LogCorrupt, naming `what`, if it is not as it was written."""
    data = content[_CRC_BYTES:]
    if content != seal(data):
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


def _remove_files(paths: Iterable[Path]) -> int:
    """Remove files; return their bytes."""
    size = 0
    for path in paths:
        size += path.stat().st_size
        path.unlink()
    return size
