"""Payloads: every value comes back as what it was, by its tag alone (page 002 §3)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import uuid
from collections import OrderedDict
from typing import Any

import msgspec
import pytest

from agentflow.errors import MessageNotEncodable
from agentflow.executors import register_type
from agentflow.executors.payloads import Payloads, TypeTagClash, tags_of


class Claim(msgspec.Struct, frozen=True):
    id: str
    when: dt.date | None = None


class Risk(msgspec.Struct):
    value: float


class HighRisk(Risk):
    reason: str = ""


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


KNOWN = Payloads([Claim | Risk | Point | Color | Level, list[Claim | Risk]])

VALUES: list[Any] = [
    None,
    True,
    3,
    3.0,
    "x",
    b"\x00\xff",
    [],
    [1, True, "a", None],
    [Claim("a"), Claim("b", dt.date(2026, 5, 1))],
    [Risk(0.5), HighRisk(0.9, "new")],
    [Claim("a"), Risk(1.0)],
    [[Claim("a")], [3]],
    (1, Claim("a")),
    {1, 2},
    frozenset({"a"}),
    {"a": Claim("a"), "b": {"c": [dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]}},
    {"$type": "Claim", "id": "not one"},
    {"$value": 1},
    Claim("a", dt.date(2026, 5, 1)),
    HighRisk(0.9, "new"),
    Point(1, 2),
    Color.RED,
    Level.LOW,
    dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    dt.date(2026, 1, 2),
    dt.time(3, 4),
    dt.timedelta(seconds=90),
    uuid.UUID(int=7),
    decimal.Decimal("1.50"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_a_new_object_of_its_type(value: Any):
    payload = KNOWN.encode(value)
    wire = msgspec.json.decode(msgspec.json.encode(payload.value))
    for found in (KNOWN.decode(payload.tag, wire, payload.bases), KNOWN.unpack(_wire(KNOWN.keep(value)))):
        assert found == value
        assert type(found) is type(value)
        if isinstance(value, list):
            assert [type(item) for item in found] == [type(item) for item in value]
            assert found is not value


def _wire(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@pytest.mark.parametrize(
    ("value", "tag", "bases"),
    [
        (True, "bool", ("int",)),
        (None, "None", ()),
        (HighRisk(1.0), "HighRisk", ("Risk",)),
        ([HighRisk(1.0), Risk(1.0)], "list[Risk]", ("list", "list[Any]")),
        ([HighRisk(1.0)], "list[HighRisk]", ("list[Risk]", "list", "list[Any]")),
        ([1, "a"], "list", ("list[Any]",)),
        (Level.LOW, "Level", ("int",)),
        (dt.datetime(2026, 1, 1), "datetime", ("date",)),
    ],
    ids=repr,
)
def test_tags_are_names_of_classes(value: Any, tag: str, bases: tuple[str, ...]):
    found, above = tags_of(value)
    assert found == tag
    assert set(bases) <= set(above)


@pytest.mark.parametrize(
    ("value", "declared", "tag"),
    [
        ([], list[Claim], "list[Claim]"),
        ([], Any, "list"),
        ([[]], list[list[int]], "list[list[int]]"),
        ([[1], []], list[list[int]], "list[list[int]]"),
        ([[], [1]], list[list[str]] | list[list[int]] | int, "list[list[int]]"),
        ([[], ["a"]], list[list[int] | list[str]], "list[list[str]]"),
        ([[[]], []], list[list[list[Claim]]], "list[list[list[Claim]]]"),
        ([[]], list[Any], "list[list]"),
        ([[], 1], list[Any], "list"),
    ],
    ids=repr,
)
def test_a_list_that_is_empty_somewhere_has_the_tag_that_its_sender_declares(
    value: Any, declared: Any, tag: str
):
    found = KNOWN.encode(value, declared)
    assert found.tag == tag
    assert "list" in (found.tag, *found.bases)


def test_a_list_of_several_types_has_the_tag_of_the_union_that_takes_it():
    assert "list[Claim | Risk]" in KNOWN.encode([Claim("a"), HighRisk(1.0)]).bases
    assert "list[Claim | Risk]" not in KNOWN.encode([Claim("a"), 1]).bases


def test_a_value_of_a_class_that_is_gone_becomes_its_nearest_base():
    payload = KNOWN.encode(HighRisk(0.5, "x"))
    found = KNOWN.decode("Gone", payload.value, payload.bases)
    assert type(found) is Risk


class Unknown:
    pass


class Stranger(msgspec.Struct):
    x: int


def _circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Unknown(), "is a type that this workflow does not know"),
        (Stranger(1), "is a type that this workflow does not know"),
        (float("nan"), "nan is not a JSON number"),
        ([1, float("inf")], "at /1"),
        ("\ud800", "lone surrogate"),
        ({1: 2}, "is not a string"),
        (lambda: 1, "is a type that this workflow does not know"),
    ],
    ids=["class", "struct", "nan", "inf", "surrogate", "key", "function"],
)
def test_what_has_no_json_form_is_refused_at_the_call(value: Any, text: str):
    for encode in (KNOWN.encode, KNOWN.keep):
        with pytest.raises(MessageNotEncodable) as refused:
            encode(value)
        assert text in str(refused.value)
        assert refused.value.hint


def test_a_value_that_contains_itself_is_refused():
    with pytest.raises(MessageNotEncodable, match="contains itself"):
        KNOWN.keep(_circle())


@pytest.mark.parametrize("declared", [Any, list[list[int]], list[int | str]])
def test_a_list_without_an_end_is_refused_whatever_is_declared(declared: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(50_000):
        deep = [deep]
    payloads = Payloads([list[list[int]], list[int | str]])
    for value in (endless, [1, endless], deep):
        with pytest.raises(MessageNotEncodable, match="contains itself"):
            payloads.encode(value, declared)
    while deep:  # freed from within, one by one
        deep = deep[0]


def test_two_classes_of_one_name_clash():
    other = type("Claim", (msgspec.Struct,), {"__annotations__": {"n": int}})
    with pytest.raises(TypeTagClash, match='"Claim" is the tag of'):
        Payloads([Claim, list[other]])  # type: ignore[valid-type]


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


def test_a_registered_type_travels_by_its_own_functions():
    with pytest.raises(TypeError, match="no JSON form"):
        register_type(Money)
    register_type(Money, encode=lambda money: money.cents, decode=Money)
    known = Payloads()
    payload = known.encode(Money(150))
    assert (payload.tag, payload.value) == ("Money", 150)
    assert known.decode("Money", 150) == Money(150)
    assert known.unpack(known.keep({"a": [Money(1)]})) == {"a": [Money(1)]}


class _Text(str):
    pass


class _Level(enum.IntEnum):
    LOW = 1


_SHAPES: list[Any] = [
    [],
    {},
    [1, True, None, 1.0, -0.0, 2**70, "ä", ""],
    {"a": {"b": [{"c": [1.5]}]}},
    {"$type": "int", "x": 1},
    {"a": '"$type"'},
    [(1, 2)],
    {"a": {3, 1}},
    [b"x"],
    {"a": [uuid.UUID(int=1), decimal.Decimal("1.0"), dt.date(2026, 1, 1)]},
    OrderedDict(a=1),
    [_Text("t")],
    [_Level.LOW],
    {1: "a"},
    [float("nan")],
    ["\ud800"],
    [object()],
    [["[" * 400]],
    functools.reduce(lambda inner, _: [inner], range(160), []),
    functools.reduce(lambda inner, _: [inner], range(300), []),
]


@pytest.mark.parametrize("value", _SHAPES, ids=map(str, range(len(_SHAPES))))
def test_plain_json_is_copied_at_once_as_it_would_be_piece_by_piece(
    value: Any, monkeypatch: pytest.MonkeyPatch
):
    payloads = Payloads()

    def kept() -> Any:
        try:
            made = payloads.keep(value)
            return made, payloads.encode(value), repr(payloads.unpack(made))
        except MessageNotEncodable as error:
            return str(error)

    at_once = kept()
    monkeypatch.setattr("agentflow.executors.payloads._copied", lambda _: msgspec.UNSET)
    assert repr(at_once) == repr(kept())
    if isinstance(at_once, tuple) and value:
        assert at_once[0] is not value
