"""Every instrument of the product, defined once; and the Tally, which keeps totals for a page of metrics.

The SDK of OpenTelemetry takes 20 µs for a measurement, since it serves any number of readers and views: in
a small run, a fifth of all it costs. So it measures when metrics are sent. What is always measured goes to
the Tally, which takes a fifth of that and keeps totals by attributes, as Prometheus wants them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from agentflow.telemetry import conventions as c

__all__ = ["OBSERVED", "Counter", "Gauge", "Histogram", "Instrument", "Instruments", "Reading", "Tally"]

S = TypeVar("S", bound=Sequence[float])

Gauge = Callable[[], Mapping[str, int]]
Attributes = Mapping[str, Any]

_MOST_SERIES = 2_000
_NOTHING: frozenset[tuple[str, Any]] = frozenset()
_OVERFLOW = frozenset({("otel.metric.overflow", True)})


class Instrument(msgspec.Struct, frozen=True):
    """What is measured. `unit` as UCUM writes it; `buckets` are a histogram's edges; a total `grows`."""

    name: str
    unit: str
    about: str
    buckets: tuple[float, ...] | None = None
    grows: bool = False


OBSERVED = {
    found.name: found
    for found in (
        Instrument(c.MAILBOX_DEPTH, "{message}", "Messages that wait in mailboxes."),
        Instrument(c.DEAD_LETTERS, "{message}", "Messages that no actor handled.", grows=True),
        Instrument(c.QUEUE_DEPTH, "{item}", "Runs, model calls and calls of functions that wait for a slot."),
        Instrument(
            c.WORKER_HEALTH,
            "1",
            "Providers of models and services of functions: 0 unavailable, 1 degraded, 2 healthy.",
        ),
        Instrument(c.SPANS_EXPORTED, "{span}", "Spans that were sent.", grows=True),
        Instrument(c.SPANS_REFUSED, "{span}", "Spans that the collector refused for good.", grows=True),
        Instrument(
            c.EXPORT_FAILURES,
            "{request}",
            "Requests to the collector that failed and are made again.",
            grows=True,
        ),
    )
}
"""Instruments that are read at each collection, by name."""


class Histogram(Protocol):
    """Takes single measurements."""

    def record(self, amount: float, attributes: Attributes | None = None) -> None:
        """Record one measurement."""


class Counter(Protocol):
    """Takes what is added to a total."""

    def add(self, amount: int, attributes: Attributes | None = None) -> None:
        """Add to the counter."""


class Instruments:
    """Those that events are measured with, made by the keeper of the measurements."""

    def __init__(
        self, histogram: Callable[[Instrument], Histogram], counter: Callable[[Instrument], Counter]
    ) -> None:
        def of(
            name: str, unit: str, about: str, buckets: tuple[float, ...] = c.DURATION_BUCKETS
        ) -> Histogram:
            return histogram(Instrument(name, unit, about, buckets))

        def total(name: str, unit: str, about: str) -> Counter:
            return counter(Instrument(name, unit, about, grows=True))

        self.tokens = of(c.TOKEN_USAGE, "{token}", "Number of input and output tokens used.", c.TOKEN_BUCKETS)
        self.operation = of(c.OPERATION_DURATION, "s", "GenAI operation duration.")
        self.first_chunk = of(
            c.FIRST_CHUNK, "s", "Time to the first chunk of a streamed answer.", c.CHUNK_BUCKETS
        )
        self.tool = of(c.TOOL_DURATION, "s", "Duration of tool calls.")
        self.node = of(c.NODE_DURATION, "s", "Duration of steps.")
        self.superstep = of(c.SUPERSTEP_DURATION, "s", "Duration of supersteps.")
        self.run = of(c.RUN_DURATION, "s", "Duration of runs, by how they ended.", c.RUN_BUCKETS)
        self.commit = of(
            c.COMMIT_DURATION, "s", "From handing a batch to the log until it is durable.", c.COMMIT_BUCKETS
        )
        self.events = total(c.EVENTS, "{event}", "Events that became durable.")
        self.executions = total(c.NODE_EXECUTIONS, "{execution}", "Steps that ended.")
        self.retries = total(c.NODE_RETRIES, "{retry}", "Attempts that are made again.")


class Reading(msgspec.Struct, frozen=True):
    """The totals of an instrument: attributes and numbers of each series. A histogram has the counts of its
    buckets, the last one open, and behind them the sum; anything else has one number."""

    instrument: Instrument
    series: Sequence[tuple[Attributes, Sequence[float]]]


class Tally:
    """Totals since its beginning, by instrument and attributes; at most 2,000 series of each, what comes
    beyond is counted in one that says so. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Total | _Buckets] = []
        self._observed: list[tuple[Instrument, str | None, Gauge]] = []

    def histogram(self, instrument: Instrument) -> Histogram:
        """Create a histogram."""
        made = _Buckets(instrument, self._lock)
        self._kept.append(made)
        return made

    def counter(self, instrument: Instrument) -> Counter:
        """Create a counter."""
        made = _Total(instrument, self._lock)
        self._kept.append(made)
        return made

    def observe(self, name: str, attribute: str | None, read: Gauge) -> None:
        """Create one of OBSERVED, read when the page is asked for; `attribute` names what its keys are."""
        self._observed.append((OBSERVED[name], attribute, read))

    def read(self) -> list[Reading]:
        """Return all that has been measured."""
        with self._lock:
            found = [kept.read() for kept in self._kept]
        for instrument, attribute, read in self._observed:
            name = None if attribute is None else f"agentflow.{attribute}"
            series = [({} if name is None else {name: key}, [value]) for key, value in read().items()]
            found.append(Reading(instrument, series))
        return found


class _Series(Generic[S]):
    """Values by attributes, in whatever order these come."""

    def __init__(self, instrument: Instrument, lock: threading.Lock) -> None:
        self.instrument = instrument
        self._series: dict[frozenset[tuple[str, Any]], S] = {}
        self._lock = lock

    def read(self) -> Reading:
        """Return the present value; the caller holds the lock."""
        return Reading(self.instrument, [(dict(key), copy(value)) for key, value in self._series.items()])

    def _new(self, key: frozenset[tuple[str, Any]], value: S) -> S:
        """Return the value of a series that is not there yet."""
        if len(self._series) >= _MOST_SERIES:
            key = _OVERFLOW
        return self._series.setdefault(key, value)


class _Total(_Series[list[int]]):
    """Each value is a list of one."""

    def add(self, amount: int, attributes: Attributes | None = None) -> None:
        key = frozenset(attributes.items()) if attributes else _NOTHING
        with self._lock:
            found = self._series.get(key)
            if found is None:
                found = self._new(key, [0])
            found[0] += amount


class _Buckets(_Series[list[float]]):
    def __init__(self, instrument: Instrument, lock: threading.Lock) -> None:
        super().__init__(instrument, lock)
        self._edges = instrument.buckets or ()

    def record(self, amount: float, attributes: Attributes | None = None) -> None:
        key = frozenset(attributes.items()) if attributes else _NOTHING
        bucket = bisect_left(self._edges, amount)
        with self._lock:
            found = self._series.get(key)
            if found is None:
                found = self._new(key, [0] * (len(self._edges) + 2))
            found[bucket] += 1
            found[-1] += amount
