"""How many large bodies the daemon takes at once, and how many values one may hold."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from agentflow.server.large_bodies import LARGE_BODY, LargeBodies, check_values
from agentflow.server.problems import Refusal

MANY = 500_001


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MANY + b"1]",
        b"[" + b"{}," * MANY + b"1]",
        b"{" + b'"":1,' * MANY + b'"":1}',
        b'["\\"",' + b"[]," * MANY + b"1]",
        b'["\\\\",' + b"[]," * MANY + b"1]",
        b"[" * MANY,
    ],
    ids=["arrays", "objects", "members", "after an escaped quote", "after a backslash", "unclosed"],
)
def test_too_many_values_are_refused_before_they_are_decoded(body: bytes):
    with pytest.raises(Refusal) as refused:
        check_values(body)
    assert refused.value.code == "payload_too_large"
    assert "500,000" in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * (MANY - 10) + b"1]",
        b'"' + b"[{:" * MANY + b'"',
        b'{"a":"' + b'\\"[' * MANY + b'"}',
        b'"' + b'\\"' * MANY + b"[" * 10,  # no text ends here: one search goes through all of it
        b"[" + b"1," * (4 * MANY) + b"1]",
    ],
    ids=["just below", "in a text", "between escaped quotes", "in a text without end", "numbers"],
)
def test_what_stands_in_texts_is_not_counted(body: bytes):
    check_values(body)


@pytest.mark.parametrize(
    "name",
    [
        lambda n: f"name {n}",
        lambda n: f"{n:017b}".replace("0", "\\\\").replace("1", '\\"'),  # escapes alone tell them apart
        lambda n: f"\\u00e9{n}",
    ],
    ids=["plain", "of escapes", "of a code point"],
)
def test_too_many_distinct_names_are_refused_before_they_are_decoded(name: Callable[[int], str]):
    """documents D3: 400,000 names took 200 ms of decoding, which holds the interpreter."""
    members = [f'"{name(number)}" : 1' for number in range(100_001)]
    with pytest.raises(Refusal) as refused:
        check_values(f"{{{','.join(members)}}}".encode())
    assert refused.value.code == "payload_too_large"
    assert "100,000 distinct names" in str(refused.value)
    check_values(f"{{{','.join(members[1:])}}}".encode())


@pytest.mark.parametrize("number", [b"9" * 4_000, b"0." + b"9" * 700], ids=["integers", "fractions"])
def test_too_many_digits_of_long_numbers_are_refused_before_they_are_decoded(number: bytes):
    """1,700 integers of 4,000 digits took 0.1 s to decode, 0.3 s to write, and held the loop for 1.2 s."""
    body = b"[" + (number + b",") * (262_144 // len(number) + 5) + b"1]"
    with pytest.raises(Refusal) as refused:
        check_values(body)
    assert refused.value.code == "payload_too_large"
    assert "262,144 digits in numbers of more than 100 digits" in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + (b"9" * 4_000 + b",") * 65 + b"1]",
        b"[" + (b"9" * 100 + b",") * 70_000 + b"1]",
        b'["' + b"9" * 7_000_000 + b'"]',
    ],
    ids=["few long ones", "many of 100 digits", "in a text"],
)
def test_other_digits_are_not_counted(body: bytes):
    check_values(body)


def test_texts_and_repeated_names_are_no_distinct_names():
    rows = [{"id": f"row {n}:", "note": f'"{n}": '} for n in range(120_000)]
    check_values(msgspec.json.encode(rows))


def test_bodies_beyond_the_limit_are_refused_before_they_are_read():
    bodies = LargeBodies()
    open_ones = [bodies.admit(LARGE_BODY + 1) for _ in range(32)]
    for one in open_ones:
        one.__enter__()
    with pytest.raises(Refusal) as refused, bodies.admit(None):
        pytest.fail("a body without an announced length was admitted")
    assert refused.value.code == "queue_full"
    with bodies.admit(LARGE_BODY):  # a small one always is
        pass
    open_ones[0].__exit__(None, None, None)
    with bodies.admit(LARGE_BODY + 1):
        assert bodies.open == 32


def test_the_limit_does_not_stand_in_the_way_of_a_large_table():
    rows = [{"id": n, "name": f"row {n}", "price": n / 7} for n in range(100_000)]
    check_values(msgspec.json.encode(rows))
