"""Rewriting a closed segment without the lines of runs that were deleted or trimmed.

The new file is whole and synced before it takes the place of the old one, so at any time there is one of the
two; both say the same of what is left. Lines are copied as they are: damage is neither mended nor hidden.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentflow.events.files import sync_directory
from agentflow.events.segments.index import PLACE_BITS, POSITION, Index, RunIndex
from agentflow.events.segments.layout import Layout
from agentflow.events.segments.lines import Rewritten, encode_rewritten
from agentflow.events.segments.sidecar import remove_sidecar, save_sidecar

__all__ = ["Draft", "live_parts", "swap_in", "worth_rewriting", "write_draft"]

_DEAD_SHARE = 0.25
_EMPTY = 100  # bytes; a rewritten segment without any line is shorter


class Draft(msgspec.Struct, frozen=True):
    """A rewritten segment that is not in its place yet. `moved`: of each run its first offset and the places
    of its events from there on."""

    number: int
    path: Path
    head: Rewritten
    size: int
    moved: dict[str, tuple[int, array[int]]]


def worth_rewriting(index: Index, number: int, size: int) -> bool:
    """Whether so much of a segment's `size` bytes is dead that a rewrite pays. Never while a run is damaged:
    somebody may want to mend it by hand, with all lines that there are."""
    if index.has_damage():
        return False
    live = sum(sum(run.sizes[part]) + part.stop - part.start for run, part in live_parts(index, number))
    return live < size * (1 - _DEAD_SHARE) if live else size > _EMPTY


def write_draft(layout: Layout, index: Index, number: int) -> Draft:
    """Copy what is live of a closed segment beside it, durably. For any thread. OSError."""
    segment = index.segments[number]
    head = Rewritten(g=segment.generation + 1, first=segment.first, last=segment.last)
    first_line = encode_rewritten(head)
    moved: dict[str, tuple[int, array[int]]] = {}
    lines: list[tuple[int, int, str, int]] = []  # position, size, run, index of the event in `moved`
    for run, part in live_parts(index, number):
        moved[run.workflow_id] = (run.earliest + part.start, array("Q", bytes(8 * (part.stop - part.start))))
        places, sizes = run.places[part], run.sizes[part]
        lines += [
            (place & POSITION, size + 1, run.workflow_id, k)
            for k, (place, size) in enumerate(zip(places, sizes, strict=True))
        ]
    lines.sort()
    source, path = layout.segment(number), layout.draft(number)
    position = len(first_line)
    with source.open("rb") as old, path.open("wb") as new:
        os.chmod(path, 0o600)
        new.write(first_line)
        for old_position, size, workflow_id, k in lines:
            old.seek(old_position)
            new.write(old.read(size))
            moved[workflow_id][1][k] = number << PLACE_BITS | position
            position += size
        new.flush()
        os.fsync(new.fileno())
    return Draft(number, path, head, position, moved)


def swap_in(layout: Layout, index: Index, draft: Draft) -> int:
    """Put a draft in the place of its segment; the bytes that this freed. OSError.

    For the thread that reads, so that no read has the old places and the new file.
    """
    path = layout.segment(draft.number)
    segment = index.segments[draft.number]
    freed = path.stat().st_size - draft.size
    with index.moving:
        remove_sidecar(path)
        draft.path.rename(path)
        segment.spans = {}
        for workflow_id, (first, places) in draft.moved.items():
            run = index.runs.get(workflow_id)
            if run is None:
                continue
            skipped = max(0, run.earliest - first)
            for k in range(skipped, len(places)):
                run.places[first + k - run.earliest] = places[k]
            if skipped < len(places):
                segment.grow(workflow_id, first + skipped, len(places) - skipped)
        segment.generation, segment.size = draft.head.g, draft.size
    sync_directory(path.parent)
    save_sidecar(path, index, draft.number)
    return freed


def live_parts(index: Index, number: int) -> Iterator[tuple[RunIndex, slice]]:
    """The runs of a segment, and which part of each one's events lies in it."""
    for workflow_id, (first, count) in list(index.segments[number].spans.items()):
        run = index.runs.get(workflow_id)
        if run is not None and run.earliest < first + count:
            yield run, slice(max(first, run.earliest) - run.earliest, first + count - run.earliest)
