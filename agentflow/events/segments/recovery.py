"""Opens a directory of segments: rebuilds the index, cuts off a torn end, quarantines runs that are damaged.

Writes are synced one after another, so only the last can be torn; it was never acknowledged, so it is cut
off. Bytes before an intact line of a later write were synced once: if they cannot be read now they are
damaged. Their run is the one that the next intact line names as its predecessor; bytes that are not intact
are never believed. If a lost batch cannot be attributed that way, the whole store is refused, since an event
of any run could be missing. Segments of the first version are read in the same scan (see `first_form`).
"""

from __future__ import annotations

import os

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.files import make_durable, sync_directory
from agentflow.events.identity import FileIdentity
from agentflow.events.rows import Notice
from agentflow.events.segments.closing import Closed
from agentflow.events.segments.first_form import (
    OldLine,
    Removed,
    Rewritten,
    Salvaged,
    old_line,
    rewritten,
    salvage,
)
from agentflow.events.segments.index import Index, Segment, merge_ranges
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import Line, parse_line, refuse_newer
from agentflow.events.segments.rebuild import Rebuild

__all__ = ["Recovered", "recover"]

_HINT = "restore the store from a copy"


class Recovered(msgspec.Struct, frozen=True):
    """What was found."""

    index: Index
    segment: int
    """The newest segment, 0 if there is none."""
    end: int
    """Its length."""
    batch: int
    """The last batch."""
    last: tuple[str, int] | None
    """Run and first offset of the last batch; None if it is about removals."""
    notices: list[Notice]
    settled: bool
    """True if it must be noted anew where the files end: else the next start may take damage for torn."""


class _Piece(msgspec.Struct, frozen=True):
    """The bytes between two line ends. `line` is None if they are not what was written."""

    segment: int
    position: int
    size: int
    line: Line | OldLine | None
    salvaged: Salvaged | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Batch, index and count of its lines (one, but in the first version); 0 if unknown."""
        line = self.salvaged if self.line is None else self.line
        if line is None:
            return (0, 0, 0)
        return (line.head.b, 0, 1) if isinstance(line, Line) else (line.b, line.i, line.n)

    @property
    def synced(self) -> int:
        """The last batch that was durable when an intact line was written."""
        return self.line.head.s if isinstance(self.line, Line) else self.key[0] - 1


def recover(layout: Layout, removed: Removed, closed: Closed | None, *, read_only: bool = False) -> Recovered:
    """Read all segments; blocks, about a second for 250,000 batches.

    All that was found is durable at return, unless `read_only`: then nothing is changed. Raises LogCorrupt,
    ConfigurationError (a newer version wrote the store) or OSError.
    """
    return _Recovery(layout, removed, closed, read_only).run()


class _Recovery:
    """State of a recovery: all up to `batch` is whole, `pending` are the pieces behind it."""

    def __init__(self, layout: Layout, removed: Removed, closed: Closed | None, read_only: bool) -> None:
        self.layout = layout
        self.closed = closed
        self.read_only = read_only
        self.rebuild = Rebuild(removed)
        self.index = self.rebuild.index
        self.batch = 0
        self.index_in_batch = 0  # of the next line, in a batch of the first version
        self.synced = -1
        self.unsynced_from = 0
        """Where the last write begins in its segment: it may not have been synced."""
        self.skipped = False
        """True at the beginning of a segment whose predecessor is missing."""
        self.pending: list[_Piece] = []
        self.notices: list[Notice] = []

    def run(self) -> Recovered:
        numbers = sorted(int(path.stem) for path in self.layout.segments.glob("*.ndjson"))
        missing = sorted(set(range(1, numbers[-1] + 1)) - set(numbers)) if numbers else []
        for number in numbers:
            if number - 1 in missing:
                self._skip(number)
            self._scan(number)
        newest = numbers[-1] if numbers else 0
        settled, end = self._end(newest)
        self._account_for(missing)
        if not self.read_only and newest:
            end = self._make_durable(newest, end)
        for run in self.index.runs.values():
            if run.damaged is not None:
                text = f"{run.workflow_id} is damaged from offset {run.damaged} on; it is quarantined"
                self.notices.append(Notice(kind="damaged_run", text=text, workflow_id=run.workflow_id))
        return Recovered(self.index, newest, end, self.batch, self.rebuild.last, self.notices, settled)

    # -- one segment

    def _scan(self, number: int) -> None:
        path = self.layout.segment(number)
        segment = self.index.segments[number] = Segment(number, FileIdentity(path))
        segment.size = path.stat().st_size
        position, head = 0, None
        with path.open("rb") as file:
            for raw in file:
                if self._take_next(number, position, raw):
                    position += len(raw)
                    continue
                piece = self._piece(number, position, raw)
                if not position:
                    head = None if piece.line is not None else rewritten(raw[:-1])
                    segment.first_form = head is not None or isinstance(piece.line, OldLine)
                if head is None:
                    self._take(piece)
                elif not position:
                    self._begin_rewritten(number, head)
                else:
                    self._take_rewritten(piece)
                position += len(raw)
        if head is not None:
            self.batch = head.last

    def _take_next(self, number: int, position: int, raw: bytes) -> bool:
        """Take the line that is due, and nothing else: what nearly every line is."""
        line = parse_line(raw[:-1]) if raw.endswith(b"\n") else None
        if line is None or line.head.b != self.batch + 1 or self.pending or self.index_in_batch:
            return False
        if self.skipped:
            return False
        if line.head.s != self.synced:
            self.synced, self.unsynced_from = line.head.s, position
        self.rebuild.add((number, position), len(raw) - 1, line)
        self.batch += 1
        return True

    def _piece(self, number: int, position: int, raw: bytes) -> _Piece:
        size, text = len(raw), raw[:-1]
        if not raw.endswith(b"\n"):  # the last line was not written to its end, or was cut since
            text = raw if self.closed is not None and self.closed.covers(number, position) else b""
            size += 1
        line = (parse_line(text) or old_line(text)) if text else None
        return _Piece(number, position, size, line, None if line is not None else salvage(raw))

    def _skip(self, number: int) -> None:
        """Segments are missing before `number`; whether they were removed is known at the end."""
        if self.pending or self.index_in_batch:
            raise _unattributable(number, 0)
        self.skipped = True

    def _begin_rewritten(self, number: int, head: Rewritten) -> None:
        if self.skipped:
            self.batch, self.skipped = head.first - 1, False
        self._settle(head.first - 1)
        if self.pending or head.first != self.batch + 1:
            raise LogCorrupt(f"segment {number} does not continue the one before", hint=_HINT)

    def _take_rewritten(self, piece: _Piece) -> None:
        """Take a line of batches that were whole once: each stands for itself."""
        if isinstance(piece.line, OldLine):
            self._add(piece)
        elif piece.salvaged is not None:
            self._quarantine(piece.salvaged.workflow_id, piece.salvaged.offset, [piece])
        else:
            raise _unattributable(piece.segment, piece.position)

    # -- batches

    def _take(self, piece: _Piece) -> None:
        batch, index, count = piece.key
        if piece.line is not None:
            if self.skipped:
                self._resume(piece)
            if piece.synced > self.batch:
                self._settle(piece.synced)
                if piece.synced > self.batch:
                    self._bridge(piece, self.pending)
                    self.pending = []
            if not self.pending and count == 1 and self._is_next(piece):
                self._accept(piece)
                return
        self.pending.append(piece)
        if piece.line is not None and index == count - 1 and self._is_whole(batch, count):
            for each in self.pending:
                self._accept(each)
            self.pending = []

    def _resume(self, piece: _Piece) -> None:
        """Go on behind missing segments. One damaged line before the first intact one is one lost batch."""
        if len(self.pending) > 1 or piece.key[1]:
            raise _unattributable(piece.segment, piece.position)
        self.batch = piece.key[0] - 1 - len(self.pending)
        self.skipped = False

    def _is_next(self, piece: _Piece) -> bool:
        return piece.key[:2] == (self.batch + 1, self.index_in_batch)

    def _is_whole(self, batch: int, count: int) -> bool:
        return (
            batch == self.batch + 1
            and len(self.pending) == count
            and all(p.line is not None and p.key == (batch, k, count) for k, p in enumerate(self.pending))
        )

    def _settle(self, synced: int) -> None:
        """Take what is pending of the batches up to `synced`, which were durable; what is damaged at its end,
        and what is behind it, stays pending."""
        pending, self.pending = self.pending, []
        damaged: list[_Piece] = []
        for k, piece in enumerate(pending):
            if self.batch >= synced:
                self.pending = pending[k - len(damaged) :]
                return
            if piece.line is not None:
                self._bridge(piece, damaged)
                self._accept(piece)
                damaged = []
            elif piece.salvaged is not None and self._is_next(piece):
                self._quarantine(piece.salvaged.workflow_id, piece.salvaged.offset, [piece])
                self._advance(piece)
            else:
                damaged.append(piece)
        self.pending = damaged

    def _bridge(self, piece: _Piece, damaged: list[_Piece]) -> None:
        """Attribute a lost batch before an intact line to the run that this line names."""
        if self._is_next(piece):
            return
        line = piece.line
        if (
            isinstance(line, Line)
            and line.head.p is not None
            and not self.index_in_batch
            and line.head.b == self.batch + 2
        ):
            self._quarantine(*line.head.p, damaged)
            self.batch += 1
            return
        raise _unattributable(piece.segment, (damaged or [piece])[0].position)

    def _accept(self, piece: _Piece) -> None:
        if piece.synced != self.synced:
            self.synced, self.unsynced_from = piece.synced, piece.position
        self._add(piece)
        self._advance(piece)

    def _advance(self, piece: _Piece) -> None:
        batch, index, count = piece.key
        if index == count - 1:
            self.batch, self.index_in_batch = batch, 0
        else:
            self.index_in_batch = index + 1

    def _add(self, piece: _Piece) -> None:
        place, line = (piece.segment, piece.position), piece.line
        if isinstance(line, Line):
            self.rebuild.add(place, piece.size - 1, line)
        elif line is not None:
            self.rebuild.add_old(place, piece.size - 1, line)

    def _quarantine(self, workflow_id: str, offset: int, damaged: list[_Piece]) -> None:
        self.rebuild.quarantine(workflow_id, offset, [(piece.segment, piece.position) for piece in damaged])

    # -- the end

    def _end(self, newest: int) -> tuple[bool, int]:
        """Tell a torn end, which is cut off, from a damaged one. Return `Recovered.settled` and the end."""
        closed, end = self.closed, self.index.segments[newest].size if newest else 0
        settled = closed is not None and not closed.legible
        if self.pending:
            first = self.pending[0]
            if closed is not None and closed.covers(first.segment, first.position):
                self._settle_closed(closed)
                settled = True
            else:
                end = self._cut(newest)
        if closed is not None and self.batch < closed.batch:
            self._lose_last(closed, newest, [])
            settled = True
        return settled, end

    def _settle_closed(self, closed: Closed) -> None:
        """Take what is pending in a store that was closed behind it: nothing of it can be torn."""
        first = self.pending[0]
        self._settle(closed.batch if closed.legible else self.pending[-1].key[0])
        if self.pending:
            if any(piece.line is not None for piece in self.pending):
                raise _unattributable(first.segment, first.position)
            self._lose_last(closed, first.segment, self.pending)
            self.pending = []

    def _lose_last(self, closed: Closed, segment: int, damaged: list[_Piece]) -> None:
        """Attribute the loss of the last batch by the note of the last closing."""
        if not closed.legible:
            raise _unattributable(segment, damaged[0].position)
        if closed.batch != self.batch + 1 or closed.last is None or self.index_in_batch:
            raise LogCorrupt(
                f"segment {segment} ends with batch {self.batch}, but {closed.batch} were there when the "
                "store was closed",
                hint=_HINT,
            )
        self._quarantine(*closed.last, damaged)
        self.batch = closed.batch

    def _cut(self, newest: int) -> int:
        """Cut the torn end off the newest segment; return its new length."""
        first = self.pending[0]
        if first.segment != newest or any(
            p.line is not None and p.key[0] <= self.batch for p in self.pending
        ):
            raise _unattributable(first.segment, first.position)
        cut = self.index.segments[newest].size - first.position
        with self.layout.segment(newest).open("rb") as file:
            file.seek(first.position)
            refuse_newer(file.read(64))
        if not self.read_only:
            with self.layout.segment(newest).open("r+b") as file:
                file.truncate(first.position)
                os.fsync(file.fileno())
        verb = "passed over at the end of" if self.read_only else "cut off"
        text = f"{cut} bytes of a batch that was never acknowledged were {verb} segment {newest}"
        self.notices.append(Notice(kind="torn_tail", text=text, bytes=cut))
        self.index.segments[newest].size = first.position
        self.index_in_batch = 0
        return first.position

    def _account_for(self, missing: list[int]) -> None:
        """Check that missing segments were removed, and finish the removal of those that are still there."""
        dropped = {n for first, last in self.index.dropped for n in range(first, last + 1)}
        lost = [number for number in missing if number not in dropped]
        if lost:
            raise LogCorrupt(f"{self.layout.segment(lost[0])} is missing", hint=_HINT)
        left = sorted(dropped & self.index.segments.keys())
        if left and not self.read_only:
            for number in left:
                self.layout.segment(number).unlink()
            sync_directory(self.layout.segments)
        self.index.drop(left, merge_ranges(self.index.dropped, []))

    def _make_durable(self, newest: int, end: int) -> int:
        """Make all that was found durable, and end the last line; return the end of the segment."""
        path = self.layout.segment(newest)
        with path.open("r+b") as file:
            file.seek(max(0, end - 1))
            if file.read(1) not in (b"", b"\n"):
                file.write(b"\n")
                end += 1
                self.index.segments[newest].size = end
        if self.closed is None or (newest, end) != (self.closed.segment, self.closed.end):
            make_durable(path, min(self.unsynced_from, end))
        return end


def _unattributable(segment: int, position: int) -> LogCorrupt:
    return LogCorrupt(
        f"segment {segment} is damaged at or after byte {position}, and whose events are lost cannot be told",
        hint=_HINT,
    )
