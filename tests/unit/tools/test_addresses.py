"""Which addresses are public, and that connections go to one that was looked at."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from agentflow.addresses import PrivateAddress, check_host, is_public
from agentflow.http import HttpClient, HttpFailure
from tests.unit.tools.servers import Recorder, serve


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "100.64.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12::1",
        "ff02::1",
        "2001:db8::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2002:c0a8:101::1",
        "fec0::1",
        "64:ff9b:1::7f00:1",
        "::ffff:0:127.0.0.1",
        "2001:0:7f00:1::",
        "5f00::1",
        "4000::1",
    ],
)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "172.15.0.1",
        "172.32.0.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Make names resolve to these addresses, the next list for each question; gives the questions."""
    questions: list[str] = []

    async def getaddrinfo(_: Any, host: str, port: int, **__: Any) -> list[Any]:
        questions.append(host)
        addresses = answers[min(len(questions), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return questions


async def test_one_private_address_is_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["8.8.8.8", "10.0.0.1"], ["8.8.8.8", "1.1.1.1", "8.8.8.8"])
    with pytest.raises(
        PrivateAddress, match=r"example\.test has the address 10\.0\.0\.1, which is not public"
    ):
        await check_host("example.test", 80)
    assert await check_host("example.test", 80) == ["8.8.8.8", "1.1.1.1"]


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f000001", "localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
async def test_other_ways_to_write_it(host: str) -> None:
    client = HttpClient(public_only=True)
    with pytest.raises(HttpFailure) as caught:
        async with client.request("GET", f"http://{host}:9/", headers={}):
            pass
    await client.aclose()
    assert (caught.value.kind, caught.value.sent) == ("denied", False)


async def test_a_name_that_changes_its_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was judged is the one that is connected to: the name is asked once a connection."""
    recorder = Recorder()
    async with serve(recorder.app) as url:
        port = url.rpartition(":")[2]
        questions = resolving(monkeypatch, ["127.0.0.1"], ["10.9.9.9"])
        # As if loopback were public: then the connection must go there, whatever the name says next.
        monkeypatch.setattr("agentflow.addresses.is_public", lambda address: address == "127.0.0.1")
        client = HttpClient(public_only=True)
        async with client.request("GET", f"http://rebound.test:{port}/x", headers={}) as response:
            assert response.status == 200
        assert questions == ["rebound.test"]
        assert recorder.last["headers"]["host"] == f"rebound.test:{port}"
        await client.aclose()
        with pytest.raises(HttpFailure) as caught:
            async with client.request("GET", f"http://rebound.test:{port}/x", headers={}):
                pass
        assert caught.value.kind == "denied"
        await client.aclose()
    assert len(recorder.requests) == 1


async def test_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    async with serve(recorder.app) as url:
        port = url.rpartition(":")[2]
        resolving(monkeypatch, ["127.0.0.9", "127.0.0.1"])
        monkeypatch.setattr("agentflow.addresses.is_public", lambda _: True)
        client = HttpClient(public_only=True)
        async with client.request("GET", f"http://two.test:{port}/", headers={}) as response:
            assert response.status == 200
        await client.aclose()
