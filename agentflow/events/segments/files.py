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
from agentflow.events.blobs import blob_hash
from agentflow.events.files import make_directories, put_file, replace_file, sync_directory
from agentflow.events.references import named_by, names_in
from agentflow.events.rows import Snapshot

__all__ = ["PARTS", "Closed", "StoreFiles", "content_of"]

PARTS = ("segments", "blobs", "definitions", "consumers", "snapshots")
_BLOB = re.compile(r"sha256:([0-9a-f]{64})")
_SEGMENT = re.compile(r"(\d{8,})\.ndjson")
_CRC_BYTES = 8
_PROBE_BYTES = 64 << 10
_FAR = 1 << 62


class Closed(msgspec.Struct, frozen=True):
    """Record of the last orderly closing: newest segment, its length, the last batch and what it is about.

    What lies before that end cannot be torn: what is bad there, or missing, is damage. Segments only grow, so
    the record stays true until the next one replaces it. The defaults stand for a record that is damaged
    itself: all that is there was durable.
    """

    segment: int = _FAR
    end: int = 0
    batch: int = -1
    last: tuple[str, int] | None = None
    removed: int = 0
    """Length of the file of removals of the first version."""

    def covers(self, place: tuple[int, int]) -> bool:
        """Return True if what is at this segment and position was durable."""
        return place < (self.segment, self.end)

    @property
    def proven(self) -> int:
        """The last batch that is known to have been durable."""
        return _FAR if self.batch < 0 else self.batch


class SealedFiles:
    """Files of a folder, each with a checksum before its content and named by any text."""

    def __init__(self, folder: Path, suffix: str, what: str) -> None:
        self.folder, self._suffix, self._what = folder, suffix, what

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.folder / f"{quote(name, safe='')}{self._suffix}"

    def put(self, name: str, data: bytes) -> None:
        """Write a file, whole and durable at return."""
        replace_file(self.path(name), seal(data))

    def put_once(self, name: str, data: bytes) -> None:
        """Write a file as `put` does; one that exists stays."""
        _put_once(self.path(name), seal(data))

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none. Raises LogCorrupt if it is damaged."""
        content = content_of(self.path(name))
        return None if content is None else unseal(content, f"{self._what} {name}")

    def drop(self, name: str) -> None:
        """Remove a file if it is there, durably."""
        self.path(name).unlink(missing_ok=True)
        sync_directory(self.folder)

    def all(self, prefix: str = "") -> dict[str, bytes]:
        """Return the content of all files whose names have this prefix."""
        found = {name: self.get(name) for name in self.names() if name.startswith(prefix)}
        return {name: data for name, data in found.items() if data is not None}

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [unquote(path.stem) for path in self.folder.glob(f"*{self._suffix}")]


class StoreFiles:
    """The files of the store in `directory`; its folders are PARTS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "lock"
        self.closed = directory / "closed"
        self.removed = directory / "removed.ndjson"  # of the first version
        self._probe = directory / "probe"
        self.segments, self._blobs, definitions, consumers, self._snapshots = (
            directory / part for part in PARTS
        )
        self.definitions = SealedFiles(definitions, ".source", "definition")
        self.cursors = SealedFiles(consumers, ".cursor", "the position of")
        self._inner: dict[str, frozenset[str]] = {}

    def segment(self, number: int) -> Path:
        """Return the path of a segment; they count from 1."""
        return self.segments / f"{number:08d}.ndjson"

    def segment_numbers(self) -> list[int]:
        """Return the numbers of the segments, sorted; files of other names are none of the store's."""
        names = (path.name for path in self.segments.iterdir())
        return sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name)))

    def probe(self) -> None:
        """Implement `EventLog.probe`."""
        try:
            replace_file(self._probe, bytes(_PROBE_BYTES))
        finally:
            self._probe.unlink(missing_ok=True)

    def save_closed(self, end: tuple[int, int], batch: int, last: tuple[str, int] | None) -> None:
        """Record an orderly closing, durably."""
        closed = Closed(*end, batch, last, len(content_of(self.removed) or b""))
        replace_file(self.closed, seal(msgspec.json.encode(closed)) + b"\n")

    def load_closed(self) -> Closed:
        """Return the record; one that covers nothing if no process has closed the store yet."""
        content = content_of(self.closed)
        if content is None:
            return Closed(0, 0, 0)
        try:
            return msgspec.json.decode(unseal(content[:-1], self.closed.name), type=Closed)
        except (LogCorrupt, msgspec.DecodeError):
            return Closed()

    # -- blobs

    def put_blob(self, name: str, data: bytes) -> None:
        """Implement `EventLog.put_blob`. One that the disk has changed is written again."""
        path = self._blobs / name.removeprefix("sha256:")
        if path.exists() and content_of(path) != data:
            replace_file(path, data)
        _put_once(path, data)

    def get_blob(self, name: str) -> bytes | None:
        """Implement `EventLog.get_blob`."""
        match = _BLOB.fullmatch(name)
        found = None if match is None else content_of(self._blobs / match[1])
        if found is not None and blob_hash(found) != name:
            raise LogCorrupt(f"blob {name} is damaged", hint="restore the store from a copy")
        return found

    # -- snapshots

    def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Implement `EventLog.put_snapshot`."""
        folder = self._snapshots_of(workflow_id, kind)
        make_directories(folder)
        replace_file(folder / f"{offset}.snapshot", seal(data))

    def latest_snapshot(self, workflow_id: str, kind: str, latest: int) -> Snapshot | None:
        """Return the newest intact snapshot at an offset of at most `latest`."""
        folder = self._snapshots_of(workflow_id, kind)
        offsets = {int(path.stem) for path in folder.glob("*.snapshot") if path.stem.isdecimal()}
        for offset in sorted((offset for offset in offsets if offset <= latest), reverse=True):
            content = content_of(folder / f"{offset}.snapshot")
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
        anything = frozenset((*blobs, *self.definitions.names()))
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
        definitions = [self.definitions.path(name) for name in set(self.definitions.names()) - kept]
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


def _put_once(path: Path, data: bytes) -> None:
    """Write a file, whole and durable at return; one that exists stays, but is young again for `sweep`."""
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
