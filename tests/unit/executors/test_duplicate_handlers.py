"""Which handlers take the same values, and so are refused together (E_DUPLICATE_HANDLER, page 002 §13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, List, Literal, NotRequired, Optional, TypedDict, TypeVar, Union  # noqa: UP035

import msgspec
import pytest

from agentflow import Executor, WorkflowContext
from agentflow.executors.handlers import choose, handler, response_handler
from agentflow.executors.problems import problems_of

T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    item: T


class Cat(TypedDict):
    kind: Literal["cat"]
    lives: NotRequired[float]


class Dog(TypedDict):
    kind: Literal["dog"]
    lives: NotRequired[float]


class SameCat(TypedDict):
    kind: Literal["cat"]
    lives: NotRequired[float]


def two(first: Any, second: Any) -> Executor:
    """An executor with a handler of each type."""

    async def one(self: Any, message: Any, ctx: Any) -> None: ...

    async def other(self: Any, message: Any, ctx: Any) -> None: ...

    for function, kind in ((one, first), (other, second)):
        function.__annotations__ = {"message": kind, "ctx": WorkflowContext, "return": None}
    return type("Two", (Executor,), {"one": handler(one), "other": handler(other)})("two")


def duplicates(executor: Executor) -> list[str]:
    return [found.message for found in problems_of(executor) if found.code == "E_DUPLICATE_HANDLER"]


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (dict[str, int], dict[str, int], "dict[str, int]"),
        (dict, dict[Any, Any], "dict"),
        (List[int], list[int], "list[int]"),  # noqa: UP006
        (list[int | str], list[Union[str, int]], "list[int | str]"),  # noqa: UP007
        (Optional[int], int, "int"),  # noqa: UP045
        (int | str, str | float, "str"),
        (bool | None, None, "None"),
        (Literal[1, 2], Literal[2, 3], "Literal[1, 2]"),
        (Cat, SameCat, "SameCat"),
        (Cat | int, Cat, "Cat"),
        (Box[int], Box[str], "Box[str]"),
        (Any, object, "Any"),
        (tuple[int, ...], tuple[int, ...], "tuple[int, ...]"),
        (set[int], set[int], "set[int]"),
    ],
    ids=str,
)
def test_handlers_of_equal_values_are_refused(first: Any, second: Any, named: str):
    (message,) = duplicates(two(first, second))
    assert message.startswith('one and other of "two" both take ')
    assert "two" in message


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        (dict[str, int], dict[str, bool], ({"a": 1}, {"a": True})),
        (dict[str, list[int]], dict[str, list[str]], ({"a": [1]}, {"a": ["b"]})),
        (list[int], list[bool], ([1], [True])),
        (list[int | str], list[int], ([1, "a"], [1])),
        (set[int], set[str], ({1}, {"a"})),
        (tuple[int, ...], tuple[int, int, str], ((1, 2), (1, 2, "a"))),
        (int, bool, (1, True)),
        (int | str, bool | float, (1, True)),
        (Literal["a"], Literal["b"], ("a", "b")),
        (str, Literal["a"], ("b", "a")),
        (Literal[1], Literal[True], (1, True)),
        (Cat, Dog, ({"kind": "cat", "lives": 9}, {"kind": "dog", "lives": 1.0})),
        (dict[str, Any], Cat, ({"kind": "mouse"}, {"kind": "cat"})),
        (Box[int], int, (Box(1), 1)),
        (Sequence[int], set[int], ([1], {1})),
        (int, Any, (1, "a")),
    ],
    ids=str,
)
def test_handlers_of_other_values_stand_side_by_side_and_are_chosen(first: Any, second: Any, values: Any):
    executor = two(first, second)
    assert duplicates(executor) == []
    assert [choose(executor.handlers, value).name for value in values] == ["one", "other"]  # type: ignore[union-attr]


def answering(*pairs: tuple[Any, Any]) -> Executor:
    """An executor with a response handler of each pair of request and answer."""
    made: dict[str, Any] = {}
    for number, (request, answer) in enumerate(pairs):

        async def back(self: Any, request: Any, answer: Any, ctx: Any) -> None: ...

        back.__name__ = f"back{number}"
        back.__annotations__ = {"request": request, "answer": answer, "ctx": WorkflowContext, "return": None}
        made[back.__name__] = response_handler(back)
    return type("Answering", (Executor,), made)("answering")


def test_response_handlers_are_told_apart_by_both_types():
    assert duplicates(answering((int, str), (int, bool), (str, str))) == []
    (message,) = duplicates(answering((int, str | bool), (int | str, bool)))
    assert message.endswith("both take int answered by bool")
