"""Reading segments: one run by its index, all runs by a scan. For one thread."""

from __future__ import annotations

import os
from pathlib import Path

from agentflow.errors import LogCorrupt
from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.ids import micros
from agentflow.events.references import names_in
from agentflow.events.rows import LoggedEvent, Page, Snapshot
from agentflow.events.rules import check_start
from agentflow.events.segments.compact import live_parts
from agentflow.events.segments.index import PLACE_BITS, POSITION, Segment
from agentflow.events.segments.lines import Line, event_of, parse_line, parse_rewritten
from agentflow.events.segments.sealed import unseal
from agentflow.events.segments.store import SegmentStore

__all__ = ["SegmentReader"]

_OPEN_FILES = 64
_BEHIND_ALL = 1 << 31  # an index in a batch that no line has


class _Cursor:
    """Where a query stands: behind line `index` of batch `batch`. `position` in `segment` is where the next
    line begins, as long as the segment has not been rewritten since, which `generation` tells."""

    __slots__ = ("batch", "generation", "index", "position", "segment")

    def __init__(self, segment: int, position: int, generation: int, batch: int, index: int) -> None:
        self.segment = segment
        self.position = position
        self.generation = generation
        self.batch = batch
        self.index = index

    def encode(self) -> str:
        return encode_cursor(self.segment, self.position, self.generation, self.batch, self.index)


class SegmentReader:
    """Reads what `store` has made durable; every line is held against its checksum."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._files: dict[int, int] = {}

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def forget(self, number: int) -> None:
        """Segment `number` is another file now."""
        fd = self._files.pop(number, None)
        if fd is not None:
            os.close(fd)

    # -- one run

    def read(self, workflow_id: str, start: int, limit: int) -> list[StoredEvent]:
        """As `EventLog.read`."""
        run = self._store.index.find(workflow_id)
        check_start(workflow_id, run.earliest, start)
        end = run.last + 1 if run.damaged is None else run.damaged
        if start >= end:
            run.check_whole()
        names, skipped = self._store.index.type_names, run.earliest
        found: list[StoredEvent] = []
        for offset in range(start, min(start + limit, end)):
            k = offset - skipped
            place = run.places[k]
            segment, position = place >> PLACE_BITS, place & POSITION
            line = os.pread(self._file(segment), run.sizes[k], position)
            body = event_of(line, run.bodies[k])
            if body is None:
                run.damage(offset)
                if not found:
                    run.check_whole()
                break  # the next read starts at the damaged line, and says so
            found.append(StoredEvent(offset, run.times[k], names[run.types[k]], body))
        return found

    def names(self, workflow_id: str, start: int) -> set[str]:
        """The blobs and definitions that the run's events from `start` on, and its snapshots, name."""
        run = self._store.index.find(workflow_id)
        found = {run.identity.definition_hash}
        offset = max(start, run.earliest)
        while page := self.read(workflow_id, offset, 1_000):
            for event in page:
                found |= names_in(event.body)
            offset = page[-1].offset + 1
        for path in self._store.layout.snapshots_of(workflow_id).rglob("*.snapshot"):
            found |= names_in(path.read_bytes())
        return found

    def snapshot(self, workflow_id: str, kind: str, at_or_before: int | None) -> Snapshot | None:
        """The newest intact snapshot."""
        run = self._store.index.find(workflow_id)
        latest = run.last if at_or_before is None else at_or_before
        folder = self._store.layout.snapshots_of(workflow_id, kind)
        offsets = sorted((int(p.stem) for p in folder.glob("*.snapshot")), reverse=True)
        for offset in offsets:
            data = _intact(folder / f"{offset}.snapshot") if offset <= latest else None
            if data is not None:
                return Snapshot(offset, data)
        return None

    # -- all runs

    def query(self, query: EventQuery) -> Page[LoggedEvent]:
        """As `EventLog.query`."""
        place = (1, 0, 0, 0, 0)
        if query.cursor is not None:
            place = decode_cursor(query.cursor, tuple[int, int, int, int, int])
        at = _Cursor(*place)
        last_segment, end = self._store.end
        found: list[LoggedEvent] = []
        while len(found) < query.limit:
            segment = self._store.index.segments[at.segment]
            self._scan(segment, end if at.segment == last_segment else None, at, query, found)
            if at.segment == last_segment or len(found) == query.limit:
                break
            at.segment, at.position = at.segment + 1, 0
            at.generation = self._store.index.segments[at.segment].generation
        return Page(found, at.encode())

    def latest_cursor(self) -> str:
        """The place behind all events."""
        segment, position = self._store.end
        generation = self._store.index.segments[segment].generation
        return _Cursor(segment, position, generation, self._store.batch, _BEHIND_ALL).encode()

    def _scan(
        self, segment: Segment, stop: int | None, at: _Cursor, query: EventQuery, found: list[LoggedEvent]
    ) -> None:
        """Add what is wanted of one segment, and move the cursor."""
        if at.generation != segment.generation:  # rewritten since: its lines lie elsewhere, in the same order
            at.position, at.generation = 0, segment.generation
        with self._store.layout.segment(segment.number).open("rb") as file:
            file.seek(at.position)
            while len(found) < query.limit and (stop is None or at.position < stop):
                raw = file.readline()
                if not raw:
                    break
                position, at.position = at.position, at.position + len(raw)
                line = parse_line(raw[:-1])
                if line is None:
                    if position or parse_rewritten(raw[:-1]) is None:
                        self._damaged(segment, position, len(raw))
                elif (line.b, line.i) > (at.batch, at.index):
                    at.batch, at.index = line.b, line.i
                    event = self._wanted(line, query)
                    if event is not None:
                        found.append(event)

    def _wanted(self, line: Line, query: EventQuery) -> LoggedEvent | None:
        head = line.head()
        ts = micros(head.timestamp)
        if not query.takes(head.type, ts):
            return None
        run = self._store.index.runs.get(head.workflow_id)
        if run is None or not run.earliest <= head.offset <= run.last:
            return None  # deleted, trimmed, or beyond where its run is damaged
        if run.damaged is not None and head.offset >= run.damaged:
            return None
        event = StoredEvent(head.offset, ts, head.type, bytes(line.e))
        return LoggedEvent(head.workflow_id, event)

    def _damaged(self, segment: Segment, position: int, size: int) -> None:
        """Quarantine the runs whose events should be in these bytes; who owns them the index knows."""
        first = segment.number << PLACE_BITS | position
        for run, part in live_parts(self._store.index, segment.number):
            for offset, place in enumerate(run.places[part], start=run.earliest + part.start):
                if first <= place < first + size:
                    run.damage(offset)

    def _file(self, segment: int) -> int:
        fd = self._files.get(segment)
        if fd is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            fd = self._files[segment] = os.open(self._store.layout.segment(segment), os.O_RDONLY)
        return fd


def _intact(path: Path) -> bytes | None:
    """What a snapshot holds, if it is what was written."""
    try:
        return unseal(path.read_bytes(), path.name)
    except LogCorrupt:
        return None
