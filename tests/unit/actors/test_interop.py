"""The library beside anyio, threads, signals and other systems."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import anyio
import anyio.to_thread
import pytest

from actors import ActorStopped, ActorSystem, OneForOne
from actors.testing import run, run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, virtual


@virtual
async def test_move_on_after_around_an_ask_takes_the_question_back():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Puppet(diary))
        ref.tell(10.0)
        await run_until_idle()
        with anyio.move_on_after(1) as scope:
            await ref.ask(1)
        assert scope.cancelled_caught
        assert await ref.ask(2, timeout=60) == 2
        assert diary == [10.0, 2]


@virtual
async def test_move_on_after_inside_a_handler():
    async def work(_):
        with anyio.move_on_after(1) as scope:
            await anyio.sleep(100)
        return scope.cancelled_caught

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        assert await ref.ask(Do(work)) is True
        assert await ref.ask(1) == 1


@virtual
async def test_an_anyio_task_group_in_a_handler():
    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        ref, other = await system.spawn(Puppet), await system.spawn(Puppet)

        async def work(actor):
            results = []

            async def one(i):
                await anyio.sleep(0.1)
                results.append(await other.ask(i))

            async with anyio.create_task_group() as group:
                for i in range(3):
                    group.start_soon(one, i)
            return results

        assert await ref.ask(Do(work)) == [0, 1, 2]

        async def fail(actor):
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 1000)
                group.start_soon(other.ask, Boom("in the group"))

        with pytest.raises(ExceptionGroup) as caught:
            await ref.ask(Do(fail))
        assert caught.group_contains(Boom)
        assert await ref.ask(1) == 1


@virtual
async def test_killing_a_handler_ends_its_task_group_and_waits_for_it():
    ended = []

    async def work(_):
        async def child():
            try:
                await anyio.sleep(1000)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.1)
                ended.append(1)

        async with anyio.create_task_group() as group:
            group.start_soon(child)
            group.start_soon(child)

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ref.tell(Do(work))
        await run_until_idle()
        ref.kill()
        await ref.terminated()
        assert ended == [1, 1]


async def test_threads_inside_a_handler_do_not_block_the_loop():
    answered = threading.Event()

    async def work(_):
        return await anyio.to_thread.run_sync(lambda: answered.wait(20))

    async with ActorSystem() as system:
        ref, other = await system.spawn(Puppet), await system.spawn(Puppet)
        asking = asyncio.ensure_future(ref.ask(Do(work)))
        await other.ask(1)
        answered.set()
        assert await asking is True


@virtual
async def test_a_system_closed_inside_a_cancelled_scope_is_closed_whole():
    stopped = []

    class Slow(Puppet):
        async def on_stop(self):
            await anyio.sleep(1)
            stopped.append(self)

    with anyio.CancelScope() as scope:
        async with ActorSystem() as system:
            for _ in range(3):
                await system.spawn(Slow)
            scope.cancel()
    assert len(stopped) == 3
    assert system.tree().children == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_a_system_under_an_anyio_task_group_that_fails():
    stopped = []

    class Noting(Puppet):
        def on_stop(self):
            stopped.append(1)

    async def serve():
        async with ActorSystem() as system:
            await system.spawn(Noting)
            await anyio.sleep(1000)

    async def fail():
        await anyio.sleep(1)
        raise Boom

    async def both():
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            group.start_soon(fail)

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert caught.group_contains(Boom)
    assert stopped == [1]


@virtual
async def test_an_error_of_the_system_leaves_through_scopes_and_timeouts():
    async def block():
        async with ActorSystem(supervise=OneForOne(max_restarts=0)) as system:
            ref = await system.spawn(Puppet)
            ref.tell(Boom("root"))
            async with asyncio.timeout(100):
                with anyio.move_on_after(100):
                    await anyio.sleep(1000)

    with pytest.raises(Boom, match="root"):
        await block()
    assert asyncio.current_task().cancelling() == 0
    assert asyncio.get_running_loop().time() == 0


@virtual
async def test_two_systems_talk_and_end_apart():
    async with ActorSystem("one") as one:
        here = await one.spawn(Puppet, "p")
        async with ActorSystem("two") as two:
            there = await two.spawn(Puppet, "p")
            assert await here.ask(Do(lambda a: there.ask(5))) == 5
            assert await there.ask(Call(lambda a: here.tell(6))) is None
            assert here != there
            assert here.path == there.path
        with pytest.raises(ActorStopped):
            await there.ask(1)
        assert await here.ask(Do(lambda a: a.diary)) == [6]


@virtual
async def test_a_system_opened_in_a_handler():
    async def work(_):
        async with ActorSystem("inner") as inner:
            ref = await inner.spawn(Puppet)
            return await ref.ask(Do(lambda a: (a.ctx.sender, a.ctx.system.name)))

    async with ActorSystem("outer") as outer:
        ref = await outer.spawn(Puppet)
        assert await ref.ask(Do(work)) == (ref, "inner")


@virtual
async def test_asyncio_timeout_and_wait_for_around_an_ask():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ref.tell(10.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref.ask(1, timeout=100), 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ref.ask(2, timeout=100)
        assert await ref.ask(3, timeout=100) == 3


def test_control_c_stops_the_actors_and_leaves():
    program = textwrap.dedent("""
        import asyncio
        from actors import Actor, ActorSystem, on

        class Slow(Actor):
            def on_start(self):
                print("ready", flush=True)

            async def on_stop(self):
                await asyncio.sleep(0.05)
                print("stopped", flush=True)

            @on(str)
            async def work(self, _):
                try:
                    await asyncio.sleep(1000)
                finally:
                    print("cancelled", flush=True)

        async def main():
            async with ActorSystem(shutdown=1.5) as system:
                (await system.spawn(Slow)).tell("work")
                await system.spawn(Slow)
                while True:
                    await asyncio.sleep(0.1)  # a signal just before asyncio waits is seen when it wakes up

        asyncio.run(main())
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.communicate()
    assert sorted(out.split()) == ["cancelled", "stopped"]
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "never" not in err


def test_a_real_keyboard_interrupt_in_a_plain_handler():
    def interrupt(_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    async def main():
        loop = asyncio.get_running_loop()
        async with ActorSystem() as system:
            ref = await system.spawn(Puppet)
            ref.tell(Call(interrupt))
            await asyncio.sleep(1000)
        return loop

    with pytest.raises(KeyboardInterrupt):
        run(main())
