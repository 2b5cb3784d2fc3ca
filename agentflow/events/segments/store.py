"""Turns groups of appends into lines, one write and one sync for each group; removes runs and segments.

All of it runs on the writer thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import NoReturn

from agentflow.errors import AgentflowError, LogCorrupt, LogFailed, StoreError, Unsupported
from agentflow.events.files import sync_directory
from agentflow.events.group import Job, fail
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.rows import ENDED, FIRST_EPOCH, Append
from agentflow.events.rules import check_removable, refusal, state_after, tombstone_of
from agentflow.events.segments.closing import Closed, save_closed
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.index import RunIndex, merge_ranges
from agentflow.events.segments.lines import Head, Range, RunChange, RunIdentity, encode_line, encode_meta
from agentflow.events.segments.recovery import Recovered
from agentflow.events.segments.writer import SegmentWriter
from agentflow.events.tombstone import Tombstone

__all__ = ["SegmentStore"]

SEGMENT_BYTES = 64 << 20
_TOMBSTONE_SHARE = 0.25
"""Part of a segment that tombstones may take for its removal to pay: they are carried on."""


class _Staged:
    """A run as it will be once the group is durable."""

    __slots__ = ("epoch", "last", "state", "stored_epoch")

    def __init__(self, run: RunIndex | None) -> None:
        self.last = -1 if run is None else run.last
        self.epoch = FIRST_EPOCH if run is None else run.epoch
        self.stored_epoch = FIRST_EPOCH if run is None else run.stored_epoch
        self.state = "pending" if run is None else run.state


_Accepted = tuple[Append, RunChange | None, bytes]
"""A batch, what it changes in its run's row, and its line."""


class SegmentStore:
    """The Store of a `GroupCommit`: appends to what `recover` has found."""

    def __init__(self, files: StoreFiles, found: Recovered) -> None:
        self.files = files
        self.index = found.index
        self.sync_share = 0.0
        self.writer = SegmentWriter(files, found)

    @property
    def failure(self) -> LogFailed | None:
        """As `Store.failure`."""
        return self.writer.failure

    # -- Store

    def write(self, group: list[Job], leaving: Callable[[], None] = lambda: None) -> None:
        """As `Store.write`. Calls part the group: each sees what was submitted before it, already durable."""
        start = 0
        for position, job in enumerate(group):
            if job.call is not None:
                self._write_batches(group[start:position], leaving)
                leaving()  # a call may take its time, and what was written before it waits for nothing
                self._call(job)
                start = position + 1
        self._write_batches(group[start:], leaving)

    @property
    def due(self) -> bool:
        """As `Store.due`: True if the newest segment is long enough."""
        return self.writer.end[1] >= SEGMENT_BYTES

    def tend(self) -> None:
        """As `Store.tend`: begin a new segment."""
        self.writer.roll()

    def finish(self) -> None:
        """As `Store.finish`."""
        writer, files = self.writer, self.files
        writer.check_all()
        writer.close()
        if self.failure is None:
            with contextlib.suppress(OSError):  # without the record, the next start is that after a crash
                removed = files.removed.stat().st_size if files.removed.exists() else 0
                save_closed(files.closed, Closed(*writer.end, writer.batch, removed, writer.last))

    # -- batches

    def _write_batches(self, group: list[Job], leaving: Callable[[], None]) -> None:
        if not group:
            return
        if (failed := self.writer.refused()) is not None:
            fail(group, failed)
            return
        began = perf_counter()
        staged: dict[str, _Staged] = {}
        accepted: list[_Accepted] = []
        for job in group:
            assert job.batch is not None
            job.error = self._accept(job.batch, staged, accepted)
        if not accepted:
            return
        data, last = b"".join([line for _, _, line in accepted]), accepted[-1][0]
        leaving()
        encoded = perf_counter()
        try:
            position = self.writer.append(data, len(accepted), (last.workflow_id, last.expected))
        except StoreError as failure:
            fail(group, failure)
            return
        synced = perf_counter()
        self._apply(accepted, position)
        self.sync_share = (synced - encoded) / (perf_counter() - began)

    def _accept(
        self, batch: Append, staged: dict[str, _Staged], accepted: list[_Accepted]
    ) -> AgentflowError | None:
        """Add a batch to the group, or return why it is refused."""
        run = self.index.runs.get(batch.workflow_id)
        now = staged.get(batch.workflow_id) or _Staged(run)
        try:
            if run is not None:
                run.check_whole()
            gone = self.index.gone.get(batch.workflow_id) if run is None else None
            error = refusal(batch, now.last, now.epoch, now.state in ENDED, gone)
            if error is not None:
                return error
            change = _change(batch, now)
            events = b",".join([event.body for event in batch.events])
            if b"\n" in events or any(event.ts.bit_length() > 63 for event in batch.events):
                return StoreError("cannot be stored: an event is one line, its time 64 bits")
            accepted.append((batch, change, self._line(batch, change, events, accepted)))
        except LogCorrupt as damaged:
            return damaged
        except (TypeError, ValueError) as mistake:
            return StoreError(f"cannot be stored: {mistake!r}")
        now.last += len(batch.events)
        now.state = state_after(batch, now.state)
        now.stored_epoch = batch.epoch
        staged[batch.workflow_id] = now
        return None

    def _line(self, batch: Append, change: RunChange | None, events: bytes, before: list[_Accepted]) -> bytes:
        last, synced = self.writer.last, self.writer.batch
        if before:
            last = (before[-1][0].workflow_id, before[-1][0].expected)
        number = synced + len(before) + 1
        head = Head(b=number, s=synced, p=last, w=batch.workflow_id, o=batch.expected, r=change)
        return encode_line(head, encode_meta(batch.events), events)

    def _apply(self, accepted: list[_Accepted], position: int) -> None:
        """Put lines that are durable into the index, then let readers see them."""
        index, segment, start = self.index, self.writer.end[0], position
        for batch, change, line in accepted:
            run = index.runs.get(batch.workflow_id)
            if run is None:
                # `refusal` lets only a first batch create a run.
                assert batch.run is not None and change is not None and change.run is not None  # noqa: PT018
                run = index.create(batch.workflow_id, change.run, batch.events[0].body)
                run.owner = batch.run.owner or this_process()
            meta = [(event.ts, event.type, len(event.body)) for event in batch.events]
            index.add(run, (segment, position), len(line) - 1, batch.expected, meta, change, line)
            position += len(line)
        self.writer.advance(position - start)

    # -- calls

    def _call(self, job: Job) -> None:
        assert job.call is not None
        job.error = self.writer.refused()
        if job.error is not None:
            return
        try:
            try:
                job.result = job.call()
            except OSError as error:
                self.writer.check()
                job.error = self.writer.error_of_call(error)
            self.writer.check()
        except AgentflowError as error:
            job.error = error

    def probe(self) -> None:
        """As `EventLog.probe`."""
        self.writer.check_all()
        if (failed := self.writer.refused()) is not None:
            raise failed
        self.files.probe()

    def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """As `EventLog.put_snapshot`."""
        self.index.find(workflow_id)
        self.files.put_snapshot(workflow_id, kind, offset, data)

    def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`. The epoch becomes durable with the next append: this process has the lock."""
        if workflow_id not in self.index.runs and workflow_id not in self.index.gone:
            return FIRST_EPOCH
        run = self.index.find(workflow_id)
        run.check_whole()
        run.epoch = next_epoch(workflow_id, run.epoch, run.owner, owner)
        run.owner = owner
        return run.epoch

    def release(self, workflow_id: str, owner: Owner) -> None:
        """As `EventLog.release`."""
        run = self.index.runs.get(workflow_id)
        if run is not None and run.owner == owner:
            run.owner = None

    # -- retention

    def trim(self, workflow_id: str) -> NoReturn:
        """Refuse what `EventLog.trim` does in other stores: segments are removed whole."""
        run = self.index.find(workflow_id)
        run.check_whole()
        check_removable(workflow_id, run.state, run.ended)
        raise Unsupported(
            f"{workflow_id}: a `file:` store removes whole runs, not leading events",
            hint="delete the run, or keep runs in a `sqlite:` store",
        )

    def delete(self, workflow_id: str, at: int) -> Tombstone:
        """As `EventLog.delete`: the run is hidden as soon as its tombstone is durable."""
        run = self.index.find(workflow_id)
        check_removable(workflow_id, run.state, run.ended)
        gone = tombstone_of(run.row(), at)
        self._write_removal([gone], [])
        self.files.drop_snapshots(workflow_id)
        return gone

    def sweep_files(self, before: int) -> tuple[int, int, int]:
        """As `StoreFiles.sweep`."""
        runs = self.index.runs
        return self.files.sweep(frozenset[str]().union(*(run.names for run in runs.values())), runs, before)

    def drop_segments(self) -> int:
        """Remove the segments in which no run is left; return their bytes.

        One line carries their tombstones on and says that they are gone; only then are they unlinked.
        """
        index = self.index
        if self._may_go(self.writer.end[0]):
            self.writer.roll()
        newest = self.writer.end[0]
        numbers = [number for number in sorted(index.segments) if number != newest and self._may_go(number)]
        if not numbers:
            return 0
        segments = [index.segments[number] for number in numbers]
        carried = {run: index.gone[run] for segment in segments for run in segment.gone}
        dropped = merge_ranges(index.dropped, numbers)
        self._write_removal(list(carried.values()), dropped)
        index.drop(numbers, dropped)
        for number in numbers:
            self.files.segment(number).unlink()
        sync_directory(self.files.segments)
        return sum(segment.size for segment in segments)

    def _may_go(self, number: int) -> bool:
        """Return True if no run has lines in this segment, and tombstones are a small part of it."""
        segment = self.index.segments[number]
        if segment.live or any(place[0] == number for place, _ in self.index.bad):
            return False
        return segment.gone_bytes < segment.size * _TOMBSTONE_SHARE

    def _write_removal(self, gone: list[Tombstone], dropped: list[Range]) -> None:
        """Write a line about removals, durably."""
        writer = self.writer
        head = Head(b=writer.batch + 1, s=writer.batch, p=writer.last, gone=gone, dropped=dropped)
        line = encode_line(head)
        alone = len(gone) == 1 and not dropped
        writer.append(line, 1, (gone[0].workflow_id, -1) if alone else None)
        self.index.bury(gone, writer.end[0], len(line))
        writer.advance(len(line))


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
