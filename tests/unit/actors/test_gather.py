"""`ctx.gather`: all, the first n, each with its outcome; no task is left behind."""

import asyncio

import pytest

from actors import ActorSystem, AskTimeout
from actors.testing import run_until_idle
from tests.unit.actors.kit import Boom, Do, Puppet, virtual


async def after(seconds, value=None, error=None):
    await asyncio.sleep(seconds)
    if error is not None:
        raise error
    return value


async def within(function):
    """Run in the handler of an actor; check that no task is left."""
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        before = asyncio.all_tasks()
        try:
            return await ref.ask(Do(function), timeout=1000)
        finally:
            await run_until_idle()
            assert asyncio.all_tasks() <= before


@virtual
async def test_all_results_in_the_order_given():
    result = await within(lambda a: a.ctx.gather(after(3 - i, i) for i in range(3)))
    assert result == [0, 1, 2]
    assert asyncio.get_running_loop().time() == 3
    assert await within(lambda a: a.ctx.gather([])) == []


@virtual
async def test_the_first_failure_cancels_the_rest():
    with pytest.raises(Boom):
        await within(lambda a: a.ctx.gather([after(100), after(1, error=Boom())]))
    assert asyncio.get_running_loop().time() == 1


@virtual
async def test_the_first_n():
    tasks = [(5, 5), (1, 1), (3, 3), (2, 2)]
    assert await within(lambda a: a.ctx.gather((after(*t) for t in tasks), first=2)) == [1, 2]
    assert asyncio.get_running_loop().time() == 2
    assert await within(lambda a: a.ctx.gather([after(1, error=Boom()), after(2, 2)], first=1)) == [2]
    with pytest.raises(Boom):
        await within(lambda a: a.ctx.gather([after(1, error=Boom()), after(2, 2)], first=2))
    assert await within(lambda a: a.ctx.gather([after(1, 1)], first=0)) == []
    with pytest.raises(ValueError, match="first 2 of 1"):
        await within(lambda a: a.ctx.gather([after(1, 1)], first=2))


@virtual
async def test_collect():
    results = await within(
        lambda a: a.ctx.gather([after(1, 1), after(1, error=Boom()), after(100, 2)], collect=True, timeout=10)
    )
    assert results[0] == 1
    assert [type(r) for r in results[1:]] == [Boom, TimeoutError]
    with pytest.raises(ValueError, match="exclude each other"):
        await within(lambda a: a.ctx.gather([], collect=True, first=1))


@virtual
async def test_one_deadline_for_all():
    with pytest.raises(TimeoutError, match="1 of 2"):
        await within(lambda a: a.ctx.gather([after(1), after(100)], timeout=10))
    assert asyncio.get_running_loop().time() == 10


@virtual
async def test_gathered_asks_inherit_the_deadline():
    async with ActorSystem() as system:
        one, other = await system.spawn(Puppet), await system.spawn(Puppet)
        other.tell(100.0)
        question = Do(lambda a: a.ctx.gather([other.ask(1, timeout=50)], collect=True))
        asking = asyncio.ensure_future(one.ask(question, timeout=2))
        with pytest.raises(AskTimeout):
            await asking
        await asyncio.sleep(0.1)
        assert await one.ask(1) == 1
        other.kill()


@virtual
async def test_a_cancelled_gather_waits_for_its_tasks():
    cleaned = []

    async def work():
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            cleaned.append(1)

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ref.tell(Do(lambda a: a.ctx.gather([work(), work()])))
        await run_until_idle()
        ref.kill()
        await ref.terminated()
        assert cleaned == [1, 1]
