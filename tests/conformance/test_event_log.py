"""What every event log promises (page 000 §7). One suite; each back end passes all of it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import ConfigurationError, Fenced, LogClosed, OffsetConflict, RunNotFound, RunTerminal
from agentflow.events.envelope import Event, StoredEvent, Unknown, encode, iso
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.events.owner import Owner, this_process

BACK_ENDS = ["memory", "sqlite", "file"]
T0 = 1_700_000_000_000_000
DEAD = Owner(pid=2**22 + 1, started="never", token="dead")  # beyond any pid that Linux gives


def url_of(kind, directory):
    paths = {"memory": "", "sqlite": f"{directory}/log.db", "file": f"{directory}/log"}
    return f"{kind}:{paths[kind]}"


@pytest.fixture(params=BACK_ENDS)
def kind(request):
    return request.param


@pytest.fixture
async def log(kind, tmp_path):
    log = open_log(url_of(kind, tmp_path))
    yield log
    await log.close()


def event(offset, type="agent.processing", workflow_id="wf_a"):
    ts = T0 + offset
    data = Unknown(type=type, data={"n": offset})
    body = encode(
        Event(id="evt_1", offset=offset, timestamp=iso(ts), type=type, workflow_id=workflow_id, data=data)
    )
    return StoredEvent(offset, ts, type, body)


def meta(name="wf", created_at=T0, labels=None, owner=None):
    return RunMeta(
        name=name, definition_hash="d" * 8, created_at=created_at, labels=labels or {}, owner=owner
    )


def batch(workflow_id, expected, count=1, *, epoch=1, state=None, last_type=None, run=None):
    events = [event(expected + i, workflow_id=workflow_id) for i in range(count)]
    if last_type is not None:
        events[-1] = event(expected + count - 1, last_type, workflow_id)
    if expected == 0 and run is None:
        run = meta()
    return Append(workflow_id, epoch, expected, events, state, run)


async def fill(log, workflow_id, count, **first):
    await log.append(batch(workflow_id, 0, count, run=meta(**first)))


async def offsets(log, workflow_id, start=0, limit=256):
    return [e.offset for e in await log.read(workflow_id, start, limit)]


# -- append and read


async def test_what_was_appended_is_read_back_as_it_was(log):
    await log.append(batch("wf_a", 0, 2, state="pending"))
    await log.append(batch("wf_a", 2, 1, state="running"))
    assert await log.read("wf_a") == [event(0), event(1), event(2)]
    assert await log.last("wf_a") == 2
    row = await log.run("wf_a")
    assert (row.state, row.last_offset, row.epoch, row.name) == ("running", 2, 1, "wf")
    assert (row.created_at, row.updated_at, row.definition_hash) == (T0, T0 + 2, "d" * 8)
    assert not row.ended


async def test_a_page_starts_where_it_is_told_and_holds_at_most_its_limit(log):
    await fill(log, "wf_a", 10)
    assert await offsets(log, "wf_a", 3, 4) == [3, 4, 5, 6]
    assert await offsets(log, "wf_a", 9) == [9]
    assert await offsets(log, "wf_a", 10) == []
    assert await offsets(log, "wf_a", 1_000) == []


async def test_an_unknown_run_is_said_to_be_unknown(log):
    for call in (log.read("wf_no"), log.last("wf_no"), log.run("wf_no"), log.read("wf_no", 7)):
        with pytest.raises(RunNotFound, match="wf_no"):
            await call


async def test_runs_do_not_see_each_other(log):
    await fill(log, "wf_a", 3)
    await fill(log, "wf_b", 1)
    assert await offsets(log, "wf_a") == [0, 1, 2]
    assert await offsets(log, "wf_b") == [0]


async def test_batches_commit_in_the_order_of_their_calls(log):
    futures = [log.append(batch("wf_a", 0))]
    futures += [log.append(batch("wf_a", n, state=f"s{n}")) for n in range(1, 200)]
    await asyncio.gather(*futures)
    assert await offsets(log, "wf_a") == list(range(200))
    assert (await log.run("wf_a")).state == "s199"


async def test_a_cancelled_wait_takes_nothing_back(log):
    await fill(log, "wf_a", 1)
    future = log.append(batch("wf_a", 1))
    if not future.done():
        future.cancel()
    await log.append(batch("wf_a", 2))
    assert await offsets(log, "wf_a") == [0, 1, 2]


async def test_state_none_leaves_the_state_as_it_was(log):
    await log.append(batch("wf_a", 0, state="waiting"))
    await log.append(batch("wf_a", 1))
    assert (await log.run("wf_a")).state == "waiting"


@pytest.mark.parametrize(
    "bad",
    [
        Append("wf_a", 1, 0, [], None, meta()),
        Append("wf_a", 1, 0, [event(0)], None, None),
        Append("wf_a", 1, 1, [event(1)], None, meta()),
        Append("wf_a", 1, 0, [event(1)], None, meta()),
        Append("wf_a", 1, 0, [event(0), event(2)], None, meta()),
        Append("wf_a", 1, 0, [event(0), event(2), event(1), event(3)], None, meta()),
        Append("wf_a", 1, 0, [event(0, "workflow.completed"), event(1)], None, meta()),
    ],
)
async def test_a_malformed_batch_is_the_callers_mistake(log, bad):
    with pytest.raises(ValueError):
        log.append(bad)
    with pytest.raises(RunNotFound):
        await log.last("wf_a")


# -- offsets, epochs, ends


@pytest.mark.parametrize("expected", [1, 3, 4, 100])
async def test_an_append_elsewhere_than_at_the_end_is_refused_whole(log, expected):
    await fill(log, "wf_a", 2)
    with pytest.raises(OffsetConflict) as caught:
        await log.append(batch("wf_a", expected, 3))
    assert (caught.value.expected, caught.value.actual) == (expected, 2)
    assert await offsets(log, "wf_a") == [0, 1]


async def test_a_run_is_created_once(log):
    await fill(log, "wf_a", 2)
    with pytest.raises(OffsetConflict) as caught:
        await log.append(batch("wf_a", 0, 1, run=meta(name="other")))
    assert caught.value.actual == 2
    assert (await log.run("wf_a")).name == "wf"


async def test_a_run_that_is_not_there_cannot_be_continued(log):
    with pytest.raises(OffsetConflict) as caught:
        await log.append(batch("wf_a", 5))
    assert caught.value.actual == 0
    with pytest.raises(Fenced):
        await log.append(batch("wf_a", 0, epoch=2))
    with pytest.raises(RunNotFound):
        await log.run("wf_a")


async def test_a_refused_batch_fails_alone(log):
    await fill(log, "wf_a", 1)
    futures = [
        log.append(batch("wf_a", 1)),
        log.append(batch("wf_a", 9)),
        log.append(batch("wf_b", 0, 2)),
        log.append(batch("wf_a", 2, epoch=7)),
        log.append(batch("wf_a", 2)),
    ]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(r) for r in results] == [type(None), OffsetConflict, type(None), Fenced, type(None)]
    assert await offsets(log, "wf_a") == [0, 1, 2]
    assert await offsets(log, "wf_b") == [0, 1]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_nothing_follows_a_terminal_event(log, end):
    await log.append(batch("wf_a", 0, 2, state="running"))
    await log.append(batch("wf_a", 2, 2, last_type=f"workflow.{end}"))
    row = await log.run("wf_a")
    assert row.state == end
    assert row.ended
    with pytest.raises(RunTerminal):
        await log.append(batch("wf_a", 4))
    assert await log.last("wf_a") == 3


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["wf_a", "wf_b"]),
            st.integers(0, 8),  # expected offset
            st.integers(1, 3),  # events
            st.integers(1, 2),  # epoch
            st.sampled_from([None, None, None, "workflow.failed"]),
            st.booleans(),  # wait for it
        ),
        max_size=25,
    )
)
@pytest.mark.parametrize("kind", BACK_ENDS)
def test_any_sequence_of_appends_leaves_gapless_logs(kind, steps):
    """Against the plainest model of the rules: a list per run."""

    async def scenario():
        with tempfile.TemporaryDirectory() as directory:
            log = open_log(url_of(kind, directory))
            model: dict[str, list[str]] = {}
            waiting = []
            for workflow_id, expected, count, epoch, last_type, wait in steps:
                future = log.append(batch(workflow_id, expected, count, epoch=epoch, last_type=last_type))
                known = model.get(workflow_id, [])
                ended = bool(known) and known[-1] == "workflow.failed"
                accepted = epoch == 1 and not ended and expected == len(known)
                if accepted:
                    types = ["agent.processing"] * count
                    if last_type is not None:
                        types[-1] = last_type
                    model[workflow_id] = known + types
                waiting.append((future, accepted))
                if wait:
                    await asyncio.wait([future])
            for future, accepted in waiting:
                error = (await asyncio.gather(future, return_exceptions=True))[0]
                assert (error is None) == accepted, error
            for workflow_id, types in model.items():
                stored = await log.read(workflow_id)
                assert [e.offset for e in stored] == list(range(len(types)))
                assert [e.type for e in stored] == types
            await log.close()

    asyncio.run(scenario())


# -- ownership


async def test_claiming_a_run_that_does_not_exist_creates_nothing(log):
    assert await log.claim("wf_a", this_process()) == 1
    with pytest.raises(RunNotFound):
        await log.run("wf_a")


async def test_the_creator_owns_its_run(log):
    await fill(log, "wf_a", 1)
    assert await log.claim("wf_a", this_process()) == 1
    assert (await log.run("wf_a")).owner == this_process()


async def test_a_live_owner_keeps_its_run(log):
    await fill(log, "wf_a", 1)
    other = Owner(os.getpid(), this_process().started, "another owner in a live process")
    with pytest.raises(Fenced, match=f"process {os.getpid()}"):
        await log.claim("wf_a", other)
    await log.append(batch("wf_a", 1))


async def test_the_run_of_a_dead_owner_is_taken_over_and_the_old_epoch_fenced(log):
    await fill(log, "wf_a", 1, owner=DEAD)
    assert await log.claim("wf_a", this_process()) == 2
    with pytest.raises(Fenced):
        await log.append(batch("wf_a", 1, epoch=1))
    await log.append(batch("wf_a", 1, epoch=2))
    assert await offsets(log, "wf_a") == [0, 1]


async def test_a_process_that_took_the_pid_of_the_owner_is_not_the_owner(log):
    stale = Owner(os.getpid(), "an earlier start", "t")
    await fill(log, "wf_a", 1, owner=stale)
    assert await log.claim("wf_a", this_process()) == 2


async def test_a_released_run_can_be_claimed_by_another(log):
    await fill(log, "wf_a", 1)
    other = Owner(os.getpid(), this_process().started, "other")
    await log.release("wf_a", other)  # not its run: nothing happens
    with pytest.raises(Fenced):
        await log.claim("wf_a", other)
    await log.release("wf_a", this_process())
    assert await log.claim("wf_a", other) == 2
    with pytest.raises(Fenced):
        await log.append(batch("wf_a", 1, epoch=1))


async def test_a_claim_sees_the_appends_made_before_it(log):
    first = log.append(batch("wf_a", 0, 1, run=meta(owner=DEAD)))
    second = log.append(batch("wf_a", 1, 1))
    assert await log.claim("wf_a", this_process()) == 2
    assert first.done()
    await log.append(batch("wf_a", 2, epoch=2))
    await second
    assert await offsets(log, "wf_a") == [0, 1, 2]


# -- lists and queries


@pytest.fixture
async def twelve(log):
    """Twelve runs in four groups of equal creation time."""
    for n in range(12):
        await log.append(
            batch(
                f"wf_{n:02d}",
                0,
                1,
                state="running" if n % 2 else "waiting",
                run=meta(name=f"n{n % 3}", created_at=T0 + n // 3, labels={"team": f"t{n % 4}", "a.b": "c"}),
            )
        )
    return log


async def walk(log, **filters):
    found, cursor, pages = [], None, 0
    while True:
        page = await log.runs(cursor=cursor, **filters)
        found += [row.workflow_id for row in page.items]
        pages += 1
        cursor = page.next_cursor
        if cursor is None:
            return found, pages


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 5, 12, 50])
async def test_pages_of_runs_hold_every_run_once_in_order(twelve, order, limit):
    found, pages = await walk(twelve, order=order, limit=limit)
    wanted = [f"wf_{n:02d}" for n in range(12)]
    assert found == (wanted if order == "asc" else wanted[::-1])
    assert pages == -(-12 // limit)


async def test_newest_runs_come_first_and_new_ones_do_not_shift_a_walk(twelve):
    page = await twelve.runs(limit=4)
    await fill(twelve, "wf_new", 1, created_at=T0 + 99)
    rest = await twelve.runs(limit=50, cursor=page.next_cursor)
    assert [r.workflow_id for r in page.items + rest.items] == [f"wf_{n:02d}" for n in range(11, -1, -1)]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"state": "running"}, [1, 3, 5, 7, 9, 11]),
        ({"state": ["running", "waiting"], "name": "n0"}, [0, 3, 6, 9]),
        ({"state": "completed"}, []),
        ({"name": "n1"}, [1, 4, 7, 10]),
        ({"label": ("team", "t2")}, [2, 6, 10]),
        ({"label": ("a.b", "c"), "name": "n2", "state": "waiting"}, [2, 8]),
        ({"label": ("team", "c")}, []),
        ({"since": T0 + 1, "until": T0 + 3}, [3, 4, 5, 6, 7, 8]),
    ],
)
async def test_runs_are_found_by_state_name_label_and_time(twelve, filters, wanted):
    found, _ = await walk(twelve, order="asc", limit=2, **filters)
    assert found == [f"wf_{n:02d}" for n in wanted]


async def test_a_cursor_that_is_not_ours_is_refused(log):
    for cursor in ("", "nonsense", "WyJhIl0"):
        with pytest.raises(ValueError, match="cursor"):
            await log.runs(cursor=cursor)
        with pytest.raises(ValueError, match="cursor"):
            await log.query(cursor=cursor)


async def test_events_of_all_runs_are_found_by_type_in_commit_order(log):
    await log.append(batch("wf_b", 0, 2, last_type="tool.call_started"))
    await log.append(batch("wf_a", 0, 2, last_type="tool.call_failed"))
    await log.append(batch("wf_b", 2, 1, last_type="workflow.completed"))

    async def found(types=None, **more):
        page = await log.query(types, **more)
        return [(workflow_id, e.offset) for workflow_id, e in page.items]

    assert await found() == [("wf_b", 0), ("wf_b", 1), ("wf_a", 0), ("wf_a", 1), ("wf_b", 2)]
    assert await found(["tool.*"]) == [("wf_b", 1), ("wf_a", 1)]
    assert await found(["tool.call_failed", "workflow.*"]) == [("wf_a", 1), ("wf_b", 2)]
    assert await found(["tool"]) == []
    assert await found(since=T0 + 1, until=T0 + 2) == [("wf_b", 1), ("wf_a", 1)]
    with pytest.raises(ValueError, match="family"):
        await found(["*.failed"])


async def test_a_kept_cursor_continues_with_what_is_committed_later(log):
    empty = (await log.query()).next_cursor
    await fill(log, "wf_a", 3)
    first = await log.query(limit=2, cursor=empty)
    assert await log.query(limit=2) == first
    second = await log.query(limit=2, cursor=first.next_cursor)
    assert [e.offset for _, e in first.items + second.items] == [0, 1, 2]
    nothing = await log.query(limit=2, cursor=second.next_cursor)
    assert nothing.items == []
    await log.append(batch("wf_a", 3))
    late = await log.query(limit=2, cursor=nothing.next_cursor)
    assert [e.offset for _, e in late.items] == [3]


async def test_the_latest_cursor_gives_only_what_comes_later(log):
    start = await log.latest_cursor()
    await fill(log, "wf_a", 3)
    assert [e.offset for _, e in (await log.query(cursor=start)).items] == [0, 1, 2]
    now = await log.latest_cursor()
    assert (await log.query(cursor=now)).items == []
    await log.append(batch("wf_a", 3))
    assert [e.offset for _, e in (await log.query(cursor=now)).items] == [3]


async def test_a_cursor_moves_past_what_its_filter_leaves_out(log):
    await fill(log, "wf_a", 50)
    page = await log.query(["tool.*"])
    assert page.items == []
    await log.append(batch("wf_a", 50, last_type="tool.call_started"))
    assert [e.offset for _, e in (await log.query(["tool.*"], cursor=page.next_cursor)).items] == [50]


async def test_a_consumers_cursor_is_kept_the_last_one_holds(log, kind, tmp_path):
    assert await log.load_cursor("spans") is None
    await fill(log, "wf_a", 3)
    await log.save_cursor("spans", (await log.query(limit=1)).next_cursor)
    await log.save_cursor("spans", (await log.query(limit=2)).next_cursor)
    await log.save_cursor("of/another: ü", "x")
    assert await log.load_cursor("of/another: ü") == "x"
    await log.save_cursor("of/a third.", "y")
    assert await log.cursors("of/") == {"of/another: ü": "x", "of/a third.": "y"}
    assert await log.cursors("%") == {}
    await log.drop_cursor("of/a third.")
    await log.drop_cursor("of/nobody")
    assert await log.cursors("") == {"spans": await log.load_cursor("spans"), "of/another: ü": "x"}
    cursor = await log.load_cursor("spans")
    assert [e.offset for _, e in (await log.query(cursor=cursor)).items] == [2]
    await log.close()
    if log.durable:
        again = open_log(url_of(kind, tmp_path))
        assert await again.load_cursor("spans") == cursor
        await again.append(batch("wf_a", 3))
        assert [e.offset for _, e in (await again.query(cursor=cursor)).items] == [2, 3]
        await again.close()


# -- blobs and definitions


async def test_blobs_are_named_by_their_bytes(log):
    name = await log.put_blob(b"x" * 300_000)
    assert name == await log.put_blob(b"x" * 300_000)
    assert name.startswith("sha256:")
    assert len(name) == 71
    assert await log.get_blob(name) == b"x" * 300_000
    assert await log.get_blob("sha256:" + "0" * 64) is None


async def test_a_definition_never_changes(log):
    await log.put_definition("h1", b"one")
    await log.put_definition("h1", b"two")
    assert await log.get_definition("h1") == b"one"
    assert await log.get_definition("h2") is None


# -- closing and opening


async def test_closing_writes_what_was_accepted_then_refuses(kind, tmp_path):
    log = open_log(url_of(kind, tmp_path))
    futures = [log.append(batch("wf_a", 0)), *(log.append(batch("wf_a", n)) for n in range(1, 50))]
    await log.close()
    await log.close()
    await asyncio.gather(*futures)
    with pytest.raises(LogClosed):
        await log.append(batch("wf_a", 50))
    for call in (
        log.read("wf_a"),
        log.runs(),
        log.query(),
        log.latest_cursor(),
        log.save_cursor("c", "x"),
        log.load_cursor("c"),
        log.put_blob(b""),
        log.claim("wf_a", this_process()),
    ):
        with pytest.raises(LogClosed):
            await call
    if log.durable:
        again = open_log(url_of(kind, tmp_path))
        assert await offsets(again, "wf_a") == list(range(50))
        await again.close()


async def test_a_durable_log_is_the_same_after_reopening(kind, tmp_path):
    log = open_log(url_of(kind, tmp_path))
    if not log.durable:
        await log.close()
        return
    await fill(log, "wf_a", 3, labels={"k": "v"})
    await log.append(batch("wf_a", 3, 1, last_type="workflow.failed"))
    blob = await log.put_blob(b"blob")
    await log.put_definition("h", b"source")
    row = msgspec.structs.replace(await log.run("wf_a"), owner=None)  # where one process owns all: forgotten
    events = await log.read("wf_a")
    await log.close()
    again = open_log(url_of(kind, tmp_path))
    assert msgspec.structs.replace(await again.run("wf_a"), owner=None) == row
    assert await again.read("wf_a") == events
    assert [r.workflow_id for r in (await again.runs()).items] == ["wf_a"]
    assert [e for _, e in (await again.query()).items] == events
    assert await again.get_blob(blob) == b"blob"
    assert await again.get_definition("h") == b"source"
    with pytest.raises(RunTerminal):
        await again.append(batch("wf_a", 4))
    await again.close()


@pytest.mark.parametrize("url", ["", "x.db", "/srv/x.db", "postgres:x", "sqlite:", "file://", "memory:x"])
def test_a_url_that_names_no_store_is_refused_with_the_known_forms(url):
    with pytest.raises(ConfigurationError) as caught:
        open_log(url)
    assert any(scheme in f"{caught.value} {caught.value.hint}" for scheme in ("memory:", "sqlite:", "file:"))


def test_the_three_forms_of_a_path_are_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def path_of(url):
        log = open_log(url)
        await log.close()
        return log.path

    paths = {asyncio.run(path_of(f"sqlite:{p}")) for p in ("a.db", tmp_path / "a.db", f"//{tmp_path}/a.db")}
    assert paths == {Path(tmp_path / "a.db")}


async def test_a_hundred_thousand_events_are_read_in_pages(log):
    total = 100_000
    first = log.append(batch("wf_a", 0, 1_000))
    futures = [first, *(log.append(batch("wf_a", n, 1_000)) for n in range(1_000, total, 1_000))]
    await asyncio.gather(*futures)
    position = 0
    while page := await log.read("wf_a", position, 256):
        assert page[0].offset == position
        assert page[-1].offset == position + len(page) - 1
        position += len(page)
    assert position == total
    assert [e.offset for e in await log.read("wf_a", 99_990)] == list(range(99_990, 100_000))
