"""What the writing thread does with segments: one write and one sync for each group."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from agentflow.errors import AgentflowError, LogCorrupt, LogFailed, StorageUnavailable, StoreError
from agentflow.events.files import open_durably
from agentflow.events.group import Job, fail
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.references import names_in, parent_of
from agentflow.events.rows import ENDED, FIRST_EPOCH, Append
from agentflow.events.rules import refusal, state_after
from agentflow.events.segments.closing import Closed, save_closed
from agentflow.events.segments.index import PLACE_BITS, RunIndex, Segment
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import RunChange, RunIdentity, encode_change, encode_line
from agentflow.events.segments.recovery import Recovered
from agentflow.events.segments.sidecar import save_sidecar
from agentflow.events.segments.upkeep import Upkeep

__all__ = ["SegmentStore"]

T = TypeVar("T")

SEGMENT_BYTES = 64 << 20
_PROBE_BYTES = 64 << 10

# After these nothing was taken and it may be taken later; after any other error the disk cannot be trusted.
_UNTAKEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

# What a sync says when it fails; a call that writes files of its own is not asked which step failed.
_BROKEN = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV})


class _Staged:
    """A run as it will be once the group is durable."""

    __slots__ = ("ended", "epoch", "last", "state", "stored_epoch")

    def __init__(self, run: RunIndex | None) -> None:
        self.last = -1 if run is None else run.last
        self.epoch = FIRST_EPOCH if run is None else run.epoch
        self.stored_epoch = FIRST_EPOCH if run is None else run.stored_epoch
        self.state = "" if run is None else run.state
        self.ended = run is not None and run.ended


class SegmentStore:
    """Appends groups to the newest segment of what `recover` has found."""

    def __init__(self, layout: Layout, found: Recovered) -> None:
        self.layout = layout
        self.index = found.index
        self.failure: LogFailed | None = None
        self.sync_share = 0.0
        self.batch = found.batch
        """The last durable batch."""
        self.end = (max(found.segment, 1), found.end)
        """Segment and position up to which everything is durable; read by other threads."""
        self._fd = open_durably(layout.segment(self.end[0]))
        self.upkeep = Upkeep(layout, self.index, self._fail)
        self._segment = self.index.segments.setdefault(self.end[0], Segment(self.end[0], self.batch + 1))

    # -- Store

    def write(self, group: list[Job], leaving: Callable[[], None] = lambda: None) -> None:
        """As `Store.write`. Calls part the group: each sees what was submitted before it, already durable."""
        start = 0
        for position, job in enumerate(group):
            if job.call is not None:
                self._write_batches(group[start:position], leaving)
                leaving()  # a call may take its time, and what was written before it waits for nothing
                self._call(job, job.call)
                start = position + 1
        self._write_batches(group[start:], leaving)

    @property
    def due(self) -> bool:
        """As `Store.due`: whether the newest segment is long enough."""
        return self.end[1] >= SEGMENT_BYTES

    def tend(self) -> None:
        """As `Store.tend`: begins a new segment."""
        self.roll()

    def roll(self) -> None:
        """Close the newest segment, which may grow on if there is no space, and begin another."""
        if self.failure is not None or not self.end[1]:
            return
        number = self.end[0] + 1
        try:
            os.fsync(self._fd)  # also that what a failed write had left is gone
            fd = open_durably(self.layout.segment(number))
        except OSError as error:
            if error.errno not in _UNTAKEN:
                self._stop(error)
            return
        os.close(self._fd)
        closed = self._segment
        closed.last, closed.size = self.batch, self.end[1]
        self._segment = self.index.segments[number] = Segment(number, self.batch + 1)
        self._fd, self.end = fd, (number, 0)
        save_sidecar(self.layout.segment(closed.number), self.index, closed.number)

    def finish(self) -> None:
        """As `Store.finish`."""
        os.close(self._fd)
        removed = self.upkeep.close()
        if self.failure is None:
            with contextlib.suppress(OSError):  # without the note, the next start is that after a crash
                save_closed(self.layout.closed, Closed(*self.end, self.batch, removed))

    # -- batches

    def _write_batches(self, group: list[Job], leaving: Callable[[], None]) -> None:
        if not group:
            return
        if self.failure is not None:
            fail(group, self._refused(self.failure))
            return
        began = perf_counter()
        staged: dict[str, _Staged] = {}
        accepted: list[tuple[Append, RunChange | None, bytes]] = []
        for job in group:
            if job.batch is not None:
                job.error = self._take(job.batch, staged, accepted)
        if not accepted:
            return
        count = sum(len(batch.events) for batch, _, _ in accepted)
        lines: list[bytes] = []
        for batch, _, change in accepted:
            for event in batch.events:
                lines.append(encode_line(self.batch + 1, len(lines), count, change, event.body))
                change = b""
        leaving()
        encoded = perf_counter()
        try:
            self._sync(b"".join(lines))
        except StoreError as failure:
            fail(group, failure)
            return
        synced = perf_counter()
        self._apply(accepted, lines)
        self.sync_share = (synced - encoded) / (perf_counter() - began)

    def _take(
        self,
        batch: Append,
        staged: dict[str, _Staged],
        accepted: list[tuple[Append, RunChange | None, bytes]],
    ) -> AgentflowError | None:
        """Add a batch to the group, or say why not."""
        run = self.index.runs.get(batch.workflow_id)
        now = staged.get(batch.workflow_id) or _Staged(run)
        try:
            if run is not None:
                run.check_whole()
            gone = self.index.removed.gone.get(batch.workflow_id) if run is None else None
            error = refusal(batch, now.last, now.epoch, now.ended, gone)
            if error is not None:
                return error
            change = _change(batch, now)
            encoded = encode_change(change) if change is not None else b""
            if any(b"\n" in event.body or event.ts.bit_length() > 63 for event in batch.events):
                return StoreError("cannot be stored: an event is one line, its time 64 bits")
        except LogCorrupt as damaged:
            return damaged
        except (TypeError, ValueError) as mistake:
            return StoreError(f"cannot be stored: {mistake!r}")
        accepted.append((batch, change, encoded))
        now.last += len(batch.events)
        now.state = state_after(batch, now.state or "pending")
        now.stored_epoch = batch.epoch
        now.ended = now.state in ENDED
        staged[batch.workflow_id] = now
        return None

    def _sync(self, data: bytes) -> None:
        """Append `data` and sync it. StoreError: nothing of it is there. After a failed sync all is over."""
        end = self.end[1]
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], end + written)
        except OSError as error:
            self._take_back(end, error)
            raise self.failure or _unavailable(error) from error
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._fail(error) from error

    def _take_back(self, end: int, cause: OSError) -> None:
        """Remove what a failed write has left, so that the next batch follows the last whole one."""
        try:
            os.ftruncate(self._fd, end)
            # Else a power failure may leave lines of it among those of the next batch, which has its number.
            os.fsync(self._fd)
        except OSError as error:
            self._stop(error)
        if cause.errno not in _UNTAKEN:
            self._stop(cause)

    def _stop(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = self._final(error)

    def _fail(self, error: OSError) -> LogFailed:
        """It is over; what to tell."""
        self._stop(error)
        return self._final(error)

    def _final(self, error: OSError) -> LogFailed:
        return LogFailed(
            f"the store failed: {error.strerror}",
            hint="check the disk and start again; what was acknowledged is kept",
        )

    def _refused(self, failure: LogFailed) -> LogFailed:
        return LogFailed(str(failure), hint=failure.hint)

    def _apply(self, accepted: list[tuple[Append, RunChange | None, bytes]], lines: Sequence[bytes]) -> None:
        """The group is durable: let readers see it."""
        self.batch += 1
        segment, position = self.end
        index, type_id = self.index, self.index.type_id
        sizes = iter(lines)
        for batch, change, _ in accepted:
            run = index.runs.get(batch.workflow_id)
            if run is None:
                assert change is not None
                assert change.run is not None  # refusal() lets only a first batch create a run
                run = index.create(batch.workflow_id, change.run)
                run.parent = parent_of(batch.events[0].body)
                assert batch.run is not None
                run.owner = batch.run.owner or this_process()
            if change is not None:
                run.apply(change)
            for event in batch.events:
                size, body = len(next(sizes)), event.body
                place = segment << PLACE_BITS | position
                run.add(place, size - 1, len(body), event.ts, type_id(event.type))
                run.names |= names_in(body)
                position += size
            self._segment.grow(batch.workflow_id, batch.expected, len(batch.events))
        self.end = (segment, position)  # last: a scan goes by it, and looks the runs up in the index

    # -- calls

    def _call(self, job: Job, call: Callable[[], T]) -> None:
        if self.failure is not None:
            job.error = self._refused(self.failure)
            return
        try:
            job.result = call()
        except AgentflowError as error:
            job.error = error
        except OSError as error:
            if error.errno in _UNTAKEN:
                job.error = _unavailable(error)
            elif error.errno in _BROKEN:
                job.error = self._fail(error)
            else:
                job.error = StoreError(f"the store failed: {error.strerror}")

    def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`. The epoch becomes durable with the next append: until then nobody can hold it,
        since the directory belongs to this process."""
        run = self.index.runs.get(workflow_id)
        if run is None:
            self.index.check_not_gone(workflow_id)
            return FIRST_EPOCH
        run.check_whole()
        run.epoch = next_epoch(workflow_id, run.epoch, run.owner, owner)
        run.owner = owner
        return run.epoch

    def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        run = self.index.runs.get(workflow_id)
        if run is not None and run.owner == owner:
            run.owner = None


def _unavailable(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"the store takes nothing now: {error.strerror}",
        hint="see that the store's disk has space and can be written to; runs go on by themselves",
    )


def _change(batch: Append, now: _Staged) -> RunChange | None:
    """What the batch changes in its run's row."""
    state = state_after(batch, now.state or "pending")
    meta = batch.run
    change = RunChange(
        run=None
        if meta is None
        else RunIdentity(
            name=meta.name,
            definition_hash=meta.definition_hash,
            created_at=meta.created_at,
            labels=dict(meta.labels),
        ),
        state=state if state != now.state else None,
        epoch=batch.epoch if batch.epoch != now.stored_epoch else None,
    )
    return None if change == RunChange() else change
