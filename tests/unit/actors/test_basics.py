"""The basic promises on an ordinary event loop; the rules are tested one by one on the virtual clock."""

import asyncio
import math

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    AskTimeout,
    Backoff,
    ChildSpec,
    DeadLetter,
    DeadlockError,
    Failed,
    MailboxFull,
    NameTaken,
    OneForAll,
    OneForOne,
    Reject,
    Restarted,
    RestForOne,
    SpecError,
    Terminated,
    Unhandled,
    on,
)


class Boom(Exception):
    pass


class Worker(Actor):
    """Echoes, counts, crashes, sleeps, on request."""

    def __init__(self):
        self.count = 0
        self.seen = []

    @on(int)
    def number(self, n):
        self.seen.append(n)
        return n

    @on(str)
    async def word(self, word):
        if word == "crash":
            raise Boom(word)
        if word == "reject":
            raise Reject("no")
        if word == "seen":
            return self.seen
        if word == "forever":
            await asyncio.sleep(1000)
        await asyncio.sleep(0)
        self.seen.append(word)
        return word.upper()

    @on(asyncio.Event)
    async def wait(self, event):
        await event.wait()

    @on(float)
    def plain_crash(self, _):
        raise Boom("plain")


class Boss(Actor):
    supervise = OneForOne(max_restarts=3, within=60)
    restart = "permanent"
    factory = Worker

    async def on_start(self):
        self.signals = []
        self.staff = [
            await self.ctx.spawn(ChildSpec(f"w{i}", self.factory, restart=self.restart)) for i in range(3)
        ]

    @on(Failed, Restarted, Terminated)
    def signal(self, signal):
        self.signals.append(signal)

    @on(str)
    def get(self, what):
        return getattr(self, what)


async def test_tell_and_ask_plain_and_async():
    async with ActorSystem() as system:
        worker = await system.spawn(Worker, "w")
        worker.tell(1)
        worker.tell("two")
        await worker.send(3)
        assert await worker.ask(4) == 4
        assert await worker.ask("seen") == [1, "two", 3, 4]
        assert worker.path == "/w"
        assert system.find("/w") is worker


async def test_what_an_ask_can_raise():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        worker = await system.spawn(Worker, "w")
        with pytest.raises(Boom):
            await worker.ask("crash")
        with pytest.raises(Boom):
            await worker.ask(1.5)
        with pytest.raises(Reject):
            await worker.ask("reject")
        with pytest.raises(Unhandled):
            await worker.ask(b"bytes")
        with pytest.raises(AskTimeout):
            await worker.ask("forever", timeout=0.01)
        asyncio.get_running_loop().call_later(0.02, worker.kill)
        with pytest.raises(ActorStopped):
            await worker.ask(1, timeout=math.inf)
        await worker.terminated()
        with pytest.raises(ActorStopped):
            await worker.ask(1)


async def test_the_parent_learns_of_failures_and_the_child_lives_on():
    async with ActorSystem() as system:
        boss = await system.spawn(Boss, "boss")
        worker = (await boss.ask("staff"))[0]
        with pytest.raises(Boom):
            await worker.ask("crash")
        assert await worker.ask("seen") == []
        failed, restarted = await boss.ask("signals")
        assert failed.ref is worker
        assert failed.action == "restart"
        assert restarted == Restarted(worker, 1)
        worker.stop()
        await worker.terminated()
        assert (await boss.ask("signals"))[-1] == Terminated(worker, "stopped", None)


async def test_intensity_escalates_to_the_block():
    async def crash():
        async with ActorSystem(supervise=OneForOne(max_restarts=0)) as system:
            worker = await system.spawn(Worker)
            worker.tell("crash")
            await asyncio.sleep(1000)

    with pytest.raises(Boom) as caught:
        await crash()
    assert "one more" in caught.value.__notes__[0]


@pytest.mark.parametrize(("strategy", "restarted"), [(OneForAll, {0, 1, 2}), (RestForOne, {1, 2})])
async def test_group_strategies(strategy, restarted):
    class Group(Boss):
        supervise = strategy(max_restarts=3, within=60)

    async with ActorSystem() as system:
        boss = await system.spawn(Group)
        staff = await boss.ask("staff")
        for i, worker in enumerate(staff):
            await worker.ask(i)
        with pytest.raises(Boom):
            await staff[1].ask("crash")
        fresh = {i for i, worker in enumerate(staff) if await worker.ask("seen") == []}
        assert fresh == restarted
        assert [type(s) for s in await boss.ask("signals")] == [Failed] + [Restarted] * len(restarted)


async def test_decide_by_mapping_and_restart_types():
    class Stops(Boss):
        supervise = OneForOne(decide={Boom: "stop"})

    class Resumes(Boss):
        supervise = OneForOne(decide=lambda exc, history: "resume")

    class Temporary(Boss):
        restart = "temporary"

    async with ActorSystem() as system:
        for cls, alive, seen in ((Stops, False, None), (Resumes, True, [1]), (Temporary, False, None)):
            worker = (await (await system.spawn(cls)).ask("staff"))[0]
            await worker.ask(1)
            with pytest.raises(Boom):
                await worker.ask("crash")
            if alive:
                assert await worker.ask("seen") == seen
            else:
                await worker.terminated()


async def test_backoff_suspends_the_mailbox():
    class Slow(Boss):
        supervise = OneForOne(backoff=Backoff(0.05, 1))

    async with ActorSystem() as system:
        worker = (await (await system.spawn(Slow)).ask("staff"))[0]
        worker.tell("crash")
        started = asyncio.get_running_loop().time()
        assert await worker.ask(7) == 7
        assert asyncio.get_running_loop().time() - started >= 0.05


async def test_bounded_mailbox_tell_raises_and_send_waits():
    class Small(Worker, mailbox=2):
        pass

    async with ActorSystem() as system:
        small = await system.spawn(Small)
        gate = asyncio.Event()
        small.tell(gate)
        await asyncio.sleep(0)
        small.tell(1)
        small.tell(2)
        with pytest.raises(MailboxFull):
            small.tell(3)
        first = asyncio.create_task(small.send(3))
        second = asyncio.create_task(small.send(4))
        third = asyncio.create_task(small.ask(5))
        await asyncio.sleep(0)
        second.cancel()
        gate.set()
        await first
        assert await third == 5
        assert await small.ask("seen") == [1, 2, 3, 5]


async def test_stop_drain_and_kill():
    letters = []
    async with ActorSystem() as system:
        system.dead_letters.subscribe(letters.append)
        gate = asyncio.Event()
        refs = {how: await system.spawn(Worker, how) for how in ("stop", "drain", "kill")}
        seen = {how: ref.cell.actor.seen for how, ref in refs.items()}
        for ref in refs.values():
            ref.tell(gate)
            ref.tell(1)
            ref.tell(2)
        await asyncio.sleep(0.01)
        for how, ref in refs.items():
            getattr(ref, how)()
            getattr(ref, how)()
            ref.tell(3)
        await refs["kill"].terminated()
        assert refs["stop"].is_alive
        gate.set()
        await refs["stop"].terminated()
        await refs["drain"].terminated()
        assert seen == {"stop": [], "drain": [1, 2], "kill": []}
        lost = {how: [x.message for x in letters if x.target is ref] for how, ref in refs.items()}
        assert lost == {"stop": [3, 1, 2], "drain": [3], "kill": [3, 1, 2]}
        assert {x.reason for x in letters} == {"stopped"}


async def test_deadlock_is_an_error_at_once():
    class Asker(Actor):
        def __init__(self):
            self.other = None

        @on(Actor)
        def nobody(self, _): ...

        @on(tuple)
        async def go(self, path):
            head, *rest = path
            return await head.ask(tuple(rest))

    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        a, b, c = [await system.spawn(Asker, name) for name in "abc"]
        with pytest.raises(DeadlockError, match="/a asks /b asks /c asks /a"):
            await a.ask((b, c, a))
        a, b = [await system.spawn(Asker, name) for name in "xy"]
        with pytest.raises(DeadlockError):
            await a.ask((a,))


async def test_names_and_specs():
    async with ActorSystem() as system:
        await system.spawn(Worker, "w")
        with pytest.raises(NameTaken):
            await system.spawn(Worker, "w")
        with pytest.raises(SpecError):
            await system.spawn(Worker, "a/b")
        with pytest.raises(SpecError):
            await system.spawn(Worker())


async def test_watch():
    class Watcher(Actor):
        def __init__(self):
            self.got = []

        @on(Terminated)
        def gone(self, signal):
            self.got.append(signal.ref)

        @on(tuple)
        def do(self, command):
            getattr(self.ctx, command[0])(command[1])

        @on(str)
        def get(self, _):
            return self.got

    async with ActorSystem() as system:
        watcher = await system.spawn(Watcher)
        a, b, c = [await system.spawn(Worker, name) for name in "abc"]
        c.stop()
        await c.terminated()
        for ref in (a, a, b, c):
            await watcher.ask(("watch", ref))
        await watcher.ask(("unwatch", b))
        a.kill()
        b.stop()
        await a.terminated()
        await b.terminated()
        assert await watcher.ask("got") == [c, a]


async def test_pipe_timers_defer():
    class Busy(Actor):
        def __init__(self):
            self.got = []

        @on(str)
        async def get(self, word):
            if word == "later":
                reply = self.ctx.defer()
                self.ctx.pipe(asyncio.sleep(0.01, "slow"), reply.set)
                return None
            if word == "timer":
                self.ctx.timers.start("k", 1000, "never")
                self.ctx.timers.start("k", 0.01, 7)
                self.reply = self.ctx.defer()
                return None
            return self.got

        @on(int)
        def number(self, n):
            self.reply.set(n)

    async with ActorSystem() as system:
        busy = await system.spawn(Busy)
        assert await busy.ask("later") == "slow"
        assert await busy.ask("timer") == 7
        deferred = asyncio.create_task(busy.ask("timer"))
        await asyncio.sleep(0)
        await busy.ask("x")
        busy.kill()
        with pytest.raises(ActorStopped):
            await deferred


async def test_dead_letters_are_counted_and_published():
    async with ActorSystem() as system:
        letters = []
        system.dead_letters.subscribe(letters.append)
        worker = await system.spawn(Worker, "w")
        worker.tell(b"?")
        await worker.ask(1)
        system.tell("/nobody", 1)
        assert letters == [
            DeadLetter("unhandled", b"?", worker, None),
            DeadLetter("unknown", 1, None, None, None, "/nobody"),
        ]
        assert system.dead_letters.counts == {"unhandled": 1, "unknown": 1}
