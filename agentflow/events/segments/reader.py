"""Reading segments: one run by its index, all runs by a scan. For one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from agentflow.errors import LogCorrupt
from agentflow.events.envelope import StoredEvent
from agentflow.events.filters import TypeFilter
from agentflow.events.ids import micros
from agentflow.events.log import LoggedEvent, Page, decode_cursor, encode_cursor
from agentflow.events.segments.index import PLACE_BITS
from agentflow.events.segments.lines import event_of, parse_line
from agentflow.events.segments.recovery import segment_path
from agentflow.events.segments.store import SegmentStore

__all__ = ["SegmentReader"]

_OPEN_FILES = 64
_POSITION = (1 << PLACE_BITS) - 1


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

    def read(self, workflow_id: str, start: int, limit: int) -> list[StoredEvent]:
        """As `EventLog.read`."""
        run = self._store.index.find(workflow_id)
        end = run.last + 1
        if start >= end:
            run.check_whole()
        names = self._store.index.type_names
        found: list[StoredEvent] = []
        for offset in range(start, min(start + limit, end)):
            place = run.places[offset]
            segment, position = place >> PLACE_BITS, place & _POSITION
            line = os.pread(self._file(segment), run.sizes[offset], position)
            body = event_of(line, run.bodies[offset])
            if body is None:
                if found:
                    break  # the next read starts at the damaged line, and says so
                raise LogCorrupt(
                    f"{workflow_id} is damaged at offset {offset} (segment {segment}, byte {position})",
                    hint="restore the store from a copy; its other runs are not touched",
                )
            found.append(StoredEvent(offset, run.times[offset], names[run.types[offset]], body))
        return found

    def query(
        self,
        types: Sequence[str] | None,
        since: int | None,
        until: int | None,
        cursor: str | None,
        limit: int,
    ) -> Page[LoggedEvent]:
        """As `EventLog.query`; the cursor is a segment and a position in it."""
        wanted = None if types is None else TypeFilter(types)
        segment, position = (1, 0) if cursor is None else decode_cursor(cursor, tuple[int, int])
        last_segment, end = self._store.end
        found: list[LoggedEvent] = []
        while segment <= last_segment and len(found) < limit:
            stop = end if segment == last_segment else None
            position = self._scan(segment, position, stop, wanted, since, until, limit, found)
            if stop is not None or len(found) == limit:
                break
            segment, position = segment + 1, 0
        return Page(found, encode_cursor(segment, position))

    def latest_cursor(self) -> str:
        """The place behind all events."""
        return encode_cursor(*self._store.end)

    def _scan(
        self,
        segment: int,
        position: int,
        stop: int | None,
        wanted: Callable[[str], bool] | None,
        since: int | None,
        until: int | None,
        limit: int,
        found: list[LoggedEvent],
    ) -> int:
        """Add what is wanted of one segment; where it stopped."""
        runs = self._store.index.runs
        with segment_path(self._store.directory, segment).open("rb") as file:
            file.seek(position)
            while len(found) < limit and (stop is None or position < stop):
                raw = file.readline()
                if not raw:
                    break
                position += len(raw)
                line = parse_line(raw[:-1])
                if line is None:
                    continue
                head = line.head()
                if wanted is not None and not wanted(head.type):
                    continue
                ts = micros(head.timestamp)
                if (since is not None and ts < since) or (until is not None and ts >= until):
                    continue
                run = runs.get(head.workflow_id)
                if run is None or head.offset > run.last:
                    continue  # beyond where its run is damaged
                event = StoredEvent(head.offset, ts, head.type, bytes(line.e))
                found.append(LoggedEvent(head.workflow_id, event))
        return position

    def _file(self, segment: int) -> int:
        fd = self._files.get(segment)
        if fd is None:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            fd = self._files[segment] = os.open(segment_path(self._store.directory, segment), os.O_RDONLY)
        return fd
