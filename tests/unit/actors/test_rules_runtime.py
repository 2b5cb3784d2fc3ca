"""Rules 15 to 18 and 20 to 22: contexts, fairness, timers, threads, trees, handlers, pools, groups."""

import asyncio
import contextvars
import json
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest

import actors
from actors import (
    Actor,
    ActorError,
    ActorStopped,
    ActorSystem,
    AskTimeout,
    Failed,
    MailboxFull,
    OneForOne,
    Pool,
    ReceiveTimeout,
    SpecError,
    StashFull,
    Unhandled,
    WrongThread,
    current_trace,
    on,
    tracing,
)
from actors.testing import Probe, VirtualLoop, run, run_until_idle
from tests.unit.actors.kit import Boom, Boss, Call, Do, Puppet, crash, virtual

variable = contextvars.ContextVar("variable", default="unset")


@virtual
@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_15_nothing_leaks_between_actors(kind):
    variable.set("at the opening")
    async with ActorSystem() as system:
        variable.set("sender")
        one, other = await system.spawn(Puppet), await system.spawn(Puppet)
        assert await one.ask(kind(lambda a: variable.get())) == "at the opening"
        one.tell(kind(lambda a: variable.set("leak")))
        assert await other.ask(kind(lambda a: variable.get())) == "at the opening"
        one.tell(
            kind(lambda a: (variable.set("leak"), other.tell(kind(lambda b: b.diary.append(variable.get())))))
        )
        await run_until_idle()
        assert await other.ask(Do(lambda a: a.diary)) == ["at the opening"]
        assert variable.get() == "sender"


@virtual
@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_15_the_envelope_carries_the_trace(kind):
    async with ActorSystem() as system:
        one, other = await system.spawn(Puppet), await system.spawn(Puppet)
        traces = []

        def note(actor):
            traces.append((actor.ctx.self, current_trace(), actor.ctx.trace))

        def pass_on(actor):
            note(actor)
            other.tell(kind(note))
            with tracing("inner"):
                assert current_trace() == "inner"
                other.tell(kind(note))
            other.tell(kind(note))
            actor.ctx.timers.start("t", 1, kind(note))
            actor.ctx.pipe(asyncio.sleep(0), lambda _: kind(note))

        with tracing("outer"):
            one.tell(kind(pass_on))
            await other.send(kind(note))
        assert current_trace() is None
        await asyncio.sleep(2)
        one.tell(kind(note))
        await run_until_idle()
        by = {
            ref: [trace for who, trace, mine in traces if who is ref and trace == mine]
            for ref in (one, other)
        }
        assert by[one] == ["outer", "outer", "outer", None]
        assert sorted(by[other]) == ["inner", "outer", "outer", "outer"]


@virtual
async def test_rule_15_a_dead_letter_keeps_its_trace():
    async with ActorSystem() as system:
        letters = []
        system.dead_letters.subscribe(letters.append)
        ref = await system.spawn(Puppet)
        ref.stop()
        with tracing("t"):
            ref.tell(1)
            system.tell("/x", 2)
        assert [letter.trace for letter in letters] == ["t", "t"]


class Recorder:
    def __init__(self, wanted):
        self.wanted, self.events = wanted, []

    def wants(self, message_type):
        return message_type in self.wanted

    @contextmanager
    def handling(self, ref, message, trace):
        self.events.append(("begin", trace))
        with tracing("span"):
            try:
                yield
            except BaseException as exc:
                self.events.append(("failed", type(exc).__name__))
                raise
            else:
                self.events.append(("end", trace))


@virtual
async def test_rule_15_the_interceptor_runs_around_the_handlers_it_wants():
    recorder = Recorder({Do, Call, int, Failed})
    async with ActorSystem(interceptor=recorder, supervise=OneForOne(max_restarts=9)) as system:
        ref = await system.spawn(Boss)
        with tracing("outer"):
            for kind in (Do, Call):
                assert await ref.ask(kind(lambda a: current_trace())) == "span"
                with pytest.raises(Boom):
                    await ref.ask(kind(crash))
        await ref.ask(0.0)
        with pytest.raises(Unhandled):
            await ref.ask("unknown")
        await ref.ask(Do(lambda a: a.ctx.become({int: lambda n: n + 1})))
        assert await ref.ask(1) == 2
        assert recorder.events == [
            *[("begin", "outer"), ("end", "outer"), ("begin", "outer"), ("failed", "Boom")] * 2,
            *[("begin", None), ("end", None)] * 2,
        ]


async def test_rule_16_a_busy_actor_never_freezes_the_loop():
    numbers = []

    class Busy(Actor, mailbox=0):
        @on(int)
        def number(self, n):
            numbers.append(n)
            if n:
                self.ctx.self.tell(n - 1)

        @on(float)
        def slow(self, seconds):
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                pass

    async with ActorSystem() as system:
        ref = await system.spawn(Busy)
        for _ in range(100):
            ref.tell(0.001)
        turns = 0
        while system.tree().children[0].depth:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 25  # 100 ms of work in slices of 2 ms, of which each can be exceeded by one handler
        other = await system.spawn(Puppet)
        ref.tell(100_000)
        assert await other.ask(1) == 1
        assert 0 not in numbers
        ref.kill()


@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_16_asks_one_after_the_other_let_the_loop_go_on(kind):
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ticks, question = [], kind(lambda a: 1)

        async def tick():
            while True:
                ticks.append(time.perf_counter())
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        until = time.process_time() + 0.1
        while time.process_time() < until:
            await ref.ask(question)
        ticking.cancel()
        assert len(ticks) >= 20


@virtual
@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_16_an_actor_handles_at_most_64_messages_in_a_turn(kind):
    async with ActorSystem() as system:
        order = []
        refs = [await system.spawn(Puppet) for _ in range(2)]
        for ref in refs:
            for _ in range(150):
                ref.tell(kind(lambda a, ref=ref: order.append(refs.index(ref))))
        await run_until_idle()
        assert order == [0] * 64 + [1] * 64 + [0] * 64 + [1] * 64 + [0] * 22 + [1] * 22


async def test_rule_16_a_handler_that_blocks_the_loop_is_reported(caplog):
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet, "blocker")
        await ref.ask(Call(lambda a: time.sleep(0.3)))
        assert "/blocker kept the event loop" in caplog.text


@virtual
async def test_rule_17_timers_are_keyed_and_a_stale_one_never_fires():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Puppet(diary))

        async def work(actor):
            timers = actor.ctx.timers
            timers.start("a", 1, 1)
            timers.start("b", 1, 2)
            timers.start("b", 2, 3)  # takes the place of the earlier one
            timers.start("c", 1, 4)
            timers.start("d", 1, 5)
            assert "a" in timers
            assert timers.cancel("c")
            assert not timers.cancel("nothing")
            await asyncio.sleep(1.5)  # the messages of a and d wait now
            timers.cancel("d")
            with pytest.raises(ValueError, match="not possible"):
                timers.start("e", -1, 0)
            with pytest.raises(ValueError, match="not possible"):
                timers.start("e", 0, 0, repeat=True)

        await ref.ask(Do(work))
        await asyncio.sleep(10)
        assert diary == [1, 3]
        assert ref.cell.extras.timers == {}


@virtual
async def test_rule_17_a_repeating_timer_does_not_pile_up():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Puppet(diary))
        await ref.ask(Call(lambda a: a.ctx.timers.start("tick", 1, 1, repeat=True)))
        await asyncio.sleep(3.5)
        assert diary == [1, 1, 1]
        ref.tell(10.0)
        await asyncio.sleep(10.2)
        assert diary == [1, 1, 1, 10.0, 1]
        await ref.ask(Call(lambda a: a.ctx.timers.cancel("tick")))
        await asyncio.sleep(5)
        assert diary == [1, 1, 1, 10.0, 1]


@virtual
async def test_rule_17_timers_end_with_a_restart():
    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        diary = []
        ref = await system.spawn(lambda: Puppet(diary))

        async def work(actor):
            actor.ctx.timers.start("a", 1, 1)
            actor.ctx.timers.start("b", 5, 2)
            await asyncio.sleep(2)
            raise Boom

        ref.tell(Do(work))
        await asyncio.sleep(10)
        assert diary == []


@virtual
async def test_rule_17_receive_timeout():
    class Idle(Puppet):
        @on(ReceiveTimeout)
        def idle(self, signal):
            self.diary.append((signal.after, asyncio.get_running_loop().time()))
            if len(self.diary) == 3:
                self.ctx.receive_timeout(None)

    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Idle(diary))
        await ref.ask(Call(lambda a: a.ctx.receive_timeout(2)))
        await asyncio.sleep(1)
        await ref.ask(4.0)  # a handler at work is not idle
        await asyncio.sleep(20)
        assert diary == [4.0, (2, 7), (2, 9)]


async def test_rule_18_tell_threadsafe_is_the_door():
    async with ActorSystem() as system:
        diary, done = [], asyncio.Event()
        ref = await system.spawn(lambda: Puppet(diary))
        last = await system.spawn(lambda: Puppet(diary))

        def send(base):
            for i in range(100):
                ref.tell_threadsafe(base + i)

        threads = [threading.Thread(target=send, args=(k * 1000,)) for k in range(3)]
        for thread in threads:
            thread.start()
        await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
        last.tell_threadsafe(Call(lambda a: done.set()))
        await done.wait()
        for k in range(3):
            assert [n for n in diary if n // 1000 == k] == [k * 1000 + i for i in range(100)]
    with pytest.raises(ActorStopped):
        ref.tell_threadsafe(1)


async def test_rule_18_a_full_mailbox_turns_it_into_a_dead_letter():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        ref = await system.spawn(Small)
        for i in range(3):
            ref.tell_threadsafe(i)
        await asyncio.sleep(0)
        assert await ref.ask(1) == 1
        assert system.dead_letters.counts == {"full": 2}


async def test_rule_18_debug_mode_refuses_other_threads():
    async with ActorSystem(debug=True) as system:
        ref = await system.spawn(Puppet)
        ref.tell(1)
        await ref.send(1)
        assert await ref.ask(1) == 1
        for use in (lambda: ref.tell(1), ref.stop, ref.kill, ref.drain, lambda: asyncio.run(ref.ask(1))):
            with pytest.raises(WrongThread):
                await asyncio.to_thread(use)
        ref.tell_threadsafe(1)


@virtual
async def test_rule_20_the_tree_shows_what_runs():
    async with ActorSystem() as system:
        boss = await system.spawn(Boss, "boss")
        child = await boss.ask(Do(lambda a: a.ctx.spawn(Puppet, "child")))
        child.tell(Do(crash))
        child.tell(10.0)
        child.tell(1)
        await asyncio.sleep(3)
        info = system.tree().children[0]
        assert (info.path, info.type, info.phase, info.depth, info.capacity) == (
            "/boss",
            "Boss",
            "running",
            0,
            1000,
        )
        (info,) = info.children
        assert (info.path, info.depth, info.restarts) == ("/boss/child", 1, 1)
        assert (info.busy, info.busy_for) == ("float", 3)
        assert "  /boss/child Puppet running depth=1 restarts=1 busy=float" in str(system.tree())
        assert json.loads(msgspec.json.encode(system.tree()))["children"][0]["path"] == "/boss"
        child.kill()


async def test_rule_20_the_watchdog_reports_slow_handlers_once(caplog):
    async with ActorSystem(slow_handler=0.05) as system:
        ref = await system.spawn(Puppet, "slow")
        await ref.ask(0.01)
        assert "slow" not in caplog.text
        await ref.ask(0.3)
        assert caplog.text.count("/slow: the handler of float has been at work") == 1
        await ref.ask(0.3)
        assert caplog.text.count("/slow: the handler of float has been at work") == 2


@virtual
async def test_rule_20_probe():
    async with ActorSystem() as system:
        probe = await Probe.start(system, "probe", answer=lambda message: message * 2)
        await probe.expect_nothing(within=5)
        assert asyncio.get_running_loop().time() == 5
        assert await probe.ref.ask(4) == 8
        assert probe.received == [4]
        with pytest.raises(AssertionError, match="expected nothing; 4 came"):
            await probe.expect_nothing()
        with pytest.raises(AssertionError, match="expected str; 4 came"):
            await probe.expect(str)
        with pytest.raises(AssertionError, match="nothing came within 3 s"):
            await probe.expect(str)
        asyncio.get_running_loop().call_later(1, probe.ref.tell, "x")
        assert await probe.expect(str) == "x"


def test_rule_20_the_virtual_clock_jumps_and_knows_a_dead_end():
    async def main():
        assert isinstance(asyncio.get_running_loop(), VirtualLoop)
        await asyncio.sleep(86400)
        assert await asyncio.to_thread(lambda: 7) == 7
        return asyncio.get_running_loop().time()

    started = time.perf_counter()
    assert run(main()) >= 86400
    assert time.perf_counter() - started < 5

    async def for_ever():
        await asyncio.get_running_loop().create_future()

    if threading.active_count() == 1:
        with pytest.raises(RuntimeError, match="no task will do"):
            run(for_ever())


async def test_rule_20_run_until_idle_needs_the_virtual_clock():
    with pytest.raises(RuntimeError, match=r"actors\.testing\.run"):
        await run_until_idle()


def interleaving(seed):
    async def main():
        async with ActorSystem() as system:
            order = []
            refs = [await system.spawn(lambda i=i: Puppet(order)) for i in range(5)]
            for k in range(20):
                for i, ref in enumerate(refs):
                    ref.tell(100 * i + k)
            await run_until_idle()
            return order

    return run(main(), seed=seed)


def test_rule_20_the_same_seed_gives_the_same_run():
    orders = [interleaving(seed) for seed in range(5)]
    assert orders == [interleaving(seed) for seed in range(5)]
    assert len({tuple(order) for order in orders}) == 5
    for order in orders:
        for i in range(5):
            assert [n for n in order if n // 100 == i] == [100 * i + k for k in range(20)]


class Base:
    pass


class Derived(Base):
    pass


class Far(Derived):
    pass


class Parent(Actor):
    @on(Base)
    def base(self, _):
        return "parent base"

    @on(object)
    def anything(self, _):
        return "parent object"

    @on(str, bytes)
    def text(self, _):
        return "parent text"


class Child(Parent):
    @on(Derived)
    async def derived(self, _):
        return "child derived"

    def text(self, _):  # overrides by name
        return "child text"

    @on(bytes)
    def raw(self, _):  # overrides by type
        return "child raw"


@virtual
async def test_rule_21_handlers_by_exact_type_then_by_the_nearest_base():
    async with ActorSystem() as system:
        ref = await system.spawn(Child)
        answers = [await ref.ask(m) for m in (Base(), Derived(), Far(), "", b"", 1, None)]
        assert answers == [
            "parent base",
            "child derived",
            "child derived",
            "child text",
            "child raw",
            "parent object",
            "parent object",
        ]
        assert await (await system.spawn(Parent)).ask(b"") == "parent text"


@virtual
async def test_rule_21_an_unhandled_message_is_a_dead_letter_an_unhandled_signal_is_not():
    async with ActorSystem() as system:
        catch_all = await system.spawn(Parent)
        child = await catch_all.cell.context.spawn(Puppet)
        child.stop()
        await child.terminated()
        ref = await system.spawn(Puppet)
        ref.tell("?")
        with pytest.raises(Unhandled, match="no handler for str"):
            await ref.ask("?")
        assert system.dead_letters.counts == {"unhandled": 1}


@virtual
async def test_rule_21_a_handler_that_takes_no_message_fails_the_actor_not_the_asker():
    class Bad(Actor):
        @on(int)
        async def number(self):
            pass

    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        ref = await system.spawn(Bad)
        for _ in range(2):
            with pytest.raises(TypeError, match="positional argument"):
                await ref.ask(1)
        assert system.tree().children[0].restarts == 2


@virtual
async def test_rule_22_a_pool_shares_its_mailbox_among_free_workers():
    at_work, most = 0, 0

    class Worker(Actor):
        @on(float)
        async def work(self, seconds):
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(seconds)
            at_work -= 1
            return self.ctx.self.name

        @on(str)
        def crash(self, _):
            raise Boom("worker")

    class Small(Pool, mailbox=10):
        pass

    async with ActorSystem() as system:
        loop = asyncio.get_running_loop()
        pool = await system.spawn(lambda: Small(Worker, 3, supervise=OneForOne(max_restarts=9)), "pool")
        names = await asyncio.gather(*(pool.ask(1.0, timeout=60) for _ in range(9)))
        assert sorted(names) == sorted([f"worker-{i}" for i in range(3)] * 3)
        assert (most, loop.time()) == (3, 3)
        with pytest.raises(Boom):
            await pool.ask("crash")
        pool.tell(100.0)
        assert len({await pool.ask(1.0) for _ in range(4)}) <= 2  # the taken worker gets nothing
        tellings = [pool.tell(50.0) for _ in range(2)]
        with pytest.raises(AskTimeout):
            await pool.ask(1.0, timeout=1)
        assert len(tellings) == 2
        for _ in range(10):
            pool.tell(1.0)
        with pytest.raises(MailboxFull):
            pool.tell(1.0)
        pool.kill()
        await pool.terminated()
    with pytest.raises(SpecError):
        Pool(Worker, 0)


@virtual
async def test_rule_22_workers_of_a_pool_inherit_the_deadline():
    class Worker(Actor):
        @on(str)
        def left(self, _):
            return self.ctx.remaining

    async with ActorSystem() as system:
        pool = await system.spawn(lambda: Pool(Worker, 1, limit=2))
        assert await pool.ask("?", timeout=3) == 3
        for worker in list(pool.cell.children.values()):
            worker.ref.stop()
        await run_until_idle()
        with pytest.raises(ActorStopped):
            await pool.ask("?")


@virtual
async def test_rule_22_groups():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        group = system.group("news")
        assert system.group("news") is group
        diary = []
        refs = [await system.spawn(lambda: Small(diary)) for _ in range(3)]
        for ref in (*refs, refs[0]):
            group.join(ref)
        assert group.members == refs
        assert group.publish(1) == 3
        assert group.publish(2) == 0  # full
        await run_until_idle()
        group.leave(refs[0])
        group.leave(refs[0])
        refs[1].tell(Do(crash))
        await run_until_idle()
        assert group.members == refs[1:]
        refs[2].stop()
        await refs[2].terminated()
        assert group.publish(3) == 1
        await run_until_idle()
        assert diary == [1, 1, 1, 3]
        assert system.dead_letters.counts == {"full": 3}
        with pytest.raises(ActorStopped):
            group.join(refs[2])


class Door(Actor, stash=2):
    """Opens late; meanwhile it stashes."""

    def __init__(self):
        self.opened = []

    @on(int)
    def knock(self, n):
        self.ctx.stash()

    @on(str)
    def open(self, word):
        if word == "open":
            self.ctx.become({int: self.enter, str: self.close})
            self.ctx.unstash_all()
        elif word == "crash":
            raise Boom

    async def enter(self, n):
        self.opened.append(n)
        return n

    def close(self, _):
        self.ctx.unbecome()
        return self.opened


@virtual
async def test_rule_22_stash_and_become():
    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        door = await system.spawn(Door)
        asking = asyncio.ensure_future(door.ask(1))
        await run_until_idle()
        door.tell(2)
        await run_until_idle()
        assert not asking.done()
        await door.ask("open")
        assert await asking == 1
        assert await door.ask("close") == [1, 2]
        with pytest.raises(AskTimeout):
            await door.ask(3)
        door.tell(4)
        with pytest.raises(StashFull):  # fails the actor; the restart returns the stash to the mailbox
            await door.ask(5)
        await run_until_idle()
        await door.ask("open")
        assert await door.ask("close") == [4]
        with pytest.raises(ActorError, match="no message in hand"):
            door.cell.context.stash()
        door.tell(6)
        last = asyncio.ensure_future(door.ask(7))
        await run_until_idle()
        door.stop()
        with pytest.raises(ActorStopped):
            await last
        assert system.dead_letters.counts == {"expired": 1, "stopped": 1}


@virtual
async def test_rule_22_drain_handles_what_is_unstashed():
    async with ActorSystem() as system:
        door = await system.spawn(Door)
        door.tell(1)
        answer = asyncio.ensure_future(door.ask(2))
        await run_until_idle()
        door.tell("open")
        door.drain()
        assert await answer == 2
        await door.terminated()


def test_the_public_names_are_sorted_and_agree():
    assert list(actors.__all__) == sorted(actors.__all__, key=lambda name: name)
    public = {
        name
        for name, value in vars(actors).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("actors.")
    }
    assert public == set(actors.__all__) - {"Action", "Phase"}  # aliases know no module
    assert all(hasattr(actors, name) for name in actors.__all__)


@virtual
async def test_rule_17_a_receive_timeout_that_was_taken_back_never_shows_though_it_waited():
    class Quiet(Puppet):
        def on_start(self):
            self.ctx.timers.start("off", 5, "off")
            self.ctx.receive_timeout(5)  # in the same moment, right behind it

        @on(str)
        def off(self, _):
            self.diary.append("off")
            self.ctx.receive_timeout(None)

        @on(ReceiveTimeout)
        def timeout(self, _):
            self.diary.append("timeout")

    async with ActorSystem() as system:
        ref = await system.spawn(Quiet)
        await asyncio.sleep(20)
        assert await ref.ask(Do(lambda a: a.diary)) == ["off"]
