"""The spans of edges: what each edge did with each message, for runs that ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentflow.events import catalogue as ev
from agentflow.events.envelope import Trace
from agentflow.events.tracing import span_id_of
from agentflow.telemetry import conventions as c
from agentflow.telemetry.span import Span

if TYPE_CHECKING:
    from agentflow.telemetry.projection.run_spans import RunSpans

__all__ = ["add_edges", "edge_kinds"]


def add_edges(spans: RunSpans, data: ev.WorkflowStepCompleted, sender: Span, ts: int, offset: int) -> None:
    """Add a span without length for what each edge did with each message, below that of the sender."""
    kinds = spans.edge_kinds
    if kinds is None:
        return
    for message in data.messages or ():
        for delivery in message.deliveries:
            key = f"edge {data.activation} {message.index} {delivery.edge} {delivery.target}"
            trace = Trace(
                trace_id=sender.trace_id,
                span_id=span_id_of(spans.workflow_id, key),
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
            spans.finish(spans.begin(c.EDGE_SPAN, trace, ts, offset, attributes), ts, {})


def edge_kinds(data: ev.WorkflowStarted) -> dict[str, str]:
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
