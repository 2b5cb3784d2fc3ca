"""Rules 1 to 6: refs, delivery, one message at a time, lanes, bounded mailboxes, asks."""

import asyncio
import math

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    AskTimeout,
    ChildSpec,
    DeadLetter,
    DeadlockError,
    MailboxFull,
    NameTaken,
    OneForOne,
    Reject,
    Terminated,
    on,
)
from actors.testing import Probe, run_until_idle
from tests.unit.actors.kit import Boom, Boss, Call, Do, Puppet, crash, virtual


@virtual
async def test_rule_01_a_ref_is_stable_across_restarts():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        ref = await system.spawn(Puppet, "p")
        before = await ref.ask(Do(lambda a: (a.serial, a.ctx.self)))
        with pytest.raises(Boom):
            await ref.ask(Do(crash))
        after = await ref.ask(Do(lambda a: (a.serial, a.ctx.self)))
        assert before[0] != after[0]
        assert before[1] is after[1] is ref
        assert len({ref: 1, before[1]: 2}) == 1


@virtual
async def test_rule_01_a_name_is_unique_until_terminated_was_sent_and_free_then():
    async with ActorSystem() as system:
        probe = await Probe.start(system)
        ref = await system.spawn(Puppet, "p")
        probe.watch(ref)
        with pytest.raises(NameTaken):
            await system.spawn(Puppet, "p")
        ref.stop()
        with pytest.raises(NameTaken):
            await system.spawn(Puppet, "p")
        assert await probe.expect(Terminated) == Terminated(ref, "stopped")
        again = await system.spawn(Puppet, "p")
        assert again.path == ref.path
        assert again != ref
        assert again.incarnation > ref.incarnation


@virtual(seed=7)
async def test_rule_02_order_holds_for_each_sender_and_receiver():
    async with ActorSystem() as system:
        diary = []
        target = await system.spawn(lambda: Puppet(diary), "target")

        def chatter(base):
            async def go(actor):
                for i in range(50):
                    if i % 3 == 0:
                        target.tell(base + i)
                    elif i % 3 == 1:
                        await target.send(base + i)
                    else:
                        actor.ctx.pipe(asyncio.sleep(0), lambda _: None)
                        await target.ask(base + i)

            return go

        senders = [await system.spawn(Puppet) for _ in range(3)]
        await asyncio.gather(*(s.ask(Do(chatter(i * 1000))) for i, s in enumerate(senders)))
        for i in range(3):
            assert [n for n in diary if n // 1000 == i] == [i * 1000 + j for j in range(50)]


@virtual
async def test_rule_03_one_message_at_a_time_even_while_a_handler_awaits():
    async with ActorSystem() as system:
        at_work = 0

        async def work(_):
            nonlocal at_work
            at_work += 1
            assert at_work == 1
            await asyncio.sleep(0.1)
            at_work -= 1

        ref = await system.spawn(Puppet)
        await asyncio.gather(*(ref.ask(Do(work)) for _ in range(10)))


@virtual
async def test_rule_03_piped_work_does_not_block_the_mailbox_and_dies_with_the_actor():
    async with ActorSystem() as system:
        diary, ended = [], []

        async def work(value):
            try:
                await asyncio.sleep(10)
                return value
            finally:
                ended.append(value)

        ref = await system.spawn(lambda: Puppet(diary))
        await ref.ask(Do(lambda a: a.ctx.pipe(work(1), lambda result: result)))
        assert await ref.ask(5) == 5
        await asyncio.sleep(11)
        assert diary == [5, 1]
        await ref.ask(Do(lambda a: a.ctx.pipe(work(2), lambda result: result)))
        await ref.ask(Do(lambda a: a.ctx.pipe(work(3), lambda result: result)))
        await asyncio.sleep(1)
        ref.stop()
        await ref.terminated()
        assert ended == [1, 2, 3]
        assert diary == [5, 1]


@virtual
async def test_rule_03_a_pipe_can_be_cancelled_map_errors_or_fail_the_actor():
    async def fail():
        raise Boom("work")

    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        diary = []
        ref = await system.spawn(lambda: Puppet(diary))
        serial = await ref.ask(Do(lambda a: a.serial))

        async def cancelled(actor):
            actor.ctx.pipe(asyncio.sleep(0, 1), lambda result: result).cancel()  # before its first step
            pipe = actor.ctx.pipe(asyncio.sleep(5, 2), lambda result: result)
            await asyncio.sleep(1)
            pipe.cancel()

        await ref.ask(Do(cancelled))
        await ref.ask(Do(lambda a: a.ctx.pipe(fail(), lambda _: None, lambda exc: 42 + len(exc.args))))
        await asyncio.sleep(10)
        assert diary == [43]
        assert await ref.ask(Do(lambda a: a.serial)) == serial
        await ref.ask(Do(lambda a: a.ctx.pipe(fail(), lambda _: None)))
        await run_until_idle()
        assert await ref.ask(Do(lambda a: a.serial)) > serial


@virtual
async def test_rule_04_signals_pass_a_full_mailbox_and_come_before_messages():
    class Small(Boss, mailbox=2):
        pass

    async with ActorSystem() as system:
        diary = []
        ref = await system.spawn(lambda: Small(diary))
        child = await ref.ask(Do(lambda a: a.ctx.spawn(Puppet, "child")))
        gate = asyncio.Event()
        ref.tell(gate)
        await run_until_idle()
        ref.tell(1)
        ref.tell(2)
        child.stop()
        await child.terminated()
        gate.set()
        await run_until_idle()
        assert diary == [Terminated(child, "stopped"), 1, 2]


@virtual
async def test_rule_04_replies_and_timers_take_no_slot():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        diary = []
        small = await system.spawn(lambda: Small(diary))
        other = await system.spawn(Puppet)

        async def work(actor):
            actor.ctx.timers.start("t", 0.5, 77)
            assert await other.ask(1) == 1  # the reply comes although the mailbox is full
            await asyncio.sleep(1)

        asking = asyncio.ensure_future(small.ask(Do(work)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        small.tell(5)
        with pytest.raises(MailboxFull):
            small.tell(6)
        await asking
        await run_until_idle()
        assert diary == [77, 5]


@virtual
async def test_rule_05_tell_raises_or_applies_the_policy():
    class Raises(Puppet, mailbox=2):
        pass

    class DropsNew(Puppet, mailbox=2, overflow="drop_new"):
        pass

    class DropsOld(Puppet, mailbox=2, overflow="drop_old"):
        pass

    class Unbounded(Puppet, mailbox=0):
        pass

    async with ActorSystem() as system:
        letters = []
        system.dead_letters.subscribe(letters.append)
        outcome = {}
        for kind in (Raises, DropsNew, DropsOld, Unbounded):
            ref = await system.spawn(kind, kind.__name__)
            gate = asyncio.Event()
            ref.tell(gate)
            await run_until_idle()
            for i in range(3):
                if kind is Raises and i == 2:
                    with pytest.raises(MailboxFull):
                        ref.tell(i)
                else:
                    ref.tell(i)
            gate.set()
            outcome[kind] = await ref.ask(Do(lambda a: list(a.diary)))
        assert outcome == {Raises: [0, 1], DropsNew: [0, 1], DropsOld: [1, 2], Unbounded: [0, 1, 2]}
        assert [(x.reason, x.message) for x in letters] == [("full", 2), ("full", 0)]


@virtual
async def test_rule_05_drop_old_tells_the_asker():
    class DropsOld(Puppet, mailbox=1, overflow="drop_old"):
        pass

    async with ActorSystem() as system:
        ref = await system.spawn(DropsOld)
        gate = asyncio.Event()
        ref.tell(gate)
        await run_until_idle()
        asking = asyncio.ensure_future(ref.ask(1))
        await run_until_idle()
        ref.tell(2)
        with pytest.raises(MailboxFull):
            await asking
        gate.set()


@virtual
async def test_rule_05_senders_wait_in_order_nobody_barges_and_a_cancelled_one_delivers_nothing():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        diary = []
        small = await system.spawn(lambda: Small(diary))
        gates = [asyncio.Event() for _ in range(3)]
        small.tell(gates[0])
        await run_until_idle()
        await small.send(gates[1])
        senders = [asyncio.ensure_future(small.send(i)) for i in range(5)]
        await run_until_idle()
        senders[1].cancel()
        gates[0].set()
        gates[1].set()
        while not senders[0].done():
            # Room was made, and it belongs to the one who waits.
            if small.cell.box is not None and len(small.cell.box) == 0 and not senders[0].done():
                with pytest.raises(MailboxFull):
                    small.tell(99)
            await asyncio.sleep(0)
        await asyncio.gather(*senders, return_exceptions=True)
        await run_until_idle()
        assert diary == [0, 2, 3, 4]
        assert small.cell.limit == 1


@virtual
async def test_rule_05_a_sender_cancelled_in_the_moment_of_its_turn_delivers_nothing():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        diary = []
        small = await system.spawn(lambda: Small(diary))
        gate = asyncio.Event()
        small.tell(gate)
        await run_until_idle()
        small.tell(1)
        first, second = asyncio.ensure_future(small.send(2)), asyncio.ensure_future(small.send(3))
        await run_until_idle()
        gate.set()
        while not small.cell.extras.reserved:  # noqa: ASYNC110 - no event tells of this instant
            await asyncio.sleep(0)
        first.cancel()  # its slot is granted, it has not run yet
        await second
        assert first.cancelled()
        await run_until_idle()
        assert diary == [1, 3]
        assert small.cell.limit == 1


@virtual
async def test_rule_05_ask_waits_for_a_slot_within_its_own_deadline():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        diary = []
        small = await system.spawn(lambda: Small(diary))
        small.tell(10.0)
        await run_until_idle()
        small.tell(1)
        with pytest.raises(AskTimeout):
            await small.ask(2, timeout=1)
        assert await small.ask(3, timeout=20) == 3
        assert diary == [10.0, 1, 3]


@virtual
async def test_rule_05_waiting_senders_fail_when_the_actor_ends():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        small = await system.spawn(Small)
        small.tell(10.0)
        await run_until_idle()
        small.tell(1)
        sender = asyncio.ensure_future(small.send(2))
        asker = asyncio.ensure_future(small.ask(3))
        await run_until_idle()
        small.stop()
        for waiting in (sender, asker):
            with pytest.raises(ActorStopped):
                await waiting
        with pytest.raises(ActorStopped):
            await small.send(4)


@virtual
async def test_rule_06_an_ask_has_a_deadline_and_nested_asks_inherit_it():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        loop = asyncio.get_running_loop()
        outer, inner = await system.spawn(Puppet, "outer"), await system.spawn(Puppet, "inner")
        inner.tell(1000.0)
        took = {}

        def nested(timeout):
            async def go(actor):
                started = loop.time()
                assert actor.ctx.remaining <= 2
                try:
                    await inner.ask(1, timeout=timeout)
                finally:
                    took[timeout] = loop.time() - started

            return go

        for timeout in (None, math.inf, 1, 5):
            with pytest.raises(AskTimeout):
                await outer.ask(Do(nested(timeout)), timeout=2)
            await run_until_idle()
        assert took[1] == pytest.approx(1, abs=0.051)
        for timeout in (None, math.inf, 5):
            assert took[timeout] == pytest.approx(2, abs=0.051)
        started = loop.time()
        with pytest.raises(AskTimeout):
            await inner.ask(1)
        assert loop.time() - started == pytest.approx(5, abs=0.051)
        inner.kill()


@virtual
async def test_rule_06_expired_and_abandoned_asks_are_dropped_before_their_handler():
    async with ActorSystem() as system:
        letters, diary = [], []
        system.dead_letters.subscribe(letters.append)
        ref = await system.spawn(lambda: Puppet(diary))
        ref.tell(10.0)
        abandoned = asyncio.ensure_future(ref.ask(1))
        await run_until_idle()
        abandoned.cancel()
        with pytest.raises(AskTimeout):
            await ref.ask(2, timeout=1)
        assert await ref.ask(3, timeout=60) == 3
        assert diary == [10.0, 3]
        assert letters == [DeadLetter("expired", 1, ref, None), DeadLetter("expired", 2, ref, None)]


@virtual
async def test_rule_06_late_and_duplicate_replies_are_dead_letters():
    async with ActorSystem() as system:
        letters = []
        system.dead_letters.subscribe(letters.append)
        ref = await system.spawn(Puppet)
        with pytest.raises(AskTimeout):
            await ref.ask(2.0, timeout=1)
        await asyncio.sleep(2)
        replies = []
        asking = asyncio.ensure_future(ref.ask(Do(lambda a: replies.append(a.ctx.defer()))))
        await run_until_idle()
        assert replies[0].set("one")
        assert not replies[0].set("two")
        assert not replies[0].fail(Boom())
        assert await asking == "one"
        asking = asyncio.ensure_future(ref.ask(Do(lambda a: replies.append(a.ctx.defer()))))
        await run_until_idle()
        called = []
        replies[1].on_abandon(lambda: called.append(1))
        assert not replies[1].abandoned
        asking.cancel()
        await run_until_idle()
        assert replies[1].abandoned
        assert called == [1]
        assert not replies[1].set("late")
        replies[1].on_abandon(lambda: called.append(2))
        await run_until_idle()
        assert called == [1, 2]
        assert [(x.reason, x.message) for x in letters[:2] + letters[3:]] == [
            ("late", 2.0),
            ("duplicate", "two"),
            ("late", "late"),
        ]
        assert letters[2].reason == "duplicate"


@virtual
async def test_rule_06_an_abandoned_deferred_question_is_forgotten():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        for _ in range(3):
            with pytest.raises(AskTimeout):
                await ref.ask(Do(lambda a: a.ctx.defer() and None), timeout=1)
        await run_until_idle()
        assert ref.cell.extras.deferred == {}


@virtual
async def test_rule_06_a_deferred_reply_to_a_tell_does_nothing():
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        replies = []
        ref.tell(Call(lambda a: replies.append(a.ctx.defer())))
        await run_until_idle()
        assert replies[0].set(1)
        assert replies[0].fail(Boom())
        assert not replies[0].asked
        assert not replies[0].abandoned
        assert system.dead_letters.total == 0


@virtual
@pytest.mark.parametrize("kind", [Do, Call])
async def test_rule_06_a_question_is_answered_with_stopped_when_the_target_is_or_goes(kind):
    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        deferred = asyncio.ensure_future(ref.ask(kind(lambda a: a.ctx.defer()), timeout=math.inf))
        await run_until_idle()
        in_hand = asyncio.ensure_future(ref.ask(100.0, timeout=math.inf))
        await run_until_idle()
        queued = asyncio.ensure_future(ref.ask(1, timeout=math.inf))
        await run_until_idle()
        ref.kill()
        for waiting in (deferred, in_hand, queued):
            with pytest.raises(ActorStopped):
                await waiting
        assert asyncio.get_running_loop().time() == 0
        with pytest.raises(ActorStopped):
            await ref.ask(1, timeout=math.inf)


@virtual
async def test_rule_06_a_cycle_of_asks_is_an_error_at_once():
    async with ActorSystem(supervise=OneForOne(max_restarts=100)) as system:
        refs = [await system.spawn(Puppet, name) for name in "abc"]

        def around(path):
            head, *rest = path
            return Do(lambda a: head.ask(around(rest)) if rest else head.ask(1))

        with pytest.raises(DeadlockError, match="/a asks /b asks /c asks /a"):
            await refs[0].ask(around([*refs[1:], refs[0]]))
        with pytest.raises(DeadlockError):
            await refs[0].ask(Do(lambda a: a.ctx.self.ask(1)))
        with pytest.raises(DeadlockError):  # also from a task inside the handler
            await refs[0].ask(Do(lambda a: a.ctx.gather([refs[1].ask(Do(lambda _: refs[0].ask(1)))])))
        assert asyncio.get_running_loop().time() == 0


@virtual
async def test_rule_06_piped_asks_make_no_cycle():
    async with ActorSystem() as system:
        diary = []
        a, b = await system.spawn(lambda: Puppet(diary)), await system.spawn(Puppet)
        question = Do(lambda actor: actor.ctx.sender.ask(5))
        await a.ask(Do(lambda actor: actor.ctx.pipe(b.ask(question), lambda answer: answer + 1)))
        await a.ask(Do(lambda actor: actor.ctx.pipe(actor.ctx.self.ask(7), lambda answer: answer + 1)))
        await run_until_idle()
        assert sorted(diary) == [5, 6, 7, 8]


@virtual
async def test_rule_06_an_asker_that_dies_takes_its_question_back():
    async with ActorSystem() as system:
        diary = []
        target, asker = await system.spawn(lambda: Puppet(diary)), await system.spawn(Puppet)
        target.tell(10.0)
        asker.tell(Do(lambda a: target.ask(1)))
        await run_until_idle()
        asker.kill()
        await asker.terminated()
        target.drain()
        await target.terminated()
        assert diary == [10.0]
        assert system.dead_letters.counts == {"expired": 1}


@virtual
async def test_rule_06_a_rejection_that_an_asker_lets_pass_restarts_no_actor():
    async with ActorSystem(supervise=OneForOne(max_restarts=10)) as system:
        strict, careless = await system.spawn(Puppet), await system.spawn(Puppet)
        serials = [await r.ask(Do(lambda a: a.serial)) for r in (strict, careless)]
        with pytest.raises(Reject):
            await careless.ask(Do(lambda a: strict.ask(Reject("bad"))))
        assert await strict.ask(Do(lambda a: a.serial)) == serials[0]
        assert await careless.ask(Do(lambda a: a.serial)) == serials[1]


@virtual
async def test_rule_06_the_asker_learns_who_asked_it():
    class Asked(Actor):
        @on(str)
        def who(self, _):
            return self.ctx.sender

    async with ActorSystem() as system:
        asked = await system.spawn(ChildSpec("asked", Asked))
        asker = await system.spawn(Puppet)
        assert await asked.ask("?") is None
        assert await asker.ask(Do(lambda a: asked.ask("?"))) is asker


@virtual
async def test_rule_06_an_expired_question_is_dropped_by_an_actor_that_is_in_the_middle_of_others():
    diary, letters, gate = [], [], asyncio.Event()
    async with ActorSystem() as system:
        system.dead_letters.subscribe(lambda letter: letters.append((letter.reason, letter.message)))
        ref = await system.spawn(lambda: Puppet(diary))
        ref.tell(gate)
        asked = [asyncio.ensure_future(ref.ask(n, timeout=60)) for n in range(4)]
        await run_until_idle()
        asked[1].cancel()
        asked[2].cancel()
        await run_until_idle()
        gate.set()  # the same task goes on with the rest of the mailbox
        assert [await asked[0], await asked[3]] == diary == [0, 3]
        assert letters == [("expired", 1), ("expired", 2)]
