"""What the daemon counts of itself, as Prometheus reads it. Holds numbers alone, never names of runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.server.operations import Operation

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Histogram:
    __slots__ = ("counts", "sum", "total")

    def __init__(self) -> None:
        self.counts = [0] * len(_BUCKETS)
        self.sum = 0.0
        self.total = 0

    def observe(self, value: float) -> None:
        self.sum += value
        self.total += 1
        for i, edge in enumerate(_BUCKETS):
            if value <= edge:
                self.counts[i] += 1
                break


class Metrics:
    """Counters of one daemon since its start. For one event loop."""

    def __init__(self) -> None:
        self.started = time.time()
        self.streams_open = 0
        self.stream_events = 0
        self.stream_bytes = 0
        self.streams_stalled = 0
        self.runs_accepted = 0
        self.runs_recovered = 0
        self._answers: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[tuple[str, str], _Histogram] = {}

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """A request was answered after so many seconds; a stream, when it began."""
        key = (operation.method, operation.path, status)
        self._answers[key] = self._answers.get(key, 0) + 1
        place = (operation.method, operation.path)
        histogram = self._seconds.get(place)
        if histogram is None:
            histogram = self._seconds[place] = _Histogram()
        histogram.observe(seconds)

    def render(self, runs: dict[str, int]) -> str:
        """All of it. `runs` are how many runs have not ended, by state."""
        lines: list[str] = []
        for name, kind, text, value in (
            ("agentflow_start_time_seconds", "gauge", "When the daemon started.", self.started),
            ("agentflow_streams_open", "gauge", "Event streams that are open.", self.streams_open),
            ("agentflow_stream_events_total", "counter", "Events sent to streams.", self.stream_events),
            ("agentflow_stream_bytes_total", "counter", "Bytes sent to streams.", self.stream_bytes),
            (
                "agentflow_streams_stalled_total",
                "counter",
                "Streams closed because their client took nothing.",
                self.streams_stalled,
            ),
            ("agentflow_runs_accepted_total", "counter", "Runs that were submitted.", self.runs_accepted),
            (
                "agentflow_runs_recovered_total",
                "counter",
                "Runs taken up at the start.",
                self.runs_recovered,
            ),
        ):
            lines += _head(name, kind, text)
            lines.append(f"{name} {_number(value)}")
        lines += _head("agentflow_runs", "gauge", "Runs that have not ended.")
        lines += [f'agentflow_runs{{state="{state}"}} {count}' for state, count in sorted(runs.items())]
        lines += _head("agentflow_http_requests_total", "counter", "Requests, by operation and status.")
        for (method, path, status), count in sorted(self._answers.items()):
            lines.append(
                f'agentflow_http_requests_total{{method="{method}",path="{path}",status="{status}"}} {count}'
            )
        lines += _head("agentflow_http_request_seconds", "histogram", "Time to answer; of streams, to begin.")
        for (method, path), histogram in sorted(self._seconds.items()):
            lines += _histogram(f'method="{method}",path="{path}"', histogram)
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> Iterable[str]:
    return (f"# HELP {name} {text}", f"# TYPE {name} {kind}")


def _histogram(labels: str, histogram: _Histogram) -> Iterable[str]:
    name, below = "agentflow_http_request_seconds", 0
    for edge, count in zip(_BUCKETS, histogram.counts, strict=True):
        below += count
        yield f'{name}_bucket{{{labels},le="{edge:g}"}} {below}'
    yield f'{name}_bucket{{{labels},le="+Inf"}} {histogram.total}'
    yield f"{name}_sum{{{labels}}} {histogram.sum!r}"
    yield f"{name}_count{{{labels}}} {histogram.total}"


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(value)
