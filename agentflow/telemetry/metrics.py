"""Metrics: how events become measurements.

What is measured are the events that this process commits, so that several processes on one store add up.
The EventBus hands over each batch that has become durable, which costs it one append to a queue; a thread
turns batches into measurements. Readers push (OTLP, console) or are read (`readers`); a Tally keeps totals
for a page of metrics.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec import UNSET
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    MetricReader,
    PeriodicExportingMetricReader,
)

from agentflow.definition.conversation import Usage
from agentflow.errors import ConfigurationError
from agentflow.events import catalogue as ev
from agentflow.logs import get_logger
from agentflow.telemetry import conventions as c
from agentflow.telemetry.instruments import OBSERVED, Gauge, Instruments, Tally
from agentflow.telemetry.projector import Counts
from agentflow.telemetry.readable import resource_of
from agentflow.telemetry.settings import TelemetrySettings
from agentflow.telemetry.worker import Worker

__all__ = ["GAUGES", "Metrics"]

K = TypeVar("K")
V = TypeVar("V")

_log = get_logger("agentflow.telemetry")

_TICK = 1.0
_SAMPLE_EVERY = 5  # ticks
_QUEUE = 100_000
_OPEN = 50_000

GAUGES = {
    c.MAILBOX_DEPTH: "actor.type",
    c.DEAD_LETTERS: "reason",
    c.QUEUE_DEPTH: "queue",
    c.WORKER_HEALTH: "worker",
}
"""Instruments that a Runtime is asked for every 5 s, and what their keys are."""


class Metrics:
    """The measurements of one process. `gauges` gives those of GAUGES that are there, by name; they are read
    on the loop."""

    def __init__(
        self,
        settings: TelemetrySettings,
        *,
        readers: Sequence[MetricReader] = (),
        tally: Tally | None = None,
        gauges: Callable[[], Mapping[str, Gauge]] = dict,
    ) -> None:
        exporter = _exporter(settings)
        all_readers = list(readers)
        if exporter is not None:
            all_readers.append(PeriodicExportingMetricReader(exporter))
        self._provider: MeterProvider | None = None
        self._measures: list[Measure] = []
        self._observers: list[Callable[[str, str | None, Gauge], None]] = []
        if all_readers:
            self._provider = MeterProvider(all_readers, resource_of(instance=True), shutdown_on_exit=False)
            sdk = _Sdk(self._provider)
            self._measures.append(Measure(sdk.instruments, c.PINNED[settings.convention]))
            self._observers.append(sdk.observe)
        if tally is not None:
            self._measures.append(Measure(Instruments(tally.histogram, tally.counter)))
            self._observers.append(tally.observe)
        self._gauges = gauges
        self._sampled: dict[str, Mapping[str, int]] = {}
        for name, attribute in GAUGES.items():
            self._observe(name, attribute, partial(self._sample_of, name))
        self._queue: deque[tuple[str, int, Sequence[ev.RunEvent], float]] = deque(maxlen=_QUEUE)
        self._worker = Worker("agentflow-metrics")
        self._task: asyncio.Task[None] | None = None

    def committed(self, workflow_id: str, ts: int, events: Sequence[ev.RunEvent], seconds: float) -> None:
        """Measure a batch that became durable `seconds` after it was sent to the log. Never waits, never
        raises; when the thread falls 100,000 batches behind, the oldest are not measured."""
        self._queue.append((workflow_id, ts, events, seconds))

    def show(self, counts: Counts) -> None:
        """Show also what the projector of spans has sent."""
        self._observe(c.SPANS_EXPORTED, None, lambda: {"": counts.exported})
        self._observe(c.SPANS_REFUSED, None, lambda: {"": counts.refused})
        self._observe(c.EXPORT_FAILURES, None, lambda: {"": counts.failures})

    def _observe(self, name: str, attribute: str | None, read: Gauge) -> None:
        for observe in self._observers:
            observe(name, attribute, read)

    def start(self) -> None:
        """Begin to measure."""
        self._task = asyncio.create_task(self._run(), name="agentflow-metrics")

    async def aclose(self, deadline: float) -> None:
        """Measure what is left and let the readers have it, for at most `deadline` seconds."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        try:
            async with asyncio.timeout(deadline):
                await self._worker.call(self._finish, deadline)
        except TimeoutError:
            _log.warning("metrics_left")
        except Exception as error:
            _log.warning("metrics_not_sent", error=repr(error))
        self._worker.close()

    async def _run(self) -> None:
        ticks = 0
        while True:
            if ticks % _SAMPLE_EVERY == 0:
                self._sample()
            ticks += 1
            if self._queue:
                await self._worker.call(self._drain)
            await asyncio.sleep(_TICK)

    def _sample(self) -> None:
        for name, read in self._gauges().items():
            try:
                self._sampled[name] = dict(read())
            except Exception as error:  # a gauge that cannot be read is no reason to stop measuring
                _log.warning("gauge_failed", gauge=name, error=repr(error))

    def _sample_of(self, name: str) -> Mapping[str, int]:
        return self._sampled.get(name, {})

    def _drain(self) -> None:
        queue, measures = self._queue, self._measures
        for n in range(len(queue)):
            workflow_id, ts, events, seconds = queue.popleft()
            for measure in measures:
                measure.batch(workflow_id, ts, events, seconds)
            if n % 32 == 31:
                time.sleep(0.0001)  # the loop's turn

    def _finish(self, deadline: float) -> None:
        self._drain()
        if self._provider is not None:
            self._provider.shutdown(timeout_millis=deadline * 1000)


class _Sdk:
    """Instruments of OpenTelemetry, for what is sent and for its readers."""

    def __init__(self, provider: MeterProvider) -> None:
        self._meter = meter = provider.get_meter(c.SCOPE, schema_url=c.SCHEMA_URL)
        self.instruments = Instruments(
            lambda i: meter.create_histogram(
                i.name, i.unit, i.about, explicit_bucket_boundaries_advisory=list(i.buckets or ())
            ),
            lambda i: meter.create_counter(i.name, i.unit, i.about),
        )

    def observe(self, name: str, attribute: str | None, read: Gauge) -> None:
        """Create an instrument that is read at each collection; `attribute` names what its keys are."""

        def values(_: CallbackOptions) -> list[Observation]:
            return [
                Observation(value, None if attribute is None else {f"agentflow.{attribute}": key})
                for key, value in read().items()
            ]

        found, meter = OBSERVED[name], self._meter
        make = meter.create_observable_counter if found.grows else meter.create_observable_gauge
        make(name, [values], found.unit, found.about)


class Measure:
    """From events to measurements. Remembers of each open call and step what its end does not say."""

    def __init__(self, instruments: Instruments, convention: c.Convention = c.NEWEST) -> None:
        self._on = instruments
        self._convention = convention
        self._models: dict[str, dict[str, Any]] = {}
        self._tools: dict[str, dict[str, Any]] = {}
        self._kinds: dict[tuple[str, str, int | None], str] = {}
        self._supersteps: dict[tuple[str, int], int] = {}

    def batch(self, workflow_id: str, ts: int, events: Sequence[ev.RunEvent], seconds: float) -> None:
        """Return the events of one commit."""
        self._on.commit.record(seconds)
        self._on.events.add(len(events))
        for data in events:
            move = _MOVES.get(data.__class__)
            if move is not None:
                move(self, data, workflow_id, ts)

    def _model_started(self, data: ev.ModelCallStarted, workflow_id: str, ts: int) -> None:
        attributes: dict[str, Any] = {
            c.OPERATION: c.CHAT,
            c.PROVIDER: c.provider_name(data.provider),
            c.REQUEST_MODEL: data.model,
        }
        if data.server is not UNSET:
            attributes |= c.server_attributes(data.server)
        _keep(self._models, data.model_call_id, dict(self._convention.names(attributes)))

    def _model_completed(self, data: ev.ModelCallCompleted, workflow_id: str, ts: int) -> None:
        attributes = self._model(data.model_call_id)
        if data.replayed is not UNSET:
            return  # no call was made
        attributes[c.RESPONSE_MODEL] = data.response_model
        self._on.operation.record(data.duration_ms / 1000, attributes)
        if data.first_token_ms is not UNSET:
            self._on.first_chunk.record(data.first_token_ms / 1000, attributes)
        self._tokens(data.usage, attributes)

    def _model_failed(self, data: ev.ModelCallFailed, workflow_id: str, ts: int) -> None:
        attributes = self._model(data.model_call_id)
        if data.replayed is not UNSET:
            return
        self._on.operation.record(data.duration_ms / 1000, {**attributes, c.ERROR_TYPE: data.error.code})
        if data.usage is not UNSET:
            self._tokens(data.usage, attributes)

    def _model(self, call_id: str) -> dict[str, Any]:
        # A call that another process began is known by its operation alone.
        return self._models.pop(call_id, None) or {c.OPERATION: c.CHAT, c.PROVIDER: "_OTHER"}

    def _tokens(self, usage: Usage, attributes: dict[str, Any]) -> None:
        if usage.estimated is True:
            return  # an upper bound is no count
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:
                self._on.tokens.record(count, {**attributes, c.TOKEN_TYPE: kind})

    def _tool_started(self, data: ev.ToolCallStarted, workflow_id: str, ts: int) -> None:
        attributes = {c.OPERATION: c.EXECUTE_TOOL, c.TOOL_NAME: data.tool_name}
        if data.service is not UNSET:
            attributes[c.SERVICE] = data.service
        _keep(self._tools, data.tool_call_id, attributes)

    def _tool_ended(self, data: Any, workflow_id: str, ts: int) -> None:
        attributes = self._tools.pop(data.tool_call_id, None) or {
            c.OPERATION: c.EXECUTE_TOOL,
            c.TOOL_NAME: data.tool_name,
        }
        if data.replayed is not UNSET:
            return
        if isinstance(data, ev.ToolCallFailed):
            attributes = {**attributes, c.ERROR_TYPE: data.error.code}
        self._on.tool.record(data.duration_ms / 1000, attributes)

    def _step_started(self, data: ev.WorkflowStepStarted, workflow_id: str, ts: int) -> None:
        _keep(self._kinds, (workflow_id, data.activation, data.iteration), data.kind)

    def _step_ended(self, data: Any, workflow_id: str, ts: int) -> None:
        kind = self._kinds.pop((workflow_id, data.activation, data.iteration), "unknown")
        status = "failure" if isinstance(data, ev.WorkflowStepFailed) else "success"
        attributes = {c.STEP_KIND: kind, c.STATUS: status}
        self._on.node.record(data.duration_ms / 1000, attributes)
        self._on.executions.add(1, attributes)

    def _retrying(self, data: Any, workflow_id: str, ts: int) -> None:
        self._on.retries.add(1, {c.RETRY_KIND: data.kind, c.ERROR_CATEGORY: data.error.category})

    def _superstep_started(self, data: ev.SuperstepStarted, workflow_id: str, ts: int) -> None:
        _keep(self._supersteps, (workflow_id, data.superstep), ts)

    def _superstep_completed(self, data: ev.SuperstepCompleted, workflow_id: str, ts: int) -> None:
        began = self._supersteps.pop((workflow_id, data.superstep), None)
        if began is not None:
            self._on.superstep.record(max(0, ts - began) / 1e6)

    def _run_ended(self, data: Any, workflow_id: str, ts: int) -> None:
        state = data.EVENT_TYPE.partition(".")[2]
        self._on.run.record(data.duration_ms / 1000, {c.STATE: state})


def _keep(known: dict[K, V], key: K, value: V) -> None:
    """Remember; of work that never ended here, the oldest is forgotten."""
    known[key] = value
    if len(known) > _OPEN:
        del known[next(iter(known))]


# pyright: reportPrivateUsage=false
_MOVES: dict[type, Callable[[Measure, Any, str, int], None]] = {
    ev.ModelCallStarted: Measure._model_started,
    ev.ModelCallCompleted: Measure._model_completed,
    ev.ModelCallFailed: Measure._model_failed,
    ev.ToolCallStarted: Measure._tool_started,
    ev.ToolCallCompleted: Measure._tool_ended,
    ev.ToolCallFailed: Measure._tool_ended,
    ev.WorkflowStepStarted: Measure._step_started,
    ev.WorkflowStepCompleted: Measure._step_ended,
    ev.WorkflowStepFailed: Measure._step_ended,
    ev.WorkflowStepRetrying: Measure._retrying,
    ev.AgentRetrying: Measure._retrying,
    ev.SuperstepStarted: Measure._superstep_started,
    ev.SuperstepCompleted: Measure._superstep_completed,
    ev.WorkflowCompleted: Measure._run_ended,
    ev.WorkflowFailed: Measure._run_ended,
    ev.WorkflowCancelled: Measure._run_ended,
}


def _exporter(settings: TelemetrySettings) -> MetricExporter | None:
    if settings.metrics == "none":
        return None
    if settings.metrics == "console":
        return ConsoleMetricExporter(out=sys.stderr)
    if settings.metrics_protocol == "grpc":
        from importlib import import_module

        module: Any = import_module("opentelemetry.exporter.otlp.proto.grpc.metric_exporter")
        return module.OTLPMetricExporter()
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ConfigurationError(
            "metrics cannot be sent: the package opentelemetry-exporter-otlp-proto-http is not installed",
            hint='pip install "agentflow[otel]"',
        ) from error
    return OTLPMetricExporter()
