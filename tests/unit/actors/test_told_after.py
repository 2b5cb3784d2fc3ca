"""`tell_after` and `spawn_now`: what is done in the same turn, and the order in which."""

import asyncio

from actors import ActorSystem, OneForOne, tracing
from actors.testing import run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, virtual


class Starting(Puppet):
    """Has an `on_start` that does not wait."""

    def on_start(self):
        self.diary.append("started")


class Small(Puppet, mailbox=1):
    """Has one slot."""


@virtual
async def test_a_message_that_is_told_after_finds_its_sender_idle():
    async with ActorSystem() as system:
        sender = await system.spawn(Puppet, "sender")
        receiver = await system.spawn(Puppet, "receiver")
        seen = []

        async def work(actor):
            actor.ctx.tell_after(receiver, Call(lambda _: seen.append(sender.cell.hand[0])))
            assert seen == []

        await sender.ask(Do(work))
        assert not isinstance(seen[0], Do)


@virtual
async def test_each_message_of_a_turn_is_followed_by_what_was_told_after_it():
    async with ActorSystem() as system:
        sender = await system.spawn(Puppet, "sender")
        receiver = await system.spawn(Puppet, "receiver")
        diary = await receiver.ask(Call(lambda a: a.diary))

        def working(n):
            async def work(actor):
                actor.ctx.tell_after(receiver, n)
                return list(diary)

            return Do(work)

        first, second = sender.ask_soon(working(1)), sender.ask_soon(working(2))
        assert [await first, await second] == [[], [1]]
        await receiver.ask(Do(lambda _: None))
        assert diary == [1, 2]


@virtual
async def test_a_handler_that_fails_tells_nothing_after():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        sender = await system.spawn(Puppet, "sender")
        receiver = await system.spawn(Puppet, "receiver")
        diary = await receiver.ask(Call(lambda a: a.diary))

        async def work(actor):
            actor.ctx.tell_after(receiver, 1)
            raise Boom

        sender.tell(Do(work))
        await sender.ask(Do(lambda _: None))
        await receiver.ask(Do(lambda _: None))
        assert diary == []


@virtual
async def test_from_a_plain_handler_it_is_told_as_ever():
    async with ActorSystem() as system:
        sender = await system.spawn(Puppet, "sender")
        receiver = await system.spawn(Puppet, "receiver")
        diary = await receiver.ask(Call(lambda a: a.diary))
        await sender.ask(Call(lambda a: a.ctx.tell_after(receiver, 1)))
        await receiver.ask(Do(lambda _: None))
        assert diary == [1]


@virtual
async def test_a_child_that_is_spawned_now_is_idle_at_once():
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet, "parent")
        diary = []

        def start(actor):
            child = actor.ctx.spawn_now(lambda: Starting(diary), "child")
            child.tell_now(1)
            return list(diary)

        assert await parent.ask(Call(start)) == ["started", 1]


@virtual
async def test_a_start_now_that_fails_is_supervised():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        parent = await system.spawn(Puppet, "parent")

        def broken():
            raise Boom

        def start(actor):
            return actor.ctx.spawn_now(broken, "child", restart="temporary")

        child = await parent.ask(Call(start))
        await child.terminated()
        assert not child.is_alive


@virtual
async def test_idle_children_end_with_their_parent():
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet, "parent")

        def start(actor):
            return [actor.ctx.spawn_now(Puppet, str(n)) for n in range(3)]

        children = await parent.ask(Call(start))
        parent.stop()
        await parent.terminated()
        assert not any(child.is_alive for child in children)


@virtual
async def test_all_that_is_told_after_a_handler_waits_for_its_end_in_order():
    async with ActorSystem() as system:
        sender = await system.spawn(Puppet, "sender")
        receiver = await system.spawn(Puppet, "receiver")
        diary = await receiver.ask(Call(lambda a: a.diary))

        async def work(actor):
            actor.ctx.tell_after(receiver, 1)
            actor.ctx.tell_after(receiver, 2)
            await run_until_idle()
            return list(diary)

        assert await sender.ask(Do(work)) == []
        await run_until_idle()
        assert diary == [1, 2]


@virtual
async def test_what_finds_no_slot_after_a_handler_is_a_dead_letter_with_its_trace():
    async with ActorSystem() as system:
        letters = []
        system.dead_letters.subscribe(letters.append)
        sender = await system.spawn(Puppet, "sender")
        receiver = await system.spawn(Small, "receiver")

        async def work(actor):
            receiver.tell(1)
            actor.ctx.tell_after(receiver, 2)
            await asyncio.sleep(0)

        with tracing("a trace"):
            receiver.tell(0.5)
            await run_until_idle()
            await sender.ask(Do(work))
        assert [(letter.reason, letter.message, letter.trace) for letter in letters] == [
            ("full", 2, "a trace")
        ]
