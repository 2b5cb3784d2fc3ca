"""Rules 11 to 14 and 19: stopping, watching, dead letters, structured concurrency, phases of a shutdown."""

import asyncio
import contextlib
import logging

import anyio
import pytest

from actors import (
    ActorStopped,
    ActorSystem,
    ChildSpec,
    DeadLetter,
    LinkBroken,
    OneForOne,
    ShutdownTimeout,
    Terminated,
)
from actors.kernel import scheduler
from actors.testing import Probe, run, run_until_idle
from tests.unit.actors.kit import Boom, Boss, Call, Do, Puppet, crash, virtual


class Tree(Puppet):
    """Grows children by a description and writes down its end."""

    def __init__(self, name, diary, children=(), on_stop=None):
        super().__init__()
        self.name, self.diary, self.children, self.ending = name, diary, children, on_stop

    async def on_start(self):
        for child in self.children:
            await self.ctx.spawn(lambda child=child: Tree(self.name + child, self.diary), child)

    async def on_stop(self):
        self.diary.append(self.name)


class Closing:
    def __init__(self, diary, name="closed", seconds=0):
        self.diary, self.name, self.seconds = diary, name, seconds

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await asyncio.sleep(self.seconds)
        self.diary.append(self.name)


@virtual
async def test_rule_11_stop_ends_after_the_message_in_hand():
    async with ActorSystem() as system:
        letters, diary = [], []
        system.dead_letters.subscribe(letters.append)
        ref = await system.spawn(lambda: Tree("t", diary))
        ref.tell(1.0)
        ref.tell(1)
        await run_until_idle()
        ref.stop()
        ref.stop()
        ref.tell(2)
        assert ref.is_alive
        await ref.terminated()
        ref.tell(3)
        ref.stop()
        assert diary == [1.0, "t"]
        assert letters == [DeadLetter("stopped", n, ref, None) for n in (2, 1, 3)]
        assert asyncio.get_running_loop().time() == 1


@virtual
async def test_rule_11_an_actor_can_stop_itself_from_a_plain_handler():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Tree("t", diary))
        for message in (1, Call(lambda a: a.ctx.self.stop()), 2):
            ref.tell(message)
        await ref.terminated()
        assert diary == [1, "t"]


@virtual
async def test_rule_11_drain_handles_everything_accepted_and_refuses_the_rest():
    class Small(Puppet, mailbox=2):
        pass

    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Small(diary))
        ref.tell(1.0)
        await run_until_idle()
        ref.tell(1)
        answer = asyncio.ensure_future(ref.ask(2))
        waiting = asyncio.ensure_future(ref.send(3))
        await run_until_idle()
        ref.drain()
        ref.drain()
        ref.tell(4)
        with pytest.raises(ActorStopped):
            await ref.ask(5)
        assert await answer == 2
        with pytest.raises(ActorStopped):
            await waiting
        await ref.terminated()
        assert diary == [1.0, 1, 2]


@virtual
async def test_rule_11_drain_survives_a_restart():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Puppet(diary))
        for message in (Do(crash), 1, Do(crash), 2):
            ref.tell(message)
        ref.drain()
        await ref.terminated()
        assert diary == [1, 2]


@virtual
async def test_rule_11_kill_cancels_the_handlers_of_the_whole_subtree():
    async with ActorSystem() as system:
        diary, cancelled = [], []

        async def work(name):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

        ref = await system.spawn(lambda: Tree("t", diary, "ab"))
        children = [system.find(f"/{ref.name}/{name}") for name in "ab"]
        for each in (ref, *children):
            each.tell(Do(lambda a: work(a.name)))
            await each.cell.context.enter(Closing(diary, f"closed {each.name}"))
        await run_until_idle()
        ref.kill()
        ref.kill()
        await ref.terminated()
        assert sorted(cancelled) == ["t", "ta", "tb"]
        assert diary == [
            "closed b",
            "closed a",
            f"closed {ref.name}",
        ]  # no on_stop; what was entered is closed
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_rule_11_kill_reaches_a_handler_that_has_not_taken_its_first_step(monkeypatch):
    monkeypatch.setattr(scheduler, "EAGER", False)
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        asking = asyncio.ensure_future(ref.ask(1000.0))
        while ref.cell.task is None:  # noqa: ASYNC110 - no event tells of this instant
            await asyncio.sleep(0)
        assert ref.cell.fresh
        ref.kill()
        with pytest.raises(ActorStopped):
            await asking
        await ref.terminated()


@virtual
async def test_rule_11_kill_comes_again_for_a_handler_that_swallows_it():
    async def stubborn():
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        ref.tell(Do(lambda a: stubborn()))
        await run_until_idle()
        ref.kill()
        await ref.terminated()
        assert asyncio.get_running_loop().time() < 5


@virtual
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_rule_11_a_tree_can_be_deeper_than_the_stack(how):
    async with ActorSystem() as system:
        top = ref = await system.spawn(Puppet)
        for _ in range(3000):
            ref = await ref.cell.context.spawn(Puppet)
        getattr(top, how)()
        await top.terminated()
        assert not ref.is_alive


@virtual
async def test_rule_11_stop_with_grace_becomes_a_kill():
    async with ActorSystem() as system:
        slow, quick = await system.spawn(Puppet), await system.spawn(Puppet)
        slow.tell(1000.0)
        quick.tell(1.0)
        await run_until_idle()
        slow.stop(grace=2)
        quick.stop(grace=2)
        await quick.terminated()
        assert asyncio.get_running_loop().time() == 1
        await slow.terminated()
        assert asyncio.get_running_loop().time() == 2


@virtual
async def test_rule_11_children_first_in_reverse_start_order():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Tree("t", diary, "abc"))
        ref.stop()
        await ref.terminated()
        assert diary == ["tc", "tb", "ta", "t"]


@virtual
async def test_rule_11_each_child_has_its_shutdown_time():
    async with ActorSystem() as system:
        boss = await system.spawn(Boss)
        specs = [ChildSpec("quick", Puppet, shutdown=1), ChildSpec("slow", Puppet, shutdown=None)]
        quick, slow = [await boss.ask(Do(lambda a, s=s: a.ctx.spawn(s))) for s in specs]
        ended = []

        async def note(ref):
            await ref.terminated()
            ended.append((ref.name, asyncio.get_running_loop().time()))

        quick.tell(1000.0)
        slow.tell(100.0)
        notes = asyncio.gather(note(quick), note(slow))
        await run_until_idle()
        boss.stop()
        await boss.terminated()
        await notes
        assert ended == [("slow", 100), ("quick", 101)]


@virtual
async def test_rule_11_the_order_of_an_end():
    events = []

    class Target(Puppet):
        def on_stop(self):
            events.append("on_stop")

    class Watching(Puppet):
        def signal(self, signal):
            assert self.ctx.system.find("/boss/target") is None
            events.append(f"{self.ctx.self.name} told")

    Watching.__init_subclass__()
    async with ActorSystem() as system:
        system.dead_letters.subscribe(lambda letter: events.append("mailbox"))
        boss = await system.spawn(Watching, "boss")
        watcher = await system.spawn(Watching, "watcher")
        target = await boss.ask(Do(lambda a: a.ctx.spawn(Target, "target")))
        await target.ask(Do(lambda a: a.ctx.spawn(lambda: Tree("child", events))))
        await watcher.ask(Do(lambda a: a.ctx.watch(target)))
        target.tell(1.0)
        target.tell(1)
        await run_until_idle()
        target.stop()
        await target.terminated()
        await run_until_idle()
        assert events == ["child", "on_stop", "mailbox", "watcher told", "boss told"]


@virtual
async def test_rule_11_a_stop_during_the_start_ends_it_after_on_start_and_a_kill_at_once():
    class Slow(Puppet):
        async def on_start(self):
            await asyncio.sleep(10)

    async with ActorSystem() as system:
        for how, took in (("stop", 10), ("kill", 0)):
            started = asyncio.get_running_loop().time()
            spawning = asyncio.ensure_future(system.spawn(Slow, how))
            await run_until_idle()
            getattr(system.find(f"/{how}"), how)()
            with pytest.raises(ActorStopped):
                await spawning
            assert asyncio.get_running_loop().time() - started == took


@virtual
async def test_rule_11_kill_during_on_stop_cancels_it():
    class Slow(Puppet):
        async def on_stop(self):
            await asyncio.sleep(100)

    async with ActorSystem() as system:
        ref = await system.spawn(Slow)
        ref.stop()
        await run_until_idle()
        ref.kill()
        await ref.terminated()
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_rule_11_errors_of_the_ending_are_logged_and_stop_nothing(caplog):
    class Bad(Puppet):
        def on_stop(self):
            raise Boom("on_stop")

        def on_restart(self, exc):
            raise Boom("on_restart")

    class BadManager:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            raise Boom("close")

    async with ActorSystem() as system:
        ref = await system.spawn(Bad)
        await ref.ask(Do(lambda a: a.ctx.enter(BadManager())))
        ref.tell(Do(crash))
        await ref.ask(1)
        ref.stop()
        await ref.terminated()
    errors = [str(r.exc_info[1]) for r in caplog.records if r.levelno == logging.ERROR]
    assert errors == ["on_restart", "close", "on_stop"]


@virtual
async def test_rule_11_a_manager_that_does_not_close_is_given_up():
    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(Puppet)
        await ref.ask(Do(lambda a: a.ctx.enter(Closing(diary, seconds=1000))))
        ref.kill()
        await ref.terminated()
        assert diary == []
        assert asyncio.get_running_loop().time() == 5


@virtual
async def test_rule_11_actors_that_end_start_no_children():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        refused = []

        async def late(actor):
            await asyncio.sleep(1)
            try:
                await actor.ctx.spawn(Puppet)
            except ActorStopped:
                refused.append(1)

        ref.tell(Do(late))
        await run_until_idle()
        ref.stop()
        await ref.terminated()
        assert refused == [1]
    with pytest.raises(ActorStopped):
        await system.spawn(Puppet)


@virtual
async def test_rule_12_terminated_arrives_exactly_once_also_of_the_dead_and_never_after_unwatch():
    async with ActorSystem() as system:
        diary = []
        watcher = await system.spawn(lambda: Boss(diary))
        dead, twice, unwatched, killed = [await system.spawn(Puppet, name) for name in "abcd"]
        dead.stop()
        await dead.terminated()

        def watch(actor):
            for ref in (dead, twice, twice, unwatched, killed):
                actor.ctx.watch(ref)

        await watcher.ask(Call(watch))
        await watcher.ask(Call(lambda a: a.ctx.unwatch(unwatched)))
        twice.stop()
        unwatched.stop()
        killed.kill()
        await run_until_idle()
        assert diary == [
            Terminated(dead, "stopped"),
            Terminated(twice, "stopped"),
            Terminated(killed, "killed"),
        ]


@virtual
async def test_rule_12_a_terminated_that_is_on_its_way_is_taken_back_by_unwatch():
    async with ActorSystem() as system:
        diary = []
        watcher = await system.spawn(lambda: Boss(diary))
        target, child = await system.spawn(Puppet), await watcher.ask(Do(lambda a: a.ctx.spawn(Puppet)))

        async def work(actor):
            actor.ctx.watch(target)
            await asyncio.sleep(1)
            actor.ctx.unwatch(target)
            actor.ctx.unwatch(child)

        asking = asyncio.ensure_future(watcher.ask(Do(work)))
        await run_until_idle()
        target.stop()
        child.stop()
        await child.terminated()
        await asking
        await run_until_idle()
        assert diary == []


@virtual
async def test_rule_12_a_parent_that_watches_its_child_is_told_once():
    async with ActorSystem() as system:
        diary = []
        boss = await system.spawn(lambda: Boss(diary))
        children = [await boss.ask(Do(lambda a: a.ctx.spawn(Puppet))) for _ in range(2)]
        await boss.ask(Call(lambda a: a.ctx.watch(children[0])))
        await boss.ask(Call(lambda a: a.ctx.unwatch(children[1])))
        for child in children:
            child.stop()
        await run_until_idle()
        assert diary == [Terminated(children[0], "stopped")]


@virtual
async def test_rule_12_linked_actors_share_a_bad_end_but_not_an_ordinary_one():
    async with ActorSystem() as system:
        boss = await system.spawn(Boss)
        boss.cell.actor.supervise = OneForOne(decide={Boom: "stop", LinkBroken: "stop"})

        async def pair():
            refs = [await boss.ask(Do(lambda a: a.ctx.spawn(Puppet))) for _ in range(2)]
            await refs[0].ask(Call(lambda a: a.ctx.link(refs[1])))
            return refs

        for end, shared in (
            (lambda ref: ref.tell(Do(crash)), True),
            (lambda ref: ref.kill(), True),
            (lambda ref: ref.stop(), False),
        ):
            for one in (0, 1):
                refs = await pair()
                refs[1 - one].tell(1000.0)  # even a busy one, at once
                await run_until_idle()
                end(refs[one])
                await run_until_idle()
                assert refs[1 - one].is_alive is not shared
        refs = await pair()
        await refs[0].ask(Call(lambda a: a.ctx.unlink(refs[1])))
        refs[1].kill()
        await run_until_idle()
        assert refs[0].is_alive
        with pytest.raises(ActorStopped):
            await refs[0].ask(Call(lambda a: a.ctx.link(refs[1])))


@virtual
async def test_rule_13_dead_letters_are_typed_counted_published_and_never_kept(caplog):
    async with ActorSystem() as system:
        letters = []
        unsubscribe = system.dead_letters.subscribe(letters.append)
        probe = await Probe.start(system)
        system.dead_letters.subscribe(probe.ref)
        ref = await system.spawn(Puppet, "p")
        sender = await system.spawn(Puppet, "sender")
        ref.stop()
        await ref.terminated()
        await sender.ask(Call(lambda a: ref.tell(1)))
        assert letters == [DeadLetter("stopped", 1, ref, sender)]
        assert await probe.expect(DeadLetter) == letters[0]
        unsubscribe()
        unsubscribe()
        for i in range(1000):
            ref.tell(i)
        assert system.dead_letters.counts == {"stopped": 1001}
        assert len(letters) == 1
        assert len([r for r in caplog.records if r.message.startswith("dead letter")]) == 10
        await asyncio.sleep(11)
        ref.tell(1)
        assert "991 more were not logged" in caplog.text


@virtual
async def test_rule_13_a_subscriber_in_trouble_makes_no_more_dead_letters():
    async with ActorSystem() as system:

        def fail(letter):
            raise Boom

        gone = await system.spawn(Puppet)
        for subscriber in (fail, gone):
            system.dead_letters.subscribe(subscriber)
        gone.stop()
        await gone.terminated()
        gone.tell(1)
        assert system.dead_letters.counts == {"stopped": 2}  # the message, and what its own letter came to


def test_rule_14_the_system_owns_every_task():
    async def main():
        async with ActorSystem(shutdown=1) as system:
            for _ in range(10):
                ref = await system.spawn(lambda: Tree("t", [], "ab"))
                await ref.ask(1)
                ref.cell.context.pipe(asyncio.sleep(1000), lambda _: None)
                ref.cell.context.timers.start("t", 500, 1)
                ref.tell(1000.0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert system.tree().children == []
        return asyncio.get_running_loop().time()

    assert run(main()) == 1  # busy handlers had their deadline


def test_rule_14_an_error_in_the_block_ends_the_actors_and_passes():
    diary = []

    async def main():
        async with ActorSystem() as system:
            await system.spawn(lambda: Tree("t", diary))
            raise Boom("block")

    with pytest.raises(Boom, match="block"):
        run(main())
    assert diary == ["t"]


@pytest.mark.parametrize("how", ["task", "scope"])
def test_rule_14_leaving_is_shielded_from_cancellation(how):
    diary = []

    class Slow(Tree):
        async def on_stop(self):
            await asyncio.sleep(5)
            self.diary.append("stopped")

    async def block():
        async with ActorSystem() as system:
            await system.spawn(lambda: Slow("t", diary))
            await asyncio.sleep(1000)

    async def by_task():
        task = asyncio.ensure_future(block())
        await run_until_idle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def by_scope():
        with anyio.move_on_after(1) as scope:
            await block()
        assert scope.cancelled_caught

    run(by_task() if how == "task" else by_scope())
    assert diary == ["stopped"]


@virtual
async def test_rule_14_a_second_cancellation_hurries():
    async def block():
        async with ActorSystem() as system:
            ref = await system.spawn(Puppet)
            ref.tell(1000.0)
            await asyncio.sleep(1000)

    task = asyncio.ensure_future(block())
    await run_until_idle()
    task.cancel()
    await asyncio.sleep(1)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() == 1


def test_rule_14_what_will_not_die_is_named():
    ended = asyncio.Event()

    async def immortal(_):
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main():
        try:
            async with ActorSystem(shutdown=2) as system:
                ref = await system.spawn(Puppet, "zombie")
                ref.tell(Do(immortal))
                await run_until_idle()
        finally:
            ended.set()
            await asyncio.sleep(3)

    with pytest.raises(ShutdownTimeout, match="/zombie"):
        run(main())


@virtual
async def test_rule_14_a_closed_system_takes_no_more_and_is_used_once():
    system = ActorSystem()
    with pytest.raises(ActorStopped):
        await system.spawn(Puppet)
    with pytest.raises(ActorStopped):
        system.tree()
    async with system:
        ref = await system.spawn(Puppet)
    with pytest.raises(ActorStopped):
        await ref.ask(1)
    with pytest.raises(Exception, match="used once"):
        await system.__aenter__()


@virtual
async def test_rule_19_shutdown_phases_in_order_with_deadlines(caplog):
    events = []

    class Last(Puppet):
        def on_stop(self):
            events.append("actors")

    async def slow():
        events.append("slow")
        await asyncio.sleep(1000)

    async def bad():
        raise Boom("flush")

    system = ActorSystem()
    async with system:
        await system.spawn(Last)
        system.on_shutdown("flush_telemetry", lambda: events.append("telemetry"))
        system.on_shutdown("flush_log", bad)
        system.on_shutdown("flush_log", lambda: events.append("log"))
        system.on_shutdown("drain", lambda: events.append("drain"))
        system.on_shutdown("stop_admitting", slow, timeout=2)
        system.on_shutdown("stop_listening", lambda: events.append("listening"))
        with pytest.raises(ValueError, match="no phase"):
            system.on_shutdown("coffee", lambda: None)
    assert events == ["listening", "slow", "drain", "actors", "log", "telemetry"]
    assert asyncio.get_running_loop().time() == 2
    assert "took more than 2 s" in caplog.text
    assert "flush" in caplog.text


@virtual
async def test_rule_19_an_exception_of_a_phase_leaves_the_block_where_it_was_registered_so():
    events = []

    async def bad():
        events.append("bad")
        raise Boom("flush")

    async def slow():
        await asyncio.sleep(1000)

    async def leave(*callbacks, by=None):
        async with ActorSystem() as system:
            for callback in callbacks:
                system.on_shutdown("flush_log", callback, timeout=2, raises=True)
            system.on_shutdown("flush_telemetry", lambda: events.append("telemetry"))
            if by is not None:
                raise by

    with pytest.raises(Boom):
        await leave(bad, slow)
    assert events == ["bad", "telemetry"]
    with pytest.raises(ShutdownTimeout, match=r"flush_log: .*slow.* took more than 2 s"):
        await leave(slow)
    with pytest.raises(ZeroDivisionError):
        await leave(bad, by=ZeroDivisionError())


@virtual
async def test_rule_19_what_swallows_its_cancellation_holds_up_no_phase():
    events = []

    async def deaf():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async with ActorSystem() as system:
        system.on_shutdown("drain", deaf, timeout=2)
        system.on_shutdown("flush_log", lambda: events.append(asyncio.get_running_loop().time()))
    assert events == [3]
    await run_until_idle()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_rule_19_the_later_phases_come_though_actors_will_not_end():
    ended, events = asyncio.Event(), []

    async def immortal(_):
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main():
        try:
            async with ActorSystem(shutdown=2) as system:
                system.on_shutdown("flush_log", lambda: events.append("log"))
                (await system.spawn(Puppet)).tell(Do(immortal))
                await run_until_idle()
        finally:
            ended.set()
            await asyncio.sleep(3)

    with pytest.raises(ShutdownTimeout):
        run(main())
    assert events == ["log"]


@virtual
async def test_rule_19_a_second_cancellation_cuts_the_phases_before_the_end_short():
    events = []

    async def slow(name):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            events.append(f"{name} cut")
            raise
        events.append(name)

    async def main():
        async with ActorSystem() as system:
            system.on_shutdown("drain", lambda: slow("drain"), timeout=1000)
            system.on_shutdown("flush_log", lambda: slow("flush"), timeout=1000)

    task = asyncio.ensure_future(main())
    for _ in range(2):
        await run_until_idle()
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["drain cut", "flush"]
    assert asyncio.get_running_loop().time() == pytest.approx(100)
