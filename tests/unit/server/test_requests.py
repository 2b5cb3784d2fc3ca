"""What can be wrong with a request before its meaning is known: media types, queries, positions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from agentflow.events.envelope import StoredEvent
from agentflow.server.bodies import SubmitBody
from agentflow.server.operations import JSON, YAML, accept, decode_json, media_of, parse_query
from agentflow.server.positions import EventFilter, first_wanted, parse_heartbeat, parse_time
from agentflow.server.problems import Refusal
from agentflow.server.queries import EventsQuery, ListQuery


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str | None = None
    kind: Literal["a", "b"] | None = None
    count: Annotated[int, msgspec.Meta(ge=1)] = 7
    ratio: float | None = None
    flag: bool = False


class TestQuery:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b"", Query()),
            (b"text=", Query(text="")),
            (b"text=null", Query(text="null")),
            (b"text=%20a%2Bb+c", Query(text=" a+b c")),
            (b"text=%E2%82%AC", Query(text="€")),
            (b"text=1&count=2", Query(text="1", count=2)),
            (b"flag=true", Query(flag=True)),
            (b"flag=0", Query(flag=False)),
            (b"ratio=1.5", Query(ratio=1.5)),
            (b"kind=b", Query(kind="b")),
        ],
    )
    def test_values(self, text, expected):
        assert parse_query(text, Query) == expected

    @pytest.mark.parametrize(
        "text",
        [
            b"kind=null",
            b"kind=",
            b"ratio=null",
            b"count=null",
            b"count=0",
            b"count=1.5",
            b"count= 1",
            b"count=1_0",
            b"flag=",
            b"flag=2",
            b"text=a&text=b",
            b"none=1",
            b"=1",
            b"text=%ff",
            b"text=\xe2\x82\xac",
            b"&".join(b"x%d=1" % i for i in range(100)),
        ],
    )
    def test_what_is_refused(self, text):
        with pytest.raises(Refusal) as refused:
            parse_query(text, Query)
        assert refused.value.code == "invalid_parameter"

    def test_nothing_may_be_asked_for(self):
        assert parse_query(b"", None) is None
        with pytest.raises(Refusal):
            parse_query(b"a=1", None)

    def test_names_of_python_are_not_names_of_parameters(self):
        assert parse_query(b"from=3", EventsQuery).from_ == "3"
        with pytest.raises(Refusal):
            parse_query(b"from_=3", EventsQuery)

    def test_the_list(self):
        assert parse_query(b"limit=500&full=true", ListQuery).full
        for text in (b"limit=501", b"order=up"):
            with pytest.raises(Refusal):
                parse_query(text, ListQuery)


class TestMedia:
    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ("application/json", JSON),
            ("APPLICATION/JSON;charset=utf-8", JSON),
            ('application/json; charset="UTF-8"; x=y', JSON),
            ("application/yaml", YAML),
            ("text/yaml", YAML),
            ("application/x-yaml", YAML),
        ],
    )
    def test_taken(self, given, found):
        assert media_of(given, (JSON, YAML)) == found

    @pytest.mark.parametrize(
        "given", [None, "", "json", "text/json", "application/json; charset=utf-16", "*/*"]
    )
    def test_not_taken(self, given):
        with pytest.raises(Refusal) as refused:
            media_of(given, (JSON, YAML))
        assert refused.value.status == 415

    @pytest.mark.parametrize(
        ("header", "best"),
        [
            (None, "a/x"),
            ("", "a/x"),
            ("*/*", "a/x"),
            ("a/*", "a/x"),
            ("b/y", "b/y"),
            ("a/x;q=0.1, b/y;q=0.9", "b/y"),
            ("a/x;q=0.5, */*;q=0.4", "a/x"),
            ("a/x;q=0, */*", "b/y"),
            ("*/*;q=0.1, b/y", "b/y"),
            ("text/html, */*;q=0.1", "a/x"),
            ("A/X", "a/x"),
            ("a/x;level=1;q=0.3, b/y;q=0.2", "a/x"),
            ("a/x;q=1, b/y;q=1", "a/x"),
        ],
    )
    def test_the_best_of_what_there_is(self, header, best):
        assert accept(header, ("a/x", "b/y")) == best

    @pytest.mark.parametrize("header", ["text/html", "a/x;q=0,b/y;q=0", "a/x;q=zero", "a", ",,,"])
    def test_nothing_fits(self, header):
        with pytest.raises(Refusal) as refused:
            accept(header, ("a/x",))
        assert refused.value.status == 406


class TestJson:
    @pytest.mark.parametrize(
        "data", [b"", b"{", b"\xff", b'{"format": "\xff"}', b"[" * 50_000, b'{"input": NaN}', b"nul"]
    )
    def test_malformed(self, data):
        with pytest.raises(Refusal) as refused:
            decode_json(data, SubmitBody if data != b"[" * 50_000 else list)
        assert refused.value.code == "malformed_json"

    def test_the_place_of_what_does_not_fit(self):
        with pytest.raises(Refusal, match=r"^labels") as refused:
            decode_json(b'{"labels": {"a": 1}}', SubmitBody)
        assert refused.value.code == "invalid_parameter"


def wanted(**given):
    position = {"offset": None, "after": None, "from_": None, "last_event_id": None}
    return first_wanted(**{**position, "earliest": 0, "last": 9, **given})


class TestPositions:
    def test_the_table(self):
        assert wanted() == 0
        assert wanted(offset="0") == 0
        assert wanted(offset="1") == 2
        assert wanted(after="-1") == 0
        assert wanted(after="5") == 6
        assert wanted(from_="5") == 5
        assert wanted(offset="latest") == 10
        assert wanted(last_event_id="0", offset="7") == 1
        assert wanted(last_event_id="", offset="7") == 8

    def test_trimmed(self):
        assert wanted(earliest=4) == 4
        assert wanted(earliest=4, offset="0") == 4
        assert wanted(earliest=4, after="3") == 4
        for given in (
            {"after": "-1"},
            {"after": "2"},
            {"from_": "3"},
            {"offset": "2"},
            {"last_event_id": "0"},
        ):
            with pytest.raises(Refusal) as refused:
                wanted(earliest=4, **given)
            assert refused.value.code == "offset_trimmed"
            assert refused.value.more["earliest_offset"] == 4

    @pytest.mark.parametrize("text", ["٣", "²", "1 ", " 1", "0x1", "1e2", "--1", "", "1.0", "9" * 19])
    def test_integers_are_ascii(self, text):
        for name in ("offset", "after", "from_"):
            with pytest.raises(Refusal) as refused:
                wanted(**{name: text})
            assert refused.value.code == "invalid_position"

    @pytest.mark.parametrize(
        ("text", "micros"),
        [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:00.000001Z", 1),
            ("1970-01-01T01:00:00+01:00", 0),
            ("2026-11-22T03:08:40.091335Z", 1795316920091335),
        ],
    )
    def test_times(self, text, micros):
        assert parse_time(text, "since") == micros

    @pytest.mark.parametrize(
        "text", ["", "now", "2026-01-01", "2026-01-01T00:00:00", "1", "2026-13-01T00:00:00Z"]
    )
    def test_times_that_are_none(self, text):
        with pytest.raises(Refusal):
            parse_time(text, "since")

    def test_heartbeats(self):
        assert parse_heartbeat(None) == (15.0, "line")
        assert parse_heartbeat("300") == (300.0, "line")
        assert parse_heartbeat("off") == (None, "line")
        assert parse_heartbeat("event") == (15.0, "event")
        for text in ("0", "301", "-1", "1.5", "", "on", "٣"):
            with pytest.raises(Refusal):
                parse_heartbeat(text)


def test_a_filter_reads_the_bytes_only_for_a_step():
    def event(body: bytes) -> StoredEvent:
        return StoredEvent(0, 5, "tool.call_started", body)

    broken = event(b"not json")
    assert EventFilter().everything
    assert EventFilter(types=["tool.*"], view="all", since=5, until=6)(broken)
    assert not EventFilter(view="workflow")(broken)
    assert EventFilter(step="a")(event(b'{"step":"a","data":{"step":"b"}}'))
    assert not EventFilter(step="b")(event(b'{"step":"a","data":{"step":"b"}}'))
    assert not EventFilter(step="a")(event(b'{"data":{}}'))
