"""The spans of calls of models and functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from agentflow.events import catalogue as ev
from agentflow.events.envelope import Trace
from agentflow.telemetry import content
from agentflow.telemetry import conventions as c
from agentflow.telemetry.projection.scope import scope_of, unit_of
from agentflow.telemetry.span import Relation, cut

if TYPE_CHECKING:
    from agentflow.telemetry.projection.run_spans import RunSpans

__all__ = ["MOVES"]

_DESCRIPTION_LENGTH = 1_024


def _model_started(
    spans: RunSpans, data: ev.ModelCallStarted, ts: int, offset: int, trace: Trace | None
) -> None:
    unit = unit_of(data)
    agent = spans.agents.get(unit)
    attributes = {
        c.OPERATION: c.CHAT,
        c.PROVIDER: c.provider_name(data.provider),
        c.REQUEST_MODEL: data.model,
        c.TURN: data.turn,
        **c.request_attributes(data.parameters),
        **spans.facts.model_call(data.step_id),
        **scope_of(data),
    }
    if data.server is not UNSET:
        attributes |= c.server_attributes(data.server)
        attributes[c.REQUEST_STREAM] = True  # as all adapters over HTTP do
    if data.agent_name is not None:
        attributes[c.AGENT_NAME] = data.agent_name
    if agent is not None:
        attributes[c.CONVERSATION] = agent.span.attributes[c.CONVERSATION]
    if spans.capture:
        said = agent.said if agent is not None else []
        said += data.messages
        attributes[c.INPUT_MESSAGES] = content.messages(said)
        prompts = [m.content for m in said if m.role == "system"]
        if prompts:
            attributes[c.SYSTEM_INSTRUCTIONS] = content.instructions("\n".join(prompts))
    span = spans.begin(f"{c.CHAT} {data.model}", trace, ts, offset, attributes, kind="client")
    spans.link(span, spans.last_models.pop(unit, None), "retry")
    spans.calls[data.model_call_id] = span


def _model_ended(spans: RunSpans, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
    span = spans.calls.pop(data.model_call_id, None)
    if span is None:
        span = spans.lost(c.CHAT, f"model {data.model_call_id}", data, ts, kind="client")
        span.attributes[c.OPERATION] = c.CHAT
    attributes: dict[str, Any] = _replayed(data)
    if isinstance(data, ev.ModelCallFailed):
        spans.fail(span, data.error)
        attributes[c.WILL_RETRY] = data.will_retry
        if isinstance(reason := (data.error.details or {}).get("finish_reason"), str):
            attributes[c.FINISH_REASONS] = [reason]
        if data.usage is not UNSET:
            attributes.update(c.usage_attributes(data.usage))
        spans.last_models[unit_of(data)] = Relation(span.trace_id, span.span_id, {})
    else:
        _model_result(spans, data, attributes)
    spans.finish(span, ts, attributes, data.duration_ms)


def _model_result(spans: RunSpans, data: ev.ModelCallCompleted, attributes: dict[str, Any]) -> None:
    attributes[c.RESPONSE_MODEL] = data.response_model
    attributes[c.FINISH_REASONS] = [data.finish_reason]
    attributes.update(c.usage_attributes(data.usage))
    if data.response_id is not UNSET:
        attributes[c.RESPONSE_ID] = data.response_id
    if data.first_token_ms is not UNSET:
        attributes[c.TIME_TO_FIRST_CHUNK] = data.first_token_ms / 1000
    if spans.capture:
        attributes[c.OUTPUT_MESSAGES] = content.output(data.message, data.finish_reason)
        agent = spans.agents.get(unit_of(data))
        if agent is not None:
            agent.said.append(data.message)


# -- tool calls -------------------------------------------------------------------------------


def _tool_started(
    spans: RunSpans, data: ev.ToolCallStarted, ts: int, offset: int, trace: Trace | None
) -> None:
    call_id = data.tool_call_id
    attributes: dict[str, Any] = {
        c.OPERATION: c.EXECUTE_TOOL,
        c.TOOL_NAME: data.tool_name,
        c.TOOL_CALL: call_id,
        c.TOOL_TYPE: "function",
        c.SIDE_EFFECT: data.side_effect,
        c.ATTEMPT: spans.tracer.tries(call_id) + 1,
        **scope_of(data),
    }
    if data.agent_name is not None:
        attributes[c.AGENT_NAME] = data.agent_name
    service = None if data.service is UNSET else data.service
    if service is not None:
        attributes[c.SERVICE] = service
    about = spans.facts.tool_call(service, data.tool_name, spans.describe)
    if c.TOOL_DESCRIPTION in about:
        about[c.TOOL_DESCRIPTION] = cut(about[c.TOOL_DESCRIPTION], _DESCRIPTION_LENGTH)
    attributes |= about
    kind = "client" if c.MCP_METHOD in about else "internal"
    if spans.shows_tools:
        attributes[c.TOOL_ARGUMENTS] = content.text(data.parameters)
    span = spans.begin(f"{c.EXECUTE_TOOL} {data.tool_name}", trace, ts, offset, attributes, kind=kind)
    spans.link(span, spans.failed_tools.pop(call_id, None), "retry")
    spans.calls[call_id] = span


def _tool_ended(spans: RunSpans, data: Any, ts: int, offset: int, trace: Trace | None) -> None:
    call_id = data.tool_call_id
    span = spans.calls.pop(call_id, None)
    if span is None:
        name = f"{c.EXECUTE_TOOL} {data.tool_name}"
        span = spans.lost(name, f"tool {call_id} {max(1, spans.tracer.tries(call_id))}", data, ts)
        span.attributes.update({c.OPERATION: c.EXECUTE_TOOL, c.TOOL_NAME: data.tool_name})
    attributes: dict[str, Any] = _replayed(data)
    if isinstance(data, ev.ToolCallFailed):
        spans.fail(span, data.error)
        attributes[c.WILL_RETRY] = data.will_retry
        attributes[c.OUTCOME] = data.outcome
        spans.failed_tools[call_id] = Relation(span.trace_id, span.span_id, {})
    else:
        attributes[c.OUTPUT_SIZE] = data.output_size
        if spans.shows_tools:
            attributes[c.TOOL_RESULT] = content.text(data.output)
    spans.finish(span, ts, attributes, data.duration_ms)
    if spans.wanted is not None and spans.wanted.tool_trace_mode == "off":
        spans.done.pop()


def _replayed(data: Any) -> dict[str, Any]:
    if data.replayed is UNSET:
        return {}
    return {c.REPLAYED_FROM: f"{data.replayed.workflow_id}@{data.replayed.offset}"}


MOVES: Mapping[type, Any] = {
    ev.ModelCallStarted: _model_started,
    ev.ModelCallCompleted: _model_ended,
    ev.ModelCallFailed: _model_ended,
    ev.ToolCallStarted: _tool_started,
    ev.ToolCallCompleted: _tool_ended,
    ev.ToolCallFailed: _tool_ended,
}
