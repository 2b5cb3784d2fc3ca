"""URLs as artifacts: what is asked, and that no request goes into the network of this machine."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.responses import Response

from agentflow.pipeline.verification import network
from agentflow.pipeline.verification.network import Probed, UrlProber, normal_url, scheme_problem
from tests.unit.tools.servers import Recorder, serve

HOST = "127.0.0.1"


@asynccontextmanager
async def prober(*allowed: str) -> AsyncGenerator[UrlProber]:
    found = UrlProber(allowed)
    try:
        yield found
    finally:
        await found.aclose()


async def probe(url: str, *allowed: str, body: bool = False) -> Probed:
    async with prober(*allowed) as found:
        return await found.probe(url, body=body)


def code(found: Probed) -> str | None:
    return found.checks[0].code


async def test_evidence_names_the_address_that_answered() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        found = await probe(f"{url}/a", HOST)
    assert found.evidence == {"final_url": f"{url}/a", "status": 200, "address": HOST}
    assert [one["method"] for one in recorder.requests] == ["HEAD"]


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_get_follows_a_refused_head(status: int) -> None:
    recorder = Recorder(lambda r: Response(status_code=status if r.method == "HEAD" else 200))
    async with serve(recorder.app) as url:
        found = await probe(url, HOST)
    assert code(found) is None
    assert [one["method"] for one in recorder.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("status", [404, 500, 304])
async def test_status_other_than_2xx_fails(status: int) -> None:
    recorder = Recorder(lambda _: Response(status_code=status))
    async with serve(recorder.app) as url:
        assert code(await probe(url, HOST)) == "url_status"


PRIVATE_FORMS = (
    *("127.1", "0177.0.0.1", "017700000001", "0x7f000001", "127.0.0.1.", "localhost.", "LOCALHOST", "0"),
    *("[::1]", "[::]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::7f00:1]"),
    *(
        "[2002:7f00:1::]",
        "[::1%25lo]",
        "[::1%lo]",
        "[fe80::1%25lo]",
        "[fec0::1]",
        "１２７.0.0.1",
        "127。0。0。1",
    ),
    *("①②⑦.0.0.1", "ⓛocalhost", "127.0.0.1%00.example.org"),
)
"""Names of this machine: some resolvers know more of them, none may reach it."""


async def test_loopback_is_denied_unless_its_host_is_allowed() -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        port = urlsplit(url).port
        for host in PRIVATE_FORMS:
            denied = f"http://{host}:{port}"
            assert code(await probe(denied)) in ("url_host_denied", "url_unreachable"), denied
            assert recorder.requests == []
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"):
            assert code(await probe(f"http://{host}:{port}")) == "url_host_denied", host
        assert recorder.requests == []
        assert code(await probe(url, f"{HOST}:{port}")) is None
        assert code(await probe(url, f"{HOST}:1")) == "url_host_denied"


REDIRECTS = {
    "loopback": ("http://127.0.0.1:{port}/in", "url_host_denied"),
    "metadata": ("http://169.254.169.254/latest/meta-data", "url_host_denied"),
    "private": ("http://10.0.0.1/", "url_host_denied"),
    "multicast": ("http://224.0.0.1/", "url_host_denied"),
    "mapped": ("http://[::ffff:10.0.0.1]/", "url_host_denied"),
    "file": ("file:///etc/passwd", "url_scheme"),
    "gopher": ("gopher://127.0.0.1:{port}/", "url_scheme"),
    "credentials": ("http://user:pass@localhost:{port}/", "url_scheme"),
}


@pytest.mark.parametrize(("target", "expected"), REDIRECTS.values(), ids=REDIRECTS)
async def test_redirect_into_the_network_is_not_followed(target: str, expected: str) -> None:
    """The first host is allowed by its name `localhost`; the address that it redirects to is not."""

    def answer(_: Any) -> Response:
        return Response(status_code=302, headers={"location": target.format(port=port)})

    recorder = Recorder(answer)
    async with serve(recorder.app) as url:
        port = urlsplit(url).port
        found = await probe(f"http://localhost:{port}/out", "localhost")
    assert code(found) == expected
    assert [one["path"] for one in recorder.requests] == ["/out"]


async def test_redirects_end_after_five() -> None:
    recorder = Recorder(lambda r: Response(status_code=302, headers={"location": r.url.path + "x"}))
    async with serve(recorder.app) as url:
        assert code(await probe(f"{url}/", HOST)) == "url_unreachable"
    assert len(recorder.requests) == 6


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let names below `.test` resolve to the given answers, one after the other, the last one for ever."""
    real = socket.getaddrinfo

    def install(*answers: list[str]) -> list[str]:
        asked: list[str] = []

        def getaddrinfo(host: Any, port: Any, *more: Any, **options: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if not str(name).endswith(".test"):
                return real(host, port, *more, **options)
            asked.append(name)
            found = answers[min(len(asked), len(answers)) - 1]
            family = [socket.AF_INET6 if ":" in one else socket.AF_INET for one in found]
            return [(f, socket.SOCK_STREAM, 6, "", (one, port)) for f, one in zip(family, found, strict=True)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        return asked

    return install


async def test_name_with_one_private_address_is_denied(resolve: Callable[..., list[str]]) -> None:
    resolve(["93.184.216.34", "127.0.0.1"])
    recorder = Recorder()
    async with serve(recorder.app) as url:
        assert code(await probe(f"http://mixed.test:{urlsplit(url).port}/")) == "url_host_denied"
    assert recorder.requests == []


async def test_name_that_changes_between_check_and_connect_reaches_nothing(
    resolve: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer is public and has no server; a second lookup would lead to this machine."""
    monkeypatch.setattr(network, "TIMEOUT_S", 0.3)
    asked = resolve(["203.0.114.1"], ["127.0.0.1"])
    recorder = Recorder()
    async with serve(recorder.app) as url:
        found = await probe(f"http://changing.test:{urlsplit(url).port}/")
    assert code(found) == "url_unreachable"
    assert asked == ["changing.test"]
    assert recorder.requests == []


async def test_name_that_changes_before_a_redirect_is_checked_again(
    resolve: Callable[..., list[str]],
) -> None:
    asked = resolve(["127.0.0.1"], ["169.254.169.254"])
    recorder = Recorder(
        lambda r: Response(status_code=302, headers={"location": f"http://b.test:{r.url.port}/"})
    )
    async with serve(recorder.app) as url:
        assert code(await probe(f"http://a.test:{urlsplit(url).port}/", "a.test")) == "url_host_denied"
    assert asked == ["a.test", "b.test"]


async def test_server_that_never_answers_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "TIMEOUT_S", 0.2)
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        assert code(await probe(f"http://{HOST}:{server.getsockname()[1]}/", HOST)) == "url_unreachable"


async def test_all_urls_together_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio
    import time

    monkeypatch.setattr(network, "TOTAL_S", 0.3)
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen(100)
        began = time.monotonic()
        async with prober(HOST) as found:
            urls = [f"http://{HOST}:{server.getsockname()[1]}/{n}" for n in range(50)]
            answers = await asyncio.gather(*(found.probe(url) for url in urls))
    assert {code(one) for one in answers} == {"url_unreachable"}
    assert time.monotonic() - began < 5


async def test_body_is_bounded() -> None:
    recorder = Recorder(lambda _: Response(bytes(network.BODY_LIMIT_BYTES + 1)))
    async with serve(recorder.app) as url:
        found = await probe(url, HOST, body=True)
    assert (found.content.exists, found.content.body) == (True, None)


NO_URLS = ["ftp://a.org", "http://u:p@a.org", "http://u@a.org", "http://", "http:///x", "http://a.org:x/"]


@pytest.mark.parametrize("url", [*NO_URLS, "//a.org", "http://[::1", "http://a b/", "http://a.org\n"])
async def test_url_that_is_not_requested(url: str) -> None:
    assert scheme_problem(url) is not None
    assert code(await probe(url)) == "url_scheme"


def test_normal_form() -> None:
    assert normal_url("HTTP://Example.ORG:80#top") == "http://example.org/"
    assert normal_url("https://example.org:444/A?b=C") == "https://example.org:444/A?b=C"
