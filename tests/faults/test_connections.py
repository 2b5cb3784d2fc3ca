"""Connections take no descriptors from runs, and idle clients make room for others (daemon D3)."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.unit.server.daemon import document
from tests.unit.server.process import Process, wait_until

STREAMS, IDLE, RUNS = 1_000, 2_000, 50


@pytest.fixture
def descriptors():
    """Room for the other end of all connections, in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 8_192:
        pytest.skip("the clients of this test need 8,192 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(path: str, opened: contextlib.ExitStack, data: bytes = b"") -> socket.socket:
    sock = opened.enter_context(socket.socket(socket.AF_UNIX))
    sock.settimeout(20)
    sock.connect(path)
    with contextlib.suppress(ConnectionError):
        sock.sendall(data)
    return sock


def first_lines(sockets: list[socket.socket]) -> list[bytes]:
    """The status line on each; empty where the connection was closed before it."""
    found: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ)
        deadline = time.monotonic() + 30
        while len(found) < len(sockets):
            assert time.monotonic() < deadline, f"{len(found)} of {len(sockets)} were answered"
            for key, _ in selector.select(1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    found[sock] = sock.recv(4_096).partition(b"\r\n")[0]
                except ConnectionError:
                    found[sock] = b""
                selector.unregister(sock)
    return [found[sock] for sock in sockets]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "limits", [(1_024, 16_384), (1_024, 1_024), (128, 128)], ids=["raised", "hard", "128"]
)
def test_streams_and_idle_connections_leave_room_for_runs(tmp_path, descriptors, limits):
    with Process(tmp_path, descriptors=limits) as daemon, contextlib.ExitStack() as opened:
        path = daemon.socket.removeprefix("unix:")
        transport = httpx.HTTPTransport(uds=path, retries=5)
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as http:
            slow = http.post("/workflows", json={"definition": document("linger 100"), "input": "x"}).json()
            request = f"GET {slow['links']['self']}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            streams = first_lines([connect(path, opened, request) for _ in range(STREAMS)])
            accepted = streams.count(b"HTTP/1.1 200 OK")
            assert set(streams) <= {b"HTTP/1.1 200 OK", b"HTTP/1.1 503 Service Unavailable", b""}
            assert accepted == STREAMS if limits[1] > 8_192 else accepted > 0
            for _ in range(IDLE):
                connect(path, opened)
            with ThreadPoolExecutor(RUNS) as pool:
                runs = list(pool.map(lambda number: run(path, number), range(RUNS)))
            assert [found["state"] for found in runs] == ["completed"] * RUNS
            assert http.get(slow["links"]["self"]).json()["state"] == "running"
            assert "accept_without_descriptors" not in daemon.errors()
            assert http.get("/healthz").json()["status"] == "ok"
            assert daemon.open_descriptors < limits[1]
        print(f"{limits}: {accepted} streams, {daemon.open_descriptors} descriptors are open")


def run(path: str, number: int) -> dict:
    """Submit a run and wait for it, as a client does that comes again when it is refused or cut off."""
    transport = httpx.HTTPTransport(uds=path, retries=5)
    headers = {"Idempotency-Key": f"run {number}", "Connection": "close"}
    body = {"definition": document("touch"), "input": str(number)}
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as http:
        for _ in range(200):
            with contextlib.suppress(httpx.TransportError):
                answer = http.post("/workflows?wait=60", json=body, headers=headers)
                if answer.status_code != 503:
                    assert answer.status_code in (200, 201), answer.text
                    return answer.json()
            time.sleep(0.1)
    raise AssertionError("refused 200 times")


@pytest.mark.slow
def test_accepting_without_descriptors_does_not_spin(tmp_path, descriptors):
    """The limit is lowered under the running daemon: accept fails with EMFILE until something is closed."""
    with Process(tmp_path, descriptors=(512, 512)) as daemon, contextlib.ExitStack() as opened:
        path = daemon.socket.removeprefix("unix:")
        assert daemon.process is not None
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (daemon.open_descriptors + 8, 512))
        request = b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n"
        sockets = [connect(path, opened, request) for _ in range(100)]
        wait_until(lambda: "accept_without_descriptors" in daemon.errors())
        began, spent = time.monotonic(), daemon.cpu_seconds
        wait_until(lambda: time.monotonic() - began > 2)
        assert daemon.cpu_seconds - spent < 0.5
        assert daemon.errors().count("accept_without_descriptors") < 100
        for sock in sockets:
            sock.close()
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost") as http:
            assert http.get("/healthz").json()["status"] == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("warm", [False, True], ids=["first runs", "later runs"])
def test_a_daemon_without_a_free_descriptor_fails_no_run(tmp_path, warm):
    """What cannot be done then is refused as temporary, or done later; nothing stays broken."""
    with Process(tmp_path) as daemon:
        path = daemon.socket.removeprefix("unix:")
        assert daemon.process is not None
        limits = resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE)
        transport = httpx.HTTPTransport(uds=path, limits=httpx.Limits(max_connections=1))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as http:

            def submit(number: int) -> httpx.Response:
                body = {"definition": document(f"r{number} touch", "echo"), "input": "x"}
                return http.post("/workflows", json=body)

            assert http.get("/healthz").status_code == 200
            if warm:
                wait_until(lambda: submit(100).status_code == 201)
                wait_until(lambda: daemon.effects() == ["r100-x"])
            resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
            answers = [submit(number) for number in range(10)]
            assert {answer.status_code for answer in answers} <= {201, 503}
            if warm:
                assert {answer.status_code for answer in answers} == {201}
            listed = http.get("/workflows")
            assert listed.status_code == 200
            resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, limits)
            answers += [submit(number) for number in range(20, 30)]
            runs = [answer.json()["links"]["self"] for answer in answers if answer.status_code == 201]
            assert len(runs) >= 10
            wait_until(lambda: {http.get(run).json()["state"] for run in runs} == {"completed"})
            assert http.get("/healthz").json()["status"] == "ok"
        assert "Traceback" not in daemon.errors()
        print(f"{len(runs)} runs of {len(answers)} were accepted")
