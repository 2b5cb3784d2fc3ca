"""Opening a directory of segments: rebuild the index, cut a torn end, refuse what is damaged elsewhere.

Batches are synced one after another, so only the last can be torn; it was never acknowledged, so it is cut
off. Anything else that is not as it was written is damage. It is pinned to a run, which is then quarantined,
if the damaged lines still say which they are and all their neighbours agree; else the whole store is refused,
since an event of any run could be missing. A closed segment with a good sidecar is not read at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import make_durable
from agentflow.events.ids import micros
from agentflow.events.references import names_in, parent_of
from agentflow.events.rows import Notice
from agentflow.events.segments.closing import Closed
from agentflow.events.segments.index import PLACE_BITS, Index, RunIndex, Segment
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import (
    Line,
    Rewritten,
    RunChange,
    RunIdentity,
    Salvaged,
    parse_line,
    parse_rewritten,
    salvage,
)
from agentflow.events.segments.removed import Removed
from agentflow.events.segments.sidecar import SidecarUnusable, load_sidecar, save_sidecar

__all__ = ["Recovered", "recover"]

_HINT = "restore the store from a copy"
_HEAD_BYTES = 256  # the first line of a rewritten segment is shorter


class Recovered(msgspec.Struct, frozen=True):
    """What was found: the index, the newest segment, its length, the last batch, and what to tell of it."""

    index: Index
    segment: int
    end: int
    batch: int
    notices: list[Notice]
    settled: bool
    """Whether it must be noted anew where the files end: else the next start might take damage for torn."""


class _Record(msgspec.Struct, frozen=True):
    """A line of a segment, intact or salvaged."""

    segment: int
    position: int
    size: int
    line: Line | Salvaged | None  # None: nothing can be made of these bytes


def _rewritten_head(path: Path) -> tuple[Rewritten, int] | None:
    """The first line of a segment that was rewritten, and its length; None if it never was. OSError."""
    with path.open("rb") as file:
        line = file.read(_HEAD_BYTES).partition(b"\n")[0]
    head = parse_rewritten(line)
    return None if head is None else (head, len(line) + 1)


def recover(layout: Layout, removed: Removed, closed: Closed | None) -> Recovered:
    """Read what is needed of the segments; blocks, about a second for 400,000 events without sidecars.

    All that was found is durable at return. LogCorrupt, OSError.
    """
    return _Recovery(layout, removed, closed).run()


class _Recovery:
    """The state of a recovery: the last batch that is known to be whole, and the lines of the one after."""

    def __init__(self, layout: Layout, removed: Removed, closed: Closed | None) -> None:
        self.layout = layout
        self.closed = closed
        self.index = Index(removed)
        self.batch = 0
        self.tail = 0
        """Where the last batch begins in its segment."""
        self.pending: list[_Record] = []
        self.notices: list[Notice] = []

    def run(self) -> Recovered:
        numbers = _segments(self.layout)
        for number in numbers:
            closed = number != numbers[-1]
            if not (closed and not self.pending and self._load(number)):
                self._scan(number)
                if closed and not self.pending:
                    save_sidecar(self.layout.segment(number), self.index, number)
        last = numbers[-1] if numbers else 0
        settled = self._end(last)
        end = self._make_durable(last) if last else 0
        for run in self.index.runs.values():
            if run.damaged is not None:
                text = f"{run.workflow_id} is damaged from offset {run.damaged} on; it is quarantined"
                self.notices.append(Notice(kind="damaged_run", text=text, workflow_id=run.workflow_id))
        return Recovered(self.index, last, end, self.batch, self.notices, settled)

    # -- one segment

    def _load(self, number: int) -> bool:
        """Take a closed segment from its sidecar, if that is there and says what the segment holds."""
        path = self.layout.segment(number)
        try:
            found = load_sidecar(path, self.index, number, self.batch + 1)
        except SidecarUnusable as error:
            self.notices.append(Notice(kind="rebuilt", text=f"the index of segment {number}: {error}"))
            return False
        if found:
            self.batch = self.index.segments[number].last
        return found

    def _scan(self, number: int) -> None:
        path = self.layout.segment(number)
        head = _rewritten_head(path)
        segment = Segment(number, self.batch + 1)
        self.index.segments[number] = segment
        if head is None:
            for record in self._records(number, 0):
                self._take(record)
        else:
            self._scan_rewritten(segment, *head)
        segment.last = self.batch
        segment.size = path.stat().st_size

    def _scan_rewritten(self, segment: Segment, head: Rewritten, start: int) -> None:
        """Lines of batches that were whole once: each stands for itself."""
        if self.pending:  # what is before was synced, since this was written later
            self.batch = self._accept(self.pending)
            self.pending = []
        if head.first != self.batch + 1:
            raise LogCorrupt(f"segment {segment.number} does not continue the one before", hint=_HINT)
        segment.generation = head.g
        for record in self._records(segment.number, start):
            if isinstance(record.line, Line):
                self._add(record, record.line)
            elif record.line is not None:
                self._quarantine(record, record.line)
            else:
                raise _unattributable(record)
        self.batch = head.last

    def _take(self, record: _Record) -> None:
        line, pending = record.line, self.pending
        if isinstance(line, Line) and pending and self._may_follow(line):
            # A later batch is there, so the pending one was synced, whole or not.
            self.batch = self._accept(pending)
            self.pending = pending = []
        pending.append(record)
        if isinstance(line, Line) and line.i == line.n - 1 and self._is_whole():
            self.batch = self._accept(pending)
            self.pending = []

    def _records(self, number: int, start: int) -> Iterator[_Record]:
        position = start
        with self.layout.segment(number).open("rb") as file:
            file.seek(start)
            for raw in file:
                # A last line without an end was not written to its end.
                text = raw[:-1] if raw.endswith(b"\n") else b""
                line = parse_line(text)
                size = len(raw)
                if line is not None:
                    yield _Record(number, position, size, line)
                else:
                    found = salvage(raw)
                    for piece in found:
                        yield _Record(number, position, size, piece)
                    if not found:
                        yield _Record(number, position, size, None)
                position += size

    # -- batches

    def _may_follow(self, line: Line) -> bool:
        """Whether an intact line is of a later batch than those pending."""
        first = self.pending[0].line
        current = self.batch + 1 if first is None or isinstance(first, Salvaged) else first.b
        return line.b > current

    def _is_whole(self) -> bool:
        following = all(isinstance(r.line, Line) and r.line.b == self.batch + 1 for r in self.pending)
        return following and _counts(self.pending)

    def _accept(self, pending: list[_Record]) -> int:
        """Put lines that are known to have been synced into the index; the number of their last batch."""
        start, batch = 0, self.batch
        while start < len(pending):
            first = pending[start].line
            group = pending[start : start + first.n] if first is not None else []
            self.tail = pending[start].position
            if not group or not _counts(group) or any(r.line is None or r.line.b != batch + 1 for r in group):
                raise _unattributable(pending[start])
            for record in group:
                if isinstance(record.line, Line):
                    self._add(record, record.line)
                elif record.line is not None:
                    self._quarantine(record, record.line)
            start += len(group)
            batch += 1
        return batch

    # -- runs

    def _add(self, record: _Record, line: Line) -> None:
        try:
            head = line.head()
            ts = micros(head.timestamp)
        except (msgspec.DecodeError, ValueError) as error:
            raise LogCorrupt(
                f"segment {record.segment} holds no event at byte {record.position}: {error}", hint=_HINT
            ) from error
        workflow_id, offset, removed = head.workflow_id, head.offset, self.index.removed
        if workflow_id in removed.gone:
            return
        trimmed = removed.trimmed.get(workflow_id)
        if trimmed is not None and offset < trimmed.earliest:
            return
        body = bytes(line.e)
        run = self.index.runs.get(workflow_id) or self._begin(workflow_id, line, body, ts)
        if run.damaged is not None:
            return
        if offset != run.last + 1:
            run.damage(run.last + 1)
            return
        if line.r is not None:
            run.apply(line.r)
        place = record.segment << PLACE_BITS | record.position
        run.add(place, record.size - 1, len(body), ts, self.index.type_id(head.type))
        run.names |= names_in(body)
        self.index.segments[record.segment].grow(workflow_id, offset, 1)

    def _begin(self, workflow_id: str, line: Line, body: bytes, ts: int) -> RunIndex:
        trimmed = self.index.removed.trimmed.get(workflow_id)
        if trimmed is not None:
            run = self.index.create(workflow_id, trimmed.identity, trimmed.earliest)
            run.apply(RunChange(state=trimmed.state, epoch=trimmed.epoch))
            run.parent = trimmed.parent
            run.names.update(trimmed.names)
            return run
        identity = line.r.run if line.r is not None else None
        if identity is not None:
            run = self.index.create(workflow_id, identity)
            run.parent = parent_of(body)
            return run
        # Its beginning is damaged: the run is known by a later event alone.
        run = self.index.create(
            workflow_id, RunIdentity(name=None, definition_hash="", created_at=ts, labels={})
        )
        run.damage(0)
        return run

    def _quarantine(self, record: _Record, line: Salvaged) -> None:
        removed = self.index.removed
        trimmed = removed.trimmed.get(line.workflow_id)
        if line.workflow_id in removed.gone or (trimmed is not None and line.offset < trimmed.earliest):
            return  # nobody will read it
        run = self.index.runs.get(line.workflow_id)
        if run is None or (run.damaged is None and run.last + 1 != line.offset):
            raise _unattributable(record)
        run.damage(run.last + 1)

    # -- the end

    def _end(self, newest: int) -> bool:
        """Tell a torn end, which is cut off, from a damaged one; True for that, or if the note is bad."""
        closed, settled = self.closed, self.closed is not None and not self.closed.legible
        if self.pending:
            first = self.pending[0]
            if closed is not None and closed.covers(first.segment, first.position):
                self.batch = self._accept(self.pending)
                settled = True
            else:
                self._cut(newest)
        if closed is not None and self.batch < closed.batch:
            raise LogCorrupt(
                f"segment {newest} ends with batch {self.batch}, but {closed.batch} were there when the "
                "store was closed",
                hint=_HINT,
            )
        return settled

    def _make_durable(self, newest: int) -> int:
        """All that was found is on the disk, and the next line begins behind a line end; its position."""
        path = self.layout.segment(newest)
        with path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            if file.read(1) not in (b"", b"\n"):
                file.write(b"\n")
                end += 1
        if self.closed is None or (newest, end) != (self.closed.segment, self.closed.end):
            make_durable(path, self.tail)
        return end

    def _cut(self, newest: int) -> None:
        """Cut the torn batch off the newest segment."""
        first = self.pending[0]
        if first.segment != newest or any(
            r.line is not None and r.line.b != self.batch + 1 for r in self.pending
        ):
            raise _unattributable(first)  # what was written after the last good batch is more than one batch
        path = self.layout.segment(first.segment)
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.truncate(first.position)
            os.fsync(file.fileno())
        cut = size - first.position
        self.notices.append(
            Notice(
                kind="torn_tail",
                text=f"{cut} bytes of a batch that was never acknowledged were cut off segment {newest}",
                bytes=cut,
            )
        )


def _segments(layout: Layout) -> list[int]:
    names = sorted(p.name for p in layout.segments.glob("*.ndjson"))
    numbers = [int(name.removesuffix(".ndjson")) for name in names]
    if numbers and numbers != list(range(1, len(numbers) + 1)):
        missing = min(set(range(1, numbers[-1] + 1)) - set(numbers))
        raise LogCorrupt(f"{layout.segment(missing)} is missing", hint=_HINT)
    return numbers


def _counts(pending: list[_Record]) -> bool:
    first = pending[0].line
    return (
        first is not None
        and first.n == len(pending)
        and all(r.line is not None and (r.line.i, r.line.n) == (k, first.n) for k, r in enumerate(pending))
    )


def _unattributable(record: _Record) -> LogCorrupt:
    return LogCorrupt(
        f"segment {record.segment} is damaged at or after byte {record.position}, and whose events are lost "
        "cannot be told",
        hint=_HINT,
    )
