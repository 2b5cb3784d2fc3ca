"""The trace of a run: its nodes entered, left and failed, in the order of the log (page 003 §8).

A trace is made from the log whenever it is asked for, and stored nowhere else. With the logical clock it
holds nothing that differs between two runs of equal event orders: their traces are equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.errors import AgentflowError, LogCorrupt
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event
from agentflow.events.ids import micros

__all__ = [
    "AlreadyFinalized",
    "TraceClock",
    "TraceEvent",
    "TraceEventKind",
    "TraceFold",
    "TraceMetadata",
    "TraceRecorder",
    "TraceTerminalStatus",
    "WorkflowTrace",
    "encode_trace",
    "trace_of",
]

TraceClock = Literal["wall", "logical"]
TraceEventKind = Literal["node_enter", "node_exit", "node_error", "terminal"]
TraceTerminalStatus = Literal["completed", "failed", "cancelled"]

_VERSION = "v0"
"""Of the IR, which every format is compiled to."""


class AlreadyFinalized(AgentflowError):
    """A trace that was finalized takes no more events."""

    code = "already_finalized"


class TraceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Which run the trace is of. Times are in milliseconds; with the logical clock they count events.

    `trace_id` is the W3C id of the run's spans, or `NAME-v0-trace` with the logical clock, which also leaves
    out `workflow_id`.
    """

    trace_id: str
    workflow_name: str
    workflow_version: str
    clock: TraceClock
    started_at_unix_ms: int
    finished_at_unix_ms: int
    workflow_id: str | UnsetType = UNSET
    forked: bool | UnsetType = UNSET
    """True for a fork: what came before stands in the trace of another run."""


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a trace. `seq` counts from 0, `visit` from 1; `path` is the child path, empty outside.

    The iterations of a for_each and the items of a map have paths of their own. `message` and `code` are
    those of the error; `handled` is true if the run completed in spite of it. `clock` is the number of the
    activation in the run. `offset` and `attempts` stand in traces of the wall clock alone.
    """

    seq: int
    timestamp_unix_ms: int
    event: TraceEventKind
    node_id: str | UnsetType = UNSET
    path: str | UnsetType = UNSET
    visit: int | UnsetType = UNSET
    clock: int | UnsetType = UNSET
    message: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    handled: bool | UnsetType = UNSET
    status: TraceTerminalStatus | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    attempts: int | UnsetType = UNSET


class WorkflowTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace: metadata, and events in the order of the log. Without a `terminal` event the run goes on."""

    metadata: TraceMetadata
    events: tuple[TraceEvent, ...]


class TraceRecorder:
    """A trace that grows in memory, for tests of what reads traces."""

    def __init__(self, workflow_name: str, *, trace_id: str | None = None) -> None:
        self._name = workflow_name
        self._trace_id = trace_id or f"{workflow_name}-{_VERSION}-trace"
        self._events: list[TraceEvent] = []
        self._finalized = False

    def append(
        self,
        event: TraceEventKind,
        *,
        node_id: str | UnsetType = UNSET,
        path: str = "",
        visit: int = 1,
        message: str | UnsetType = UNSET,
        status: TraceTerminalStatus | UnsetType = UNSET,
    ) -> TraceEvent:
        """Append the next event, its time being its number. Raises AlreadyFinalized."""
        if self._finalized:
            raise AlreadyFinalized("this trace was finalized: it takes no more events")
        seq = len(self._events)
        terminal = event == "terminal"
        made = TraceEvent(
            seq=seq,
            timestamp_unix_ms=seq,
            event=event,
            node_id=node_id,
            path=UNSET if terminal else path,
            visit=UNSET if terminal else visit,
            message=message,
            status=status,
        )
        self._events.append(made)
        return made

    def snapshot(self) -> WorkflowTrace:
        """Return the trace as it is now; the recorder goes on."""
        count = len(self._events)
        metadata = TraceMetadata(
            trace_id=self._trace_id,
            workflow_name=self._name,
            workflow_version=_VERSION,
            clock="logical",
            started_at_unix_ms=0,
            finished_at_unix_ms=count,
        )
        return WorkflowTrace(metadata=metadata, events=tuple(self._events))

    def finalize(self) -> WorkflowTrace:
        """Return the trace, and take no more events. Raises AlreadyFinalized the second time."""
        if self._finalized:
            raise AlreadyFinalized("this trace was finalized before")
        self._finalized = True
        return self.snapshot()


_encoder = msgspec.json.Encoder()


def encode_trace(trace: WorkflowTrace) -> bytes:
    """Return the JSON of a trace on one line; equal traces have equal bytes."""
    return _encoder.encode(trace)


_IDS = re.compile(r"\b(wf|req|evt|call|mc|tc|tmr)_[0-9A-HJKMNP-TV-Z]{26}\b")
"""Ids in messages of errors: they differ from run to run."""

_STATUS: dict[type[ev.RunEvent], TraceTerminalStatus] = {
    ev.WorkflowCompleted: "completed",
    ev.WorkflowFailed: "failed",
    ev.WorkflowCancelled: "cancelled",
}

_Key = tuple[str, str, int]


class TraceFold:
    """Makes a trace from the events of a run, given in the order of their offsets.

    Each exit and each error has its enter, also in a fork of a run whose nodes were open.
    """

    def __init__(self, clock: TraceClock = "wall") -> None:
        self._clock: TraceClock = clock
        self._logical = clock == "logical"
        self._first: Event[ev.WorkflowStarted] | None = None
        self._lines: list[TraceEvent] = []
        self._open: set[_Key] = set()
        self._last_ms = 0

    def take(self, event: Event[Any]) -> None:
        """Take the next event. Raises LogCorrupt if the first is not `workflow.started`."""
        data: ev.RunEvent = event.data
        if self._first is None:
            if not isinstance(data, ev.WorkflowStarted):
                raise LogCorrupt(f"the log of {event.workflow_id} does not begin with workflow.started")
            self._first = event
        # The time of the log may step back with the clock of the machine; that of a trace stands still.
        self._last_ms = max(self._last_ms, micros(event.timestamp) // 1000)
        status = _STATUS.get(type(data))
        if status is not None:
            self._line(event, "terminal", status=status)
            if status == "completed":
                self._mark_handled()
            return
        if not isinstance(data, ev.WorkflowStepStarted | ev.WorkflowStepCompleted | ev.WorkflowStepFailed):
            return
        path = data.path if data.iteration is None else f"{data.activation}.{data.iteration}"
        key = (path, data.step_id, data.visit + 1)
        if key not in self._open:
            self._node(event, "node_enter", key)
            self._open.add(key)
        if isinstance(data, ev.WorkflowStepStarted):
            return
        self._open.discard(key)
        if isinstance(data, ev.WorkflowStepFailed):
            message = _IDS.sub(r"\1_…", data.error.message) if self._logical else data.error.message
            self._node(event, "node_error", key, message=message, code=data.error.code)
        else:
            self._node(event, "node_exit", key)

    def _node(self, event: Event[Any], kind: TraceEventKind, key: _Key, **more: Any) -> None:
        path, node_id, visit = key
        data = event.data
        if not self._logical and kind != "node_enter":
            more["attempts"] = data.attempt
        self._line(event, kind, node_id=node_id, path=path, visit=visit, clock=data.clock, **more)

    def _line(self, event: Event[Any], kind: TraceEventKind, **more: Any) -> None:
        seq = len(self._lines)
        if self._logical:
            at = seq
        else:
            at = self._last_ms
            more["offset"] = event.offset
        self._lines.append(TraceEvent(seq=seq, timestamp_unix_ms=at, event=kind, **more))

    def _mark_handled(self) -> None:
        """Mark every error as handled, because the run has completed."""
        replace = msgspec.structs.replace
        self._lines = [
            replace(line, handled=True) if line.event == "node_error" else line for line in self._lines
        ]

    def trace(self) -> WorkflowTrace:
        """Return the trace of what was taken. Raises LogCorrupt if that is nothing."""
        first = self._first
        if first is None:
            raise LogCorrupt("the log is empty")
        lines = tuple(self._lines)
        wall = self._clock == "wall"
        name = first.data.definition.name or first.data.definition.id
        spans = first.trace
        metadata = TraceMetadata(
            trace_id=spans.trace_id if wall and spans is not None else f"{name}-{_VERSION}-trace",
            workflow_name=name,
            workflow_version=_VERSION,
            clock=self._clock,
            started_at_unix_ms=micros(first.timestamp) // 1000 if wall else 0,
            finished_at_unix_ms=self._last_ms if wall else len(lines),
            workflow_id=first.workflow_id if wall else UNSET,
            forked=UNSET if first.data.forked_from is UNSET else True,
        )
        return WorkflowTrace(metadata=metadata, events=lines)


def trace_of(events: Iterable[Event[Any]], clock: TraceClock = "wall") -> WorkflowTrace:
    """Return the trace of a run from all its events. Raises LogCorrupt if they begin with another one."""
    fold = TraceFold(clock)
    for event in events:
        fold.take(event)
    return fold.trace()
