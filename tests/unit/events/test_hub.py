"""The hub: history and live events on one cursor, each offset once and in order, and no memory for nobody."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.errors import LogClosed, OffsetTrimmed, RunGone, RunNotFound, StorageUnavailable
from agentflow.events.hub import Hub
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.events.open import open_log
from agentflow.events.sqlite import SqliteLog

T0 = 1_700_000_000_000_000


def event(offset, type="agent.processing", size=20):
    return StoredEvent(offset, T0 + offset, type, b"x" * size)


class Sequencer:
    """Appends, and publishes what is durable, as the runtime does."""

    def __init__(self, log, hub, workflow_id="wf_a"):
        self.log, self.hub, self.workflow_id, self.next = log, hub, workflow_id, 0

    async def write(self, count=1, *, end=False, publish=True, type="agent.processing", size=20):
        first = self.next
        events = [event(first + i, type, size) for i in range(count)]
        if end:
            events[-1] = event(first + count - 1, "workflow.completed")
        run = RunMeta(name=None, definition_hash="d", created_at=T0) if first == 0 else None
        self.next += count
        await self.log.append(Append(self.workflow_id, 1, first, events, "running", run))
        if publish:
            self.hub.publish(self.workflow_id, events)


async def until(condition):
    while not condition():  # noqa: ASYNC110 -- nothing announces that a subscriber has begun to wait
        await asyncio.sleep(0)


@pytest.fixture(params=["memory", "sqlite", "file"])
async def log(request, tmp_path):
    log = open_log("memory:" if request.param == "memory" else f"{request.param}:{tmp_path}/log")
    yield log
    await log.close()


@pytest.fixture
def hub(log):
    return Hub(log, poll=0.02)


async def collect(hub, after=None, **options):
    return [e.offset async for e in hub.subscribe("wf_a", after, **options)]


async def test_a_subscriber_attached_at_any_offset_at_any_time_sees_each_offset_once(log, hub):
    total = 60
    sequencer = Sequencer(log, hub)
    await sequencer.write()
    readers = {}
    for n in range(1, total):
        for after in {-1, 0, n // 2, n - 1, n, total - 2}:
            readers[n, after] = asyncio.create_task(collect(hub, after))
        await sequencer.write(end=n == total - 1)
        if n % 7 == 0:
            await asyncio.sleep(0)
    for (_, after), reader in readers.items():
        assert await reader == list(range(after + 1, total))
    assert hub.followed == 0


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    after=st.integers(-1, 200),
    start_at=st.integers(0, 30),
    pauses=st.sets(st.integers(0, 30)),
    drop=st.sets(st.integers(0, 30)),
)
def test_no_timing_and_no_lost_publication_makes_a_gap_or_a_double(batches, after, start_at, pauses, drop):
    """`drop`: batches that are committed but never published, as those of another process."""

    async def scenario():
        log = SharedMemoryLog()
        hub = Hub(log, poll=0.001)
        sequencer = Sequencer(log, hub)
        await sequencer.write()
        reader = None
        for n, count in enumerate(batches):
            if n == min(start_at, len(batches) - 1):
                reader = asyncio.create_task(collect(hub, after))
            await sequencer.write(count, end=n == len(batches) - 1, publish=n not in drop)
            if n in pauses:
                await asyncio.sleep(0)
        assert await asyncio.wait_for(reader, 10) == list(range(after + 1, sequencer.next))
        assert hub.followed == 0

    asyncio.run(scenario())


class SharedMemoryLog(MemoryLog):
    """Every write may have been that of another process."""

    shared = True
    writes = 0
    asked = 0
    failing = False

    def append(self, batch):
        self.writes += 1
        return super().append(batch)

    async def foreign_writes(self):
        self.asked += 1
        if self.failing:
            raise StorageUnavailable("locked")
        return self.writes


async def test_a_thousand_idle_runs_cost_one_question(monkeypatch):
    log, reads = SharedMemoryLog(), []
    for n in range(1_000):
        meta = RunMeta(name=None, definition_hash="d", created_at=T0)
        await log.append(Append(f"wf_{n}", 1, 0, [event(0)], "waiting", meta))
    hub = Hub(log, poll=0.005)
    real = log.read

    async def counted(*arguments):
        reads.append(arguments)
        return await real(*arguments)

    monkeypatch.setattr(log, "read", counted)

    async def follow(n):
        return [event.offset async for event in hub.subscribe(f"wf_{n}", 0)]

    following = [asyncio.create_task(follow(n)) for n in range(1_000)]
    await until(lambda: hub.followed == 1_000 and log.asked > 3)  # the first answer is news
    reads.clear()
    before = log.asked
    await until(lambda: log.asked > before + 5)
    assert reads == []
    await log.append(Append("wf_7", 1, 1, [event(1, "workflow.completed")], None))
    assert await following[7] == [1]
    hub.close()
    await asyncio.gather(*following)
    assert hub.followed == 0
    assert hub._timer is None, "nothing is asked for nobody"


async def test_a_question_that_has_no_answer_lets_everybody_look():
    log = SharedMemoryLog()
    log.failing = True
    hub = Hub(log, poll=0.001)
    sequencer = Sequencer(log, Hub(log))  # publishes elsewhere
    await sequencer.write()
    reader = asyncio.create_task(collect(hub))
    await sequencer.write(3)
    await until(lambda: log.asked > 2)
    await sequencer.write(end=True)
    assert await asyncio.wait_for(reader, 10) == list(range(sequencer.next))


async def test_one_that_falls_behind_reads_the_log_and_goes_on(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write()
    async with aclosing(hub.subscribe("wf_a")) as stream:
        seen = [(await anext(stream)).offset]
        for _ in range(50):  # far more than the window holds
            await sequencer.write(100)
        await sequencer.write(end=True)
        seen += [e.offset async for e in stream]
    assert seen == list(range(5_002))


async def test_the_window_is_bounded_in_events_and_in_bytes(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write()
    async with aclosing(hub.batches("wf_a")) as stream:
        await anext(stream)
        window = hub._windows["wf_a"]
        for _ in range(60):
            await sequencer.write(100)
            assert len(window.events) <= 2_048
        for _ in range(60):
            await sequencer.write(1, size=100_000)
            assert sum(len(e.body) for e in window.events) <= 2_200_000
        await sequencer.write(1, size=5_000_000)
        assert window.events[-1].offset == sequencer.next - 1


async def test_everything_that_is_pending_comes_as_one_batch(hub, log):
    sequencer = Sequencer(log, hub)
    await sequencer.write(3)
    async with aclosing(hub.batches("wf_a")) as stream:
        assert [e.offset for e in await anext(stream)] == [0, 1, 2]
        waiting = asyncio.create_task(anext(stream))
        await until(lambda: hub._windows["wf_a"]._waiters)
        await sequencer.write(1)
        assert [e.offset for e in await waiting] == [3]
        await sequencer.write(2)
        await sequencer.write(2)
        assert [e.offset for e in await anext(stream)] == [4, 5, 6, 7]


async def test_without_follow_it_ends_at_the_present_end(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(300)
    assert await collect(hub, follow=False) == list(range(300))
    assert await collect(hub, 297, follow=False) == [298, 299]
    assert await collect(hub, 299, follow=False) == []
    assert await collect(hub, 900, follow=False) == []


async def test_an_ended_run_ends_every_stream_at_once(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(5, end=True)
    assert await collect(hub) == [0, 1, 2, 3, 4]
    assert await collect(hub, 4) == []
    assert await collect(hub, 100) == []


async def test_one_that_waits_beyond_the_end_ends_with_the_run(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write()
    reader = asyncio.create_task(collect(hub, 100))
    await sequencer.write(3)
    await sequencer.write(3, end=True)
    assert await reader == []


async def test_types_are_chosen_the_same_in_history_and_live(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(2)
    await sequencer.write(1, type="tool.call_started")
    reader = asyncio.create_task(collect(hub, types=["tool.*"]))
    await asyncio.sleep(0)
    await sequencer.write(2)
    await sequencer.write(1, type="tool.call_failed")
    await sequencer.write(1, end=True)
    assert await reader == [2, 5]


async def test_an_unknown_run_and_a_closed_log_are_said(log, hub):
    with pytest.raises(RunNotFound):
        await collect(hub)
    await log.close()
    with pytest.raises(LogClosed):
        await collect(hub)
    assert hub.followed == 0


async def test_a_run_written_by_another_process_is_followed(tmp_path):
    """Two logs on one file stand for two processes: nothing is published to the hub."""
    ours, theirs = SqliteLog(tmp_path / "log.db"), SqliteLog(tmp_path / "log.db")
    hub = Hub(ours, poll=0.01)
    sequencer = Sequencer(theirs, Hub(theirs))
    await sequencer.write(3)
    readers = [asyncio.create_task(collect(hub, after)) for after in (-1, 1, 4)]
    for _ in range(5):
        await sequencer.write(2)
    await sequencer.write(1, end=True)
    assert [await r for r in readers] == [list(range(14)), list(range(2, 14)), list(range(5, 14))]
    await ours.close()
    await theirs.close()


async def test_leaving_early_leaves_nothing_behind(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(2)
    waiting = asyncio.create_task(collect(hub, 1))
    await until(lambda: hub.followed)
    async with aclosing(hub.subscribe("wf_a")) as stream:
        assert (await anext(stream)).offset == 0
    assert hub.followed == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert hub.followed == 0
    gc.collect()


async def test_one_cancelled_subscriber_does_not_disturb_another(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(1)
    stays, goes = (asyncio.create_task(collect(hub)) for _ in range(2))
    await until(lambda: hub.followed and len(hub._windows["wf_a"]._waiters) == 2)
    goes.cancel()
    await sequencer.write(1, end=True)
    assert await stays == [0, 1]
    assert (await asyncio.gather(goes, return_exceptions=True))[0].__class__ is asyncio.CancelledError


async def test_a_reader_that_never_has_to_wait_lets_others_run(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(256 * 40, end=True)
    turns = 0

    async def bystander():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(bystander())
    await collect(hub)
    task.cancel()
    assert turns >= 39


async def test_a_stream_that_is_cut_at_every_event_gives_each_offset_once(log, hub):
    """A client that goes away after each event and comes back behind the last one that it has."""
    total = 120
    sequencer = Sequencer(log, hub)
    await sequencer.write()

    async def write():
        for n in range(1, total):
            await sequencer.write(end=n == total - 1)
            await asyncio.sleep(0)

    writing = asyncio.create_task(write())
    seen: list[int] = []
    while len(seen) < total:
        async with aclosing(hub.subscribe("wf_a", seen[-1] if seen else None)) as stream:
            seen.append((await anext(stream)).offset)
    await writing
    assert seen == list(range(total))
    assert [e async for e in hub.subscribe("wf_a", total - 1)] == []  # the run is over: nothing to wait for
    assert hub.followed == 0


async def test_a_subscriber_that_never_reads_costs_a_window_and_holds_up_nobody():
    """A hundred take one batch and then no more, while 30,000 events of 1 kB go by."""
    log = MemoryLog()
    hub = Hub(log)
    sequencer = Sequencer(log, hub)
    await sequencer.write(100, size=1_000)
    stuck = [hub.batches("wf_a") for _ in range(100)]
    first = [await anext(stream) for stream in stuck]
    reader = asyncio.create_task(collect(hub))
    for n in range(300):
        await sequencer.write(100, size=1_000, end=n == 299)
    window = hub._windows["wf_a"]
    assert len(window.events) <= 2_048
    assert sum(len(e.body) for e in window.events) <= 2 << 20
    assert not window._waiters  # nobody is waited for, and nothing is queued for them
    assert [len(batch) for batch in first] == [100] * 100
    for stream in stuck[:3]:  # those that read after all miss nothing
        seen = 100
        async for batch in stream:
            assert batch[0].offset == seen
            assert len(batch) <= 2_048
            seen += len(batch)
        assert seen == 30_100
    assert await reader == list(range(30_100))
    for stream in stuck:
        await stream.aclose()
    assert hub.followed == 0


# -- retention


@pytest.fixture
def trimming(log):
    if not log.trims:
        pytest.skip("file: does not trim")


@pytest.mark.usefixtures("trimming")
async def test_a_subscriber_begins_with_what_is_left_or_is_told_what_is_gone(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(20, end=True)
    await log.trim("wf_a", 12)
    assert await collect(hub) == list(range(12, 20))
    assert await collect(hub, follow=False) == list(range(12, 20))
    assert await collect(hub, 11) == list(range(12, 20))
    assert await collect(hub, 15) == list(range(16, 20))
    for after in (-1, 3, 10):
        with pytest.raises(OffsetTrimmed) as caught:
            await collect(hub, after)
        assert (caught.value.earliest_offset, caught.value.requested) == (12, after + 1)
    await log.delete("wf_a", T0)
    for after in (None, -1, 15, 19, 30):
        with pytest.raises(RunGone):
            await collect(hub, after)
    assert hub.followed == 0


@pytest.mark.usefixtures("trimming")
async def test_a_slow_reader_is_told_when_what_it_had_not_read_was_trimmed(log, hub):
    sequencer = Sequencer(log, hub)
    await sequencer.write(1_000, end=True)
    async with aclosing(hub.batches("wf_a")) as stream:
        first = await anext(stream)
        await log.trim("wf_a", 900)
        with pytest.raises(OffsetTrimmed) as caught:
            await anext(stream)
    assert caught.value.requested == first[-1].offset + 1
    assert caught.value.earliest_offset == 900


async def test_what_this_process_writes_is_no_news_and_what_another_writes_is(tmp_path):
    ours, theirs = SqliteLog(tmp_path / "log.db"), SqliteLog(tmp_path / "log.db")
    we, they = Sequencer(ours, Hub(ours)), Sequencer(theirs, Hub(theirs), "wf_b")
    await we.write()
    before = await ours.foreign_writes()
    await we.write(3)
    assert await ours.foreign_writes() == before
    await they.write()
    after = await ours.foreign_writes()
    assert after != before
    await we.write()
    assert await ours.foreign_writes() == after
    await ours.close()
    with pytest.raises(LogClosed):
        await ours.foreign_writes()
    await theirs.close()


async def test_events_that_are_published_again_are_shown_once():
    """A batch whose first events are known already, as after a look at the log that another process wrote."""
    log = MemoryLog()
    hub = Hub(log)
    sequencer = Sequencer(log, hub)
    reader = asyncio.create_task(collect(hub))
    await sequencer.write(3)
    await until(lambda: hub.followed == 1)
    await asyncio.sleep(0)
    await sequencer.write(2, end=True, publish=False)
    hub.publish("wf_a", [event(1), event(2), event(3), event(4, "workflow.completed")])
    hub.publish("wf_a", [event(2), event(3)])
    assert await reader == [0, 1, 2, 3, 4]


async def test_a_reader_that_always_finds_more_lets_others_have_a_turn_after_each_batch():
    """What is in the window is there at once: nothing else would give the loop back."""
    log = MemoryLog()
    hub = Hub(log)
    await Sequencer(log, hub).write(publish=False)
    turns = [0]

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    seen: list[int] = []
    async with aclosing(hub.batches("wf_a")) as found:
        async for batch in found:
            seen += [e.offset for e in batch]
            following = seen[-1] + 1
            hub.publish(
                "wf_a", [event(following, "workflow.completed" if following == 200 else "agent.processing")]
            )
    counting.cancel()
    assert seen == list(range(201))
    assert turns[0] >= 199
