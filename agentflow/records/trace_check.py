"""Structural checks of a trace: nothing is executed (page 003 §8).

A trace is right if its events are numbered without gap, each node that is left was entered, and one
terminal event ends it and agrees with what came before. With the definition, nodes exist and are entered only
after one that leads to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.definition.ir import Workflow
from agentflow.definition.kinds import kind_of, targets_of
from agentflow.definition.type_errors import undecodable
from agentflow.errors import AgentflowError
from agentflow.records.trace import TraceEvent, WorkflowTrace

__all__ = [
    "ReplayError",
    "ReplayReport",
    "ReplayViolation",
    "TraceInspection",
    "check_trace",
    "inspect_replay_trace",
    "replay_trace",
]


class ReplayViolation(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that a trace breaks. `event_index` is the place in `events`, null for the whole."""

    code: str
    message: str
    event_index: int | None


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a valid trace holds."""

    total_events: int
    terminal_status: str


class TraceInspection(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace holds, valid or not. `terminal_status` is null if it has none."""

    valid: bool
    total_events: int
    terminal_status: str | None
    violations: tuple[ReplayViolation, ...]


class ReplayError(AgentflowError):
    """A trace breaks rules of structure; `.violations` has each of them, in the order of events."""

    code = "trace_invalid"

    def __init__(self, violations: tuple[ReplayViolation, ...]) -> None:
        self.violations = violations
        super().__init__("\n".join(f"{v.code}: {v.message}" for v in violations))


def replay_trace(
    trace: WorkflowTrace | Mapping[str, Any] | str | bytes, definition: Any = None
) -> ReplayReport:
    """Check a trace and return what it holds; with the definition of its run also its nodes and ways.

    `trace` may be the Struct, its JSON or the decoded JSON; `definition` a graph, or a Definition. Executes
    nothing. Raises ReplayError with every violation.
    """
    found = _inspect(trace, definition)
    if found.violations:
        raise ReplayError(found.violations)
    assert found.terminal_status is not None
    return ReplayReport(total_events=found.total_events, terminal_status=found.terminal_status)


def inspect_replay_trace(
    trace: WorkflowTrace | Mapping[str, Any] | str | bytes, definition: Any = None
) -> TraceInspection:
    """Return what a trace holds and what is wrong with it. Never raises, whatever `trace` is."""
    return _inspect(trace, definition)


def _inspect(trace: Any, definition: Any) -> TraceInspection:
    try:
        decoded = _decoded(trace)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        message = f"this is no trace: {undecodable(error, WorkflowTrace)}"
        violation = ReplayViolation(code="E_SCHEMA", message=message, event_index=None)
        return TraceInspection(valid=False, total_events=0, terminal_status=None, violations=(violation,))
    workflow = getattr(definition, "workflow", definition)
    violations = tuple(check_trace(decoded, workflow))
    status = next((e.status for e in decoded.events if e.event == "terminal"), UNSET)
    return TraceInspection(
        valid=not violations,
        total_events=len(decoded.events),
        terminal_status=None if status is UNSET else status,
        violations=violations,
    )


def _decoded(trace: Any) -> WorkflowTrace:
    if isinstance(trace, WorkflowTrace):
        return trace
    if isinstance(trace, str | bytes):
        return msgspec.json.decode(trace, type=WorkflowTrace)
    return msgspec.convert(trace, WorkflowTrace)


_Key = tuple[str, str, int]


def check_trace(trace: WorkflowTrace, workflow: Workflow | None = None) -> Iterator[ReplayViolation]:
    """Yield what is wrong with a trace, in the order of its events."""
    for name in ("trace_id", "workflow_name", "workflow_version"):
        if not getattr(trace.metadata, name).strip():
            yield _violation("E_EMPTY_METADATA", f"metadata.{name} is blank", None)
    yield from _Checker(trace, workflow).violations()


def _violation(code: str, message: str, index: int | None) -> ReplayViolation:
    return ReplayViolation(code=code, message=message, event_index=index)


class _Checker:
    def __init__(self, trace: WorkflowTrace, workflow: Workflow | None) -> None:
        self.trace = trace
        self.before = None if workflow is None else dict(_predecessors(workflow))
        self.brought = () if workflow is None else tuple(_brought(workflow))
        self.open: dict[_Key, int] = {}
        self.entered: set[str] = set()
        self.unhandled: dict[str, tuple[int, str]] = {}
        self.terminal: int | None = None

    def violations(self) -> Iterator[ReplayViolation]:
        expected, last_ms = 0, None
        for i, event in enumerate(self.trace.events):
            if event.seq != expected:
                message = f"event {i} has seq {event.seq}, {expected} was expected"
                yield _violation("E_NON_MONOTONIC_SEQUENCE", message, i)
            expected = event.seq + 1
            if last_ms is not None and event.timestamp_unix_ms < last_ms:
                message = f"event {i} is at {event.timestamp_unix_ms} ms, the one before at {last_ms} ms"
                yield _violation("E_TIMESTAMP_REGRESSION", message, i)
            last_ms = event.timestamp_unix_ms
            if event.event == "terminal":
                yield from self._end(i, event)
            elif self.terminal is not None:
                message = f"{event.event} of {_name(event)} comes after the terminal event {self.terminal}"
                yield _violation("E_EVENT_AFTER_TERMINAL", message, i)
            else:
                yield from self._node(i, event)
        if self.terminal is None:
            yield _violation("E_MISSING_TERMINAL_EVENT", "no terminal event ends the trace", None)

    def _node(self, i: int, event: TraceEvent) -> Iterator[ReplayViolation]:
        if not isinstance(event.node_id, str) or not event.node_id.strip():
            yield _violation("E_MISMATCHED_NODE_LIFECYCLE", f"{event.event} {i} names no node", i)
            return
        key = (event.path or "", event.node_id, event.visit or 0)
        if event.event == "node_enter":
            if key in self.open:
                message = f"{_name(event)} is entered again before it was left (entered by {self.open[key]})"
                yield _violation("E_MISMATCHED_NODE_LIFECYCLE", message, i)
            yield from self._way(i, event.node_id)
            self.open[key] = i
            self.entered.add(event.node_id)
            self.unhandled.pop(key[0], None)
            return
        if self.open.pop(key, None) is None:
            message = f"{event.event} of {_name(event)}, which was not entered"
            yield _violation("E_MISMATCHED_NODE_LIFECYCLE", message, i)
        if event.event == "node_error" and event.handled is not True:
            self.unhandled[key[0]] = (i, event.node_id)
        else:
            self.unhandled.pop(key[0], None)

    def _way(self, i: int, node_id: str) -> Iterator[ReplayViolation]:
        if self.before is None:
            return
        before = self.before.get(node_id)
        if before is None and node_id.startswith(self.brought):
            return  # of a graph that became known in the run
        if before is None:
            yield _violation("E_UNKNOWN_NODE", f'the definition has no node "{node_id}"', i)
        elif before and self.trace.metadata.forked is not True and self.entered.isdisjoint(before):
            message = f'"{node_id}" is entered, but none of {", ".join(sorted(before))} before it'
            yield _violation("E_ILLEGAL_TRANSITION", message, i)

    def _end(self, i: int, event: TraceEvent) -> Iterator[ReplayViolation]:
        if self.terminal is not None:
            message = f"a second terminal event: the first is {self.terminal}"
            yield _violation("E_MULTIPLE_TERMINAL_EVENTS", message, i)
            return
        self.terminal = i
        for (path, node_id, visit), entered in self.open.items():
            message = f"{_said(node_id, path, visit)}, entered by event {entered}, was never left"
            yield _violation("E_UNCLOSED_NODE_LIFECYCLE", message, i)
        if event.status is UNSET:
            yield _violation("E_TERMINAL_STATUS_MISMATCH", "the terminal event has no status", i)
        elif event.status == "completed":
            for path, (at, node_id) in self.unhandled.items():
                message = f"completed, but {_said(node_id, path, 0)} failed (event {at}) and nothing followed"
                yield _violation("E_TERMINAL_STATUS_MISMATCH", message, i)


def _name(event: TraceEvent) -> str:
    return _said(event.node_id or "", event.path or "", event.visit or 0)


def _said(node_id: str, path: str, visit: int) -> str:
    place = f" on path {path}" if path else ""
    return f'"{node_id}"{place}' + (f", visit {visit}" if visit > 1 else "")


def _brought(workflow: Workflow, prefix: str = "") -> Iterator[str]:
    """Yield how the ids of nodes begin whose graph becomes known in the run."""
    for node in workflow.nodes:
        kind, name = kind_of(node), f"{prefix}{node.id}/"
        inner = kind.inner(node)
        if kind.brings_graph(node):
            yield name
        elif inner is not None:
            yield from _brought(inner, name)


def _predecessors(
    workflow: Workflow, prefix: str = "", entry: frozenset[str] = frozenset()
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each node with those of which one must have been entered before it; none: it may begin.

    Starts that a front end added leave no trace: what they lead to begins.
    """
    before: dict[str, set[str]] = {node.id: set() for node in workflow.nodes}
    begins = {node.id for node in workflow.nodes if node.depends_on}  # what these wait for may be skipped
    for node in workflow.nodes:
        for _, target in targets_of(node):
            before.setdefault(target, set()).add(node.id)
        if kind_of(node).is_start and node.id.startswith("__"):
            begins |= {target for _, target in targets_of(node)}
    for edge in workflow.edges:
        before.setdefault(edge.target, set()).add(edge.source)
        if edge.source.startswith("__"):
            begins.add(edge.target)
    for node in workflow.nodes:
        known = {prefix + other for other in before[node.id]}
        free = node.id in begins or not known
        yield prefix + node.id, (entry if free else frozenset(known))
        inner = kind_of(node).inner(node)
        if inner is not None:
            name = prefix + node.id
            yield from _predecessors(inner, f"{name}/", frozenset({name}))
