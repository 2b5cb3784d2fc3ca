"""Backpressure: what happens when messages come faster than they are handled.

Every mailbox has an end: 1,000 messages unless the class says otherwise (`mailbox=50`; 0 means without an
end, by your own choice). What happens at the end depends on how you send:

| you use | at a full mailbox |
|---|---|
| `tell` | raises `MailboxFull`, at once; or what `overflow=` of the class says |
| `overflow="drop_new"` | this message becomes a dead letter (`full`) |
| `overflow="drop_old"` | the oldest one does; its asker gets `MailboxFull` |
| `await send` | waits for a slot, first come first served; nobody overtakes, `tell` neither |
| `await ask` | waits likewise, within its own deadline |
| `tell_threadsafe` | a dead letter (`full`) |
| `group.publish` | members that are full miss it: dead letters (`full`) |

Who is cancelled while it waits for a slot has sent nothing. An actor that restarts takes messages up to its
limit all the same, so that senders feel a long backoff.

**What never takes a slot**: answers, timers, signals and the results of pipes. An answer can therefore not
be stuck behind a full mailbox, and two actors that ask others cannot block each other by it.

```python
import asyncio

from actors import Actor, ActorSystem, MailboxFull, on
from actors.testing import run, run_until_idle


class Printer(Actor, mailbox=2):
    @on(str)
    async def print(self, page: str) -> None:
        await asyncio.sleep(1)


async def main() -> None:
    async with ActorSystem() as system:
        printer = await system.spawn(Printer)
        printer.tell("in hand")
        await run_until_idle()
        printer.tell("one")
        printer.tell("two")
        try:
            printer.tell("three")
            raise AssertionError
        except MailboxFull:
            await printer.send("three")  # as soon as "one" is in hand
        assert asyncio.get_running_loop().time() == 1


run(main())
```

**Queues in front of work.** Three ways to do several things at once, each with an end:

- `Pool(Worker, 8)`: actors with state of their own behind one ref. The pool's mailbox is the queue: a message
  leaves it when a worker is free.
- `ctx.limiter(8)` with `await limiter.vacancy()`: tasks of one actor, its mailbox is the queue.
- `ctx.limiter(8)` with `submit` alone: the queue is inside the actor, so that it goes on handling messages
  meanwhile (to cancel by key, to answer how long the queue is). It has no end of its own: use it where those
  who ask are few or wait for their answers.

**Set aside.** `ctx.stash` has 100 slots (`stash=`), then `StashFull`.

See how it stands: `system.tree()` gives `depth` and `capacity` of each mailbox, the type of the message in
hand and for how long it has been there.
"""
