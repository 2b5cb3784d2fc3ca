"""CommitWatch: what a run does when the log does not take its batch, or its acknowledgement does not come.

A batch or an acknowledgement that a failure of the EventBus lost is found by the end of the log; a store that
takes nothing for now is asked again. Used by one RunSupervisor alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentflow.errors import (
    AgentflowError,
    Fenced,
    OffsetConflict,
    RunExists,
    RunNotFound,
    StorageUnavailable,
    StoreError,
)
from agentflow.events import catalogue as ev
from agentflow.runtime.command_messages import Command, Refusal
from agentflow.runtime.event_bus import Barrier, CommitFailed, Committed, Republish
from agentflow.runtime.supervisor_messages import CheckAcknowledged, LogEnd, SendAgain

if TYPE_CHECKING:
    from agentflow.events.log import EventLog
    from agentflow.runtime.permanent_actor import PermanentActor
    from agentflow.runtime.run_stepper import RunStepper, Settle

__all__ = ["CommitWatch"]

_ACK_CHECK_S = 1.0
_LOST = "the run belongs to another process now"
_COMMAND_WAIT_US = 10_000_000
"""How long a command waits for a store that takes nothing."""


class CommitWatch:
    """`committed` is called with an acknowledgement that was found in the log."""

    __slots__ = ("_bus", "_committed", "_log", "_run", "_stalled", "_timer_set", "_waiting")

    def __init__(
        self, run: RunStepper, bus: PermanentActor, log: EventLog, committed: Callable[[Committed], None]
    ) -> None:
        self._run = run
        self._bus = bus
        self._log = log
        self._committed = committed
        self._timer_set = False
        self._stalled = False  # whether the log has to tell of a store that took nothing
        self._waiting: list[tuple[int, Command, Settle]] = []

    # -- an acknowledgement that does not come ----------------------------------------------------

    def batch_sent(self) -> None:
        """Look at the outbox after 1 s, unless a look is due already."""
        if not self._timer_set:
            self._set_timer()

    def _set_timer(self) -> None:
        oldest = self._run.outbox.oldest
        self._timer_set = oldest is not None
        if oldest is not None:
            check = CheckAcknowledged(expected=oldest.commit.expected)
            self._run.ctx.timers.start("acknowledged", _ACK_CHECK_S, check)

    def check(self, message: CheckAcknowledged) -> None:
        """Look for a batch, or its acknowledgement, that a failure of the EventBus may have lost.

        A slow disk loses neither: once the bus has nothing of this run on its way, the end of the log tells.
        """
        if not self._is_oldest(message.expected):
            self._set_timer()
            return

        def failed(error: BaseException) -> CheckAcknowledged:
            # The bus has just been made anew, or the store cannot be read: look again after a while.
            return CheckAcknowledged(expected=-1)

        self._run.ctx.pipe(self._log_end(message.expected), _identity, failed)

    def _is_oldest(self, expected: int) -> bool:
        """Return whether the batch at `expected` is the one that is acknowledged next."""
        outbox = self._run.outbox
        oldest = outbox.oldest
        return oldest is not None and not outbox.stalled and oldest.commit.expected == expected

    async def _log_end(self, expected: int) -> LogEnd:
        run_id = self._run.state.workflow_id
        await self._bus.ask(Barrier(workflow_id=run_id), timeout=math.inf)
        try:
            row = await self._log.run(run_id)
        except RunNotFound:
            return LogEnd(expected=expected, epoch=self._run.launch.epoch, last=-1)
        return LogEnd(expected=expected, epoch=row.epoch, last=row.last_offset)

    def log_ends(self, message: LogEnd) -> None:
        """Acknowledge the oldest batch, or send it again, as the end of the log says."""
        run = self._run
        oldest = run.outbox.oldest
        self._set_timer()
        if oldest is None or not self._is_oldest(message.expected):
            return
        if message.epoch != run.launch.epoch:
            self.failed(CommitFailed(expected=message.expected, error=_LOST, kind=Fenced.code))
        elif message.last >= oldest.last:
            self._bus.tell(Republish(workflow_id=run.state.workflow_id, first=message.expected))
            self._committed(Committed(offset=message.last))
        elif message.last == message.expected - 1:
            run.outbox.send_all_again()
        else:
            raise RuntimeError(f"the log ends at {message.last}, inside a batch from {message.expected} on")

    # -- a store that refuses ---------------------------------------------------------------------

    def failed(self, message: CommitFailed) -> None:
        """Retry after a transient failure. Any other failure ends the supervisor at once, with nothing
        acknowledged: the log is the truth."""
        run = self._run
        if run.outbox.follows(message):
            return
        if message.transient and message.expected > 0:
            wait = run.outbox.refused(message)
            if wait is not None:
                self._stalled = True
                run.ctx.timers.start("store", wait, SendAgain())
            return
        if message.kind == "internal_error":
            raise RuntimeError(message.error)  # supervision: fold the log and decide again
        # Another process appended, or owns the run: the same for callers here.
        lost = message.kind in (Fenced.code, OffsetConflict.code)
        kind: type[AgentflowError] = StorageUnavailable if message.transient else StoreError
        if lost:
            kind = RunExists if message.expected == 0 else Fenced
        run.launch.reject(kind(message.error))
        run.ctx.self.kill()

    def hold(self, command: Command, settle: Settle) -> None:
        """Let a command wait for up to 10 s until the store takes something again."""
        self._waiting.append((self._run.monotonic() + _COMMAND_WAIT_US, command, settle))

    def send_again(self) -> None:
        """Send the oldest batch again; refuse the commands that have waited long enough."""
        self._run.outbox.send_again()
        refusal = Refusal(
            code=StorageUnavailable.code, message="the store takes nothing now; nothing changed"
        )
        while self._waiting and self._waiting[0][0] <= self._run.monotonic():
            self._waiting.pop(0)[2](refusal)

    def recovered(self, apply: Callable[[Command, Settle], None]) -> None:
        """Send what waited for the store, and apply the commands that did."""
        self._run.outbox.recovered()
        while self._waiting:
            _, command, settle = self._waiting.pop(0)
            apply(command, settle)

    def record_stall(self) -> None:
        """Record that the store took nothing for a while, once it has taken everything."""
        if not self._stalled:
            return
        self._stalled = False
        if self._run.state.status == "running" and self._run.suspending is None:
            self._run.advance(
                [
                    ev.WorkflowPaused(reason="storage", detail="the store took nothing for a while"),
                    ev.WorkflowResumed(reason="storage"),
                ]
            )


def _identity(message: LogEnd) -> LogEnd:
    return message
