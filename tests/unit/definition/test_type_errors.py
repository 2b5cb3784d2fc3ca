"""What msgspec says of a wrong type is told in our words (daily use 17)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest

from agentflow.definition.ir import Budget, Workflow
from agentflow.definition.type_errors import explain


class Inner(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    mode: Literal["age", "size"] = "age"
    count: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1
    name: Annotated[str, msgspec.Meta(min_length=2, pattern="^a")] = "ab"
    needed: int


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner | None = None
    many: list[Inner] = []
    table: dict[str, int | str] = {}


@pytest.mark.parametrize(
    ("value", "target", "sentence", "hint"),
    [
        ({"max_tokens": "x"}, Budget, "max_tokens must be an integer or null, not a string", None),
        (
            {"on_exceeded": "agee"},
            Budget,
            'on_exceeded "agee" is not allowed',
            "write ask or fail or pause",
        ),
        (
            {"inner": {"needed": 1, "mode": "agee"}},
            Outer,
            'inner.mode "agee" is not allowed',
            'did you mean "age"?',
        ),
        (
            {"inner": {"needed": 1, "mode": 7}},
            Outer,
            "inner.mode must be a string, not an integer",
            "write age or size",
        ),
        ({"inner": {}}, Outer, 'inner has no "needed"', None),
        ({"many": [{"needed": 1}, {"needd": 1}]}, Outer, None, 'did you mean "needed"?'),
        ({"many": [{"needed": True}]}, Outer, "many[0].needed must be an integer, not a boolean", None),
        ({"inner": {"needed": 1, "count": 0}}, Outer, "inner.count must be at least 1", None),
        ({"inner": {"needed": 1, "count": 10}}, Outer, "inner.count must be at most 9", None),
        ({"inner": {"needed": 1, "name": "a"}}, Outer, "inner.name must be at least 2 long", None),
        ({"inner": {"needed": 1, "name": "xyz"}}, Outer, "inner.name is not written as it must be", None),
        ({"table": {"k": 1.5}}, Outer, "table[…] must be an integer or a string, not a number", None),
        (7, Outer, "the value must be an object, not an integer", None),
        ({"colour": 1}, Outer, 'the value has an unknown key "colour"', "known: inner, many, table"),
        ({"name": "w", "nodes": [{"type": "agnt", "id": "a"}]}, Workflow, None, None),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(
    value: Any, target: Any, sentence: str | None, hint: str | None
):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, target)
    problem = explain(caught.value, target)
    if sentence is not None:
        assert problem.sentence() == sentence
        assert problem.hint == hint
    for text in (problem.sentence(), problem.hint or ""):
        assert "`" not in text
        assert "Expected" not in text
        assert "Object" not in text


def test_the_place_is_a_pointer():
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"many": [{"needed": "x"}]}, Outer)
    assert explain(caught.value, Outer).pointer == "/many/0/needed"
