"""Ids sort by the order in which they were made; times are RFC 3339 in UTC with six digits."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.events.ids import Ids, iso, micros, new_id

ULID = re.compile(r"evt_[0-7][0-9A-HJKMNP-TV-Z]{25}")


def test_an_id_has_the_form_of_a_ulid():
    assert ULID.fullmatch(new_id("evt_"))
    assert new_id("evt_") < new_id("evt_")


def test_the_time_and_the_randomness_are_the_given_ones():
    ids = Ids(clock=lambda: 1_469_918_176_385_999, random=lambda bits: 0)
    assert (
        ids.ulid("evt_") == "evt_01ARYZ6S410000000000000000"
    )  # the time of the ULID specification's example
    assert Ids(clock=lambda: 0, random=lambda bits: 2**bits - 1).ulid("x_") == "x_0000000000ZZZZZZZZZZZZZZZZ"


@given(st.lists(st.integers(0, 2**47), min_size=1, max_size=50), st.integers(0, 2**80 - 1))
def test_ids_rise_whatever_the_clock_does(times, seed):
    clock = iter([t * 1000 for t in times])
    ids = Ids(clock=lambda: next(clock), random=lambda bits: seed)
    made = [ids.ulid("evt_") for _ in times]
    assert made == sorted(set(made))
    assert all(ULID.fullmatch(i) for i in made)


@pytest.mark.parametrize("seed", [2**20 - 1, 2**80 - 1, 2**40 - 1])
def test_ids_rise_over_a_carry(seed):
    ids = Ids(clock=lambda: 5_000, random=lambda bits: seed)
    made = [ids.ulid("evt_") for _ in range(5)]
    assert made == sorted(set(made))


def test_equal_seams_give_equal_ids():
    def sequence():
        clock = iter(range(0, 100_000, 700))
        ids = Ids(clock=lambda: next(clock), random=lambda bits: 12345)
        return [ids.ulid("evt_") for _ in range(100)]

    assert sequence() == sequence()


@given(st.integers(0, 253_402_300_799_999_999))
def test_times_are_exact_both_ways(ts):
    text = iso(ts)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert micros(text) == ts
    assert datetime.fromisoformat(text) == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ts)


def test_times_of_other_zones_are_understood_and_times_without_zone_refused():
    assert micros("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(ValueError, match="time zone"):
        micros("1970-01-01T00:00:00")
