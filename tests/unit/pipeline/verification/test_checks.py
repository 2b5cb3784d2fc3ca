"""Check objects as pure functions of a content."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.definition.stage_schemas import CHECK_KEYS, Check, read
from agentflow.pipeline.verification.checks import apply_check, headings_of, set_keys, urls_of
from agentflow.pipeline.verification.findings import Content


def content(text: str | bytes) -> Content:
    body = text.encode() if isinstance(text, str) else text
    return Content(exists=bool(body), size=len(body), sha256=hashlib.sha256(body).hexdigest(), body=body)


def holds(check: dict[str, Any], text: str | bytes) -> bool:
    found = apply_check(read(Check, check), content(text))
    assert all(one.code == f"check_failed:{one.name}" for one in found if one.result == "fail")
    return all(one.result == "pass" for one in found)


CASES: dict[str, tuple[dict[str, Any], str | bytes, bool]] = {
    "exists": ({"exists": True}, "a", True),
    "exists_not": ({"exists": False}, "a", False),
    "absent": ({"exists": False}, "", True),
    "min_bytes_counts_bytes": ({"min_bytes": 3}, "建", True),
    "min_bytes": ({"min_bytes": 4}, "建", False),
    "max_bytes": ({"max_bytes": 2}, "建", False),
    "contains": ({"contains": ["a", "b"]}, "cab", True),
    "contains_case": ({"contains": ["A"]}, "a", False),
    "contains_is_literal": ({"contains": ["a.c"]}, "abc", False),
    "not_contains": ({"not_contains": ["x"]}, "abc", True),
    "not_contains_fails": ({"not_contains": ["b"]}, "abc", False),
    "min_urls_distinct": ({"min_urls": 2}, "https://a.org, https://a.org.", False),
    "min_urls": ({"min_urls": 2}, "見https://a.org。又(http://b.org/x)", True),
    "headings": ({"headings": ["Sources", "A title"]}, "A title\n===\n\n## **Sources** ##\n", True),
    "heading_in_code": ({"headings": ["no"]}, "```\n# no\n```\n", False),
    "heading_needs_a_blank": ({"headings": ["no"]}, "#no\n", False),
    "json_schema": ({"json_schema": {"required": ["a"]}}, '{"a": 1}', True),
    "json_schema_breach": ({"json_schema": {"required": ["a"]}}, "{}", False),
    "json_schema_of_text": ({"json_schema": {"type": "string"}}, "plain", False),
    "json_schema_remote": ({"json_schema": {"$ref": "http://169.254.169.254/x"}}, "{}", False),
    "equals_json": ({"equals": {"a": [1, 2.0]}}, '{"a":[1.0,2]}', True),
    "equals_is_typed": ({"equals": {"a": 1}}, '{"a":true}', False),
    "equals_text": ({"equals": "plain"}, "plain", True),
    "equals_raw_text": ({"equals": "1"}, "1", True),
    "equals_quoted": ({"equals": "a"}, '"a"', True),
    "equals_null": ({"equals": None}, "null", True),
    "equals_number": ({"equals": 1}, "one", False),
    "sha256": ({"sha256": hashlib.sha256(b"a").hexdigest().upper()}, "a", True),
    "sha256_other": ({"sha256": "0" * 64}, "a", False),
    "all_must_hold": ({"exists": True, "contains": ["z"]}, "a", False),
    "text_of_bytes": ({"contains": ["a"]}, b"a\xff", False),
    "size_of_bytes": ({"min_bytes": 2}, b"a\xff", True),
}


@pytest.mark.parametrize(("check", "text", "expected"), CASES.values(), ids=CASES)
def test_check(check: dict[str, Any], text: str | bytes, expected: bool) -> None:
    assert holds(check, text) is expected


def test_every_key_of_the_page_has_a_rule() -> None:
    value: dict[str, Any] = {
        "exists": True, "min_bytes": 1, "max_bytes": 9, "contains": [], "not_contains": [], "min_urls": 0,
        "headings": [], "json_schema": True, "equals": 1, "sha256": hashlib.sha256(b"1").hexdigest(),
    }  # fmt: skip
    assert tuple(set_keys(read(Check, value))) == CHECK_KEYS == tuple(value)
    assert holds(value, "1")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(_JSON)
def test_a_value_equals_its_own_json(value: Any) -> None:
    text = json.dumps(value)
    assert holds({"equals": value}, text)
    assert not holds({"equals": [value]}, text)


@settings(deadline=None)
@given(st.text(max_size=200), st.text(min_size=1, max_size=5))
def test_contains_and_not_contains_are_opposites(text: str, part: str) -> None:
    text = text + "x"
    assert holds({"contains": [part]}, text) is not holds({"not_contains": [part]}, text)


@settings(deadline=None)
@given(st.text(alphabet="#`~=- \n*ax", max_size=60))
def test_headings_never_come_from_nothing(text: str) -> None:
    assert all(heading in text for heading in headings_of(text))


@pytest.mark.parametrize(
    "text",
    [
        "http://" * 200_000,
        "# " * 500_000,
        "`" * 1_000_000,
        "=" * 1_000_000,
        "#" + " " * 1_000_000 + "x",
        "# a" + "#" * 500_000 + "b",
    ],
)
def test_time_is_linear(text: str) -> None:
    began = time.process_time()
    urls_of(text)
    list(headings_of(text))
    assert time.process_time() - began < 2
