"""Trace context of runs: which span an event opens, its ids and parent, and the W3C header that carries them.

Ids follow from the log alone, so a run that goes on in another process goes on in the same trace, and a past
run gives the same spans whenever it is exported. `RunTracer` is fed every event of a run in order; what it
gives for an event that opens a span is stored in its envelope. Nothing here does I/O, reads a clock or draws
a random number, and nothing here needs OpenTelemetry.

| span | opened by | key | parent |
|---|---|---|---|
| run | `workflow.started` | `run` | the submitter's span, if `options.traceparent` names one |
| superstep | `superstep.started` | `superstep N` | run |
| step | `workflow.step_started` | `step ACTIVATION ATTEMPT` | superstep, enclosing step, or run |
| iteration | the same, of an item | `step ACTIVATION[I] ATTEMPT` | its step |
| agent | `agent.initialized` | `agent CONTEXT`, a context is one attempt | its step or iteration |
| model call | `model.call_started` | `model CALL`, an id is one attempt | the agent, else the step |
| tool call | `tool.call_started` | `tool CALL ATTEMPT` | the agent, else the step |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, NamedTuple

from agentflow.events import catalogue as ev
from agentflow.events.envelope import Trace
from agentflow.host_tracing import attach_span, detach_span, has_host_tracing, host_trace_options

__all__ = [
    "RunTracer",
    "SpanContext",
    "TraceParent",
    "active",
    "baggage_problem",
    "current",
    "outgoing_headers",
    "parse_traceparent",
    "span_id_of",
    "submitter_options",
    "trace_id_of",
    "traceparent_of",
    "tracestate_problem",
    "work_in",
]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_TRACESTATE_MEMBER = re.compile(r"[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,256}")
_LONGEST_TRACESTATE = 512
_LONGEST_BAGGAGE = 8_192
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class TraceParent(NamedTuple):
    """A W3C `traceparent`: lower-case hex ids, and whether its sender records the trace."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(text: object) -> TraceParent | None:
    """Return the value of a `traceparent` header, or None if it is none (W3C Trace Context, level 1).

    A version that is not known yet is read by its first four fields, as the standard asks.
    """
    match = _TRACEPARENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1))


def traceparent_of(options: Mapping[str, Any]) -> TraceParent | None:
    """Return what the options of `workflow.started` hold of their submitter's trace."""
    return parse_traceparent(options.get("traceparent"))


def tracestate_problem(value: object) -> str | None:
    """Return why a value is not what stands in a W3C `tracestate` header, or None. Its members belong to
    others and are handed on as they are."""
    if isinstance(value, str) and len(value) > _LONGEST_TRACESTATE:
        return f"is longer than {_LONGEST_TRACESTATE} characters"
    members = value.split(",") if isinstance(value, str) else [""]
    good = all(_TRACESTATE_MEMBER.fullmatch(member.strip(" \t")) for member in members)
    return None if good else "is not a W3C tracestate"


def trace_id_of(workflow_id: str) -> str:
    """Return the trace of a run that was submitted without one: 32 hex digits."""
    return blake2b(workflow_id.encode(), person=b"agentflow trace").hexdigest()[:32]


def span_id_of(workflow_id: str, key: str) -> str:
    """Return the id of the span with this key (see the module): 16 hex digits."""
    # The unit separator stands in no id and in no key.
    return blake2b(f"{workflow_id}\x1f{key}".encode(), digest_size=8).hexdigest()


class SpanContext:
    """A span that work is done in; what the messages of a run's actors carry. Immutable."""

    __slots__ = ("_fields",)

    def __init__(
        self,
        workflow_id: str,
        trace_id: str,
        span_id: str,
        sampled: bool = True,
        tracestate: str | None = None,
        baggage: str | None = None,
    ) -> None:
        self._fields: tuple[str, str, str, bool, str | None, str | None] | None
        self._fields = (workflow_id, trace_id, span_id, sampled, tracestate, baggage)

    def _look_up(self) -> tuple[str, str, str, bool, str | None, str | None]:
        assert self._fields is not None
        return self._fields

    @property
    def workflow_id(self) -> str:
        """The run that the span belongs to."""
        return self._look_up()[0]

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return self._look_up()[1]

    @property
    def span_id(self) -> str:
        """16 hex digits."""
        return self._look_up()[2]

    @property
    def sampled(self) -> bool:
        """False if the submitter of the run does not record its trace."""
        return self._look_up()[3]

    @property
    def tracestate(self) -> str | None:
        """What the submitter's header of this name held."""
        return self._look_up()[4]

    @property
    def baggage(self) -> str | None:
        """What the submitter's header of this name held."""
        return self._look_up()[5]

    @property
    def traceparent(self) -> str:
        """The header that makes what another service does a part of this span."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanContext) and self._look_up() == other._look_up()

    def __hash__(self) -> int:
        return hash(self._look_up())

    def __repr__(self) -> str:
        return f"SpanContext{self._look_up()!r}"


class _CallSpan(SpanContext):
    """The span of a call, looked up when it is first asked for: most functions never do."""

    __slots__ = ("_call_id", "_key", "_tracer")

    def __init__(self, tracer: RunTracer, call_id: str, key: str) -> None:
        self._fields = None
        self._tracer = tracer
        self._call_id = call_id
        self._key = key

    def _look_up(self) -> tuple[str, str, str, bool, str | None, str | None]:
        if self._fields is None:
            self._fields = self._tracer.fields_of_call(self._call_id, self._key)
        return self._fields


class _HandlerSpan(SpanContext):
    """The span of an open step, looked up when it is first asked for: most handlers never do."""

    __slots__ = ("_key", "_tracer")

    def __init__(self, tracer: RunTracer, key: str) -> None:
        self._fields = None
        self._tracer = tracer
        self._key = key

    def _look_up(self) -> tuple[str, str, str, bool, str | None, str | None]:
        if self._fields is None:
            self._fields = self._tracer.fields_of_step(self._key)
        return self._fields


_current: ContextVar[SpanContext | None] = ContextVar("agentflow.span", default=None)


def current() -> SpanContext | None:
    """Return the span that this code works in: that of the model or tool call which is being carried out."""
    return _current.get()


class active:  # noqa: N801 — a context manager; a class costs each call less than a generator
    """Work of this block, and of tasks and threads begun in it, is done in this span. So is what the
    application opens there with OpenTelemetry.

    `trace` is what the message in hand carries; anything but a SpanContext is no span.
    """

    __slots__ = ("_host", "_span", "_token")

    def __init__(self, trace: object) -> None:
        self._span = trace if isinstance(trace, SpanContext) else None

    def __enter__(self) -> None:
        span = self._span
        self._token = _current.set(span)
        self._host = None
        if span is not None and has_host_tracing():
            self._host = attach_span(span.trace_id, span.span_id, span.sampled, span.baggage)

    def __exit__(self, *_: object) -> None:
        detach_span(self._host)
        _current.reset(self._token)


def work_in(trace: object) -> None:
    """Do all that this task does from now on in this span, as `active` does for a block."""
    if isinstance(trace, SpanContext):
        _current.set(trace)
        if has_host_tracing():
            attach_span(trace.trace_id, trace.span_id, trace.sampled, trace.baggage)


def submitter_options() -> dict[str, str]:
    """Return the options that make a run which is submitted here a part of the trace around it: of the
    application's active span, or of the call of another run. Nothing where there is neither."""
    return host_trace_options() or outgoing_headers()


def baggage_problem(value: object) -> str | None:
    """Return why a value is not what stands in a W3C `baggage` header, or None."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        return "is not a W3C baggage"
    return f"is longer than {_LONGEST_BAGGAGE} characters" if len(value) > _LONGEST_BAGGAGE else None


def outgoing_headers() -> dict[str, str]:
    """Return the headers that an HTTP request made here should carry: `traceparent`, and the `tracestate`
    that came with the run; none outside of a run."""
    context = _current.get()
    if context is None:
        return {}
    headers = {"traceparent": context.traceparent}
    if context.tracestate is not None:
        headers["tracestate"] = context.tracestate
    return headers


class _Span:
    """A span that an event opens. Its id is hashed when it is first asked for: most are never looked at."""

    __slots__ = ("_id", "_key", "_parent", "_trace_id", "_workflow_id")

    def __init__(self, trace_id: str, workflow_id: str, key: str, parent: _Span | None) -> None:
        self._trace_id = trace_id
        self._workflow_id = workflow_id
        self._key = key
        self._parent = parent
        self._id: str | None = None

    @property
    def id(self) -> str:
        """16 hex digits."""
        found = self._id
        if found is None:
            found = self._id = span_id_of(self._workflow_id, self._key)
        return found

    def trace(self) -> Trace:
        """Return the span as an envelope has it."""
        parent = None if self._parent is None else self._parent.id
        return Trace(trace_id=self._trace_id, span_id=self.id, parent_span_id=parent)


class _Given(_Span):
    """A span whose ids are known, of the run itself."""

    __slots__ = ("_parent_id",)

    def __init__(self, trace_id: str, span_id: str, parent_id: str | None) -> None:
        self._trace_id = trace_id
        self._id = span_id
        self._parent_id = parent_id

    def trace(self) -> Trace:
        """Return the span as an envelope has it."""
        return Trace(trace_id=self._trace_id, span_id=self.id, parent_span_id=self._parent_id)


class TakenBatch:
    """Events that a tracer has taken; `spans` follows them."""

    __slots__ = ("_tracer", "events", "found")

    def __init__(self, tracer: RunTracer, events: Sequence[ev.RunEvent]) -> None:
        self._tracer = tracer
        self.events = events
        self.found: list[_Span | None] | None = None

    def spans(self) -> list[_Span | None]:
        """Return the span that each event opens, to be asked for its `trace()`."""
        if self.found is None:
            self._tracer._catch_up()
            assert self.found is not None
        return self.found


class RunTracer:
    """Follows one run. Holds the ids of its open steps, agents and calls, and nothing of what they did."""

    __slots__ = (
        "_agents",
        "_batches",
        "_behind",
        "_calls",
        "_root",
        "_steps",
        "_superstep",
        "_tries",
        "baggage",
        "parent",
        "trace_id",
        "tracestate",
        "workflow_id",
    )

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        self.trace_id = trace_id_of(workflow_id)
        self.parent: TraceParent | None = None
        """Span of the submitter of the run, if it named one."""
        self.tracestate: str | None = None
        self.baggage: str | None = None
        self._root = _Span(self.trace_id, workflow_id, "run", None)
        self._superstep: tuple[int, _Span] | None = None
        self._steps: dict[str, _Span] = {}  # by unit: an activation, or an iteration of it
        self._agents: dict[str, _Span] = {}  # by unit
        self._calls: dict[str, _Span] = {}
        self._tries: dict[str, int] = {}  # failed attempts of a tool call, where there were any
        self._batches: dict[int, TakenBatch] = {}  # by first offset, until they are acknowledged
        self._behind: list[TakenBatch] = []  # events that are followed once a span is asked for

    @property
    def sampled(self) -> bool:
        """False if the submitter of the run does not record its trace."""
        return self.parent is None or self.parent.sampled

    @property
    def root(self) -> SpanContext:
        """The span of the run as a whole."""
        return SpanContext(*self._fields_of(self._root))

    def call(self, call_id: str, key: str = "run") -> SpanContext:
        """Return the span of an open model or tool call. It is looked up when it is first asked for: a call
        that has ended then has the span with this key."""
        return _CallSpan(self, call_id, key)

    def fields_of_call(self, call_id: str, key: str) -> tuple[str, str, str, bool, str | None, str | None]:
        """Return the fields of the span of a call; of the one with this key if the call is not open."""
        self._catch_up()
        span = self._calls.get(call_id)
        span_id = span_id_of(self.workflow_id, key) if span is None else span.id
        return (self.workflow_id, self.trace_id, span_id, self.sampled, self.tracestate, self.baggage)

    def handler(self, key: str) -> SpanContext:
        """Return the span of an open step, in which its handler works. It is looked up when it is first asked
        for, and is that of the run if the step is not open then."""
        return _HandlerSpan(self, key)

    def fields_of_step(self, key: str) -> tuple[str, str, str, bool, str | None, str | None]:
        """Return the fields of the span of a step; of the run's if the step is not open."""
        self._catch_up()
        return self._fields_of(self._steps.get(key, self._root))

    def _fields_of(self, span: _Span) -> tuple[str, str, str, bool, str | None, str | None]:
        return (self.workflow_id, self.trace_id, span.id, self.sampled, self.tracestate, self.baggage)

    def step(self, key: str) -> str | None:
        """Return the `traceparent` of an open step or iteration: what it begins elsewhere is a part of it."""
        self._catch_up()
        span = self._steps.get(key)
        return None if span is None else str(TraceParent(self.trace_id, span.id, self.sampled))

    def take(self, data: ev.RunEvent) -> Trace | None:
        """Take the run's next event; the span that it opens, or None."""
        if self._behind:
            self._catch_up()
        move = _MOVES.get(data.__class__)
        span = None if move is None else move(self, data)
        return None if span is None else span.trace()

    def take_batch(self, first: int, events: Sequence[ev.RunEvent]) -> TakenBatch:
        """Take the run's next events, which stand from offset `first` on; what is returned knows the span
        that each opens. They are followed when a span is first asked for, so they must not change.

        A batch that is sent to the log again gets the spans that it had, until it is acknowledged.
        """
        found = self._batches.get(first)
        if found is None:
            found = self._batches[first] = TakenBatch(self, events)
            self._behind.append(found)
        return found

    def _catch_up(self) -> None:
        """Follow the batches that were taken and not looked at."""
        behind, self._behind = self._behind, []
        for taken in behind:
            events, taken.events = taken.events, ()
            moves = [(_MOVES.get(data.__class__), data) for data in events]
            taken.found = [None if move is None else move(self, data) for move, data in moves]

    def acknowledge(self, first: int) -> None:
        """Forget the spans of the batch at this offset: it is in the log."""
        self._batches.pop(first, None)

    def parent_of(self, data: ev.RunEvent) -> str:
        """Return the innermost open span that an event which opens none belongs to."""
        self._catch_up()
        return self._span_around(data).id

    def _span_around(self, data: ev.RunEvent) -> _Span:
        activation: Any = getattr(data, "activation", None)
        if not isinstance(activation, str):
            return self._root
        call_id: Any = getattr(data, "tool_call_id", None) or getattr(data, "model_call_id", None)
        if call_id in self._calls:
            return self._calls[call_id]
        unit = _unit(data)
        return self._agents.get(unit) or self._steps.get(unit) or self._steps.get(activation) or self._root

    def tries(self, call_id: str) -> int:
        """Return how many attempts of a tool call have failed."""
        self._catch_up()
        return self._tries.get(call_id, 0)

    def lost(self, key: str, data: ev.RunEvent) -> Trace:
        """Return the span with this key, whose beginning is not in the log any more, as far as it can be
        known."""
        self._catch_up()
        return self._open(key, self._span_around(data)).trace()

    def _open(self, key: str, parent: _Span) -> _Span:
        return _Span(self.trace_id, self.workflow_id, key, parent)

    def _run_started(self, data: ev.WorkflowStarted) -> _Span:
        given = traceparent_of(data.options)
        self.baggage = data.options.get("baggage")
        if given is not None:
            self.trace_id, self.parent = given.trace_id, given
            self.tracestate = data.options.get("tracestate")
            self._root = _Given(self.trace_id, self._root.id, given.span_id)
        return self._root

    def _superstep_started(self, data: ev.SuperstepStarted) -> _Span:
        span = self._open(f"superstep {data.superstep}", self._root)
        self._superstep = (data.superstep, span)
        return span

    def _superstep_completed(self, data: ev.SuperstepCompleted) -> None:
        self._superstep = None

    def _step_started(self, data: ev.WorkflowStepStarted) -> _Span:
        if data.iteration is None:
            unit, parent = data.activation, None
        else:
            unit = f"{data.activation}[{data.iteration}]"
            parent = self._steps.get(data.activation)
        if parent is None:
            parent = self._root if not data.path and self._superstep is None else self._around(data)
        span = self._open(f"step {unit} {data.attempt}", parent)
        self._steps[unit] = span
        return span

    def _around(self, data: ev.WorkflowStepStarted) -> _Span:
        steps = self._steps
        if data.path:  # a child path: inside the activation that it begins with
            outer = data.activation
            while outer:
                outer = outer.rpartition("/")[0]
                if outer in steps:
                    return steps[outer]
        if self._superstep is not None and self._superstep[0] == data.superstep:
            return self._superstep[1]
        return self._root

    def _step_ended(self, data: ev.WorkflowStepEvent) -> None:
        unit = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
        self._steps.pop(unit, None)
        if self._agents:
            self._agents.pop(unit, None)

    def _step_retrying(self, data: ev.WorkflowStepRetrying) -> None:
        if data.kind != "restart":
            return
        unit = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
        if unit in self._steps:  # the next attempt is a span of its own, beside that of the last one
            self._steps[unit] = self._open(f"step {unit} {data.next_attempt}", self._root)

    def _agent_initialized(self, data: ev.AgentInitialized) -> _Span:
        unit = _unit(data)
        span = self._open(f"agent {data.context_id}", self._steps.get(unit, self._root))
        self._agents[unit] = span
        return span

    def _agent_ended(self, data: ev.AgentEvent) -> None:
        self._agents.pop(_unit(data), None)

    def _agent_retrying(self, data: ev.AgentRetrying) -> None:
        if data.kind == "restart":  # the attempt is over; the next one is a new context
            self._agents.pop(_unit(data), None)

    def _inside(self, data: ev.StepEvent) -> _Span:
        unit = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
        return self._agents.get(unit) or self._steps.get(unit) or self._root

    def _model_started(self, data: ev.ModelCallStarted) -> _Span:
        span = self._open(f"model {data.model_call_id}", self._inside(data))
        self._calls[data.model_call_id] = span
        return span

    def _model_ended(self, data: ev.ModelEvent) -> None:
        self._calls.pop(data.model_call_id, None)

    def _tool_started(self, data: ev.ToolCallStarted) -> _Span:
        call_id = data.tool_call_id
        attempt = self._tries.get(call_id, 0) + 1 if self._tries else 1
        span = self._open(f"tool {call_id} {attempt}", self._inside(data))
        self._calls[call_id] = span
        return span

    def _tool_completed(self, data: ev.ToolCallCompleted) -> None:
        self._calls.pop(data.tool_call_id, None)

    def _tool_failed(self, data: ev.ToolCallFailed) -> None:
        call_id = data.tool_call_id
        self._calls.pop(call_id, None)
        self._tries[call_id] = self._tries.get(call_id, 0) + 1


def _unit(data: Any) -> str:
    iteration: int | None = data.iteration
    return data.activation if iteration is None else f"{data.activation}[{iteration}]"


_Move = Callable[[RunTracer, Any], _Span | None]

# pyright: reportPrivateUsage=false
_MOVES: dict[type, _Move] = {
    ev.WorkflowStarted: RunTracer._run_started,
    ev.SuperstepStarted: RunTracer._superstep_started,
    ev.SuperstepCompleted: RunTracer._superstep_completed,
    ev.WorkflowStepStarted: RunTracer._step_started,
    ev.WorkflowStepCompleted: RunTracer._step_ended,
    ev.WorkflowStepFailed: RunTracer._step_ended,
    ev.WorkflowStepRetrying: RunTracer._step_retrying,
    ev.AgentInitialized: RunTracer._agent_initialized,
    ev.AgentCompleted: RunTracer._agent_ended,
    ev.AgentFailed: RunTracer._agent_ended,
    ev.AgentRetrying: RunTracer._agent_retrying,
    ev.ModelCallStarted: RunTracer._model_started,
    ev.ModelCallCompleted: RunTracer._model_ended,
    ev.ModelCallFailed: RunTracer._model_ended,
    ev.ToolCallStarted: RunTracer._tool_started,
    ev.ToolCallCompleted: RunTracer._tool_completed,
    ev.ToolCallFailed: RunTracer._tool_failed,
}
"""What each type of event changes; all others change nothing, so that most events cost one look-up."""
