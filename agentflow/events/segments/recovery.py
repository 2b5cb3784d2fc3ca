"""Scans the segments of a store: rebuilds the index, cuts off a torn tail, quarantines damaged runs.

Writes are synced one after another, so only the last can be torn; it was never acknowledged, so it is cut
off. Batches that an intact line or the record of the last closing proves to have been synced cannot be torn:
if they cannot be read now, they are damaged. Their run is the one that the next intact line names as its
predecessor; bytes that are not intact are never believed. If a lost batch cannot be attributed that way, the
whole store is refused, since an event of any run could be missing.
"""

from __future__ import annotations

import os

from agentflow.errors import LogCorrupt
from agentflow.events.files import make_durable, sync_directory
from agentflow.events.identity import FileIdentity
from agentflow.events.rows import Notice
from agentflow.events.segments.files import Closed, StoreFiles
from agentflow.events.segments.first_version import FirstVersion, load_removed, look_at
from agentflow.events.segments.index import Index, Place, Segment, unattributable
from agentflow.events.segments.lines import Line, parse_line, refuse_newer

__all__ = ["recover"]

_HINT = "restore the store from a copy"


def recover(files: StoreFiles, *, read_only: bool = False) -> tuple[Index, list[Notice]]:
    """Read all segments; blocks, about a second for 250,000 batches.

    All that was found is durable at return, unless `read_only`: then nothing is changed. Raises LogCorrupt,
    ConfigurationError (a newer version wrote the store) or OSError.
    """
    recovery = _Recovery(files, files.load_closed(), read_only)
    recovery.run()
    return recovery.index, recovery.notices


class _Recovery:
    """State of a scan: all up to `index.batch` is in the index, or attributed to a quarantined run."""

    def __init__(self, files: StoreFiles, closed: Closed, read_only: bool) -> None:
        self.files, self.closed, self.read_only = files, closed, read_only
        self.index = Index()
        self.numbers = files.segment_numbers()
        self.newest = self.numbers[-1] if self.numbers else 1
        self.pending: list[tuple[Place, Line | None]] = []
        """Lines behind `index.batch`: damaged ones (None), and those behind them until it is proven whether
        the write was synced."""
        self.write: tuple[int, int] = (-1, 0)
        """`s` of the last write, and where it begins in its segment: it may not have been synced."""
        self.notices: list[Notice] = []

    def run(self) -> None:
        index, files = self.index, self.files
        cut = load_removed(files.removed, self.closed, index, read_only=self.read_only)
        if cut:
            self._note_torn(cut, files.removed.name)
        missing = self._scan_all()
        lost = self._lose_last()
        if self.pending:
            self._cut(self.pending[0][0])
        self._account_for(missing)
        if self.numbers:
            index.end = (self.newest, index.segments[self.newest].size)
            if not self.read_only:
                self._make_durable()
        if not self.read_only and (lost or self.closed.batch < 0):  # so that damage is never taken for torn
            files.save_closed(index.end, index.batch, index.last)
        for name in sorted(index.damaged):
            text = f"{name} is damaged from offset {index.runs[name].damaged} on; it is quarantined"
            self.notices.append(Notice(kind="damaged_run", text=text, workflow_id=name))

    # -- lines

    def _scan_all(self) -> list[int]:
        """Scan the segments, those of the first version first; return the numbers of missing ones."""
        index, first = self.index, FirstVersion(self.index, self.closed)
        is_old, missing = True, sorted(set(range(1, self.newest)) - set(self.numbers))
        for number in self.numbers:
            path = self.files.segment(number)
            of_first_version, before = look_at(path)
            index.segments[number] = Segment(FileIdentity(path), of_first_version, path.stat().st_size)
            if is_old and not of_first_version:
                first.finish(None if before is None else before + 1)
                is_old = False
            if number - 1 in missing and before is not None:
                if self.pending or first.begin:
                    raise unattributable((number, 0))
                index.batch, index.last = before, None
            if is_old:
                first.scan(number, path)
            else:
                self._scan(number)
        if is_old:
            first.finish(None)
        if first.begin is not None:
            self.pending.insert(0, (first.begin, None))
        return missing

    def _scan(self, number: int) -> None:
        position = 0
        with self.files.segment(number).open("rb") as file:
            for raw in file:
                place = (number, position)
                whole = raw.endswith(b"\n") or self.closed.covers(place)
                line = parse_line(raw.removesuffix(b"\n")) if whole else None
                if line is not None and line.head.b <= self.index.batch:
                    raise unattributable(place)
                if line is not None and not self.pending and line.head.b == self.index.batch + 1:
                    self._add(place, line)
                else:
                    self.pending.append((place, line))
                    if line is not None:
                        self._settle(max(line.head.s, self.closed.proven))
                position += len(raw)

    def _settle(self, proven: int) -> None:
        """Add what is pending, up to where a damaged batch is not proven to have been synced."""
        damaged: list[Place] = []
        for number, (place, line) in enumerate(self.pending):
            due = self.index.batch + 1
            if line is None:
                damaged.append(place)
                continue
            if line.head.b != due:
                if due > proven:
                    self.pending = self.pending[number - len(damaged) :]
                    return
                if line.head.b != due + 1 or line.head.p is None:
                    raise unattributable(damaged[0] if damaged else place)
                self._lose(line.head.p, damaged or [place])
            self._add(place, line)  # else what is damaged before it was no batch
            damaged = []
        self.pending = [(place, None) for place in damaged]

    def _add(self, place: Place, line: Line) -> None:
        head = line.head
        if head.p != self.index.last and None not in (head.p, self.index.last):
            raise LogCorrupt(f"segment {place[0]} does not continue the one before", hint=_HINT)
        if head.s != self.write[0]:
            self.write = (head.s, place[1])
        self.index.add(place, line)

    def _lose(self, last: tuple[str, int], places: list[Place]) -> None:
        """Attribute the batch that is due to the run and first offset `last` (-1: it was deleted there)."""
        self.index.batch, self.index.last = self.index.batch + 1, last
        if last[0] not in self.index.gone:
            self.index.damage(*last, *places)

    # -- the end

    def _lose_last(self) -> bool:
        """Attribute a lost last batch by the record of the last closing; return True if there is one."""
        index, closed = self.index, self.closed
        if index.batch == closed.batch and closed.last not in (None, index.last):
            raise LogCorrupt(f"segment {self.newest} is not the one that was closed", hint=_HINT)
        if index.batch >= closed.batch:
            return False
        if closed.batch != index.batch + 1 or closed.last is None:
            problem = f"the store ends with batch {index.batch}, but was closed behind batch {closed.batch}"
            raise LogCorrupt(f"segment {self.newest} is damaged: {problem}", hint=_HINT)
        places = [place for place, _ in self.pending if closed.covers(place)]
        self._lose(closed.last, places or [index.end])
        self.pending = [each for each in self.pending if not closed.covers(each[0])]
        return True

    def _cut(self, place: Place) -> None:
        """Cut the torn tail off the newest segment."""
        number, position = place
        if number != self.newest or self.closed.covers(place):
            raise unattributable(place)
        segment, path = self.index.segments[number], self.files.segment(number)
        cut, segment.size = segment.size - position, position
        with path.open("rb" if self.read_only else "r+b") as file:
            file.seek(position)
            refuse_newer(file.read(64))
            if not self.read_only:
                file.truncate(position)
                os.fsync(file.fileno())
        self._note_torn(cut, f"segment {number}")

    def _note_torn(self, cut: int, where: str) -> None:
        verb = "passed over at the end of" if self.read_only else "cut off"
        text = f"{cut} bytes of a batch that was never acknowledged were {verb} {where}"
        self.notices.append(Notice(kind="torn_tail", text=text, bytes=cut))

    def _account_for(self, missing: list[int]) -> None:
        """Check that missing segments were removed, and finish the removal of those that are still there."""
        dropped = {n for first, last in self.index.dropped for n in range(first, last + 1)}
        for number in missing:
            if number not in dropped:
                raise LogCorrupt(f"{self.files.segment(number)} is missing", hint=_HINT)
        for number, batch in self.index.ends:
            segment = self.index.segments.get(number)
            if segment is not None and segment.batch != batch:
                raise unattributable((number, segment.size))
        left = sorted(dropped & self.index.segments.keys())
        for number in left:
            del self.index.segments[number]
            if not self.read_only:
                self.files.segment(number).unlink()
        if left and not self.read_only:
            sync_directory(self.files.segments)

    def _make_durable(self) -> None:
        """Make all that was found durable, and end the last line."""
        path = self.files.segment(self.newest)
        with path.open("r+b") as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                size += file.write(b"\n") if file.read(1) != b"\n" else 0
        self.index.segments[self.newest].size, self.index.end = size, (self.newest, size)
        if self.index.end != (self.closed.segment, self.closed.end):
            make_durable(path, min(self.write[1], size))
