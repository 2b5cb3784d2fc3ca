"""Opening a directory of segments: rebuild the index, cut a torn end, refuse what is damaged elsewhere.

Batches are synced one after another, so only the last can be torn; it was never acknowledged, so it is cut
off. Anything else that is not as it was written is damage. It is pinned to a run, which is then quarantined,
if the damaged lines still say which they are and all their neighbours agree; else the whole store is refused,
since an event of any run could be missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentflow.errors import LogCorrupt
from agentflow.events.ids import micros
from agentflow.events.segments.index import Index, RunIndex
from agentflow.events.segments.lines import Line, RunIdentity, Salvaged, parse_line, salvage

__all__ = ["Recovered", "recover", "segment_path"]

_HINT = "restore the store from a copy"


class Recovered(msgspec.Struct, frozen=True):
    """What was found: the index, the newest segment, its length, the last batch, and how much was cut off."""

    index: Index
    segment: int
    end: int
    batch: int
    cut: int


class _Record(msgspec.Struct, frozen=True):
    """A line of a segment, intact or salvaged."""

    segment: int
    position: int
    size: int
    line: Line | Salvaged | None  # None: nothing can be made of these bytes


def segment_path(directory: Path, number: int) -> Path:
    """The file of a segment; they count from 1."""
    return directory / "segments" / f"{number:08d}.ndjson"


def recover(directory: Path) -> Recovered:
    """Read all segments; blocks, about a second for 400,000 events. LogCorrupt, OSError."""
    index = Index()
    numbers = _segments(directory)
    batch = 0
    pending: list[_Record] = []
    for number in numbers:
        for record in _records(directory, number):
            line = record.line
            proof = isinstance(line, Line) and pending and _may_follow(line, pending, batch)
            if proof:  # a later batch is there, so the pending one was synced, whole or not
                batch = _accept(index, pending, batch)
                pending = []
            pending.append(record)
            if isinstance(line, Line) and line.i == line.n - 1 and _is_whole(pending, batch):
                batch = _accept(index, pending, batch)
                pending = []
    cut = _cut(directory, pending, numbers[-1], batch) if pending else 0
    last = numbers[-1] if numbers else 0
    end = segment_path(directory, last).stat().st_size if numbers else 0
    return Recovered(index, last, end, batch, cut)


def _segments(directory: Path) -> list[int]:
    names = sorted(p.name for p in (directory / "segments").glob("*.ndjson"))
    numbers = [int(name.removesuffix(".ndjson")) for name in names]
    if numbers and numbers != list(range(1, len(numbers) + 1)):
        missing = min(set(range(1, numbers[-1] + 1)) - set(numbers))
        raise LogCorrupt(f"{segment_path(directory, missing)} is missing", hint=_HINT)
    return numbers


def _records(directory: Path, number: int) -> Iterator[_Record]:
    position = 0
    with segment_path(directory, number).open("rb") as file:
        for raw in file:
            # A last line without an end was not written to its end.
            text = raw[:-1] if raw.endswith(b"\n") else b""
            line = parse_line(text)
            size = len(raw)
            if line is not None:
                yield _Record(number, position, size, line)
            else:
                found = salvage(raw)
                for piece in found:
                    yield _Record(number, position, size, piece)
                if not found:
                    yield _Record(number, position, size, None)
            position += size


def _may_follow(line: Line, pending: list[_Record], batch: int) -> bool:
    """Whether an intact line is of a later batch than those pending."""
    first = pending[0].line
    current = batch + 1 if first is None or isinstance(first, Salvaged) else first.b
    return line.b > current


def _is_whole(pending: list[_Record], batch: int) -> bool:
    return all(isinstance(r.line, Line) and r.line.b == batch + 1 for r in pending) and _counts(pending)


def _counts(pending: list[_Record]) -> bool:
    first = pending[0].line
    return (
        first is not None
        and first.n == len(pending)
        and all(r.line is not None and (r.line.i, r.line.n) == (k, first.n) for k, r in enumerate(pending))
    )


def _accept(index: Index, pending: list[_Record], batch: int) -> int:
    """Put lines that are known to have been synced into the index; the number of their last batch."""
    start = 0
    while start < len(pending):
        first = pending[start].line
        group = pending[start : start + first.n] if first is not None else []
        if not group or not _counts(group) or any(r.line is None or r.line.b != batch + 1 for r in group):
            raise _unattributable(pending[start])
        for record in group:
            if isinstance(record.line, Line):
                _add(index, record, record.line)
            elif record.line is not None:
                _quarantine(index, record, record.line)
        start += len(group)
        batch += 1
    return batch


def _add(index: Index, record: _Record, line: Line) -> None:
    try:
        head = line.head()
        ts = micros(head.timestamp)
    except (msgspec.DecodeError, ValueError) as error:
        raise LogCorrupt(
            f"segment {record.segment} holds no event at byte {record.position}: {error}", hint=_HINT
        ) from error
    run = index.runs.get(head.workflow_id)
    if run is None:
        run = _begin(index, head.workflow_id, line, ts)
    if run.damaged:
        return
    if head.offset != run.last + 1:
        run.damaged = True
        return
    if line.r is not None:
        run.apply(line.r)
    run.add(
        record.segment, record.position, record.size - 1, len(bytes(line.e)), ts, index.type_id(head.type)
    )


def _begin(index: Index, workflow_id: str, line: Line, ts: int) -> RunIndex:
    identity = line.r.run if line.r is not None else None
    if identity is not None:
        return index.create(workflow_id, identity)
    # Its beginning is damaged: the run is known by a later event alone.
    run = index.create(workflow_id, RunIdentity(name=None, definition_hash="", created_at=ts, labels={}))
    run.damaged = True
    return run


def _quarantine(index: Index, record: _Record, line: Salvaged) -> None:
    run = index.runs.get(line.workflow_id)
    if run is not None and (run.damaged or run.last + 1 == line.offset):
        run.damaged = True
        return
    raise _unattributable(record)


def _unattributable(record: _Record) -> LogCorrupt:
    return LogCorrupt(
        f"segment {record.segment} is damaged at or after byte {record.position}, and whose events are lost "
        "cannot be told",
        hint=_HINT,
    )


def _cut(directory: Path, pending: list[_Record], newest: int, batch: int) -> int:
    """Cut the torn batch off the newest segment; the number of bytes."""
    first = pending[0]
    if first.segment != newest or any(r.line is not None and r.line.b != batch + 1 for r in pending):
        raise _unattributable(first)  # what was written after the last good batch is more than one batch
    path = segment_path(directory, first.segment)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(first.position)
        os.fsync(file.fileno())
    return size - first.position
