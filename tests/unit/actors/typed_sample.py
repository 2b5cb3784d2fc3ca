# pyright: strict
"""What a type checker must accept and, on lines marked `# rejected`, refuse. Checked, never run."""

import math
from dataclasses import dataclass
from typing import Any, assert_type

import msgspec

from actors import (
    Actor,
    ActorSystem,
    ChildSpec,
    Context,
    Message,
    OneForOne,
    Pool,
    Ref,
    Reply,
    Terminated,
    on,
)
from actors.testing import Probe, run


@dataclass
class Report:
    text: str


class Research(msgspec.Struct, Message[Report], frozen=True):
    topic: str


@dataclass
class Ping(Message[None]):
    pass


@dataclass
class Note:
    """A plain class: an ask for it is answered by anything."""


class Foreign(Message[int]):
    pass


class Researcher(Actor[Research | Ping | Note], mailbox=100):
    supervise = OneForOne(max_restarts=3, within=60)

    async def on_start(self) -> None:
        assert_type(self.ctx, Context[Research | Ping | Note])
        assert_type(self.ctx.self, Ref[Research | Ping | Note])
        self.ctx.timers.start("t", 1, Research("x"), repeat=True)
        self.ctx.timers.start("t", 1, "text")  # rejected
        self.ctx.become({Ping: self.ping, Note: self.ping})
        self.ctx.become({str: self.ping})  # rejected

    def on_stop(self) -> None:
        pass

    async def on_restart(self, exc: BaseException) -> None:
        pass

    @on(Research)
    async def research(self, msg: Research) -> Report:
        return Report(msg.topic)

    @on(Ping, Note)
    def ping(self, msg: Ping | Note) -> None:
        reply: Reply[Any] = self.ctx.defer()
        reply.set(None)

    @on(Terminated)
    def gone(self, signal: Terminated) -> None:
        assert_type(signal.ref, Ref[Any])

    @on(Research)
    def wrong(self, msg: Ping) -> None:  # the decorator's line is the one rejected
        pass


class Deposit(msgspec.Struct, Message[int]):
    amount: int


class Account(Actor[Deposit]):
    @on(Deposit)
    def plain(self, message: Deposit) -> int:
        return message.amount

    @on(Deposit)
    async def awaited(self, message: Deposit) -> int:
        return message.amount

    @on(Deposit)
    def deferred(self, message: Deposit) -> Reply[int]:
        return self.ctx.defer()

    @on(Deposit)
    def wrong_reply(self, message: Deposit) -> str:  # the decorator's line is the one rejected
        return ""

    @on(Deposit)
    async def wrong_awaited(self, message: Deposit) -> str:  # the decorator's line is the one rejected
        return ""

    @on(Deposit)
    def no_reply(self, message: Deposit) -> None:  # the decorator's line is the one rejected
        pass

    @on(Deposit)
    def wrong_deferred(self, message: Deposit) -> Reply[str]:  # the decorator's line is the one rejected
        return self.ctx.defer()

    @on(Deposit, Ping)
    async def two(self, message: Deposit | Ping) -> int | None:
        return None


async def typed_answers(system: ActorSystem) -> None:
    account = await system.spawn(Account)
    number: int = await account.ask(Deposit(1))
    text: str = await account.ask(Deposit(1))  # rejected
    soon: int = await account.ask_soon(Deposit(1))
    later: str = await account.ask_soon(Deposit(1))  # rejected
    print(number, text, soon, later)
    await account.ask(Note())  # rejected
    anything: Ref[Any] = account
    assert_type(await anything.ask(Deposit(1)), int)
    assert_type(await anything.ask("text"), Any)

    found = system.find("/account", Account)
    assert_type(found, Ref[Deposit] | None)
    assert_type(system.find("/account"), Ref[Any] | None)
    keyed = system.registry.find("ann", Account)
    assert keyed is not None
    keyed.tell("text")  # rejected

    topic = system.group("deposits", Deposit)
    topic.join(account)
    topic.publish(Deposit(1))
    topic.publish("text")  # rejected
    pinged = await system.spawn(lambda: Researcher())
    topic.join(pinged)  # rejected
    assert_type(topic.members, list[Ref[Deposit]])


class Untyped(Actor, mailbox=0):
    def __init__(self, number: int = 0) -> None:
        self.number = number

    @on(str)
    def text(self, msg: str) -> int:
        return len(msg)


async def main() -> None:
    async with ActorSystem(name="typed") as system:
        ref = await system.spawn(Researcher)
        assert_type(ref, Ref[Research | Ping | Note])
        ref.tell(Research("x"))
        ref.tell(Note())
        ref.tell("text")  # rejected
        await ref.send(Foreign())  # rejected
        ref.tell_threadsafe(3)  # rejected
        assert_type(await ref.ask(Research("x")), Report)
        assert_type(await ref.ask(Research("x"), timeout=math.inf), Report)
        assert_type(await ref.ask(Ping(), timeout=None), None)
        assert_type(await ref.ask(Note()), Any)
        await ref.ask(Foreign())  # rejected
        await ref.ask("text")  # rejected
        # mypy takes the overload that fits the declared type: it must infer the reply, as above.
        number: int = await ref.ask(Research("x"))  # rejected by pyright
        print(number)

        narrow: Ref[Research] = ref
        wide: Ref[Research | Ping | Note | Foreign] = ref  # rejected
        anything: Ref[Any] = ref
        anything.tell(object())
        print(narrow, wide)
        assert_type(await anything.ask("text"), Any)

        untyped = await system.spawn(Untyped, "u")
        assert_type(untyped, Ref[Any])
        untyped.tell("x")
        untyped.tell(3)
        assert_type(await system.spawn(lambda: Untyped(3)), Ref[Any])
        soon = system.spawn_soon(ChildSpec("r", Researcher, restart="transient"))
        soon.tell("text")  # rejected
        await system.spawn(Researcher())  # rejected
        ChildSpec("r", Researcher, restart="sometimes")  # rejected

        pool = await system.spawn(lambda: Pool(Researcher, 3), "pool")
        assert_type(await pool.ask(Research("x")), Report)
        pool.tell("text")  # rejected

        ctx = Researcher().ctx
        assert_type(await ctx.gather(ref.ask(Research(t)) for t in "ab"), list[Report])
        assert_type(await ctx.gather((ref.ask(Research(t)) for t in "ab"), first=1), list[Report])
        collected = await ctx.gather((ref.ask(Research(t)) for t in "ab"), collect=True)
        assert_type(collected, list[Report | BaseException])
        ctx.pipe(ref.ask(Research("x")), lambda report: report.text)
        ctx.pipe(ref.ask(Research("x")), lambda report: report.number)  # rejected
        probe = await Probe.start(system)
        assert_type(await probe.expect(str), str)


run(main())
