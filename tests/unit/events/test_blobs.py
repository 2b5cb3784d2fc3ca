"""How far the search for large values looks into a value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.events.blobs import LARGE_BYTES, Shape, extract_values, insert_blobs

TEXT = "x" * (LARGE_BYTES + 1)
MEMBER = Shape(members={"v": Shape(free=True)})


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def sizes(value: Any, *, known: bool) -> list[int]:
    body = msgspec.json.encode({"v": value})
    text, blobs = extract_values(body, MEMBER, {"v": value} if known else None)
    assert insert_blobs(text, blobs) == body
    return [len(blob.data) for blob in blobs]


@pytest.mark.parametrize("known", [True, False])
def test_the_innermost_large_value_is_taken(known: bool):
    text = len(TEXT) + 2
    assert sizes([1, TEXT, {"a": TEXT}], known=known) == [text, text]
    assert sizes({str(n): TEXT if n == 7 else n for n in range(4_096)}, known=known) == [text]
    assert sizes(nested(TEXT, 6), known=known) == [text]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "value",
    [
        [TEXT, *range(4_096)],
        {str(n): TEXT if n == 7 else n for n in range(4_097)},
        [*range(200_000)],
        {f"name {n}": n for n in range(50_000)},
    ],
    ids=["wide list", "wide object", "numbers", "names"],
)
def test_values_of_many_members_are_taken_whole(value: Any, known: bool):
    """Each member would cost an object, and there may be half a million."""
    assert sizes(value, known=known) == [len(msgspec.json.encode(value))]


@pytest.mark.parametrize("known", [True, False])
def test_values_far_down_are_taken_with_what_is_around_them(known: bool):
    """Each level would cost a pass over the text, and there may be 150."""
    assert sizes(nested(TEXT, 150), known=known) == [len(TEXT) + 2 + 2 * 143]
