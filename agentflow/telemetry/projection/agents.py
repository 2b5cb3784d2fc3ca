"""The spans of agents: each attempt is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentflow.definition.conversation import Message
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Trace
from agentflow.telemetry import content
from agentflow.telemetry import conventions as c
from agentflow.telemetry.projection.notes import note_attributes
from agentflow.telemetry.projection.scope import scope_of, unit_of
from agentflow.telemetry.span import Relation, Span

if TYPE_CHECKING:
    from agentflow.telemetry.projection.run_spans import RunSpans

__all__ = ["MOVES", "OpenAgent"]


class OpenAgent:
    """An open agent: its span and, when content is captured, its conversation so far."""

    __slots__ = ("said", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.said: list[Message] = []


def _agent_initialized(
    spans: RunSpans, data: ev.AgentInitialized, ts: int, offset: int, trace: Trace | None
) -> None:
    unit = unit_of(data)
    provider, _, model = data.model.partition(":")
    attributes = {
        c.OPERATION: c.INVOKE_AGENT,
        c.AGENT_NAME: data.agent_name,
        c.CONVERSATION: data.context_id,
        **scope_of(data),
    }
    if model:
        attributes[c.PROVIDER] = c.provider_name(provider)
        attributes[c.REQUEST_MODEL] = model
    if spans.capture:
        attributes[c.SYSTEM_INSTRUCTIONS] = content.instructions(data.system_prompt)
        attributes[c.INPUT] = content.text(data.input.data)
    span = spans.begin(f"{c.INVOKE_AGENT} {data.agent_name}", trace, ts, offset, attributes)
    spans.link(span, spans.last_agents.get(unit), "retry")
    spans.last_models.pop(unit, None)
    spans.end_inside(unit, ts)
    spans.agents[unit] = OpenAgent(span)


def _agent_retrying(
    spans: RunSpans, data: ev.AgentRetrying, ts: int, offset: int, trace: Trace | None
) -> None:
    if data.kind != "restart":
        return
    unit = unit_of(data)
    agent = spans.agents.pop(unit, None)
    if agent is not None:
        span = agent.span
        spans.last_agents[unit] = Relation(span.trace_id, span.span_id, {})
        spans.fail(span, data.error)
        span.note(c.RETRY_EVENT, ts, note_attributes(data), spans.limits)
        spans.finish(span, ts, {c.WILL_RETRY: True})


def _agent_ended(spans: RunSpans, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
    unit = unit_of(data)
    agent = spans.agents.pop(unit, None)
    if agent is None:
        name = f"{c.INVOKE_AGENT} {data.agent_name}"
        span = spans.lost(name, f"agent {data.context_id}", data, ts)
        span.attributes.update({c.OPERATION: c.INVOKE_AGENT, c.AGENT_NAME: data.agent_name})
    else:
        span = agent.span
    attributes = {c.TURNS: data.turns, **c.usage_attributes(data.usage)}
    if isinstance(data, ev.AgentFailed):
        spans.fail(span, data.error)
        attributes[c.TOOL_CALLS] = data.tool_calls_count
    else:
        attributes[c.OUTPUT_SIZE] = data.output_size
        attributes[c.TOOL_CALLS] = data.output.metadata.tool_calls_count
        if spans.capture:
            attributes[c.OUTPUT] = content.text(data.output.data)
    spans.finish(span, ts, attributes, data.duration_ms)


MOVES: Mapping[type, Any] = {
    ev.AgentInitialized: _agent_initialized,
    ev.AgentRetrying: _agent_retrying,
    ev.AgentCompleted: _agent_ended,
    ev.AgentFailed: _agent_ended,
}
