"""Turns groups of appends into lines: what the writer thread does, one write and one sync for each group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TypeVar

from agentflow.errors import AgentflowError, LogCorrupt, LogFailed, StoreError
from agentflow.events.group import Job, fail
from agentflow.events.owner import Owner, next_epoch, this_process
from agentflow.events.references import names_in, parent_of
from agentflow.events.rows import ENDED, FIRST_EPOCH, Append
from agentflow.events.rules import refusal, state_after
from agentflow.events.segments.closing import Closed, save_closed
from agentflow.events.segments.index import RunIndex
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import Head, RunChange, RunIdentity, encode_line, encode_meta
from agentflow.events.segments.recovery import Recovered
from agentflow.events.segments.upkeep import Upkeep
from agentflow.events.segments.writer import SegmentWriter

__all__ = ["SegmentStore"]

T = TypeVar("T")

SEGMENT_BYTES = 64 << 20


class _Staged:
    """A run as it will be once the group is durable."""

    __slots__ = ("ended", "epoch", "last", "state", "stored_epoch")

    def __init__(self, run: RunIndex | None) -> None:
        self.last = -1 if run is None else run.last
        self.epoch = FIRST_EPOCH if run is None else run.epoch
        self.stored_epoch = FIRST_EPOCH if run is None else run.stored_epoch
        self.state = "" if run is None else run.state
        self.ended = run is not None and run.ended


class _Accepted:
    """A batch that is about to be written."""

    __slots__ = ("batch", "change", "events", "length", "meta")

    def __init__(self, batch: Append, change: RunChange | None, meta: bytes, events: bytes) -> None:
        self.batch = batch
        self.change = change
        self.meta = meta
        self.events = events
        self.length = 0


class SegmentStore:
    """The Store of a `GroupCommit`: appends to what `recover` has found."""

    def __init__(self, layout: Layout, found: Recovered) -> None:
        self.layout = layout
        self.index = found.index
        self.sync_share = 0.0
        self.writer = SegmentWriter(layout, found)
        self.upkeep = Upkeep(layout, self.index, self.writer)

    @property
    def failure(self) -> LogFailed | None:
        """As `Store.failure`."""
        return self.writer.failure

    @property
    def end(self) -> tuple[int, int]:
        """Segment and position up to which everything is durable; for any thread."""
        return self.writer.end

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
        """As `Store.due`: True if the newest segment is long enough."""
        return self.end[1] >= SEGMENT_BYTES

    def tend(self) -> None:
        """As `Store.tend`: begin a new segment."""
        self.writer.roll()

    def finish(self) -> None:
        """As `Store.finish`."""
        writer = self.writer
        writer.check_all()
        writer.close()
        if self.failure is None:
            with contextlib.suppress(OSError):  # without the note, the next start is that after a crash
                removed = self.layout.removed.stat().st_size if self.layout.removed.exists() else 0
                save_closed(self.layout.closed, Closed(*self.end, writer.batch, removed, writer.last))

    # -- batches

    def _write_batches(self, group: list[Job], leaving: Callable[[], None]) -> None:
        if not group:
            return
        failed = self.writer.refused()
        if failed is not None:
            fail(group, failed)
            return
        began = perf_counter()
        staged: dict[str, _Staged] = {}
        accepted: list[_Accepted] = []
        for job in group:
            assert job.batch is not None
            job.error = self._take(job.batch, staged, accepted)
        if not accepted:
            return
        lines = self._lines(accepted)
        leaving()
        encoded = perf_counter()
        last = accepted[-1].batch
        try:
            position = self.writer.append(b"".join(lines), len(lines), (last.workflow_id, last.expected))
        except StoreError as failure:
            fail(group, failure)
            return
        synced = perf_counter()
        self._apply(accepted, position)
        self.sync_share = (synced - encoded) / (perf_counter() - began)

    def _lines(self, accepted: list[_Accepted]) -> list[bytes]:
        number = synced = self.writer.batch
        before = self.writer.last
        lines: list[bytes] = []
        for each in accepted:
            number += 1
            batch = each.batch
            head = Head(b=number, s=synced, p=before, w=batch.workflow_id, o=batch.expected, r=each.change)
            line = encode_line(head, each.meta, each.events)
            each.length = len(line)
            before = (batch.workflow_id, batch.expected)
            lines.append(line)
        return lines

    def _take(
        self, batch: Append, staged: dict[str, _Staged], accepted: list[_Accepted]
    ) -> AgentflowError | None:
        """Add a batch to the group, or return why it is refused."""
        run = self.index.runs.get(batch.workflow_id)
        now = staged.get(batch.workflow_id) or _Staged(run)
        try:
            if run is not None:
                run.check_whole()
            gone = self.index.gone.get(batch.workflow_id) if run is None else None
            error = refusal(batch, now.last, now.epoch, now.ended, gone)
            if error is not None:
                return error
            change = _change(batch, now)
            events = b",".join([event.body for event in batch.events])
            if b"\n" in events or any(event.ts.bit_length() > 63 for event in batch.events):
                return StoreError("cannot be stored: an event is one line, its time 64 bits")
            accepted.append(_Accepted(batch, change, encode_meta(batch.events), events))
        except LogCorrupt as damaged:
            return damaged
        except (TypeError, ValueError) as mistake:
            return StoreError(f"cannot be stored: {mistake!r}")
        now.last += len(batch.events)
        now.state = state_after(batch, now.state or "pending")
        now.stored_epoch = batch.epoch
        now.ended = now.state in ENDED
        staged[batch.workflow_id] = now
        return None

    def _apply(self, accepted: Sequence[_Accepted], position: int) -> None:
        """Put lines that are durable into the index, then let readers see them."""
        index, segment, total = self.index, self.end[0], 0
        for each in accepted:
            batch = each.batch
            run = index.runs.get(batch.workflow_id)
            if run is None:
                assert each.change is not None
                assert each.change.run is not None  # refusal() lets only a first batch create a run
                run = index.create(batch.workflow_id, each.change.run)
                run.parent = parent_of(batch.events[0].body)
                assert batch.run is not None
                run.owner = batch.run.owner or this_process()
            if each.change is not None:
                run.apply(each.change)
            names = names_in(each.events)
            if not names <= run.names:
                run.names |= names
            count, place = len(batch.events), (segment, position + total)
            size = len(each.events) - count + 1
            index.add(run, place, each.length - 1, batch.expected, count, size, batch.events[-1].ts)
            total += each.length
        self.writer.advance(total)

    # -- calls

    def probe(self) -> None:
        """As `EventLog.probe`."""
        self.writer.check_all()
        failed = self.writer.refused()
        if failed is not None:
            raise failed
        self.upkeep.probe()

    def _call(self, job: Job, call: Callable[[], T]) -> None:
        job.error = self.writer.refused()
        if job.error is not None:
            return
        try:
            try:
                job.result = call()
            except OSError as error:
                self.writer.check()
                job.error = self.writer.error_of_call(error)
            self.writer.check()
        except AgentflowError as error:
            job.error = error

    def claim(self, workflow_id: str, owner: Owner) -> int:
        """As `EventLog.claim`. The epoch becomes durable with the next append: until then no other process
        can hold the run, since the directory belongs to this one."""
        run = self.index.runs.get(workflow_id)
        if run is None:
            if workflow_id in self.index.gone:
                self.index.find(workflow_id)
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


def _change(batch: Append, now: _Staged) -> RunChange | None:
    """Return what the batch changes in its run's row."""
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
