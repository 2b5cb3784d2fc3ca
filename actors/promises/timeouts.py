"""Time-outs: everything that has to do with time, in one table. All times are seconds.

| what | knob | unless you say otherwise | what happens then |
|---|---|---|---|
| an ask | `ref.ask(m, timeout=)` | 5, and never more than the question in hand has left | `AskTimeout` |
| several asks | `ctx.gather(..., timeout=)` | none | `TimeoutError`, the rest is cancelled |
| limited work | `limiter.submit(timeout=)` | none | cancelled, answered by `on_timeout` or `AskTimeout` |
| limited work that goes on though cancelled | | 5 | its place is given away, the log names it |
| quiet | `ctx.receive_timeout(s)` | none | the signal `ReceiveTimeout`, again and again |
| a timer | `ctx.timers.start(key, s, message)` | | the message |
| a child's end | `ChildSpec(shutdown=)` | 5; None is for ever | it is killed |
| an actor's end | `ref.stop(grace=)` | none | it is killed |
| the actors' end | `ActorSystem(shutdown=)` | 30 | all are killed; after it again `ShutdownTimeout` |
| a callback of the shutdown | `on_shutdown(timeout=)` | 5 | cancelled, an error in the log, the next |
| leaving what was entered, after a kill | the child's `shutdown` | 5 at least | cancelled |
| restarts | `OneForOne(max_restarts=, within=)` | 3 in 5 | the supervisor fails |
| before a restart | `Backoff(min, max, jitter)` | 0 | |
| a handler at work | `ActorSystem(slow_handler=)` | none | a warning in the log, once for each message |
| a plain handler that blocks | | 0.25 | a warning in the log |
| a task that swallows its cancellation | | 1 | cancelled again |

**How exact.** The deadline of an ask is met up to 50 ms late, never early: all of them hang on one wheel,
which is why they cost next to nothing. Timers are those of the loop. A timer or a receive timeout that was
cancelled, or whose actor has restarted, never shows, even if its message already waited.

**What is not bounded.** A handler may take for ever; bound what it awaits (`async with
asyncio.timeout(...)`, `anyio.fail_after`), or ask with a deadline and use `slow_handler` to see it. `send`
waits for a slot as long as you let it.

```python
import asyncio

from actors import Actor, ActorSystem, ReceiveTimeout, on
from actors.testing import run


class Session(Actor):
    def on_start(self) -> None:
        self.ctx.receive_timeout(600)
        self.ctx.timers.start("warn", 500, "you will be logged out")

    @on(str)
    def say(self, text: str) -> None:
        self.text = text

    @on(ReceiveTimeout)
    def quiet(self, _: ReceiveTimeout) -> None:
        self.ctx.self.stop()


async def main() -> None:
    async with ActorSystem() as system:
        session = Session()
        ref = await system.spawn(lambda: session)
        await ref.terminated()
        assert session.text == "you will be logged out"
        assert asyncio.get_running_loop().time() == 1100  # the warning was a message


run(main())  # in a few milliseconds: the clock of `actors.testing` jumps
```
"""
