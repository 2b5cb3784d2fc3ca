"""`ctx.limiter`: a bounded number of pieces of work at once, in order, cancellable, owned by the instance."""

import asyncio
from contextlib import suppress

import pytest

from actors import (
    Actor,
    ActorStopped,
    ActorSystem,
    AskTimeout,
    DeadlockError,
    HandlerCancelled,
    OneForOne,
    Pool,
    SpecError,
    current_trace,
    on,
    tracing,
)
from actors.testing import run_until_idle
from tests.unit.actors.kit import Boom, Boss, Call, Do, Puppet, crash, virtual


class Job:
    def __init__(self, name, seconds=0.0, **options):
        self.name = name
        self.seconds = seconds
        self.options = options
        self.result = name
        self.stubborn = 0

    async def work(self):
        """Takes its time; swallows as many cancellations as it is stubborn."""
        end = asyncio.get_running_loop().time() + self.seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                self.stubborn -= 1
                if self.stubborn < 0:
                    raise
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


class Service(Puppet, mailbox=10):
    """Works on `Job`s, two at once."""

    def __init__(self, diary=None, limit=2):
        super().__init__(diary)
        self.limit = limit

    def on_start(self):
        self.limiter = self.ctx.limiter(self.limit)
        self.now = self.most = 0

    @on(Job)
    def job(self, job):
        self.limiter.submit(lambda: self.work(job), key=job.name, **job.options)

    async def work(self, job):
        self.now += 1
        self.most = max(self.most, self.now)
        self.diary.append(job.name)
        try:
            return await job.work()
        except asyncio.CancelledError:
            self.diary.append(f"{job.name} cancelled")
            raise
        finally:
            self.now -= 1


def time():
    return asyncio.get_running_loop().time()


async def counts(ref):
    return await ref.ask(Call(lambda a: (a.limiter.active, a.limiter.waiting)))


@virtual
async def test_at_most_so_many_at_once_in_the_order_of_asking():
    diary = []
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(diary))
        results = await asyncio.gather(*(ref.ask(Job(n, 1), timeout=60) for n in range(7)))
        assert results == diary == list(range(7))
        assert time() == 4
        assert await ref.ask(Call(lambda a: a.most)) == 2
        assert await counts(ref) == (0, 0)


@virtual
async def test_an_error_goes_to_the_asker_or_the_log_and_harms_nobody(caplog):
    async with ActorSystem() as system:
        ref = await system.spawn(Service)
        bad = Job("bad")
        bad.result = Boom("no")
        with pytest.raises(Boom):
            await ref.ask(bad)
        assert not caplog.records
        ref.tell(bad)
        cancels_itself = Job("odd")
        cancels_itself.result = asyncio.CancelledError()
        with pytest.raises(HandlerCancelled, match="cancelled itself"):
            await ref.ask(cancels_itself)
        assert "the work of Job failed" in caplog.text
        assert await ref.ask(Job("good")) == "good"
        assert system.tree().children[0].restarts == 0


@virtual
async def test_what_was_told_is_told_back_to_the_actor_that_sent_it():
    async with ActorSystem() as system:
        ref = await system.spawn(Service)
        boss = await system.spawn(Boss)
        await boss.ask(Call(lambda a: ref.tell(Job(5, tell_back=True))))
        await boss.ask(Call(lambda a: ref.tell(Job(6))))
        await run_until_idle()
        assert await boss.ask(Call(lambda a: a.diary)) == [5]
        ref.tell(Job(7, tell_back=True))  # from no actor
        await run_until_idle()
        assert system.dead_letters.total == 0


@pytest.mark.parametrize("error", [Boom("no"), asyncio.CancelledError()], ids=["raised", "cancelled itself"])
@virtual
async def test_what_is_made_of_an_error_is_told_back_too(error, caplog):
    expected = Boom if isinstance(error, Boom) else HandlerCancelled
    async with ActorSystem() as system:
        ref = await system.spawn(Service)
        boss = await system.spawn(Boss)
        bad = Job(5, tell_back=True, on_error=lambda found: 1 if isinstance(found, expected) else 0)
        bad.result = error
        await boss.ask(Call(lambda a: ref.tell(bad)))
        await run_until_idle()
        assert await boss.ask(Call(lambda a: a.diary)) == [1]
        assert not caplog.records
        with pytest.raises(expected):
            await ref.ask(bad)


@virtual
async def test_keys_are_those_of_work_that_waits_or_is_at_work():
    async with ActorSystem() as system:
        ref = await system.spawn(Service)
        for name in ("a", "b", "c"):
            ref.tell(Job(name, 10))
        await asyncio.sleep(1)
        assert await ref.ask(Call(lambda a: [*a.limiter.keys])) == ["a", "b", "c"]
        await ref.ask(Call(lambda a: a.limiter.cancel("c")))
        await asyncio.sleep(20)
        assert await ref.ask(Call(lambda a: [*a.limiter.keys])) == []


@virtual
async def test_a_full_mailbox_of_the_teller_makes_a_dead_letter_and_no_failure():
    class Small(Puppet, mailbox=1):
        pass

    async with ActorSystem() as system:
        ref = await system.spawn(Service)
        small = await system.spawn(Small)
        await small.ask(Call(lambda a: ref.tell(Job(5, 1, tell_back=True))))
        small.tell(asyncio.Event())
        await run_until_idle()
        small.tell(1)
        await asyncio.sleep(2)
        assert system.dead_letters.counts == {"full": 1}
        assert system.tree().children[0].restarts == 0
        small.kill()


@virtual
async def test_an_asker_who_goes_away_drops_or_cancels_the_work():
    diary = []
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(diary, 1))
        begun = asyncio.ensure_future(ref.ask(Job("begun", 100), timeout=1000))
        waits = asyncio.ensure_future(ref.ask(Job("waits", 100), timeout=1000))
        kept = asyncio.ensure_future(ref.ask(Job("kept", 100, keep=True), timeout=1000))
        await run_until_idle()
        assert await counts(ref) == (1, 2)
        waits.cancel()
        await run_until_idle()
        assert await counts(ref) == (1, 1)
        begun.cancel()
        await run_until_idle()
        assert diary == ["begun", "begun cancelled", "kept"]
        kept.cancel()
        await run_until_idle()
        assert await counts(ref) == (1, 0)  # it goes on
        await asyncio.sleep(101)
        assert await counts(ref) == (0, 0)
        assert diary == ["begun", "begun cancelled", "kept"]
        assert system.dead_letters.counts == {"late": 1}


@virtual
async def test_work_is_cancelled_by_its_key():
    diary = []
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(diary, 1))
        asked = [asyncio.ensure_future(ref.ask(Job(n, 100), timeout=1000)) for n in "ab"]
        await run_until_idle()
        ref.tell(Job("c", 100))
        cancel = Call(lambda a: [a.limiter.cancel(key) for key in "bacx"])
        assert await ref.ask(cancel) == [True, True, True, False]
        for question in asked:
            with pytest.raises(HandlerCancelled, match=r"'[ab]' was cancelled"):
                await question
        await run_until_idle()
        assert diary == ["a", "a cancelled"]
        assert await counts(ref) == (0, 0)
        first = asyncio.ensure_future(ref.ask(Job("same", 100), timeout=1000))
        await run_until_idle()
        assert await ref.ask(Job("same"), timeout=1000) == "same"
        with pytest.raises(HandlerCancelled):
            await first
        assert await ref.ask(Call(lambda a: a.limiter.cancel("same"))) is False


@virtual
async def test_work_cancelled_before_its_first_step_gives_its_place_back():
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(limit=1))

        @Call
        def begin_and_cancel(actor):
            actor.limiter.submit(Job("x").work, key="x")
            actor.limiter.cancel("x")

        for _ in range(3):
            with pytest.raises(HandlerCancelled):
                await ref.ask(begin_and_cancel)
        assert await ref.ask(Job("next")) == "next"


@virtual
async def test_a_time_limit_counts_from_the_beginning_of_the_work():
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(limit=1))
        one = asyncio.ensure_future(ref.ask(Job("one", 9, timeout=10), timeout=1000))
        two = asyncio.ensure_future(ref.ask(Job("two", 9, timeout=10), timeout=1000))
        assert [await one, await two] == ["one", "two"]
        assert time() == 18
        with pytest.raises(AskTimeout, match="took more than 10 s"):
            await ref.ask(Job("three", 11, timeout=10), timeout=1000)
        assert time() == 28
        slow = Job("four", 11, timeout=10, on_timeout=lambda: "too slow")
        assert await ref.ask(slow, timeout=1000) == "too slow"
        asker = await system.spawn(Puppet)
        told = Job("five", 11, timeout=10, on_timeout=lambda: 55, tell_back=True)
        await asker.ask(Call(lambda a: ref.tell(told)))
        await asyncio.sleep(100)
        assert await asker.ask(Call(lambda a: a.diary)) == [55]
        assert system.dead_letters.total == 0


@virtual
async def test_work_that_swallows_its_cancellation_is_answered_hunted_and_in_the_end_not_counted(caplog):
    diary = []
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(diary, 1))
        deaf = Job("deaf", 1000, timeout=10)
        deaf.stubborn = 7
        asked = asyncio.ensure_future(ref.ask(deaf, timeout=1000))
        after = asyncio.ensure_future(ref.ask(Job("after"), timeout=1000))
        with pytest.raises(AskTimeout):
            await asked
        assert time() == 10  # the answer waits for nothing
        await asyncio.sleep(4.9)
        assert await counts(ref) == (1, 1)  # it may still do what the limit is there for
        assert await after == "after"
        assert time() == pytest.approx(15, abs=0.2)
        assert "goes on 5 s after it was cancelled" in caplog.text
        assert "deaf cancelled" not in diary
        await asyncio.sleep(3)
        assert "deaf cancelled" in diary  # the eighth cancellation was one too many
        assert await counts(ref) == (0, 0)

        patient = Job("patient", 1000, timeout=10)
        patient.stubborn = 2
        with pytest.raises(AskTimeout):
            await ref.ask(patient, timeout=1000)
        assert await ref.ask(Job("next"), timeout=1000) == "next"
        assert await counts(ref) == (0, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_a_late_result_of_work_is_a_dead_letter():
    async with ActorSystem() as system:
        ref = await system.spawn(Service)
        asker = await system.spawn(Puppet)
        deaf = Job(5, 12, timeout=10, tell_back=True, on_timeout=lambda: 6)
        deaf.stubborn = 100
        assert await ref.ask(deaf, timeout=1000) == 6
        await asyncio.sleep(5)
        assert system.dead_letters.counts == {"duplicate": 1}
        await asker.ask(Call(lambda a: ref.tell(deaf)))
        await asyncio.sleep(20)
        assert await asker.ask(Call(lambda a: a.diary)) == [6]
        assert system.dead_letters.counts == {"duplicate": 1, "late": 1}


@pytest.mark.parametrize("end", ["stop", "kill", "restart"])
@virtual
async def test_it_ends_with_its_instance(end):
    diary, letters = [], []
    async with ActorSystem(supervise=OneForOne(max_restarts=9)) as system:
        system.dead_letters.subscribe(lambda letter: letters.append((letter.reason, letter.message.name)))
        ref = await system.spawn(lambda: Service(diary, 1))
        asked = [asyncio.ensure_future(ref.ask(Job(n, 100), timeout=1000)) for n in "ab"]
        await run_until_idle()
        ref.tell(Job("c", 100))
        await run_until_idle()
        if end == "restart":
            ref.tell(Boom())
        else:
            getattr(ref, end)()
        for question in asked:
            with pytest.raises(ActorStopped):
                await question
        await run_until_idle()
        assert diary == ["a", "a cancelled"]  # nothing was begun by the end of another
        assert letters == [("stopped", "c")]
        if end == "restart":
            assert await ref.ask(Job("d")) == "d"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_drain_waits_for_accepted_work_and_for_deferred_answers():
    diary = []
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(diary, 1))
        for name in "abc":
            ref.tell(Job(name, 10))
        ref.drain()
        await ref.terminated()
        assert (time(), diary) == (30, ["a", "b", "c"])
        puppet = await system.spawn(Puppet)
        replies = []
        asked = asyncio.ensure_future(puppet.ask(Call(lambda a: replies.append(a.ctx.defer())), timeout=60))
        await run_until_idle()
        puppet.drain()
        await asyncio.sleep(5)
        assert puppet.is_alive
        replies[0].set("late but true")
        assert await asked == "late but true"
        await puppet.terminated()
        assert time() == 35


@virtual
async def test_each_piece_of_work_has_the_trace_and_the_deadline_of_its_own_message():
    seen = []

    class Tracing(Service):
        async def work(self, job):
            seen.append((job.name, current_trace()))
            if job.name == "nested":
                return await self.other.ask(1000.0, timeout=500)
            return await job.work()

    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Tracing(limit=1))
        other = await system.spawn(Puppet)
        await ref.ask(Call(lambda a: setattr(a, "other", other)))
        for name in "abc":
            with tracing(name):
                ref.tell(Job(name, 1))
        await asyncio.sleep(4)
        assert seen == [("a", "a"), ("b", "b"), ("c", "c")]
        began = time()
        with pytest.raises(AskTimeout):
            await ref.ask(Job("nested"), timeout=20)
        assert time() - began == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize("how", ["limiter", "pool"])
@virtual
async def test_a_circle_of_asks_through_it_is_a_deadlock(how):
    async with ActorSystem() as system:
        first = await system.spawn(Puppet, "first")

        class Worker(Service):
            async def work(self, job):
                return await first.ask(1)

            @on(str)
            async def back(self, _):
                return await first.ask(1)

        if how == "limiter":
            through, message = await system.spawn(Worker), Job("x")
        else:
            through, message = await system.spawn(lambda: Pool(Worker, 1)), "x"
        with pytest.raises(DeadlockError, match="/first asks"):
            await first.ask(Do(lambda a: through.ask(message)))


@virtual
async def test_the_mailbox_may_be_the_queue():
    class Bounded(Actor, mailbox=2):
        def on_start(self):
            self.limiter = self.ctx.limiter(1)

        @on(Job)
        async def job(self, job):
            await self.limiter.vacancy()
            self.limiter.submit(job.work)

    async with ActorSystem() as system:
        ref = await system.spawn(Bounded)
        asked = []
        for n in range(5):  # one at work, one in hand, two in the mailbox, one waits outside
            asked.append(asyncio.ensure_future(ref.ask(Job(n, 1), timeout=60)))
            await run_until_idle()
        assert system.tree().children[0].depth == 2
        assert await asyncio.gather(*asked) == [0, 1, 2, 3, 4]


@virtual
async def test_the_limit_can_change():
    async with ActorSystem() as system:
        ref = await system.spawn(lambda: Service(limit=1))
        asked = [asyncio.ensure_future(ref.ask(Job(n, 1), timeout=60)) for n in range(4)]
        await run_until_idle()
        await ref.ask(Call(lambda a: setattr(a.limiter, "limit", 3)))
        await run_until_idle()
        assert await counts(ref) == (3, 1)
        await asyncio.gather(*asked)
        with pytest.raises(SpecError, match="limiter"):
            await ref.ask(Call(lambda a: setattr(a.limiter, "limit", 0)))


@virtual
async def test_a_time_out_of_ones_own_making_that_fails_is_the_answer():
    async with ActorSystem() as system:
        ref = await system.spawn(Service)

        def bad():
            raise Boom("in on_timeout")

        with pytest.raises(Boom):
            await ref.ask(Job("x", 20, timeout=10, on_timeout=bad), timeout=60)
        await run_until_idle()
        assert await counts(ref) == (0, 0)


@virtual
async def test_a_pool_drains_what_its_workers_hold():
    diary = []
    async with ActorSystem() as system:
        pool = await system.spawn(lambda: Pool(lambda: Puppet(diary), 2, limit=3))
        for seconds in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0):
            pool.tell(seconds)
        pool.drain()
        await pool.terminated()
        assert sorted(diary) == [1, 2, 3, 4, 5, 6]
        assert system.dead_letters.total == 0


@virtual
async def test_a_pool_logs_the_failure_of_a_worker_once(caplog):
    async with ActorSystem() as system:
        pool = await system.spawn(lambda: Pool(Puppet, 1))
        pool.tell(Do(crash))
        await run_until_idle()
        assert [record.getMessage().count("Boom") for record in caplog.records] == [1]
        with suppress(Boom):
            await pool.ask(Do(crash))


@virtual
async def test_an_instance_that_ends_begins_no_more():
    seen = []

    class Late(Service):
        def on_stop(self):
            try:
                self.limiter.submit(Job("late").work)
            except ActorStopped as error:
                seen.append(str(error))

    async with ActorSystem() as system:
        ref = await system.spawn(Late)
        ref.stop()
        await ref.terminated()
    assert seen == [f"{ref.path} is ending; it begins no more work"]
