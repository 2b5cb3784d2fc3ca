"""What becomes of spans at an exporter: sent, sent again, divided, refused; and what is said of it."""

from __future__ import annotations

import logging
import sys

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agentflow.telemetry import read_settings
from agentflow.telemetry.projection import project
from agentflow.telemetry.projector import NotSent
from agentflow.telemetry.sender import Sender, open_sender
from tests.unit.telemetry.collector import Collector, attributes
from tests.unit.telemetry.support import (
    GOLDEN,
    LIMITS,
    STARTED,
    completed,
    golden,
    step_completed,
    step_started,
    stored,
)

OUR_NAMES = ("OTEL_", "NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(OUR_NAMES):
            monkeypatch.delenv(name)


@pytest.fixture
def spans():
    return project("wf_1", golden(GOLDEN[2]), LIMITS)[0]


def sender_to(collector, monkeypatch, **more):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    for name, value in more.items():
        monkeypatch.setenv(f"OTEL_{name}", value)
    return open_sender(read_settings())


def test_what_arrives_is_what_the_log_says(spans, monkeypatch):
    with Collector() as collector:
        sender = sender_to(
            collector,
            monkeypatch,
            SERVICE_NAME="triage",
            RESOURCE_ATTRIBUTES="deployment.environment.name=test",
            EXPORTER_OTLP_HEADERS="authorization=Bearer%20abc",
        )
        assert sender.send(spans) == 0
        sender.close()
    assert len(collector.spans) == len(spans)
    for ours, theirs in zip(spans, collector.spans, strict=True):
        assert theirs.trace_id.hex() == ours.trace_id
        assert theirs.span_id.hex() == ours.span_id
        assert theirs.parent_span_id.hex() == (ours.parent_id or "")
        assert theirs.start_time_unix_nano == ours.start * 1000
        assert theirs.end_time_unix_nano == ours.end * 1000
        assert attributes(theirs.attributes) == {k: v for k, v in ours.attributes.items() if v != []}
        assert [e.name for e in theirs.events] == [n.name for n in ours.notes]
        assert [link.span_id.hex() for link in theirs.links] == [r.span_id for r in ours.relations]
        assert theirs.status.message == (ours.error or "")
    [resource] = collector.resources
    assert resource["service.name"] == "triage"
    assert resource["deployment.environment.name"] == "test"
    assert resource["telemetry.sdk.language"] == "python"
    assert "service.instance.id" not in resource
    assert collector.scopes == {"agentflow https://opentelemetry.io/schemas/1.44.0"}
    assert collector.headers[0]["authorization"] == "Bearer abc"


def test_dropped_events_are_counted(monkeypatch):
    log = stored("wf_1", [(STARTED, 1), (step_started(), 2), (step_completed(), 3), (completed(), 4)])
    spans = project("wf_1", log, LIMITS)[0]
    spans[0].dropped_notes, spans[0].dropped_relations = 5, 6
    with Collector() as collector:
        sender = sender_to(collector, monkeypatch)
        sender.send(spans)
        sender.close()
    assert (collector.spans[0].dropped_events_count, collector.spans[0].dropped_links_count) == (5, 6)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_of_a_refused_request_only_the_bad_span_is_lost(spans, monkeypatch, caplog, status):
    def answer(found):
        return status if any(span.name == "process classify" for span in found) else 200

    with Collector(answer) as collector:
        sender = sender_to(collector, monkeypatch)
        assert sender.send(spans) == 1
        sender.close()
    assert [span.span_id.hex() for span in collector.spans] == [
        span.span_id for span in spans if span.name != "process classify"
    ]
    assert "span_refused" in caplog.text


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_an_answer_about_the_world_refuses_nothing(spans, monkeypatch, status):
    with Collector(lambda found: status) as collector:
        sender = sender_to(collector, monkeypatch)
        with pytest.raises(NotSent, match=str(status)) as caught:
            sender.send(spans)
        assert (caught.value.done, caught.value.refused) == (0, 0)
        assert collector.requests == 1
        sender.close()


def test_what_arrived_before_an_outage_is_not_sent_again(spans, monkeypatch):
    def answer(found):
        if len(found) == len(spans):
            return 400
        return 200 if found[0].span_id.hex() == spans[0].span_id else 500

    with Collector(answer) as collector:
        sender = sender_to(collector, monkeypatch)
        with pytest.raises(NotSent) as caught:
            sender.send(spans)
        sender.close()
    assert caught.value.done == len(collector.spans) == len(spans) // 2


def test_nobody_there(spans, monkeypatch):
    with Collector() as collector:
        port = collector.port
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    sender = open_sender(read_settings())
    with pytest.raises(NotSent):
        sender.send(spans)
    sender.close()
    sender.close()


def test_the_exporter_does_not_speak_for_itself(spans, monkeypatch, caplog):
    with Collector(lambda found: 500) as collector:
        sender = sender_to(collector, monkeypatch)
        with pytest.raises(NotSent):
            sender.send(spans)
        assert caplog.text == ""
        logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").error("somebody else's")
        assert "somebody else's" in caplog.text
        sender.close()


class Odd(SpanExporter):
    def __init__(self, error):
        self.error = error

    def export(self, spans):
        if self.error is None:
            return SpanExportResult.FAILURE
        raise self.error

    def shutdown(self):
        pass


def test_an_exporter_that_only_fails_is_tried_again(spans):
    with pytest.raises(NotSent, match="the exporter failed"):
        Sender(Odd(None)).send(spans)


def test_an_exporter_that_raises_leaves_the_context_as_it_was(spans):
    from opentelemetry import context

    before = context.get_current()
    with pytest.raises(SystemExit):
        Sender(Odd(SystemExit(3))).send(spans)
    assert context.get_current() == before


def test_the_console_is_stderr(spans, monkeypatch, capsys):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    sender = open_sender(read_settings())
    sender.send(spans)
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == len(spans)


def test_a_missing_package_is_named(monkeypatch):
    from agentflow.errors import ConfigurationError

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError) as caught:
        open_sender(read_settings({"OTEL_TRACES_EXPORTER": "otlp"}))
    assert "agentflow[otel]" in caught.value.hint


def test_a_redirection_is_no_success(spans, monkeypatch):
    with Collector(lambda found: 302) as collector:
        sender = sender_to(collector, monkeypatch)
        with pytest.raises(NotSent, match="302"):
            sender.send(spans)
        sender.close()


def test_what_a_collector_rejects_of_a_request_is_counted(spans, monkeypatch, caplog):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "too old"
    with Collector() as collector:
        collector.body = answer.SerializeToString()
        sender = sender_to(collector, monkeypatch)
        assert sender.send(spans) == 2
        collector.body = b"<html>thank you</html>"
        assert sender.send(spans) == 0
        sender.close()
    assert "spans_rejected" in caplog.text


def test_large_spans_go_in_several_requests(monkeypatch):
    log = stored("wf_1", [(STARTED, 1), (completed(), 2)])
    many = [project("wf_1", log, LIMITS)[0][0] for _ in range(600)]
    with Collector() as collector:
        sender = sender_to(collector, monkeypatch)
        sender.send(many)
        assert collector.requests == 3
        for span in many:
            span.attributes["agentflow.input"] = "x" * 100_000
        sender.send(many[:100])
        assert collector.requests == 3 + 3
        sender.close()
    assert len(collector.spans) == 700


def test_a_span_that_cannot_be_encoded_costs_only_itself(spans, monkeypatch, caplog):
    spans[3].name = "\ud800"
    with Collector() as collector:
        sender = sender_to(collector, monkeypatch)
        assert sender.send(spans) == 1
        sender.close()
    assert len(collector.spans) == len(spans) - 1
    assert "span_refused" in caplog.text
