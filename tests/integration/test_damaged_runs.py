"""One damaged run among sound ones: each reader across runs gets the others and is told (durability 6)."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from agentflow.errors import LogCorrupt
from agentflow.events.sqlite import SqliteLog
from agentflow.runtime import Runtime
from tests.integration.support.runs import Desk, chain
from tests.unit.cli.support import Sandbox
from tests.unit.events.support import change_batch
from tests.unit.server.kit import serving


@pytest.fixture
async def damaged(tmp_path):
    """A store with three ended runs; an event of the second one is changed."""
    path, desk = tmp_path / "log.db", Desk()
    async with Runtime(f"sqlite:{path}", services=[desk.service()]) as runtime:
        for name in ("a", "b", "c"):
            handle = await runtime.submit(chain("look", "look"), {}, workflow_id=f"wf_{name}")
            await handle.result()
    first, _ = change_batch(path, 2, 3)
    assert 0 < first <= 3
    return path


async def test_a_stream_of_all_runs_gives_the_sound_ones_and_names_the_gap(damaged, tmp_path):
    async with serving(tmp_path, store=f"sqlite:{damaged}") as served, served.http() as http:
        answer = await http.get("/events?follow=false")
        assert answer.status_code == 200
        frames = [json.loads(line) for line in answer.text.splitlines()]
        gaps = [frame for frame in frames if frame["type"] == "gap"]
        assert gaps == [{"type": "gap", "workflow_id": "wf_b", "reason": "log_corrupt"}]
        for run in ("wf_a", "wf_c"):
            events = [f for f in frames if f.get("workflow_id") == run]
            assert [event["offset"] for event in events] == list(range(len(events)))
            assert events[-1]["type"] == "workflow.completed"
        sse = (await http.get("/events?follow=false&format=sse")).text
        assert sse.count("event: gap\n") == 1
        assert "event: workflow.completed" in sse
        only = (await http.get("/events?follow=false&type=workflow.completed")).text.splitlines()
        assert [json.loads(line).get("workflow_id") for line in only if "gap" not in line][-1] == "wf_c"


async def test_the_stream_of_the_damaged_run_does_not_end_as_if_it_were_over(damaged, tmp_path):
    async with serving(tmp_path, store=f"sqlite:{damaged}") as served, served.http() as http:
        frames = [
            json.loads(line)
            for line in (await http.get("/workflows/wf_b/events?follow=false")).text.splitlines()
        ]
        assert [frame.get("offset") for frame in frames] == [0, 1, 2, None]
        assert frames[-1]["type"] == "gap"
        async with served.client() as client:
            found = []
            with pytest.raises(LogCorrupt, match="wf_b is damaged"):  # noqa: PT012
                async for line in client.event_lines("wf_b", follow=False):
                    found.append(line)  # noqa: PERF401 — those before the error
            assert len(found) == 3


async def test_lists_show_the_sound_runs_and_name_the_others(damaged, tmp_path):
    with contextlib.closing(sqlite3.connect(damaged)) as db:
        db.execute("UPDATE run SET name = 'other' WHERE id = 3")
        db.commit()
    async with serving(tmp_path, store=f"sqlite:{damaged}") as served, served.http() as http:
        listed = (await http.get("/workflows")).json()
        assert [item["workflow_id"] for item in listed["items"]] == ["wf_b", "wf_a"]
        assert listed["damaged"] == ["wf_c"]
        full = (await http.get("/workflows?full=true")).json()
        assert [item["workflow_id"] for item in full["items"]] == ["wf_a"]
        assert full["damaged"] == ["wf_b", "wf_c"]
        async with served.client() as client:
            assert (await client.summaries()).damaged == ("wf_c",)


def test_the_command_line_warns(damaged, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(sqlite3.connect(damaged)) as db:
        db.execute("UPDATE run SET name = 'other' WHERE id = 3")
        db.commit()
    sandbox = Sandbox(tmp_path)
    try:
        for more in ((), ("--read-only",)):
            listed = sandbox.invoke("list", "--store", f"sqlite:{damaged}", *more)
            assert listed.exit_code == 0
            assert "wf_a" in listed.stdout
            assert listed.stderr.startswith("warning: wf_c is damaged and cannot be shown; `agentflow ver")
        whole = sandbox.invoke("list", "--json", "--store", f"sqlite:{damaged}")  # folds every log
        assert (whole.exit_code, whole.stdout) == (74, "")
        first, _ = change_batch(damaged, 2, 3, "ts = ts - 1")
        found = json.loads(sandbox.invoke("list", "--json", "--store", f"sqlite:{damaged}").stdout)
        assert found["damaged"] == ["wf_c"]
        change_batch(damaged, 2, 3)
        events = sandbox.invoke("events", "wf_b", "--no-follow", "--store", f"sqlite:{damaged}")
        assert (events.exit_code, len(events.stdout.splitlines())) == (74, first)
    finally:
        sandbox.close()


async def test_a_consumer_with_a_cursor_passes_the_damage_once(damaged):
    log = SqliteLog(damaged)
    cursor, seen, told = None, [], []
    while True:
        page = await log.query(cursor=cursor, limit=4)
        seen += [(run, event.offset) for run, event in page.items]
        told += page.damaged
        if not page.items and page.next_cursor == cursor:
            break
        cursor = page.next_cursor
    assert told == ["wf_b"]
    assert len(seen) == len(set(seen))
    assert ("wf_c", await log.last("wf_c")) in seen
    await log.close()


@pytest.mark.parametrize(
    "damage",
    [
        (1, "ts = ts + 1"),
        (-1, "body = substr(body, 1, 20)"),
        (5, None),
    ],
    ids=["changed", "cut", "gone"],
)
async def test_recovery_passes_a_damaged_run_that_is_paused(tmp_path, damage):
    path, desk = tmp_path / "log.db", Desk()
    async with Runtime(f"sqlite:{path}", services=[desk.service()]) as runtime:
        for name in ("a", "b", "c"):
            handle = await runtime.submit(chain("look", "look"), {}, workflow_id=f"wf_{name}")
            await runtime.pause(f"wf_{name}")
            await handle.result()
    with contextlib.closing(sqlite3.connect(path)) as db:
        last = db.execute("SELECT last_offset FROM run WHERE id = 2").fetchone()[0]
    offset, change = damage
    change_batch(path, 2, min(offset % (last + 1), last), change)
    async with Runtime(f"sqlite:{path}", services=[desk.service()]) as runtime:
        assert await runtime.recover() == []
        for run in ("wf_a", "wf_c"):
            assert (await (await runtime.resume(run)).result()).state == "completed"
        with pytest.raises(LogCorrupt):
            await runtime.resume("wf_b")
