"""The wall clock jumps back and forth: order is by offset, ids stay unique and rising, owners stay owners."""

from __future__ import annotations

import random
import time

import pytest

from agentflow import Runtime
from agentflow.errors import Fenced
from agentflow.events.envelope import Event, StoredEvent, Unknown, decode, encode, iso
from agentflow.events.ids import Ids
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.events.owner import Owner, this_process
from agentflow.testing import ScriptedModel

NOW = 1_700_000_000_000_000
DAY = 86_400_000_000
STEPS = (-366 * DAY, -DAY, -3_600_000_000, -1, 0, 1, 3_600_000_000, DAY, 366 * DAY)


class SteppingClock:
    """Every reading may be years away from the one before."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def now(self) -> int:
        return NOW + self._random.choice(STEPS) + self._random.randrange(1_000_000)

    def draw(self) -> float:
        return self._random.random()


def sealed(run: str, offset: int, ts: int, ids: Ids) -> StoredEvent:
    data = Unknown(type="custom.step", data={})
    envelope = Event(
        id=ids.ulid("evt_"), offset=offset, timestamp=iso(ts), type=data.type, workflow_id=run, data=data
    )
    return StoredEvent(offset, ts, data.type, encode(envelope))


async def test_events_stay_in_the_order_of_their_offsets(kind, tmp_path):
    url, clock = f"{kind}:{tmp_path}/log", SteppingClock(3)
    ids, written = Ids(clock.now), list[tuple[str, StoredEvent]]()
    log = open_log(url)
    for offset in range(60):
        for run in ("wf_a", "wf_b"):
            event = sealed(run, offset, clock.now(), ids)
            meta = RunMeta(name=None, definition_hash="d", created_at=clock.now()) if offset == 0 else None
            await log.append(Append(run, 1, offset, [event], "running", meta))
            written.append((run, event))
    for again in (False, True):
        if again:  # the index of segments is made from the times in the events
            await log.close()
            log = open_log(url)
        for run in ("wf_a", "wf_b"):
            assert await log.read(run, 0, 100) == [event for name, event in written if name == run]
        assert [(e.workflow_id, e.event) for e in (await log.query(limit=500)).items] == written
        since, until = NOW - DAY, NOW + DAY
        inside = [(run, event) for run, event in written if since <= event.ts < until]
        found = (await log.query(since=since, until=until, limit=500)).items
        assert [(e.workflow_id, e.event) for e in found] == inside
        assert 0 < len(inside) < len(written)
        rows = (await log.runs(order="asc")).items
        assert [row.created_at for row in rows] == sorted(row.created_at for row in rows)
        assert {row.workflow_id: row.updated_at for row in rows} == {
            run: [event.ts for name, event in written if name == run][-1] for run in ("wf_a", "wf_b")
        }
    await log.close()
    names = [decode(event.body).id for _, event in written]
    assert names == sorted(set(names))


async def test_who_owns_a_run_is_no_matter_of_time(kind, tmp_path, monkeypatch):
    clock = SteppingClock(4)
    monkeypatch.setattr(time, "time_ns", lambda: clock.now() * 1000)
    monkeypatch.setattr(time, "time", lambda: clock.now() / 1e6)
    us, other = this_process(), Owner(this_process().pid, this_process().started, "another")
    dead = Owner(2**22 + 1, "never", "dead")
    log = open_log(f"{kind}:{tmp_path}/log")
    meta = RunMeta(name=None, definition_hash="d", created_at=NOW, owner=dead)
    await log.append(Append("wf_a", 1, 0, [sealed("wf_a", 0, NOW, Ids(clock.now))], "running", meta))
    assert await log.claim("wf_a", us) == 2
    for offset in range(1, 20):
        with pytest.raises(Fenced):
            await log.claim("wf_a", other)
        assert await log.claim("wf_a", us) == 2
        event = sealed("wf_a", offset, clock.now(), Ids(clock.now))
        await log.append(Append("wf_a", 2, offset, [event]))
    await log.close()


class OneStep:
    """True time, until it is read for the n-th time: from then on it is another."""

    def __init__(self, number: int, step: int) -> None:
        self._left, self._step = number, step

    def now(self) -> int:
        self._left -= 1
        return time.time_ns() // 1000 + (self._step if self._left <= 0 else 0)

    def draw(self) -> float:
        return 0.5


@pytest.mark.parametrize("step", [-366 * DAY, -3_600_000_000, 3_600_000_000, 366 * DAY])
async def test_a_workflow_runs_through_a_step_of_the_clock(kind, tmp_path, step):
    agents = [
        {"name": name, "system_prompt": name, "model": "scripted:m"} for name in ("one", "two", "three")
    ]
    model = ScriptedModel(lambda request: "said")
    for number in (2, 4):
        clock = OneStep(number, step)
        async with Runtime(f"{kind}:{tmp_path}/log", models=[model], clock=clock) as runtime:
            handle = await runtime.submit({"agents": agents}, "go")
            result = await handle.result()
            assert (result.state, result.output) == ("completed", "said"), number
            events = [event async for event in handle.events()]
            assert [event.offset for event in events] == list(range(len(events)))
            assert (events[0].type, events[-1].type) == ("workflow.started", "workflow.completed")
            names = [event.id for event in events]
            assert names == sorted(set(names))
