"""The spans of a run and of its supersteps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from agentflow.definition.run_telemetry import telemetry_of
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Trace
from agentflow.telemetry import content
from agentflow.telemetry import conventions as c
from agentflow.telemetry.projection.edges import edge_kinds
from agentflow.telemetry.span import Relation

if TYPE_CHECKING:
    from agentflow.telemetry.projection.run_spans import RunSpans

__all__ = ["MOVES"]

_KEY = 128  # characters of a label that make a name


def _run_started(
    spans: RunSpans, data: ev.WorkflowStarted, ts: int, offset: int, trace: Trace | None
) -> None:
    spans.schema_version = data.schema_version
    input_type = data.options.get("input_type")
    spans.input_type = input_type if isinstance(input_type, str) else None
    spans.narrow(telemetry_of(data.options))
    if spans.wanted is not None and spans.wanted.edge_spans:
        spans.edge_kinds = edge_kinds(data)
    definition = data.definition
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
    if spans.capture:
        attributes[c.INPUT] = content.text(data.input)
    root = spans.begin(f"{c.INVOKE_WORKFLOW} {name}", trace, ts, offset, attributes)
    root.remote_parent = root.parent_id is not None
    if spans.origin is not None:
        spans.link(root, Relation(spans.origin.trace_id, spans.origin.span_id, {}), "fork")
    spans.root = root


def _run_ended(spans: RunSpans, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
    """End all open spans with the run, innermost first; the log of an ended run ends here."""
    for span in (
        *spans.calls.values(),
        *(agent.span for agent in spans.agents.values()),
        *reversed(spans.steps.values()),
        *([spans.superstep] if spans.superstep is not None else ()),
    ):
        spans.finish(span, ts, {c.UNFINISHED: True})
    spans.calls, spans.agents, spans.steps, spans.superstep = {}, {}, {}, None
    root, spans.root = spans.root, None
    assert root is not None
    attributes = {c.STATE: data.EVENT_TYPE.partition(".")[2], **c.total_attributes(data.usage)}
    if isinstance(data, ev.WorkflowFailed):
        spans.fail(root, data.error)
    elif isinstance(data, ev.WorkflowCancelled):
        root.attributes[c.ERROR_TYPE] = "cancelled"
        root.error = "cancelled"
    elif spans.capture:
        attributes[c.OUTPUT] = content.text(data.output)
    spans.finish(root, ts, attributes, data.duration_ms)


def _superstep_started(
    spans: RunSpans, data: ev.SuperstepStarted, ts: int, offset: int, trace: Trace | None
) -> None:
    attributes = {c.SUPERSTEP: data.superstep, c.ITEMS: len(data.activations)}
    spans.superstep = spans.begin(f"{c.SUPERSTEP_SPAN} {data.superstep}", trace, ts, offset, attributes)


def _superstep_completed(
    spans: RunSpans, data: ev.SuperstepCompleted, ts: int, offset: int, trace: Trace | None
) -> None:
    span, spans.superstep = spans.superstep, None
    if span is not None:
        spans.finish(span, ts, {"agentflow.queued": data.queued})


MOVES: Mapping[type, Any] = {
    ev.WorkflowStarted: _run_started,
    ev.WorkflowCompleted: _run_ended,
    ev.WorkflowFailed: _run_ended,
    ev.WorkflowCancelled: _run_ended,
    ev.SuperstepStarted: _superstep_started,
    ev.SuperstepCompleted: _superstep_completed,
}
