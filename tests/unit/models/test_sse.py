import itertools

import pytest

from agentflow.models.sse import EventDecoder, StreamTooLong


def decode(*chunks: bytes) -> list[bytes]:
    decoder = EventDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\r\n\r\ndata:  b\r\r", [b"a", b" b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": ping\n\nevent: x\nid: 4\ndata: a\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\r\n\ndata: b\r\n\r", [b"a", b"b"]),
        (b"data: a\n", []),
        (b"data\n\n", [b""]),
        (b'data: "\xe2\x80\xa8 \x0b \xc2\x85"\n\n', [b'"\xe2\x80\xa8 \x0b \xc2\x85"']),
    ],
)
def test_a_stream_means_the_same_however_it_is_cut(raw: bytes, expected: list[bytes]) -> None:
    assert decode(raw) == expected
    assert decode(*(raw[i : i + 1] for i in range(len(raw)))) == expected
    for i, j in itertools.combinations(range(len(raw) + 1), 2):
        assert decode(raw[:i], raw[i:j], raw[j:]) == expected


def test_an_endless_event_is_refused() -> None:
    decoder = EventDecoder(limit=100)
    for _ in range(9):
        decoder.feed(b"data: 0123456789\n")
    with pytest.raises(StreamTooLong):
        decoder.feed(b"data: 0123456789\n")
    with pytest.raises(StreamTooLong):
        EventDecoder(limit=100).feed(b"x" * 101)
