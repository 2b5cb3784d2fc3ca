"""Asking: how a question ends, always.

`await ref.ask(message)` sends and waits for the answer: what the handler returns, or what it gives later by
`ctx.defer()` or a limiter. A question ends exactly once, by what comes first:

| how it ends | when |
|---|---|
| the answer | |
| `Reject` | the handler raised it: the question was wrong. The actor lives |
| the handler's exception | any other; the actor fails by it too, and its supervisor sees to it |
| `Unhandled` | the actor has no handler for this type |
| `AskTimeout` | the deadline passed; it is a `TimeoutError` too |
| `ActorStopped` | the actor is gone, went before it answered, or restarted with it deferred. At once |
| `MailboxFull` | a mailbox with `drop_old` dropped it for a newer message |
| `DeadlockError` | see below. At once |
| cancelled | by your own scope or task |

**Deadline.** 5 s unless you say `timeout=`; `math.inf` for none. Inside a handler no question outlasts the
one in hand: asked with 2 s to go, an ask of 5 s ends after 2. `timeout=None` means just that. The deadline
includes the wait for a slot of the mailbox and is met up to 50 ms late, never early. `ctx.remaining` tells
a handler how long its asker will wait.

**Nobody waits any more**: the question was cancelled or is late. If its handler has not begun it will not
begin (a dead letter, `expired`). If it has, it goes on; its answer is a dead letter (`late`). Work in a
limiter is cancelled.

**Circles.** A asks B, B asks A: neither could ever answer. The chain travels with the questions, and the
ask that would close the circle raises `DeadlockError` with the path, also over pools and limiters. Ask from
`ctx.pipe` instead, where the actor does not wait, or tell.

```python
import asyncio

from actors import Actor, ActorSystem, AskTimeout, DeadlockError, on
from actors.testing import run


class Clerk(Actor):
    def __init__(self, other: str) -> None:
        self.other = other

    @on(str)
    async def answer(self, question: str) -> str:
        if question == "slow":
            await asyncio.sleep(60)
        if question == "ask the other":
            return await self.ctx.system.find(self.other).ask("ask the other")
        return question.upper()


async def main() -> None:
    async with ActorSystem() as system:
        ann, bob = await system.spawn(lambda: Clerk("/bob"), "ann"), await system.spawn(lambda: Clerk("/ann"), "bob")
        assert await ann.ask("hello") == "HELLO"
        try:
            await bob.ask("ask the other")
        except DeadlockError as error:
            assert "/bob asks /ann asks /bob" in str(error)
        try:
            await ann.ask("slow", timeout=1)
        except AskTimeout as error:
            assert "/ann did not answer in time; it has been at str for" in str(error)


run(main())
```

**Several at once**: `await ctx.gather(...)` with one deadline: all, the first n, or each with its outcome.

**A `Reject` passes on.** A handler that asks, is rejected, and does not catch the `Reject` passes it on to its
own asker. No actor on the way fails or restarts, so that no client can take a service down by wrong questions.
The same holds for a group of nothing but rejections, as a task group raises it.
"""
