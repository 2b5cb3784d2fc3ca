"""From the events of a run to its spans. Pure: the same log gives the same spans at any time."""

from __future__ import annotations

from collections.abc import Iterable

from agentflow.events.envelope import StoredEvent
from agentflow.events.tracing import SpanContext
from agentflow.logs import get_logger
from agentflow.telemetry.facts import NO_FACTS, Facts
from agentflow.telemetry.projection.run_spans import RunSpans
from agentflow.telemetry.span import Limits, Span

__all__ = ["RunSpans", "project", "take_or_skip"]

_log = get_logger("agentflow.telemetry")


def project(
    workflow_id: str,
    events: Iterable[StoredEvent],
    limits: Limits,
    *,
    capture: bool = False,
    origin: SpanContext | None = None,
    facts: Facts = NO_FACTS,
) -> tuple[list[Span], RunSpans]:
    """Return the ended spans of a log or of a part from its beginning, and the fold, which knows of open
    ones."""
    fold = RunSpans(workflow_id, limits, capture=capture, origin=origin, facts=facts)
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
