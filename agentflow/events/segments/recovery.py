"""Scans the segments of a store: rebuilds the index, cuts off a torn end, quarantines damaged runs.

Writes are synced one after another, so only the last can be torn; it was never acknowledged, so it is cut
off. Bytes before an intact line of a later write were synced once: if they cannot be read now they are
damaged. Their run is the one that the next intact line names as its predecessor; bytes that are not intact
are never believed. If a lost batch cannot be attributed that way, the whole store is refused, since an event
of any run could be missing. Segments of the first version are read in the same scan (see `first_form`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import make_durable, sync_directory
from agentflow.events.identity import FileIdentity
from agentflow.events.rows import Notice
from agentflow.events.segments.closing import Closed
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.first_form import Removed, Rewritten, read_line, rewritten, salvage
from agentflow.events.segments.index import Index, Place, Segment, merge_ranges
from agentflow.events.segments.lines import Line, refuse_newer

__all__ = ["Recovered", "recover"]

_HINT = "restore the store from a copy"


class Recovered(msgspec.Struct, frozen=True):
    """What was found: the newest segment (0 if there is none) and its length, and the last batch."""

    index: Index
    segment: int
    end: int
    batch: int
    last: tuple[str, int] | None
    """Run and first offset of the last batch; None if it is about more than one removal."""
    notices: list[Notice]
    outdated: bool
    """True if the record of the last closing must be replaced, so that damage is never taken for torn."""


def recover(
    files: StoreFiles, removed: Removed, closed: Closed | None, *, read_only: bool = False
) -> Recovered:
    """Read all segments; blocks, about a second for 250,000 batches.

    All that was found is durable at return, unless `read_only`: then nothing is changed. Raises LogCorrupt,
    ConfigurationError (a newer version wrote the store) or OSError.
    """
    return _Recovery(files, removed, closed, read_only).run()


class _Recovery:
    """State of a scan: all up to `batch` is in the index, or attributed to a run that is quarantined."""

    def __init__(self, files: StoreFiles, removed: Removed, closed: Closed | None, read_only: bool) -> None:
        self.files, self.removed, self.closed, self.read_only = files, removed, closed, read_only
        self.index = Index()
        self.index.gone.update(removed.gone)
        self.numbers = sorted(int(path.stem) for path in files.segments.glob("*.ndjson"))
        self.newest = self.numbers[-1] if self.numbers else 0
        self.batch = 0
        self.line = 0  # of the next line, in a batch of the first version
        self.last: tuple[str, int] | None = None
        self.pending: list[tuple[Place, Line | None]] = []
        """Lines behind `batch` that are damaged (None), or belong to a batch that may be torn."""
        self.skipped = False
        """True at the beginning of a segment whose predecessor is missing."""
        self.proven: int | None = None
        self.synced, self.unsynced_from = -1, 0
        """Where the last write begins in its segment: it may not have been synced."""
        self.notices: list[Notice] = []

    def run(self) -> Recovered:
        missing = sorted(set(range(1, self.newest + 1)) - set(self.numbers))
        for number in self.numbers:
            if number - 1 in missing:
                if self.pending or self.line:
                    raise _unattributable((number, 0))
                self.skipped = True
            self._scan(number)
        outdated = self._lose_last() or (self.closed is not None and not self.closed.legible)
        if self.pending:
            self._cut()
        elif self.line:
            raise _unattributable((self.newest, 0))
        self._account_for(missing)
        if self.newest and not self.read_only:
            self._make_durable()
        end = self.index.segments[self.newest].size if self.newest else 0
        for name in sorted(self.index.quarantined):
            text = f"{name} is damaged from offset {self.index.runs[name].damaged} on; it is quarantined"
            self.notices.append(Notice(kind="damaged_run", text=text, workflow_id=name))
        return Recovered(self.index, self.newest, end, self.batch, self.last, self.notices, outdated)

    # -- lines

    def _scan(self, number: int) -> None:
        path, position = self.files.segment(number), 0
        segment = self.index.segments[number] = Segment(number, FileIdentity(path), path.stat().st_size)
        head: Rewritten | None = None
        with path.open("rb") as file:
            for raw in file:
                place = (number, position)
                line = read_line(raw[:-1] if raw.endswith(b"\n") else self._end_of_file(place, raw))
                if not position:
                    head = rewritten(raw[:-1]) if line is None else None
                    segment.first_form = head is not None or (line is not None and line.first_form)
                if head is not None:
                    self._take_rewritten(place, line, raw, head)
                elif line is None:
                    self._take_damaged(place, raw)
                elif not self._take(place, line):
                    break
                position += len(raw)

    def _end_of_file(self, place: Place, raw: bytes) -> bytes:
        """Return the text of a last line without an end: it was not written whole, or was cut since."""
        return raw if self.closed is not None and self.closed.covers(*place) else b""

    def _take(self, place: Place, line: Line) -> bool:
        """Take an intact line; return False if it is part of a torn write, or behind one."""
        batch = line.head.b
        if self.skipped:
            # Segments are missing before this one. One damaged line before this line is one lost batch.
            if len(self.pending) > 1 or line.index:
                raise _unattributable(place)
            self.batch, self.skipped = batch - 1 - len(self.pending), False
        if batch == self.batch + 1 and line.index == self.line:
            if (not self.pending and line.count == 1) or self._is_durable(batch):
                self.pending = []
                self._accept(place, line)
                return True
            self.pending.append((place, line))
            if line.count == 1:
                return False
            self.line += 1
            if self.line == line.count and len(self.pending) == line.count:
                self.line, pending, self.pending = 0, self.pending, []
                for each, part in pending:
                    assert part is not None  # damaged ones are of no number that is due
                    self._accept(each, part)
            return True
        if batch > self.batch and not self._is_durable(self.batch + 1):
            self.pending.append((place, line))
            return False
        if batch != self.batch + 2 or self.line or line.head.p is None:
            raise _unattributable(self.pending[0][0] if self.pending else place)
        self._quarantine(*line.head.p)
        self.batch += 1
        self._accept(place, line)
        return True

    def _take_damaged(self, place: Place, raw: bytes) -> None:
        """Attribute a line of the first version to the run it names, if that is the line that is due."""
        found = salvage(raw)
        due = found is not None and (found.b, found.i) == (self.batch + 1, self.line) and not self.pending
        self.pending.append((place, None))
        if found is not None and due and self._is_durable(found.b):
            self._quarantine(found.workflow_id, found.offset)
            self._advance(found.b, found.i, found.n)

    def _take_rewritten(self, place: Place, line: Line | None, raw: bytes, head: Rewritten) -> None:
        """Take a line of batches that were whole once: each stands for itself."""
        found = None if line is not None else salvage(raw)
        if not place[1]:
            if self.pending or self.line or (head.first != self.batch + 1 and not self.skipped):
                raise LogCorrupt(f"segment {place[0]} does not continue the one before", hint=_HINT)
            self.batch, self.skipped = head.last, False
        elif line is not None:
            self._add(place, line)
        elif found is not None:
            self.pending.append((place, None))
            self._quarantine(found.workflow_id, found.offset)
        else:
            raise _unattributable(place)

    def _is_durable(self, batch: int) -> bool:
        """Return True if a damaged line of this batch, the next, cannot be torn."""
        newest = self.index.segments.get(self.newest)
        if newest is None or (self.pending and self.pending[-1][0][0] != self.newest):
            return True
        if self.closed is not None and (not self.closed.legible or batch <= self.closed.batch):
            return True
        if self.proven is None:
            self.proven = max((line.head.s for line in self._intact_lines(0)), default=0)
        return batch <= self.proven

    def _intact_lines(self, position: int) -> Iterator[Line]:
        """Yield the intact lines of the newest segment from `position` on."""
        with self.files.segment(self.newest).open("rb") as file:
            file.seek(position)
            for raw in file:
                line = read_line(raw[:-1]) if raw.endswith(b"\n") else None
                if line is not None:
                    yield line

    # -- the index

    def _accept(self, place: Place, line: Line) -> None:
        if line.head.s != self.synced:
            self.synced, self.unsynced_from = line.head.s, place[1]
        self._add(place, line)
        self._advance(line.head.b, line.index, line.count)

    def _advance(self, batch: int, index: int, count: int) -> None:
        if index == count - 1:
            self.batch, self.line = batch, 0
        else:
            self.line = index + 1

    def _add(self, place: Place, line: Line) -> None:
        head, length = line.head, len(line.raw)
        if head.w is None:
            alone = len(head.gone) == 1 and not head.dropped
            self.last = (head.gone[0].workflow_id, -1) if alone else None
            self.index.bury(head.gone, place[0], length + 1)
            self.index.dropped = head.dropped or self.index.dropped
            return
        self.last = (head.w, head.o)
        if head.w in self.index.gone or (line.first_form and self.removed.is_gone(head.w, head.o)):
            return
        run = self.index.runs.get(head.w)
        if run is None:
            run = self.removed.begin(self.index, head.w)
        if run is None and head.r is not None and head.r.run is not None and not head.o:
            first = line.raw[line.start : line.start + head.m[0][2]]
            run = self.index.create(head.w, head.r.run, first)
        if run is None:  # its beginning is lost: only its id is known
            self.index.lose(head.w, 0)
            return
        if run.damaged is None and head.o != run.last + 1:
            self.index.damage(run, run.last + 1)
        if run.damaged is None:
            self.index.add(run, place, length, head.o, head.m, head.r, line.raw)

    def _quarantine(self, workflow_id: str, offset: int) -> None:
        """Attribute what is pending to the batch of a run that began at `offset` (-1: its tombstone)."""
        pending, self.pending = self.pending, []
        self.last = (workflow_id, offset)
        if not self.removed.is_gone(workflow_id, offset) and workflow_id not in self.index.gone:
            self.index.lose(workflow_id, max(offset, 0), *(place for place, _ in pending))

    # -- the end

    def _lose_last(self) -> bool:
        """Attribute a lost last batch by the record of the last closing; return True if there is one."""
        closed = self.closed
        if closed is None or self.batch >= closed.batch:
            return False
        if closed.batch != self.batch + 1 or closed.last is None or self.line:
            problem = f"the store ends with batch {self.batch}, but was closed behind batch {closed.batch}"
            raise LogCorrupt(f"segment {self.newest} is damaged: {problem}", hint=_HINT)
        self._quarantine(*closed.last)
        self.batch = closed.batch
        return True

    def _cut(self) -> None:
        """Cut the torn end off the newest segment."""
        number, position = place = self.pending[0][0]
        durable = number != self.newest or (self.closed is not None and self.closed.covers(*place))
        if durable or any(line.head.b <= self.batch for line in self._intact_lines(position)):
            raise _unattributable(place)
        segment, path = self.index.segments[number], self.files.segment(number)
        cut, segment.size = segment.size - position, position
        with path.open("rb" if self.read_only else "r+b") as file:
            file.seek(position)
            refuse_newer(file.read(64))
            if not self.read_only:
                file.truncate(position)
                os.fsync(file.fileno())
        verb = "passed over at the end of" if self.read_only else "cut off"
        text = f"{cut} bytes of a batch that was never acknowledged were {verb} segment {number}"
        self.notices.append(Notice(kind="torn_tail", text=text, bytes=cut))

    def _account_for(self, missing: list[int]) -> None:
        """Check that missing segments were removed, and finish the removal of those that are still there."""
        dropped = {n for first, last in self.index.dropped for n in range(first, last + 1)}
        for number in missing:
            if number not in dropped:
                raise LogCorrupt(f"{self.files.segment(number)} is missing", hint=_HINT)
        left = sorted(dropped & self.index.segments.keys())
        if left and not self.read_only:
            for number in left:
                self.files.segment(number).unlink()
            sync_directory(self.files.segments)
        self.index.drop(left, merge_ranges(self.index.dropped, []))

    def _make_durable(self) -> None:
        """Make all that was found durable, and end the last line."""
        segment, path = self.index.segments[self.newest], self.files.segment(self.newest)
        with path.open("r+b") as file:
            file.seek(max(0, segment.size - 1))
            if file.read(1) not in (b"", b"\n"):
                segment.size += file.write(b"\n")
        if self.closed is None or (self.newest, segment.size) != (self.closed.segment, self.closed.end):
            make_durable(path, min(self.unsynced_from, segment.size))


def _unattributable(place: Place) -> LogCorrupt:
    return LogCorrupt(
        f"segment {place[0]} is damaged at or after byte {place[1]}, and whose events are lost "
        "cannot be told",
        hint=_HINT,
    )
