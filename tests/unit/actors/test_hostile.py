"""What was found by trying to break the rules: very many, very deep, very odd, and too late."""

import asyncio
import contextlib
import copy
import dataclasses
import gc
import pickle

import pytest

from actors import (
    Actor,
    ActorError,
    ActorStopped,
    ActorSystem,
    Backoff,
    OneForOne,
    Ref,
    Reject,
    ShutdownTimeout,
    SpecError,
    Terminated,
    on,
)
from actors.testing import run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, crash, virtual

# Rule 14 and 16: very many, very deep


async def test_rule_16_the_end_of_very_many_children_does_not_freeze_the_loop():
    class Idle(Actor):
        pass

    class Parent(Puppet):
        async def on_start(self):
            for i in range(20_000):
                await self.ctx.spawn(Idle, f"c{i}")

    async with ActorSystem() as system:
        parent = await system.spawn(Parent)
        turns = 0
        parent.stop()
        while parent.is_alive:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20_000 / 64


async def test_rule_16_a_child_that_never_starts_does_not_freeze_the_loop():
    starts = []

    class Broken(Puppet):
        def __init__(self):
            starts.append(1)
            if len(starts) > 1:
                raise Boom("no start")
            super().__init__()

    async with ActorSystem(supervise=OneForOne(max_restarts=1_000_000, within=1000)) as system:
        ref = await system.spawn(Broken)
        ref.tell(Boom())
        for _ in range(100):
            await asyncio.sleep(0)
        assert 10 < len(starts) < 1000
        ref.kill()
        await ref.terminated()
        assert system.children == {}


async def test_rule_16_signals_that_bring_signals_do_not_freeze_the_loop():
    class Mourner(Actor):
        @on(Terminated, int)
        def again(self, _):
            self.ctx.watch(dead)

    async with ActorSystem() as system:
        dead = await system.spawn(Puppet)
        dead.kill()
        await dead.terminated()
        ref = await system.spawn(Mourner)
        ref.tell(1)
        for _ in range(50):
            await asyncio.sleep(0)
        ref.kill()


class Chain(Puppet):
    """Each has one child, to a depth."""

    def __init__(self, depth, refs):
        super().__init__()
        self.depth = depth
        self.refs = refs

    def on_start(self):
        self.refs.append(self.ctx.self)
        if self.depth:
            self.ctx.spawn_soon(lambda: Chain(self.depth - 1, self.refs), "c")


@virtual
async def test_rule_20_a_tree_deeper_than_the_stack_is_described():
    async with ActorSystem() as system:
        await system.spawn(lambda: Chain(1500, []), "c")
        await run_until_idle()
        assert str(system.tree()).count("Chain") == 1501


# Rule 7: odd exceptions


@virtual
async def test_rule_7_one_reject_may_be_raised_again_and_again():
    always = Reject("never mind")

    class Refuses(Puppet):
        @on(str)
        def refuse(self, _):
            raise always

        @on(bytes)
        async def refuse_later(self, _):
            await asyncio.sleep(0)
            raise always

    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        ref = await system.spawn(Refuses)
        asker = await system.spawn(Puppet)
        for message in ("a", b"b") * 3:
            with pytest.raises(Reject):
                await ref.ask(message)
            with pytest.raises(Reject):  # the asker lets it pass to its own asker, and lives
                await asker.ask(Do(lambda a, m=message: ref.ask(m)))
        assert [info.restarts for info in system.tree().children] == [0, 0]


@virtual
async def test_rule_7_a_reject_of_owned_work_restarts_no_actor(caplog):
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        other = await system.spawn(Puppet)
        await ref.ask(Call(lambda a: a.ctx.pipe(other.ask(Reject("no")), lambda r: r)))
        await run_until_idle()
        assert [info.restarts for info in system.tree().children] == [0, 0]
        assert "its own work was rejected: no" in caplog.text


@pytest.mark.parametrize("shape", [Call, Do])
@virtual
async def test_rule_7_a_handler_that_raises_generator_exit_fails_like_any_other(shape):
    async def later(_):
        raise GeneratorExit

    def at_once(_):
        raise GeneratorExit

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        with pytest.raises(GeneratorExit):
            await ref.ask(shape(at_once if shape is Call else later))
        assert await ref.ask(1) == 1
        assert system.tree().children[0].restarts == 1
        failed = asyncio.Event()
        await ref.ask(Call(lambda a: a.ctx.pipe(later(0), failed.set, lambda _: failed.set())))
        await asyncio.wait_for(failed.wait(), 1)


@pytest.mark.parametrize("hook", ["on_start", "on_stop", "on_restart"])
@virtual
async def test_rule_7_a_hook_that_raises_generator_exit_leaves_nobody_waiting(hook):
    first = True

    async def bad(self, *_):
        nonlocal first
        await asyncio.sleep(0)
        if first:
            first = False
            raise GeneratorExit

    async with ActorSystem() as system:
        odd = type("Odd", (Puppet,), {hook: bad})
        if hook == "on_start":
            with pytest.raises(GeneratorExit):
                await system.spawn(odd)
        ref = await system.spawn(odd)
        ref.tell(Boom())
        assert await ref.ask(1) == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Rule 13: dead letters


@virtual
async def test_rule_13_a_subscriber_that_makes_dead_letters_is_not_told_of_them():
    seen = []
    async with ActorSystem() as system:
        dead = await system.spawn(Puppet)
        dead.kill()
        await dead.terminated()

        def subscriber(letter):
            seen.append(letter.message)
            dead.tell("and another")

        system.dead_letters.subscribe(subscriber)
        dead.tell("one")
        dead.tell("two")
        assert seen == ["one", "two"]
        assert system.dead_letters.counts == {"stopped": 4}


# Rules 12 and 14: too late, and twice


@virtual
async def test_rule_14_the_context_of_an_actor_that_is_gone_begins_nothing():
    puppet = Puppet()
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: puppet)
        alive = await system.spawn(Puppet)
        ref.kill()
        await ref.terminated()
        context = puppet.ctx
        for use in (
            lambda: context.timers.start("t", 1, 1),
            lambda: context.receive_timeout(1),
            lambda: context.pipe(asyncio.sleep(1000), lambda _: None),
            lambda: context.limiter(1),
            lambda: context.watch(alive),
            lambda: context.link(alive),
            lambda: context.spawn_soon(Puppet),
        ):
            with pytest.raises(ActorStopped):
                use()
        context.timers.cancel("t")
        context.unwatch(alive)
        context.unstash_all()
        context.become({})
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_rule_14_closing_twice_is_harmless():
    system = ActorSystem()
    events = []

    async def slow():
        await asyncio.sleep(1)
        events.append("slow")

    async with system:
        system.on_shutdown("drain", slow)
        first = asyncio.ensure_future(system.__aexit__(None, None, None))
        await run_until_idle()
        second = asyncio.ensure_future(system.__aexit__(None, None, None))
        await run_until_idle()
        assert not second.done()
    assert events == ["slow"]
    await asyncio.gather(first, second)


@virtual
async def test_rule_12_those_who_no_longer_wait_for_an_end_are_forgotten():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        for _ in range(10):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ref.terminated(), 1)
        assert not ref.cell.extras.ended


class Deaf:
    """Goes on whatever comes, until it is `let_go`: as a handler, a pipe, limited work or a hook."""

    def __init__(self, swallows):
        self.swallows = swallows
        self.let_go = asyncio.Event()

    async def work(self, *_):
        while not self.let_go.is_set():
            with contextlib.suppress(self.swallows):
                await asyncio.sleep(1000)


@pytest.mark.parametrize("place", ["handler", "pipe", "limiter", "on_stop", "on_restart", "enter"])
@virtual
async def test_rule_14_no_task_outlives_the_system_though_it_swallows_every_cancellation(place):
    deaf = Deaf(asyncio.CancelledError)
    closed = []

    class Manager:
        async def __aenter__(self):
            pass

        async def __aexit__(self, *_):
            closed.append(place)
            if place == "enter":
                await deaf.work()

    class Stubborn(Puppet):
        async def on_start(self):
            await self.ctx.enter(Manager())

    if place.startswith("on_"):
        setattr(Stubborn, place, deaf.work)
    system = ActorSystem(shutdown=2)
    await system.__aenter__()
    ref = await system.spawn(Stubborn, "stubborn")
    sibling = await system.spawn(Puppet)
    asked = None
    if place == "handler":
        asked = asyncio.ensure_future(ref.ask(Do(deaf.work), timeout=1000))
    elif place == "pipe":
        ref.tell(Call(lambda a: a.ctx.pipe(deaf.work(), print) and None))
    elif place == "limiter":
        asked = asyncio.ensure_future(
            ref.ask(Call(lambda a: a.ctx.limiter(1).submit(deaf.work, timeout=1) and None), timeout=1000)
        )
    elif place == "on_restart":
        ref.tell(Boom())
    await run_until_idle()
    with pytest.raises(ShutdownTimeout, match="/stubborn would not end within 2 s, though killed"):
        await system.__aexit__(None, None, None)
    assert not ref.is_alive
    assert not sibling.is_alive
    assert closed == [place]
    if asked is not None:
        assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], ActorError)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.filterwarnings("ignore:.*ignored in.*Deaf.work:pytest.PytestUnraisableExceptionWarning")
@virtual
async def test_rule_14_not_even_one_that_swallows_everything_outlives_the_system():
    deaf = Deaf(BaseException)
    system = ActorSystem(shutdown=2)
    await system.__aenter__()
    ref = await system.spawn(Puppet, "stubborn")
    sibling = await system.spawn(Puppet)
    ref.tell(Do(deaf.work))
    await run_until_idle()
    with pytest.raises(ShutdownTimeout, match="/stubborn would not end"):
        await system.__aexit__(None, None, None)
    assert not ref.is_alive
    assert not sibling.is_alive
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()  # Python complains about the coroutine here, inside this test


# Rule 17: odd times


@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
@virtual
async def test_rule_17_times_that_are_none_are_refused(seconds):
    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        ref = await system.spawn(Puppet)
        for use in (
            lambda a: a.ctx.timers.start("t", seconds, 1),
            lambda a: a.ctx.timers.start("t", 0, 1, repeat=True),
            lambda a: a.ctx.receive_timeout(seconds),
            lambda a: a.ctx.receive_timeout(0),
        ):
            with pytest.raises(ValueError, match=r"delay|receive_timeout"):
                await ref.ask(Call(use))


# Rule 5 and 10: one slot, many senders, restarts


@virtual
async def test_rule_5_one_slot_many_senders_and_restarts():
    class Tiny(Puppet, mailbox=1):
        pass

    diary = []
    slow = OneForOne(max_restarts=100, within=1000, backoff=Backoff(1, 1))
    async with ActorSystem(supervise=slow) as system:
        ref = await system.spawn(lambda: Tiny(diary))
        messages = [Do(crash) if n % 7 == 3 else n for n in range(60)]
        sending = [asyncio.ensure_future(ref.send(message)) for message in messages]
        await run_until_idle()
        gone = [n for n in range(30, 60, 4) if n % 7 != 3]
        for n in gone:
            sending[n].cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await asyncio.sleep(100)
        assert diary == [n for n in range(60) if n % 7 != 3 and n not in gone]
        assert system.dead_letters.total == 0


@virtual
async def test_rule_12_actors_that_watch_each_other_and_themselves_end_quietly():
    async with ActorSystem() as system:
        refs = [await system.spawn(Puppet, f"p{n}") for n in range(100)]
        for ref in refs:
            for other in refs:
                ref.cell.context.watch(other)
        told = refs[0]
        for ref in refs[1:]:
            ref.stop()
        await run_until_idle()
        diary = await told.ask(Call(lambda a: a.diary))
        assert sorted(s.ref.path for s in diary) == sorted(ref.path for ref in refs[1:])


# Rules 17 and 22: what came from the signal lane, kept


@pytest.mark.parametrize("end", ["unstash", "stop"])
@virtual
async def test_rule_22_the_message_of_a_timer_or_a_pipe_can_be_stashed(end):
    class Keeper(Puppet):
        @on(str)
        def keep(self, message):
            if self.state:
                self.diary.append(message)
            else:
                self.ctx.stash()

        @on(bytes)
        def later(self, message):
            self.ctx.timers.start("t", 1, "of a timer")
            self.ctx.pipe(asyncio.sleep(1), lambda _: "of a pipe")

    letters = []
    async with ActorSystem() as system:
        system.dead_letters.subscribe(lambda letter: letters.append((letter.reason, letter.message)))
        ref = await system.spawn(Keeper)
        ref.tell(b"")
        await asyncio.sleep(2)
        if end == "unstash":
            await ref.ask(Call(lambda a: (setattr(a, "state", True), a.ctx.unstash_all())))
            assert sorted(await ref.ask(Call(lambda a: a.diary))) == ["of a pipe", "of a timer"]
        else:
            ref.stop()
            await ref.terminated()
            assert sorted(letters) == [("stopped", "of a pipe"), ("stopped", "of a timer")]


@virtual
async def test_rule_22_work_for_a_timers_message_can_be_limited():
    class Limited(Puppet):
        def on_start(self):
            self.limiter = self.ctx.limiter(1)
            for n in range(3):
                self.ctx.timers.start(n, 1, str(n))

        @on(str)
        def work(self, message):
            self.limiter.submit(lambda: asyncio.sleep(10))

    async with ActorSystem() as system:
        ref = await system.spawn(Limited)
        await asyncio.sleep(5)
        ref.stop()
        await ref.terminated()
        assert system.dead_letters.counts == {"stopped": 2}


# Rule 1 and 14


@virtual
async def test_rule_1_a_ref_in_a_copied_message_is_the_same_ref():
    @dataclasses.dataclass
    class Letter:
        sender: Ref[int]

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        assert dataclasses.asdict(Letter(ref)) == {"sender": ref}
        assert copy.copy(ref) is ref
        with pytest.raises(TypeError, match="of this process only"):
            pickle.dumps(ref)


@virtual
async def test_rule_3_one_instance_is_the_actor_of_one_ref():
    puppet = Puppet()
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: puppet, "first")
        with pytest.raises(SpecError, match="the actor of /first"):
            await system.spawn(lambda: puppet, "second")
        ref.stop()
        await ref.terminated()
        assert await (await system.spawn(lambda: puppet, "second")).ask(1) == 1


@virtual
async def test_rule_14_an_actor_cannot_wait_for_the_end_of_its_system():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        with pytest.raises(ActorError, match="cannot wait for the end of its system"):
            await ref.ask(Do(lambda _: system.__aexit__(None, None, None)))
        # But it can begin it, and not wait.
        begun = Call(lambda _: [asyncio.ensure_future(system.__aexit__(None, None, None))])
        await (await ref.ask(begun))[0]
        assert not ref.is_alive


async def test_rule_6_long_deadlines_of_answered_asks_take_no_room():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        for n in range(5000):
            await ref.ask(n, timeout=1000 + n)
        late = [asyncio.ensure_future(ref.ask(3600.0, timeout=10_000 + n)) for n in range(5)]
        for n in range(5000):
            with pytest.raises(asyncio.CancelledError):
                await cancelled(ref, 20_000 + n)
        assert len(system.scheduler.wheel.buckets) < 2000
        assert sum(map(len, system.scheduler.wheel.buckets.values())) == 5
        ref.kill()
        assert all(isinstance(e, ActorStopped) for e in await asyncio.gather(*late, return_exceptions=True))


async def cancelled(ref, timeout):
    question = asyncio.ensure_future(ref.ask(1, timeout))
    await asyncio.sleep(0)
    question.cancel()
    await question
