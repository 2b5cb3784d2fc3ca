"""What is packed is what is unpacked, byte for byte, and no value is stored twice."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.events.envelope import StoredEvent
from agentflow.events.packing import VARIED_TIMES, pack, unpack

EVENTS = st.lists(
    st.tuples(st.integers(0, 1 << 60), st.text(min_size=1), st.binary()), min_size=1, max_size=9
)


def unpacked(packed, events):
    return unpack(packed, events[0].offset, events[-1].ts, [event.type for event in events])


@settings(deadline=None)
@given(st.integers(0, 1 << 50), EVENTS)
def test_any_bytes_come_back(first, values):
    events = [StoredEvent(first + n, *value) for n, value in enumerate(values)]
    packed = pack(events)
    assert unpacked(packed, events) == events
    assert bool(packed[0] & VARIED_TIMES) == (len({event.ts for event in events}) > 1)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["input", "output", "parameters", "other"]), min_size=1, max_size=6), st.data()
)
def test_values_that_are_shared_come_back(members, data):
    """Whole values, parts of others, and the same one several times."""
    values = [{"text": "a" * 3_000}, ["b" * 1_200, {"text": "a" * 3_000}], "c" * 1_025, {"n": 1}]
    events = []
    for offset, member in enumerate(members):
        value = data.draw(st.sampled_from([*values, {"within": values}]))
        body = json.dumps({"id": f"evt_{offset}", "data": {member: value, "z": value}}, separators=(",", ":"))
        events.append(StoredEvent(offset, 1, "t", body.encode()))
    assert unpacked(pack(events), events) == events


def noise(size):
    return "".join(hashlib.sha512(b"%d" % n).hexdigest() for n in range(size // 128))


def step(value):
    """The four events of a step whose function gives `value`, which is the input of the next one."""
    text = json.dumps(value, separators=(",", ":"))
    names = ["output", "output", "input", "parameters"]
    bodies = [
        f'{{"id":"evt_{n}","data":{{"step_id":"a","{name}":{text},"n":1}},"step":"a"}}'
        for n, name in enumerate(names)
    ]
    return [StoredEvent(n, 7, f"type.{n}", body.encode()) for n, body in enumerate(bodies)], len(text)


@pytest.mark.parametrize("size", [1 << 11, 1 << 16, 1 << 20])
def test_a_value_that_is_handed_on_is_stored_once(size):
    events, length = step({"text": noise(size)})
    packed = pack(events)
    assert len(packed) < length + 500
    assert unpacked(packed, events) == events


def test_the_value_within_a_larger_one_is_stored_once():
    """As the output of an agent, which holds that of its step."""
    text = noise(1 << 19)
    inner = json.dumps({"text": text}, separators=(",", ":"))
    whole = f'{{"data":{inner},"metadata":{{"turns":1}}}}'
    bodies = [
        f'{{"id":"evt_{n}","data":{{"output":{value}}}}}' for n, value in enumerate([whole, inner, whole])
    ]
    events = [StoredEvent(n, 1, "t", body.encode()) for n, body in enumerate(bodies)]
    packed = pack(events)
    assert len(packed) < len(whole) + 500
    assert unpacked(packed, events) == events
