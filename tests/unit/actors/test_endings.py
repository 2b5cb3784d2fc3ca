"""Every ending is bounded: hooks have time limits, kill counts in each phase, force ends what hangs."""

import asyncio
import contextlib
import itertools
import logging
import math

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    Backoff,
    ChildSpec,
    HandlerTimeout,
    HookTimeout,
    OneForAll,
    OneForOne,
    RestForOne,
    SpecError,
    on,
)
from actors.testing import run, run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, virtual

FOREVER = 1e9


def now():
    return asyncio.get_running_loop().time()


async def sleep_forever(*_):
    await asyncio.sleep(FOREVER)


class HangingStop(Puppet):
    async def on_stop(self):
        await asyncio.sleep(FOREVER)


@pytest.mark.parametrize("how", ["stop", "restart"])
@virtual
async def test_the_shutdown_time_of_an_idle_child_is_kept(how):
    """D1"""
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet)
        spec = ChildSpec("child", HangingStop, shutdown=1)
        child = await parent.ask(Do(lambda a: a.ctx.spawn(spec)))
        began = now()
        parent.stop() if how == "stop" else parent.tell(Boom())
        await child.terminated()
        assert now() - began <= 1.1
        if how == "stop":
            await parent.terminated()
        else:
            assert await parent.ask(1) == 1
        assert now() - began <= 1.1


@virtual
async def test_an_actor_stopped_by_its_ref_has_a_limit_for_on_stop_too(caplog):
    """D1"""
    async with ActorSystem() as system:
        ref = await system.spawn(HangingStop, "slow")
        ref.stop()
        await ref.terminated()
        assert 5 <= now() < 5.1
    assert "/slow: on_stop took more than 5 s" in caplog.text


@virtual
async def test_a_hanging_close_of_an_idle_child_ends_with_its_parent():
    """D1: a tool service whose `aclose` hangs held the close of the system for 30 s."""

    class Resource:
        async def __aenter__(self): ...

        async def __aexit__(self, *_):
            await asyncio.sleep(FOREVER)

    class Service(Actor):
        async def on_start(self):
            await self.ctx.enter(Resource())

    async with ActorSystem() as system:
        await system.spawn(ChildSpec("tools", Service, shutdown=1))
    assert now() < 8


@pytest.mark.parametrize("order", ["kill", "stop"])
@virtual
async def test_an_order_in_the_first_step_of_a_handler_is_kept(order):
    """D3: lost on 3.12 and 3.13, where a task takes its first step at once."""

    class Suicidal(Actor):
        @on(str)
        async def end(self, _):
            getattr(self.ctx.self, order)()
            await asyncio.sleep(FOREVER if order == "kill" else 1)

    async with ActorSystem() as system:
        ref = await system.spawn(Suicidal)
        ref.tell("now")
        await ref.terminated()
        assert now() <= 1


@pytest.mark.parametrize("strategy", [OneForAll, RestForOne])
@virtual
async def test_a_kill_in_a_group_restart_begins_no_other_on_restart(strategy):
    """D4"""
    begun = []

    class Member(Puppet):
        def __init__(self, name):
            super().__init__()
            self.name = name

        async def on_restart(self, exc):
            begun.append(self.name)
            await asyncio.sleep(FOREVER)

    class Chief(Puppet):
        supervise = strategy()

        async def on_start(self):
            for name in "abc":
                spec = ChildSpec(name, lambda name=name: Member(name), shutdown=50)
                await self.ctx.spawn(spec)

    async with ActorSystem() as system:
        chief = await system.spawn(Chief)
        children = await chief.ask(Call(lambda a: list(a.ctx.children.values())))
        children[0].tell(Boom())
        await run_until_idle()
        assert begun == ["c"]
        chief.kill()
        await chief.terminated()
        assert begun == ["c"]
        assert now() == 0


@virtual
async def test_one_member_of_a_group_restart_can_be_killed_while_another_backs_off():
    """D4, its relative: the culprit backs off, its sibling waits for it."""

    class Chief(Puppet):
        supervise = OneForAll(backoff=Backoff(1000, 1000))

        async def on_start(self):
            for name in "ab":
                await self.ctx.spawn(Puppet, name)

    async with ActorSystem() as system:
        chief = await system.spawn(Chief)
        children = await chief.ask(Call(lambda a: a.ctx.children))
        children["a"].tell(Boom())
        await run_until_idle()
        children["b"].kill()
        await children["b"].terminated()
        assert now() == 0
        assert await children["a"].ask(1, timeout=2000) == 1
        assert now() == 1000


@pytest.mark.parametrize("order", ["stop", "kill"])
@virtual
async def test_an_order_during_on_restart_does_not_wait_for_the_backoff(order):
    """D4, its relative"""

    class Slow(Puppet):
        async def on_restart(self, exc):
            await asyncio.sleep(1)

    async with ActorSystem(supervise=OneForAll(backoff=Backoff(1000, 1000))) as system:
        culprit = await system.spawn(Puppet)
        ref = await system.spawn(Slow)
        culprit.tell(Boom())
        await run_until_idle()
        getattr(ref, order)()
        await ref.terminated()
        assert now() == (1 if order == "stop" else 0)


@virtual
async def test_on_restart_has_a_time_limit(caplog):
    """D4"""

    class Stuck(Puppet):
        on_restart = sleep_forever

    async with ActorSystem() as system:
        ref = await system.spawn(Stuck)
        ref.tell(Boom())
        assert await ref.ask(1, timeout=60) == 1
        assert 5 <= now() < 5.1
    assert "on_restart took more than 5 s" in caplog.text


@pytest.mark.parametrize("limit", ["class", "spec"])
@virtual
async def test_a_start_that_takes_too_long_fails(limit):
    class Slow(Puppet, start_timeout=7):
        on_start = sleep_forever

    async with ActorSystem() as system:
        spec = ChildSpec("slow", Slow, start_timeout=2 if limit == "spec" else None)
        seconds = 2 if limit == "spec" else 7
        with pytest.raises(HookTimeout, match=f"/slow: on_start took more than {seconds} s"):
            await system.spawn(spec)
        assert seconds <= now() < seconds + 0.1
        assert system.children == {}


@virtual
async def test_a_kill_given_by_the_plain_part_of_a_hook_counts():
    class Suicidal(Puppet):
        def on_start(self):
            self.ctx.self.kill()
            return asyncio.sleep(FOREVER)

    async with ActorSystem() as system:
        with pytest.raises(ActorStopped):
            await system.spawn(Suicidal)
        assert now() == 0


@virtual
async def test_a_hook_that_returns_a_future_is_awaited():
    class Starts(Puppet):
        def on_start(self):
            return asyncio.ensure_future(asyncio.sleep(3))

    async with ActorSystem() as system:
        await system.spawn(Starts)
        assert now() == 3


@virtual
async def test_a_handler_that_swallows_its_cancellation_is_closed_by_force():
    class Deaf(Puppet):
        @on(str)
        async def work(self, _):
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(FOREVER)

    async with ActorSystem() as system:
        ref = await system.spawn(Deaf)
        asked = asyncio.ensure_future(ref.ask("x", timeout=1000))
        await run_until_idle()
        ref.kill()
        await ref.terminated()
        assert now() < 12
        with pytest.raises(ActorStopped):
            await asked


@virtual
async def test_last_words_reach_a_sibling_that_drains():
    """D12"""
    diary = []

    class Talks(Puppet):
        def on_stop(self):
            for word in (1.0, 7):  # the first keeps it busy for a second
                self.ctx.system.find("/top/store").tell(word)

    async with ActorSystem() as system:
        top = await system.spawn(Puppet, "top")
        spec = ChildSpec("store", lambda: Puppet(diary), drain=True)
        await top.ask(Do(lambda a: a.ctx.spawn(spec)))
        await top.ask(Do(lambda a: a.ctx.spawn(Talks, "talks")))
        top.stop()
        await top.terminated()
        assert diary == [1.0, 7]
        assert system.dead_letters.total == 0


# The matrix: phase x order x strategy x what hangs


def hang(swallows):
    async def work(*_):
        while True:
            try:
                await asyncio.sleep(FOREVER)
            except asyncio.CancelledError:
                if not swallows:
                    raise

    return work


class Hanging:
    def __init__(self, work):
        self.work = work

    async def __aenter__(self): ...

    async def __aexit__(self, *_):
        await self.work()


SHUTDOWN, GRACE, FORCE = 2, 3, 12
HOOKS = ["none", "on_start", "on_stop", "on_restart", "close"]
PHASES = [
    "starting",
    "idle",
    "sync",
    "async",
    "eager",
    "pipe",
    "restarting",
    "backing off",
    "stopping",
    "closing",
]
ORDERS = ["stop", "grace", "drain", "kill", "parent restart", "parent stop", "parent kill", "sibling fails"]
STRATEGIES = [OneForOne, OneForAll, RestForOne]


def make_victim(phase, hook, work, lives):
    class Victim(Actor, start_timeout=4):
        def on_start(self):
            lives.append(self)
            return self.begin()

        async def begin(self):
            if hook == "close" or phase == "closing":
                await self.ctx.enter(Hanging(work))
            first = len(lives) == 1
            if hook == "on_start" and (phase != "starting") != first:
                await work()
            if phase == "starting" and first:
                await work()

        @on(str)
        def handle(self, message):
            if message == "crash":
                raise Boom
            if message == "pipe":
                self.ctx.pipe(work(), lambda _: None)
            if message == "order":
                self.ctx.self.kill()

        @on(float)
        async def wait(self, _):
            await work()

        @on(int)
        async def eager(self, _):
            self.ctx.self.kill()
            await work()

    if hook in ("on_stop", "on_restart"):
        setattr(Victim, hook, work)
    return Victim


async def life(phase, order, strategy, hook, swallows):
    lives, work = [], hang(swallows)
    victim_class = make_victim(phase, hook, work, lives)

    class Parent(Puppet, start_timeout=100):
        supervise = strategy(
            max_restarts=3, within=1000, backoff=Backoff(FOREVER, FOREVER) if phase == "backing off" else None
        )

        async def on_start(self):
            self.ctx.spawn_soon(ChildSpec("elder", Puppet, shutdown=SHUTDOWN))
            self.ctx.spawn_soon(ChildSpec("victim", victim_class, shutdown=SHUTDOWN))
            self.ctx.spawn_soon(ChildSpec("younger", Puppet, shutdown=SHUTDOWN))

    async with ActorSystem(supervise=OneForOne(max_restarts=100), shutdown=60) as system:
        parent = await system.spawn(ChildSpec("parent", Parent, shutdown=30))
        await run_until_idle()
        family = {name: system.find(f"/parent/{name}") for name in ("elder", "victim", "younger")}
        victim = family["victim"]
        message = {
            "sync": "order",
            "async": 1.0,
            "eager": 1,
            "pipe": "pipe",
            "restarting": "crash",
            "backing off": "crash",
        }
        asked = []
        if phase in message:
            asked.append(asyncio.ensure_future(victim.ask(message[phase], timeout=500)))
            asked.append(asyncio.ensure_future(victim.ask("next", timeout=500)))
        elif phase in ("stopping", "closing"):
            victim.stop()
        await run_until_idle()
        if order == "grace":
            victim.stop(grace=GRACE)
        elif order in ("stop", "drain", "kill"):
            getattr(victim, order)()
        elif order == "sibling fails":
            family["elder"].tell(Boom())
        elif order == "parent restart":
            parent.tell(Boom())
        else:
            getattr(parent, order.partition(" ")[2])()
        began = now()
        # A drain or a stop does not cut short a handler or a pipe; that is what a kill is for.
        patient = order in ("stop", "drain") and phase in ("async", "pipe")
        patient |= order == "drain" and phase == "backing off"  # which first handles what it has accepted
        limit = 40 if order == "drain" else 0
        limit += 4 + SHUTDOWN + 5 + 2 * FORCE + GRACE
        if order == "parent stop":
            await asyncio.wait_for(parent.terminated(), 2 * limit)
        elif order in ("sibling fails", "parent restart"):
            await asyncio.wait_for(settle(system, family), 2 * limit)
        elif not patient:
            await asyncio.wait_for(victim.terminated(), limit)
        assert now() - began <= 2 * limit
        closing = now()
    assert now() - closing <= 2 * limit
    assert system.tree().children == []
    await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def settle(system, family):
    """Wait until no actor starts, restarts or stops any more, but for a backoff without an end."""
    settled = ("running", "restarting", "failed")
    while any(info.phase not in settled for info in system.tree().children):  # noqa: ASYNC110
        await asyncio.sleep(1)


CASES = [
    case
    for case in itertools.product(PHASES, ORDERS, HOOKS, (False, True))
    if not (
        case[2] == "none" and case[3] and case[0] in ("idle", "sync", "restarting", "backing off", "stopping")
    )
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("phase", PHASES)
def test_every_ending_is_within_its_limits(phase, strategy):
    """2,280 lives on the virtual clock: phase x order x strategy x what hangs x whether it swallows."""
    logging.disable(logging.CRITICAL)
    try:
        for case in [case for case in CASES if case[0] == phase]:
            _, order, hook, swallows = case
            try:
                run(life(phase, order, strategy, hook, swallows))
            except BaseException as exc:
                exc.add_note(f"{case}")
                raise
    finally:
        logging.disable(logging.NOTSET)


class Limited(Actor, handler_timeout=3):
    """Waits as many seconds as it is told; a string is answered at once."""

    @on(float)
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"

    @on(str)
    def echo(self, text: str) -> str:
        return text


@pytest.mark.parametrize("first", [(), (1.0, 1.0, 2.5)], ids=["first", "later"])
@virtual
async def test_a_handler_over_its_limit_fails_its_actor(first):
    """Each handler has the whole limit, also those that one task handles one after another."""
    async with ActorSystem() as system:
        ref = await system.spawn(Limited)
        short = [asyncio.ensure_future(ref.ask(seconds, timeout=math.inf)) for seconds in first]
        hung = asyncio.ensure_future(ref.ask(FOREVER, timeout=math.inf))
        after = asyncio.ensure_future(ref.ask("after", timeout=math.inf))
        with pytest.raises(HandlerTimeout, match=r"the handler of float took over 3 s"):
            await hung
        assert now() == pytest.approx(sum(first) + 3)
        assert await after == "after"
        assert [await answer for answer in short] == ["waited"] * len(first)


@pytest.mark.parametrize("how", ["stop", "drain"])
@virtual
async def test_a_handler_over_its_limit_does_not_keep_its_actor_from_ending(how):
    """An actor may end itself in the handler that hangs: no shutdown time bounds that."""
    async with ActorSystem() as system:
        ref = await system.spawn(ChildSpec("limited", Limited, shutdown=None))
        hung = asyncio.ensure_future(ref.ask(FOREVER, timeout=math.inf))
        await run_until_idle()
        ref.stop() if how == "stop" else ref.drain()
        with pytest.raises(HandlerTimeout):
            await hung
        await ref.terminated()
        assert now() == pytest.approx(3)


@virtual
async def test_a_handler_within_its_limit_leaves_no_timer():
    """The limit is that of one message: what comes after it is not cancelled by its timer."""
    async with ActorSystem() as system:
        ref = await system.spawn(Limited)
        for _ in range(3):
            assert await ref.ask(2.9, timeout=math.inf) == "waited"
        pending = [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]
        assert not [handle for handle in pending if "overdue" in repr(handle)]


def test_a_handler_timeout_must_be_positive():
    with pytest.raises(SpecError, match="handler_timeout=0"):
        type("Wrong", (Actor,), {}, handler_timeout=0)
