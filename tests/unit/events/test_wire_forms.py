"""Events have the wire form of page 000 §6, now and in every later release."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from agentflow.errors import LogCorrupt
from agentflow.events import catalogue
from agentflow.events.catalogue import TERMINAL_TYPES, TYPES, Custom, WorkflowStarted, WorkflowStepWaiting
from agentflow.events.envelope import (
    Draft,
    Event,
    StoredEvent,
    Trace,
    Unknown,
    decode,
    encode,
    seal,
    upcast,
)
from tests.unit.events.samples import SAMPLES, draft_of

GOLDEN = Path(__file__).parent / "golden"
TS = 1_769_903_999_000_001


def sealed(event_type):
    return seal(draft_of(event_type), workflow_id="wf_1", offset=3, ts=TS, id="evt_01")


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


def test_the_step_of_the_envelope_is_that_of_the_data():
    event, _ = seal(draft_of("workflow.step_waiting"), workflow_id="wf_1", offset=0, ts=TS, id="evt_01")
    assert event.step == "assess"
    assert seal(Draft(SAMPLES["system.error"]), workflow_id="w", offset=0, ts=TS, id="e")[0].step is None
    assert (
        seal(Draft(SAMPLES["custom.progress"], "s"), workflow_id="w", offset=0, ts=TS, id="e")[0].step == "s"
    )


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


def test_data_of_an_older_schema_takes_the_upcast_way():
    event, stored = sealed("workflow.started")
    assert isinstance(event.data, WorkflowStarted)
    assert decode(stored.body, schema_version=0) == event
    assert upcast("workflow.started", 0, {"a": 1}) == {"a": 1}


def test_events_do_not_change():
    event, stored = sealed("workflow.completed")
    for value, field in ((event, "offset"), (event.data, "output"), (stored, "body")):
        with pytest.raises(AttributeError):
            setattr(value, field, 1)
    assert isinstance(event, Event)
