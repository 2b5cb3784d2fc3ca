"""The index of a closed segment in a file beside it, so that opening the store need not read the segment.

A cache: it is made from the index, checked by its own checksum, by the length of the segment and by the
segment's last bytes, and left aside whenever anything does not fit. Losing all of them costs a scan.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from array import array
from pathlib import Path
from typing import Literal

import msgspec

from agentflow.events.segments.index import Index, Segment
from agentflow.events.segments.lines import RunIdentity, parse_rewritten

__all__ = ["SidecarUnusable", "load_sidecar", "remove_sidecar", "save_sidecar"]

# How arrays are laid out; another machine's are not read.
_FORM = f"1 {sys.byteorder} {' '.join(str(array(code).itemsize) for code in 'QIqH')}"
_TAIL = 4_096
_HEAD = 256
_CODES: tuple[tuple[str, Literal["Q", "I", "q", "H"]], ...] = (
    ("places", "Q"),
    ("sizes", "I"),
    ("bodies", "I"),
    ("times", "q"),
    ("types", "H"),
)


class SidecarUnusable(Exception):
    """The sidecar does not fit its segment; the text says how."""


class _Run(msgspec.Struct, frozen=True):
    """Events of a run from offset `first` on, and what is known of the run; arrays as in RunIndex."""

    workflow_id: str
    identity: RunIdentity
    parent: str | None
    names: list[str]
    state: str
    epoch: int
    first: int
    places: bytes
    sizes: bytes
    bodies: bytes
    times: bytes
    types: bytes


class _Sidecar(msgspec.Struct, frozen=True):
    form: str
    size: int
    generation: int
    tail: int
    first: int
    last: int
    type_names: list[str]
    runs: list[_Run]


_decoder = msgspec.msgpack.Decoder(_Sidecar)


def _path(segment: Path) -> Path:
    return segment.with_suffix(".index")


def save_sidecar(path: Path, index: Index, number: int) -> None:
    """Write the sidecar of the closed segment at `path`; without a sync, and not being able to is no harm.

    A store with a damaged run gets none: the damage is to be found again at every start.
    """
    segment = index.segments[number]
    if index.has_damage():
        return
    runs: list[_Run] = []
    for workflow_id, (first, count) in segment.spans.items():
        run = index.runs.get(workflow_id)
        start = first if run is None else max(first, run.earliest)
        if run is None or start >= first + count:
            continue
        part = slice(start - run.earliest, first + count - run.earliest)
        arrays = {name: getattr(run, name)[part].tobytes() for name, _ in _CODES}
        known = (run.identity, run.parent, sorted(run.names), run.state, run.stored_epoch)
        runs.append(_Run(workflow_id, *known, start, **arrays))
    try:
        sidecar = _Sidecar(
            _FORM,
            segment.size,
            segment.generation,
            _tail(path),
            segment.first,
            segment.last,
            index.type_names.copy(),
            runs,
        )
        body = msgspec.msgpack.encode(sidecar)
        draft = _path(path).with_suffix(".index.tmp")
        draft.write_bytes(b"%08x" % zlib.crc32(body) + body)
        draft.rename(_path(path))
    except OSError:
        return


def remove_sidecar(path: Path) -> None:
    """The segment at `path` is about to change."""
    with contextlib.suppress(FileNotFoundError):
        _path(path).unlink()


def load_sidecar(path: Path, index: Index, number: int, first_batch: int) -> bool:
    """Put a segment that begins with this batch into the index; False if there is no sidecar.

    SidecarUnusable, with the index as it was.
    """
    try:
        data = _path(path).read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise SidecarUnusable(f"cannot be read ({error.strerror})") from error
    sidecar = _decode(data)
    _check_fits(sidecar, path, first_batch)
    _check_continues(sidecar, index)
    _apply(sidecar, index, number)
    return True


def _decode(data: bytes) -> _Sidecar:
    body = memoryview(data)[8:]
    if data[:8] != b"%08x" % zlib.crc32(body):
        raise SidecarUnusable("is damaged")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise SidecarUnusable(f"has another form ({error})") from error


def _check_fits(sidecar: _Sidecar, path: Path, first_batch: int) -> None:
    with path.open("rb") as file:
        head = parse_rewritten(file.read(_HEAD).partition(b"\n")[0])
    generation = 0 if head is None else head.g
    found = (_FORM, path.stat().st_size, generation, _tail(path), first_batch)
    if found != (sidecar.form, sidecar.size, sidecar.generation, sidecar.tail, sidecar.first):
        raise SidecarUnusable("is not that of the segment as it is now")


def _check_continues(sidecar: _Sidecar, index: Index) -> None:
    """Each run goes on where the segments before have left it."""
    removed = index.removed
    for found in sidecar.runs:
        trimmed = removed.trimmed.get(found.workflow_id)
        earliest = 0 if trimmed is None else trimmed.earliest
        run = index.runs.get(found.workflow_id)
        if run is not None and run.damaged is not None:
            continue
        due = earliest if run is None else run.last + 1
        first = max(found.first, earliest)
        if found.workflow_id not in removed.gone and first != due:
            raise SidecarUnusable(f"has {found.workflow_id} from offset {first}, not {due} on")


def _apply(sidecar: _Sidecar, index: Index, number: int) -> None:
    segment = index.segments[number] = Segment(number, sidecar.first, sidecar.generation)
    segment.last, segment.size = sidecar.last, sidecar.size
    type_ids = [index.type_id(name) for name in sidecar.type_names]
    as_they_are = type_ids == list(range(len(type_ids)))
    for found in sidecar.runs:
        if found.workflow_id in index.removed.gone:
            continue
        arrays = {name: _array(code, getattr(found, name)) for name, code in _CODES}
        if not as_they_are:
            arrays["types"] = array("H", [type_ids[k] for k in arrays["types"]])
        trimmed = index.removed.trimmed.get(found.workflow_id)
        skipped = 0 if trimmed is None else max(0, trimmed.earliest - found.first)
        if skipped:
            arrays = {name: part[skipped:] for name, part in arrays.items()}
        count = len(arrays["types"])
        if not count:
            continue
        run = index.runs.get(found.workflow_id)
        if run is not None and run.damaged is not None:
            continue
        if run is None:
            run = index.create(found.workflow_id, found.identity, found.first + skipped)
            run.parent = found.parent
        for name, part in arrays.items():
            getattr(run, name).extend(part)
        run.bytes += sum(arrays["bodies"])
        run.updated_at = arrays["times"][-1]
        run.state, run.stored_epoch = found.state, found.epoch
        run.epoch = max(run.epoch, found.epoch)
        run.names.update(found.names if trimmed is None else trimmed.names)
        segment.grow(found.workflow_id, found.first + skipped, count)


def _array(code: Literal["Q", "I", "q", "H"], data: bytes) -> array[int]:
    found: array[int] = array(code)
    found.frombytes(data)
    return found


def _tail(path: Path) -> int:
    """The checksum of the segment's last bytes."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        return zlib.crc32(file.read())
