"""Who may write to a run, and what became of a batch whose answer was lost: the same calls in every store."""

from __future__ import annotations

import msgspec
import pytest

from agentflow.errors import Fenced, OffsetConflict
from agentflow.events.log import Claimed
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from tests.conformance.test_event_log import BACK_ENDS, DEAD, T0, batch, event, meta, url_of


@pytest.fixture(params=BACK_ENDS)
async def log(request, tmp_path):
    log = open_log(url_of(request.param, tmp_path))
    yield log
    await log.close()


async def begin(log, workflow_id, owner, created_at=T0, **more):
    await log.append(batch(workflow_id, 0, run=meta(created_at=created_at, owner=owner), **more))


async def test_a_registered_process_is_live_until_it_ends(log):
    me = this_process()
    await log.register(me)
    await log.register(me)
    await log.renew(me)
    with pytest.raises(Fenced):
        await log.renew(DEAD)


async def test_the_owners_that_are_not_live_are_named_once(log):
    me = this_process()
    await log.register(me)
    for number, owner in enumerate((DEAD, me, DEAD)):
        await begin(log, f"wf_{number}", owner)
    await begin(log, "wf_ended", msgspec.structs.replace(DEAD, token="x"), last_type="workflow.completed")
    assert await log.expired() == [DEAD]


async def test_the_next_runs_are_claimed_oldest_first_each_once(log):
    me = this_process()
    await log.register(me)
    for number, owner in enumerate((DEAD, me, DEAD, DEAD)):
        await begin(log, f"wf_{number}", owner, T0 - number)
    await begin(log, "wf_ended", DEAD, last_type="workflow.completed")
    await log.release("wf_3", DEAD)  # nobody's
    assert await log.claim_next(me, 2) == [Claimed("wf_3", 2), Claimed("wf_2", 2)]
    assert await log.claim_next(me, 9) == [Claimed("wf_0", 2)]
    assert await log.claim_next(me, 9) == []
    with pytest.raises(Fenced):
        await log.append(batch("wf_3", 1))
    await log.append(batch("wf_3", 1, epoch=2))


async def test_a_batch_is_found_by_its_id(log):
    def named(offset, id):
        made = event(offset)
        return msgspec.structs.replace(made, text=made.text.replace(b'"evt_1"', b'"%b"' % id))

    first, second = batch("wf_a", 0), batch("wf_a", 1)
    assert not await log.holds(first)
    await log.append(first)
    assert await log.holds(first)
    second = msgspec.structs.replace(second, events=[named(1, b"evt_mine")])
    assert second.batch_id == "evt_mine"
    assert not await log.holds(second)
    await log.append(msgspec.structs.replace(second, events=[named(1, b"evt_other")]))
    with pytest.raises(OffsetConflict):
        await log.holds(second)
