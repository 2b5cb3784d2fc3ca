"""What runs share through the store: values of `cache_write`, and the windows of gates (page 003 §4).

Pure: a kind asks for an access as data, `applied` says what it makes of the record under its key, and the
caller of the engine loads and saves the record. An access is made once its activation is durable, and made
again after a crash: it gives its owner the same answer, and counts it once. What came of it stands in the
event that follows, so that a replay never asks.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.ir import canonical_json

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.state import RunState

__all__ = [
    "Arrive",
    "CacheRecord",
    "Claim",
    "Operation",
    "Read",
    "Record",
    "StoreAccess",
    "Take",
    "Touch",
    "Write",
    "access_key",
    "answer_prefix",
    "applied",
    "owner_of",
]

_GRACE = 86_400_000_000
"""Microseconds (a day) for which a gate is remembered after its window: a process may be down for long."""


class Read(NamedTuple):
    """Answer the CacheRecord, None if there is none; whether it has expired is for the reader to say."""


class Write(NamedTuple):
    """Put a value here, unless a later one stands here. Times in µs; `until` None: for good."""

    value: Any
    at: int
    until: int | None


class Touch(NamedTuple):
    """Arrive at a leading debounce; answer whether the arrival is suppressed."""

    owner: str
    at: int
    window: int


class Arrive(NamedTuple):
    """Arrive at a trailing debounce: become the latest, unless a later arrival is."""

    owner: str
    at: int
    window: int


class Claim(NamedTuple):
    """Answer whether a newer arrival has superseded this one at a trailing debounce."""

    owner: str


class Take(NamedTuple):
    """Ask a throttle to pass at the time `at`; answer when: at once, or later, or None if it drops.

    `has_turn`: the time that it was given before has come; the passes alone count then.
    """

    owner: str
    at: int
    window: int
    limit: int
    delays: bool
    has_turn: bool = False


Operation = Read | Write | Touch | Arrive | Claim | Take


class StoreAccess(NamedTuple):
    """An activation that waits for the answer of the store. `answer_key` names the answer in `found`."""

    answer_key: str
    key: str
    operation: Operation


class CacheRecord(msgspec.Struct, frozen=True, tag="value"):
    """A value, when it was written, and until when it may be read."""

    value: Any
    at: int
    until: int | None


class DebounceRecord(msgspec.Struct, frozen=True, tag="debounce"):
    """When a key was seen last, and by whom; which arrival passed last."""

    at: int
    latest: str
    passed: str | None
    until: int


class ThrottleRecord(msgspec.Struct, frozen=True, tag="throttle"):
    """The last passes, and the turns that were given: (time, owner), oldest first."""

    passes: tuple[tuple[int, str], ...]
    turns: tuple[tuple[int, str], ...]
    until: int


Record = CacheRecord | DebounceRecord | ThrottleRecord


def access_key(state: RunState, scope: str, *names: Any) -> str:
    """Return what a record is kept under, for all runs of this definition or of the store."""
    begin = state.begin
    where = begin.ir_hash if scope == "definition" and begin is not None else "global"
    if begin is not None and begin.options.get("trusted") is False:
        where += "/untrusted"  # as results: one must not serve a trusted run, nor the other way round
    return "sha256:" + hashlib.sha256(canonical_json([where, *names])).hexdigest()


def answer_prefix(activation_key: str) -> str:
    """Return how the names of the answers to an activation begin."""
    return f"{activation_key}?"


def owner_of(state: RunState, activation: Activation) -> str:
    """Return what names an activation among those of all runs."""
    return f"{state.workflow_id}{activation.key}"


def applied(operation: Operation, record: Record | None) -> tuple[Record | None, Any]:
    """Return the record after an access, and the answer. The same record means: nothing to save."""
    if isinstance(operation, Read):
        return record, record if isinstance(record, CacheRecord) else None
    if isinstance(operation, Write):
        if isinstance(record, CacheRecord) and record.at > operation.at:
            return record, True
        return CacheRecord(operation.value, operation.at, operation.until), True
    if isinstance(operation, Take):
        return _taken(operation, record if isinstance(record, ThrottleRecord) else None)
    seen = record if isinstance(record, DebounceRecord) else None
    if isinstance(operation, Claim):
        return record, seen is not None and seen.latest != operation.owner
    return _arrived(operation, seen)


def _arrived(arrival: Touch | Arrive, seen: DebounceRecord | None) -> tuple[Record | None, bool]:
    at, owner = arrival.at, arrival.owner
    passes = isinstance(arrival, Touch) and (
        seen is None or seen.passed == owner or at - seen.at >= arrival.window
    )
    is_latest = seen is None or at >= seen.at
    found = DebounceRecord(
        at=at if seen is None else max(at, seen.at),
        latest=owner if seen is None or is_latest else seen.latest,
        passed=owner if passes else None if seen is None else seen.passed,
        until=max(at + arrival.window + _GRACE, 0 if seen is None else seen.until),
    )
    return found, not passes


def _taken(wanted: Take, record: ThrottleRecord | None) -> tuple[Record | None, int | None]:
    passes = () if record is None else record.passes
    for at, owner in passes:
        if owner == wanted.owner:
            return record, at
    others = () if record is None else record.turns
    turns = [t for t in others if t[1] != wanted.owner and t[0] > wanted.at - wanted.window]
    times = sorted([at for at, _ in passes] + ([] if wanted.has_turn else [due for due, _ in turns]))
    due = wanted.at
    if len(times) >= wanted.limit:
        due = max(due, times[-wanted.limit] + wanted.window)
    until = max(due + wanted.window + _GRACE, 0 if record is None else record.until)
    if due <= wanted.at:
        kept = sorted([*passes, (due, wanted.owner)])[-wanted.limit :]
        return ThrottleRecord(tuple(kept), tuple(turns), until), due
    if not wanted.delays:
        return record, None
    given = sorted([*turns, (due, wanted.owner)])
    return ThrottleRecord(passes, tuple(given), until), due
