"""`ctx.pipe` of an answer's future (`ask_soon`): no task of its own, and the same rules as any other work."""

import asyncio
import math

import pytest

from actors import Actor, ActorSystem, current_trace, on, tracing
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
