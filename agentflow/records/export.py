"""A run as a file that can be read anywhere, and such a file as a log (page 000 §12: `log`, `open`).

Each line is an event; what the events do not say follows them (see `agentflow.events.exported`). A graph is
not written out if the source in the first event gives it: the reader of the file compiles it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path

import msgspec

from agentflow.definition.ir import canonical_json
from agentflow.definition.loader import load_text
from agentflow.errors import DefinitionError
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import StoredEvent, decode
from agentflow.events.exported import Attachment, ExportedLog, encode_attachment, read_export
from agentflow.events.log import EventLog
from agentflow.events.references import names_in
from agentflow.events.rows import Snapshot
from agentflow.records.runs import RunRecord
from agentflow.records.trimmed import KEPT_KINDS, RECORD

__all__ = ["OpenedExport", "attachments_of", "export_pieces", "export_run", "open_export"]

Get = Callable[[str], Awaitable[bytes | None]]

_PAGE = 512
_PIECE = 64 * 1024


class OpenedExport(msgspec.Struct, frozen=True):
    """The log of a file, and what is not as it was when the run was written, if anything."""

    log: ExportedLog
    warning: str | None


async def export_run(log: EventLog, workflow_id: str, last: int | None = None) -> AsyncGenerator[bytes]:
    """Yield the lines of the file, without their ends: the stored events, then what they name.

    RunNotFound, RunGone, LogCorrupt. A run that goes on is exported as far as it is, or up to offset `last`.
    """
    row = await log.run(workflow_id)
    last = row.last_offset if last is None else last
    snapshots = [(kind, await log.latest_snapshot(workflow_id, kind)) for kind in KEPT_KINDS]
    kept = {kind: snapshot for kind, snapshot in snapshots if snapshot is not None}
    names: set[str] = set()
    first: bytes | None = None
    offset = row.earliest_offset
    while offset <= last and (page := await log.read(workflow_id, offset, min(_PAGE, last - offset + 1))):
        for event in page:
            first = first or event.body
            names |= names_in(event.text).difference(blob.name for blob in event.blobs)
            yield event.body
        offset = page[-1].offset + 1
    for snapshot in kept.values():
        names |= names_in(snapshot.data)
    async for line in _blobs(names, log.get_blob):
        yield line
    digest = _wanted_definition(first, kept)
    graph = None if digest is None else await log.get_definition(digest)
    if digest is not None and graph is not None:
        yield encode_attachment("definition", digest, graph)
    for kind, snapshot in kept.items():
        yield encode_attachment("record", kind, snapshot.data, snapshot.offset)


async def attachments_of(log: EventLog, workflow_id: str) -> list[bytes]:
    """Return the lines about a run that stand behind its events in a file, without blobs: its graph, also
    where its source gives it, and its records if it was trimmed. Raises as `export_run`."""
    row = await log.run(workflow_id)
    found: list[bytes] = []
    kept = {kind: await log.latest_snapshot(workflow_id, kind) for kind in KEPT_KINDS}
    if not row.earliest_offset:
        (first,) = await log.read(workflow_id, 0, 1)
        digest = decode(first.body).data.ir_hash
    else:
        record = kept[RECORD]
        digest = None if record is None else msgspec.json.decode(record.data, type=RunRecord).ir_hash
    graph = None if digest is None else await log.get_definition(digest)
    if digest is not None and graph is not None:
        found.append(encode_attachment("definition", digest, graph))
    for kind, snapshot in kept.items():
        if snapshot is not None:
            found.append(encode_attachment("record", kind, snapshot.data, snapshot.offset))
    return found


async def export_pieces(log: EventLog, workflow_id: str, last: int | None = None) -> AsyncGenerator[bytes]:
    """Yield the file in pieces of whole lines: each has 64 KiB and what its last line has beyond them, the
    last piece may be shorter. Otherwise as `export_run`."""
    waiting: list[bytes] = []
    size = 0
    async with aclosing(export_run(log, workflow_id, last)) as lines:
        async for line in lines:
            waiting += (line, b"\n")
            size += len(line) + 1
            if size >= _PIECE:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


async def _blobs(names: set[str], blob: Get) -> AsyncGenerator[bytes]:
    """Yield the blobs among these names, and those that they name."""
    left, seen = sorted(names), set(names)
    while left:
        name = left.pop(0)
        data = await blob(name)
        if data is not None:
            yield encode_attachment("blob", name, data)
            inner = names_in(data) - seen
            seen |= inner
            left += sorted(inner)


def _wanted_definition(first: bytes | None, kept: Mapping[str, Snapshot]) -> str | None:
    """Return the hash of the graph, if the first event does not give it."""
    started = None if first is None else decode(first).data
    if isinstance(started, WorkflowStarted):
        derived = _derived(started)
        return None if derived is not None and derived[0] == started.ir_hash else started.ir_hash
    if RECORD not in kept:
        return None
    return msgspec.json.decode(kept[RECORD].data, type=RunRecord).ir_hash


async def open_export(path: Path) -> OpenedExport:
    """Return the log of an exported file, with the graph of its run; reads the whole file, and blocks. Raises
    InvalidExport."""
    log = read_export(path)
    row = await log.run(log.workflow_id)
    warning: str | None = None
    if row.earliest_offset == 0:
        first: StoredEvent = (await log.read(log.workflow_id, 0, 1))[0]
        started = decode(first.body).data
        assert isinstance(started, WorkflowStarted)  # else it is refused when it is read
        if await log.get_definition(started.ir_hash) is None:
            derived = _derived(started)
            if derived is None:
                warning = "its source cannot be compiled here, so its graph and its state cannot be shown"
            else:
                if derived[0] != started.ir_hash:
                    warning = "its source compiles to another graph here; what is shown of it may be wrong"
                log.attach(_definition(started.ir_hash), derived[1])
    return OpenedExport(log, warning)


def _definition(name: str) -> Attachment:
    return Attachment(attachment="definition", name=name, content="")


def _derived(started: WorkflowStarted) -> tuple[str, bytes] | None:
    """Return the graph that the source of a run gives: its hash and its bytes."""
    source, name = started.source, started.definition.name
    text = source if isinstance(source, str) else msgspec.json.encode(source).decode()
    try:
        # A document that does not name itself has the name of its file.
        definition = load_text(text, format=started.definition.format, file=f"{name}.yaml" if name else None)
    except DefinitionError:
        return None
    return definition.ir_hash, canonical_json(definition.workflow)
