"""Pages that many readers share."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.errors import OffsetTrimmed
from agentflow.events import pages as module
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.events.pages import Pages

TOTAL = 2_000


class CountingLog(MemoryLog):
    """Counts reads, and holds them until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.failure: Exception | None = None

    async def read(self, workflow_id, first=0, limit=256):
        self.reads.append((first, limit))
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return await super().read(workflow_id, first, limit)


async def filled(count: int = TOTAL, size: int = 10) -> CountingLog:
    log = CountingLog()
    await append(log, 0, count, size)
    return log


async def append(log: MemoryLog, first: int, count: int, size: int = 10) -> None:
    events = [StoredEvent(first + n, 1, "custom.x", b"x" * size) for n in range(count)]
    meta = RunMeta(name="r", definition_hash="d", created_at=1) if first == 0 else None
    await log.append(Append("wf_a", 1, first, events, "running", meta))


async def everything(pages: Pages, position: int = 0) -> list[int]:
    offsets: list[int] = []
    while page := await pages.read(position, None):
        offsets += [event.offset for event in page]
        position = offsets[-1] + 1
    return offsets


async def test_readers_that_are_close_read_once():
    log = await filled()
    pages = Pages(log, "wf_a")
    found = await asyncio.gather(*(everything(pages) for _ in range(50)))
    assert all(offsets == list(range(TOTAL)) for offsets in found)
    full = TOTAL // module._EVENTS
    assert log.reads[: full + 1] == [(n * module._EVENTS, module._EVENTS) for n in range(full + 1)]
    assert len(log.reads) == full + 2  # the last page, and that there is nothing after it


async def test_readers_that_begin_anywhere_come_to_share():
    log = await filled()
    pages = Pages(log, "wf_a")
    starts = [0, 1, 100, 255, 256, 300, 999]
    found = await asyncio.gather(*(everything(pages, start) for start in starts))
    for start, offsets in zip(starts, found, strict=True):
        assert offsets == list(range(start, TOTAL))
    assert len(log.reads) < len(starts) + TOTAL // module._EVENTS + 2


async def test_a_page_that_may_grow_is_read_again():
    log = await filled(10)
    pages = Pages(log, "wf_a")
    assert await everything(pages) == list(range(10))
    await append(log, 10, 5)
    assert await everything(pages) == list(range(15))


async def test_a_stop_cuts_what_is_shared():
    pages = Pages(await filled(), "wf_a")
    assert len(await pages.read(0, None)) == module._EVENTS
    assert [event.offset for event in await pages.read(0, 3)] == [0, 1, 2]
    assert [event.offset for event in await pages.read(module._EVENTS, module._EVENTS + 1)] == [
        module._EVENTS
    ]


@pytest.mark.parametrize("size", [10, 100_000])
async def test_few_are_kept(size):
    log = await filled(module._EVENTS * (module._KEPT + 4), size)
    pages = Pages(log, "wf_a")
    await everything(pages)
    assert len(pages._kept) <= module._KEPT
    sizes = [sum(event.size for event in page) for page in pages._kept.values()]
    assert sizes == [page.size for page in pages._kept.values()]
    assert sum(sizes) <= max(module._KEPT_BYTES, size * module._EVENTS)


async def test_what_cannot_be_read_is_told_to_all_and_forgotten():
    log = await filled()
    log.failure = OffsetTrimmed("wf_a", 9, 0)
    pages = Pages(log, "wf_a")
    found = await asyncio.gather(*(pages.read(0, None) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [OffsetTrimmed] * 3
    log.failure = None
    assert len(await pages.read(0, None)) == module._EVENTS


async def test_one_that_goes_away_takes_nothing_from_the_others():
    log = await filled()
    pages = Pages(log, "wf_a")
    log.go_on.clear()
    first, second = (asyncio.ensure_future(pages.read(0, None)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    log.go_on.set()
    assert len(await second) == module._EVENTS
    assert len(log.reads) == 1


async def test_close_gives_up_what_is_being_read():
    log = await filled()
    pages = Pages(log, "wf_a")
    log.go_on.clear()
    reading = asyncio.ensure_future(pages.read(0, None))
    await asyncio.sleep(0)
    reading.cancel()
    pages.close()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await asyncio.sleep(0)
    assert pages._reading == {}
