"""Telemetry of a Runtime: spans and metrics of one store and one process, started and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agentflow.events.catalogue import RunEvent
from agentflow.events.log import EventLog
from agentflow.telemetry.projector import Projector, SpanSink
from agentflow.telemetry.sampling import is_sampled
from agentflow.telemetry.settings import TelemetrySettings, read_settings
from agentflow.telemetry.span import Limits
from agentflow.threads import in_thread

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader

    from agentflow.telemetry.instruments import Gauge, Tally
    from agentflow.telemetry.log_records import LogSender
    from agentflow.telemetry.metrics import Metrics

__all__ = ["Telemetry", "limits_of"]

_LAST_FLUSH_S = 1.0

Observer = Callable[[str, int, Sequence[RunEvent], float], None]


class Telemetry:
    """Sends spans of everything that the store commits, and measures what this process commits.

    Without `settings` those of the environment. `sink` stands in for the exporter that they name, `readers`
    are metric readers beside theirs: with one, metrics are kept although nothing is sent. So too with a
    `tally`, which costs a tenth of a reader. ConfigurationError if the exporter's package is not installed.
    """

    def __init__(
        self,
        settings: TelemetrySettings | None = None,
        *,
        sink: SpanSink | None = None,
        readers: Sequence[MetricReader] = (),
        tally: Tally | None = None,
    ) -> None:
        self.settings = settings if settings is not None else read_settings()
        self.projector: Projector | None = None
        self._sink = sink
        if sink is None and self.settings.traces != "none":
            from agentflow.telemetry.sender import open_sender

            self._sink = open_sender(self.settings)
        self._metrics: Metrics | None = None
        self._logs: LogSender | None = None
        if self.settings.logs != "none":
            from agentflow.telemetry.log_records import LogSender

            self._logs = LogSender(self.settings)
        self._gauges: Mapping[str, Gauge] = {}
        if readers or tally is not None or self.settings.metrics != "none":
            from agentflow.telemetry.metrics import Metrics

            self._metrics = Metrics(
                self.settings,
                readers=readers,
                tally=tally,
                gauges=lambda: self._gauges,
            )

    @property
    def observer(self) -> Observer | None:
        """What the EventBus calls for each durable batch: (workflow id, time in µs, events, seconds)."""
        return None if self._metrics is None else self._metrics.committed

    async def start(
        self,
        log: EventLog,
        *,
        gauges: Mapping[str, Gauge] | None = None,
        describe: Callable[[str, str], str | None] | None = None,
    ) -> None:
        """Begin. `gauges` are read on the loop, by the name of their metric; `describe` gives the description
        of a function by its service and name. The log must stay open until `aclose` is done."""
        self._gauges = gauges or {}
        if self._sink is not None:
            self.projector = Projector(
                log,
                self._sink,
                limits_of(self.settings),
                capture=self.settings.capture_content,
                sampled=partial(is_sampled, self.settings),
                describe=describe,
            )
            await self.projector.start()
        if self._metrics is not None:
            if self.projector is not None:
                self._metrics.show(self.projector.counts)
            self._metrics.start()
        if self._logs is not None:
            self._logs.start()

    async def aclose(self, deadline: float = 5.0) -> None:
        """Send what there is, for at most `deadline` seconds; spans that are left wait in the log.

        Metrics and log records get 1 s: a process whose collector is dead must end all the same.
        """
        last = min(deadline, _LAST_FLUSH_S)
        ends: list[Awaitable[None]] = []
        if self.projector is not None:
            ends.append(self.projector.aclose(deadline))
        if self._metrics is not None:
            ends.append(self._metrics.aclose(last))
        if self._logs is not None:
            ends.append(in_thread(partial(self._logs.close_within, last), "agentflow-logs-close"))
        await asyncio.gather(*ends)
        if self._sink is not None:  # also of one that never began
            self._sink.close()


def limits_of(settings: TelemetrySettings) -> Limits:
    """Return what one span may hold."""
    return Limits(settings.value_length, settings.event_count, settings.link_count)
