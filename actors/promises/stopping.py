"""Stopping: how an actor, and a system, ends.

| | the message in hand | what waits in the mailbox | new messages |
|---|---|---|---|
| `ref.stop()` | is finished | dead letters; questions fail with `ActorStopped` | refused |
| `ref.stop(grace=s)` | the same; after s seconds as `kill` | | |
| `ref.drain()` | is finished | is handled, and what was deferred or limited is answered | refused |
| `ref.kill()` | is cancelled, in the whole subtree | as with `stop` | refused |
| `ctx.finish()` | is finished | as with `stop`; a permanent actor restarts instead | refused |

Doing it twice is harmless, and the stronger one counts. Refused means: a dead letter for `tell`,
`ActorStopped` for `send` and `ask`, also for those that wait for a slot.

**In this order**: timers end, and no more limited work begins; the children, the last one started first,
each within its `shutdown` time (5 s; then it is killed); pipes and limited work are cancelled, deferred
questions fail; `on_stop` (not after a kill); what was entered by `ctx.enter` is left, however the actor
ends; the mailbox becomes dead letters; the name is free again; watchers and the parent get `Terminated`
with a reason: `stopped`, `killed` or `failed`.

**What will not die.** A handler that swallows its cancellation is cancelled again every second; the actor
is not gone before it is. Limited work that does so loses its place after 5 s.

```python
import asyncio

from actors import Actor, ActorStopped, ActorSystem, on
from actors.testing import run


class Shop(Actor):
    def __init__(self) -> None:
        self.sold: list[str] = []

    @on(str)
    async def sell(self, what: str) -> None:
        await asyncio.sleep(1)
        self.sold.append(what)


async def main() -> None:
    corner, market = Shop(), Shop()
    async with ActorSystem() as system:
        refs = [await system.spawn(lambda: corner), await system.spawn(lambda: market)]
        for ref in refs:
            ref.tell("bread")
            ref.tell("milk")
        refs[0].stop()
        refs[1].drain()
        for ref in refs:
            await ref.terminated()
        assert (corner.sold, market.sold) == ([], ["bread", "milk"])
        assert system.dead_letters.counts == {"stopped": 2}
        try:
            await refs[0].ask("eggs")
        except ActorStopped:
            pass


run(main())
```

**The system** owns every actor and every task. Leaving `async with ActorSystem()` runs the phases, each
callback of `system.on_shutdown(phase, ...)` with a time of its own, whatever the others do:

1. `stop_listening`, 2. `stop_admitting`, 3. `drain`: the actors live. Then they end, as by `stop`, within
   `shutdown` (30 s) or by `kill`.
4. `flush_log`, 5. `flush_telemetry`: no actor is left; close here what actors use.

A callback that fails or takes too long is an error in the log; registered with `raises=True` it also leaves
the block with its exception. All of it is shielded: a cancelled scope around the block waits for the end. A
second cancellation of the task hurries: actors are killed at once, and only the last two phases keep their
time. Ctrl-C ends the same way. Actors that would not end even killed are listed by `ShutdownTimeout`.
"""
