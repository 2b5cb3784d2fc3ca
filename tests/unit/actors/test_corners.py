"""What happens in the corners: hooks that misbehave, orders that cross each other, strangers who cancel."""

import asyncio

import pytest

from actors import (
    ActorStopped,
    ActorSystem,
    AskTimeout,
    Backoff,
    ChildSpec,
    Failed,
    HandlerCancelled,
    OneForAll,
    OneForOne,
    Pool,
    SpecError,
)
from actors.states import BUSY
from actors.testing import VirtualLoop, run, run_until_idle
from tests.unit.actors.kit import Boom, Boss, Call, Do, Puppet, crash, virtual


async def failures(boss):
    return [s.error for s in await boss.ask(Do(lambda a: a.diary)) if isinstance(s, Failed)]


@virtual
async def test_relations_and_names():
    async with ActorSystem(name="s") as system:
        boss = await system.spawn(Boss, "boss")
        child = await boss.ask(Do(lambda a: a.ctx.spawn(Puppet, "child")))
        assert await child.ask(Call(lambda a: (a.ctx.parent, a.ctx.system))) == (boss, system)
        assert await boss.ask(Call(lambda a: a.ctx.parent)) is None
        assert repr(child) == f"<Ref /boss/child#{child.incarnation}>"
        assert child.name == "child"
        assert system.find("/boss/child/none/at/all") is None
        system.tell("/boss/child", 1)
        assert await child.ask(Do(lambda a: a.diary)) == [1]
        assert await child.ask(Call(lambda a: a.ctx.remaining), timeout=7) == 7
        with pytest.raises(AskTimeout, match="no time left"):
            await child.ask(1, timeout=0)


@virtual
async def test_a_factory_must_make_an_actor():
    async with ActorSystem() as system:
        with pytest.raises(SpecError, match="made dict, which is not an Actor"):
            await system.spawn(dict)


@pytest.mark.parametrize("hook", ["on_start", "on_stop", "on_restart"])
@pytest.mark.parametrize("awaits", [True, False])
def test_an_interrupt_in_a_hook_stops_the_system(hook, awaits):
    def plain(self, *_):
        raise KeyboardInterrupt

    async def awaiting(self, *_):
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    kind = type("Bad", (Puppet,), {hook: awaiting if awaits else plain})

    async def main():
        async with ActorSystem() as system:
            if hook == "on_start":
                with pytest.raises(ActorStopped):
                    await system.spawn(kind)
            else:
                ref = await system.spawn(kind)
                ref.stop() if hook == "on_stop" else ref.tell(Do(crash))
            await asyncio.sleep(1000)

    with pytest.raises(KeyboardInterrupt):
        run(main())


def test_an_interrupt_in_piped_work_stops_the_system():
    async def interrupt():
        raise SystemExit(3)

    async def main():
        async with ActorSystem() as system:
            ref = await system.spawn(Puppet)
            ref.tell(Call(lambda a: a.ctx.pipe(interrupt(), lambda _: None)))
            await asyncio.sleep(1000)

    with pytest.raises(SystemExit):
        run(main())


@virtual
async def test_piped_work_that_is_cancelled_by_a_stranger_fails_the_actor():
    async def cancelled():
        raise asyncio.CancelledError

    def bad(_):
        raise Boom("on_error")

    async with ActorSystem() as system:
        boss = await system.spawn(Boss)
        child = await boss.ask(Do(lambda a: a.ctx.spawn(Puppet)))
        for on_error in (None, bad):
            child.tell(Call(lambda a, f=on_error: a.ctx.pipe(cancelled(), lambda _: None, f)))
            await run_until_idle()
        pipes = []
        child.tell(Call(lambda a: pipes.append(a.ctx.pipe(asyncio.sleep(0, 1), bad))))
        await run_until_idle()
        assert pipes[0].done
        assert [type(e) for e in await failures(boss)] == [HandlerCancelled, Boom, Boom]


@virtual
async def test_a_hook_that_is_cancelled_by_a_stranger_fails_the_start():
    class Cancelled(Puppet):
        async def on_start(self):
            asyncio.current_task().cancel()
            await asyncio.sleep(1)

    async with ActorSystem() as system:
        with pytest.raises(HandlerCancelled):
            await system.spawn(Cancelled)


@virtual
async def test_a_link_that_breaks_during_a_start_fails_the_start():
    class Linking(Puppet):
        async def on_start(self):
            self.ctx.link(friend)
            await asyncio.sleep(10)

    async with ActorSystem() as system:
        friend = await system.spawn(Puppet)
        spawning = asyncio.ensure_future(system.spawn(Linking))
        await run_until_idle()
        friend.kill()
        with pytest.raises(Exception, match="linked with"):
            await spawning
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_a_link_that_breaks_during_a_backoff_changes_nothing():
    async with ActorSystem(supervise=OneForOne(max_restarts=1, backoff=Backoff(5, 5))) as system:
        ref, friend = await system.spawn(Puppet), await system.spawn(Puppet)
        await ref.ask(Call(lambda a: a.ctx.link(friend)))
        ref.tell(Do(crash))
        await run_until_idle()
        friend.kill()
        assert await ref.ask(1, timeout=10) == 1


@virtual
async def test_a_handler_that_fails_while_it_is_stopped_ends_as_failed():
    async with ActorSystem(supervise=OneForOne(max_restarts=0)) as system:
        boss = await system.spawn(Boss)
        child = await boss.ask(Do(lambda a: a.ctx.spawn(Puppet)))

        async def late(_):
            await asyncio.sleep(1)
            raise Boom("late")

        child.tell(Do(late))
        await run_until_idle()
        child.stop()
        await child.terminated()
        (terminated,) = await boss.ask(Do(lambda a: a.diary))
        assert (terminated.reason, str(terminated.error)) == ("failed", "late")


@virtual
async def test_a_failing_member_of_a_group_that_is_asked_to_halt_just_halts():
    async with ActorSystem() as system:

        class Chief(Boss):
            supervise = OneForAll(max_restarts=1)

        async def late(_):
            await asyncio.sleep(1)
            raise Boom("late")

        chief = await system.spawn(Chief)
        one, other = [await chief.ask(Do(lambda a: a.ctx.spawn(Puppet))) for _ in range(2)]
        one.tell(Do(late))
        await run_until_idle()
        other.tell(Do(crash))
        await asyncio.sleep(2)
        assert await one.ask(1) == 1
        assert [str(e) for e in await failures(chief)] == ["crash"]


@virtual
async def test_a_member_of_a_group_that_is_killed_while_the_group_is_given_up():
    starts = []

    def flaky():
        starts.append(1)
        if len(starts) > 1:
            raise Boom("no start")
        return Puppet()

    async with ActorSystem(supervise=OneForOne(max_restarts=5)) as system:

        class Chief(Boss):
            supervise = OneForAll(max_restarts=1, within=100, backoff=Backoff(1, 1))

        chief = await system.spawn(Chief)
        one = await chief.ask(Do(lambda a: a.ctx.spawn(flaky)))
        other = await chief.ask(Do(lambda a: a.ctx.spawn(Puppet)))
        one.tell(Do(crash))
        await run_until_idle()
        other.kill()
        await other.terminated()
        await one.terminated()
        assert await chief.ask(Do(lambda a: a.ctx.children)) == {}


@virtual
async def test_a_start_that_is_stopped_by_the_decider():
    starts = []

    def flaky():
        starts.append(1)
        if len(starts) > 1:
            raise PermissionError
        return Puppet()

    async with ActorSystem() as system:
        boss = await system.spawn(Boss)
        boss.cell.actor.supervise = OneForOne(decide={PermissionError: "stop", Boom: "resume"})
        child = await boss.ask(Do(lambda a: a.ctx.spawn(flaky)))
        child.tell(Do(crash))  # resumed
        assert await child.ask(1) == 1
        child.tell(ValueError())  # restarted, in vain
        await child.terminated()
        soon = await boss.ask(Call(lambda a: a.ctx.spawn_soon(flaky)))
        await soon.terminated()
        boss.cell.actor.supervise = OneForOne(decide={PermissionError: "resume"}, max_restarts=100)
        starts[:] = [1]
        soon = await boss.ask(Call(lambda a: a.ctx.spawn_soon(flaky)))  # nothing to resume: tried again
        starts[:] = []
        assert await soon.ask(1) == 1


@virtual
async def test_a_stranger_who_cancels_every_task_cannot_leave_an_actor_stuck():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ref.tell(1000.0)
        while ref.cell.task is None:  # noqa: ASYNC110 - no event tells of this instant
            await asyncio.sleep(0)
        ref.cell.task.cancel()
        await run_until_idle()
        if ref.cell.mode == BUSY:  # cancelled before its first step: nothing of it ever ran
            ref.kill()
            await ref.terminated()
        else:
            assert await ref.ask(1) == 1


@virtual
async def test_orders_cross_each_other():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ref.tell(5.0)
        await run_until_idle()
        ref.drain()
        ref.tell(1)
        ref.stop(grace=3)
        ref.stop(grace=2)
        ref.drain()
        await ref.terminated()
        assert asyncio.get_running_loop().time() == 2
        ref.kill()
        ref.drain()
        soon = system.spawn_soon(Puppet)
        soon.tell(1)
        soon.drain()
        await soon.terminated()
        assert system.dead_letters.counts == {"stopped": 1}
        gone = system.spawn_soon(Puppet)
        gone.tell(1)
        gone.kill()
        with pytest.raises(ActorStopped):
            await gone.ask(1)
        await gone.terminated()
        assert system.dead_letters.counts == {"stopped": 2}


@virtual
async def test_an_unbounded_shutdown_time_and_receive_timeouts_end_with_the_actor():
    async with ActorSystem() as system:
        ref = await system.spawn(ChildSpec("a", Puppet, shutdown=None))
        await ref.ask(Call(lambda a: a.ctx.receive_timeout(5)))
        await ref.ask(Call(lambda a: a.ctx.receive_timeout(6)))
        ref.stop()
        await ref.terminated()
    assert asyncio.get_running_loop().time() == 0


@virtual
async def test_a_pool_passes_over_who_no_longer_waits():
    async with ActorSystem() as system:
        diary = []
        pool = await system.spawn(lambda: Pool(lambda: Puppet(diary), 1))
        pool.tell(10.0)
        with pytest.raises(AskTimeout):
            await pool.ask(1, timeout=1)
        assert await pool.ask(2, timeout=20) == 2
        assert diary == [10.0, 2]


@virtual
async def test_nobody_may_use_the_virtual_loop_of_a_finished_run():
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    assert loop.wake_idle() is False
