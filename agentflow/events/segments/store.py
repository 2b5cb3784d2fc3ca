"""What the writing thread does with segments: one write and one sync for each group."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from agentflow.errors import AgentflowError, LogClosed, LogCorrupt, StoreError
from agentflow.events.files import put_file, replace_file, sync_directory
from agentflow.events.group import Job, fail
from agentflow.events.log import ENDED, FIRST_EPOCH, Append, refusal, state_after
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.segments.index import RunIndex
from agentflow.events.segments.lines import RunChange, RunIdentity, encode_change, encode_line
from agentflow.events.segments.recovery import Recovered, segment_path

__all__ = ["SegmentStore"]

T = TypeVar("T")

SEGMENT_BYTES = 64 << 20

# After these nothing was taken and space may come back; after any other error the disk cannot be trusted.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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

    def __init__(self, directory: Path, found: Recovered) -> None:
        self.directory = directory
        self.index = found.index
        self.failure: StoreError | None = None
        self._batch = found.batch
        self.end = (max(found.segment, 1), found.end)
        """Segment and position up to which everything is durable; read by other threads."""
        self._fd = self._open_segment(self.end[0])

    # -- Store

    def write(self, group: list[Job]) -> None:
        """As `Store.write`. Calls part the group: each sees what was submitted before it, already durable."""
        start = 0
        for position, job in enumerate(group):
            if job.call is not None:
                self._write_batches(group[start:position])
                self._call(job, job.call)
                start = position + 1
        self._write_batches(group[start:])

    def tend(self) -> None:
        """As `Store.tend`: begins a new segment when the newest is long enough."""
        if self.failure is None and self.end[1] >= SEGMENT_BYTES:
            number = self.end[0] + 1
            try:
                os.fsync(self._fd)  # also that what a failed write had left is gone
                fd = self._open_segment(number)
            except OSError as error:
                if error.errno not in _FULL:
                    self._stop(error)
                return  # the old one grows on
            os.close(self._fd)
            self._fd, self.end = fd, (number, 0)

    def finish(self) -> None:
        """As `Store.finish`."""
        os.close(self._fd)

    # -- batches

    def _write_batches(self, group: list[Job]) -> None:
        if not group:
            return
        if self.failure is not None:
            fail(group, LogClosed(str(self.failure), hint=self.failure.hint))
            return
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
                lines.append(encode_line(self._batch + 1, len(lines), count, change, event.body))
                change = b""
        try:
            self._sync(b"".join(lines))
        except StoreError as failure:
            fail(group, failure)
            return
        self._apply(accepted, lines)

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
            error = refusal(batch, now.last, now.epoch, now.ended)
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
            raise self.failure or StoreError(
                f"the store failed: {error.strerror}",
                hint="free space on the disk of the store; runs go on by themselves",
            ) from error
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._stop(error)
            raise self._final(error) from error

    def _take_back(self, end: int, cause: OSError) -> None:
        """Remove what a failed write has left, so that the next batch follows the last whole one."""
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:
            self._stop(error)
        if cause.errno not in _FULL:
            self._stop(cause)

    def _stop(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = self._final(error)

    def _final(self, error: OSError) -> LogClosed:
        return LogClosed(
            f"the store failed: {error.strerror}",
            hint="check the disk and start again; what was acknowledged is kept",
        )

    def _apply(self, accepted: list[tuple[Append, RunChange | None, bytes]], lines: Sequence[bytes]) -> None:
        """The group is durable: let readers see it."""
        self._batch += 1
        segment, position = self.end
        index, type_id = self.index, self.index.type_id
        sizes = iter(lines)
        for batch, change, _ in accepted:
            run = index.runs.get(batch.workflow_id)
            if run is None:
                assert change is not None
                assert change.run is not None  # refusal() lets only a first batch create a run
                run = index.create(batch.workflow_id, change.run)
                assert batch.run is not None
                run.owner = batch.run.owner or this_process()
            if change is not None:
                run.apply(change)
            for event in batch.events:
                size = len(next(sizes))
                run.add(segment, position, size - 1, len(event.body), event.ts, type_id(event.type))
                position += size
        self.end = (segment, position)  # last: a scan goes by it, and looks the runs up in the index

    # -- calls

    def _call(self, job: Job, call: Callable[[], T]) -> None:
        if self.failure is not None:
            job.error = LogClosed(str(self.failure), hint=self.failure.hint)
            return
        try:
            job.result = call()
        except AgentflowError as error:
            job.error = error
        except OSError as error:
            job.error = StoreError(f"the store failed: {error.strerror}")

    def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`. The epoch becomes durable with the next append: until then nobody can hold it,
        since the directory belongs to this process."""
        run = self.index.runs.get(workflow_id)
        if run is None:
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

    def put(self, path: Path, data: bytes) -> None:
        """A file beside the segments, whole and durable when this returns."""
        put_file(path, data)

    def replace(self, path: Path, data: bytes) -> None:
        """A file beside the segments in place of the one of that name."""
        replace_file(path, data)

    def _open_segment(self, number: int) -> int:
        path = segment_path(self.directory, number)
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            sync_directory(path.parent)
        except OSError:
            os.close(fd)
            raise
        return fd


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
