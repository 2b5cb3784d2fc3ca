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
        assert_type(self.ctx, Context)

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
