"""What a store has promised, and whether a copy of it keeps that.

Acknowledged: there for ever. Seen by a reader: there for ever. Neither: there as a whole batch, or not at
all. Offsets have no gap, no event is there twice, every blob that an event names is there, and the log goes
on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentflow.errors import AgentflowError, RunGone, RunNotFound
from agentflow.events.log import EventLog, StoredEvent
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from tests.faults.workload import (
    GRAPH,
    T0,
    all_blobs,
    blob,
    blob_name,
    blobs_of,
    boundaries,
    event,
    next_batch,
)

__all__ = ["Found", "Problem", "Promises", "broken", "examine"]

Problem = tuple[str, str]
"""The counter of `Tally` that it belongs to, and what is wrong."""

SHORT_RUNS = 4  # of each incarnation that are looked for; there may be more


@dataclass
class Promises:
    """What the program said, line by line."""

    events: dict[tuple[str, int], str] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    graphs: set[str] = field(default_factory=set)
    going: set[str] = field(default_factory=set)
    """Runs that were to be trimmed or deleted: that may have happened or not."""
    gone: set[str] = field(default_factory=set)
    trimmed: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    conflicts: list[Problem] = field(default_factory=list)

    def copy(self) -> Promises:
        """The same promises, to which others can be added."""
        return copy.deepcopy(self)

    def take(self, lines: Iterable[str]) -> Promises:
        """Note what the lines promise; a last line that was cut short promises nothing."""
        for line in lines:
            match line.split():
                case ["ack", run, first, last, incarnation]:
                    for offset in range(int(first), int(last) + 1):
                        self._note(run, offset, f"{incarnation}.{run}.{offset}")
                case ["seen", run, offset, id]:
                    self._note(run, int(offset), id)
                case ["deleting", run] | ["trimming", run, _]:
                    self.going.add(run)
                case ["trimmed", run, earliest]:
                    for offset in range(int(earliest)):
                        self.events.pop((run, offset), None)
                    self.trimmed[run] = int(earliest)
                case ["deleted", run]:
                    self.gone.add(run)
                    for key in [key for key in self.events if key[0] == run]:
                        del self.events[key]
                case ["blob", name]:
                    self.blobs.add(name)
                case ["graph", name]:
                    self.graphs.add(name)
                case ["end"]:
                    self.ended = True
                case _:
                    raise AssertionError(f"the program said {line!r}")
        return self

    def _note(self, run: str, offset: int, id: str) -> None:
        if run in self.going:
            return  # a reader may say late what it has seen before
        before = self.events.setdefault((run, offset), id)
        if before != id:
            self.conflicts.append(("lost", f"{run} {offset} was {before}, is {id}"))


@dataclass
class Found:
    """What a copy of the store holds, and what is wrong with it whatever was promised."""

    events: dict[tuple[str, int], str] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    graphs: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    earliest: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def broken(promises: Promises, found: Found) -> list[Problem]:
    """Every promise that the copy does not keep."""
    problems = [*promises.conflicts, *found.problems]
    for key, id in promises.events.items():
        run, offset = key
        if run in promises.going and (run in found.gone or offset < found.earliest.get(run, 0)):
            continue
        if found.events.get(key) != id:
            problems.append(("lost", f"{key} should be {id}, is {found.events.get(key)}"))
    looked_for = {run for run in promises.gone if int(run.rpartition("_")[2]) <= 3 * SHORT_RUNS}
    problems += [("lost", f"that {run} was deleted") for run in looked_for - found.gone]
    problems += [
        ("lost", f"that {run} was trimmed")
        for run, earliest in promises.trimmed.items()
        if run not in found.gone and found.earliest.get(run, 0) < earliest
    ]
    missing = (promises.blobs - found.blobs) | (promises.graphs - found.graphs)
    return problems + [("lost", f"{name} is not there") for name in sorted(missing)]


async def examine(url: str, go_on: str | None = "z") -> Found:
    """Open the copy and read all of it; `go_on` names the incarnation that then appends to each open run."""
    found = Found()
    try:
        log = open_log(url)
    except AgentflowError as error:
        found.problems.append(("false_alarms", f"not opened: {error}"))
        return found
    try:
        await _read(log, found)
        if go_on is not None:
            await _go_on(log, found, go_on)
    except AgentflowError as error:
        found.problems.append(("false_alarms", f"{type(error).__name__}: {error}"))
    finally:
        await log.close()
    return found


async def _read(log: EventLog, found: Found) -> None:
    rows = (await log.runs(limit=1_000)).items
    named: set[tuple[str, int]] = set()
    for row in rows:
        run = row.workflow_id
        first, end = row.earliest_offset, row.last_offset + 1
        found.earliest[run] = first
        events = await read_all(log, run, first)
        offsets = [e.offset for e in events]
        if offsets != list(range(first, end)):
            found.problems.append(("gaps", f"{run}: {offsets} of {first} to {row.last_offset}"))
        if not boundaries(run, end):
            found.problems.append(("gaps", f"{run}: a batch is not whole, {end} events"))
        if row.ended != (events[-1].type == "workflow.completed"):
            found.problems.append(("gaps", f"{run}: state {row.state} after {events[-1].type}"))
        for stored in events:
            id = json.loads(stored.body)["id"]
            if stored != event(run, stored.offset, id.split(".")[0], stored.type):
                found.problems.append(("lost", f"{run} {stored.offset}: not what was written"))
            found.events[run, stored.offset] = id
            if blob(run, stored.offset) is not None:
                named.add((run, stored.offset))
    await _find_gone(log, found)
    for data in all_blobs():
        if await log.get_blob(blob_name(data)) == data:
            found.blobs.add(blob_name(data))
    for run, offset in named:
        if blob_name(blob(run, offset) or b"") not in found.blobs:
            found.problems.append(("lost", f"{run} {offset} names a blob that is not there"))
    if await log.get_definition(GRAPH) == GRAPH.encode() * 100:
        found.graphs.add(GRAPH)
    await _query(log, found)


async def read_all(log: EventLog, run: str, first: int = 0) -> list[StoredEvent]:
    """Every event of a run from `first` on, page by page."""
    events: list[StoredEvent] = []
    while page := await log.read(run, first + len(events), 40):
        start = first + len(events)
        events += page
        if [e.offset for e in page] != list(range(start, start + len(page))):
            break  # said by the caller
    return events


async def _find_gone(log: EventLog, found: Found) -> None:
    """Which of the short runs were deleted."""
    for incarnation in {id.partition(".")[0] for id in found.events.values()}:
        for n in range(1, 1 + 3 * SHORT_RUNS, 3):
            try:
                await log.run(f"wf_{incarnation}_{n}")
            except RunGone as gone:
                found.gone.add(f"wf_{incarnation}_{n}")
                if gone.tombstone.state != "completed":
                    found.problems.append(("lost", f"wf_{incarnation}_{n} was {gone.tombstone.state}"))
            except RunNotFound:
                pass


async def _query(log: EventLog, found: Found) -> None:
    """All runs in one stream: the same events, each once, in order."""
    cursor, seen, at = None, set(), found.earliest.copy()
    while True:
        page = await log.query(cursor=cursor, since=T0, limit=64)
        for run, stored in page.items:
            if (run, stored.offset) in seen:
                found.problems.append(("duplicates", f"{run} {stored.offset}"))
            elif stored.offset != at.get(run, 0):
                found.problems.append(("gaps", f"{run}: {stored.offset} after {at.get(run, 0) - 1}"))
            seen.add((run, stored.offset))
            at[run] = stored.offset + 1
        cursor = page.next_cursor
        if len(page.items) < 64:
            break
    if seen != found.events.keys():
        found.problems.append(("gaps", f"the stream and the runs differ in {seen ^ found.events.keys()}"))
    ids = list(found.events.values())
    if len(ids) != len(set(ids)):
        found.problems.append(("duplicates", "an id is there twice"))


async def _go_on(log: EventLog, found: Found, incarnation: str) -> None:
    for run in {run for run, _ in found.events}:
        row = await log.run(run)
        if row.ended:
            continue
        length = row.last_offset + 1
        epoch = await log.claim(run, this_process())
        batch = next_batch(run, length, incarnation, epoch)
        for data in blobs_of(batch):
            await log.put_blob(data)
        await log.append(batch)
        await log.release(run, this_process())  # this process lives on, and others may come
        added = await log.read(run, length)
        if added != list(batch.events):
            found.problems.append(("lost", f"{run}: what was appended at {length} is not there"))
