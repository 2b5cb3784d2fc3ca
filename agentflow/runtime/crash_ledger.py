"""Evidence of crashes: how many lives in a row ended by one, and which run was on trial (page 000 §11.4).

A life is the time from `recover()` to the end of the process. A life that is not closed ended by a crash.
After the second crash in a row, runs with open units are taken up one at a time; the run taken up last is on
trial. If the process dies during a trial, the open units of that run get one count each, and no other unit
does. The ledger is one small record in the store, written before the run on trial begins any work. It must
never decide what a run does: it orders the take-up and names the runs to pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from agentflow.engine import Activation, RunState
from agentflow.errors import AgentflowError, StorageUnavailable, StoreError
from agentflow.events.log import EventLog, RunRow
from agentflow.events.owner import Owner

__all__ = [
    "MAX_COUNT",
    "QUEUE_LIMIT_S",
    "ROW_ENDS_AFTER_S",
    "RecoveryLedger",
    "Trial",
    "is_at_work",
    "unit_name",
]

MAX_COUNT = 3
"""Crashes that a unit may have on its account before its run is paused."""

SERIAL_FROM = 2
"""Crashes in a row after which open units are taken up one at a time."""

ROW_ENDS_AFTER_S = 600.0
"""A life that goes on for so long after its last trial ends the row of crashes."""

QUEUE_LIMIT_S = 60.0
"""How long a call on trial may queue for its provider or service before the next run is taken up."""

_MAX_TRIAL_S = 10.0
"""200 runs of long calls are taken up within 34 min at most, however many crashes there were."""

_KEY = "recovery"
_RUN = ""  # stands for a run that has no open unit


class _Record(msgspec.Struct):
    """`counts` is by run and unit. `closed` is False while the life goes on, and after a crash."""

    owner: Owner
    crashes: int = 0
    trial: str | None = None
    counts: dict[str, dict[str, int]] = {}
    closed: bool = False


UnitsOf = Callable[[str], Awaitable[RunState]]
"""Gives the fold of a run's log."""


def is_at_work(state: RunState, unit: Activation) -> bool:
    """Return whether an open unit does work itself: it waits for no request and is no frame of others."""
    return unit.status == "running" and not unit.is_for_each and not unit.node.kind.is_passive


def unit_name(unit: Activation) -> str:
    """Name a unit inside its run. A step that is tried again has the same key but another first offset."""
    return f"{unit.key}@{unit.first_offset}"


class Trial:
    """The run on trial. `began` is done once one of its calls is being made, or there is none to make; `over`
    once the units that were open at its start have ended."""

    def __init__(self, workflow_id: str) -> None:
        loop = asyncio.get_running_loop()
        self.workflow_id = workflow_id
        self.began: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self._units: set[str] = set()

    def begin(self, state: RunState) -> None:
        """Take note of what the supervisor of the run has taken up."""
        self._units = {unit.key for unit in state.open.values() if is_at_work(state, unit)}
        if not state.calls:
            self.call_started()
        self._look()

    def call_started(self) -> None:
        """Take note that a call of the run is being made."""
        if not self.began.done():
            self.began.set_result(None)

    def end(self, key: str) -> None:
        """Take note of the durable end of a unit."""
        self._units.discard(key)
        self._look()

    def _look(self) -> None:
        if not self._units and not self.over.done():
            self.over.set_result(None)


class RecoveryLedger:
    """The record of one store, as the Runtime with this owner sees and writes it."""

    def __init__(self, log: EventLog, owner: Owner) -> None:
        self._log = log
        self._record = _Record(owner)
        self._writes = False  # whether this life is the one that the record tells of
        self.begun = False

    @property
    def crashes(self) -> int:
        """Number of lives in a row that ended by a crash before this one."""
        return self._record.crashes

    @property
    def serial(self) -> bool:
        """True if runs with open units are to be taken up one at a time."""
        return self.crashes >= SERIAL_FROM

    @property
    def trial_s(self) -> float:
        """Seconds after which a run on trial is trusted: 1 s after the second crash in a row, doubled by each
        further one up to 10 s. A unit that needs longer to do harm is found by a later, longer trial."""
        doubled = min(
            max(self.crashes - SERIAL_FROM, 0), 10
        )  # 2 ** 1024 is no float; a crash loop gets there
        return min(_MAX_TRIAL_S, 2.0**doubled)

    async def begin_life(self, rows: Sequence[RunRow], state_of: UnitsOf) -> None:
        """Judge how the last life ended by its record and by the runs that it left, and record this one.

        A run that is running without a live owner is evidence too: the life that left it may have written no
        record, as one that only submits. A second call changes nothing.
        """
        if self.begun:
            return
        self.begun = True
        owner = self._record.owner
        last = await self._load()
        if last is not None and not last.closed and last.owner != owner and self._log.is_alive(last.owner):
            return  # the record is that of another process, which is at work
        self._writes = True
        crashed = (last is not None and not last.closed) or any(self._is_abandoned(row) for row in rows)
        counts = {} if last is None else last.counts
        if last is not None and crashed and last.trial is not None:
            blamed = counts.setdefault(last.trial, {})
            for name in await _units_at_work(last.trial, state_of) or [_RUN]:
                blamed[name] = blamed.get(name, 0) + 1
        self._record.crashes = 1 + (0 if last is None else last.crashes) if crashed else 0
        self._record.counts = await _still_open(counts, {row.workflow_id for row in rows}, state_of)
        with suppress(StorageUnavailable):  # then no run can begin either; a trial waits for the store
            await self._save()

    def count(self, workflow_id: str) -> int:
        """Return the highest count of an open unit of this run."""
        return max(self._record.counts.get(workflow_id, {}).values(), default=0)

    def over_limit(self, workflow_ids: Iterable[str]) -> list[tuple[str, str]]:
        """Return the runs to pause, each with the reason in words."""
        found: list[tuple[str, str]] = []
        for run_id in workflow_ids:
            for name, count in self._record.counts.get(run_id, {}).items():
                if count >= MAX_COUNT:
                    unit = name.rpartition("@")[0] or "the run"
                    text = (
                        f"the process crashed {count} times while {unit} alone was on trial after a restart"
                    )
                    found.append((run_id, text))
                    break
        return found

    async def forget(self, workflow_id: str) -> None:
        """Clear the counts of a run that is paused now: a resume gives it a new chance. Raises StoreError."""
        self._record.counts.pop(workflow_id, None)
        await self._save()

    async def put_on_trial(self, workflow_id: str) -> None:
        """Record, durably, that a crash from now on counts against this run. Raises StoreError."""
        self._record.trial = workflow_id
        await self._save()

    async def acquit(self) -> None:
        """Record that no run is on trial. Raises StoreError."""
        self._record.trial = None
        await self._save()

    async def end_row(self) -> None:
        """Record that this life has proved sound: the next crash is the first of a row. Raises StoreError."""
        self._record.crashes = 0
        self._record.counts = {}
        await self._save()

    async def close(self) -> None:
        """Record a clean end. A store that refuses this makes the end look like a crash."""
        self._record.closed = True
        self._record.trial = None
        self._record.crashes = 0
        with suppress(StoreError):
            await self._save()

    def _is_abandoned(self, row: RunRow) -> bool:
        if row.state != "running" or row.owner == self._record.owner:
            return False
        return row.owner is None or not self._log.is_alive(row.owner)

    async def _load(self) -> _Record | None:
        saved = await self._log.load_cursor(_KEY)
        try:
            return None if saved is None else msgspec.json.decode(saved, type=_Record)
        except msgspec.MsgspecError:  # of another version: one row of crashes begins anew
            return None

    async def _save(self) -> None:
        if self._writes:
            await self._log.save_cursor(_KEY, msgspec.json.encode(self._record).decode())


async def _units_at_work(workflow_id: str, state_of: UnitsOf) -> list[str]:
    try:
        state = await state_of(workflow_id)
    except AgentflowError:  # gone, or unreadable: the take-up meets the same, and says so
        return []
    return [unit_name(unit) for unit in state.open.values() if is_at_work(state, unit)]


async def _still_open(
    counts: dict[str, dict[str, int]], runs: set[str], state_of: UnitsOf
) -> dict[str, dict[str, int]]:
    """Drop the counts of units that have ended, and of runs that are not recovered."""
    kept: dict[str, dict[str, int]] = {}
    for run_id in counts.keys() & runs:
        names = await _units_at_work(run_id, state_of) or [_RUN]
        left = {name: count for name, count in counts[run_id].items() if name in names}
        if left:
            kept[run_id] = left
    return kept
