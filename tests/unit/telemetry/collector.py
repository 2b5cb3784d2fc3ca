"""A collector on 127.0.0.1 that speaks OTLP over HTTP, and that a test can make slow, deaf or choosy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """`answer` maps the spans of a request to a status; only those of a 200 are kept. `port` may be given to
    come back where another one was."""

    def __init__(self, answer: Callable[[list[Span]], int] = lambda spans: 200, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.scopes: set[str] = set()
        self.metrics: dict[str, list[Any]] = {}
        self.logs: list[LogRecord] = []
        self.headers: list[dict[str, str]] = []
        self.requests = 0
        self.body = b""
        self.changed = threading.Condition()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer._take(self.path, body, dict(self.headers), answer)
                self.send_response(status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the client gave up, as some tests want it to

        self._server = Server(("127.0.0.1", port), Handler)
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _take(
        self, path: str, body: bytes, headers: dict[str, str], answer: Callable[[list[Span]], int]
    ) -> int:
        with self.changed:
            self.requests += 1
            self.headers.append(headers)
            self.changed.notify_all()
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics.setdefault(metric.name, []).append(metric)
            return 200
        if path == "/v1/logs":
            with self.changed:
                for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                    self.logs += [record for scope in resource.scope_logs for record in scope.log_records]
                self.changed.notify_all()
            return 200
        request = ExportTraceServiceRequest.FromString(body)
        found = [span for r in request.resource_spans for s in r.scope_spans for span in s.spans]
        status = answer(found)
        if status == 200:
            with self.changed:
                self.spans += found
                for resource in request.resource_spans:
                    self.resources.append(attributes(resource.resource.attributes))
                    self.scopes |= {f"{s.scope.name} {s.schema_url}" for s in resource.scope_spans}
                self.changed.notify_all()
        return status

    def wait(self, ready: Callable[[Collector], bool], timeout: float = 30) -> None:
        """Until `ready`; blocks, so a test on a loop calls it in a thread."""
        with self.changed:
            assert self.changed.wait_for(lambda: ready(self), timeout), "the collector waited in vain"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def attributes(pairs: Any) -> dict[str, Any]:
    """The attributes of a span, an event, a link or a resource."""
    return {pair.key: value_of(pair.value) for pair in pairs}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
