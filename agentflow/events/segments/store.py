"""Turns groups of appends into lines, one write and one sync for each group; removes runs and segments.

All of it runs on the writer thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import NoReturn

from agentflow.errors import AgentflowError, LogCorrupt, LogFailed, StoreError, Unsupported
from agentflow.events.envelope import StoredEvent
from agentflow.events.files import sync_directory
from agentflow.events.group import Job, fail
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.rows import ENDED, FIRST_EPOCH, Append
from agentflow.events.rules import check_removable, refusal, state_after, tombstone_of
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.index import Index, RunIndex
from agentflow.events.segments.lines import BlobRef, Head, Line, Range, RunChange, RunIdentity, encode_line
from agentflow.events.segments.writer import SegmentWriter
from agentflow.events.tombstone import Tombstone

__all__ = ["SegmentStore"]

SEGMENT_BYTES = 64 << 20
_TOMBSTONE_SHARE = 0.25
"""Part of a segment that tombstones may take for its removal to pay: they are carried on."""
_TOMBSTONE_BYTES = 160


class _Staged:
    """A run as it will be once the group is durable."""

    __slots__ = ("epoch", "last", "state", "stored_epoch")

    def __init__(self, run: RunIndex | None) -> None:
        self.last = -1 if run is None else run.last
        self.epoch = FIRST_EPOCH if run is None else run.epoch
        self.stored_epoch = FIRST_EPOCH if run is None else run.stored_epoch
        self.state = "pending" if run is None else run.state


class SegmentStore:
    """The Store of a `GroupCommit`: appends to what `recover` has found."""

    def __init__(self, files: StoreFiles, index: Index) -> None:
        self._files = files
        self._index = index
        self.writer = SegmentWriter(files, index)
        self.sync_s = 0.0

    @property
    def failure(self) -> LogFailed | None:
        """As `Store.failure`."""
        return self.writer.failure

    # -- Store

    def write(
        self, group: list[Job], leaving: Callable[[], None] = lambda: None, *, patient: bool = True
    ) -> bool:
        """Implement `Store.write`; no other process has the directory. Calls part the group: each sees what
        was submitted before it, already durable."""
        start = 0
        for position, job in enumerate(group):
            if job.call is not None:
                self._write_batches(group[start:position], leaving)
                leaving()  # a call may take its time, and what was written before it waits for nothing
                self._call(job, job.call)
                start = position + 1
        self._write_batches(group[start:], leaving)
        return True

    @property
    def due(self) -> bool:
        """As `Store.due`: True if the newest segment is long enough."""
        return self._index.end[1] >= SEGMENT_BYTES

    def tend(self) -> None:
        """Implement `Store.tend`: begin a new segment."""
        self.writer.roll()

    def finish(self) -> None:
        """Implement `Store.finish`."""
        index = self._index
        self.writer.check_all()
        self.writer.close()
        if self.failure is None:
            with contextlib.suppress(OSError):  # without the record, the next start is that after a crash
                self._files.save_closed(index.end, index.batch, index.last)

    # -- batches

    def _write_batches(self, group: list[Job], leaving: Callable[[], None]) -> None:
        if not group:
            return
        if (failed := self.writer.refused()) is not None:
            fail(group, failed)
            return
        staged: dict[str, _Staged] = {}
        accepted: list[tuple[Append, Line]] = []
        for job in group:
            assert job.batch is not None
            job.error = self._accept(job.batch, staged, accepted)
        if not accepted:
            return
        data = b"\n".join([*(line.raw for _, line in accepted), b""])
        leaving()
        encoded = perf_counter()
        try:
            self._put_blobs(accepted)
            self.writer.append(data)
        except StoreError as failure:
            fail(group, failure)
            return
        synced = perf_counter()
        for batch, line in accepted:
            self._index.add(self._index.end, line)
            if batch.run is not None:
                self._index.runs[batch.workflow_id].owner = batch.run.owner or this_process()
        self.sync_s = synced - encoded

    def _put_blobs(self, accepted: list[tuple[Append, Line]]) -> None:
        """Store the blobs of a group, durably, before the lines that name them. Raises StoreError."""
        try:
            for batch, line in accepted:
                for blob in [blob for event in batch.events for blob in event.blobs] if line.head.x else ():
                    self._files.put_blob(blob.name, blob.data)
        except OSError as error:
            raise self.writer.error_of_call(error) from error

    def _accept(
        self, batch: Append, staged: dict[str, _Staged], accepted: list[tuple[Append, Line]]
    ) -> AgentflowError | None:
        """Add the line of a batch to the group, or return why it is refused."""
        index, workflow_id = self._index, batch.workflow_id
        run = index.runs.get(workflow_id)
        now = staged.get(workflow_id) or _Staged(run)
        try:
            if run is not None:
                run.check_whole()
            gone = index.gone.get(workflow_id) if run is None else None
            error = refusal(batch, now.last, now.epoch, now.state in ENDED, gone)
            if error is not None:
                return error
            head = Head(
                b=index.batch + len(accepted) + 1,
                s=index.batch,
                p=(accepted[-1][0].workflow_id, accepted[-1][0].expected) if accepted else index.last,
                w=workflow_id,
                o=batch.expected,
                r=_change(batch, now),
                m=[(event.ts, event.type, len(event.text)) for event in batch.events],
                x=[ref for number, event in enumerate(batch.events) for ref in _blob_refs(number, event)],
            )
            accepted.append((batch, encode_line(head, batch.events)))
        except LogCorrupt as damaged:
            return damaged
        except (TypeError, ValueError) as mistake:
            return StoreError(f"cannot be stored: {mistake!r}")
        now.last += len(batch.events)
        now.state = state_after(batch, now.state)
        now.stored_epoch = batch.epoch
        staged[workflow_id] = now
        return None

    # -- calls

    def _call(self, job: Job, call: Callable[[], object]) -> None:
        job.error = self.writer.refused()
        if job.error is not None:
            return
        try:
            job.result = call()
            self.writer.check()
        except OSError as error:
            job.error = self.writer.error_of_call(error)
        except AgentflowError as error:
            job.error = error

    def probe(self) -> None:
        """Implement `EventLog.probe`."""
        self.writer.check_all()
        if (failed := self.writer.refused()) is not None:
            raise failed
        self._files.probe()

    def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Implement `EventLog.put_snapshot`."""
        self._index.find(workflow_id)
        self._files.put_snapshot(workflow_id, kind, offset, data)

    def claim(self, workflow_id: str, owner: Owner) -> int:
        """Implement `EventLog.claim`. The epoch becomes durable with the next append: this process has the
        lock."""
        if workflow_id not in self._index.runs and workflow_id not in self._index.gone:
            return FIRST_EPOCH
        run = self._index.find(workflow_id)
        run.check_whole()
        run.epoch = next_epoch(workflow_id, run.epoch, run.owner, owner)
        run.owner = owner
        return run.epoch

    def release(self, workflow_id: str, owner: Owner) -> None:
        """Implement `EventLog.release`."""
        run = self._index.runs.get(workflow_id)
        if run is not None and run.owner == owner:
            run.owner = None

    # -- retention

    def trim(self, workflow_id: str) -> NoReturn:
        """Refuse what `EventLog.trim` does in other stores: segments are removed whole."""
        run = self._index.find(workflow_id)
        run.check_whole()
        check_removable(workflow_id, run.state, run.state in ENDED)
        raise Unsupported(
            f"{workflow_id}: a `file:` store removes whole runs, not leading events",
            hint="delete the run, or keep runs in a `sqlite:` store",
        )

    def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Implement `EventLog.delete`: the run is hidden as soon as its tombstone is durable."""
        run = self._index.find(workflow_id)
        check_removable(workflow_id, run.state, run.state in ENDED)
        gone = tombstone_of(run.row(), at)
        self._write_removal([gone])
        self._files.drop_snapshots(workflow_id)
        return gone

    def sweep_files(self, before: int) -> tuple[int, int, int]:
        """Implement `StoreFiles.sweep`."""
        runs = self._index.runs
        return self._files.sweep(frozenset[str]().union(*(run.names for run in runs.values())), runs, before)

    def drop_segments(self) -> int:
        """Remove the segments in which no run is left; return their bytes.

        One line carries their tombstones on and says that they are gone; only then are they unlinked.
        """
        index = self._index
        if self._may_go(index.end[0]):
            self.writer.roll()
        newest = index.end[0]
        numbers = [number for number in sorted(index.segments) if number != newest and self._may_go(number)]
        if not numbers:
            return 0
        segments = [index.segments[number] for number in numbers]
        carried = {run: index.gone[run] for segment in segments for run in segment.gone}
        kept = {number: segment for number, segment in index.segments.items() if number not in numbers}
        dropped = _ranges([number for number in range(1, newest) if number not in kept])
        ends = [(first - 1, kept[first - 1].batch) for first, _ in dropped if first > 1]
        self._write_removal(list(carried.values()), dropped, ends)
        for number in numbers:
            del index.segments[number]
            self._files.segment(number).unlink()
        sync_directory(self._files.segments)
        return sum(segment.size for segment in segments)

    def _may_go(self, number: int) -> bool:
        """Return True if no run has lines in this segment, and tombstones are a small part of it."""
        segment = self._index.segments[number]
        if segment.runs or any(
            place[0] == number for places in self._index.damaged.values() for place in places
        ):
            return False
        return len(segment.gone) * _TOMBSTONE_BYTES < segment.size * _TOMBSTONE_SHARE

    def _write_removal(
        self, gone: list[Tombstone], dropped: list[Range] | None = None, ends: list[Range] | None = None
    ) -> None:
        """Write a line about removals, durably."""
        index = self._index
        head = Head(
            b=index.batch + 1, s=index.batch, p=index.last, gone=gone, dropped=dropped or [], ends=ends or []
        )
        line = encode_line(head)
        self.writer.append(line.raw + b"\n")
        index.add(index.end, line)


def _change(batch: Append, now: _Staged) -> RunChange | None:
    """Return what the batch changes in its run's row."""
    state, meta = state_after(batch, now.state), batch.run
    identity = meta and RunIdentity(
        name=meta.name,
        definition_hash=meta.definition_hash,
        created_at=meta.created_at,
        labels=dict(meta.labels),
    )
    change = RunChange(
        run=identity,
        state=state if state != now.state or meta is not None else None,
        epoch=batch.epoch if batch.epoch != now.stored_epoch else None,
    )
    return None if change == RunChange() else change


def _blob_refs(number: int, event: StoredEvent) -> list[BlobRef]:
    return [(number, blob.at, blob.name, len(blob.data), blob.hidden) for blob in event.blobs]


def _ranges(numbers: list[int]) -> list[Range]:
    """Return sorted numbers as ranges."""
    found: list[Range] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
