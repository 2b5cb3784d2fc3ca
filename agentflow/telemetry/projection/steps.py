"""The spans of steps: each attempt is one, linked to what it waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET

from agentflow.events import catalogue as ev
from agentflow.events.envelope import Trace
from agentflow.telemetry import content
from agentflow.telemetry import conventions as c
from agentflow.telemetry.projection.edges import add_edges
from agentflow.telemetry.projection.notes import note_attributes
from agentflow.telemetry.projection.scope import scope_of, unit_of
from agentflow.telemetry.span import Relation, Span, bounded

if TYPE_CHECKING:
    from agentflow.telemetry.projection.run_spans import RunSpans

__all__ = ["MOVES", "Sender"]

_TAKEN = ("delivered", "buffered")
_KEY = 128  # characters of a tag that make a name
_OF_ALL_ATTEMPTS = (
    *(c.WORKFLOW_ID, c.STEP_ID, c.STEP_KIND, c.ACTIVATION, c.ITERATION, c.SUPERSTEP),
    *(c.AGENT_NAME, c.MESSAGE_TYPE, c.INPUT),
)
"""Attributes of the span of a step that those of its later attempts have too."""


class Sender(NamedTuple):
    """The span of an activation, how many of its messages are on their way, and their types by index."""

    relation: Relation
    left: int
    types: dict[int, str]


def _step_started(
    spans: RunSpans, data: ev.WorkflowStepStarted, ts: int, offset: int, trace: Trace | None
) -> None:
    attributes = scope_of(data)
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
    if spans.capture:
        attributes[c.INPUT] = content.text(data.input)
    span = spans.begin(f"{c.PROCESS} {data.step_id}", trace, ts, offset, attributes)
    if data.iteration is None:
        span.attributes.update(bounded(_join(spans, span, data), spans.limits))
    unit = unit_of(data)
    before = spans.steps.get(unit)
    if before is not None and before.span_id != span.span_id:  # an attempt without an end event
        spans.finish(before, ts, {c.UNFINISHED: True})
    spans.steps[unit] = span


def _join(spans: RunSpans, span: Span, data: ev.WorkflowStepStarted) -> dict[str, Any]:
    """Link a span to what the step waited for: the senders of its messages, its dependencies, its last
    try. Return the types of the messages, if they are known."""
    types: list[str] = []
    if data.sources is not UNSET:
        for source in data.sources:
            relation, type = _sender(spans, source)
            spans.link(span, relation, "message")
            types += [] if type is None else [type]
    elif spans.input_type is not None and not data.path and not data.visit:
        types.append(spans.input_type)
    if data.depends_on is not UNSET:
        for step_id in data.depends_on:
            known = spans.last_steps.get(step_id)
            if known is not None:
                spans.link(span, known[1], "dependency")
    if data.attempt > 1:
        known = spans.last_steps.get(data.step_id)
        if known is not None and known[0] == data.activation:
            spans.link(span, known[1], "retry")
    return {c.MESSAGE_TYPE: ", ".join(dict.fromkeys(types))} if types else {}


def _sender(spans: RunSpans, source: ev.MessageRef) -> tuple[Relation | None, str | None]:
    """Return the span of the activation that sent what a step took, and its type; forgotten with its last
    message."""
    found = spans.senders.get(source.activation)
    if found is None:
        known = spans.last_steps.get(source.activation.rpartition("#")[0].removeprefix("/"))
        return (None, None) if known is None or known[0] != source.activation else (known[1], None)
    if found.left > 1:
        spans.senders[source.activation] = found._replace(left=found.left - 1)
    else:
        del spans.senders[source.activation]
    return found.relation, found.types.get(source.index)


def _step_retrying(
    spans: RunSpans, data: ev.WorkflowStepRetrying, ts: int, offset: int, trace: Trace | None
) -> None:
    """End the span of an attempt and begin that of the next one, which links to it."""
    unit = unit_of(data)
    last = spans.steps.get(unit)
    if data.kind != "restart" or last is None:
        return
    spans.end_inside(unit, ts)
    shared = {key: last.attributes[key] for key in _OF_ALL_ATTEMPTS if key in last.attributes}
    span = Span(last.name, last.trace_id, spans.tracer.handler(unit).span_id, last.parent_id, ts)
    span.attributes = {**shared, c.ATTEMPT: data.next_attempt, c.OFFSET: offset}
    spans.link(span, Relation(last.trace_id, last.span_id, {}), "retry")
    spans.fail(last, data.error)
    last.note(c.RETRY_EVENT, ts, {**note_attributes(data), c.OFFSET: offset}, spans.limits)
    spans.finish(last, ts, {c.WILL_RETRY: True})
    spans.steps[unit] = span


def _step_ended(spans: RunSpans, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
    unit = unit_of(data)
    span = spans.steps.pop(unit, None)
    if span is None:
        key = f"step {unit} {data.attempt}"
        span = spans.lost(f"{c.PROCESS} {data.step_id}", key, data, ts)
    spans.end_inside(unit, ts)
    if data.iteration is None:
        relation = Relation(span.trace_id, span.span_id, {})
        spans.last_steps[data.step_id] = (data.activation, relation)
        if isinstance(data, ev.WorkflowStepCompleted) and data.messages is not UNSET:
            add_edges(spans, data, span, ts, offset)
            taken = [d for m in data.messages for d in m.deliveries if d.status in _TAKEN]
            if taken:
                types = {message.index: message.type for message in data.messages}
                spans.senders[data.activation] = Sender(relation, len(taken), types)
    spans.last_agents.pop(unit, None)
    spans.last_models.pop(unit, None)
    attributes: dict[str, Any] = {}
    if data.items is not UNSET:
        attributes[c.ITEMS] = len(data.items)
    if isinstance(data, ev.WorkflowStepFailed):
        spans.fail(span, data.error)
        attributes[c.ATTEMPTS] = data.attempts
        attributes[c.OUTCOME] = data.outcome
    else:
        _step_result(spans, data, attributes)
    spans.finish(span, ts, attributes, data.duration_ms)


def _step_result(spans: RunSpans, data: ev.WorkflowStepCompleted, attributes: dict[str, Any]) -> None:
    attributes[c.OUTPUT_SIZE] = data.output_size
    if isinstance(data.next, str):
        attributes[c.NEXT] = data.next
    if data.cached is not UNSET:
        attributes[c.CACHED_FROM] = f"{data.cached.workflow_id}@{data.cached.offset}"
    if spans.capture:
        attributes[c.OUTPUT] = content.text(data.output)


def _scalar(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else content.text(value)


MOVES: Mapping[type, Any] = {
    ev.WorkflowStepStarted: _step_started,
    ev.WorkflowStepRetrying: _step_retrying,
    ev.WorkflowStepCompleted: _step_ended,
    ev.WorkflowStepFailed: _step_ended,
}
