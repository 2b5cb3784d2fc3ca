"""Supervision: what happens when an actor fails.

**Failing** is any exception but `Reject` that leaves a handler or a hook, an exception of a pipe without
`on_error`, and `HandlerCancelled`: a handler that somebody other than the library cancelled. The message is
not tried again. KeyboardInterrupt and SystemExit end the system instead.

**Who decides**: the parent's `supervise`, or the system's for what it spawned. It is data, carried out at
once, even while the parent itself awaits something. The parent hears of it by signals, if it declares them:
`Failed` (with the action), `Restarted`, `Terminated`.

| action | what happens |
|---|---|
| `restart` (unless you say otherwise) | a new instance; see below |
| `resume` | the same instance goes on with the next message |
| `stop` | the actor ends; watchers are told, reason `failed` |
| `escalate` | the supervisor fails by the same exception |

`decide` is a mapping of exception types, of which the nearest base class counts, or a function of the
exception and its `History`. A decider that itself fails escalates.

**Strategies**: `OneForOne` restarts the one that failed, `OneForAll` all children, `RestForOne` it and
those started after it.

**A restart** keeps the ref, the mailbox and the watchers, and loses the state. In this order: the message
in hand is over; `on_restart` on the old instance; its timers end, its children stop, its pipes and limited
work are cancelled, deferred questions fail with `ActorStopped`, what it entered is left; the backoff
passes; the factory makes a new instance; `on_start`; the mailbox goes on. A failure of the first start goes
to whoever called `spawn`; any later one counts as one more failure.

**Child specs**: `permanent` (restarted after failures and after `ctx.finish()`), `transient` (after
failures), `temporary` (never). A `stop`, `drain` or `kill` of a ref is final for all of them. A permanent
actor that finishes shows in the log as `Finished`.

**Intensity**: at most `max_restarts` (3) within `within` (5) seconds over all children, failed attempts
included; a group restart counts once. One more fails the supervisor itself. At the top it leaves
`async with ActorSystem()` with the very exception, and a note on it that says whose limit it was.

**Backoff**: before the n-th restart in a row, counted from 0, `min(max, min * 2**n) * (1 + rand * jitter)`
seconds. The row ends after `reset_after` seconds without a failure (`within`, unless you say otherwise).

```python
from actors import Actor, ActorSystem, Backoff, ChildSpec, OneForOne, on
from actors.testing import run


class Flaky(Actor):
    starts = 0

    def __init__(self) -> None:
        Flaky.starts += 1

    @on(str)
    def work(self, what: str) -> str:
        if what == "bad":
            raise ConnectionError(what)
        return f"{what} by instance {Flaky.starts}"


async def main() -> None:
    patient = OneForOne(max_restarts=2, within=60, backoff=Backoff(1, 10))
    try:
        async with ActorSystem(supervise=patient) as system:
            flaky = await system.spawn(ChildSpec("flaky", Flaky))
            flaky.tell("bad")
            assert await flaky.ask("good", timeout=30) == "good by instance 2"  # after 1 s
            flaky.tell("bad")
            assert await flaky.ask("good", timeout=30) == "good by instance 3"  # after 2 s
            assert system.tree().children[0].restarts == 2
            flaky.tell("bad")
            await flaky.terminated()
    except ConnectionError as error:
        assert "allows 2 restarts within 60 s" in error.__notes__[0]


run(main())
```

**Links** (`ctx.link`) tie actors that are not parent and child: one that fails for good or is killed makes
the other fail by `LinkBroken`. **Watching** (`ctx.watch`) only tells: one `Terminated`, whenever you began.

The log shows `/flaky failed (restart): ConnectionError('bad')` as a warning; with the traceback, as an
error, when the action is stop or escalate. What is declared wrongly (`SpecError`) shows before anything
starts.
"""
