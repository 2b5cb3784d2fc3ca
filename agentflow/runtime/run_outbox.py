"""What a run has decided and what of it is durable: its batches on their way to the log.

A batch is sent once and acknowledged once. A store that takes nothing for a while (a full disk, a locked
database) makes the run stand still, not lose anything: its batches stay here, in order, and are sent again.
"""

from __future__ import annotations

from collections import deque

from agentflow.engine import Effect
from agentflow.runtime.event_bus import Commit, CommitFailed
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.result_cache import KeepResult

__all__ = ["Batch", "RunOutbox"]

_FIRST_WAIT = 0.2
_LONGEST_WAIT = 5.0


class Batch:
    """Appended and not yet acknowledged: its effects are carried out once it is durable."""

    __slots__ = ("commit", "effects", "last", "results")

    def __init__(self, commit: Commit, effects: list[Effect], results: list[KeepResult]) -> None:
        self.commit = commit
        self.last = commit.expected + len(commit.drafts) - 1
        self.effects = effects
        self.results = results


class RunOutbox:
    """The batches of one run, oldest first."""

    def __init__(self, bus: PermanentActor) -> None:
        self._bus = bus
        self._batches: deque[Batch] = deque()
        self._wait = _FIRST_WAIT
        self.stalled = False
        """Whether the store refused the oldest batch for now."""

    def __bool__(self) -> bool:
        return bool(self._batches)

    def put(self, batch: Batch) -> None:
        """Send a batch behind those that are on their way."""
        self._batches.append(batch)
        if not self.stalled:
            self._bus.tell(batch.commit)

    @property
    def oldest(self) -> Batch | None:
        """The batch that is to be acknowledged next."""
        return self._batches[0] if self._batches else None

    def send_all_again(self) -> None:
        """Send every batch again: none of them is in the log or on its way."""
        for batch in self._batches:
            self._bus.tell(batch.commit)

    def durable(self, offset: int) -> list[Batch]:
        """The batches that are durable now that everything up to `offset` is."""
        done: list[Batch] = []
        while self._batches and self._batches[0].last <= offset:
            done.append(self._batches.popleft())
        return done

    def refused(self, message: CommitFailed) -> float | None:
        """Seconds until the oldest batch should be sent again; None when this refusal only follows from
        that of an older batch. Call it for a transient refusal."""
        if not self._batches or message.expected != self._batches[0].commit.expected:
            return None
        self.stalled = True
        wait, self._wait = self._wait, min(_LONGEST_WAIT, self._wait * 2)
        return wait

    def follows(self, message: CommitFailed) -> bool:
        """Whether this refusal is of a batch behind one that the store refused for now."""
        return self.stalled and bool(self._batches) and message.expected != self._batches[0].commit.expected

    def send_again(self) -> None:
        """Send the oldest batch again; the others follow when it is durable."""
        if self._batches:
            self._bus.tell(self._batches[0].commit)

    def recovered(self) -> None:
        """The store takes appends again: send what waited behind the oldest batch."""
        self.stalled = False
        self._wait = _FIRST_WAIT
        for batch in self._batches:
            self._bus.tell(batch.commit)
