"""Delivery: how often, in which order, one at a time, and what becomes of the rest.

**At most once.** A message is handled once or not at all. It is not handled again when its handler failed,
nor when the actor restarts. Who needs more keeps a log of its own, or asks and asks again, with messages
that may come twice. Nothing leaves the process.

**In order for each pair.** What one sender sends to one receiver is handled in the order of sending.
Nothing is said about two senders, nor about a way over a third actor. A restart changes nothing: the
mailbox stays.

**One at a time.** While a handler runs, also while it awaits, the actor handles nothing else. Only what
runs beside the mailbox (`ctx.pipe`, the work of a limiter) overlaps, and it must not touch the actor's
state; its result arrives as a message, or is the answer.

**Four lanes.** `kill` comes before `stop`, that before signals (`Failed`, `Restarted`, `Terminated`),
timers and results of pipes, and those before messages. A full mailbox holds up none of the first three.

**Fair.** An actor has at most 64 messages or 2 ms in a turn; then others have theirs. A plain handler that
holds up the loop for more than a quarter of a second is named in the log.

```python
import asyncio

from actors import Actor, ActorSystem, on
from actors.testing import run


class Diary(Actor):
    def __init__(self) -> None:
        self.lines: list[str] = []

    @on(str)
    async def write(self, line: str) -> None:
        await asyncio.sleep(1)  # the next line waits for the end of this one
        if line == "bad":
            raise ValueError(line)
        self.lines.append(line)

    @on(type(None))
    def read(self, _: None) -> list[str]:
        return self.lines


async def main() -> None:
    async with ActorSystem() as system:
        diary = await system.spawn(Diary)
        for line in ("a", "b", "bad", "c"):
            diary.tell(line)
        # "bad" is not tried again; the new instance goes on behind it, with a new diary.
        assert await diary.ask(None, timeout=60) == ["c"]


run(main())
```

**The rest are dead letters**: messages that nobody handled. `system.dead_letters` counts them by reason and
hands them to whoever subscribes; it keeps none.

| reason | what happened |
|---|---|
| `stopped` | the addressee is gone or ending; a question fails with `ActorStopped` instead |
| `unknown` | `system.tell` found no actor at that path |
| `full` | dropped by the mailbox's policy, by a group, or on its way from another thread |
| `expired` | a question whose asker no longer waits; its handler was not begun |
| `late` | an answer after the deadline |
| `duplicate` | a second answer |
| `unhandled` | told, and rejected or of a type without handler (an ask fails with `Unhandled`) |

The log shows `dead letter (stopped): Order to /shop/till`: the type, never the content, at most ten times
in ten seconds.

**From other threads** there is one door, `ref.tell_threadsafe`. `ActorSystem(debug=True)` refuses every
other way with `WrongThread`. In order too, for each thread.

**What travels along**: of the sender's context variables only the trace (`tracing`, `current_trace`); of a
question also its deadline and the chain of who asks whom.
"""
