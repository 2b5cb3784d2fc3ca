"""Gives spans to an exporter, and knows what became of them: sent, refused for good, or to be sent again.

Runs in the telemetry thread and may block. The one module that makes exporters; imported only when spans are
exported.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from opentelemetry import context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from agentflow.errors import ConfigurationError
from agentflow.logs import get_logger
from agentflow.telemetry.projector import NotSent
from agentflow.telemetry.readable import Readables
from agentflow.telemetry.settings import TelemetrySettings
from agentflow.telemetry.span import Span

__all__ = ["Sender", "open_sender"]

_log = get_logger("agentflow.telemetry")

_REDIRECTION = 300
_REFUSED_FOR_GOOD = frozenset({400, 413, 422})
"""Answers that say something about the data, which will be no better the next time. Others (a wrong token, a
wrong path, too many requests) say something about the world, which may change."""


_REQUEST_SPANS = 256
_REQUEST_BYTES = 4 << 20
"""What a request holds at most; collectors and what stands before them refuse larger ones."""

_ABOUT_DATA = ("Failed to encode", "Dropping span batch")
"""How the exporter begins to say that it will never send these spans."""


class Sender:
    """A SpanSink over an OpenTelemetry exporter. `source` names the logger that the exporter complains to."""

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        answers: Answers | None = None,
        source: str = "",
        convention: str = "gen_ai_latest_experimental",
    ) -> None:
        self._exporter = exporter
        self._answers = answers or Answers()
        self._readables = Readables(convention)
        self._quiet = _Quiet()
        self._logger = logging.getLogger(source) if source else None
        if self._logger is not None:
            self._logger.addFilter(self._quiet)
        self._closed = False

    def send(self, spans: Sequence[Span]) -> int:
        """Implement SpanSink; a refused request is divided, to lose as little as possible."""
        token = context.attach(context.set_value("suppress_instrumentation", True))
        self._quiet.thread = threading.get_ident()
        try:
            return self._send([self._readables.of(some) for some in _requests(spans)])
        finally:
            self._quiet.thread = None
            context.detach(token)

    def _send(self, requests: list[list[ReadableSpan]]) -> int:
        done = refused = 0
        left = requests[::-1]
        while left:
            some = left.pop()
            reason = self._export(some)
            if reason is None:
                refused += self._answers.rejected()
            elif self._answers.last() not in _REFUSED_FOR_GOOD and not reason.startswith(_ABOUT_DATA):
                raise NotSent(reason, done=done, refused=refused)
            elif len(some) == 1:
                refused += 1
                _log.error("span_refused", span=some[0].name, reason=reason)
            else:
                middle = len(some) // 2
                left += [some[middle:], some[:middle]]
                continue
            done += len(some)
        return refused

    def _export(self, spans: list[ReadableSpan]) -> str | None:
        """Send one request; return why it failed, or None."""
        self._quiet.said = ""
        self._answers.clear()
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            return self._quiet.said or "the exporter failed"
        status = self._answers.last()
        if status is not None and status >= _REDIRECTION:  # the exporter takes it for a success
            return f"the address answers {status}, a redirection: it is not that of a collector"
        return None

    @property
    def struggling(self) -> bool:
        """As SpanSink: the exporter complains, and tries again by itself."""
        return bool(self._quiet.said)

    def close(self) -> None:
        """Implement SpanSink."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()
            if self._logger is not None:
                self._logger.removeFilter(self._quiet)


def _requests(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Return the spans in order, as many to a request as it may hold."""
    first = size = 0
    for i, span in enumerate(spans):
        size += sum(len(value) for value in span.attributes.values() if isinstance(value, str))
        if i + 1 - first == _REQUEST_SPANS or size > _REQUEST_BYTES:
            yield spans[first : i + 1]
            first, size = i + 1, 0
    if first < len(spans):
        yield spans[first:]


class Answers:
    """The newest HTTP answer; the exporter itself tells only whether it failed."""

    def __init__(self) -> None:
        self._status: int | None = None
        self._body = b""

    def clear(self) -> None:
        """Reset before a request."""
        self._status, self._body = None, b""

    def rejected(self) -> int:
        """Return how many spans of a request that was taken the collector did not take."""
        if not self._body:
            return 0
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        try:
            partial = ExportTraceServiceResponse.FromString(self._body).partial_success
        except Exception:  # not every collector answers as the protocol asks
            return 0
        if partial.rejected_spans:
            _log.error("spans_rejected", spans=partial.rejected_spans, reason=partial.error_message)
        return partial.rejected_spans

    def last(self) -> int | None:
        """Return the response to the request, None if there was none."""
        return self._status

    def note(self, response: Any, *_: Any, **__: Any) -> None:
        """Record a response; a hook of `requests`."""
        self._status, self._body = response.status_code, response.content


class _Quiet(logging.Filter):
    """Keeps what the exporter logs while it works for us: said once, in our words, and not at each try."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: int | None = None
        self.said = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.said = record.getMessage()
        return False


def open_sender(settings: TelemetrySettings) -> Sender:
    """Open the sender that the settings name. Raises ConfigurationError if its package is not installed.

    The console is stderr: stdout belongs to the results of commands.
    """
    if settings.traces == "console":
        return Sender(ConsoleSpanExporter(out=sys.stderr, formatter=_line), convention=settings.convention)
    if settings.protocol == "grpc":
        name = "opentelemetry.exporter.otlp.proto.grpc"
        module: Any = import_module(f"{name}.trace_exporter")
        return Sender(module.OTLPSpanExporter(), source=f"{name}.exporter", convention=settings.convention)
    try:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigurationError(
            "spans cannot be sent: the package opentelemetry-exporter-otlp-proto-http is not installed",
            hint='pip install "agentflow[otel]"',
        ) from error
    answers, session = Answers(), requests.Session()
    session.hooks["response"].append(answers.note)
    return Sender(
        OTLPSpanExporter(session=session),
        answers=answers,
        source=OTLPSpanExporter.__module__,
        convention=settings.convention,
    )


def _line(span: ReadableSpan) -> str:
    return span.to_json(indent=None) + "\n"
