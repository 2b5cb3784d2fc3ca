"""Reads segments: one run by its index, all runs by a scan. For one thread."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agentflow.errors import LogCorrupt
from agentflow.events.base import EventQuery
from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.envelope import StoredEvent
from agentflow.events.rows import LoggedEvent, Page, Snapshot
from agentflow.events.rules import check_start
from agentflow.events.segments.first_form import OldLine, old_line, rewritten
from agentflow.events.segments.index import Index, Place
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import Line, parse_line
from agentflow.events.segments.sealed import unseal

__all__ = ["SegmentReader"]

_OPEN_FILES = 64

_Position = tuple[int, int, int]
"""Where a query stands: segment, position of a line, and how many of its events were passed."""


class _Scan:
    """A page of `query` that grows."""

    __slots__ = ("damaged", "found", "query")

    def __init__(self, query: EventQuery) -> None:
        self.query = query
        self.found: list[LoggedEvent] = []
        self.damaged: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.found) >= self.query.limit


class SegmentReader:
    """Reads what lies before `end`, which is durable; every line is checked against its checksum."""

    def __init__(self, layout: Layout, index: Index, end: Callable[[], Place]) -> None:
        self._layout = layout
        self._index = index
        self._end = end
        self._files: dict[int, int] = {}

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

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
            events = self._events(workflow_id, place, length, first)
            if events is None:
                self._index.damage(run, first)
                self._index.bad.add((*place, workflow_id))
                if not found:
                    run.check_whole()
                break  # the next read starts at the damaged line, and says so
            found += events[offset - first : stop - first]
            offset, number = first + len(events), number + 1
        return found

    def _events(self, workflow_id: str, place: Place, length: int, first: int) -> list[StoredEvent] | None:
        """Return the events of a line, None if they are not what was written."""
        raw = os.pread(self._file(place[0]), length, place[1])
        line = parse_line(raw)
        if line is not None:
            head = line.head
            return line.events() if (head.w, head.o) == (workflow_id, first) and head.m else None
        old = old_line(raw)
        if old is None:
            return None
        owner, event = old.event()
        return [event] if (owner, event.offset) == (workflow_id, first) else None

    def snapshot(self, workflow_id: str, kind: str, at_or_before: int | None) -> Snapshot | None:
        """Return the newest intact snapshot."""
        run = self._index.find(workflow_id)
        latest = run.last if at_or_before is None else at_or_before
        folder = self._layout.snapshots_of(workflow_id, kind)
        offsets = sorted((int(p.stem) for p in folder.glob("*.snapshot")), reverse=True)
        for offset in offsets:
            data = _intact(folder / f"{offset}.snapshot") if offset <= latest else None
            if data is not None:
                return Snapshot(offset, data)
        return None

    # -- all runs

    def query(self, query: EventQuery) -> Page[LoggedEvent]:
        """As `EventLog.query`; `Page.damaged` names the runs of which events were passed over."""
        last, end = self._end()
        at = start = self._start(query.cursor, (last, end))
        scan = _Scan(query)
        for number in sorted(self._index.segments.copy()):
            if not at[0] <= number <= last or scan.full:
                continue
            position, taken = at[1:] if number == at[0] else (0, 0)
            try:
                at = self._scan(number, position, taken, end if number == last else None, scan)
            except FileNotFoundError:
                if number in self._index.segments:  # else it was removed meanwhile, with its last run
                    raise
        bad = self._index.bad.copy()
        scan.damaged |= {run for segment, position, run in bad if start[:2] <= (segment, position) < at[:2]}
        return Page(scan.found, encode_cursor(*at), tuple(sorted(scan.damaged)))

    def latest_cursor(self) -> str:
        """Return the place behind all events."""
        return encode_cursor(*self._end(), 0)

    def _start(self, cursor: str | None, end: Place) -> _Position:
        """Return the position of a cursor. Raises ValueError if it is not one of this store."""
        if cursor is None:
            return (1, 0, 0)
        place = decode_cursor(cursor, tuple[int, ...])
        if len(place) == 5:
            position = self._position_of_old(*place)
        elif len(place) == 3:
            position = place
        else:
            raise ValueError(f"{cursor!r} is not a cursor of this list")
        if not (1, 0) <= position[:2] <= end:
            raise ValueError(f"{cursor!r} lies behind the end of the log, which may be an older copy")
        return position

    def _scan(self, number: int, position: int, taken: int, stop: int | None, scan: _Scan) -> _Position:
        """Add what is wanted of one segment; return where the scan stands."""
        with self._layout.segment(number).open("rb") as file:
            file.seek(position)
            while not scan.full and (stop is None or position < stop):
                raw = file.readline()
                if not raw:
                    break
                text = raw[:-1]
                line = parse_line(text) or old_line(text)
                if line is None:
                    self._damaged(number, position, raw)
                else:
                    taken = self._take(line, taken, scan)
                    if taken:
                        return (number, position, taken)
                position, taken = position + len(raw), 0
        return (number, position, 0)

    def _take(self, line: Line | OldLine, taken: int, scan: _Scan) -> int:
        """Add what is wanted of a line from its event `taken` on; return how many it has passed, 0 if all."""
        if isinstance(line, Line):
            head = line.head
            if head.w is None or not self._is_readable(head.w, head.o, scan):
                return 0
            return _take_events(line, taken, scan)
        workflow_id, event = line.event()
        wanted = scan.query.takes(event.type, event.ts)
        if wanted and self._is_readable(workflow_id, event.offset, scan):
            scan.found.append(LoggedEvent(workflow_id, event))
        return 0

    def _is_readable(self, workflow_id: str, offset: int, scan: _Scan) -> bool:
        """Return False for lines of runs that were deleted or trimmed, or from where they are damaged on."""
        run = self._index.runs.get(workflow_id)
        if run is None:
            return False
        if run.damaged is not None and offset >= run.damaged:
            scan.damaged.add(workflow_id)
            return False
        return run.earliest <= offset <= run.last

    def _damaged(self, number: int, position: int, raw: bytes) -> None:
        """Quarantine the runs whose events should be in these bytes; who owns them the index knows."""
        if not position and rewritten(raw[:-1]) is not None:
            return
        for run, first in self._index.at(number, position, position + len(raw)):
            self._index.damage(run, first)
            self._index.bad.add((number, position, run.workflow_id))

    # -- cursors of the first version

    def _position_of_old(
        self, number: int, position: int, generation: int, batch: int, index: int
    ) -> _Position:
        """Return where the next line lay behind line `index` of `batch`. The position holds if the segment
        was not rewritten since, which its generation tells."""
        segment = self._index.segments.get(number)
        if segment is None or not segment.first_form:
            return (number, position, 0)
        at = 0
        with self._layout.segment(number).open("rb") as file:
            for raw in file:
                head = rewritten(raw[:-1]) if not at else None
                if not at and generation == (0 if head is None else head.g):
                    return (number, position, 0)
                line = old_line(raw[:-1])
                if line is not None and (line.b, line.i) > (batch, index):
                    break
                at += len(raw)
        return (number, at, 0)

    def _file(self, segment: int) -> int:
        fd = self._files.get(segment)
        if fd is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            fd = self._files[segment] = os.open(self._layout.segment(segment), os.O_RDONLY)
        return fd


def _take_events(line: Line, taken: int, scan: _Scan) -> int:
    """Add what is wanted of a line from its event `taken` on; return how many it has passed, 0 if all."""
    workflow_id, raw, position, offset = line.head.w or "", line.raw, line.start, line.head.o
    found, takes, everything = scan.found, scan.query.takes, scan.query.everything
    meta = line.head.m
    for number, (ts, type, length) in enumerate(meta, start=1):
        if number > taken and (everything or takes(type, ts)):
            event = StoredEvent(offset, ts, type, raw[position : position + length])
            found.append(LoggedEvent(workflow_id, event))
            if scan.full:
                return number if number < len(meta) else 0
        position += length + 1
        offset += 1
    return 0


def _intact(path: Path) -> bytes | None:
    """Return what a snapshot holds, None if it is not what was written."""
    try:
        return unseal(path.read_bytes(), path.name)
    except LogCorrupt:
        return None
