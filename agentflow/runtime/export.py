"""A run as a file that can be read anywhere, and such a file as a log (page 000 §12: `log`, `open`).

Each line is an event; what the events do not say follows them (see `agentflow.events.exported`). A graph is
not written out if the source in the first event gives it: whoever reads the file compiles it again.
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
from agentflow.runtime.kept import KEPT_KINDS, RECORD
from agentflow.runtime.records import RunRecord

__all__ = ["OpenedExport", "export_lines", "export_run", "open_export"]

Get = Callable[[str], Awaitable[bytes | None]]

_PAGE = 512


class OpenedExport(msgspec.Struct, frozen=True):
    """The log of a file, and what is not as it was when the run was written, if anything."""

    log: ExportedLog
    warning: str | None


async def export_run(log: EventLog, workflow_id: str) -> AsyncGenerator[bytes]:
    """The lines of the file, without their ends: the stored events, then what they name.

    RunNotFound, RunGone, LogCorrupt. A run that goes on is exported as far as it is.
    """
    snapshots = [(kind, await log.latest_snapshot(workflow_id, kind)) for kind in KEPT_KINDS]
    kept = {kind: snapshot for kind, snapshot in snapshots if snapshot is not None}
    lines = export_lines(_events(log, workflow_id), log.get_blob, log.get_definition, kept)
    async with aclosing(lines):
        async for line in lines:
            yield line


async def export_lines(
    events: AsyncGenerator[bytes], blob: Get, definition: Get, kept: Mapping[str, Snapshot]
) -> AsyncGenerator[bytes]:
    """The same of a run whose events, blobs and graph come from anywhere; `kept` if it was trimmed."""
    names: set[str] = set()
    first: bytes | None = None
    async with aclosing(events):
        async for body in events:
            first = first or body
            names |= names_in(body)
            yield body
    for snapshot in kept.values():
        names |= names_in(snapshot.data)
    async for line in _blobs(names, blob):
        yield line
    digest = _wanted_definition(first, kept)
    graph = None if digest is None else await definition(digest)
    if digest is not None and graph is not None:
        yield encode_attachment("definition", digest, graph)
    for kind, snapshot in kept.items():
        yield encode_attachment("record", kind, snapshot.data, snapshot.offset)


async def _events(log: EventLog, workflow_id: str) -> AsyncGenerator[bytes]:
    offset = (await log.run(workflow_id)).earliest_offset
    while page := await log.read(workflow_id, offset, _PAGE):
        for event in page:
            yield event.body
        offset = page[-1].offset + 1


async def _blobs(names: set[str], blob: Get) -> AsyncGenerator[bytes]:
    """The blobs among these names, and those that they name."""
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
    """The hash of the graph, if the first event does not give it."""
    started = None if first is None else decode(first).data
    if isinstance(started, WorkflowStarted):
        derived = _derived(started)
        return None if derived is not None and derived[0] == started.ir_hash else started.ir_hash
    if RECORD not in kept:
        return None
    return msgspec.json.decode(kept[RECORD].data, type=RunRecord).ir_hash


async def open_export(path: Path) -> OpenedExport:
    """The log of an exported file, with the graph of its run. InvalidExport; reads all of it, and blocks."""
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
    """The graph that the source of a run gives: its hash and its bytes."""
    source, name = started.source, started.definition.name
    text = source if isinstance(source, str) else msgspec.json.encode(source).decode()
    try:
        # A document that does not name itself has the name of its file.
        definition = load_text(text, format=started.definition.format, file=f"{name}.yaml" if name else None)
    except DefinitionError:
        return None
    return definition.ir_hash, canonical_json(definition.workflow)
