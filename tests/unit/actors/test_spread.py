"""Failures that do not spread: refusals, the deadlock check, what watchers learn, the report of a crash."""

import asyncio
import logging

import pytest

from actors import (
    Actor,
    ActorSystem,
    ChildSpec,
    DeadlockError,
    OneForOne,
    Reject,
    Restarted,
    Terminated,
    on,
)
from actors.testing import Probe, run_until_idle
from tests.unit.actors.kit import Boom, Call, Do, Puppet, crash, virtual


class Account(Actor):
    @on(int)
    def withdraw(self, amount):
        raise Reject(f"{amount} is not covered")


class Bank(Actor):
    """Asks an account for each of its own questions, in four ways, and catches nothing."""

    async def on_start(self):
        self.account = await self.ctx.spawn(Account)
        self.balance = 70

    @on(int)
    async def transfer(self, amount):
        return await self.account.ask(amount)

    @on(float)
    async def gathered(self, amount):
        return await self.ctx.gather([self.account.ask(int(amount))])

    @on(str)
    async def in_a_task_group(self, _):
        async with asyncio.TaskGroup() as group:
            group.create_task(self.account.ask(1))
            group.create_task(self.account.ask(2))

    @on(bytes)
    def in_a_pipe(self, _):
        self.ctx.pipe(self.account.ask(1), lambda done: done)
        raise Reject("at once")

    @on(type(None))
    def read(self, _):
        return self.balance


@pytest.mark.parametrize("question", [1, 1.0, "group", b"pipe"], ids=["ask", "gather", "group", "pipe"])
@virtual
async def test_a_thousand_refused_questions_through_a_middle_actor_restart_no_one(question):
    """D7"""
    async with ActorSystem() as system:
        bank = await system.spawn(Bank)
        account = system.find(f"{bank.path}").cell.context.children
        for _ in range(1000):
            with pytest.raises(Reject):
                await bank.ask(question)
        bank.tell(question)
        await run_until_idle()
        info = system.tree().children[0]
        assert [info.restarts, *(child.restarts for child in info.children)] == [0, 0]
        assert system.find(bank.path).cell.context.children == account
        assert await bank.ask(None) == 70


@virtual
async def test_a_group_with_another_error_still_fails_the_actor():
    async def mixed(_):
        raise ExceptionGroup("both", [Reject("no"), Boom()])

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        with pytest.raises(ExceptionGroup):
            await ref.ask(Do(mixed))
        assert system.tree().children[0].restarts == 1


class Server(Puppet):
    """Answers lines of a socket by asking itself, from callbacks begun in `on_start`."""

    async def on_start(self):
        self.server = await self.ctx.enter(await asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        try:
            answer = await self.ctx.self.ask(int(await reader.readline()))
        except DeadlockError:
            answer = "deadlock"
        writer.write(f"{answer}\n".encode())
        writer.close()


async def test_a_callback_of_a_server_begun_in_on_start_can_ask_its_own_actor():
    """D6"""
    async with ActorSystem() as system:
        ref = await system.spawn(Server)
        port = await ref.ask(Call(lambda a: a.port))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"7\n")
        assert await reader.readline() == b"7\n"
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("way", ["task", "call_later", "task group of another task"])
@virtual
async def test_a_task_begun_in_a_handler_is_not_held(way):
    """D6: the handler does not wait for it."""
    outcome = asyncio.get_running_loop().create_future()

    async def ask(ref):
        try:
            outcome.set_result(await ref.ask(1))
        except DeadlockError as exc:
            outcome.set_result(exc)

    async def begin(actor):
        loop, own = asyncio.get_running_loop(), actor.ctx.self
        if way == "task":
            actor.task = loop.create_task(ask(own))
        elif way == "call_later":
            loop.call_later(1, lambda: setattr(actor, "task", loop.create_task(ask(own))))
        else:

            async def group():
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(ask(own))

            actor.task = loop.create_task(group())
        await asyncio.sleep(2)

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        await ref.ask(Do(begin))
        assert await outcome == 1


@pytest.mark.parametrize("gathered", [False, True])
@virtual
async def test_a_handler_that_waits_for_itself_is_a_deadlock(gathered):
    async def work(actor):
        question = actor.ctx.self.ask(1)
        return await (actor.ctx.gather([question]) if gathered else question)

    async with ActorSystem() as system:
        ref = await system.spawn(Puppet)
        with pytest.raises(DeadlockError):
            await ref.ask(Do(work))


@virtual
async def test_watchers_learn_of_restarts():
    async with ActorSystem() as system:
        probe, ref = await Probe.start(system), await system.spawn(Puppet)
        probe.watch(ref)
        for count in (1, 2):
            ref.tell(Do(crash))
            assert await probe.expect(Restarted) == Restarted(ref, count)
        ref.kill()
        assert (await probe.expect(Terminated)).reason == "killed"
        await probe.expect_nothing()


@virtual
async def test_a_parent_that_watches_its_child_learns_of_a_restart_once():
    async with ActorSystem() as system:
        parent = await system.spawn(Puppet)
        child = await parent.ask(Do(lambda a: a.ctx.spawn(Puppet)))
        await parent.ask(Call(lambda a: a.ctx.watch(child)))
        child.tell(Do(crash))
        await run_until_idle()
        diary = await parent.ask(Call(lambda a: a.diary))
        assert [type(signal) for signal in diary].count(Restarted) == 1


class Order:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        if self.text == "broken":
            raise ValueError("no repr")
        return f"Order({self.text!r})"


class Till(Actor):
    @on(Order)
    def take(self, order):
        raise Boom("out of paper")


@pytest.mark.parametrize("action", ["restart", "resume", "stop"])
@virtual
async def test_a_crash_leaves_its_traceback_and_its_last_message_in_one_record(action, caplog):
    """D9"""
    async with ActorSystem(supervise=OneForOne(decide={Boom: action})) as system:
        till = await system.spawn(ChildSpec("till", Till))
        till.tell(Order("x" * 1000))
        await run_until_idle()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith(f"/till failed ({action}) on Order('xxx")
    assert len(record.getMessage()) < 300
    assert 'raise Boom("out of paper")' in caplog.text


@virtual
async def test_a_message_whose_repr_raises_harms_no_one(caplog):
    async with ActorSystem() as system:
        till = await system.spawn(Till)
        till.tell(Order("broken"))
        await run_until_idle()
        assert till.is_alive
    assert "failed (restart) on <Order instance" in caplog.text


@virtual
async def test_a_system_can_keep_messages_out_of_the_log(caplog):
    async with ActorSystem(show_message=lambda message: type(message).__name__) as system:
        (await system.spawn(Till, "till")).tell(Order("secret"))
        await run_until_idle()
    assert "/till failed (restart) on Order: Boom" in caplog.text
    assert "secret" not in caplog.text
