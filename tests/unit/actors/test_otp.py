"""What users of OTP expect: significant children, kept specs, a registry, timers of a fixed rate."""

import asyncio
import time

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    ChildSpec,
    NameTaken,
    OneForOne,
    SpecError,
    on,
)
from actors.testing import run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, virtual


def spawn(spec):
    return Do(lambda a: a.ctx.spawn(spec))


def parent_of(auto_shutdown):
    class Parent(Puppet):
        supervise = OneForOne(auto_shutdown=auto_shutdown)

    return Parent


@pytest.mark.parametrize("end", ["stop", "kill", "finish", "fail"])
@virtual
async def test_a_parent_stops_when_its_significant_child_has_ended(end):
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet)
        restart = "temporary" if end == "fail" else "transient"
        child = await parent.ask(spawn(ChildSpec("main", Puppet, restart=restart, significant=True)))
        if end == "fail":
            child.tell(Boom())
        elif end == "finish":
            child.tell(Call(lambda a: a.ctx.finish()))
        else:
            getattr(child, end)()
        await parent.terminated()


@virtual
async def test_a_restart_of_a_significant_child_stops_no_parent():
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet)
        child = await parent.ask(spawn(ChildSpec("main", Puppet, restart="transient", significant=True)))
        child.tell(Boom())
        assert await child.ask(1) == 1
        assert parent.is_alive


@virtual
async def test_a_parent_can_wait_for_the_last_significant_child():
    async with ActorSystem() as system:
        parent = await system.spawn(parent_of("all"))
        children = [
            await parent.ask(spawn(ChildSpec(name, Puppet, restart="transient", significant=name != "c")))
            for name in "abc"
        ]
        children[0].stop()
        await children[0].terminated()
        await run_until_idle()
        assert parent.is_alive
        children[1].stop()
        await parent.terminated()


def test_a_permanent_child_cannot_be_significant():
    with pytest.raises(SpecError, match="permanent child never ends"):
        ChildSpec("main", Puppet, significant=True)
    with pytest.raises(SpecError, match="auto_shutdown"):
        OneForOne(auto_shutdown="some")


@virtual
async def test_a_child_is_started_again_by_its_kept_spec():
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet)
        child = await parent.ask(spawn(ChildSpec("c", Puppet, keep=True)))

        async def too_early(actor):
            with pytest.raises(SpecError, match="keeps no spec"):
                await actor.ctx.restart_child("c")

        await parent.ask(Do(too_early))
        child.stop()
        await child.terminated()
        assert await parent.ask(Call(lambda a: list(a.ctx.kept))) == ["c"]
        again = await parent.ask(Do(lambda a: a.ctx.restart_child("c")))
        assert again.path == child.path
        assert again.incarnation > child.incarnation
        assert await again.ask(1) == 1
        again.kill()
        await again.terminated()
        assert await parent.ask(Call(lambda a: a.ctx.forget("c"))) is True
        assert await parent.ask(Call(lambda a: a.ctx.forget("c"))) is False


@virtual
async def test_the_system_restarts_what_it_kept():
    async with ActorSystem() as system:
        ref = await system.spawn(ChildSpec("top", Puppet, keep=True))
        ref.stop()
        await ref.terminated()
        assert await (await system.restart_child("top")).ask(2) == 2
        with pytest.raises(SpecError):
            await system.restart_child("other")


@virtual
async def test_the_registry_finds_living_actors_by_key():
    async with ActorSystem() as system:
        registry = system.registry
        ann, bob = await system.spawn(Puppet), await system.spawn(Puppet)
        registry.register(("user", 1), ann)
        registry.register(("user", 1), ann)
        registry.register("admin", ann)
        with pytest.raises(NameTaken, match="is registered as"):
            registry.register("admin", bob)
        ann.tell(Boom())
        await run_until_idle()
        assert registry.find(("user", 1), Puppet) is ann  # a restart keeps it
        with pytest.raises(SpecError, match="is a Puppet"):
            registry.find("admin", type("Other", (Actor,), {}))
        assert registry.unregister("admin")
        assert not registry.unregister("admin")
        ann.stop()
        await ann.terminated()
        assert registry.find(("user", 1)) is None
        assert len(registry) == 0
        with pytest.raises(ActorStopped):
            registry.register("late", ann)
        registry.register("admin", bob)
        assert "admin" in registry


@pytest.mark.parametrize("fixed", [False, True])
@virtual
async def test_a_timer_of_a_fixed_rate_does_not_drift(fixed):
    times = []

    class Ticks(Actor):
        def on_start(self):
            self.ctx.timers.start("t", 10, "tick", repeat=True, fixed_rate=fixed)

        @on(str)
        def tick(self, _):
            loop = asyncio.get_running_loop()
            times.append(loop.time())
            if len(times) == 2:
                loop.advance(25)  # the loop was held up: two ticks are missed

    async with ActorSystem() as system:
        await system.spawn(Ticks)
        await asyncio.sleep(75)
    assert times[:2] == [10, 20]
    assert times[2:] == ([45, 50, 60, 70] if fixed else [45, 55, 65, 75])


async def test_a_timer_of_a_fixed_rate_keeps_its_rate_in_real_time():
    ticks = []

    class Ticks(Actor):
        def on_start(self):
            self.ctx.timers.start("t", 0.02, "tick", fixed_rate=True)

        @on(str)
        def tick(self, _):
            ticks.append(time.monotonic())
            if len(ticks) == 11:
                done.set()

    done = asyncio.Event()
    async with ActorSystem() as system:
        await system.spawn(Ticks)
        await done.wait()
    late = ticks[-1] - ticks[0]
    assert late >= 0.19
