"""What every event log does when runs are trimmed and deleted (page 000 §7). One suite for all back ends."""

from __future__ import annotations

import asyncio
import tempfile
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import LogClosed, OffsetTrimmed, RunGone, RunNotFound, RunNotTerminal, Unsupported
from agentflow.events.log import Append
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.events.segments import store as segment_store
from agentflow.events.tombstone import Tombstone
from tests.conformance.test_event_log import (
    BACK_ENDS,
    T0,
    batch,
    event,
    fill,
    meta,
    offsets,
    url_of,
)

LATER = 4_000_000_000_000_000  # µs; beyond every time at which something was put


@pytest.fixture(params=BACK_ENDS)
def kind(request):
    return request.param


@pytest.fixture
async def log(kind, tmp_path):
    log = open_log(url_of(kind, tmp_path))
    yield log
    await log.close()


@pytest.fixture
async def trimming(log):
    """A log that trims: `file:` removes whole segments, and says that it does not."""
    if not log.trims:
        pytest.skip("file: does not trim")
    return log


async def ended(log, workflow_id, count=5, *, created_at=T0, labels=None, state="completed"):
    """A run of `count` events that has ended."""
    run = meta(created_at=created_at, labels=labels)
    await log.append(batch(workflow_id, 0, count, last_type=f"workflow.{state}", run=run))


def naming(workflow_id, offset, *names, parent=None):
    """A first or later event that names blobs."""
    data = {"values": [{"$blob": name, "size": 1, "type": "json"} for name in names]}
    if parent is not None:
        data["parent"] = {"workflow_id": parent, "step_id": "s", "offset": 1}
    head = msgspec.json.decode(
        event(offset, "workflow.started" if offset == 0 else "output", workflow_id).body
    )
    return msgspec.structs.replace(
        event(offset, head["type"], workflow_id), text=msgspec.json.encode({**head, "data": data})
    )


async def run_that_names(log, workflow_id, *names, parent=None, **first):
    first_event = naming(workflow_id, 0, *names, parent=parent)
    await log.append(Append(workflow_id, 1, 0, [first_event], "running", meta(**first)))
    await log.append(batch(workflow_id, 1, 1, last_type="workflow.completed"))


async def reopened(log, kind, tmp_path):
    """The log as another process would find it; a log in memory as it is."""
    if not log.durable:
        return log
    await log.close()
    return open_log(url_of(kind, tmp_path))


# -- what a row says


async def test_a_row_tells_its_size_its_parent_and_when_it_ended(log, kind, tmp_path):
    await run_that_names(log, "wf_child", parent="wf_parent")
    await fill(log, "wf_a", 3)
    log = await reopened(log, kind, tmp_path)
    child, open_run = await log.run("wf_child"), await log.run("wf_a")
    assert child.parent == "wf_parent"
    assert child.ended_at == T0 + 1
    assert child.bytes == sum(len(e.body) for e in await log.read("wf_child"))
    assert (open_run.parent, open_run.ended_at, open_run.earliest_offset) == (None, None, 0)
    await log.append(batch("wf_b", 0))  # the reopened log is closed by nobody else
    await log.close()


# -- deleting many


async def test_many_runs_go_together_and_of_each_that_stays_it_is_said_why(log, kind, tmp_path):
    for number in range(3):
        await ended(log, f"wf_{number}", created_at=T0 + number, labels={"customer": "c", "n": str(number)})
    await ended(log, "wf_gone", created_at=T0 + 8)
    await log.delete("wf_gone", LATER)
    await fill(log, "wf_open", 2)
    found = await log.delete_all(["wf_0", "wf_open", "wf_none", "wf_gone", "wf_1", "wf_0"], LATER)
    assert {run: type(answer) for run, answer in found.items()} == {
        **dict.fromkeys(("wf_0", "wf_1"), Tombstone),
        "wf_open": RunNotTerminal,
        "wf_none": RunNotFound,
        "wf_gone": RunGone,
    }
    assert (found["wf_1"].workflow_id, found["wf_1"].deleted_at) == ("wf_1", LATER)
    for _ in range(2):
        for run in ("wf_0", "wf_1"):
            with pytest.raises(RunGone) as caught:
                await log.read(run)
            assert caught.value.tombstone == found[run]
        page = await log.runs(label=("customer", "c"))
        assert [row.workflow_id for row in page.items] == ["wf_2"]
        assert await offsets(log, "wf_2") == list(range(5))
        assert (await log.run("wf_open")).last_offset == 1
        await log.sweep(LATER)
        log = await reopened(log, kind, tmp_path)
    assert await log.delete_all([], LATER) == {}
    await log.close()


# -- trimming


async def test_trimming_takes_leading_events_and_says_so_to_who_wants_them(trimming, log, kind, tmp_path):
    await ended(log, "wf_a", 10)
    await ended(log, "wf_b", 10)
    before = await log.run("wf_a")
    assert await log.trim("wf_a", 6) == 6
    for _ in range(2):
        row = await log.run("wf_a")
        assert (row.earliest_offset, row.last_offset, row.state) == (6, 9, "completed")
        assert row.created_at == before.created_at
        assert row.bytes == sum(len(e.body) for e in await log.read("wf_a", 6))
        assert await offsets(log, "wf_a", 6) == [6, 7, 8, 9]
        assert await offsets(log, "wf_a", 8) == [8, 9]
        for start in (0, 5):
            with pytest.raises(OffsetTrimmed) as caught:
                await log.read("wf_a", start)
            assert (caught.value.earliest_offset, caught.value.requested) == (6, start)
        assert [(w, e.offset) for w, e in (await log.query()).items] == [
            *(("wf_a", n) for n in range(6, 10)),
            *(("wf_b", n) for n in range(10)),
        ]
        assert await offsets(log, "wf_b") == list(range(10))
        log = await reopened(log, kind, tmp_path)
        await log.sweep(LATER)
    await log.close()


@pytest.mark.parametrize(("before", "earliest"), [(-3, 0), (0, 0), (4, 4), (5, 4), (99, 4)])
async def test_the_last_event_stays_whatever_is_asked_for(trimming, log, before, earliest):
    await ended(log, "wf_a", 5)
    assert await log.trim("wf_a", before) == earliest
    assert await offsets(log, "wf_a", earliest) == list(range(earliest, 5))
    assert await log.trim("wf_a", 0) == earliest  # what is gone does not come back
    assert await log.last("wf_a") == 4


async def test_what_is_not_at_its_end_stays_whole(log):
    await fill(log, "wf_a", 5)
    for call in (log.trim("wf_a", 2), log.delete("wf_a", T0)):
        with pytest.raises(RunNotTerminal, match="wf_a"):
            await call
    assert await offsets(log, "wf_a") == [0, 1, 2, 3, 4]
    await log.append(batch("wf_a", 5))
    for call in (log.trim("wf_no", 2), log.delete("wf_no", T0)):
        with pytest.raises(RunNotFound):
            await call


async def test_a_store_that_does_not_trim_says_so_and_changes_nothing(log):
    await ended(log, "wf_a", 5)
    if log.trims:
        assert await log.trim("wf_a", 2) == 2
        return
    with pytest.raises(Unsupported, match="wf_a") as caught:
        await log.trim("wf_a", 2)
    assert caught.value.code == "unsupported"
    assert caught.value.hint
    assert await offsets(log, "wf_a") == [0, 1, 2, 3, 4]


# -- deleting


async def test_a_deleted_run_leaves_its_tombstone_and_its_id_is_never_used_again(log, kind, tmp_path):
    await ended(log, "wf_a", 5, created_at=T0 + 7, state="cancelled")
    await ended(log, "wf_b", 2)
    gone = await log.delete("wf_a", T0 + 1_000)
    assert (gone.workflow_id, gone.state) == ("wf_a", "cancelled")
    assert (gone.created_at, gone.ended_at, gone.deleted_at) == (T0 + 7, T0 + 4, T0 + 1_000)
    for _ in range(2):
        for call in (
            log.read("wf_a"),
            log.read("wf_a", 99),
            log.last("wf_a"),
            log.run("wf_a"),
            log.claim("wf_a", this_process()),
            log.trim("wf_a", 1),
            log.delete("wf_a", T0 + 2_000),
            log.put_snapshot("wf_a", "k", 1, b""),
            log.latest_snapshot("wf_a", "k"),
        ):
            with pytest.raises(RunGone) as caught:
                await call
            assert caught.value.tombstone == gone
        for again in (batch("wf_a", 0), batch("wf_a", 5), batch("wf_a", 0, epoch=2)):
            with pytest.raises(RunGone):
                await log.append(again)
        assert [r.workflow_id for r in (await log.runs()).items] == ["wf_b"]
        assert [w for w, _ in (await log.query()).items] == ["wf_b", "wf_b"]
        log = await reopened(log, kind, tmp_path)
        await log.sweep(LATER)
    await log.append(batch("wf_c", 0))
    await log.close()


async def test_a_consumer_goes_on_where_it_was_whatever_was_deleted(log, kind, tmp_path):
    """Its cursor may point into, before or behind what is gone; it sees each event that is left once."""
    for name in ("wf_a", "wf_b", "wf_c"):
        await ended(log, name, 4)
    all_events = [(w, e.offset) for w, e in (await log.query()).items]
    cursors = [(await log.query(limit=n)).next_cursor for n in range(1, 13)]
    await log.delete("wf_c", T0)
    await log.delete("wf_a", T0)
    for _ in range(2):
        for seen, cursor in enumerate(cursors, start=1):
            found = [(w, e.offset) for w, e in (await log.query(cursor=cursor)).items]
            assert found == [e for e in all_events[seen:] if e[0] == "wf_b"]
        await log.sweep(LATER)
        log = await reopened(log, kind, tmp_path)
    await fill(log, "wf_d", 2)
    for cursor in cursors[8:]:
        found = [(w, e.offset) for w, e in (await log.query(cursor=cursor)).items]
        assert found == [("wf_d", 0), ("wf_d", 1)]
    await log.close()


async def test_an_append_behind_a_deletion_in_the_queue_is_refused(log):
    await ended(log, "wf_a", 3)
    deletion = asyncio.ensure_future(log.delete("wf_a", T0))
    await asyncio.sleep(0)  # it is on its way
    with pytest.raises(RunGone):
        await log.append(batch("wf_a", 0))
    await deletion


# -- what goes with a run


async def test_blobs_and_definitions_go_with_the_last_run_that_names_them(log, kind, tmp_path):
    one, two, both, none = [await log.put_blob(text) for text in (b"one", b"two", b"both", b"none")]
    await log.put_definition("d" * 8, b"graph")
    await run_that_names(log, "wf_a", one, both)
    await run_that_names(log, "wf_b", both, two)

    async def stored():
        found = [await log.get_blob(name) for name in (one, two, both, none)]
        return [each is not None for each in found], await log.get_definition("d" * 8)

    log = await reopened(log, kind, tmp_path)
    await log.sweep(0)  # all of it is younger than that
    assert await stored() == ([True, True, True, True], b"graph")
    swept = await log.sweep(LATER)
    assert (swept.blobs, swept.definitions) == (1, 0)
    assert await stored() == ([True, True, True, False], b"graph")
    await log.delete("wf_a", T0)
    await log.sweep(LATER)
    assert await stored() == ([False, True, True, False], b"graph")
    log = await reopened(log, kind, tmp_path)
    await log.delete("wf_b", T0)
    swept = await log.sweep(LATER)
    assert (swept.blobs, swept.definitions) == (2, 1)
    assert await stored() == ([False, False, False, False], None)
    await log.close()


async def test_what_is_put_again_while_its_run_is_deleted_stays(log):
    """A blob is put before the event that names it: between the two no run does."""
    blob = await log.put_blob(b"shared")
    await log.put_definition("d" * 8, b"graph")
    await run_that_names(log, "wf_a", blob)
    await log.delete("wf_a", T0)
    now = time.time_ns() // 1000
    assert await log.put_blob(b"shared") == blob
    await log.put_definition("d" * 8, b"graph")
    await log.sweep(now)
    assert await log.get_blob(blob) == b"shared"
    assert await log.get_definition("d" * 8) == b"graph"


async def test_what_a_blob_names_stays_as_long_as_it_does(log, kind, tmp_path):
    """A fork begins with events of another run, in a blob; they name blobs, and may hold such a base too."""
    value, other = await log.put_blob(b"value"), await log.put_blob(b"other")
    base = await log.put_blob(b'{"data":{"output":{"$blob":"%b"}}}\n{}' % value.encode())
    outer = await log.put_blob(b'{"data":{"kind":"fork_base","ref":"%b"}}' % base.encode())
    await run_that_names(log, "wf_source", value, other)
    saved = naming("wf_fork", 0)
    body = saved.body.replace(b'"data":{', b'"data":{"kind":"fork_base","ref":"%b",' % outer.encode())
    fork = Append("wf_fork", 1, 0, [msgspec.structs.replace(saved, text=body)], "running", meta())
    await log.append(fork)
    await log.append(batch("wf_fork", 1, 1, last_type="workflow.completed"))
    await log.delete("wf_source", T0)
    for _ in range(2):
        log = await reopened(log, kind, tmp_path)
        await log.sweep(LATER)
        found = [await log.get_blob(name) is not None for name in (value, base, outer, other)]
        assert found == [True, True, True, False]
    await log.delete("wf_fork", T0)
    assert (await log.sweep(LATER)).blobs == 3
    assert [await log.get_blob(name) for name in (value, base, outer)] == [None, None, None]
    await log.close()


async def test_a_blob_that_only_trimmed_events_name_goes(trimming, log):
    first, last, kept = [await log.put_blob(text) for text in (b"first", b"last", b"kept")]
    await log.append(Append("wf_a", 1, 0, [naming("wf_a", 0, first, kept)], "running", meta()))
    await log.append(Append("wf_a", 1, 1, [naming("wf_a", 1, last)]))
    await log.append(batch("wf_a", 2, 1, last_type="workflow.completed"))
    await log.put_snapshot("wf_a", "record", 2, msgspec.json.encode({"output": {"$blob": kept}}))
    await log.trim("wf_a", 1)
    await log.sweep(LATER)
    found = [await log.get_blob(name) for name in (first, last, kept)]
    assert found == [None, b"last", b"kept"]


# -- snapshots


async def test_the_newest_snapshot_at_or_before_an_offset_is_found(log, kind, tmp_path):
    await ended(log, "wf_a", 9)
    assert await log.latest_snapshot("wf_a", "fold") is None
    for offset in (2, 8, 5):
        await log.put_snapshot("wf_a", "fold", offset, b"at %d" % offset)
    await log.put_snapshot("wf_a", "state:/step#1[2]", 7, b"other")
    await log.put_snapshot("wf_a", "fold", 5, b"again")
    for _ in range(2):
        found = {n: await log.latest_snapshot("wf_a", "fold", n) for n in (1, 2, 4, 5, 7, 8, 99)}
        assert {n: s and (s.offset, s.data) for n, s in found.items()} == {
            1: None,
            2: (2, b"at 2"),
            4: (2, b"at 2"),
            5: (5, b"again"),
            7: (5, b"again"),
            8: (8, b"at 8"),
            99: (8, b"at 8"),
        }
        assert (await log.latest_snapshot("wf_a", "fold")).offset == 8
        assert (await log.latest_snapshot("wf_a", "state:/step#1[2]")).data == b"other"
        if log.trims:
            await log.trim("wf_a", 8)
        log = await reopened(log, kind, tmp_path)
    with pytest.raises(RunNotFound):
        await log.latest_snapshot("wf_no", "fold")
    with pytest.raises(RunNotFound):
        await log.put_snapshot("wf_no", "fold", 0, b"")
    await log.close()


async def test_a_damaged_snapshot_is_as_if_it_were_not_there(tmp_path):
    """What it says can be worked out again; an older one is taken meanwhile."""
    for kind in ("sqlite", "file"):
        log = open_log(url_of(kind, tmp_path))
        await ended(log, "wf_a", 9)
        await log.put_snapshot("wf_a", "fold", 3, b"the state at three")
        await log.put_snapshot("wf_a", "fold", 7, b"the state at seven")
        await log.close()
        files = [p for p in tmp_path.rglob("*") if p.is_file() and b"state at seven" in p.read_bytes()]
        for path in files:
            path.write_bytes(path.read_bytes().replace(b"state at seven", b"state at eight"))
        assert files
        again = open_log(url_of(kind, tmp_path))
        assert (await again.latest_snapshot("wf_a", "fold")).data == b"the state at three"
        assert await again.latest_snapshot("wf_a", "fold", 2) is None
        await again.put_snapshot("wf_a", "fold", 7, b"made again")
        assert (await again.latest_snapshot("wf_a", "fold")).data == b"made again"
        await again.close()


async def test_after_closing_nothing_of_it_answers(log):
    await ended(log, "wf_a", 3)
    await log.close()
    for call in (
        log.trim("wf_a", 1),
        log.delete("wf_a", T0),
        log.sweep(LATER),
        log.put_snapshot("wf_a", "k", 0, b""),
        log.latest_snapshot("wf_a", "k"),
        log.probe(),
    ):
        with pytest.raises(LogClosed):
            await call


async def test_a_probe_of_a_healthy_store_leaves_nothing_behind(log):
    await fill(log, "wf_a", 1)
    await log.probe()
    await log.probe()
    assert await offsets(log, "wf_a") == [0]
    assert log.failure is None


# -- everything at once, against the plainest model


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 5), st.integers(1, 4)),
    st.tuples(st.just("append"), st.integers(0, 5), st.integers(1, 4)),
    st.tuples(st.just("end"), st.integers(0, 5), st.integers(1, 3)),
    st.tuples(st.just("trim"), st.integers(0, 5), st.integers(0, 12)),
    st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("sweep"), st.just(0), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0), st.just(0)),
    st.tuples(st.just("consume"), st.just(0), st.integers(1, 9)),
)


class Model:
    """Runs as lists of offsets that are left, and what a consumer of all events must still see."""

    def __init__(self):
        self.left: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.gone: set[str] = set()
        self.unseen: list[tuple[str, int]] = []

    def append(self, run, count):
        kept = self.left.setdefault(run, [])
        added = range(kept[-1] + 1, kept[-1] + 1 + count) if kept else range(count)
        kept += added
        self.unseen += [(run, n) for n in added]

    def keep(self, run, kept):
        self.left[run] = kept
        self.unseen = [(r, n) for r, n in self.unseen if r != run or n in kept]


async def check(log, model):
    for run, kept in model.left.items():
        assert await offsets(log, run, kept[0]) == kept
        row = await log.run(run)
        assert (row.earliest_offset, row.last_offset) == (kept[0], kept[-1])
        assert row.bytes == sum(len(e.body) for e in await log.read(run, kept[0]))
        assert row.ended == (run in model.ended)
        if kept[0]:
            with pytest.raises(OffsetTrimmed):
                await log.read(run, kept[0] - 1)
    for run in model.gone:
        with pytest.raises(RunGone):
            await log.run(run)
    found = [(run, e.offset) for run, e in (await log.query(limit=10_000)).items]
    assert sorted(found) == sorted((run, n) for run, kept in model.left.items() for n in kept)


async def live(log, kind, directory, operations):
    model, cursor = Model(), None
    for what, which, number in operations:
        run = f"wf_{which}"
        if what in ("append", "end") and run not in model.ended | model.gone:
            start = model.left[run][-1] + 1 if run in model.left else 0
            last = "workflow.failed" if what == "end" else None
            await log.append(batch(run, start, number, last_type=last))
            model.append(run, number)
            if last is not None:
                model.ended.add(run)
        elif what == "trim" and run in model.ended and log.trims:
            kept = model.left[run]
            earliest = await log.trim(run, number)
            model.keep(run, [n for n in kept if n >= min(number, kept[-1])])
            assert earliest == model.left[run][0]
        elif what == "delete" and run in model.ended:
            await log.delete(run, T0)
            model.keep(run, [])
            del model.left[run]
            model.ended.discard(run)
            model.gone.add(run)
        elif what == "sweep":
            await log.sweep(LATER)
        elif what == "consume":
            page = await log.query(cursor=cursor, limit=number)
            cursor = page.next_cursor
            seen = [(r, e.offset) for r, e in page.items]
            assert seen == model.unseen[: len(seen)]
            assert len(seen) == min(number, len(model.unseen))
            model.unseen = model.unseen[len(seen) :]
        elif what == "reopen" and log.durable:
            await log.close()
            log = open_log(url_of(kind, directory))
            assert not log.notices
        await check(log, model)
    await log.close()


@settings(max_examples=60, deadline=None)
@given(operations=st.lists(OPERATIONS, min_size=5, max_size=40))
@pytest.mark.parametrize("kind", BACK_ENDS)
def test_any_sequence_of_appends_and_removals_leaves_what_the_model_says(kind, operations):
    async def scenario():
        with tempfile.TemporaryDirectory() as directory:
            await live(open_log(url_of(kind, directory)), kind, directory, operations)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_store, "SEGMENT_BYTES", 900)  # a few events
        asyncio.run(scenario())
