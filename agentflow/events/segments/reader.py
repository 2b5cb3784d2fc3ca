"""Reads segments: one run by its index, all runs by a scan. For one thread."""

from __future__ import annotations

import math
import os

from agentflow.errors import LogCorrupt
from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.rows import LoggedEvent, Page
from agentflow.events.rules import check_start
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.first_version import find_position, read_line
from agentflow.events.segments.index import Index, Place, RunIndex

__all__ = ["SegmentReader"]

_Position = tuple[int, int, int]
"""Where a query stands: segment, position of a line, and how many of its events were passed."""


class SegmentReader:
    """Reads what lies before `index.end`, which is durable; every line is checked against its checksum."""

    def __init__(self, files: StoreFiles, index: Index) -> None:
        self._files = files
        self._index = index
        self._open: tuple[int, int] | None = None
        """The segment that was read last, and its descriptor."""

    def close(self) -> None:
        """Close the segment that was read last."""
        if self._open is not None:
            os.close(self._open[1])
        self._open = None

    # -- one run

    def read(self, workflow_id: str, start: int, limit: int) -> list[StoredEvent]:
        """Implement `EventLog.read`."""
        try:
            return self._read(self._index.find(workflow_id), start, limit)
        except FileNotFoundError:
            self._index.find(workflow_id)  # its segments may have gone with it meanwhile
            raise

    def _read(self, run: RunIndex, start: int, limit: int) -> list[StoredEvent]:
        workflow_id = run.workflow_id
        check_start(workflow_id, run.earliest, start)
        end = run.last + 1 if run.damaged is None else run.damaged
        if start >= end:
            run.check_whole()
        found: list[StoredEvent] = []
        offset, stop = start, min(start + limit, end)
        number = run.find(start)
        while offset < stop:
            place, length, first = run.line(number)
            line = read_line(self._pread(place, length))
            if line is None or (line.head.w, line.head.o) != (workflow_id, first):
                self._index.damage(workflow_id, first, place)
                if not found:
                    run.check_whole()
                break  # the next read starts at the damaged line, and says so
            try:
                events = line.events(self._blob)
            except LogCorrupt:
                self._index.find(workflow_id)  # it may have been deleted meanwhile, with what it names
                self._index.damage(workflow_id, first, place)
                if not found:
                    run.check_whole()
                break
            found += events[offset - first : stop - first]
            offset, number = first + len(events), number + 1
        return found

    def _blob(self, name: str) -> bytes:
        data = self._files.get_blob(name)
        if data is None:
            raise LogCorrupt(f"{name}, which an event names, is missing")
        return data

    def _pread(self, place: Place, length: int) -> bytes:
        if self._open is None or self._open[0] != place[0]:
            self.close()
            self._open = (place[0], os.open(self._files.segment(place[0]), os.O_RDONLY))
        return os.pread(self._open[1], length, place[1])

    # -- all runs

    def query(self, query: EventQuery) -> Page[LoggedEvent]:
        """Implement `EventLog.query`; `Page.damaged` names the runs of which events were passed over."""
        index = self._index
        end = index.end
        at = start = self._start(query.cursor, end)
        found, damaged = list[LoggedEvent](), set[str]()
        for number in sorted(index.segments.copy()):
            if at[0] <= number <= end[0] and len(found) < query.limit:
                at = max(at, (number, 0, 0))
                try:
                    at = self._scan(at, end, query, found, damaged)
                except FileNotFoundError:
                    if number in index.segments:  # else it was removed meanwhile, with its last run
                        raise
        for run, places in index.damaged.copy().items():
            # Bytes that are missing at the end of the log are told when a scan arrives there.
            if any(start[:2] <= place < at[:2] or start[:2] < place == at[:2] == end for place in places):
                damaged.add(run)
        return Page(found, encode_cursor(*at), tuple(sorted(damaged)))

    def _scan(
        self, at: _Position, end: Place, query: EventQuery, found: list[LoggedEvent], damaged: set[str]
    ) -> _Position:
        """Add what is wanted of one segment; return where the scan stands."""
        number, position, taken = at
        runs, takes = self._index.runs, query.takes
        stop = end[1] if number == end[0] else math.inf
        with self._files.segment(number).open("rb") as file:
            file.seek(position)
            while len(found) < query.limit and position < stop and (raw := file.readline()):
                line = read_line(raw.removesuffix(b"\n"))
                if line is None:
                    self._index.damage_at(number, position, position + len(raw))
                elif (run := runs.get(line.head.w or "")) is None:
                    pass  # about removals, or of a run that was deleted
                elif run.damaged is not None and line.head.o >= run.damaged:
                    damaged.add(run.workflow_id)
                elif run.earliest <= line.head.o <= run.last:
                    try:
                        events = line.events(self._blob)
                    except LogCorrupt:
                        if run.workflow_id in runs:
                            damaged.add(run.workflow_id)
                        events = []
                    for count, event in enumerate(events, start=1):
                        if count > taken and takes(event.type, event.ts):
                            found.append(LoggedEvent(run.workflow_id, event))
                            if len(found) == query.limit and count < len(line.head.m):
                                return (number, position, count)
                position, taken = position + len(raw), 0
        return (number, position, 0)

    def latest_cursor(self) -> str:
        """Return the place behind all events."""
        return encode_cursor(*self._index.end, 0)

    def _start(self, cursor: str | None, end: Place) -> _Position:
        """Return the position of a cursor. Raises ValueError if it is not one of this store."""
        if cursor is None:
            return (1, 0, 0)
        place = decode_cursor(cursor, tuple[int, ...])
        if len(place) == 5:  # of the first version: segment, position, generation, batch, index
            number, position, _, *line = place
            segment = self._index.segments.get(number)
            if segment is not None and segment.first_version:
                position = find_position(self._files.segment(number), *line)
            place = (number, position, 0)
        if len(place) != 3:
            raise ValueError(f"{cursor!r} is not a cursor of this list")
        if not (1, 0) <= place[:2] <= end:
            raise ValueError(f"{cursor!r} lies behind the end of the log, which may be an older copy")
        return place
