"""FIFO queue of runs that wait for one of the slots, of suspects that start one at a time, and runs on hold.

It knows ids and order, and nothing else of runs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from agentflow.runtime.command_messages import Command

__all__ = ["RunQueue"]


class RunQueue:
    """`limit` runs have a slot, `queue` may wait for one; `count_running` returns how many run. No actor,
    because RunRegistry must learn in the same step whether a slot is free."""

    def __init__(self, limit: int, queue: int, count_running: Callable[[], int]) -> None:
        self._limit = limit
        self._max_queued = queue
        self._count_running = count_running
        self._order: OrderedDict[str, Command] = OrderedDict()
        self._suspects: OrderedDict[str, Command] = OrderedDict()
        self._held: set[str] = set()  # runs that another run of their concurrency key holds back
        self.on_trial: str | None = None
        """The run that was taken up last of those which are taken up one at a time."""
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._reserved: set[str] = set()  # runs on their way to their place

    def __len__(self) -> int:
        """Return how many runs wait, those on hold included."""
        return len(self._order) + len(self._suspects) + len(self._held)

    @property
    def must_wait(self) -> bool:
        """True if a run that comes now has to queue: no slot is free, or others queue already."""
        return bool(self._order) or not self._has_free_slot

    @property
    def is_at_capacity(self) -> bool:
        """True if no more runs may queue."""
        return len(self._order) + len(self._held) >= self._max_queued

    @property
    def _has_free_slot(self) -> bool:
        return self._count_running() + len(self._reserved) < self._limit

    def enqueue(self, workflow_id: str, command: Command) -> None:
        """Append a run with the command that starts it; a run that is queued keeps its place."""
        if workflow_id not in self._turns:
            self._turns[workflow_id] = asyncio.get_running_loop().create_future()
            self._order[workflow_id] = command

    def enqueue_suspect(self, workflow_id: str, command: Command) -> None:
        """Append a run to the queue of suspects, behind which new runs do not wait."""
        if workflow_id not in self._turns:
            self._turns[workflow_id] = asyncio.get_running_loop().create_future()
            self._suspects[workflow_id] = command

    def hold(self, workflow_id: str) -> None:
        """Keep a run out of the queue until `release`; it takes no slot."""
        self._order.pop(workflow_id, None)
        self._held.add(workflow_id)
        if workflow_id not in self._turns:
            self._turns[workflow_id] = asyncio.get_running_loop().create_future()

    def release(self, workflow_id: str, command: Command) -> None:
        """Append a run that was on hold with the command that starts it."""
        if workflow_id in self._held:
            self._held.discard(workflow_id)
            self._order[workflow_id] = command

    def is_suspect(self, workflow_id: str) -> bool:
        """Return whether the run is queued to start alone."""
        return workflow_id in self._suspects

    @property
    def suspects(self) -> int:
        """Number of runs that are queued to start alone."""
        return len(self._suspects)

    def __contains__(self, workflow_id: str) -> bool:
        """Return whether the run is queued, or on its way to its slot."""
        return workflow_id in self._turns

    def remove(self, workflow_id: str, *, only: type[Command] | None = None) -> None:
        """Remove a run; with `only`, if it is queued with such a command."""
        waits = self._order.get(workflow_id) or self._suspects.get(workflow_id)
        if only is not None and waits is not None and not isinstance(waits, only):
            return
        self._order.pop(workflow_id, None)
        self._suspects.pop(workflow_id, None)
        self._held.discard(workflow_id)
        self._settle(workflow_id)

    def turn(self, workflow_id: str) -> asyncio.Future[None] | None:
        """Return a future that is done when the run has had its turn, None if it is not queued."""
        return self._turns.get(workflow_id)

    def dequeue(self) -> tuple[str, Command] | None:
        """Return the next run if a slot is free, else None. Its slot is kept until `release_reservation`."""
        if not self._has_free_slot:
            return None
        if self._suspects and self.on_trial is None:
            workflow_id, command = self._suspects.popitem(last=False)
            self.on_trial = workflow_id
        elif self._order:
            workflow_id, command = self._order.popitem(last=False)
        else:
            return None
        self._reserved.add(workflow_id)
        return workflow_id, command

    def release_reservation(self, workflow_id: str) -> None:
        """Release the slot that was reserved for a run: from now on it is counted as running."""
        self._reserved.discard(workflow_id)

    def finish_turn(self, workflow_id: str) -> None:
        """End the turn of a run, whatever its outcome."""
        self._reserved.discard(workflow_id)
        if (
            workflow_id not in self._order
            and workflow_id not in self._suspects
            and workflow_id not in self._held
        ):
            self._settle(workflow_id)

    def clear(self) -> None:
        """Remove all runs; their turns are resolved."""
        self._order.clear()
        self._suspects.clear()
        self._held.clear()
        for workflow_id in list(self._turns):
            self._settle(workflow_id)

    def _settle(self, workflow_id: str) -> None:
        turn = self._turns.pop(workflow_id, None)
        if turn is not None and not turn.done():
            turn.set_result(None)
