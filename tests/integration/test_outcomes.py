"""Outcome: what callers of a run wait for."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from agentflow.runtime.outcome import Outcome


async def test_every_waiter_gets_the_result_and_one_that_is_cancelled_cancels_nothing():
    outcome: Outcome[int] = Outcome()
    first, second, third = (asyncio.ensure_future(outcome.wait()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait((second,))
    assert not outcome.done()
    outcome.set_result(7)
    assert await asyncio.gather(first, third, outcome.wait()) == [7, 7, 7]
    assert outcome.exception() is None
    assert outcome.settled().done()
    with pytest.raises(asyncio.InvalidStateError):
        outcome.set_result(8)


async def test_an_error_is_raised_to_each_waiter_with_the_traceback_that_it_came_with():
    outcome: Outcome[int] = Outcome()
    with pytest.raises(asyncio.InvalidStateError):
        outcome.result()
    waiting, settled = asyncio.ensure_future(outcome.wait()), outcome.settled()
    await asyncio.sleep(0)
    outcome.set_exception(KeyError("gone"))
    await settled
    lengths: list[int] = []
    for wait in (waiting, outcome.wait(), outcome.wait()):
        with pytest.raises(KeyError) as raised:
            await wait
        lengths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(lengths[1:])) == 1
    assert isinstance(outcome.exception(), KeyError)
