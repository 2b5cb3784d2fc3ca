"""The spans of one run: which are open, and the life of each from its beginning to its end.

`RunSpans` is fed the stored events of one run in order and gives back the spans that each of them ended.
It holds open spans only; if it is lost, the log is fed again from its beginning. Events of unknown types are
passed over, and a log whose front was trimmed gives what can still be known.
"""

from __future__ import annotations

from typing import Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.run_telemetry import Telemetry
from agentflow.events import catalogue as ev
from agentflow.events.envelope import SCHEMA_VERSION, Event, StoredEvent, Trace, decode
from agentflow.events.tracing import RunTracer, SpanContext, TraceParent
from agentflow.telemetry import conventions as c
from agentflow.telemetry.facts import NO_FACTS, Describe, Facts
from agentflow.telemetry.projection.agents import OpenAgent
from agentflow.telemetry.projection.moves import MOVES
from agentflow.telemetry.projection.notes import NOTES, note_attributes
from agentflow.telemetry.projection.scope import scope_of, unit_of
from agentflow.telemetry.projection.steps import Sender
from agentflow.telemetry.sampling import is_in_sample
from agentflow.telemetry.span import Limits, Relation, Span, bounded, cut

__all__ = ["RunSpans"]

_MESSAGE_LENGTH = 1_024

# The messages of these quote what models and users wrote: content, which is recorded only on demand.
_QUOTING = frozenset({"invalid_input", "invalid_output", "expression", "tool", "agent"})


class RunSpans:
    """The spans of one run. `take` every event, from offset 0 on (or from the first one that is left)."""

    __slots__ = (
        "agents",
        "calls",
        "capture",
        "describe",
        "done",
        "edge_kinds",
        "facts",
        "failed_tools",
        "input_type",
        "last_agents",
        "last_models",
        "last_steps",
        "limits",
        "next_offset",
        "origin",
        "root",
        "schema_version",
        "senders",
        "shows_tools",
        "steps",
        "superstep",
        "tracer",
        "wanted",
        "workflow_id",
    )

    def __init__(
        self,
        workflow_id: str,
        limits: Limits,
        *,
        capture: bool = False,
        origin: SpanContext | None = None,
        facts: Facts = NO_FACTS,
        describe: Describe | None = None,
    ) -> None:
        self.facts = facts
        self.describe = describe
        self.workflow_id = workflow_id
        self.next_offset = 0
        self.schema_version = SCHEMA_VERSION
        self.origin = origin
        """The root span of the run that this one was forked from."""
        self.limits = limits
        self.capture = capture
        self.shows_tools = capture
        self.wanted: Telemetry | None = None
        self.tracer = RunTracer(workflow_id)
        self.done: list[Span] = []
        self.root: Span | None = None
        self.superstep: Span | None = None
        self.steps: dict[str, Span] = {}  # by unit: an activation, or an iteration of it
        self.agents: dict[str, OpenAgent] = {}  # by unit
        self.calls: dict[str, Span] = {}
        # What the next one links to, by unit, tool call, or step:
        self.last_agents: dict[str, Relation] = {}
        self.last_models: dict[str, Relation] = {}
        self.failed_tools: dict[str, Relation] = {}
        self.last_steps: dict[str, tuple[str, Relation]] = {}
        self.input_type: str | None = None
        self.edge_kinds: dict[str, str] | None = None  # by edge; None: no spans of edges
        self.senders: dict[str, Sender] = {}  # by activation, while messages of it are on their way

    @property
    def parent(self) -> TraceParent | None:
        """Span of the submitter of the run, if it named one."""
        return self.tracer.parent

    @property
    def trace_id(self) -> str:
        """The trace of the run, as far as it is known."""
        return self.tracer.trace_id

    @property
    def is_wanted(self) -> bool:
        """False if the options of the run keep its spans from being exported."""
        wanted = self.wanted
        if wanted is None or not wanted.enabled:
            return wanted is None
        return wanted.sample_rate is None or is_in_sample(self.trace_id, wanted.sample_rate)

    @property
    def open(self) -> int:
        """How many spans have not ended."""
        inner = len(self.steps) + len(self.agents) + len(self.calls)
        return inner + (self.root is not None) + (self.superstep is not None)

    def take(self, stored: StoredEvent) -> list[Span]:
        """Take the next event; the spans that it ended, inner ones first. LogCorrupt if it is no event."""
        event = decode(stored.body, schema_version=self.schema_version)
        return self.fold(event, stored.ts)

    def fold(self, event: Event[Any], ts: int) -> list[Span]:
        """Fold an event that is decoded already; `ts` in µs."""
        data, ts = event.data, max(0, ts)
        self.next_offset = event.offset + 1
        if event.trace is not None:
            self.tracer.trace_id = event.trace.trace_id
        parent = self.tracer.parent_of(data) if data.__class__ in NOTES else None
        trace = self.tracer.take(data)
        if trace is not None and event.trace is not None:
            trace = event.trace  # what was stored holds, also if a later release derives other ids
        if self.root is None and event.offset > 0:
            self.trimmed(ts)
        move = MOVES.get(data.__class__)
        if move is not None:
            move(self, data, ts, event.offset, trace)
        if parent is not None and not ends_attempt(data):
            self.note(data, ts, event.offset, parent)
        if not self.done:
            return _NONE
        done, self.done = self.done, []
        return done

    # -- the life of a span -----------------------------------------------------------------------

    def begin(
        self, name: str, trace: Trace | None, ts: int, offset: int, attributes: dict[str, Any], **more: Any
    ) -> Span:
        assert trace is not None
        span = Span(
            cut(name, self.limits.value), trace.trace_id, trace.span_id, trace.parent_span_id, ts, **more
        )
        attributes[c.WORKFLOW_ID] = self.workflow_id
        attributes[c.OFFSET] = offset
        span.attributes = bounded(attributes, self.limits)
        return span

    def finish(self, span: Span, ts: int, attributes: dict[str, Any], duration_ms: int | None = None) -> None:
        span.attributes.update(bounded(attributes, self.limits))
        span.close(ts, duration_ms)
        self.done.append(span)

    def narrow(self, wanted: Telemetry | None) -> None:
        """Leave out what the options of the run say; nothing more is recorded than this process records."""
        self.wanted = wanted
        if wanted is not None:
            self.capture = self.capture and wanted.payload_mode != "redacted_payload"
            self.shows_tools = self.capture and wanted.tool_trace_mode in (None, "full")

    def fail(self, span: Span, error: ErrorInfo) -> None:
        span.attributes[c.ERROR_TYPE] = cut(error.code, self.limits.value)
        span.attributes[c.ERROR_CATEGORY] = error.category
        quotes = error.category in _QUOTING and not self.capture
        message = error.code if quotes else f"{error.code}: {error.message}"
        span.error = cut(message, min(_MESSAGE_LENGTH, self.limits.value))

    def lost(self, name: str, key: str, data: Any, ts: int, **more: Any) -> Span:
        """Return the span of work whose beginning is not in this log, which was trimmed or begins with a
        fork: it began as long ago as it took."""
        trace = self.tracer.lost(key, data)
        started = max(0, ts - 1000 * max(0, data.duration_ms))
        span = self.begin(name, trace, started, 0, scope_of(data), **more)
        del span.attributes[c.OFFSET]
        span.attributes[c.START_UNKNOWN] = True
        return span

    def trimmed(self, ts: int) -> None:
        root = self.tracer.root
        trace = Trace(trace_id=root.trace_id, span_id=root.span_id)
        attributes = {c.OPERATION: c.INVOKE_WORKFLOW, c.START_UNKNOWN: True}
        self.root = self.begin(c.INVOKE_WORKFLOW, trace, ts, 0, attributes)
        del self.root.attributes[c.OFFSET]

    def link(self, span: Span, relation: Relation | None, why: str) -> None:
        if relation is not None:
            span.relate(relation._replace(attributes={c.LINK: why}), self.limits)

    def end_inside(self, unit: str, ts: int) -> None:
        """End the span of the agent of a step that ended without a word on it."""
        agent = self.agents.pop(unit, None)
        if agent is not None:  # its step ended without a word on it
            self.finish(agent.span, ts, {c.UNFINISHED: True})

    # -- what happened inside a span --------------------------------------------------------------

    def note(self, data: Any, ts: int, offset: int, span_id: str) -> None:
        span = self.find(data, span_id)
        if span is not None and span.end is None:
            attributes = note_attributes(data)
            attributes[c.OFFSET] = offset
            span.note(NOTES[data.__class__][0], ts, attributes, self.limits)

    def find(self, data: Any, span_id: str) -> Span | None:
        """Return the open span of this id: of the event's call, agent or step, else the run's."""
        unit = unit_of(data) if hasattr(data, "iteration") and isinstance(data.activation, str) else ""
        agent = self.agents.get(unit)
        if agent is not None and agent.span.span_id == span_id:
            return agent.span
        for key in (unit, unit.partition("[")[0]):
            step = self.steps.get(key)
            if step is not None and step.span_id == span_id:
                return step
        return self.root


_NONE: list[Span] = []


def ends_attempt(data: Any) -> bool:
    """Return whether an event ends the span to which its note belongs, and so makes the note itself."""
    return isinstance(data, ev.WorkflowStepRetrying) and data.kind == "restart"
