"""Actors on asyncio: state that one message at a time touches, supervised, restarted, ended in order.

A guide of ten minutes. Every block runs as it stands; `actors.testing.run` is `asyncio.run` with a clock
that jumps.

**An actor** is a class with handlers, declared by the type of message they take. The return value is the
reply; a handler may be plain or `async`. Messages may be of any class; `Message[Reply]` only tells type
checkers more. A `Ref` is the only way to an actor: `tell` goes on at once, `send` waits for a free slot of
the bounded mailbox, `ask` waits for the reply.

```python
from dataclasses import dataclass

from actors import Actor, ActorSystem, Message, Reject, on
from actors.testing import run


@dataclass
class Deposit(Message[int]):
    amount: int


class Account(Actor[Deposit], mailbox=100):
    def __init__(self, balance: int = 0) -> None:
        self.balance = balance

    @on(Deposit)
    def deposit(self, message: Deposit) -> int:
        if message.amount <= 0:
            raise Reject("deposit something")
        self.balance += message.amount
        return self.balance


async def main() -> None:
    async with ActorSystem() as system:
        account = await system.spawn(lambda: Account(10), "ann")
        account.tell(Deposit(5))
        assert await account.ask(Deposit(1)) == 16
        try:
            await account.ask(Deposit(0))
        except Reject:
            pass


run(main())
```

**Asking** always has a deadline: 5 s, `timeout=` otherwise, `math.inf` for none. Inside a handler it is
never later than that of the question in hand. An ask settles exactly once: by the reply, the handler's
exception, `AskTimeout`, or `ActorStopped`, at once if the actor is gone. A question whose asker no longer
waits is not begun. Actors that ask each other in a circle get a `DeadlockError` instead of waiting.

**Failing.** `Reject` is the asker's fault: it passes through every actor that asked on its behalf and fails
none. Any other exception reaches the asker *and*
fails the actor; its supervisor's strategy decides: restart, resume, stop or escalate. A restart keeps the
ref and the mailbox and makes a new instance. One restart too many fails the supervisor; at the top it leaves
the `async with` block.

```python
from actors import Actor, ActorSystem, Backoff, ChildSpec, Failed, OneForOne, on
from actors.testing import run


class Worker(Actor):
    @on(str)
    async def work(self, message: str) -> str:
        if message == "bad":
            raise ValueError(message)
        return message.upper()


class Boss(Actor):
    supervise = OneForOne(
        max_restarts=3,
        within=60,
        backoff=Backoff(0.2, 10, jitter=0.2),
        decide={PermissionError: "stop"},
    )

    def __init__(self) -> None:
        self.failures: list[str] = []

    async def on_start(self) -> None:
        await self.ctx.spawn(ChildSpec("worker", Worker, restart="transient"))

    @on(Failed)
    def failed(self, signal: Failed) -> None:
        self.failures.append(f"{signal.ref.name}: {signal.error}, {signal.action}")

    @on(int)
    def report(self, _: int) -> list[str]:
        return self.failures


async def main() -> None:
    async with ActorSystem() as system:
        boss = await system.spawn(Boss, "boss")
        worker = system.find("/boss/worker")
        worker.tell("bad")
        assert await worker.ask("again") == "AGAIN"
        assert await boss.ask(0) == ["worker: bad, restart"]


run(main())
```

**Work that takes long.** While a handler awaits, the actor handles nothing else. `ctx.pipe` does work beside
the mailbox; its result arrives as a message. `ctx.defer` takes the reply over, to be given later.
`ctx.gather` awaits several things together. Timers are messages to oneself. What an actor enters, starts or
pipes ends with it.

```python
import asyncio

from actors import Actor, ActorSystem, on
from actors.testing import run


class Kitchen(Actor):
    def __init__(self) -> None:
        self.served: list[str] = []

    def on_start(self) -> None:
        self.ctx.timers.start("closing", 3600, "close")

    @on(str)
    def order(self, dish: str) -> None:
        if dish == "close":
            self.ctx.self.drain()
            return
        reply = self.ctx.defer()
        self.ctx.pipe(asyncio.sleep(60, dish), lambda done: (reply, done))

    @on(tuple)
    def cooked(self, result) -> None:
        reply, dish = result
        self.served.append(dish)
        reply.set(f"{dish}, number {len(self.served)}")


async def main() -> None:
    async with ActorSystem() as system:
        kitchen = await system.spawn(Kitchen)
        soup, fish = await asyncio.gather(*(kitchen.ask(dish, timeout=90) for dish in ("soup", "fish")))
        assert (soup, fish) == ("soup, number 1", "fish, number 2")  # in 60 s, not 120
        await kitchen.terminated()  # it closes after an hour


run(main())
```

**Ending.** `stop` ends after the message in hand, `drain` after everything accepted, `kill` at once, the
whole subtree. Children end first, the last started first. Each watcher is told once, by `Terminated`.
Undeliverable messages are dead letters with a reason. Leaving the system ends every actor, within a
deadline, whatever happens around it.

```python
from actors import Actor, ActorSystem, DeadLetter, Terminated, on
from actors.testing import Probe, run


class Sleeper(Actor):
    @on(str)
    def hear(self, _: str) -> None: ...


async def main() -> None:
    letters: list[DeadLetter] = []
    async with ActorSystem() as system:
        system.dead_letters.subscribe(letters.append)
        probe = await Probe.start(system)
        sleeper = await system.spawn(Sleeper)
        probe.watch(sleeper)
        sleeper.stop()
        assert (await probe.expect(Terminated)).reason == "stopped"
        sleeper.tell("too late")
        assert letters[0].reason == "stopped"


run(main())
```

**Where to look.** Delivery, order, asks: `Ref`. Children, timers, owned work, stash, `become`: `Context`.
Strategies: `OneForOne`, `OneForAll`, `RestForOne`. Many workers behind one ref: `Pool`; a limit on what one
actor does at once: `ctx.limiter`. Publish and subscribe: `system.group`. By key: `system.registry`.
Threads: `Ref.tell_threadsafe`.
Trace context, spans for the types of messages you choose: `tracing`, `Interceptor`. What runs:
`system.tree()`, `system.dead_letters`, `ActorSystem(slow_handler=)`. Tests: `actors.testing`.

Each promise has a page in `actors/docs`: delivery, backpressure, asking, supervision, stopping,
time-outs.

Promises in short: delivery is at most once and in order for each sender and receiver. One message at a time.
Signals, timers and results of pipes take no slot of the mailbox and come before messages. An actor has at
most 64 messages or 2 ms in a turn. Handlers of different actors share no context variables; of the sender's
the message carries the trace alone. Each task belongs to the system and ends with it.
"""

from __future__ import annotations

from actors.actor import Actor, on
from actors.context import Context
from actors.errors import (
    ActorError,
    ActorStopped,
    AskTimeout,
    DeadlockError,
    Finished,
    HandlerCancelled,
    HandlerTimeout,
    HookTimeout,
    LinkBroken,
    MailboxFull,
    NameTaken,
    Reject,
    ShutdownTimeout,
    SpecError,
    StashFull,
    Unhandled,
    WrongThread,
)
from actors.groups import Group, Registry
from actors.interceptor import Interceptor
from actors.introspection import ActorInfo
from actors.kernel.owned import Pipe
from actors.limiter import Limiter
from actors.messages import Message
from actors.pool import Pool
from actors.question import Reply
from actors.ref import Ref
from actors.shutdown import Phase
from actors.signals import DeadLetter, Failed, ReceiveTimeout, Restarted, Terminated
from actors.specs import ChildSpec
from actors.supervision import Action, Backoff, History, OneForAll, OneForOne, RestForOne, Strategy
from actors.system import ActorSystem
from actors.trace import current_trace, tracing

__all__ = [
    "Action",
    "Actor",
    "ActorError",
    "ActorInfo",
    "ActorStopped",
    "ActorSystem",
    "AskTimeout",
    "Backoff",
    "ChildSpec",
    "Context",
    "DeadLetter",
    "DeadlockError",
    "Failed",
    "Finished",
    "Group",
    "HandlerCancelled",
    "HandlerTimeout",
    "History",
    "HookTimeout",
    "Interceptor",
    "Limiter",
    "LinkBroken",
    "MailboxFull",
    "Message",
    "NameTaken",
    "OneForAll",
    "OneForOne",
    "Phase",
    "Pipe",
    "Pool",
    "ReceiveTimeout",
    "Ref",
    "Registry",
    "Reject",
    "Reply",
    "RestForOne",
    "Restarted",
    "ShutdownTimeout",
    "SpecError",
    "StashFull",
    "Strategy",
    "Terminated",
    "Unhandled",
    "WrongThread",
    "current_trace",
    "on",
    "tracing",
]
