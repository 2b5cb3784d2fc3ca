"""Sends the log records of the product over OTLP, with the ids of the trace and the span that they belong to.

Records are kept in memory only: what a collector does not take in time is dropped and counted. Nothing that
an exporter says is sent, so that no failure feeds itself.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context, get_current
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    ConsoleLogRecordExporter,
    LogRecordExporter,
)

from agentflow import known_secrets
from agentflow.errors import ConfigurationError
from agentflow.logs import get_logger, span_of_work
from agentflow.telemetry import conventions as c
from agentflow.telemetry.readable import resource_of
from agentflow.telemetry.settings import TelemetrySettings

__all__ = ["LogSender"]

_log = get_logger("agentflow.telemetry")

_LOGGERS: Final = ("agentflow", "actors")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
)


class LogSender(logging.Handler):
    """Handler of the loggers below `agentflow` and `actors`, from `start` to `close_within`.

    `exporter` stands in for the one that the settings name. Raises ConfigurationError if its package is not
    installed.
    """

    def __init__(self, settings: TelemetrySettings, exporter: LogRecordExporter | None = None) -> None:
        super().__init__()
        self._provider = LoggerProvider(resource_of(instance=True), shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(exporter or _exporter(settings)))
        self._logger = self._provider.get_logger(c.SCOPE, schema_url=c.PINNED[settings.convention].schema_url)

    def start(self) -> None:
        """Begin to send."""
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)

    def close_within(self, seconds: float) -> None:
        """Send what there is, for at most so many seconds; blocks for as long."""
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
        ending = threading.Thread(target=self._provider.shutdown, name="agentflow-logs-end", daemon=True)
        ending.start()
        ending.join(seconds)
        if ending.is_alive():
            _log.warning("log_records_dropped", hint="the collector did not answer in time")
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Implement Handler."""
        try:
            self._logger.emit(
                LogRecord(
                    timestamp=round(record.created * 1e9),
                    context=_context_of_record(),
                    severity_text=record.levelname,
                    severity_number=_severity(record.levelno),
                    body=known_secrets.hide(record.getMessage()),
                    attributes=_attributes(record),
                )
            )
        except Exception:
            self.handleError(record)


def _context_of_record() -> Context:
    """Return the span that is current where the record is written: that of a call, else of the work."""
    if trace.get_current_span().get_span_context().is_valid:
        return get_current()
    work = span_of_work()
    if work is None:
        return Context()
    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if work.sampled else trace.TraceFlags.DEFAULT)
    span = trace.SpanContext(int(work.trace_id, 16), int(work.span_id, 16), False, flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(span), Context())


def _severity(level: int) -> SeverityNumber:
    return next((number for least, number in _SEVERITIES if level >= least), SeverityNumber.DEBUG)


def _attributes(record: logging.LogRecord) -> Mapping[str, Any]:
    found: dict[str, Any] = {"code.namespace": record.name}
    for name, value in vars(record).items():
        if name not in _STANDARD and value is not None:
            plain = isinstance(value, str | int | float | bool)
            found[name] = known_secrets.hide(value if plain else repr(value))
    if record.exc_info and record.exc_info[0] is not None:
        found[c.ERROR_TYPE] = record.exc_info[0].__name__
        found["exception.message"] = known_secrets.hide(str(record.exc_info[1]))
    return found


def _exporter(settings: TelemetrySettings) -> LogRecordExporter:
    if settings.logs == "console":
        return ConsoleLogRecordExporter(out=sys.stderr)
    name = "grpc" if settings.logs_protocol == "grpc" else "http"
    try:
        module: Any = import_module(f"opentelemetry.exporter.otlp.proto.{name}._log_exporter")
    except ImportError as error:
        raise ConfigurationError(
            f"log records cannot be sent: the package opentelemetry-exporter-otlp-proto-{name} is missing",
            hint='pip install "agentflow[otel]"',
        ) from error
    return module.OTLPLogExporter()
