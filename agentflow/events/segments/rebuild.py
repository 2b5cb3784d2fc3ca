"""Puts the lines that a scan has found into the index: what a run is made of, and when it is damaged. No
I/O."""

from __future__ import annotations

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.references import names_in, parent_of
from agentflow.events.segments.first_form import OldLine, Removed
from agentflow.events.segments.index import Index, Place, RunIndex
from agentflow.events.segments.lines import Line, RunChange, RunIdentity

__all__ = ["Rebuild"]


class Rebuild:
    """An index that grows by lines in the order of their batches; `removed` is what the first version
    removed."""

    def __init__(self, removed: Removed) -> None:
        self.index = Index()
        self.index.gone.update(removed.gone)
        self.last: tuple[str, int] | None = None
        """Run and first offset of the last line; None if it is about more than one removal."""
        self._removed = removed

    def add(self, place: Place, length: int, line: Line) -> None:
        """Add a line that is `length` bytes long without its end."""
        head = line.head
        self.last = None if head.w is None else (head.w, head.o)
        if head.w is None:
            self.index.bury(head.gone, place[0], length + 1)
            self.index.dropped = head.dropped or self.index.dropped
            self.last = (head.gone[0].workflow_id, -1) if len(head.gone) == 1 and not head.dropped else None
            return
        run = self.index.runs.get(head.w)
        if run is None:
            if head.w in self.index.gone:
                return
            first = line.raw[line.start : line.start + head.m[0][2]]
            run = self._begin(head.w, head.o, head.r, first, head.m[0][0])
        count = len(head.m)
        size = length - line.start - count - 1  # without the commas between events and the `]}` behind
        self._extend(run, place, length, head.o, count, size, head.m[-1][0], head.r, line.raw)

    def add_old(self, place: Place, length: int, line: OldLine) -> None:
        """Add a line of the first version. Raises LogCorrupt if it holds no event."""
        try:
            workflow_id, event = line.event()
        except (msgspec.DecodeError, ValueError) as error:
            raise LogCorrupt(
                f"segment {place[0]} holds no event at byte {place[1]}: {error}",
                hint="restore the store from a copy",
            ) from error
        self.last = (workflow_id, event.offset)
        if self._removed.is_gone(workflow_id, event.offset):
            return
        run = self.index.runs.get(workflow_id) or self._begin(
            workflow_id, event.offset, line.r, event.body, event.ts
        )
        size = len(event.body)
        self._extend(run, place, length, event.offset, 1, size, event.ts, line.r, event.body)

    def _extend(
        self,
        run: RunIndex,
        place: Place,
        length: int,
        first: int,
        count: int,
        size: int,
        ts: int,
        change: RunChange | None,
        text: bytes,
    ) -> None:
        """Add a line to a run, unless the run is damaged or one before is missing."""
        if run.damaged is None and first != run.last + 1:
            self.index.damage(run, run.last + 1)
        if run.damaged is not None:
            return
        if change is not None:
            run.apply(change)
        self.index.add(run, place, length, first, count, size, ts)
        names = names_in(text)
        if not names <= run.names:
            run.names |= names

    def _begin(
        self, workflow_id: str, offset: int, change: RunChange | None, first: bytes, ts: int
    ) -> RunIndex:
        trimmed = self._removed.trimmed.get(workflow_id)
        if trimmed is not None:
            run = self.index.create(workflow_id, trimmed.identity, trimmed.earliest)
            run.apply(RunChange(state=trimmed.state, epoch=trimmed.epoch))
            run.parent = trimmed.parent
            run.names |= frozenset(trimmed.names)
            return run
        identity = change.run if change is not None and not offset else None
        if identity is not None:
            run = self.index.create(workflow_id, identity)
            run.parent = parent_of(first)
            return run
        return self._begin_damaged(workflow_id, ts)

    def _begin_damaged(self, workflow_id: str, ts: int) -> RunIndex:
        """Add a run whose beginning is lost: only its id is known."""
        identity = RunIdentity(name=None, definition_hash="", created_at=ts, labels={})
        run = self.index.create(workflow_id, identity)
        self.index.damage(run, 0)
        return run

    def quarantine(self, workflow_id: str, offset: int, bad: list[Place]) -> None:
        """Note that the batch of a run that began at `offset` (-1: its tombstone) is lost."""
        if self._removed.is_gone(workflow_id, offset) or workflow_id in self.index.gone:
            return
        run = self.index.runs.get(workflow_id) or self._begin_damaged(workflow_id, 0)
        self.index.damage(run, 0 if offset < 0 else min(offset, run.last + 1))
        self.last = (workflow_id, offset)
        self.index.bad.update((*place, workflow_id) for place in bad)
