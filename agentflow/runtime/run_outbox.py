"""Batches of a run on their way to the log: decided, but not yet acknowledged.

A batch is sent once and acknowledged once. While the store is unavailable (a full disk, a locked database)
the batches stay here, in order, and are sent again.
"""

from __future__ import annotations

from agentflow.engine import Effect
from agentflow.runtime.event_bus import Commit, CommitFailed, Committed, Receipt
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.result_cache import KeepResult

__all__ = ["Batch", "RunOutbox"]

_FIRST_RETRY_S = 0.2
_MAX_RETRY_S = 5.0


class Batch:
    """A batch without acknowledgement; its effects are executed once it is durable."""

    __slots__ = ("commit", "effects", "last", "results")

    def __init__(self, commit: Commit, effects: list[Effect], results: list[KeepResult]) -> None:
        self.commit = commit
        self.last = commit.expected + len(commit.events) - 1
        self.effects = effects
        self.results = results


class RunOutbox:
    """The batches of one run, oldest first. Used by its RunSupervisor alone, so it needs no mailbox."""

    def __init__(self, bus: PermanentActor) -> None:
        self._bus = bus
        self._batches: list[Batch] = []  # few, and an empty deque takes 760 bytes
        self.count = 0
        """Batches that are on their way."""
        self._wait = _FIRST_RETRY_S
        self.stalled = False
        """Whether the store refused the oldest batch for now."""
        self.receipt = Receipt()
        """Goes with the batches that are sent in turn."""

    def __bool__(self) -> bool:
        return self.count > 0

    def put(self, batch: Batch) -> None:
        """Append a batch and send it, unless the store is unavailable."""
        self._batches.append(batch)
        self.count += 1
        if not self.stalled:
            self._bus.tell(batch.commit)

    def put_in_turn(self, batch: Batch) -> None:
        """Append a batch and send it, unless the store is unavailable; an idle bus takes it before this
        returns. `take_receipt` then gives what it answered at once."""
        self._batches.append(batch)
        self.count += 1
        if not self.stalled:
            self.receipt.open = True
            try:
                self._bus.tell_now(batch.commit)
            finally:
                self.receipt.open = False

    def take_receipt(self) -> Committed | None:
        """Return what the bus answered to batches that were sent in turn, once."""
        receipt = self.receipt
        committed, receipt.committed = receipt.committed, None
        return committed

    @property
    def oldest(self) -> Batch | None:
        """Batch that is acknowledged next."""
        return self._batches[0] if self._batches else None

    def send_all_again(self) -> None:
        """Send every batch again: none of them is in the log or on its way."""
        for batch in self._batches:
            self._bus.tell(batch.commit)

    def durable(self, offset: int) -> list[Batch]:
        """Remove and return the batches that end at or before `offset`."""
        if self.count == 1 and self._batches[0].last == offset:
            self.count = 0
            return [self._batches.pop(0)]
        done: list[Batch] = []
        while self._batches and self._batches[0].last <= offset:
            done.append(self._batches.pop(0))
        self.count = len(self._batches)
        return done

    def refused(self, message: CommitFailed) -> float | None:
        """Mark the store as unavailable; return the seconds until the oldest batch is sent again.

        Returns None if the failure follows from that of an older batch. Only for a transient failure.
        """
        if not self._batches or message.expected != self._batches[0].commit.expected:
            return None
        self.stalled = True
        wait, self._wait = self._wait, min(_MAX_RETRY_S, self._wait * 2)
        return wait

    def follows(self, message: CommitFailed) -> bool:
        """Return whether this failure is of a batch behind one that waits for the store."""
        return self.stalled and bool(self._batches) and message.expected != self._batches[0].commit.expected

    def send_again(self) -> None:
        """Send the oldest batch again; the others follow when it is durable."""
        if self._batches:
            self._bus.tell(self._batches[0].commit)

    def recovered(self) -> None:
        """Mark the store as available; send the batches behind the oldest one."""
        self.stalled = False
        self._wait = _FIRST_RETRY_S
        for batch in self._batches:
            self._bus.tell(batch.commit)
