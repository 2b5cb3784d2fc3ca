"""The page that Prometheus reads: what the daemon counts of itself, and what its Runtime measures.

Holds numbers and names of kinds alone, never of runs. What is counted for every event of a stream is a plain
number until a scrape; requests have instruments. The Runtime's measurements are those that OpenTelemetry
sends (`agentflow.telemetry`), under the names that they have in Prometheus then. Never the registry of the
process: an application that mounts the API has its own there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from agentflow.telemetry.instruments import Reading, Tally

if TYPE_CHECKING:
    from agentflow.server.operations import Operation
    from agentflow.telemetry.telemetry import Telemetry

__all__ = ["OPENMETRICS", "PLAIN", "Metrics"]

PLAIN: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text"

_CONTENT_TYPES = {
    PLAIN: "text/plain; version=0.0.4; charset=utf-8",
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Of one daemon since its start. For one event loop."""

    def __init__(self) -> None:
        self.started = time.time()
        self.streams_open = 0
        self.stream_events = 0
        self.stream_bytes = 0
        self.streams_stalled = 0
        self.runs_accepted = 0
        self.runs_recovered = 0
        self._registry = CollectorRegistry()
        self._registry.register(_Counted(self))
        self._requests = Counter(
            "agentflow_http_requests",
            "Requests, by operation and status.",
            ("method", "path", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "agentflow_http_request_seconds",
            "Time to answer; of streams, to begin.",
            ("method", "path"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._places: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._rendering = asyncio.Lock()

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """Record that a request was answered after so many seconds; a stream, when it began."""
        place = (operation.method, operation.path, status)
        found = self._places.get(place)
        if found is None:
            method, path, _ = place
            found = self._requests.labels(*place), self._seconds.labels(method, path)
            self._places[place] = found
        requests, histogram = found
        requests.inc()
        histogram.observe(seconds)

    def telemetry(self) -> Telemetry:
        """Return what a Runtime is given so that its measurements stand on the page; besides it sends what
        the OTEL_ variables ask for. To be called once. ConfigurationError names a wrong variable."""
        from agentflow.telemetry.telemetry import Telemetry

        tally = Tally()
        self._registry.register(_Measured(tally))
        return Telemetry(tally=tally)

    async def render(self, runs: Mapping[str, int], media: str = PLAIN) -> tuple[bytes, str]:
        """Return all of it, and its content type; `media` is PLAIN or OPENMETRICS. `runs` are how many runs
        have not ended, by state. What was committed within the last second may not be there yet."""
        write: Any = openmetrics if media == OPENMETRICS else exposition
        # In a thread, for there may be thousands of series; one page at a time, as the reader wants it.
        async with self._rendering:
            page = await asyncio.to_thread(write.generate_latest, _Page(self._registry, runs))
        return page, _CONTENT_TYPES[media]


class _Counted(Collector):
    """The plain numbers of Metrics, as instruments."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        found = self._metrics
        yield GaugeMetricFamily(
            "agentflow_start_time_seconds", "When the daemon started.", value=found.started
        )
        yield GaugeMetricFamily(
            "agentflow_streams_open", "Event streams that are open.", value=found.streams_open
        )
        for name, text, value in (
            ("agentflow_stream_events", "Events sent to streams.", found.stream_events),
            ("agentflow_stream_bytes", "Bytes sent to streams.", found.stream_bytes),
            (
                "agentflow_streams_stalled",
                "Streams closed because their client took nothing.",
                found.streams_stalled,
            ),
            ("agentflow_runs_accepted", "Runs that were submitted.", found.runs_accepted),
            ("agentflow_runs_recovered", "Runs taken up at the start.", found.runs_recovered),
        ):
            yield CounterMetricFamily(name, text, value=value)


class _Measured(Collector):
    """A Tally, under the names that OpenTelemetry's specification gives its instruments in Prometheus."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def collect(self) -> Iterable[Metric]:
        for reading in self._tally.read():
            if reading.series:
                yield _family(reading)


def _family(reading: Reading) -> Metric:
    instrument = reading.instrument
    name, about = _plain(instrument.name), instrument.about
    unit = "seconds" if instrument.unit == "s" else ""  # one in braces is only a remark
    # A series that lacks an attribute has it empty: all of a family have the same labels.
    attributes = sorted({key for found, _ in reading.series for key in found})
    labels = [_plain(key) for key in attributes]
    rows = [([_text(found.get(key, "")) for key in attributes], numbers) for found, numbers in reading.series]
    if instrument.buckets is not None:
        histogram = HistogramMetricFamily(name, about, labels=labels, unit=unit)
        edges = [*map(str, instrument.buckets), "+Inf"]
        for row, (*counts, total) in rows:
            buckets = list(zip(edges, accumulate(counts), strict=True))
            histogram.add_metric(row, buckets, total)
        return histogram
    kind = CounterMetricFamily if instrument.grows else GaugeMetricFamily
    family = kind(name, about, labels=labels, unit=unit)
    for row, (number,) in rows:
        family.add_metric(row, number)
    return family


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(name: str) -> str:
    return name.replace(".", "_")


class _Page(Collector):
    """What stands on one page: everything registered, and the runs that were counted for it."""

    def __init__(self, registry: CollectorRegistry, runs: Mapping[str, int]) -> None:
        self._registry = registry
        self._runs = runs

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            # When each series began is noise: all of them begin with the process.
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric
        family = GaugeMetricFamily("agentflow_runs", "Runs that have not ended.", labels=("state",))
        for state, count in sorted(self._runs.items()):
            family.add_metric((state,), count)
        yield family
