"""Nothing is ignored: overflow policies and bounds in every state, context variables, odd handlers."""

import asyncio
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    Backoff,
    MailboxFull,
    OneForOne,
    SpecError,
    Terminated,
    current_trace,
    on,
    tracing,
)
from actors.testing import Probe, run, run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, virtual


class Small(Puppet, mailbox=2, overflow="drop_new"): ...


class SmallOld(Puppet, mailbox=2, overflow="drop_old"): ...


@pytest.mark.parametrize("kind", [Small, SmallOld])
@virtual
async def test_the_overflow_policy_holds_while_an_actor_restarts(kind):
    """D8"""
    diary = []
    async with ActorSystem(supervise=OneForOne(backoff=Backoff(10, 10))) as system:
        ref = await system.spawn(lambda: kind(diary))
        ref.tell(Boom())
        await run_until_idle()
        for n in range(5):
            ref.tell(n)
        await asyncio.sleep(11)
        assert diary == ([0, 1] if kind is Small else [3, 4])
        assert system.dead_letters.counts == {"full": 3}


@pytest.mark.parametrize("kind", [Small, SmallOld])
@virtual
async def test_the_overflow_policy_holds_while_a_sender_waits(kind):
    """D8"""
    diary = []
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: kind(diary))
        ref.tell(1.0)
        await run_until_idle()
        ref.tell(1)
        ref.tell(2)
        waiting = asyncio.ensure_future(ref.send(9))
        await run_until_idle()
        ref.tell(3)
        assert system.dead_letters.counts == {"full": 1}
        await waiting
        await asyncio.sleep(2)
        assert diary == ([1.0, 1, 2, 9] if kind is Small else [1.0, 2, 3, 9])


@pytest.mark.parametrize(
    "factory", [Small, partial(SmallOld, None), lambda: Puppet()], ids=["class", "partial", "lambda"]
)
@virtual
async def test_a_mailbox_is_bounded_before_the_first_turn(factory):
    """D8"""
    async with ActorSystem() as system:
        ref = system.spawn_soon(factory)
        limit = 2 if factory is Small or isinstance(factory, partial) else 1000
        for n in range(limit):
            ref.tell(n)
        if limit == 2:
            ref.tell(limit)
            assert system.dead_letters.counts == {"full": 1}
        else:
            with pytest.raises(MailboxFull):
                ref.tell(limit)


VAR = ContextVar("var", default="clean")


class Leaky(Actor, mailbox=0):
    def __init__(self):
        self.seen = []

    @on(str)
    def plain(self, value):
        self.seen.append(VAR.get())
        VAR.set(value)

    @on(bytes)
    async def awaited(self, value):
        self.seen.append(VAR.get())
        VAR.set(value)

    @on(tuple)
    async def slept(self, value):
        self.seen.append(VAR.get())
        VAR.set(value)
        await asyncio.sleep(0)
        assert VAR.get() == value

    @on(Terminated)
    def signal(self, value):
        self.plain(value)

    @on(type(None))
    def read(self, _):
        return self.seen


@pytest.mark.parametrize(
    "messages", [("a", "b"), (b"a", b"b"), ("a", b"b"), (b"a", "b"), (("x",), "b", b"c")]
)
@virtual
async def test_each_handler_has_context_variables_of_its_own(messages):
    """D11"""
    async with ActorSystem() as system:
        ref = await system.spawn(Leaky)
        with tracing("t"):
            for message in messages * 5:
                ref.tell(message)
        for message in messages * 5:
            ref.tell(message)
        assert set(await ref.ask(None)) == {"clean"}


@virtual
async def test_a_signal_has_context_variables_of_its_own():
    """D11"""
    async with ActorSystem() as system:
        leaky = Leaky()
        ref = await system.spawn(lambda: leaky)
        for _ in range(3):
            other = await system.spawn(Puppet)
            ref.cell.context.watch(other)
            other.stop()
        ref.tell("a")
        await run_until_idle()
        assert set(leaky.seen) == {"clean"}
        assert len(leaky.seen) == 4


@pytest.mark.parametrize("how", ["kill", "fail", "stop"])
@virtual
async def test_a_late_watcher_learns_how_an_actor_ended(how):
    """D12"""
    async with ActorSystem(supervise=OneForOne(decide={Boom: "stop"})) as system:
        ref, probe = await system.spawn(Puppet), await Probe.start(system)
        ref.tell(Boom()) if how == "fail" else getattr(ref, how)()
        await ref.terminated()
        probe.watch(ref)
        assert (await probe.expect(Terminated)).reason == {
            "kill": "killed",
            "fail": "failed",
            "stop": "stopped",
        }[how]


@virtual
async def test_a_factory_that_gives_the_same_instance_again_fails_the_restart(caplog):
    """D12"""
    one = Puppet()
    async with ActorSystem(supervise=OneForOne(decide={SpecError: "stop"})) as system:
        ref = await system.spawn(lambda: one, "one")
        ref.tell(Boom())
        await ref.terminated()
    assert "/one: the factory gave the actor of /one; make one each time" in caplog.text


@pytest.mark.parametrize(
    ("parts", "action"),
    [
        ([PermissionError()], "stop"),
        ([PermissionError(), KeyError()], "escalate"),
        ([ValueError()], "restart"),
    ],
    ids=["one", "severest", "unlisted"],
)
def test_a_table_of_decisions_looks_into_exception_groups(parts, action):
    """D12"""
    strategy = OneForOne(decide={PermissionError: "stop", LookupError: "escalate"})
    error = ExceptionGroup("outer", [ExceptionGroup("inner", parts)])
    assert strategy.verdict(error, None) == action
    assert OneForOne(decide={ExceptionGroup: "resume"}).verdict(error, None) == "resume"


@virtual
async def test_a_group_counts_only_the_members_that_take_a_message():
    """D12"""
    async with ActorSystem() as system:
        group = system.group("all")
        refs = [await system.spawn(kind) for kind in (Puppet, Small, SmallOld, Puppet)]
        for ref in refs:
            group.join(ref)
            ref.tell(100.0)
        await run_until_idle()
        refs[3].stop()
        assert [group.publish(n) for n in range(4)] == [3, 3, 2, 2]  # the second refuses, the third drops


@pytest.mark.parametrize("kind", ["async generator", "generator"])
def test_a_generator_is_refused_as_a_handler(kind):
    """D12"""
    with pytest.raises(SpecError, match="generator function"):

        class Streams(Actor):
            if kind == "generator":

                @on(str)
                def parts(self, _):
                    yield 1
            else:

                @on(str)
                async def parts(self, _):
                    yield 1


@pytest.mark.parametrize("shape", [Call, Do])
@virtual
async def test_a_future_returned_by_a_handler_is_awaited(shape):
    """D12"""
    async with ActorSystem() as system:
        ref, other = await system.spawn(Puppet), await system.spawn(Puppet)
        make = lambda a: asyncio.ensure_future(other.ask(2.0))  # noqa: E731
        if shape is Do:
            assert await ref.ask(Do(lambda a: asyncio.sleep(0))) is None
        answer = asyncio.ensure_future(ref.ask(Call(make)))
        await run_until_idle()
        assert await ref.ask(7) == 7
        assert asyncio.get_running_loop().time() == 2  # one message at a time
        assert await answer == 2.0


@virtual
async def test_asks_fail_at_once_after_the_root_gave_up_without_its_host():
    """D12"""
    system = ActorSystem(supervise=OneForOne(max_restarts=0))

    async def host():
        await system.__aenter__()
        return await system.spawn(Puppet), await system.spawn(Puppet)

    ref, other = await asyncio.ensure_future(host())
    ref.tell(Boom("root"))
    await run_until_idle()
    for each in (ref, other):
        with pytest.raises(ActorStopped):
            await each.ask(1)
    assert asyncio.get_running_loop().time() == 0
    with pytest.raises(Boom, match="root"):
        await system.__aexit__(None, None, None)


def test_a_thread_learns_each_time_that_the_loop_was_closed():
    """D12"""

    async def main():
        system = ActorSystem()
        await system.__aenter__()
        return await system.spawn(Puppet)

    loop = asyncio.new_event_loop()
    ref = loop.run_until_complete(main())
    loop.close()
    for _ in range(3):
        with pytest.raises(ActorStopped):
            ref.tell_threadsafe(1)


async def test_the_door_for_threads_is_sliced_and_bounded():
    """D10"""
    async with ActorSystem() as system:
        seen = []
        ref = await system.spawn(lambda: Puppet(seen))
        outcome = []

        def send():
            try:
                for n in range(20_000):
                    ref.tell_threadsafe(n)
            except MailboxFull:
                outcome.append(n)

        thread = threading.Thread(target=send)
        thread.start()
        thread.join()  # the loop stands still meanwhile
        assert outcome == [10_000]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(seen) + (len(ref.cell.box) if ref.cell.box else 0) <= 3 * 64
        while len(seen) < 10_000:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert seen == list(range(10_000))


def test_a_turn_of_the_loop_starts_a_hundred_pumps_at_most():
    """D10: a thousand asynchronous actors made turns of 26 ms."""
    starts = []

    class Busy(Actor, mailbox=0):
        @on(int)
        async def work(self, _):
            await asyncio.sleep(0)

    async def main():
        async with ActorSystem() as system:
            refs = [await system.spawn(Busy) for _ in range(1000)]
            for ref in refs:
                for n in range(3):
                    ref.tell(n)
            while any(ref.cell.box for ref in refs):
                await asyncio.sleep(0)
                starts.append(system.scheduler.started)

    run(main())
    assert max(starts) == 100


@virtual
async def test_the_trace_still_reaches_each_handler_of_a_turn():
    traces = []
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        for n in range(3):
            with tracing(n):
                ref.tell(Call(lambda _: traces.append(current_trace())))
                ref.tell(Do(lambda _: traces.append(current_trace())))
        await ref.ask(1)
        assert traces == [0, 0, 1, 1, 2, 2]
