"""Events have the wire form of page 000 §6, now and in every later release."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import ConfigurationError, LogCorrupt
from agentflow.events import catalogue, envelope
from agentflow.events.catalogue import (
    TERMINAL_TYPES,
    TYPES,
    Custom,
    WorkflowPaused,
    WorkflowStepWaiting,
    WorkflowWaiting,
)
from agentflow.events.envelope import (
    Event,
    StoredEvent,
    Trace,
    Unknown,
    decode,
    encode,
)
from agentflow.events.ids import Ids
from agentflow.events.sealing import seal
from agentflow.events.tracing import RunTracer
from tests.unit.events.samples import SAMPLES, event_of, stored_form

GOLDEN = Path(__file__).parent / "golden"
TS = 1_769_903_999_000_001


def sealed(event_type):
    event = event_of(event_type, offset=3, ts=TS)
    return event, stored_form(event, TS)


@pytest.mark.parametrize("event_type", SAMPLES)
def test_an_event_has_its_golden_bytes(event_type):
    event, stored = sealed(event_type)
    golden = (GOLDEN / f"{event_type}.json").read_bytes().removesuffix(b"\n")
    assert stored == StoredEvent(3, TS, event_type, golden)
    assert decode(golden) == event
    assert encode(decode(golden)) == golden


def test_every_golden_file_is_a_sample():
    assert {path.stem for path in GOLDEN.glob("*.json")} == {*SAMPLES, "catalogue"}


def test_the_catalogue_only_gains_optional_fields():
    """`?` marks a field that may be absent; what stands here was released."""
    released = json.loads((GOLDEN / "catalogue.json").read_text())
    today = {
        name: [f.encode_name + ("" if f.default is not msgspec.UNSET else "?") for f in fields(cls)]
        for name, cls in TYPES.items()
    }
    assert today == released


def fields(cls):
    return msgspec.structs.fields(cls)


def test_each_type_has_the_struct_of_its_name():
    for name, cls in TYPES.items():
        assert cls.__name__ == "".join(w.capitalize() for w in name.replace(".", "_").split("_"))
        assert name == cls.EVENT_TYPE
        assert getattr(catalogue, cls.__name__) is cls
    assert set(TYPES) >= TERMINAL_TYPES


def test_the_catalogue_exports_what_it_says():
    assert sorted(catalogue.__all__, key=lambda n: (not n.isupper(), n)) == catalogue.__all__
    for name in catalogue.__all__:
        assert hasattr(catalogue, name)


def seal_one(event_type, **more):
    (stored,) = seal([SAMPLES[event_type]], workflow_id="wf_1", first=3, ts=TS, ids=Ids(lambda: TS), **more)
    return stored


@pytest.mark.parametrize("event_type", SAMPLES)
def test_sealing_makes_the_golden_envelope(event_type):
    """But for the attempt and the span of the samples, which no batch without a tracer has."""
    golden = msgspec.structs.replace(event_of(event_type, offset=3, ts=TS), attempt=None, trace=None)
    stored = seal_one(event_type)
    event = decode(stored.body)
    assert stored == stored_form(msgspec.structs.replace(golden, id=event.id), TS)


def test_the_step_of_the_envelope_is_that_of_the_data():
    assert decode(seal_one("workflow.step_waiting").body).step == "assess"
    assert decode(seal_one("system.error").body).step is None


def test_a_batch_has_rising_ids_consecutive_offsets_and_one_time():
    batch = [SAMPLES["workflow.started"], SAMPLES["workflow.step_started"], SAMPLES["system.error"]]
    stored = seal(batch, workflow_id="wf_1", first=7, ts=TS, ids=Ids(), tracer=RunTracer("wf_1"))
    events = [decode(row.body) for row in stored]
    assert [e.offset for e in events] == [row.offset for row in stored] == [7, 8, 9]
    assert len({e.timestamp for e in events}) == 1
    assert sorted({e.id for e in events}) == [e.id for e in events]
    assert [e.trace is not None for e in events] == [True, True, False]


def test_a_batch_that_is_sent_again_has_the_same_spans_until_it_is_acknowledged():
    """The tracer has gone on meanwhile: the step of the call has ended."""
    tracer, taken = RunTracer("wf_1"), []
    started = SAMPLES["workflow.step_started"]
    call = msgspec.structs.replace(
        SAMPLES["model.call_started"], activation=started.activation, iteration=None
    )
    ended = msgspec.structs.replace(
        SAMPLES["workflow.step_completed"], activation=started.activation, iteration=None
    )
    for first, batch in ((0, [started]), (1, [call]), (2, [ended]), (1, [call])):
        stored = seal(batch, workflow_id="wf_1", first=first, ts=TS, ids=Ids(), tracer=tracer)
        taken.append(decode(stored[0].body).trace)
    assert taken[1] == taken[3]
    assert taken[1].parent_span_id == taken[0].span_id
    tracer.acknowledge(1)
    assert tracer.take_batch(1, [ended]).spans() == [None]


def test_a_custom_event_is_the_callers_object_alone():
    event, stored = sealed("custom.progress")
    assert event.type == "custom.progress"
    assert json.loads(stored.body)["data"] == {"percent": 40, "name": "inner"}
    assert decode(stored.body).data == Custom(name="progress", data={"percent": 40, "name": "inner"})


def test_a_type_of_a_later_release_is_kept_as_it_is():
    head = b'{"id":"evt_1","offset":0,"timestamp":"t","type":"dream.began","workflow_id":"wf_1"'
    body = head + b',"data":{"a":[1]}}'
    event = decode(body)
    assert event.data == Unknown(type="dream.began", data={"a": [1]})
    assert encode(event) == body


def test_fields_of_a_later_release_are_passed_over():
    _, stored = sealed("workflow.step_waiting")
    body = json.loads(stored.body)
    body["mood"] = body["data"]["mood"] = {"new": True}
    body["trace"]["flags"] = 1
    event = decode(json.dumps(body).encode())
    assert isinstance(event.data, WorkflowStepWaiting)
    assert (event.data.for_, event.data.ref) == ("approval", "req_01")
    assert event.trace == Trace(trace_id="0af7" * 8, span_id="b7ad" * 4, parent_span_id="00f0" * 4)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"id":"e"}',
        b"\xff\xfe",
        b'{"id":"e","offset":0,"timestamp":"t","type":"workflow.waiting","workflow_id":"w","data":{}}',
        b'{"id":"e","offset":0,"timestamp":"t","type":"dream.began","workflow_id":"w","data":[]}',
        b'{"id":"e","offset":"0","timestamp":"t","type":"output","workflow_id":"w","data":{}}',
    ],
)
def test_bytes_that_are_no_event_are_corruption(body):
    with pytest.raises(LogCorrupt, match="cannot be read"):
        decode(body)


# -- meanings that changed


@pytest.fixture
def later_release(monkeypatch):
    """A release in which `workflow.paused` has changed its meaning twice, and nothing else has."""

    def first(data):  # version 1 said why in a sentence alone
        return {"reason": "operator", "detail": data["why"]}

    def second(data):  # version 2 wrote the reason in capitals
        return {**data, "reason": data["reason"].lower()}

    monkeypatch.setattr(envelope, "SCHEMA_VERSION", 3)
    steps = {("workflow.paused", 1): first, ("workflow.paused", 2): second}
    monkeypatch.setattr(envelope, "UPCASTERS", steps)


def older(name):
    return (GOLDEN / "older" / f"{name}.json").read_bytes().removesuffix(b"\n")


@pytest.mark.parametrize(("version", "reason"), [(1, "operator"), (2, "budget"), (3, "quota")])
def test_an_event_of_any_older_form_is_read_with_todays_meaning(later_release, version, reason):
    body = older(f"workflow.paused.{version}")
    event = decode(body)
    assert event.data == WorkflowPaused(reason=reason, detail="for lunch")
    assert event.schema_version == 3
    assert decode(encode(event)) == event  # what is written again says that it is of today


def test_an_event_whose_meaning_did_not_change_needs_no_step(later_release):
    event = decode(older("workflow.waiting.1"))
    assert event.data == WorkflowWaiting(requests=("req_1",), timers=(), signals=())


def test_what_this_release_writes_says_its_version_unless_it_is_the_first(later_release, monkeypatch):
    assert b'"schema_version":3' in seal_one("workflow.completed").body
    monkeypatch.setattr(envelope, "SCHEMA_VERSION", 1)
    assert b"schema_version" not in seal_one("workflow.completed").body


def test_a_run_that_a_later_release_goes_on_with_has_events_of_both(later_release):
    forms = [older(f"workflow.paused.{version}") for version in (1, 2, 3)]
    assert [decode(body).data.reason for body in forms] == ["operator", "budget", "quota"]


def test_an_event_of_a_later_release_is_not_guessed_at():
    with pytest.raises(ConfigurationError, match="newer agentflow") as caught:
        decode(older("workflow.paused.2"))
    assert caught.value.hint


def test_a_step_that_drops_what_is_needed_is_told(later_release, monkeypatch):
    monkeypatch.setattr(envelope, "UPCASTERS", {})
    with pytest.raises(LogCorrupt, match="reason"):
        decode(older("workflow.paused.1"))


def test_the_version_of_a_run_counts_for_events_that_do_not_say_theirs(later_release):
    body = older("workflow.paused.2").replace(b',"schema_version":2', b"")
    assert decode(body, schema_version=2).data.reason == "budget"


def test_events_do_not_change():
    event, stored = sealed("workflow.completed")
    for value, field in ((event, "offset"), (event.data, "output"), (stored, "body")):
        with pytest.raises(AttributeError):
            setattr(value, field, 1)
    assert isinstance(event, Event)
