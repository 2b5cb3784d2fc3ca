"""Readers of all runs: each event once and in the order of the commits, read once for all who follow."""

from __future__ import annotations

import asyncio
import itertools
from random import Random

import pytest

from agentflow.errors import StorageUnavailable
from agentflow.events.hub import Hub
from agentflow.events.memory import MemoryLog
from agentflow.events.open import open_log
from tests.unit.events.test_hub import Sequencer, until

KINDS = ("agent.processing", "tool.call_started")


class CountingLog(MemoryLog):
    """Counts its queries; each passes through the loop before and after it looks, as a store's does."""

    queries = 0
    broken = False

    def __init__(self, pauses=(1, 0)):
        super().__init__()
        self.pauses = itertools.cycle(pauses)

    async def _query(self, query):
        self.queries += 1
        await self.pause()
        if self.broken:
            raise StorageUnavailable("the disk is gone")
        page = await super()._query(query)
        await self.pause()
        return page

    async def pause(self):
        for _ in range(next(self.pauses)):
            await asyncio.sleep(0)


async def collect(hub, total, cursor=None, types=None):
    """Read until `total` events were seen, entering each page at the place that the reader gives."""
    seen = []
    with hub.read_all(types) as reader:
        while len(seen) < total:
            found = await reader.read(cursor)
            assert found is not None
            seen += [(item.workflow_id, item.event.offset) for item in found.items[found.seen :]]
            cursor = found.next_cursor
    return seen


async def everything(log, types=None, cursor=None):
    found = []
    while (page := await log.query(types, cursor=cursor, limit=100)).items:
        found += [(item.workflow_id, item.event.offset) for item in page.items]
        cursor = page.next_cursor
    return found


@pytest.mark.parametrize("seed", range(40))
async def test_a_reader_that_begins_anywhere_at_any_time_sees_each_event_once(seed):
    random = Random(seed)
    log = CountingLog([random.randint(0, 9) for _ in range(7)])
    hub = Hub(log)
    runs = [Sequencer(log, hub, f"wf_{name}") for name in "abc"]
    writes = [(random.choice(runs), random.randint(1, 40), random.choice(KINDS)) for _ in range(60)]
    readers = []
    for number, (run, count, kind) in enumerate(writes):
        if random.random() < 0.3:
            types = random.choice([None, ["tool.*"]])
            total = sum(count for _, count, kind in writes[number:] if types is None or kind == KINDS[1])
            cursor = await log.latest_cursor()
            readers.append((cursor, types, asyncio.create_task(collect(hub, total, cursor, types))))
        await run.write(count, type=kind)
        for _ in range(random.choice([0, 0, 1, 3, 20])):
            await asyncio.sleep(0)
    for cursor, types, reading in readers:
        assert await asyncio.wait_for(reading, 20) == await everything(log, types, cursor)
    hub.close()


@pytest.mark.parametrize("kind", ["sqlite", "file"])
async def test_readers_of_a_store_share_its_order(kind, tmp_path):
    log = open_log(f"{kind}:{tmp_path}/log")
    hub = Hub(log, poll=0.02)
    one, two = Sequencer(log, hub, "wf_a"), Sequencer(log, hub, "wf_b")
    await one.write(3)
    readers = [asyncio.create_task(collect(hub, 103)) for _ in range(10)]
    for _ in range(10):
        await two.write(7)
        await one.write(3)
    order = await everything(log)
    for reading in readers:
        assert await reading == order
    hub.close()
    await log.close()


async def test_many_who_wait_cost_one_query_for_each_commit():
    log = CountingLog()
    hub = Hub(log)
    run = Sequencer(log, hub)
    await run.write()
    latest = await log.latest_cursor()
    readers = [asyncio.create_task(collect(hub, 5, latest)) for _ in range(100)]
    await until(lambda: log.queries == 100 and len(hub._all_runs._waiters) == 100)
    for _ in range(5):
        queries = log.queries
        await run.write()
        await until(lambda: len(hub._all_runs._waiters) == 100 or all(map(asyncio.Task.done, readers)))
        await until(lambda: log.queries > queries)  # noqa: B023
        await until(lambda: len(hub._all_runs._waiters) == 100 or all(map(asyncio.Task.done, readers)))
        assert log.queries == queries + 1
    assert [await one for one in readers] == [[("wf_a", n) for n in range(1, 6)]] * 100
    assert (hub._all_runs.followers, len(hub._all_runs._pages)) == (0, 0)  # nothing is kept for nobody
    await run.write()
    assert log.queries == queries + 1


async def test_what_is_committed_while_the_first_reader_looks_is_not_missed():
    log = CountingLog([0, 5])
    hub = Hub(log)
    run = Sequencer(log, hub)
    await run.write()
    reading = asyncio.create_task(collect(hub, 1, await log.latest_cursor()))
    await until(lambda: log.queries == 1)  # it has looked, and does not know yet that there was nothing
    await run.write()
    assert await asyncio.wait_for(reading, 20) == [("wf_a", 1)]


async def test_readers_meet_the_error_of_the_store_and_go_on_afterwards():
    log = CountingLog()
    hub = Hub(log)
    run = Sequencer(log, hub)
    await run.write()
    latest = await log.latest_cursor()
    reading = asyncio.create_task(collect(hub, 1, latest))
    await until(lambda: hub._all_runs._waiters)
    log.broken = True
    await run.write()
    with pytest.raises(StorageUnavailable):
        await reading
    log.broken = False
    assert await collect(hub, 1, latest) == [("wf_a", 1)]


async def test_the_window_is_bounded_and_one_that_falls_behind_reads_the_log():
    log = CountingLog()
    hub = Hub(log)
    run = Sequencer(log, hub)
    await run.write()
    with hub.read_all() as slow:
        cursor = (await slow.read(await log.latest_cursor())).next_cursor
        fast = asyncio.create_task(collect(hub, 6_000, cursor))
        for _ in range(60):
            await run.write(100, size=1_000)
        assert await fast == [("wf_a", n) for n in range(1, 6_001)]
        window = hub._all_runs
        assert sum(len(live.page.items) for live in window._pages) <= 1_024 + 256
        assert window.page_after(cursor) is None
        seen = []
        while len(seen) < 6_000:
            found = await slow.read(cursor)
            seen += [item.event.offset for item in found.items[found.seen :]]
            cursor = found.next_cursor
    assert seen == list(range(1, 6_001))


async def test_a_closed_hub_ends_its_readers():
    log = CountingLog()
    hub = Hub(log)
    with hub.read_all() as reader:
        found = await reader.read(None)
        waiting = asyncio.create_task(reader.read(found.next_cursor))
        await until(lambda: hub._all_runs._waiters)
        hub.close()
        assert await waiting is None
