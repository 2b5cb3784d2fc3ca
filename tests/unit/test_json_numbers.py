"""Which JSON texts are refused before they are decoded, because of their numbers."""

from __future__ import annotations

import pytest

from agentflow.json_numbers import MAX_EXPONENTS, MAX_LONG_EXPONENTS, costly_numbers

MANY = MAX_LONG_EXPONENTS + 1


def listed(text: str, count: int) -> bytes:
    return f"[{','.join([text] * count)}]".encode()


@pytest.mark.parametrize(
    "number", ["1e300", "-8.5E307", "1.7976931348623157e308", "4.9e-324", "1E+0300", "0.1e-0000310"]
)
def test_many_numbers_near_the_ends_of_the_range_are_costly(number: str):
    assert costly_numbers(listed(number, MANY)) == "more than 5,000 numbers with an exponent of three digits"
    assert costly_numbers(listed(number, MAX_LONG_EXPONENTS)) is None


@pytest.mark.parametrize("number", ["1e23", "9007199254740993.0E0", "-2.5e-07"])
def test_many_more_with_a_short_exponent_are_costly(number: str):
    assert costly_numbers(listed(number, MAX_EXPONENTS + 100)) == "more than 100,000 numbers with an exponent"
    assert costly_numbers(listed(number, MAX_EXPONENTS)) is None


@pytest.mark.parametrize("spaced", ["[ 1e300 ,\n", '{"a":1e300,\n', "1e300 "])
def test_white_space_and_names_hide_none(spaced: str):
    assert costly_numbers((spaced * MANY).encode()) is not None


def test_what_stands_in_texts_is_no_number():
    text = ("1e300 " * MANY).strip()
    assert costly_numbers(f'["{text}"]'.encode()) is None
    assert costly_numbers(f'["\\\\", "\\"{text}"]'.encode()) is None
    assert costly_numbers(f'["\\\\",{text.replace(" ", ",")}]'.encode()) is not None


def test_usual_numbers_cost_nothing():
    assert costly_numbers(listed("0.12345678901234567", 300_000)) is None
    assert costly_numbers(listed("123456789", 300_000)) is None
