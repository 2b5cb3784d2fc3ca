"""A damaged store above 2 MiB: answers across runs are complete, or say what is missing (durability 6).

Such a store is not checked as a whole when it is opened, and a command has ended before the check in the
background begins.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from agentflow.errors import AgentflowError, LogCorrupt
from agentflow.events.log import Append, RunMeta
from agentflow.events.sqlite import SqliteLog
from agentflow.events.sqlite.checks import seal_run
from agentflow.events.tombstone import Tombstone
from tests.unit.events.support import event

RUNS, EVENTS = 60, 50
PAGE = 4_096


async def fill(path):
    log = SqliteLog(path)
    for first in range(0, EVENTS, 2):
        for run in range(RUNS):
            workflow_id = f"wf_{run:04d}"
            meta = RunMeta(name=None, definition_hash="d", created_at=1 + run) if first == 0 else None
            events = [event(first + n, 1_600, workflow_id=workflow_id, noise=True) for n in range(2)]
            await log.append(Append(workflow_id, 1, first, events, "running", meta))
    await log.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "log.db"
    asyncio.run(fill(path))
    assert path.stat().st_size > 2 << 20
    return path


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copy(whole, tmp_path / "log.db")


async def all_events(log, **more):
    found, damaged, cursor = [], set(), None
    while True:
        page = await log.query(cursor=cursor, limit=100, **more)
        found += [(run, e.offset) for run, e in page.items]
        damaged |= set(page.damaged)
        if not page.items and page.next_cursor == cursor:
            return found, damaged
        cursor = page.next_cursor


async def all_runs(log, **more):
    found, damaged, cursor = [], set(), None
    while True:
        page = await log.runs(cursor=cursor, limit=25, **more)
        found += [row.workflow_id for row in page.items]
        damaged |= set(page.damaged)
        cursor = page.next_cursor
        if cursor is None:
            return found, damaged


IDS = {f"wf_{run:04d}" for run in range(RUNS)}
WANTED = {(run, offset) for run in IDS for offset in range(EVENTS)}


async def assert_complete_or_told(path):
    """Whether anything was said to be damaged."""
    told = False
    try:
        log = SqliteLog(path)
    except AgentflowError:
        return True
    try:
        for ask, wanted in (
            (all_events(log), WANTED),
            (all_events(log, types=["agent.*"]), WANTED),
            (all_events(log, since=0), WANTED),
            (all_runs(log), {(run,) for run in IDS}),
            (all_runs(log, state="running", order="asc"), {(run,) for run in IDS}),
        ):
            try:
                found, damaged = await ask
            except AgentflowError:
                told = True
                continue
            assert len(found) == len(set(found)), "an answer has something twice"
            seen = {item if isinstance(item, tuple) else (item,) for item in found}
            missing = {item[0] for item in wanted - seen}
            assert missing <= damaged, f"silently missing: {sorted(missing - damaged)[:5]}"
            assert seen <= wanted, f"invented: {sorted(seen - wanted)[:5]}"
            told |= bool(damaged)
    finally:
        await log.close()
    return told


async def test_a_whole_store_is_answered_for_without_any_complaint(path):
    assert not await assert_complete_or_told(path)


def pages_of(path, kind):
    """The numbers of the leaf pages of a table or index."""
    with closing(sqlite3.connect(path)) as db:
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (kind,)).fetchone()[0]
    data = path.read_bytes()
    leaves, todo = [], [root]
    while todo:
        number = todo.pop(0)
        page = data[(number - 1) * PAGE : number * PAGE]
        if page[0] in (2, 5):
            cells = int.from_bytes(page[3:5])
            for n in range(cells):
                at = int.from_bytes(page[12 + 2 * n : 14 + 2 * n])
                todo.append(int.from_bytes(page[at : at + 4]))
            todo.append(int.from_bytes(page[8:12]))
        else:
            leaves.append(number)
    return leaves


TREES = ["batch", "run", "place", "block", "run_by_time", "run_by_state"]


@pytest.mark.parametrize(
    ("tree", "how"),
    [
        pytest.param(tree, how, marks=pytest.mark.slow if how != "zeroed" and tree in TREES[2:] else ())
        for tree in TREES
        for how in ("fewer cells", "zeroed", "no cells")
    ],
)
async def test_a_damaged_page_hides_nothing_silently(path, tree, how):
    leaves = pages_of(path, tree)
    number = leaves[len(leaves) // 2]
    data = bytearray(path.read_bytes())
    start = (number - 1) * PAGE
    if how == "zeroed":
        data[start : start + PAGE] = bytes(PAGE)
    else:
        cells = int.from_bytes(data[start + 3 : start + 5])
        data[start + 3 : start + 5] = (cells // 2 if how == "fewer cells" else 0).to_bytes(2)
    path.write_bytes(data)
    told = await assert_complete_or_told(path)
    assert told or tree not in ("batch", "run")  # what an index has lost may be found without it


async def test_the_events_of_sound_runs_behind_a_damaged_page_are_given(path):
    leaves = pages_of(path, "batch")
    data = bytearray(path.read_bytes())
    start = (leaves[20] - 1) * PAGE
    data[start : start + PAGE] = bytes(PAGE)
    path.write_bytes(data)
    log = SqliteLog(path)
    found, damaged = await all_events(log)
    assert 1 <= len(damaged) <= 2
    assert {item for item in WANTED if item[0] not in damaged} <= set(found)
    assert len(WANTED) - 10 < len(found) < len(WANTED)
    assert await log.last("wf_0059") == EVENTS - 1
    await log.close()


async def test_a_run_whose_text_cannot_be_decoded_is_named(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE run SET definition_hash = CAST(x'ff' AS TEXT) WHERE workflow_id = 'wf_0007'")
        db.commit()
    log = SqliteLog(path)
    found, damaged = await all_runs(log)
    assert (set(found), damaged) == (IDS - {"wf_0007"}, {"wf_0007"})
    events, lost = await all_events(log)
    assert {run for run, _ in events} == IDS - {"wf_0007"}
    assert lost == {"wf_0007"}
    await log.close()


@pytest.mark.parametrize("damage", ["CAST(x'ff' AS TEXT)", "definition_hash || 'x'"])
async def test_of_many_runs_that_are_deleted_a_damaged_one_stays_alone(path, damage):
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE run SET state = 'completed'")
        for run, *_ in db.execute("SELECT id FROM run").fetchall():
            seal_run(db, run)
        db.execute(f"UPDATE run SET definition_hash = {damage} WHERE workflow_id = 'wf_0007'")
        db.commit()
    log = SqliteLog(path)
    found = await log.delete_all(sorted(IDS), 1)
    assert {run for run, answer in found.items() if isinstance(answer, LogCorrupt)} == {"wf_0007"}
    assert {run for run, answer in found.items() if isinstance(answer, Tombstone)} == IDS - {"wf_0007"}
    await log.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flips", [10, pytest.param(800, marks=pytest.mark.slow)])
async def test_no_flipped_bit_is_answered_for_silently(whole, tmp_path, flips):
    """In what b-trees are made of: headers of pages and the pointers to cells."""
    data = whole.read_bytes()
    dice = random.Random(flips)
    path = tmp_path / "log.db"
    told = 0
    for _ in range(flips):
        changed = bytearray(data)
        at = dice.randrange(1, len(data) // PAGE) * PAGE + dice.randrange(24)
        changed[at] ^= 1 << dice.randrange(8)
        path.write_bytes(changed)
        try:
            told += await assert_complete_or_told(path)
        except AssertionError as silent:
            raise AssertionError(f"byte {at}: {silent}") from None
    assert told > flips / 12
