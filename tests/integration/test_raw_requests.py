"""The corpus of raw requests: every new version of httptools must pass it (daemon D1).

Each case says which statuses may answer the bytes, one answer after the other, and that the connection ends
or goes on. Nothing that follows a refused request on its connection is ever answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from agentflow.server.exchange import Exchange
from agentflow.server.limits import Limits
from agentflow.server.request_parser import RequestParser
from tests.unit.server.kit import Gate, holding_model, serving, tokens
from tests.unit.server.logs import Writer

HOST = b"Host: localhost\r\n"
GET = b"GET /version HTTP/1.1\r\n" + HOST
SECOND = b"GET /metrics HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
POST = b"POST /validate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
VALID = b'{"definition":{}}'
CHUNK = b"11\r\n" + VALID + b"\r\n"
KIB_64 = 64 * 1024


class Case(NamedTuple):
    """`answers`: the statuses, in order. `ends`: the server closes the connection by itself."""

    data: bytes
    answers: tuple[int, ...]
    ends: bool = True


def refused(data: bytes) -> Case:
    return Case(data + SECOND, (400,))


def head_of(size: int) -> bytes:
    """A request for /version whose head has `size` bytes."""
    rest = size - len(GET) - len(b"X: \r\n\r\n")
    return GET + b"X: " + b"a" * rest + b"\r\n\r\n"


HEADS = {
    "endless name": Case(GET + b"a" * 400_000, (400,)),
    "endless value": Case(GET + b"X: " + b"a" * 400_000, (400,)),
    "endless target": Case(b"GET /" + b"a" * 400_000, (400,)),
    "endless method": Case(b"G" * 400_000, (400,)),
    "endless version": Case(b"GET / HTTP/1." + b"1" * 400_000, (400,)),
    "endless empty lines": Case(b"\r\n" * 200_000, (400,)),
    "endless empty lines after a request": Case(GET + b"\r\n" + b"\r\n" * 200_000, (200, 400)),
    "many small fields": Case(GET + b"".join(b"a:%d\r\n" % i for i in range(5_000)) + b"\r\n", (400,)),
    "257 fields": Case(GET + b"a: b\r\n" * 256 + b"\r\n", (400,)),
    "256 fields": Case(GET + b"a: b\r\n" * 255 + b"\r\n", (200,), ends=False),
    "65536 bytes": Case(head_of(KIB_64), (200,), ends=False),
    "65537 bytes": Case(head_of(KIB_64 + 1), (400,)),
    "two of 65536 bytes": Case(head_of(KIB_64) * 2, (200, 200), ends=False),
    "folded field": refused(GET + b"X: a\r\n b\r\n\r\n"),
    "folded by a tab": refused(GET + b"X: a\r\n\tb\r\n\r\n"),
    "folded first field": refused(b"GET /version HTTP/1.1\r\n X: a\r\n" + HOST + b"\r\n"),
    "folded Host": refused(b"GET /version HTTP/1.1\r\nHost:\r\n localhost\r\n\r\n"),
    "space before colon": refused(GET + b"X : a\r\n\r\n"),
    "tab before colon": refused(GET + b"X\t: a\r\n\r\n"),
    "no colon": refused(GET + b"X\r\n\r\n"),
    "empty name": refused(GET + b": a\r\n\r\n"),
    "NUL in name": refused(GET + b"X\x00: a\r\n\r\n"),
    "NUL in value": refused(GET + b"X: a\x00b\r\n\r\n"),
    "CR in value": refused(GET + b"X: a\rb\r\n\r\n"),
    "bare LF": refused(b"GET /version HTTP/1.1\nHost: localhost\n\n"),
    "bare LF at the end of the head": refused(GET + b"\n"),
    "bare CR": refused(b"GET /version HTTP/1.1\rHost: localhost\r\r"),
    "name not ASCII": refused(GET + b"X\xff: a\r\n\r\n"),
    "without version": refused(b"GET /version\r\n\r\n"),
    "version 1.2": refused(b"GET /version HTTP/1.2\r\n" + HOST + b"\r\n"),
    "version 2.0": refused(b"GET /version HTTP/2.0\r\n" + HOST + b"\r\n"),
    "version 0.9": refused(b"GET /version HTTP/0.9\r\n" + HOST + b"\r\n"),
    "version 1.10": refused(b"GET /version HTTP/1.10\r\n" + HOST + b"\r\n"),
    "version without dot": refused(b"GET /version HTTP/11\r\n" + HOST + b"\r\n"),
    "version in small letters": refused(b"GET /version http/1.1\r\n" + HOST + b"\r\n"),
    "tab for space": refused(b"GET\t/version\tHTTP/1.1\r\n" + HOST + b"\r\n"),
    "leading space": refused(b" GET /version HTTP/1.1\r\n" + HOST + b"\r\n"),
    "unknown method": refused(b"FLY /version HTTP/1.1\r\n" + HOST + b"\r\n"),
    "preface of HTTP/2": refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "TLS": refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 32),
    "space in target": refused(b"GET /ver sion HTTP/1.1\r\n" + HOST + b"\r\n"),
    "NUL in target": refused(b"GET /version\x00 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "target not ASCII": refused(b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "target without slash": refused(b"GET version HTTP/1.1\r\n" + HOST + b"\r\n"),
    "whole URL of this host": Case(
        b"GET http://localhost/version HTTP/1.1\r\n" + HOST + b"\r\n", (200,), ends=False
    ),
    "whole URL of another host": refused(b"GET http://evil.example/version HTTP/1.1\r\n" + HOST + b"\r\n"),
    "whole URL with a user": refused(b"GET http://u@localhost/version HTTP/1.1\r\n" + HOST + b"\r\n"),
    "whole URL without Host": refused(b"GET http://localhost/version HTTP/1.1\r\n\r\n"),
    "authority": refused(b"GET localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "CONNECT": refused(b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n"),
    "upgrade without a body": Case(
        GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
        (200,),
        ends=False,
    ),
    "websocket": Case(
        GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhl\r\n\r\n" + SECOND,
        (200, 200),
    ),
    "HTTP/1.0": Case(b"GET /version HTTP/1.0\r\n" + HOST + b"\r\n" + SECOND, (200,)),
    "two Hosts": Case(b"GET /version HTTP/1.1\r\n" + HOST * 2 + b"\r\n", (400,), ends=False),
    "no Host": Case(b"GET /version HTTP/1.1\r\n\r\n", (400,), ends=False),
    "an empty line first": Case(b"\r\n" + GET + b"\r\n", (200,), ends=False),
}

FRAMINGS = {
    "length and coding": b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    "coding and length": b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    "length 0 and coding": b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6",
    "the same length twice": b"Content-Length: 5\r\nContent-Length: 5",
    "a list of lengths": b"Content-Length: 5, 5",
    "a length with plus": b"Content-Length: +5",
    "a length below 0": b"Content-Length: -5",
    "a length in hex": b"Content-Length: 0x5",
    "a length with space": b"Content-Length: 5 5",
    "a length with underscore": b"Content-Length: 1_0",
    "a huge length": b"Content-Length: 99999999999999999999999",
    "an empty length": b"Content-Length:",
    "identity": b"Transfer-Encoding: identity",
    "gzip": b"Transfer-Encoding: gzip",
    "gzip, chunked": b"Transfer-Encoding: gzip, chunked",
    "chunked, gzip": b"Transfer-Encoding: chunked, gzip",
    "chunked, chunked": b"Transfer-Encoding: chunked, chunked",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "chunked and identity": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "chunked with a parameter": b"Transfer-Encoding: chunked;q=1",
    "xchunked": b"Transfer-Encoding: xchunked",
    "chunked in quotes": b'Transfer-Encoding: "chunked"',
    "vertical tab": b"Transfer-Encoding: \x0bchunked",
    "space before colon": b"Transfer-Encoding : chunked",
    "NUL behind": b"Transfer-Encoding: chunked\x00",
    "folded": b"Transfer-Encoding:\r\n chunked",
    "empty": b"Transfer-Encoding:",
    "upgrade and length": b"Connection: upgrade\r\nUpgrade: x\r\nContent-Length: 5",
    "upgrade and coding": b"Connection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked",
}
HEADS |= {
    f"framing: {name}": refused(POST + framing + b"\r\n\r\n0\r\n\r\n") for name, framing in FRAMINGS.items()
}
HEADS["framing: coding in HTTP/1.0"] = refused(
    CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNK + b"0\r\n\r\n"
)

CHUNKS = {
    "no size": b"\r\n",
    "no hex": b"zz\r\nhello\r\n",
    "below 0": b"-1\r\nhello\r\n",
    "with 0x": b"0x5\r\nhello\r\n",
    "underscore": b"1_0\r\nhello\r\n",
    "plus": b"+5\r\nhello\r\n",
    "leading space": b" 5\r\nhello\r\n",
    "trailing space": b"5 \r\nhello\r\n",
    "overflow": b"ffffffffffffffffff\r\nhello\r\n",
    "bare LF behind size": b"5\nhello\r\n",
    "bare CR behind size": b"5\rhello\r\n",
    "no line end behind data": b"5\r\nhello5\r\nhello\r\n",
    "bare LF behind data": b"5\r\nhello\n",
    "longer than its size": b"5\r\nhello!\r\n",
    "LF in extension": b"5;a\nb\r\nhello\r\n",
    "NUL in extension": b"5;a\x00b\r\nhello\r\n",
    "endless zeros": b"0" * 400_000,
    "endless extension": b"5;" + b"a" * 400_000,
    "endless quoted extension": b'5;a="' + b"a" * 400_000,
    "extensions of 70 KiB together": b"1;" + b"x" * 1_000 + b"\r\n \r\n",
    "NUL in trailer": b"0\r\nX: a\x00\r\n\r\n",
    "folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "no colon in trailer": b"0\r\nX\r\n\r\n",
    "endless trailer name": b"0\r\n" + b"a" * 400_000,
    "endless trailer value": b"0\r\nX: " + b"a" * 400_000,
    "endless trailers": b"0\r\n" + b"X: y\r\n" * 60_000,
}
BODIES = {f"chunk: {name}": Case(CHUNKED + chunk + SECOND, (400,)) for name, chunk in CHUNKS.items()}
BODIES["chunk: extensions of 70 KiB together"] = Case(
    CHUNKED + CHUNKS["extensions of 70 KiB together"] * 80 + SECOND, (400,)
)
BODIES |= {
    "coding in capitals": Case(
        CHUNKED.replace(b"chunked", b"CHUNKED") + CHUNK + b"0\r\n\r\n" + SECOND, (200, 200)
    ),
    "chunks of one byte": Case(CHUNKED + b"1\r\n \r\n" * 100_000 + CHUNK + b"0\r\n\r\n" + SECOND, (200, 200)),
    "chunks of one byte with small extensions": Case(
        CHUNKED + b"1;a=bcdef\r\n \r\n" * 100_000 + CHUNK + b"0\r\n\r\n" + SECOND, (200, 200)
    ),
    "an end in every chunk": Case(
        CHUNKED + b"4\r\n\r\n\r\n\r\n" * 50_000 + CHUNK + b"0\r\n\r\n" + SECOND, (200, 200)
    ),
    "trailers": Case(CHUNKED + CHUNK + b"0\r\nX: y\r\nTrailer: z\r\n\r\n" + SECOND, (200, 200)),
    "trailers of 60 KiB": Case(
        CHUNKED + CHUNK + b"0\r\nX: " + b"y" * 60_000 + b"\r\n\r\n" + SECOND, (200, 200)
    ),
    "trailers that name a host": Case(
        CHUNKED + CHUNK + b"0\r\nHost: evil.example\r\n\r\n" + SECOND, (200, 200)
    ),
    "trailers that upgrade": Case(
        CHUNKED + CHUNK + b"0\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" + SECOND, (200, 200)
    ),
    "a length in trailers": refused(CHUNKED + CHUNK + b"0\r\nContent-Length: 500\r\n\r\n"),
    "a request in a chunk": Case(
        CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(SECOND), SECOND) + SECOND, (400, 200)
    ),
    "a request as a body": Case(
        POST + b"Content-Length: %d\r\n\r\n%b" % (len(SECOND), SECOND) + SECOND, (400, 200)
    ),
    "a request behind a short body": Case(
        POST + b"Content-Length: %d\r\n\r\n%b" % (len(VALID), VALID) + SECOND, (200, 200)
    ),
    "a body for GET": Case(GET + b"Content-Length: 5\r\n\r\nhello" + SECOND, (200, 200)),
    "a request behind the last": Case(GET + b"Connection: close\r\n\r\n" + SECOND, (200,)),
    "rubbish behind a request": Case(GET + b"\r\n" + b"\x00\x01rubbish\r\n\r\n" + SECOND, (200, 400)),
    "100 requests in a row": Case((GET + b"\r\n") * 100 + SECOND, (200,) * 101),
    "expectation": Case(
        POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%b" % (len(VALID), VALID) + SECOND,
        (200, 200),
    ),
    "too large, announced": Case(POST + b"Content-Length: 999999999\r\n\r\n{", (413,), ends=False),
}
CASES = HEADS | BODIES


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path, limits=Limits(refusal_s=0.2, check_s=0.05)) as found:
        yield found
        async with found.http() as http:
            assert (await http.get("/healthz")).json()["status"] == "ok"


def statuses(answer: bytes) -> tuple[int, ...]:
    """The statuses of all answers; only where a head can begin."""
    found = re.findall(rb"(?:^|\}|\n)HTTP/1\.1 (\d{3}) [A-Z]", answer)
    return tuple(int(status) for status in found if status != b"100")


async def until(condition: Any, seconds: float = 5) -> None:
    """Look until it is so."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def dial(served: Any, *, unix: bool = False) -> AsyncGenerator[tuple[asyncio.StreamReader, Any]]:
    """A connection to the daemon, cut off with the block."""
    if unix:
        reader, writer = await asyncio.open_unix_connection(str(served.socket))
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def converse(
    served: Any, data: bytes, expected: int, *, half_close: bool = False
) -> tuple[bytes, bool]:
    """Send bytes; return what was answered, and whether the server closed the connection by itself.

    Reads until `expected` answers are there, and further for as long as the connection is about to end.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    answer, ended = b"", False

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            if half_close:
                writer.write_eof()

    sending = asyncio.ensure_future(send())
    try:
        async with asyncio.timeout(10):
            while not ended:
                if len(statuses(answer)) >= expected and answer.endswith((b"}", b"\n")):
                    # Whatever would follow by mistake is in front of the answer to one more request.
                    break
                chunk = await reader.read(1 << 20)
                ended, answer = not chunk, answer + chunk
    except ConnectionResetError:
        ended = True
    finally:
        with contextlib.suppress(ConnectionError):
            await sending
    if not ended:
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(20 if b"connection: close" in answer else 0.02):
                while chunk := await reader.read(1 << 20):
                    answer += chunk
                ended = True
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer, ended


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
async def test_bytes_are_answered_as_they_deserve(served, case):
    answer, ended = await converse(served, case.data, len(case.answers))
    assert statuses(answer) == case.answers, answer[-2_000:]
    assert ended or not case.ends
    await until(lambda: not served.server.connections)
    assert not served.server.tasks


@pytest.mark.parametrize("name", ["trailers", "chunks of one byte", "two of 65536 bytes", "folded field"])
@pytest.mark.parametrize("size", [1, 3, 1_000])
async def test_how_bytes_are_cut_changes_nothing(served, name, size):
    """A terminator may arrive in pieces: neither its place nor the counting depends on that."""
    case = CASES[name]
    data = (
        case.data if size > 3 else case.data.replace(b"1\r\n \r\n" * 99_000, b"").replace(b"a" * 60_000, b"")
    )
    reader, writer = await asyncio.open_unix_connection(str(served.socket))
    for at in range(0, len(data), size):
        writer.write(data[at : at + size])
        if at < 3_000:
            await asyncio.sleep(0)
    answer = b""
    async with asyncio.timeout(10):
        while len(statuses(answer)) < len(case.answers):
            chunk = await reader.read(1 << 20)
            assert chunk, answer
            answer += chunk
    assert statuses(answer) == case.answers
    writer.close()
    await writer.wait_closed()


def exchanges() -> list[Exchange]:
    """All requests that are being answered, or wait to be."""
    gc.collect()
    return [found for found in gc.get_objects() if isinstance(found, Exchange)]


class TestBounds:
    """What a client sends costs no memory, whether or not it has a token, before and after its answer."""

    @pytest.mark.parametrize("where", ["trailers", "one trailer", "extension", "size"])
    @pytest.mark.parametrize("token", ["none", "wrong", "right"])
    async def test_endless_framing_ends_the_connection(self, tmp_path, where, token):
        given, secrets = tokens(runner=("run",))
        pieces = {
            "trailers": (b"0\r\n", b"X-Name: value\r\n" * 4_096),
            "one trailer": (b"0\r\nX: ", b"y" * KIB_64),
            "extension": (b"5;a=", b"y" * KIB_64),
            "size": (b"", b"0" * KIB_64),
        }
        begin, more = pieces[where]
        header = {"none": "", "wrong": "Authorization: Bearer x\r\n"}.get(
            token, f"Authorization: Bearer {secrets['runner']}\r\n"
        )
        head = POST + header.encode() + b"Transfer-Encoding: chunked\r\n\r\n"
        limits = Limits(refusal_s=0.05, linger_s=0.05, check_s=0.02)
        async with serving(tmp_path, given=given, kind="remote", limits=limits) as served:  # noqa: SIM117
            async with dial(served) as (reader, writer):
                writer.write(head)
                answer = b""
                if token != "right":
                    answer = await reader.readuntil(b"}")  # 401; everything else follows it
                writer.write(begin)
                with contextlib.suppress(ConnectionError):
                    for _ in range(4):
                        writer.write(more)
                        await writer.drain()
                    async with asyncio.timeout(5):
                        while chunk := await reader.read(KIB_64):
                            answer += chunk
                assert statuses(answer) == ((400,) if token == "right" else (401,))
                await until(lambda: not served.server.connections)

    async def test_a_trailer_is_no_header(self, tmp_path):
        """A token in a trailer authenticates no request, this one or the next."""
        given, secrets = tokens(admin=("admin",))
        trailer = f"0\r\nAuthorization: Bearer {secrets['admin']}\r\n\r\n".encode()
        async with serving(tmp_path, given=given, kind="remote") as served:
            answer, _ = await converse(served, CHUNKED + CHUNK + trailer + SECOND, 2)
            assert statuses(answer) == (401, 401)

    async def test_requests_behind_a_stream_wait_as_bytes(self, served):
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        async with dial(served) as (reader, writer):
            stream = b"GET /workflows/wf_log/events HTTP/1.1\r\n" + HOST + b"\r\n"
            writer.write(stream + (GET + b"\r\n") * 100_000)
            await reader.readuntil(b'"offset":0')
            assert len(served.server.tasks) == 1
            (connection,) = served.server.connections
            await until(lambda: not connection.transport.is_reading())
            assert len(exchanges()) == 1
            # Nothing is read from this connection now; the check notices that it was reset.
            client = writer.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: not served.server.connections)

    async def test_a_long_body_is_not_gathered(self, served):
        """A request without an end to its body buffers at most two turns of it."""
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        async with dial(served) as (reader, writer):
            head = b"GET /workflows/wf_log/events HTTP/1.1\r\n"
            writer.write(head + HOST + b"Content-Length: 100000000\r\n\r\n")
            await reader.readuntil(b'"offset":0')
            (exchange,) = exchanges()
            for _ in range(100):
                writer.write(b"x" * KIB_64)
                await writer.drain()
                assert exchange.buffered <= 2 * KIB_64
            writer.transport.abort()
            await until(lambda: not served.server.connections)


class TestTurns:
    """How long the parser keeps the loop: other connections have their turns within one read."""

    @pytest.mark.parametrize(
        "data",
        [CHUNKED + b"1\r\n \r\n" * 20_000, CHUNKED + b"4\r\n\r\n\r\n\r\n" * 12_000],
        ids=["chunks of one byte", "ends inside chunks"],
    )
    async def test_a_turn_ends_after_its_time(self, tmp_path, monkeypatch, data):
        taken: list[int] = []
        feed = RequestParser.feed

        def counted(self: RequestParser, data: bytes, begin: int, end: int) -> int:
            at = feed(self, data, begin, end)
            taken.append(at - begin)
            return at

        monkeypatch.setattr(RequestParser, "feed", counted)
        async with serving(tmp_path, limits=Limits(turn_s=0)) as served, dial(served) as (_, writer):
            loop, turns = asyncio.get_running_loop(), 0

            def count() -> None:
                nonlocal turns
                turns += 1
                loop.call_soon(count)

            count()
            writer.write(data)
            await until(lambda: sum(taken) >= 90_000)
            assert max(taken) <= Limits().slice_bytes
            assert turns >= len(taken) - 1


class TestDeadlines:
    @pytest.mark.parametrize(
        ("limits", "data"),
        [
            pytest.param(Limits(head_s=0.1, check_s=0.05), b"", id="no byte"),
            pytest.param(Limits(head_s=0.1, check_s=0.05), b"GET /version HT", id="half a head"),
            pytest.param(
                Limits(head_s=0.1, check_s=0.05), GET + b"\r\n\r\n", id="an empty line behind a request"
            ),
            pytest.param(Limits(keep_alive_s=0.1, check_s=0.05), GET + b"\r\n", id="no second request"),
            pytest.param(Limits(body_silence_s=0.1, check_s=0.05), CHUNKED + b"5\r\nhe", id="half a chunk"),
            pytest.param(Limits(body_silence_s=0.1, check_s=0.05), CHUNKED + b"0\r\nX", id="half a trailer"),
            pytest.param(
                Limits(linger_s=0.1, check_s=0.05),
                POST + b"Content-Length: 999999999\r\n\r\n{",
                id="answered",
            ),
        ],
    )
    async def test_silence_ends_a_connection(self, tmp_path, limits, data):
        async with serving(tmp_path, limits=limits) as served, dial(served) as (reader, writer):
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 5)
            await until(lambda: not served.server.connections)

    @pytest.mark.parametrize(
        ("limits", "begin"),
        [
            pytest.param(Limits(head_s=0.2, check_s=0.05), b"GET /version HTTP/1.1\r\nX: ", id="head"),
            pytest.param(
                Limits(body_s=0.2, check_s=0.05), POST + b"Content-Length: 1000000\r\n\r\n", id="body"
            ),
            pytest.param(
                Limits(linger_s=0.2, check_s=0.05), POST + b"Content-Length: 90000000\r\n\r\n", id="answered"
            ),
        ],
    )
    async def test_a_drip_does_not_extend_a_deadline(self, tmp_path, limits, begin):
        async with serving(tmp_path, limits=limits) as served, dial(served) as (reader, writer):
            writer.write(begin)

            async def drip() -> None:
                while True:
                    writer.write(b"a")
                    await asyncio.sleep(0.05)

            dripping = asyncio.ensure_future(drip())
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 5)
            await until(lambda: not served.server.connections)
            dripping.cancel()

    async def test_a_client_that_reads_nothing_is_given_up(self, tmp_path):
        """Such as one that asks for large documents and leaves them in the socket."""
        async with serving(tmp_path, limits=Limits(stall_s=0.2, check_s=0.05)) as served:
            with socket.socket(socket.AF_UNIX) as lazy:
                lazy.connect(str(served.socket))
                lazy.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    lazy.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
                await until(lambda: served.server.connections)
                await until(lambda: not served.server.connections)


class TestHalfClosed:
    """A client that has shut down its sending side still reads (page 000 §8.1)."""

    @pytest.mark.parametrize(
        ("data", "answers"),
        [
            pytest.param(GET + b"\r\n", (200,), id="request"),
            pytest.param((GET + b"\r\n") * 3, (200, 200, 200), id="three requests"),
            pytest.param(CHUNKED + CHUNK + b"0\r\n\r\n", (200,), id="body"),
            pytest.param(GET, (), id="half a head"),
            pytest.param(CHUNKED + CHUNK, (), id="half a body"),
            pytest.param(CHUNKED + CHUNK + b"0\r\n", (), id="half the trailers"),
            pytest.param(b"", (), id="nothing"),
        ],
    )
    async def test_a_whole_request_is_answered(self, served, data, answers):
        answer, ended = await converse(served, data, len(answers) or 1, half_close=True)
        assert statuses(answer) == answers
        assert ended
        await until(lambda: not served.server.connections)

    @pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
    async def test_a_stream_goes_on(self, served, unix):
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        async with dial(served, unix=unix) as (reader, writer):
            writer.write(b"GET /workflows/wf_log/events?heartbeat=off HTTP/1.1\r\n" + HOST + b"\r\n")
            writer.write_eof()
            await reader.readuntil(b'"offset":0')
            await until(lambda: all(found.half_closed for found in served.server.connections))
            await log.write(3)
            await reader.readuntil(b'"offset":3')
            await log.end()
            rest = await asyncio.wait_for(reader.read(), 5)
            assert rest.endswith(b"0\r\n\r\n")

    @pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
    async def test_a_client_that_has_gone_ends_its_stream(self, served, unix):
        """Over TCP it looks like a half-closed one, until it is sent something."""
        log = Writer(served.runtime, "wf_log")
        await log.write(1)
        async with dial(served, unix=unix) as (reader, writer):
            writer.write(b"GET /workflows/wf_log/events?heartbeat=off HTTP/1.1\r\n" + HOST + b"\r\n")
            await reader.readuntil(b'"offset":0')
            writer.close()
            await until(lambda: not served.server.connections)
            assert served.app.service.metrics.streams_open == 0

    @pytest.mark.parametrize("unix", [True, False], ids=["unix", "tcp"])
    async def test_a_submission_that_waits_is_answered_at_once(self, tmp_path, unix):
        gate = Gate()
        async with serving(tmp_path, model=holding_model(), services=(gate.service(),)) as served:  # noqa: SIM117
            async with dial(served, unix=unix) as (reader, writer):
                body = json.dumps({"definition": gate.document()}).encode()
                head = POST.replace(b"/validate", b"/workflows?wait=600")
                writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                await gate.entered.wait()
                writer.write_eof()
                answer = await asyncio.wait_for(reader.read(), 5)
                assert statuses(answer) == (201,)
                gate.leave.set()
