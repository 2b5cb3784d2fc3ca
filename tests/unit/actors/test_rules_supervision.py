"""Rules 7 to 10: kinds of failure, supervision, strategies, restarts; and the pure functions below them."""

import asyncio

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    Backoff,
    ChildSpec,
    Failed,
    HandlerCancelled,
    History,
    OneForAll,
    OneForOne,
    Reject,
    Restarted,
    RestForOne,
    SpecError,
    Terminated,
    on,
)
from actors.errors import Finished
from actors.supervision import Intensity, Streak
from actors.testing import Probe, run, run_until_idle
from tests.unit.actors.kit import Boom, Boss, Call, Do, Puppet, crash, reject, virtual


async def staff(system, supervise, *, restart="permanent", count=3):
    """A supervisor and its children, each with a diary."""

    class Chief(Boss):
        pass

    Chief.supervise = supervise
    chief = await system.spawn(Chief, "chief")
    diaries = [[] for _ in range(count)]

    async def hire(actor):
        return [
            await actor.ctx.spawn(ChildSpec(f"c{i}", lambda i=i: Diarist(diaries[i]), restart=restart))
            for i in range(count)
        ]

    return chief, await chief.ask(Do(hire)), diaries


class Diarist(Puppet):
    """Writes down its own life."""

    async def on_start(self):
        self.diary.append("start")

    def on_stop(self):
        self.diary.append("stop")

    async def on_restart(self, exc):
        self.diary.append(f"restart after {exc}")


@virtual
@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_07_reject_goes_to_the_asker_and_the_actor_lives(kind):
    async with ActorSystem(supervise=OneForOne(max_restarts=0)) as system:
        ref = await system.spawn(Puppet)
        serial = await ref.ask(Do(lambda a: a.serial))
        with pytest.raises(Reject, match="no"):
            await ref.ask(kind(reject))
        ref.tell(kind(reject))
        assert await ref.ask(Do(lambda a: a.serial)) == serial
        assert system.dead_letters.counts == {"unhandled": 1}


@virtual
@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_07_any_other_exception_reaches_the_asker_and_fails_the_actor(kind):
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        ref = await system.spawn(Puppet)
        serial = await ref.ask(Do(lambda a: a.serial))
        with pytest.raises(Boom, match="crash"):
            await ref.ask(kind(crash))
        assert await ref.ask(Do(lambda a: a.serial)) > serial

        def stop_iteration(_):
            raise StopIteration

        with pytest.raises(RuntimeError):
            await ref.ask(kind(stop_iteration))


@virtual
async def test_rule_07_a_stray_cancellation_is_a_failure():
    async def cancelled(_):
        raise asyncio.CancelledError

    async with ActorSystem() as system:
        probe = await Probe.start(system)
        boss = await system.spawn(Boss)
        ref = await boss.ask(Do(lambda a: a.ctx.spawn(Puppet)))
        with pytest.raises(HandlerCancelled):
            await ref.ask(Do(cancelled))
        assert await ref.ask(1) == 1
        failed = (await boss.ask(Do(lambda a: a.diary)))[0]
        assert isinstance(failed.error, HandlerCancelled)
        assert failed.action == "restart"
        assert probe.received == []


@pytest.mark.parametrize("kind", [Do, Call])
@pytest.mark.parametrize("exc", [KeyboardInterrupt, SystemExit])
def test_rule_07_keyboard_interrupt_and_system_exit_stop_the_system(kind, exc):
    ended = []

    class Closing(Puppet):
        def on_stop(self):
            ended.append(self)

    async def main():
        def interrupt(_):
            raise exc

        async with ActorSystem() as system:
            await system.spawn(Closing)
            ref = await system.spawn(Puppet)
            with pytest.raises(ActorStopped):
                await ref.ask(kind(interrupt))
            await asyncio.sleep(1000)

    with pytest.raises(exc):
        run(main())
    assert len(ended) == 1


@virtual
async def test_rule_07_a_failing_message_is_not_tried_again():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        tried = []

        def fail(_):
            tried.append(1)
            raise Boom

        ref = await system.spawn(Puppet)
        ref.tell(Call(fail))
        ref.tell(Do(fail))
        await ref.ask(1)
        assert len(tried) == 2


@virtual
async def test_rule_08_a_busy_parent_does_not_delay_a_restart():
    async with ActorSystem() as system:
        chief, (child, *_), _ = await staff(system, OneForOne())
        chief.tell(60.0)
        await run_until_idle()
        with pytest.raises(Boom):
            await child.ask(Do(crash))
        assert await child.ask(1) == 1
        assert asyncio.get_running_loop().time() == 0
        await asyncio.sleep(61)
        signals = [type(s) for s in await chief.ask(Do(lambda a: a.diary))]
        assert signals == [float, Failed, Restarted]


@virtual
@pytest.mark.parametrize(
    ("error", "action"),
    [
        (TimeoutError(), "restart"),
        (PermissionError(), "stop"),
        (FileNotFoundError(), "resume"),
        (ValueError(), "restart"),
        (Boom(), "escalate"),
    ],
)
async def test_rule_08_the_decider_as_a_mapping_takes_the_nearest_type(error, action):
    decide = {OSError: "resume", PermissionError: "stop", TimeoutError: "restart", Boom: "escalate"}
    async with ActorSystem(supervise=OneForOne(max_restarts=5)) as system:
        probe = await Probe.start(system)
        chief, (child, *_), diaries = await staff(system, OneForOne(decide=decide))
        probe.watch(child)
        serial = await child.ask(Do(lambda a: a.serial))
        child.tell(error)
        await run_until_idle()
        if action in ("stop", "escalate"):
            assert (await probe.expect(Terminated)).reason == ("failed" if action == "stop" else "stopped")
            assert diaries[0][-1] == "stop"
        else:
            assert (await child.ask(Do(lambda a: a.serial)) == serial) is (action == "resume")
        if action != "escalate":
            signals = await chief.ask(Do(lambda a: [s for s in a.diary if isinstance(s, Failed)]))
            assert signals == [Failed(child, error, action)]


@virtual
async def test_rule_08_the_decider_as_a_function_sees_the_history():
    seen = []

    def decide(error, history):
        seen.append((str(error), history))
        return "stop" if history.failures == 3 else "restart"

    async with ActorSystem() as system:
        _, (child, *_), _ = await staff(system, OneForOne(max_restarts=10, decide=decide))
        for _ in range(3):
            child.tell(Do(crash))
        await child.terminated()
        assert seen == [("crash", History(i + 1, i)) for i in range(3)]


@virtual
async def test_rule_08_a_decider_that_fails_escalates():
    def decide(error, history):
        raise ZeroDivisionError

    async with ActorSystem() as system:
        chief, (child, *_), _ = await staff(system, OneForOne(decide=decide))
        child.tell(Do(crash))
        await child.terminated()
        assert await chief.ask(Do(lambda a: a.diary)) == []  # the chief itself was restarted


@virtual
@pytest.mark.parametrize(
    ("strategy", "restarted"), [(OneForOne, {1}), (OneForAll, {0, 1, 2}), (RestForOne, {1, 2})]
)
async def test_rule_09_strategies(strategy, restarted):
    async with ActorSystem() as system:
        chief, refs, diaries = await staff(system, strategy())
        for i, diary in enumerate(diaries):
            diary.clear()
            refs[i].tell(i)
        await run_until_idle()
        refs[1].tell(Do(crash))
        await run_until_idle()
        for i, diary in enumerate(diaries):
            expected = ["restart after crash", "start"] if i in restarted else []
            assert diary == [i, *expected]
        signals = await chief.ask(Do(lambda a: a.diary))
        assert [s.ref for s in signals if isinstance(s, Restarted)] == [refs[i] for i in sorted(restarted)]
        assert list(await chief.ask(Do(lambda a: a.ctx.children))) == ["c0", "c1", "c2"]


@virtual
async def test_rule_09_a_group_goes_down_in_reverse_and_comes_up_in_order():
    async with ActorSystem() as system:

        class Chief(Boss):
            supervise = OneForAll()

        diary = []

        class Child(Puppet):
            def __init__(self, name):
                super().__init__()
                self.name = name

            def on_start(self):
                diary.append(f"+{self.name}")

            def on_restart(self, exc):
                diary.append(f"-{self.name}")

        chief = await system.spawn(Chief)
        refs = [await chief.ask(Do(lambda a, n=n: a.ctx.spawn(lambda: Child(n)))) for n in "abc"]
        refs[0].tell(Do(crash))
        await run_until_idle()
        assert diary == ["+a", "+b", "+c", "-c", "-b", "-a", "+a", "+b", "+c"]


@virtual
async def test_rule_09_a_group_waits_for_the_message_in_hand_and_takes_the_busy_by_force_in_time():
    async with ActorSystem() as system:
        _, refs, diaries = await staff(system, OneForAll())
        refs[0].tell(1.0)
        stuck = asyncio.ensure_future(refs[2].ask(1000.0, timeout=2000))
        await run_until_idle()
        refs[1].tell(Do(crash))
        await asyncio.sleep(0.5)
        assert diaries[0] == ["start"]
        with pytest.raises(ActorStopped):
            await stuck  # its shutdown time is 5 s
        assert asyncio.get_running_loop().time() == pytest.approx(5)
        await run_until_idle()
        assert diaries[0] == ["start", 1.0, "restart after crash", "start"]
        assert diaries[2] == ["start", "restart after crash", "start"]


@virtual
@pytest.mark.parametrize("strategy", [OneForAll, RestForOne])
async def test_rule_09_temporary_members_of_a_group_are_not_restarted(strategy):
    async with ActorSystem() as system:
        chief = await system.spawn(Boss)
        chief.cell.actor.supervise = strategy()
        first = await chief.ask(Do(lambda a: a.ctx.spawn(Puppet)))
        spec = ChildSpec("t", Puppet, restart="temporary")
        temporary = await chief.ask(Do(lambda a: a.ctx.spawn(spec)))
        first.tell(Do(crash))
        await temporary.terminated()
        assert await first.ask(1) == 1


@virtual
@pytest.mark.parametrize(
    ("restart", "after_failure", "after_finish"),
    [("permanent", True, True), ("transient", True, False), ("temporary", False, False)],
)
async def test_rule_09_restart_types(restart, after_failure, after_finish):
    async with ActorSystem() as system:
        for event, survives in ((Do(crash), after_failure), (Do(lambda a: a.ctx.finish()), after_finish)):
            chief, (child, *_), diaries = await staff(system, OneForOne(), restart=restart)
            child.tell(event)
            await run_until_idle()
            assert child.is_alive is survives
            if survives:
                assert diaries[0].count("start") == 2
                failed = (await chief.ask(Do(lambda a: a.diary)))[0]
                assert isinstance(failed.error, Boom | Finished)
            child.stop()  # final, whatever the type
            await child.terminated()
            chief.stop()
            await chief.terminated()


@virtual
async def test_rule_09_one_restart_too_many_fails_the_supervisor():
    async with ActorSystem(supervise=OneForOne(max_restarts=1)) as system:
        chief, (child, other, _), _ = await staff(system, OneForOne(max_restarts=2, within=10))
        serial = await chief.ask(Do(lambda a: a.serial))
        for i in range(3):
            await asyncio.sleep(4 * i)  # at 0, 4 and 12 s: never three within 10 s
            (child, other)[i % 2].tell(Do(crash))
            await run_until_idle()
        assert await chief.ask(Do(lambda a: a.serial)) == serial
        child.tell(Do(crash))
        other.tell(Do(crash))
        await other.terminated()
        await run_until_idle()
        assert await chief.ask(Do(lambda a: (a.serial > serial, a.ctx.children))) == (True, {})


def test_rule_09_at_the_root_it_leaves_the_block_with_the_error():
    async def main():
        async with ActorSystem(supervise=OneForOne(max_restarts=1)) as system:
            chief, (child, *_), _ = await staff(system, OneForOne(decide={Boom: "escalate"}))
            child.tell(Do(crash))
            await child.terminated()
            await run_until_idle()
            child = await chief.ask(Do(lambda a: a.ctx.spawn(Puppet)))
            child.tell(Do(crash))
            await asyncio.sleep(1000)

    with pytest.raises(Boom, match="crash") as caught:
        run(main())
    assert caught.value.__notes__ == ["/chief failed; / allows 1 restarts within 5 s, and that was one more"]


@virtual
async def test_rule_09_an_escalation_does_not_wait_for_the_handler_of_the_supervisor():
    async with ActorSystem() as system:
        chief, (child, *_), _ = await staff(system, OneForOne(decide={Boom: "escalate"}))
        busy = asyncio.ensure_future(chief.ask(1000.0, timeout=2000))
        await run_until_idle()
        child.tell(Do(crash))
        with pytest.raises(Boom):
            await busy
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_rule_09_a_group_restart_counts_once_and_every_failed_attempt_counts():
    async with ActorSystem(supervise=OneForOne(max_restarts=100)) as system:
        chief, refs, _ = await staff(system, OneForAll(max_restarts=2, within=1000))
        serial = await chief.ask(Do(lambda a: a.serial))
        for _ in range(2):
            refs[0].tell(Do(crash))
            await run_until_idle()
        assert await chief.ask(Do(lambda a: a.serial)) == serial

        starts = []

        def flaky():
            starts.append(asyncio.get_running_loop().time())
            if len(starts) in (2, 3):
                raise Boom("no start")
            return Puppet()

        chief = await system.spawn(Boss)
        chief.cell.actor.supervise = OneForOne(max_restarts=3, within=1000)
        child = await chief.ask(Do(lambda a: a.ctx.spawn(flaky)))
        child.tell(Do(crash))
        await run_until_idle()
        assert len(starts) == 4  # the first, two attempts that failed, one that did not
        assert len(chief.cell.extras.intensity.times) == 3
        assert await child.ask(1) == 1


@virtual
async def test_rule_09_backoff_grows_and_is_reset_by_quiet():
    async with ActorSystem() as system:
        loop = asyncio.get_running_loop()
        strategy = OneForOne(max_restarts=100, within=60, backoff=Backoff(1, 4))
        _, (child, *_), _ = await staff(system, strategy)
        waits = []
        for quiet in (0, 0, 0, 0, 100):
            await asyncio.sleep(quiet)
            child.tell(Do(crash))
            started = loop.time()
            await child.ask(1, timeout=20)
            waits.append(loop.time() - started)
        assert waits == [1, 2, 4, 4, 1]


def test_rule_09_the_formula_of_backoff():
    backoff = Backoff(0.2, 10, jitter=0.5)
    assert [backoff.delay(n, 0) for n in (0, 1, 2, 6, 1000)] == [0.2, 0.4, 0.8, 10, 10]
    assert backoff.delay(0, 0.5) == pytest.approx(0.25)
    assert backoff.delay(100, 1) == pytest.approx(15)


def test_rule_09_the_window_slides():
    window, strategy = Intensity(), OneForOne(max_restarts=2, within=10)
    assert [window.exceeded(strategy, t) for t in (0, 5, 10, 12)] == [False, False, False, True]
    streak = Streak()
    assert [streak.failed(strategy, t).failures for t in (0, 5, 14, 30)] == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ChildSpec("", Puppet), "must not be empty"),
        (lambda: ChildSpec("a/b", Puppet), "'/'"),
        (lambda: ChildSpec(Puppet, "a"), "the name comes first"),
        (lambda: ChildSpec("a", Puppet()), "not an actor"),
        (lambda: ChildSpec("a", Puppet, restart="always"), "permanent, transient or temporary"),
        (lambda: ChildSpec("a", Puppet, shutdown=-1), "shutdown=-1"),
        (lambda: OneForOne(max_restarts=-1), "max_restarts=-1"),
        (lambda: OneForAll(within=0), "within=0"),
        (lambda: OneForOne(decide={"x": "stop"}), "not an exception type"),
        (lambda: OneForOne(decide={ValueError: "retry"}), "'retry' is not one of"),
        (lambda: OneForOne(decide=3), "mapping of exception types"),
        (lambda: Backoff(-1, 2), "min=-1"),
        (lambda: Backoff(2, 1), "max must not be less"),
        (lambda: Backoff(1, 2, jitter=-1), "jitter=-1"),
        (lambda: Backoff(1, 2, reset_after=0), "reset_after=0"),
    ],
)
def test_rule_09_each_illegal_declaration_has_its_own_message(make, words):
    with pytest.raises(SpecError, match=words.replace("(", "\\(")):
        make()


def test_rule_09_an_illegal_class_is_refused_when_it_is_defined():
    with pytest.raises(SpecError, match="mailbox=-1"):
        type("Bad", (Actor,), {}, mailbox=-1)
    with pytest.raises(SpecError, match="overflow='block'"):
        type("Bad", (Actor,), {}, overflow="block")
    with pytest.raises(SpecError, match="supervise"):
        type("Bad", (Actor,), {"supervise": "one_for_one"})
    with pytest.raises(SpecError, match="give one or more message classes"):
        on("str")
    with pytest.raises(SpecError, match="both handle int"):
        type("Bad", (Actor,), {"a": on(int)(lambda s, m: 1), "b": on(int)(lambda s, m: 2)})
    with pytest.raises(SpecError, match=r"no @on\(int\) handler"):

        class Bad(Actor[int | str]):
            @on(str)
            def text(self, _): ...


@virtual
async def test_rule_10_a_restart_keeps_ref_mailbox_and_watchers_and_loses_state():
    async with ActorSystem() as system:
        probe = await Probe.start(system)
        _, (child, *_), diaries = await staff(system, OneForOne(backoff=Backoff(1, 1)))
        probe.watch(child)
        await child.ask(Do(lambda a: setattr(a, "state", "kept?")))
        await child.ask(Do(lambda a: a.ctx.timers.start("t", 0.5, 99)))
        grandchild = await child.ask(Do(lambda a: a.ctx.spawn(Puppet)))
        other = await system.spawn(Puppet)
        await child.ask(Do(lambda a: a.ctx.watch(other)))
        child.tell(Do(crash))
        child.tell(1)
        asking = asyncio.ensure_future(child.ask(Do(lambda a: a.state)))
        await run_until_idle()
        assert not grandchild.is_alive
        assert diaries[0] == ["start", "restart after crash"]  # the mailbox is suspended
        assert child.is_alive
        assert system.find("/chief/c0") is child
        assert await asking is None
        other.stop()
        await asyncio.sleep(1)
        assert diaries[0] == ["start", "restart after crash", "start", 1]
        assert await probe.expect(Restarted) == Restarted(child, 1)  # watchers learn of it too
        child.stop()
        assert await probe.expect(Terminated) == Terminated(child, "stopped")


@virtual
async def test_rule_10_the_suspended_mailbox_is_still_bounded():
    class Small(Puppet, mailbox=2):
        pass

    async with ActorSystem(supervise=OneForOne(backoff=Backoff(1, 1))) as system:
        ref = await system.spawn(Small)
        ref.tell(Do(crash))
        await run_until_idle()
        sender = asyncio.ensure_future(asyncio.gather(*(ref.send(i) for i in range(3))))
        await run_until_idle()
        assert not sender.done()
        assert system.tree().children[0].depth == 2
        assert system.tree().children[0].phase == "restarting"
        await sender
        assert asyncio.get_running_loop().time() == 1


@virtual
async def test_rule_10_a_failed_first_start_goes_to_the_spawner():
    class Bad(Puppet):
        async def on_start(self):
            self.child = await self.ctx.spawn(Puppet)
            await self.ctx.enter(manager)
            raise Boom("start")

    class BadInit(Puppet):
        def __init__(self):
            raise Boom("init")

    class Manager:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            closed.append(self)

    manager, closed = Manager(), []
    async with ActorSystem(supervise=OneForOne(max_restarts=0)) as system:
        for bad in (Bad, BadInit):
            with pytest.raises(Boom):
                await system.spawn(bad, "bad")
            assert system.find("/bad") is None
        assert len(closed) == 1

    async with ActorSystem(supervise=OneForOne(max_restarts=1)) as system:
        boss = await system.spawn(Boss)
        with pytest.raises(Boom):
            await boss.ask(Do(lambda a: a.ctx.spawn(Bad)))
        assert len(closed) == 2


@virtual
async def test_rule_10_spawn_soon_supervises_the_first_start():
    starts = []

    def flaky():
        starts.append(1)
        if len(starts) < 3:
            raise Boom("init")
        return Puppet()

    async with ActorSystem() as system:
        boss = await system.spawn(Boss)
        child = await boss.ask(Call(lambda a: a.ctx.spawn_soon(flaky, "soon")))
        assert await child.ask(5) == 5
        assert [type(s) for s in await boss.ask(Do(lambda a: a.diary))] == [Failed, Failed, Restarted]
        soon = system.spawn_soon(Puppet)
        soon.tell(1)
        assert await soon.ask(2) == 2


@virtual
async def test_rule_10_a_cancelled_spawn_kills_the_child():
    class Slow(Puppet):
        async def on_start(self):
            await asyncio.sleep(100)

    async with ActorSystem() as system:
        spawning = asyncio.ensure_future(system.spawn(Slow, "slow"))
        await run_until_idle()
        spawning.cancel()
        await run_until_idle()
        assert system.find("/slow") is None
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_rule_10_stop_and_kill_end_a_backoff():
    async with ActorSystem(supervise=OneForOne(backoff=Backoff(100, 100))) as system:
        for how in ("stop", "kill"):
            ref = await system.spawn(Puppet)
            ref.tell(Do(crash))
            await run_until_idle()
            getattr(ref, how)()
            await ref.terminated()
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_rule_09_a_temporary_child_that_fails_stops_and_counts_for_nothing():
    class Strict(Puppet):
        supervise = OneForOne(max_restarts=0, within=60)

    async with ActorSystem() as system:
        boss = await system.spawn(Strict)
        for n in range(3):
            spec = ChildSpec(f"c{n}", Puppet, restart="temporary")
            child = await boss.ask(Do(lambda a, spec=spec: a.ctx.spawn(spec)))
            child.tell(Boom(n))
            await child.terminated()
        diary = await boss.ask(Do(lambda a: a.diary))
        assert [type(s).__name__ for s in diary] == ["Failed", "Terminated"] * 3
        assert {s.action for s in diary[::2]} == {"stop"}
        assert [(s.reason, s.error.args) for s in diary[1::2]] == [("failed", (n,)) for n in range(3)]
        assert system.tree().children[0].restarts == 0
