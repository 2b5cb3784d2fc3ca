"""A run in a file: its events as they were stored, one a line, and what they name in lines behind them.

    {"id":…,"offset":0,"type":"workflow.started",…}        an event, the very bytes of the log
    …
    {"attachment":"blob","name":"sha256:…","content":"<base64>"}

Attachments come only if there is something to attach: blobs; the graph, where the source in the first event
does not give it; the records that are kept of a trimmed run. An EventLog over such a file never writes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentflow.definition.type_errors import undecodable
from agentflow.errors import InvalidExport, LogCorrupt, StoreError
from agentflow.events.blobs import blob_hash
from agentflow.events.catalogue import TERMINAL_TYPES, WorkflowStarted
from agentflow.events.envelope import Event, StoredEvent, decode, micros, stored_event
from agentflow.events.memory import MemoryLog
from agentflow.events.read_only import ReadOnlyWrites
from agentflow.events.rows import Append, RunMeta

__all__ = ["Attachment", "ExportedLog", "encode_attachment", "read_export", "read_lines"]


class Attachment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line behind the events. `name` of a blob or a definition is its hash, of a record its kind, which was
    kept at `offset`; `content` is in base64."""

    attachment: Literal["blob", "definition", "record"]
    name: str
    content: str
    offset: int | None = None


def encode_attachment(
    kind: Literal["blob", "definition", "record"], name: str, data: bytes, offset: int | None = None
) -> bytes:
    """Return the line of an attachment, without its end."""
    content = base64.b64encode(data).decode()
    return msgspec.json.encode(Attachment(attachment=kind, name=name, content=content, offset=offset))


class ExportedLog(ReadOnlyWrites, MemoryLog):
    """The one run of a file, `workflow_id`. Reads are those of a log in memory, writes raise StoreError."""

    def __init__(self, path: Path, workflow_id: str) -> None:
        super().__init__()
        self.path = path
        self.url = f"export:{path}"
        self.workflow_id = workflow_id

    def begin(self, first: StoredEvent, meta: RunMeta) -> None:
        """Start the run with this event, which is not at offset 0 if those before were trimmed."""
        self._put_run(self.workflow_id, meta, first.offset)

    def add(self, event: StoredEvent, state: str | None) -> None:
        """Add the next event of the file, and the run's state after it."""
        self._take(self._runs[self.workflow_id], Append(self.workflow_id, 1, event.offset, [event], state))

    def attach(self, attachment: Attachment, data: bytes) -> None:
        """Add what the file holds behind the events, or what its reader derived."""
        if attachment.attachment == "blob":
            self._blobs[attachment.name] = data
        elif attachment.attachment == "definition":
            self._definitions[attachment.name] = data
        else:
            kept = self._runs[self.workflow_id].snapshots.setdefault(attachment.name, {})
            kept[attachment.offset or 0] = data

    def _refusal(self) -> StoreError:
        return StoreError(f"{self.path} is an exported log, which cannot be changed")


def read_export(path: Path) -> ExportedLog:
    """Read the run of an exported file; reads and checks all of it, about 100,000 events a second.

    InvalidExport, with the line, for anything but the events of one run in order and their attachments.
    """
    reader = _Reader(path)
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                reader.take(number, raw)
    except OSError as error:
        raise InvalidExport(str(path), None, f"cannot be read: {error.strerror}") from error
    return reader.finish()


def read_lines(name: str, lines: Iterable[bytes]) -> ExportedLog:
    """Return the run that the lines of an exported file hold; `name` stands for the file. InvalidExport."""
    reader = _Reader(Path(name))
    for number, line in enumerate(lines, start=1):
        reader.take(number, line + b"\n")
    return reader.finish()


class _Reader:
    """Takes a file line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self.log: ExportedLog | None = None
        self.next = 0
        self.state = "pending"
        self.ended = False
        self.attached = False

    def fail(self, problem: str, hint: str | None = None) -> InvalidExport:
        return InvalidExport(str(self.path), self.line, problem, hint=hint)

    def take(self, number: int, raw: bytes) -> None:
        self.line = number
        text = raw.rstrip(b"\r\n")
        try:
            value: Any = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if not raw.endswith(b"\n"):
                raise self.fail(
                    "the line is cut off", "export the run again; the file is not whole"
                ) from None
            found = undecodable(error, object)
            raise self.fail(f"this is not JSON: {found}", "each line is one event") from None
        if not isinstance(value, dict):
            raise self.fail("this is no JSON object", "each line is one event")
        if "attachment" in value:
            self._attach(text)
        else:
            self._add(text)

    def _add(self, body: bytes) -> None:
        if self.attached:
            raise self.fail("an event follows an attachment; those stand behind all events")
        try:
            event = decode(body)
            ts = micros(event.timestamp)
        except (LogCorrupt, ValueError) as error:
            reason = str(error).removeprefix("an event cannot be read: ")
            raise self.fail(f"this is no event: {reason}") from None
        stored = stored_event(event.offset, ts, event.type, body)
        if self.log is None:
            self._begin(event, stored)
        assert self.log is not None
        if event.workflow_id != self.log.workflow_id:
            raise self.fail(
                f"this is an event of {event.workflow_id}, those before are of {self.log.workflow_id}",
                "a file holds one run",
            )
        if self.ended:
            raise self.fail(f"offset {event.offset} follows the terminal event of the run")
        if event.offset != self.next:
            last = self.next - 1
            missing = event.offset > self.next
            what = "events are missing" if missing else "events come again or out of order"
            raise self.fail(f"offset {event.offset} follows offset {last}: {what}")
        self.next += 1
        self.state = _state_after(event.type, self.state)
        self.ended = event.type in TERMINAL_TYPES
        self.log.add(stored, self.state)

    def _begin(self, event: Event[Any], stored: StoredEvent) -> None:
        data = event.data
        started = data if isinstance(data, WorkflowStarted) else None
        if (event.offset == 0) != (started is not None) or event.offset < 0:
            raise self.fail(f"a run begins with workflow.started at offset 0, not with {event.type}")
        self.log = ExportedLog(self.path, event.workflow_id)
        self.next = event.offset
        self.log.begin(
            stored,
            RunMeta(
                name=started.definition.name if started is not None else None,
                definition_hash=started.definition.hash if started is not None else "",
                created_at=stored.ts,
                labels=started.labels if started is not None else {},
            ),
        )

    def _attach(self, text: bytes) -> None:
        if self.log is None:
            raise self.fail("an attachment stands before the events")
        self.attached = True
        try:
            attachment = msgspec.json.decode(text, type=Attachment)
            data = base64.b64decode(attachment.content, validate=True)
        except (msgspec.DecodeError, binascii.Error) as error:
            is_json = isinstance(error, msgspec.DecodeError)
            found = undecodable(error, Attachment) if is_json else "its content is not base64"
            raise self.fail(f"this is no attachment: {found}") from None
        if attachment.attachment == "blob" and blob_hash(data) != attachment.name:
            raise self.fail(f"the content of {attachment.name} is not what its name says")
        self.log.attach(attachment, data)

    def finish(self) -> ExportedLog:
        if self.log is None:
            raise InvalidExport(str(self.path), None, "the file holds no event")
        return self.log


_RUNNING = ("superstep.started", "workflow.step_", "workflow.resumed", "agent.", "model.", "tool.")
_STIRS = ("approval.granted", "approval.denied", "input.received", "timer.fired", "signal.received")


def _state_after(type: str, before: str) -> str:
    """Return the state of the run by the types of its events (page 000 §2); its fold says the same."""
    if type in ("workflow.waiting", "workflow.paused"):
        return type.partition(".")[2]
    if before == "paused" and type != "workflow.resumed":
        return before
    if type.startswith(_RUNNING) or (before == "waiting" and type in _STIRS):
        return "running"
    return before
