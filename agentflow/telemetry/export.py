"""Sends the spans of one run now, whether or when they were sent before: a past run can be looked at anew."""

from __future__ import annotations

import msgspec

from agentflow.errors import OffsetTrimmed
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import StoredEvent, decode
from agentflow.events.log import EventLog
from agentflow.telemetry.facts import NO_FACTS, facts_of
from agentflow.telemetry.projection import RunSpans, take_or_skip
from agentflow.telemetry.projector import PAGE, SpanSink, root_of
from agentflow.telemetry.settings import TelemetrySettings
from agentflow.telemetry.span import Span
from agentflow.telemetry.telemetry import limits_of
from agentflow.telemetry.worker import Worker

__all__ = ["Exported", "export_run"]


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent: `spans` that ended, of which the collector `refused` some; `open` ones were not sent."""

    workflow_id: str
    trace_id: str
    spans: int
    refused: int
    open: int
    endpoint: str


async def export_run(
    log: EventLog, workflow_id: str, settings: TelemetrySettings, *, sink: SpanSink | None = None
) -> Exported:
    """Send every ended span of a run, sampled or not. `sink` stands in for the exporter of the settings.

    Raises RunNotFound, RunGone, NotSent (some may have arrived), ConfigurationError.
    """
    if sink is None:
        from agentflow.telemetry.sender import open_sender

        sink = open_sender(settings)
    worker = Worker("agentflow-export")
    fold: RunSpans | None = None
    sent = refused = offset = 0
    try:
        while rows := await _read(log, workflow_id, offset):
            if fold is None:
                fold = await _begin(log, workflow_id, settings, rows[0])
            spans = await worker.call(_fold, fold, rows)
            if spans:
                refused += await worker.call(sink.send, spans)
                sent += len(spans)
            offset = rows[-1].offset + 1
    finally:
        sink.close()
        worker.close()
    return Exported(
        workflow_id=workflow_id,
        trace_id="" if fold is None else fold.trace_id,
        spans=sent - refused,
        refused=refused,
        open=0 if fold is None else fold.open,
        endpoint=settings.endpoint,
    )


async def _read(log: EventLog, workflow_id: str, offset: int) -> list[StoredEvent]:
    try:
        return await log.read(workflow_id, offset, PAGE)
    except OffsetTrimmed as trimmed:
        return await log.read(workflow_id, trimmed.earliest_offset, PAGE)


async def _begin(
    log: EventLog, workflow_id: str, settings: TelemetrySettings, first: StoredEvent
) -> RunSpans:
    if first.offset:
        return RunSpans(workflow_id, limits_of(settings), capture=settings.capture_content)
    data = decode(first.body).data
    facts = (
        facts_of(await log.get_definition(data.ir_hash)) if isinstance(data, WorkflowStarted) else NO_FACTS
    )
    return RunSpans(
        workflow_id,
        limits_of(settings),
        capture=settings.capture_content,
        origin=await root_of(log, data),
        facts=facts,
    )


def _fold(fold: RunSpans, rows: list[StoredEvent]) -> list[Span]:
    return [span for row in rows for span in take_or_skip(fold, row)]
