"""The example web app: the same GET gives the same answer through a kill -9 at each of the run's events."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
ANSWER = {"ticket": "7", "urgency": "high", "booking": "B-7"}


@contextmanager
def app(folder: Path, kill_at: int = -1) -> Generator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTFLOW_", "OPENAI_"))}
    env |= {"AGENTFLOW_STORE": f"sqlite:{folder / 'tickets.db'}", "BOOKINGS": str(folder / "bookings")}
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it takes connections before the app is there
        port, descriptor = listener.getsockname()[1], listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.support.killed_app", str(descriptor), str(kill_at)],
            cwd=ROOT,
            env=env,
            pass_fds=[descriptor],
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=40) as client:
            yield client, process
    finally:
        process.kill()
        process.wait()


def put_and_get(client: httpx.Client) -> tuple[int, object]:
    client.put("/tickets/7", json={"text": "The shop is down."}).raise_for_status()
    answer = client.get("/tickets/7")
    return answer.status_code, answer.json()


def bookings(folder: Path) -> list[str]:
    return [file.read_text() for file in (folder / "bookings").iterdir()]


def events(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "tickets.db")) as db:
        return db.execute("SELECT sum(count) FROM batch").fetchone()[0]


def test_a_ticket_is_sorted_and_booked(tmp_path: Path):
    with app(tmp_path) as (client, _):
        assert put_and_get(client) == (200, ANSWER)
        assert put_and_get(client) == (200, ANSWER)
        assert client.put("/tickets/7", json={"text": "Another."}).status_code == 409
        assert client.get("/tickets/8").status_code == 404
    assert bookings(tmp_path) == ["B-7"]


def kill_and_ask_again(folder: Path, offset: int) -> bool:
    """Kill the app behind this event, start it again and ask; False if the run has no such event."""
    with app(folder, offset) as (client, process):
        try:
            assert put_and_get(client) == (200, ANSWER)
        except httpx.TransportError:
            assert process.wait(10) == -signal.SIGKILL
        else:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)  # it may die behind its last event, with the answer on its way
            if process.returncode is None:
                return False
    before = events(folder)
    assert before > offset
    with app(folder) as (client, _):
        if offset == 0:  # the client cannot know whether its PUT was heard: it repeats it
            assert put_and_get(client) == (200, ANSWER)
        answer = client.get("/tickets/7")
        assert (answer.status_code, answer.json()) == (200, ANSWER)
    assert bookings(folder) == ["B-7"]
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("offset", [0, 9])
def test_the_same_answer_after_a_kill(offset: int, tmp_path: Path):
    assert kill_and_ask_again(tmp_path, offset)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_same_answer_after_a_kill_at_each_event(tmp_path: Path):
    offset = 0
    while True:
        folder = tmp_path / str(offset)
        folder.mkdir()
        if not kill_and_ask_again(folder, offset):
            break
        offset += 1
    assert offset > 15
