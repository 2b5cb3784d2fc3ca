"""ConcurrencyKeys: of the runs that share a `concurrency_key`, one is at work at a time (page 002 §8).

The store decides whose turn it is: the oldest run of the key that has not ended holds it, also while it waits
or is paused. Nothing else is kept, so that a restart and other processes on the store come to the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress

from agentflow.errors import AgentflowError, ConcurrencyRejected, StoreError
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog, RunRow
from agentflow.records.runs import CONCURRENCY_KEY_LABEL
from agentflow.runtime.background_tasks import BackgroundTasks
from agentflow.runtime.command_handlers import Attach
from agentflow.runtime.run_launch import RunLaunch, shares_slot
from agentflow.runtime.run_queue import RunQueue

__all__ = ["ConcurrencyKeys", "key_of"]

_NOT_ENDED = ("pending", "running", "waiting", "paused")
_POLL_S = 2.0
"""Seconds between two looks at the store while a run of another process may hold the key."""
_PAGE = 200


def key_of(started: WorkflowStarted) -> str | None:
    """Return the concurrency key of a run. Child runs have none: their parents wait for them."""
    return None if shares_slot(started) else started.options.get("concurrency_key")


class ConcurrencyKeys:
    """Holds back the runs of a registry whose key another run holds. `cancel` ends a run, `start` lets the
    queue go on."""

    def __init__(
        self,
        log: EventLog,
        queue: RunQueue,
        tasks: BackgroundTasks,
        *,
        cancel: Callable[[str, str], Awaitable[None]],
        start: Callable[[], None],
    ) -> None:
        self._log = log
        self._queue = queue
        self._tasks = tasks
        self._cancel = cancel
        self._start = start
        self._admitted: dict[str, str] = {}
        """The run that was let go on here, by key: it holds the key though the clock was set back since."""
        self._waiting: dict[str, set[str]] = {}
        self._cancelled: set[str] = set()
        self._poll: asyncio.TimerHandle | None = None

    def exclusive(self, key: str) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a concurrency key, so that a run of it is either not begun or in the store."""
        return self._tasks.exclusive(f"concurrency key {key}")

    async def check_free(self, key: str) -> None:
        """Raise ConcurrencyRejected if a run of the key has not ended."""
        rows = await self._open_runs(key)
        if rows:
            holder = rows[0]
            message = f'{holder.workflow_id} ({holder.state}) holds the concurrency key "{key}"'
            details = {"concurrency_key": key, "workflow_id": holder.workflow_id, "state": holder.state}
            raise ConcurrencyRejected(message, details=details)

    def hold(self, workflow_id: str, key: str) -> None:
        """Let a run wait until it holds its key."""
        self._queue.hold(workflow_id)
        self._waiting.setdefault(key, set()).add(workflow_id)

    def look(self, key: str) -> None:
        """Look soon whose turn it is."""
        self._tasks.start_soon(self._look(key))

    def ended(self, launch: RunLaunch) -> None:
        """Let the next run go on if the one of this launch has ended."""
        state = launch.rest_state
        if state is None or not state.terminal or state.begin is None:
            return
        key = key_of(state.begin)
        if key is not None:
            self._cancelled.discard(launch.workflow_id)
            if self._admitted.get(key) == launch.workflow_id:
                del self._admitted[key]
            self.look(key)

    async def may_start(self, workflow_id: str, key: str) -> bool:
        """Return whether a run of the log holds its key."""
        holder = self._holder(key, await self._open_runs(key))
        if holder != workflow_id:
            return False
        self._admitted[key] = workflow_id
        return True

    def close(self) -> None:
        """Look at nothing any more."""
        if self._poll is not None:
            self._poll.cancel()
            self._poll = None
        self._waiting.clear()

    def _holder(self, key: str, rows: list[RunRow]) -> str | None:
        admitted = self._admitted.get(key)
        if admitted is not None and any(row.workflow_id == admitted for row in rows):
            return admitted
        return rows[0].workflow_id if rows else None

    async def _open_runs(self, key: str) -> list[RunRow]:
        """Return the runs of a key that have not ended, the oldest first."""
        rows: list[RunRow] = []
        cursor: str | None = None
        while True:
            page = await self._log.runs(
                state=_NOT_ENDED, label=(CONCURRENCY_KEY_LABEL, key), limit=_PAGE, cursor=cursor, order="asc"
            )
            rows += page.items
            cursor = page.next_cursor
            if cursor is None:
                return rows

    async def _look(self, key: str) -> None:
        """Cancel what a newer run replaces, and let the run go on that holds the key."""
        async with self.exclusive(key):
            await self._look_alone(key)

    async def _look_alone(self, key: str) -> None:
        waiting = self._waiting.get(key)
        if not waiting:
            return
        with suppress(StoreError):  # the next poll looks again
            rows = await self._open_runs(key)
            here = {row.workflow_id for row in rows}
            for ended in waiting - here:  # a command, or another process, let it go on
                self._queue.remove(ended)
            waiting &= here
            await self._cancel_previous(rows, waiting)
            holder = self._holder(key, rows)
            if holder in waiting:
                waiting.discard(holder)
                self._admitted[key] = holder
                self._queue.release(holder, Attach(by="runtime"))
                self._start()
        if not waiting:
            self._waiting.pop(key, None)
        elif self._poll is None and not self._tasks.closed:
            self._poll = asyncio.get_running_loop().call_later(_POLL_S, self._poll_all)

    def _poll_all(self) -> None:
        self._poll = None
        for key in list(self._waiting):
            self.look(key)

    async def _cancel_previous(self, rows: list[RunRow], waiting: set[str]) -> None:
        """Cancel the runs that are older than the newest of those that say `cancel_previous`."""
        for index in range(len(rows) - 1, 0, -1):
            newer = rows[index].workflow_id
            if newer in waiting and await self._says_cancel(newer):
                for older in rows[:index]:
                    if older.workflow_id not in self._cancelled:
                        self._cancelled.add(older.workflow_id)
                        self._tasks.start_soon(self._cancel_quietly(older.workflow_id, newer))
                return

    async def _says_cancel(self, workflow_id: str) -> bool:
        begin = decode((await self._log.read(workflow_id, 0, 1))[0].body).data
        return isinstance(begin, WorkflowStarted) and begin.options.get("on_conflict") == "cancel_previous"

    async def _cancel_quietly(self, workflow_id: str, newer: str) -> None:
        try:
            await self._cancel(workflow_id, f"{newer} replaces it (concurrency_key)")
        except AgentflowError:  # it has ended, or another process has it: the next poll tells
            self._cancelled.discard(workflow_id)
