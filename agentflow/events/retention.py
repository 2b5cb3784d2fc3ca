"""Which runs retention takes (page 000 §7), as a pure function of the rows of a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from agentflow.events.rows import RunRow

__all__ = ["HOLD_LABEL", "Kept", "Removal", "RetentionPlan", "RetentionPolicy", "plan_retention"]

HOLD_LABEL = "hold"
"""A run with this label, whatever its value, is never taken."""


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What goes. `max_age` in seconds since the end of a run, `max_bytes` of the events of all runs.

    `keep_failed` spares failed runs. With `trim_to_events` a run that is due keeps its last so many events,
    its row and its records, instead of going altogether. ValueError for members that do not fit the mode.
    """

    mode: Literal["infinite", "age", "size"] = "infinite"
    max_age: float | None = None
    max_bytes: int | None = None
    keep_failed: bool = True
    trim_to_events: int | None = None

    def __post_init__(self) -> None:
        for mode, name, value in (("age", "max_age", self.max_age), ("size", "max_bytes", self.max_bytes)):
            if self.mode == mode and value is None:
                raise ValueError(f'mode = "{mode}" needs {name}')
            if self.mode != mode and value is not None:
                raise ValueError(f'{name} has no effect with mode = "{self.mode}"; write mode = "{mode}"')
            if value is not None and value < 0:
                raise ValueError(f"{name} is negative")
        if self.trim_to_events is not None and self.trim_to_events < 1:
            raise ValueError("trim_to_events is at least 1: the last event of a run stays")


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A run that goes, or loses the events before offset `before`. `bytes` is about what that frees."""

    workflow_id: str
    action: Literal["delete", "trim"]
    state: str
    ended_at: int
    bytes: int
    reason: str
    before: int | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A run that would be due, and why it stays."""

    workflow_id: str
    reason: str


class RetentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, oldest end first. `runs` and `bytes` are those of the store as it is."""

    removals: list[Removal]
    kept: list[Kept]
    runs: int
    bytes: int

    @property
    def bytes_after(self) -> int:
        """About what the events of all runs take when it is done."""
        return self.bytes - sum(removal.bytes for removal in self.removals)


def plan_retention(policy: RetentionPolicy, rows: Iterable[RunRow], now: int) -> RetentionPlan:
    """Return what `policy` takes of a store with these rows at `now` (µs).

    Runs that have ended alone, oldest end first; never one that is labelled `hold`, nor one whose parent or
    child has not ended.
    """
    everything = sorted(rows, key=lambda row: row.workflow_id)
    related = _Relations(everything)
    removals: list[Removal] = []
    kept: list[Kept] = []
    total = size = sum(row.bytes for row in everything)
    ended = sorted((row for row in everything if row.ended), key=lambda row: row.updated_at)
    for row in ended:
        due = _due(policy, row, size, now)
        if due is None:
            continue
        obstacle = _obstacle(policy, row, related)
        if obstacle is not None:
            kept.append(Kept(workflow_id=row.workflow_id, reason=obstacle))
            continue
        removal = _removal(policy, row, due)
        if removal is not None:
            removals.append(removal)
            size -= removal.bytes
    return RetentionPlan(removals=removals, kept=kept, runs=len(everything), bytes=total)


class _Relations:
    """Parents and children among the rows that are there."""

    def __init__(self, rows: Sequence[RunRow]) -> None:
        self.rows = {row.workflow_id: row for row in rows}
        self.children: dict[str, list[RunRow]] = {}
        for row in rows:
            if row.parent is not None:
                self.children.setdefault(row.parent, []).append(row)


def _due(policy: RetentionPolicy, row: RunRow, size: int, now: int) -> str | None:
    """Return why the policy wants this run, or None; `size` is that of all runs left before it."""
    if policy.max_age is not None:
        age = (now - row.updated_at) / 1e6
        return f"ended {_age(age)} ago, beyond {_age(policy.max_age)}" if age > policy.max_age else None
    if policy.max_bytes is not None:
        return f"the store is above {policy.max_bytes:,} bytes" if size > policy.max_bytes else None
    return None


def _obstacle(policy: RetentionPolicy, row: RunRow, related: _Relations) -> str | None:
    if policy.keep_failed and row.state == "failed":
        return "it failed, and keep_failed is set"
    if HOLD_LABEL in row.labels:
        return f'it is labelled "{HOLD_LABEL}"'
    parent = related.rows.get(row.parent) if row.parent is not None else None
    if parent is not None and not parent.ended:
        return f"its parent {parent.workflow_id} is {parent.state}"
    for child in related.children.get(row.workflow_id, ()):
        if not child.ended:
            return f"its child {child.workflow_id} is {child.state}"
    return None


def _removal(policy: RetentionPolicy, row: RunRow, reason: str) -> Removal | None:
    """Return what to do with a run that is due; None when there is nothing left to trim."""
    whole = Removal(
        workflow_id=row.workflow_id,
        action="delete",
        state=row.state,
        ended_at=row.updated_at,
        bytes=row.bytes,
        reason=reason,
    )
    if policy.trim_to_events is None:
        return whole
    before = row.last_offset + 1 - policy.trim_to_events
    if before <= row.earliest_offset:
        return None
    share = (before - row.earliest_offset) / (row.last_offset + 1 - row.earliest_offset)
    return msgspec.structs.replace(whole, action="trim", bytes=int(row.bytes * share), before=before)


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g}{unit}"
    return f"{seconds:.3g}s"
