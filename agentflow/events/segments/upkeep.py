"""Maintenance on the writer thread: files beside the segments, removal of runs, segments and unreferenced
blobs.

Every method sees all that was submitted before it. OSError of a file becomes a StoreError of the caller; a
failed sync of a removal ends the log.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import msgspec

from agentflow.errors import LogCorrupt, Unsupported
from agentflow.events.files import make_directories, put_file, replace_file, sync_directory
from agentflow.events.references import named_by, names_in
from agentflow.events.rules import check_removable, tombstone_of
from agentflow.events.segments.index import Index, merge_ranges
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import Head, Range, encode_line
from agentflow.events.segments.sealed import seal, unseal
from agentflow.events.segments.writer import SegmentWriter
from agentflow.events.tombstone import Tombstone

__all__ = ["Upkeep"]

_PROBE_BYTES = 64 << 10
_TOMBSTONE_SHARE = 0.25
"""Part of a segment that tombstones may take for its removal to pay: they are carried on."""


class Upkeep:
    """Writes files beside the segments, and through `writer` what is to be said of removals."""

    def __init__(self, layout: Layout, index: Index, writer: SegmentWriter) -> None:
        self._layout = layout
        self._index = index
        self._writer = writer

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

    def trim(self, workflow_id: str) -> NoReturn:
        """Refuse what `EventLog.trim` does in other stores: segments are removed whole."""
        run = self._index.find(workflow_id)
        run.check_whole()
        check_removable(workflow_id, run.state, run.ended)
        raise Unsupported(
            f"{workflow_id}: a `file:` store removes whole runs, not leading events",
            hint="delete the run, or keep runs in a `sqlite:` store",
        )

    def delete(self, workflow_id: str, at: int) -> Tombstone:
        """As `EventLog.delete`: the run is hidden as soon as its tombstone is durable."""
        run = self._index.find(workflow_id)
        check_removable(workflow_id, run.state, run.ended)
        gone = tombstone_of(run.row(), at)
        self._write_removal([gone], [])
        shutil.rmtree(self._layout.snapshots_of(workflow_id), ignore_errors=True)
        return gone

    def _write_removal(self, gone: list[Tombstone], dropped: list[Range]) -> None:
        """Write a line about removals, durably."""
        writer = self._writer
        head = Head(b=writer.batch + 1, s=writer.batch, p=writer.last, gone=gone, dropped=dropped)
        line = encode_line(head)
        alone = len(gone) == 1 and not dropped
        writer.append(line, 1, (gone[0].workflow_id, -1) if alone else None)
        self._index.bury(gone, writer.end[0], len(line))
        writer.advance(len(line))

    def drop_segments(self) -> int:
        """Remove the segments in which no run is left; return their bytes.

        One line carries their tombstones on and says that they are gone; only then are they unlinked.
        """
        index, newest = self._index, self._writer.end[0]
        if self._may_go(newest):
            self._writer.roll()
            newest = self._writer.end[0]
        numbers = [number for number in sorted(index.segments) if number != newest and self._may_go(number)]
        if not numbers:
            return 0
        carried = {
            workflow_id: index.gone[workflow_id] for n in numbers for workflow_id in index.segments[n].gone
        }
        dropped = merge_ranges(index.dropped, numbers)
        self._write_removal(list(carried.values()), dropped)
        size = sum(index.segments[number].size for number in numbers)
        index.drop(numbers, dropped)
        for number in numbers:
            self._layout.segment(number).unlink()
        sync_directory(self._layout.segments)
        return size

    def _may_go(self, number: int) -> bool:
        """Return True if no run has lines in this segment, and tombstones are a small part of it."""
        segment = self._index.segments[number]
        if segment.live or any(bad[0] == number for bad in self._index.bad):
            return False
        return segment.gone_bytes < segment.size * _TOMBSTONE_SHARE

    # -- unreferenced files

    def sweep_files(self, before: int) -> tuple[int, int, int]:
        """Remove blobs, definitions and snapshots that no run names; return how many blobs and definitions,
        and their bytes. Files put at `before` (µs) or later may be named by an event on its way."""
        layout = self._layout
        blobs = [path for path in layout.blobs.iterdir() if not path.suffix]
        names = {f"sha256:{path.name}" for path in blobs if not _is_old(path, before)}
        names = names.union(*(run.names for run in list(self._index.runs.values())))
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
