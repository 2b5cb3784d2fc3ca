"""From the events of a run to its spans. Pure: the same log gives the same spans at any time.

`RunSpans` is fed the stored events of one run in order and gives back the spans that each of them ended.
It holds open spans only; if it is lost, the log is fed again from its beginning. Events of unknown types are
passed over, and a log whose front was trimmed gives what can still be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Message
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.run_telemetry import Telemetry, telemetry_of
from agentflow.events import catalogue as ev
from agentflow.events.envelope import SCHEMA_VERSION, Event, StoredEvent, Trace, decode
from agentflow.events.tracing import RunTracer, SpanContext, TraceParent, span_id_of
from agentflow.logs import get_logger
from agentflow.telemetry import content
from agentflow.telemetry import conventions as c
from agentflow.telemetry.notes import NOTES, note_attributes
from agentflow.telemetry.sampling import is_in_sample
from agentflow.telemetry.span import Limits, Relation, Span, bounded, cut

__all__ = ["RunSpans", "project", "take_or_skip"]

_log = get_logger("agentflow.telemetry")

_MESSAGE_LENGTH = 1_024
_TAKEN = ("delivered", "buffered")
_KEY = 128  # characters of a label or tag that make a name

# The messages of these quote what models and users wrote: content, which is recorded only on demand.
_QUOTING = frozenset({"invalid_input", "invalid_output", "expression", "tool", "agent"})


class _Sender(NamedTuple):
    """The span of an activation, how many of its messages are on their way, and their types by index."""

    relation: Relation
    left: int
    types: dict[int, str]


class _Agent:
    """An open agent: its span and, when content is captured, its conversation so far."""

    __slots__ = ("said", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.said: list[Message] = []


class RunSpans:
    """The spans of one run. `take` every event, from offset 0 on (or from the first one that is left)."""

    __slots__ = (
        "_agents",
        "_calls",
        "_capture",
        "_done",
        "_edge_kinds",
        "_failed_tools",
        "_input_type",
        "_last_agents",
        "_last_models",
        "_last_steps",
        "_limits",
        "_root",
        "_senders",
        "_shows_tools",
        "_steps",
        "_superstep",
        "_tracer",
        "_wanted",
        "next_offset",
        "origin",
        "schema_version",
        "workflow_id",
    )

    def __init__(
        self, workflow_id: str, limits: Limits, *, capture: bool = False, origin: SpanContext | None = None
    ) -> None:
        self.workflow_id = workflow_id
        self.next_offset = 0
        self.schema_version = SCHEMA_VERSION
        self.origin = origin
        """The root span of the run that this one was forked from."""
        self._limits = limits
        self._capture = capture
        self._shows_tools = capture
        self._wanted: Telemetry | None = None
        self._tracer = RunTracer(workflow_id)
        self._done: list[Span] = []
        self._root: Span | None = None
        self._superstep: Span | None = None
        self._steps: dict[str, Span] = {}  # by unit: an activation, or an iteration of it
        self._agents: dict[str, _Agent] = {}  # by unit
        self._calls: dict[str, Span] = {}
        # What the next one links to, by unit, tool call, or step:
        self._last_agents: dict[str, Relation] = {}
        self._last_models: dict[str, Relation] = {}
        self._failed_tools: dict[str, Relation] = {}
        self._last_steps: dict[str, tuple[str, Relation]] = {}
        self._input_type: str | None = None
        self._edge_kinds: dict[str, str] | None = None  # by edge; None: no spans of edges
        self._senders: dict[str, _Sender] = {}  # by activation, while messages of it are on their way

    @property
    def parent(self) -> TraceParent | None:
        """Span of the submitter of the run, if it named one."""
        return self._tracer.parent

    @property
    def trace_id(self) -> str:
        """The trace of the run, as far as it is known."""
        return self._tracer.trace_id

    @property
    def is_wanted(self) -> bool:
        """False if the options of the run keep its spans from being exported."""
        wanted = self._wanted
        if wanted is None or not wanted.enabled:
            return wanted is None
        return wanted.sample_rate is None or is_in_sample(self.trace_id, wanted.sample_rate)

    @property
    def open(self) -> int:
        """How many spans have not ended."""
        inner = len(self._steps) + len(self._agents) + len(self._calls)
        return inner + (self._root is not None) + (self._superstep is not None)

    def take(self, stored: StoredEvent) -> list[Span]:
        """Take the next event; the spans that it ended, inner ones first. LogCorrupt if it is no event."""
        event = decode(stored.body, schema_version=self.schema_version)
        return self.fold(event, stored.ts)

    def fold(self, event: Event[Any], ts: int) -> list[Span]:
        """Fold an event that is decoded already; `ts` in µs."""
        data, ts = event.data, max(0, ts)
        self.next_offset = event.offset + 1
        if event.trace is not None:
            self._tracer.trace_id = event.trace.trace_id
        parent = self._tracer.parent_of(data) if data.__class__ in NOTES else None
        trace = self._tracer.take(data)
        if trace is not None and event.trace is not None:
            trace = event.trace  # what was stored holds, also if a later release derives other ids
        if self._root is None and event.offset > 0:
            self._trimmed(ts)
        move = _MOVES.get(data.__class__)
        if move is not None:
            move(self, data, ts, event.offset, trace)
        if parent is not None and not _ends_attempt(data):
            self._note(data, ts, event.offset, parent)
        if not self._done:
            return _NONE
        done, self._done = self._done, []
        return done

    # -- the life of a span -----------------------------------------------------------------------

    def _begin(
        self, name: str, trace: Trace | None, ts: int, offset: int, attributes: dict[str, Any], **more: Any
    ) -> Span:
        assert trace is not None
        span = Span(
            cut(name, self._limits.value), trace.trace_id, trace.span_id, trace.parent_span_id, ts, **more
        )
        attributes[c.WORKFLOW_ID] = self.workflow_id
        attributes[c.OFFSET] = offset
        span.attributes = bounded(attributes, self._limits)
        return span

    def _finish(
        self, span: Span, ts: int, attributes: dict[str, Any], duration_ms: int | None = None
    ) -> None:
        span.attributes.update(bounded(attributes, self._limits))
        span.close(ts, duration_ms)
        self._done.append(span)

    def _narrow(self, wanted: Telemetry | None) -> None:
        """Leave out what the options of the run say; nothing more is recorded than this process records."""
        self._wanted = wanted
        if wanted is not None:
            self._capture = self._capture and wanted.payload_mode != "redacted_payload"
            self._shows_tools = self._capture and wanted.tool_trace_mode in (None, "full")

    def _fail(self, span: Span, error: ErrorInfo) -> None:
        span.attributes[c.ERROR_TYPE] = cut(error.code, self._limits.value)
        span.attributes[c.ERROR_CATEGORY] = error.category
        quotes = error.category in _QUOTING and not self._capture
        message = error.code if quotes else f"{error.code}: {error.message}"
        span.error = cut(message, min(_MESSAGE_LENGTH, self._limits.value))

    def _lost(self, name: str, key: str, data: Any, ts: int, **more: Any) -> Span:
        """Return the span of work whose beginning is not in this log, which was trimmed or begins with a
        fork: it began as long ago as it took."""
        trace = self._tracer.lost(key, data)
        started = max(0, ts - 1000 * max(0, data.duration_ms))
        span = self._begin(name, trace, started, 0, _scope(data), **more)
        del span.attributes[c.OFFSET]
        span.attributes[c.START_UNKNOWN] = True
        return span

    def _trimmed(self, ts: int) -> None:
        root = self._tracer.root
        trace = Trace(trace_id=root.trace_id, span_id=root.span_id)
        attributes = {c.OPERATION: c.INVOKE_WORKFLOW, c.START_UNKNOWN: True}
        self._root = self._begin(c.INVOKE_WORKFLOW, trace, ts, 0, attributes)
        del self._root.attributes[c.OFFSET]

    def _link(self, span: Span, relation: Relation | None, why: str) -> None:
        if relation is not None:
            span.relate(relation._replace(attributes={c.LINK: why}), self._limits)

    # -- runs and supersteps ----------------------------------------------------------------------

    def _run_started(self, data: ev.WorkflowStarted, ts: int, offset: int, trace: Trace | None) -> None:
        self.schema_version = data.schema_version
        input_type = data.options.get("input_type")
        self._input_type = input_type if isinstance(input_type, str) else None
        self._narrow(telemetry_of(data.options))
        definition = data.definition
        if self._wanted is not None and self._wanted.edge_spans:
            self._edge_kinds = _edge_kinds(data)
        name = definition.name or definition.id
        attributes: dict[str, Any] = {
            c.OPERATION: c.INVOKE_WORKFLOW,
            c.WORKFLOW_NAME: name,
            c.DEFINITION: definition.id,
            c.FORMAT: definition.format,
            c.DEFINITION_HASH: definition.hash,
            **{f"{c.LABEL}{key[:_KEY]}": value for key, value in data.labels.items()},
        }
        if definition.version is not None:
            attributes[c.VERSION] = definition.version
        if data.parent is not UNSET:
            attributes[c.PARENT_RUN] = f"{data.parent.workflow_id}@{data.parent.offset}"
        if data.replay_of is not UNSET:
            attributes[c.REPLAY_OF] = data.replay_of.workflow_id
        if data.forked_from is not UNSET:
            attributes[c.FORKED_FROM] = f"{data.forked_from.workflow_id}@{data.forked_from.offset}"
        if self._capture:
            attributes[c.INPUT] = content.text(data.input)
        root = self._begin(f"{c.INVOKE_WORKFLOW} {name}", trace, ts, offset, attributes)
        root.remote_parent = root.parent_id is not None
        if self.origin is not None:
            self._link(root, Relation(self.origin.trace_id, self.origin.span_id, {}), "fork")
        self._root = root

    def _run_ended(self, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
        """End all open spans with the run, innermost first; the log of an ended run ends here."""
        for span in (
            *self._calls.values(),
            *(agent.span for agent in self._agents.values()),
            *reversed(self._steps.values()),
            *([self._superstep] if self._superstep is not None else ()),
        ):
            self._finish(span, ts, {c.UNFINISHED: True})
        self._calls, self._agents, self._steps, self._superstep = {}, {}, {}, None
        root, self._root = self._root, None
        assert root is not None
        attributes = {c.STATE: data.EVENT_TYPE.partition(".")[2], **c.total_attributes(data.usage)}
        if isinstance(data, ev.WorkflowFailed):
            self._fail(root, data.error)
        elif isinstance(data, ev.WorkflowCancelled):
            root.attributes[c.ERROR_TYPE] = "cancelled"
            root.error = "cancelled"
        elif self._capture:
            attributes[c.OUTPUT] = content.text(data.output)
        self._finish(root, ts, attributes, data.duration_ms)

    def _superstep_started(
        self, data: ev.SuperstepStarted, ts: int, offset: int, trace: Trace | None
    ) -> None:
        attributes = {c.SUPERSTEP: data.superstep, c.ITEMS: len(data.activations)}
        self._superstep = self._begin(f"{c.SUPERSTEP_SPAN} {data.superstep}", trace, ts, offset, attributes)

    def _superstep_completed(
        self, data: ev.SuperstepCompleted, ts: int, offset: int, trace: Trace | None
    ) -> None:
        span, self._superstep = self._superstep, None
        if span is not None:
            self._finish(span, ts, {"agentflow.queued": data.queued})

    # -- steps ------------------------------------------------------------------------------------

    def _step_started(self, data: ev.WorkflowStepStarted, ts: int, offset: int, trace: Trace | None) -> None:
        attributes = _scope(data)
        attributes.update(
            {
                c.STEP_KIND: data.kind,
                c.ATTEMPT: data.attempt,
            }
        )
        if data.superstep is not UNSET:
            attributes[c.SUPERSTEP] = data.superstep
        if data.agent_name is not UNSET:
            attributes[c.AGENT_NAME] = data.agent_name
        if data.tags is not UNSET:
            attributes.update({f"{c.TAG}{key[:_KEY]}": _scalar(value) for key, value in data.tags.items()})
        if self._capture:
            attributes[c.INPUT] = content.text(data.input)
        span = self._begin(f"{c.PROCESS} {data.step_id}", trace, ts, offset, attributes)
        if data.iteration is None:
            span.attributes.update(bounded(self._join(span, data), self._limits))
        unit = _unit(data)
        before = self._steps.get(unit)
        if before is not None and before.span_id != span.span_id:  # an attempt without an end event
            self._finish(before, ts, {c.UNFINISHED: True})
        self._steps[unit] = span

    def _join(self, span: Span, data: ev.WorkflowStepStarted) -> dict[str, Any]:
        """Link a span to what the step waited for: the senders of its messages, its dependencies, its last
        try. Return the types of the messages, if they are known."""
        types: list[str] = []
        if data.sources is not UNSET:
            for source in data.sources:
                relation, type = self._sender(source)
                self._link(span, relation, "message")
                types += [] if type is None else [type]
        elif self._input_type is not None and not data.path and not data.visit:
            types.append(self._input_type)
        if data.depends_on is not UNSET:
            for step_id in data.depends_on:
                known = self._last_steps.get(step_id)
                if known is not None:
                    self._link(span, known[1], "dependency")
        if data.attempt > 1:
            known = self._last_steps.get(data.step_id)
            if known is not None and known[0] == data.activation:
                self._link(span, known[1], "retry")
        return {c.MESSAGE_TYPE: ", ".join(dict.fromkeys(types))} if types else {}

    def _sender(self, source: ev.MessageRef) -> tuple[Relation | None, str | None]:
        """Return the span of the activation that sent what a step took, and its type; forgotten with its last
        message."""
        found = self._senders.get(source.activation)
        if found is None:
            known = self._last_steps.get(source.activation.rpartition("#")[0].removeprefix("/"))
            return (None, None) if known is None or known[0] != source.activation else (known[1], None)
        if found.left > 1:
            self._senders[source.activation] = found._replace(left=found.left - 1)
        else:
            del self._senders[source.activation]
        return found.relation, found.types.get(source.index)

    def _step_retrying(
        self, data: ev.WorkflowStepRetrying, ts: int, offset: int, trace: Trace | None
    ) -> None:
        """End the span of an attempt and begin that of the next one, which links to it."""
        unit = _unit(data)
        last = self._steps.get(unit)
        if data.kind != "restart" or last is None:
            return
        self._end_inside(unit, ts)
        shared = {key: last.attributes[key] for key in _OF_ALL_ATTEMPTS if key in last.attributes}
        span = Span(last.name, last.trace_id, self._tracer.handler(unit).span_id, last.parent_id, ts)
        span.attributes = {**shared, c.ATTEMPT: data.next_attempt, c.OFFSET: offset}
        self._link(span, Relation(last.trace_id, last.span_id, {}), "retry")
        self._fail(last, data.error)
        last.note(c.RETRY_EVENT, ts, {**note_attributes(data), c.OFFSET: offset}, self._limits)
        self._finish(last, ts, {c.WILL_RETRY: True})
        self._steps[unit] = span

    def _step_ended(self, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
        unit = _unit(data)
        span = self._steps.pop(unit, None)
        if span is None:
            key = f"step {unit} {data.attempt}"
            span = self._lost(f"{c.PROCESS} {data.step_id}", key, data, ts)
        self._end_inside(unit, ts)
        if data.iteration is None:
            relation = Relation(span.trace_id, span.span_id, {})
            self._last_steps[data.step_id] = (data.activation, relation)
            if isinstance(data, ev.WorkflowStepCompleted) and data.messages is not UNSET:
                taken = [d for m in data.messages for d in m.deliveries if d.status in _TAKEN]
                if self._edge_kinds is not None:
                    self._edges(data, span, self._edge_kinds, ts, offset)
                if taken:
                    types = {message.index: message.type for message in data.messages}
                    self._senders[data.activation] = _Sender(relation, len(taken), types)
        self._last_agents.pop(unit, None)
        self._last_models.pop(unit, None)
        attributes: dict[str, Any] = {}
        if data.items is not UNSET:
            attributes[c.ITEMS] = len(data.items)
        if isinstance(data, ev.WorkflowStepFailed):
            self._fail(span, data.error)
            attributes[c.ATTEMPTS] = data.attempts
            attributes[c.OUTCOME] = data.outcome
        else:
            self._step_result(data, attributes)
        self._finish(span, ts, attributes, data.duration_ms)

    def _edges(
        self, data: ev.WorkflowStepCompleted, sender: Span, kinds: dict[str, str], ts: int, offset: int
    ) -> None:
        """Add a span without length for what each edge did with each message, below that of the sender."""
        for message in data.messages or ():
            for delivery in message.deliveries:
                key = f"edge {data.activation} {message.index} {delivery.edge} {delivery.target}"
                trace = Trace(
                    trace_id=sender.trace_id,
                    span_id=span_id_of(self.workflow_id, key),
                    parent_span_id=sender.span_id,
                )
                attributes = {
                    c.EDGE: delivery.edge,
                    c.EDGE_TARGET: delivery.target,
                    c.DELIVERY_STATUS: delivery.status,
                    c.MESSAGE_INDEX: message.index,
                    c.MESSAGE_TYPE: message.type,
                }
                if (kind := kinds.get(delivery.edge)) is not None:
                    attributes[c.EDGE_KIND] = kind
                self._finish(self._begin(c.EDGE_SPAN, trace, ts, offset, attributes), ts, {})

    def _step_result(self, data: ev.WorkflowStepCompleted, attributes: dict[str, Any]) -> None:
        attributes[c.OUTPUT_SIZE] = data.output_size
        if isinstance(data.next, str):
            attributes[c.NEXT] = data.next
        if data.cached is not UNSET:
            attributes[c.CACHED_FROM] = f"{data.cached.workflow_id}@{data.cached.offset}"
        if self._capture:
            attributes[c.OUTPUT] = content.text(data.output)

    def _end_inside(self, unit: str, ts: int) -> None:
        agent = self._agents.pop(unit, None)
        if agent is not None:  # its step ended without a word on it
            self._finish(agent.span, ts, {c.UNFINISHED: True})

    # -- agents -----------------------------------------------------------------------------------

    def _agent_initialized(
        self, data: ev.AgentInitialized, ts: int, offset: int, trace: Trace | None
    ) -> None:
        unit = _unit(data)
        provider, _, model = data.model.partition(":")
        attributes = {
            c.OPERATION: c.INVOKE_AGENT,
            c.AGENT_NAME: data.agent_name,
            c.CONVERSATION: data.context_id,
            **_scope(data),
        }
        if model:
            attributes[c.PROVIDER] = c.provider_name(provider)
            attributes[c.REQUEST_MODEL] = model
        if self._capture:
            attributes[c.SYSTEM_INSTRUCTIONS] = content.instructions(data.system_prompt)
            attributes[c.INPUT] = content.text(data.input.data)
        span = self._begin(f"{c.INVOKE_AGENT} {data.agent_name}", trace, ts, offset, attributes)
        self._link(span, self._last_agents.get(unit), "retry")
        self._last_models.pop(unit, None)
        self._end_inside(unit, ts)
        self._agents[unit] = _Agent(span)

    def _agent_retrying(self, data: ev.AgentRetrying, ts: int, offset: int, trace: Trace | None) -> None:
        if data.kind != "restart":
            return
        unit = _unit(data)
        agent = self._agents.pop(unit, None)
        if agent is not None:
            span = agent.span
            self._last_agents[unit] = Relation(span.trace_id, span.span_id, {})
            self._fail(span, data.error)
            span.note(c.RETRY_EVENT, ts, note_attributes(data), self._limits)
            self._finish(span, ts, {c.WILL_RETRY: True})

    def _agent_ended(self, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
        unit = _unit(data)
        agent = self._agents.pop(unit, None)
        if agent is None:
            name = f"{c.INVOKE_AGENT} {data.agent_name}"
            span = self._lost(name, f"agent {data.context_id}", data, ts)
            span.attributes.update({c.OPERATION: c.INVOKE_AGENT, c.AGENT_NAME: data.agent_name})
        else:
            span = agent.span
        attributes = {c.TURNS: data.turns, **c.usage_attributes(data.usage)}
        if isinstance(data, ev.AgentFailed):
            self._fail(span, data.error)
            attributes[c.TOOL_CALLS] = data.tool_calls_count
        else:
            attributes[c.OUTPUT_SIZE] = data.output_size
            attributes[c.TOOL_CALLS] = data.output.metadata.tool_calls_count
            if self._capture:
                attributes[c.OUTPUT] = content.text(data.output.data)
        self._finish(span, ts, attributes, data.duration_ms)

    # -- model calls ------------------------------------------------------------------------------

    def _model_started(self, data: ev.ModelCallStarted, ts: int, offset: int, trace: Trace | None) -> None:
        unit = _unit(data)
        agent = self._agents.get(unit)
        attributes = {
            c.OPERATION: c.CHAT,
            c.PROVIDER: c.provider_name(data.provider),
            c.REQUEST_MODEL: data.model,
            c.TURN: data.turn,
            **c.request_attributes(data.parameters),
            **_scope(data),
        }
        if data.agent_name is not None:
            attributes[c.AGENT_NAME] = data.agent_name
        if agent is not None:
            attributes[c.CONVERSATION] = agent.span.attributes[c.CONVERSATION]
        if self._capture:
            said = agent.said if agent is not None else []
            said += data.messages
            attributes[c.INPUT_MESSAGES] = content.messages(said)
            prompts = [m.content for m in said if m.role == "system"]
            if prompts:
                attributes[c.SYSTEM_INSTRUCTIONS] = content.instructions("\n".join(prompts))
        span = self._begin(f"{c.CHAT} {data.model}", trace, ts, offset, attributes, kind="client")
        self._link(span, self._last_models.pop(unit, None), "retry")
        self._calls[data.model_call_id] = span

    def _model_ended(self, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
        span = self._calls.pop(data.model_call_id, None)
        if span is None:
            span = self._lost(c.CHAT, f"model {data.model_call_id}", data, ts, kind="client")
            span.attributes[c.OPERATION] = c.CHAT
        attributes: dict[str, Any] = _replayed(data)
        if isinstance(data, ev.ModelCallFailed):
            self._fail(span, data.error)
            attributes[c.WILL_RETRY] = data.will_retry
            if isinstance(reason := (data.error.details or {}).get("finish_reason"), str):
                attributes[c.FINISH_REASONS] = [reason]
            if data.usage is not UNSET:
                attributes.update(c.usage_attributes(data.usage))
            self._last_models[_unit(data)] = Relation(span.trace_id, span.span_id, {})
        else:
            self._model_result(data, attributes)
        self._finish(span, ts, attributes, data.duration_ms)

    def _model_result(self, data: ev.ModelCallCompleted, attributes: dict[str, Any]) -> None:
        attributes[c.RESPONSE_MODEL] = data.response_model
        attributes[c.FINISH_REASONS] = [data.finish_reason]
        attributes.update(c.usage_attributes(data.usage))
        if data.response_id is not UNSET:
            attributes[c.RESPONSE_ID] = data.response_id
        if data.first_token_ms is not UNSET:
            attributes[c.TIME_TO_FIRST_CHUNK] = data.first_token_ms / 1000
        if self._capture:
            attributes[c.OUTPUT_MESSAGES] = content.output(data.message, data.finish_reason)
            agent = self._agents.get(_unit(data))
            if agent is not None:
                agent.said.append(data.message)

    # -- tool calls -------------------------------------------------------------------------------

    def _tool_started(self, data: ev.ToolCallStarted, ts: int, offset: int, trace: Trace | None) -> None:
        call_id = data.tool_call_id
        attributes: dict[str, Any] = {
            c.OPERATION: c.EXECUTE_TOOL,
            c.TOOL_NAME: data.tool_name,
            c.TOOL_CALL: call_id,
            c.TOOL_TYPE: "function",
            c.SIDE_EFFECT: data.side_effect,
            c.ATTEMPT: self._tracer.tries(call_id) + 1,
            **_scope(data),
        }
        if data.agent_name is not None:
            attributes[c.AGENT_NAME] = data.agent_name
        if data.service is not UNSET:
            attributes[c.SERVICE] = data.service
        if self._shows_tools:
            attributes[c.TOOL_ARGUMENTS] = content.text(data.parameters)
        span = self._begin(f"{c.EXECUTE_TOOL} {data.tool_name}", trace, ts, offset, attributes)
        self._link(span, self._failed_tools.pop(call_id, None), "retry")
        self._calls[call_id] = span

    def _tool_ended(self, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
        call_id = data.tool_call_id
        span = self._calls.pop(call_id, None)
        if span is None:
            name = f"{c.EXECUTE_TOOL} {data.tool_name}"
            span = self._lost(name, f"tool {call_id} {max(1, self._tracer.tries(call_id))}", data, ts)
            span.attributes.update({c.OPERATION: c.EXECUTE_TOOL, c.TOOL_NAME: data.tool_name})
        attributes: dict[str, Any] = _replayed(data)
        if isinstance(data, ev.ToolCallFailed):
            self._fail(span, data.error)
            attributes[c.WILL_RETRY] = data.will_retry
            attributes[c.OUTCOME] = data.outcome
            self._failed_tools[call_id] = Relation(span.trace_id, span.span_id, {})
        else:
            attributes[c.OUTPUT_SIZE] = data.output_size
            if self._shows_tools:
                attributes[c.TOOL_RESULT] = content.text(data.output)
        self._finish(span, ts, attributes, data.duration_ms)
        if self._wanted is not None and self._wanted.tool_trace_mode == "off":
            self._done.pop()

    # -- what happened inside a span --------------------------------------------------------------

    def _note(self, data: Any, ts: int, offset: int, span_id: str) -> None:
        span = self._find(data, span_id)
        if span is not None and span.end is None:
            attributes = note_attributes(data)
            attributes[c.OFFSET] = offset
            span.note(NOTES[data.__class__][0], ts, attributes, self._limits)

    def _find(self, data: Any, span_id: str) -> Span | None:
        """Return the open span of this id: of the event's call, agent or step, else the run's."""
        unit = _unit(data) if hasattr(data, "iteration") and isinstance(data.activation, str) else ""
        agent = self._agents.get(unit)
        if agent is not None and agent.span.span_id == span_id:
            return agent.span
        for key in (unit, unit.partition("[")[0]):
            step = self._steps.get(key)
            if step is not None and step.span_id == span_id:
                return step
        return self._root


_NONE: list[Span] = []


def _edge_kinds(data: ev.WorkflowStarted) -> dict[str, str]:
    """Return the kinds of the edges of a graph, by the names that deliveries have."""
    try:
        graph = msgspec.convert(msgspec.json.decode(data.source), _Edges)
    except (msgspec.MsgspecError, TypeError):
        return {}
    return {edge.name or f"{edge.source}->{edge.target}": edge.kind for edge in graph.edges}


class _Edge(msgspec.Struct):
    source: str
    target: str
    kind: str = "single"
    name: str | None = None


class _Edges(msgspec.Struct):
    edges: list[_Edge] = []


_OF_ALL_ATTEMPTS = (
    *(c.WORKFLOW_ID, c.STEP_ID, c.STEP_KIND, c.ACTIVATION, c.ITERATION, c.SUPERSTEP),
    *(c.AGENT_NAME, c.MESSAGE_TYPE, c.INPUT),
)
"""Attributes of the span of a step that those of its later attempts have too."""


def _unit(data: Any) -> str:
    iteration: Any = data.iteration
    return f"{data.activation}[{iteration}]" if isinstance(iteration, int) else data.activation


def _scope(data: Any) -> dict[str, Any]:
    found = {c.STEP_ID: data.step_id, c.ACTIVATION: data.activation}
    if data.iteration is not None:
        found[c.ITERATION] = data.iteration
    return found


def _ends_attempt(data: Any) -> bool:
    """Return whether an event ends the span to which its note belongs, and so makes the note itself."""
    return isinstance(data, ev.WorkflowStepRetrying) and data.kind == "restart"


def _scalar(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else content.text(value)


def _replayed(data: Any) -> dict[str, Any]:
    if data.replayed is UNSET:
        return {}
    return {c.REPLAYED_FROM: f"{data.replayed.workflow_id}@{data.replayed.offset}"}


_Move = Callable[[RunSpans, Any, int, int, Trace | None], None]

# pyright: reportPrivateUsage=false
_MOVES: dict[type, _Move] = {
    ev.WorkflowStarted: RunSpans._run_started,
    ev.WorkflowCompleted: RunSpans._run_ended,
    ev.WorkflowFailed: RunSpans._run_ended,
    ev.WorkflowCancelled: RunSpans._run_ended,
    ev.SuperstepStarted: RunSpans._superstep_started,
    ev.SuperstepCompleted: RunSpans._superstep_completed,
    ev.WorkflowStepStarted: RunSpans._step_started,
    ev.WorkflowStepRetrying: RunSpans._step_retrying,
    ev.WorkflowStepCompleted: RunSpans._step_ended,
    ev.WorkflowStepFailed: RunSpans._step_ended,
    ev.AgentInitialized: RunSpans._agent_initialized,
    ev.AgentRetrying: RunSpans._agent_retrying,
    ev.AgentCompleted: RunSpans._agent_ended,
    ev.AgentFailed: RunSpans._agent_ended,
    ev.ModelCallStarted: RunSpans._model_started,
    ev.ModelCallCompleted: RunSpans._model_ended,
    ev.ModelCallFailed: RunSpans._model_ended,
    ev.ToolCallStarted: RunSpans._tool_started,
    ev.ToolCallCompleted: RunSpans._tool_ended,
    ev.ToolCallFailed: RunSpans._tool_ended,
}


def project(
    workflow_id: str,
    events: Iterable[StoredEvent],
    limits: Limits,
    *,
    capture: bool = False,
    origin: SpanContext | None = None,
) -> tuple[list[Span], RunSpans]:
    """Return the ended spans of a log or of a part from its beginning, and the fold, which knows of open
    ones."""
    fold = RunSpans(workflow_id, limits, capture=capture, origin=origin)
    spans: list[Span] = []
    for event in events:
        spans += fold.take(event)
    return spans, fold


def take_or_skip(fold: RunSpans, stored: StoredEvent) -> list[Span]:
    """Call `fold.take`; skip an event that cannot be read, or that this release does not expect, with a line
    in the log: it must not keep all others from being sent."""
    try:
        return fold.take(stored)
    except Exception as error:
        where = {"workflow_id": fold.workflow_id, "offset": stored.offset}
        _log.error("event_not_projected", error=repr(error), **where)
        fold.next_offset = stored.offset + 1
        return []
