"""`tell_now`: an idle actor handles the message in the sender's turn; all other rules hold."""

import contextvars

from actors import ActorSystem, OneForOne, current_trace
from actors.testing import run_until_idle
from tests.unit.actors.kit import Call, Do, Puppet, crash, virtual

MARK: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="none")


@virtual
async def test_an_idle_actor_handles_the_message_before_tell_now_returns():
    async with ActorSystem() as system:
        receiver = await system.spawn(Puppet, "receiver")
        sender = await system.spawn(Puppet, "sender")
        diary = await receiver.ask(Call(lambda a: a.diary))

        def told(_):
            receiver.tell_now(1)
            return list(diary)

        assert await sender.ask(Call(told)) == [1]


@virtual
async def test_an_actor_at_work_takes_the_message_in_its_order():
    async with ActorSystem() as system:
        receiver = await system.spawn(Puppet, "receiver")
        diary = await receiver.ask(Call(lambda a: a.diary))
        receiver.tell(0.5)
        receiver.tell(1)
        receiver.tell_now(2)
        assert diary == []
        await receiver.ask(Do(lambda a: None))
        assert diary == [0.5, 1, 2]


@virtual
async def test_an_actor_that_tells_itself_goes_on_with_the_message_in_hand():
    async with ActorSystem() as system:
        one = await system.spawn(Puppet, "one")
        diary = await one.ask(Call(lambda a: a.diary))

        def told(actor):
            actor.ctx.self.tell_now(1)
            return list(actor.diary)

        assert await one.ask(Call(told)) == []
        await one.ask(Do(lambda a: None))
        assert diary == [1]


@virtual
async def test_a_failure_of_the_receiver_is_supervised_and_does_not_reach_the_sender():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        receiver = await system.spawn(Puppet, "receiver")
        sender = await system.spawn(Puppet, "sender")
        before = await receiver.ask(Call(lambda a: a.serial))

        def told(actor):
            receiver.tell_now(Call(crash))
            return actor.ctx.self

        assert await sender.ask(Call(told)) is sender
        assert await receiver.ask(Call(lambda a: a.serial)) != before


@virtual
async def test_the_handler_has_sender_and_trace_and_a_context_of_its_own():
    async with ActorSystem() as system:
        receiver = await system.spawn(Puppet, "receiver")
        sender = await system.spawn(Puppet, "sender")
        seen = []

        def told(_):
            MARK.set("the sender's")
            receiver.tell_now(
                Call(lambda a: seen.append((a.ctx.sender, current_trace(), MARK.get()))), "the trace"
            )
            return current_trace()

        assert await sender.ask(Call(told)) is None
        assert seen == [(sender, "the trace", "none")]


@virtual
async def test_a_ring_of_ten_thousand_needs_no_stack():
    """The clock stands still, so that no slice ends."""
    async with ActorSystem() as system:
        ring = [await system.spawn(Puppet) for _ in range(10_000)]
        hops, visited, overflows = 20_000, 0, 0

        def hop(actor):
            nonlocal visited, overflows
            visited += 1
            if visited < hops:
                try:
                    ring[visited % len(ring)].tell_now(Call(hop))
                except RecursionError:
                    overflows += 1

        ring[0].tell_now(Call(hop))
        await run_until_idle()
        assert (visited, overflows) == (hops, 0)
