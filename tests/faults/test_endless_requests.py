"""A gigabyte of requests without an end costs the daemon no memory, and others no time (daemon D1)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from tests.unit.server.process import Process, wait_until

TOKEN = "0123456789abcdefghijklmnopqrstuvwxyz"
HOST = b"Host: localhost\r\n"
HEAD = b"POST /workflows HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MIB = 1 << 20
TOTAL = 1 << 30

# What is sent once on each connection, and what is sent until it is closed.
ENDLESS = {
    "trailers": (CHUNKED + b"0\r\n", b"X-Name: value of a field\r\n" * (MIB // 27)),
    "one trailer": (CHUNKED + b"0\r\nX: ", b"y" * MIB),
    "extension": (CHUNKED + b"5;", b"y" * MIB),
    "size": (CHUNKED, b"0" * MIB),
    "extensions of small chunks": (CHUNKED, (b"1;" + b"y" * 1_000 + b"\r\n \r\n") * 1_000),
    "chunks of one byte": (CHUNKED, b"1\r\n \r\n" * (MIB // 6)),
    "ends inside a body": (HEAD + b"Content-Length: 99999999999\r\n\r\n", b"\r\n" * (MIB // 2)),
    "ends inside chunks": (CHUNKED, b"4\r\n\r\n\r\n\r\n" * (MIB // 9)),
    "head": (HEAD + b"X: ", b"y" * MIB),
    "empty lines": (b"", b"\r\n" * (MIB // 2)),
}


class Clock:
    """Asks for /healthz every 10 ms on its own connection."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.times: list[float] = []

    def __enter__(self) -> Clock:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()
        self.times.sort()

    @property
    def usual(self) -> float:
        """Seconds within which half were answered; what other programs of the machine delay is above it."""
        return self.times[len(self.times) // 2]

    @property
    def late(self) -> float:
        """Seconds within which 99 % were answered."""
        return self.times[int(len(self.times) * 0.99)]

    def _ask(self) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(10)
            sock.connect(self._path)
            while not self._done.wait(0.01):
                began = time.perf_counter()
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while b"}" not in answer:
                    answer += sock.recv(65_536)
                assert answer.startswith(b"HTTP/1.1 200"), answer
                self.times.append(time.perf_counter() - began)


def flood(address: tuple[str, int], begin: bytes, more: bytes, total: int) -> tuple[int, set[bytes]]:
    """Send `total` bytes over as many connections as that takes; return their number, and all statuses."""
    sent, connections, statuses = 0, 0, set[bytes]()
    while sent < total:
        connections += 1
        with socket.create_connection(address, timeout=5) as sock:
            with contextlib.suppress(ConnectionError, TimeoutError):
                sock.sendall(begin)
                while sent < total:
                    sent += sock.send(more)
            with contextlib.suppress(ConnectionError, TimeoutError):
                statuses.add(sock.recv(65_536)[:12])
    return connections, statuses


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("token", [None, TOKEN], ids=["without a token", "with a token"])
@pytest.mark.parametrize("kind", list(ENDLESS))
def test_a_gigabyte_costs_no_memory_and_delays_no_request(tmp_path, kind, token):
    begin, more = ENDLESS[kind]
    if token:
        field = HOST + f"Authorization: Bearer {token}\r\n".encode()
        begin = begin.replace(HOST, field)
    with Process(tmp_path, "127.0.0.1:0", env={"AGENTFLOW_TOKEN": TOKEN}) as daemon:
        place = urlsplit(daemon.url)
        address = (str(place.hostname), int(place.port or 0))
        flood(address, begin, more, 64 * MIB)  # a body was gathered once
        with Clock(str(tmp_path / "s")) as quiet:
            wait_until(lambda: len(quiet.times) >= 100)
        before, spent = daemon.memory, daemon.cpu_seconds
        with Clock(str(tmp_path / "s")) as clock:
            connections, statuses = flood(address, begin, more, TOTAL)
        grown = daemon.memory - before
        spent = daemon.cpu_seconds - spent
    print(
        f"{kind}: {connections} connections, {sorted(statuses)}, "
        f"{grown / MIB:.1f} MiB, {spent:.1f} s of CPU, "
        f"/healthz {clock.usual * 1e3:.1f} ms, {clock.late * 1e3:.1f} ms (99 %), "
        f"without the flood {quiet.late * 1e3:.1f} ms (99 %)"
    )
    assert grown < 5 * MIB
    assert clock.usual < 0.05
    assert not any(status.startswith(b"HTTP/1.1 5") for status in statuses)
