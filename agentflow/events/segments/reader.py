"""Reads segments: one run by its index, all runs by a scan. For one thread."""

from __future__ import annotations

import os
from collections.abc import Callable

from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.rows import LoggedEvent, Page
from agentflow.events.rules import check_start
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.first_form import find_position, read_line, rewritten
from agentflow.events.segments.index import Index, Place
from agentflow.events.segments.lines import Line

__all__ = ["SegmentReader"]

_OPEN_FILES = 64

_Position = tuple[int, int, int]
"""Where a query stands: segment, position of a line, and how many of its events were passed."""


class SegmentReader:
    """Reads what lies before `end`, which is durable; every line is checked against its checksum."""

    def __init__(self, files: StoreFiles, index: Index, end: Callable[[], Place]) -> None:
        self._files = files
        self._index = index
        self._end = end
        self._open: dict[int, int] = {}

    def close(self) -> None:
        """Close the files."""
        while self._open:
            os.close(self._open.popitem()[1])

    # -- one run

    def read(self, workflow_id: str, start: int, limit: int) -> list[StoredEvent]:
        """As `EventLog.read`."""
        run = self._index.find(workflow_id)
        check_start(workflow_id, run.earliest, start)
        end = run.last + 1 if run.damaged is None else run.damaged
        if start >= end:
            run.check_whole()
        found: list[StoredEvent] = []
        offset, stop = start, min(start + limit, end)
        number = run.find(start)
        while offset < stop:
            place, length, first = run.line(number)
            line = read_line(os.pread(self._file(place[0]), length, place[1]))
            if line is None or (line.head.w, line.head.o) != (workflow_id, first) or not line.head.m:
                self._index.damage(run, first, place)
                if not found:
                    run.check_whole()
                break  # the next read starts at the damaged line, and says so
            events = line.events()
            found += events[offset - first : stop - first]
            offset, number = first + len(events), number + 1
        return found

    def _file(self, segment: int) -> int:
        fd = self._open.get(segment)
        if fd is None:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            fd = self._open[segment] = os.open(self._files.segment(segment), os.O_RDONLY)
        return fd

    # -- all runs

    def query(self, query: EventQuery) -> Page[LoggedEvent]:
        """As `EventLog.query`; `Page.damaged` names the runs of which events were passed over."""
        last, end = self._end()
        at = start = self._start(query.cursor, (last, end))
        scan = _Scan(query, self._index)
        for number in sorted(self._index.segments.copy()):
            if not at[0] <= number <= last or scan.full:
                continue
            position, taken = at[1:] if number == at[0] else (0, 0)
            try:
                at = self._scan(number, position, taken, end if number == last else None, scan)
            except FileNotFoundError:
                if number in self._index.segments:  # else it was removed meanwhile, with its last run
                    raise
        scan.damaged |= {run for place, run in self._index.bad.copy() if start[:2] <= place < at[:2]}
        return Page(scan.found, encode_cursor(*at), tuple(sorted(scan.damaged)))

    def latest_cursor(self) -> str:
        """Return the place behind all events."""
        return encode_cursor(*self._end(), 0)

    def _start(self, cursor: str | None, end: Place) -> _Position:
        """Return the position of a cursor. Raises ValueError if it is not one of this store."""
        if cursor is None:
            return (1, 0, 0)
        place = decode_cursor(cursor, tuple[int, ...])
        if len(place) == 5:  # of the first version
            number, position, *rest = place
            segment = self._index.segments.get(number)
            if segment is not None and segment.first_form:
                position = find_position(self._files.segment(number), position, *rest)
            place = (number, position, 0)
        if len(place) != 3:
            raise ValueError(f"{cursor!r} is not a cursor of this list")
        if not (1, 0) <= place[:2] <= end:
            raise ValueError(f"{cursor!r} lies behind the end of the log, which may be an older copy")
        return place

    def _scan(self, number: int, position: int, taken: int, stop: int | None, scan: _Scan) -> _Position:
        """Add what is wanted of one segment; return where the scan stands."""
        with self._files.segment(number).open("rb") as file:
            file.seek(position)
            while not scan.full and (stop is None or position < stop):
                raw = file.readline()
                if not raw:
                    break
                line = read_line(raw[:-1])
                if line is not None:
                    taken = scan.take(line, taken)
                    if taken:
                        return (number, position, taken)
                elif position or rewritten(raw[:-1]) is None:
                    self._index.damage_at(number, position, position + len(raw))
                position, taken = position + len(raw), 0
        return (number, position, 0)


class _Scan:
    """A page of `query` that grows."""

    def __init__(self, query: EventQuery, index: Index) -> None:
        self._query = query
        self._index = index
        self.found: list[LoggedEvent] = []
        self.damaged: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.found) >= self._query.limit

    def take(self, line: Line, taken: int) -> int:
        """Add what is wanted of a line from its event `taken` on; return how many it has passed, 0 if all.

        Leaves out lines of runs that were deleted or trimmed, or from where they are damaged on.
        """
        run = self._index.runs.get(line.head.w or "")
        if run is None:
            return 0
        offset, takes = line.head.o, self._query.takes
        if run.damaged is not None and offset >= run.damaged:
            self.damaged.add(run.workflow_id)
            return 0
        if not run.earliest <= offset <= run.last:
            return 0
        for number, event in enumerate(line.events(), start=1):
            if number > taken and takes(event.type, event.ts):
                self.found.append(LoggedEvent(run.workflow_id, event))
                if self.full:
                    return number if number < len(line.head.m) else 0
        return 0
