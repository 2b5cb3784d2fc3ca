"""A run as a file that can be read anywhere, and such a file as a log (page 000 §12: `log`, `open`).

Each line is an event; what the events do not say follows them (see `agentflow.events.exported`). A graph is
not written out if the source in the first event gives it: whoever reads the file compiles it again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from agentflow.definition.ir import canonical_json
from agentflow.definition.loader import load_text
from agentflow.errors import DefinitionError
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import StoredEvent, decode
from agentflow.events.exported import Attachment, ExportedLog, attachment_lines, event_lines, read_export
from agentflow.events.log import EventLog
from agentflow.events.references import names_in
from agentflow.runtime.kept import KEPT_KINDS, kept_record

__all__ = ["OpenedExport", "export_run", "open_export"]


class OpenedExport(msgspec.Struct, frozen=True):
    """The log of a file, and what is not as it was when the run was written, if anything."""

    log: ExportedLog
    warning: str | None


async def export_run(log: EventLog, workflow_id: str) -> AsyncGenerator[bytes]:
    """The lines of the file, without their ends: the stored events, then what they name.

    RunNotFound, RunGone, LogCorrupt. A run that goes on is exported as far as it is.
    """
    names: set[str] = set()
    first: bytes | None = None
    async for body in event_lines(log, workflow_id):
        first = first or body
        names |= names_in(body)
        yield body
    assert first is not None  # a run has at least one event
    started = decode(first).data
    kinds: tuple[str, ...] = ()
    if isinstance(started, WorkflowStarted):
        derived = _derived(started)
        definition = None if derived is not None and derived[0] == started.ir_hash else started.ir_hash
    else:
        record = await kept_record(log, workflow_id)
        definition = None if record is None else record.ir_hash
        kinds = KEPT_KINDS
        for kind in kinds:
            snapshot = await log.latest_snapshot(workflow_id, kind)
            names |= names_in(snapshot.data) if snapshot is not None else set[str]()
    async for line in attachment_lines(log, workflow_id, names=names, definition=definition, records=kinds):
        yield line


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
