"""What the writing thread does beside batches: files beside the segments, removals, and what nobody names.

Every method runs in the writing thread, so it sees all that was submitted before it. OSError of a file is
what the caller is told as StoreError; a failed sync of a removal ends the log.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from agentflow.errors import AgentflowError, LogCorrupt
from agentflow.events.files import (
    make_directories,
    open_durably,
    put_file,
    replace_file,
    sync_directory,
)
from agentflow.events.references import named_by, names_in
from agentflow.events.rules import check_removable, first_kept, tombstone_of
from agentflow.events.segments.index import Index
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.removed import Deleted, Trimmed, encode_removal
from agentflow.events.segments.sealed import seal, unseal
from agentflow.events.tombstone import Tombstone

__all__ = ["Upkeep"]

_PROBE_BYTES = 64 << 10


class Upkeep:
    """`fail` stops the log for good because of an error, and gives what to raise."""

    def __init__(self, layout: Layout, index: Index, fail: Callable[[OSError], AgentflowError]) -> None:
        self._layout = layout
        self._index = index
        self._fail = fail
        self._removed = open_durably(layout.removed)

    def close(self) -> int:
        """There will be no more removals; the length of their file."""
        length = os.fstat(self._removed).st_size
        os.close(self._removed)
        return length

    # -- files beside the segments

    def put_blob(self, name: str, data: bytes) -> None:
        """As `EventLog.put_blob`. What the blob names itself is noted beside it, before it is there."""
        path, inner = self._layout.blob(name), sorted(names_in(data))
        if path is None:
            raise ValueError(f"{name!r} is not the name of a blob")
        if inner and not path.exists():
            replace_file(self._layout.inner_names(path), seal(msgspec.json.encode(inner)))
        _put(path, data)

    def put_definition(self, hash: str, source: bytes) -> None:
        """As `EventLog.put_definition`."""
        _put(self._layout.definition(hash), seal(source))

    def save_cursor(self, consumer: str, cursor: str) -> None:
        """As `EventLog.save_cursor`."""
        replace_file(self._layout.cursor(consumer), seal(cursor.encode()))

    def drop_cursor(self, consumer: str) -> None:
        """As `EventLog.drop_cursor`."""
        path = self._layout.cursor(consumer)
        path.unlink(missing_ok=True)
        sync_directory(path.parent)

    def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """As `EventLog.put_snapshot`."""
        self._index.find(workflow_id)
        folder = self._layout.snapshots_of(workflow_id, kind)
        make_directories(folder)
        replace_file(folder / f"{offset}.snapshot", seal(data))

    def probe(self) -> None:
        """As `EventLog.probe`."""
        try:
            replace_file(self._layout.probe, bytes(_PROBE_BYTES))
        finally:
            self._layout.probe.unlink(missing_ok=True)

    # -- removals

    def trim(self, workflow_id: str, before: int, names: set[str]) -> int:
        """As `EventLog.trim`; `names` is what the events that stay, and the snapshots, name."""
        run = self._index.find(workflow_id)
        run.check_whole()
        check_removable(workflow_id, run.state, run.ended)
        earliest = first_kept(run.earliest, run.last, before)
        if earliest > run.earliest:
            known = (run.identity, run.state, run.stored_epoch, run.parent)
            self._remove(Trimmed(workflow_id, earliest, *known, sorted(names)))
            with self._index.moving:
                self._index.runs[workflow_id] = run.trimmed(earliest, names)
        return earliest

    def delete(self, workflow_id: str, at: int) -> Tombstone:
        """As `EventLog.delete`."""
        run = self._index.find(workflow_id)
        check_removable(workflow_id, run.state, run.ended)
        gone = tombstone_of(run.row(), at)
        self._remove(Deleted(gone))
        self._index.take_out(run)
        shutil.rmtree(self._layout.snapshots_of(workflow_id), ignore_errors=True)
        return gone

    def _remove(self, removal: Deleted | Trimmed) -> None:
        """Write a removal down, durably. OSError or the log's failure: it is not there."""
        line, end = encode_removal(removal), os.fstat(self._removed).st_size
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._removed, memoryview(line)[written:], end + written)
        except OSError:
            try:
                os.ftruncate(self._removed, end)
                os.fsync(self._removed)
            except OSError as worse:
                raise self._fail(worse) from worse
            raise
        try:
            os.fsync(self._removed)
        except OSError as error:
            raise self._fail(error) from error
        self._index.removed.add(removal)

    # -- what nobody names

    def sweep_files(self, before: int) -> tuple[int, int, int]:
        """Remove blobs, definitions and snapshots that nobody names; how many blobs and definitions, and
        their bytes. Files put at `before` (µs) or later may be named by an event on its way."""
        layout = self._layout
        blobs = [path for path in layout.blobs.iterdir() if not path.suffix]
        names = {f"sha256:{path.name}" for path in blobs if not _is_old(path, before)}
        names = names.union(*(run.names for run in self._index.runs.values()))
        names = named_by(names, self._inner_names())
        kept = {layout.blob(name) for name in names} | {layout.definition(name) for name in names}
        counts = [
            _remove_files([path for path in paths if path not in kept and _is_old(path, before)])
            for paths in (blobs, list(layout.definitions.iterdir()))
        ]
        for note in layout.blobs.glob("*.names"):
            if not note.with_suffix("").exists():
                note.unlink()
        there = {layout.snapshots_of(workflow_id) for workflow_id in self._index.runs}
        for folder in set(layout.snapshots.iterdir()) - there:
            shutil.rmtree(folder, ignore_errors=True)
        return counts[0][0], counts[1][0], counts[0][1] + counts[1][1]

    def _inner_names(self) -> dict[str, frozenset[str]]:
        """What blobs name themselves. A note that is damaged is made again from its blob."""
        found: dict[str, frozenset[str]] = {}
        for note in self._layout.blobs.glob("*.names"):
            blob = note.with_suffix("")
            try:
                content = unseal(note.read_bytes(), note.name)
                inner = frozenset(msgspec.json.decode(content, type=list[str]))
            except LogCorrupt:
                inner = names_in(blob.read_bytes()) if blob.exists() else frozenset[str]()
            found[f"sha256:{blob.name}"] = inner
        return found


def _put(path: Path, data: bytes) -> None:
    """Write a file, whole and durable at return; one that exists stays, but is young again."""
    if path.exists():
        now = time.time_ns()  # the time that the kernel would take may be some ms old
        os.utime(path, ns=(now, now))
    put_file(path, data)


def _is_old(path: Path, before: int) -> bool:
    return path.stat().st_mtime_ns // 1000 < before


def _remove_files(paths: Iterable[Path]) -> tuple[int, int]:
    count = size = 0
    for path in paths:
        size += path.stat().st_size
        path.unlink()
        count += 1
    return count, size
