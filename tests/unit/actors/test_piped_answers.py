"""`ctx.pipe` of an answer's future (`ask_soon`): no task of its own, and the same rules as any other work."""

import asyncio
import math
from functools import partial

import pytest

from actors import Actor, ActorSystem, OneForOne, current_trace, on, tracing
from actors.testing import run_until_idle
from tests.unit.actors.kit import virtual


class Service(Actor):
    """Answers when its gate opens; an odd number is an error."""

    def on_start(self):
        self.gate = asyncio.Event()
        self.cancelled = 0
        self.limiter = self.ctx.limiter(10)

    @on(int)
    def work(self, number: int):
        async def job():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            if number % 2:
                raise ValueError(number)
            return number

        self.limiter.submit(job)

    @on(str)
    def open(self, _: str):
        self.gate.set()


class Client(Actor):
    def __init__(self, service, heard):
        self.service, self.heard = service, heard

    @on(int)
    def begin(self, number: int):
        with tracing(f"trace {number}"):
            self.ctx.pipe(self.service.ask_soon(number, timeout=math.inf), str, str)

    @on(str)
    def hear(self, text: str):
        self.heard.append((text, current_trace()))

    @on(float)
    def fail(self, _: float):
        raise RuntimeError("a bug")


@virtual
async def test_the_result_and_the_error_arrive_with_the_trace():
    async with ActorSystem() as system:
        heard, service = [], await system.spawn(Service)
        client = await system.spawn(lambda: Client(service, heard))
        tasks = len(asyncio.all_tasks())
        client.tell(2)
        client.tell(3)
        await run_until_idle()
        assert len(asyncio.all_tasks()) == tasks + 2  # those of the limiter
        service.tell("open")
        await run_until_idle()
        assert heard == [("2", "trace 2"), ("3", "trace 3")]


@pytest.mark.parametrize("how", ["stop", "kill", "restart"])
@virtual
async def test_the_question_is_taken_back_when_the_instance_ends(how):
    async with ActorSystem() as system:
        heard, made = [], []

        def make():
            made.append(Service())
            return made[-1]

        service = await system.spawn(make)
        client = await system.spawn(lambda: Client(service, heard))
        client.tell(2)
        await run_until_idle()
        if how == "restart":
            client.tell(1.0)
        else:
            getattr(client, how)()
        await run_until_idle()
        assert made[0].cancelled == 1
        service.tell("open")
        await run_until_idle()
        assert heard == []


@virtual
async def test_an_answer_that_waits_when_the_instance_ends_is_dropped():
    """The future is done and its callback is due: what it would deliver belongs to the old instance."""
    async with ActorSystem() as system:
        heard = []
        answer = asyncio.get_running_loop().create_future()

        class Waiting(Client):
            @on(bytes)
            def wait(self, _: bytes):
                self.ctx.pipe(answer, str, str)

        client = await system.spawn(lambda: Waiting(None, heard))
        client.tell(b"")
        await run_until_idle()
        answer.set_result("late")
        client.kill()
        await client.terminated()
        await run_until_idle()
        assert heard == []


class Pupil(Actor):
    """Notes in `heard` what it is told and what a piped question is answered with."""

    def __init__(self, service, heard, told=None):
        self.service, self.heard, self.told = service, heard, told

    @on(int)
    def begin(self, number: int):
        self.ctx.pipe(self.service.ask_soon(number, timeout=math.inf), self.answered)

    def answered(self, number: int):
        self.heard.append(number)
        if self.told is not None:
            self.told.tell_now(number)

    @on(bytes)
    def busy(self, _: bytes):
        self.service.tell_now("open")
        self.heard.append("done")


class Deferring(Actor):
    """Gives the answer to the last question when it is told a text, within the handler of that."""

    @on(int)
    def work(self, number: int):
        self.number, self.reply = number, self.ctx.defer()

    @on(str)
    def open(self, _: str):
        self.reply.set(self.number)


class Listener(Actor):
    def __init__(self, heard):
        self.heard = heard

    @on(int)
    def hear(self, number: int):
        self.heard.append((self.ctx.sender.name, number))


@virtual
async def test_an_idle_asker_has_the_answer_before_the_one_who_gives_it_goes_on():
    async with ActorSystem() as system:
        heard, service = [], await system.spawn(Deferring)
        listener = await system.spawn(lambda: Listener(heard))
        pupil = await system.spawn(lambda: Pupil(service, heard, listener), "pupil")
        pupil.tell(7)
        await run_until_idle()
        service.tell_now("open")
        assert heard == [7, ("pupil", 7)]  # and what it tells then has its own name


@virtual
async def test_an_asker_at_work_has_the_answer_after_its_message():
    async with ActorSystem() as system:
        heard, service = [], await system.spawn(Deferring)
        pupil = await system.spawn(lambda: Pupil(service, heard))
        pupil.tell(7)
        await run_until_idle()
        pupil.tell(b"")
        await run_until_idle()
        assert heard == ["done", 7]


@virtual
async def test_a_piped_answer_that_raises_fails_the_asker_and_not_the_one_who_gives_it():
    async with ActorSystem(supervise=OneForOne(max_restarts=3, within=60)) as system:
        heard, service = [], await system.spawn(Deferring)

        class Failing(Pupil):
            def answered(self, number: int):
                raise RuntimeError("a bug")

            async def on_restart(self, exc: BaseException):
                self.heard.append(str(exc))

        pupil = await system.spawn(lambda: Failing(service, heard))
        pupil.tell(7)
        await run_until_idle()
        service.tell_now("open")
        await run_until_idle()
        assert heard == ["a bug"]
        assert service.is_alive
        assert pupil.is_alive


@virtual
async def test_a_place_is_free_before_the_answer_arrives():
    """What the answer brings may be the next piece of work of the same limiter."""
    async with ActorSystem() as system:
        active, service = [], None

        class Limited(Actor):
            def on_start(self):
                self.limiter = self.ctx.limiter(1)

            @on(int)
            def work(self, number: int):
                active.append(self.limiter.active)

                async def job():
                    return number

                self.limiter.submit(job, timeout=60.0)

        service = await system.spawn(Limited)

        class Repeating(Pupil):
            def answered(self, number: int):
                if number < 3:
                    self.begin(number + 1)

        pupil = await system.spawn(lambda: Repeating(service, []))
        pupil.tell(1)
        await run_until_idle()
        assert active == [0, 0, 0]


class Clerk(Actor):
    """Keeps every question until it is told the answer."""

    def on_start(self):
        self.replies = {}

    @on(int)
    def take(self, number: int):
        if number < 0:
            return number
        self.replies[number] = self.ctx.defer()
        return None

    @on(str)
    def give(self, number: str):
        self.replies[int(number)].set(number)

    @on(bytes)
    def refuse(self, number: bytes):
        self.replies[int(number)].fail(ValueError(int(number)))


class Asker(Actor):
    def __init__(self, clerk, heard):
        self.clerk, self.heard = clerk, heard

    @on(tuple)
    def begin(self, numbers: tuple[int, ...]):
        for number in numbers:
            self.ctx.pipe(self.clerk.ask_soon(number), str, str)

    @on(str)
    def hear(self, answer: str):
        self.heard.append(answer)

    @on(float)
    def be_busy(self, _: float):
        pass


@pytest.mark.parametrize("first", ["0", b"0"])
@virtual
async def test_answers_arrive_in_the_order_in_which_they_were_given(first):
    async with ActorSystem() as system:
        heard, clerk = [], await system.spawn(Clerk)
        asker = await system.spawn(lambda: Asker(clerk, heard))
        asker.tell((0, 1))
        await run_until_idle()
        asker.tell(1.0)  # it waits for its turn when the first is given, and is idle at the second
        clerk.tell_now(first)
        clerk.tell("1")
        await run_until_idle()
        assert heard == ["0", "1"]


@virtual
async def test_an_answer_that_was_there_at_once_arrives_first():
    async with ActorSystem() as system:
        heard, clerk = [], await system.spawn(Clerk)
        asker = await system.spawn(lambda: Asker(clerk, heard))
        asker.tell_now(1.0)
        await run_until_idle()  # the slice of what is told now has begun
        asker.tell_now((0, -1))
        clerk.tell_now("0")
        await run_until_idle()
        assert heard == ["-1", "0"]


class Stage(Actor, mailbox=10):
    """Asks the next one, and answers with one more than its answer."""

    def __init__(self, following):
        self.following = following

    @on(int)
    def work(self, number: int):
        if self.following is None:
            return number
        reply = self.ctx.defer()
        self.ctx.pipe(self.following.ask_soon(number), lambda result: self.give(reply, result))
        return None

    def give(self, reply, result):
        reply.set(result + 1)


@virtual
async def test_a_pipeline_of_two_thousand_needs_no_stack():
    async with ActorSystem() as system:
        stage = None
        for _ in range(2_001):
            stage = await system.spawn(partial(Stage, stage))
        assert await stage.ask(0) == 2_000
