"""How actors start, fail, restart and end.

Whatever may have to wait (for a hook, a child, a backoff) is a routine: a generator that yields awaitables
which never raise. `drive` runs it in place for as long as nothing waits, and in a task of its own from then
on; user code never runs in that task, so that killing an actor cancels its hooks and handlers but never the
routine that cleans up after it. While a routine owns a cell, the cell's mode is HELD and nobody else serves
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from actors import states
from actors.actor import Actor
from actors.errors import ActorStopped, HandlerCancelled, LinkBroken, SpecError
from actors.messages import Action, EndReason, Failed, Restarted, Terminated
from actors.question import Question
from actors.supervision import DEFAULT_STRATEGY, Intensity, OneForOne, Strategy, Streak

if TYPE_CHECKING:
    from actors.cell import Cell, Extras
    from actors.dispatch import Scheduler

__all__ = ["begin", "drain", "fail", "failed", "finish", "kill", "launch", "obey", "stop"]

Routine = Generator[Awaitable[object], None, None]
log = logging.getLogger("actors")

CLOSE_TIME = 5.0
"""Seconds that the context managers of a killed actor may take to close before they are cancelled."""


def drive(scheduler: Scheduler, routine: Routine) -> None:
    """Run a routine in place, and in a task from its first wait on."""
    try:
        awaited = next(routine)
    except StopIteration:
        return
    except BaseException as exc:
        scheduler.crash(exc)
        return
    scheduler.control(_proceed(scheduler, routine, awaited))


async def _proceed(scheduler: Scheduler, routine: Routine, awaited: Awaitable[object]) -> None:
    try:
        while True:
            await awaited
            awaited = next(routine)
    except StopIteration:
        pass
    except Exception as exc:
        scheduler.crash(exc)


async def _caught(coroutine: Coroutine[Any, Any, object]) -> BaseException | None:
    try:
        await coroutine
    except GeneratorExit:
        raise
    except BaseException as exc:
        return exc
    return None


async def _done(task: asyncio.Task[Any], timeout: float | None = None) -> None:
    await asyncio.wait((task,), timeout=timeout)


async def _within(future: asyncio.Future[None], timeout: float | None) -> None:
    await asyncio.wait((future,), timeout=timeout)


# Orders: what others ask of a cell. Each only notes the order and sees to it that someone will carry it out.


def stop(cell: Cell) -> None:
    """End after the message in hand; what waits in the mailbox becomes dead letters."""
    if cell.phase >= states.STOPPING or cell.order & states.ENDING:
        return
    cell.order |= states.STOP
    shut(cell)
    _nudge(cell)


def drain(cell: Cell) -> None:
    """Refuse new messages, handle the accepted ones, then end."""
    if cell.phase >= states.STOPPING or cell.order & (states.STOP | states.KILL | states.DRAIN):
        return
    cell.order |= states.DRAIN
    cell.limit = states.CLOSED
    _refuse_waiters(cell)
    _nudge(cell)


def kill(cell: Cell) -> None:
    """End now: cancel what runs, in the whole subtree."""
    if cell.phase == states.DEAD or cell.order & states.KILL:
        return
    cell.order |= states.KILL
    shut(cell)
    for child in reversed(list((cell.children or {}).values())):
        kill(child)
    _cancel(cell)
    _nudge(cell)


def fail(cell: Cell, error: BaseException) -> None:
    """Fail from outside, at once: a child escalated, or a linked actor failed. Cancels what runs."""
    if cell.phase >= states.FAILED or cell.order & (states.STOP | states.KILL | states.FAIL | states.HALT):
        return
    if cell.parent is None:
        cell.scheduler.crash(error)
        return
    if cell.phase == states.RESTARTING and cell.task is None:
        return  # it is losing its state already
    cell.extra().failure = error
    cell.order |= states.FAIL
    _cancel(cell)
    _nudge(cell)


def shut(cell: Cell) -> None:
    """Take no more messages, and set aside those that wait."""
    cell.limit = states.CLOSED
    box = cell.box
    if box:
        extras = cell.extra()
        if extras.leftover is None:
            extras.leftover = box.copy()
        else:
            extras.leftover.extend(box)
        box.clear()
    _refuse_waiters(cell)


def _refuse_waiters(cell: Cell) -> None:
    extras = cell.extras
    if extras is not None:
        while extras.waiters:
            waiter = extras.waiters.popleft()
            if not waiter.done():
                waiter.set_exception(ActorStopped(f"{cell.path} has stopped"))


def _cancel(cell: Cell) -> None:
    """Cancel the user code that runs. A pump that has not begun sees the order in its first step instead."""
    task = cell.task
    if task is None:
        return
    if task.done() and cell.mode == states.BUSY:  # a stranger cancelled the pump before its first step
        cell.conclude(cell.judge(asyncio.CancelledError()))
    elif not cell.fresh:
        cell.scheduler.cancel(task)


def _nudge(cell: Cell) -> None:
    if cell.mode == states.IDLE:
        cell.enqueue()
    elif cell.phase == states.FAILED:  # waits for its supervisor's fate; that is decided now
        drive(cell.scheduler, _end(cell))
    elif cell.extras is not None and cell.extras.wake is not None and not cell.extras.wake.done():
        cell.extras.wake.set_result(None)


def obey(cell: Cell) -> bool:
    """Carry out what was ordered, between two messages; true if the cell has passed into a routine."""
    order = cell.order
    if order & states.KILL:
        drive(cell.scheduler, finish(cell, "killed", None))
    elif order & states.STOP or (
        order & states.DRAIN and not cell.box and not cell.urgent and not order & ~states.DRAIN
    ):
        drive(cell.scheduler, finish(cell, "stopped", None))
    elif order & states.START:
        cell.order &= ~states.START
        drive(cell.scheduler, begin(cell))
    elif order & states.HALT:
        cell.order &= ~states.HALT
        cell.mode, cell.phase = states.HELD, states.RESTARTING
        extras = cell.extra()
        if extras.halted is not None and not extras.halted.done():
            extras.halted.set_result(None)
    elif order & states.FAIL:
        extras = cell.extra()
        assert extras.failure is not None
        failed(cell, extras.failure)
    else:
        return False
    return True


# Starting


def build(cell: Cell) -> Generator[Awaitable[object], None, BaseException | None]:
    """Make the actor and start it; returns what went wrong."""
    fault = construct(cell)
    if fault is not None:
        return fault
    return (yield from _welcome(cell))


def construct(cell: Cell) -> BaseException | None:
    """Make the actor; returns what went wrong."""
    try:
        adopt(cell, cell.scheduler.call(cell, cell.factory))
    except BaseException as exc:
        return _fault(cell, exc)
    return None


def _welcome(cell: Cell) -> Generator[Awaitable[object], None, BaseException | None]:
    """Call `on_start`; returns what went wrong."""
    actor = cell.actor
    assert actor is not None
    if type(actor).on_start is Actor.on_start:
        return None
    fault = yield from _hook(cell, actor.on_start)
    if fault is not None:
        cell.actor = None
    return fault


def adopt(cell: Cell, actor: Actor[Any]) -> None:
    """Make `actor` the instance that this cell serves."""
    if not isinstance(actor, Actor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"{cell.path}: the factory made {type(actor).__name__}, which is not an Actor")
    actor.ctx = cell.context
    cell.actor = actor
    cell.table = cell.scheduler.table(actor.__handlers__)
    cell.capacity = actor.__mailbox__
    if cell.limit > 0:  # 0: senders wait, and have precedence
        cell.limit = cell.capacity


def release(cell: Cell) -> None:
    """The actor has started: let it be served."""
    cell.phase = states.RUNNING
    if cell.extras is None and cell.box is None and not cell.order:
        cell.mode = states.IDLE
        return
    if cell.limit >= 0 and cell.extras is not None:
        cell.limit = 0
        cell.grant()
    cell.conclude()


def begin(cell: Cell, started: Callable[[BaseException | None], None] | None = None) -> Routine:
    """The first start. A failure goes to `started`, the spawner; without one, to supervision."""
    cell.mode, cell.phase = states.HELD, states.STARTING
    fault = yield from build(cell)
    yield from _begun(cell, fault, started)


def _begun(
    cell: Cell, fault: BaseException | None, started: Callable[[BaseException | None], None] | None
) -> Routine:
    if cell.order & states.ENDING:
        if started is not None:
            started(ActorStopped(f"{cell.path} was stopped while it started"))
        yield from _end(cell)
    elif fault is None:
        release(cell)
        if started is not None:
            started(None)
    elif started is None:
        failed(cell, fault)
    else:
        yield from finish(cell, "failed", fault, tell_parent=False)
        started(fault)


def launch(cell: Cell, started: Callable[[BaseException | None], None]) -> None:
    """Start now, in place as far as that goes."""
    fault = construct(cell)
    actor = cell.actor
    if actor is None:
        drive(cell.scheduler, _begun(cell, fault, started))
    elif type(actor).on_start is Actor.on_start and not cell.order:
        release(cell)  # the common case, without a routine
        started(None)
    else:
        drive(cell.scheduler, _launch(cell, started))


def _launch(cell: Cell, started: Callable[[BaseException | None], None]) -> Routine:
    fault = yield from _welcome(cell)
    yield from _begun(cell, fault, started)


# Failing


def failed(cell: Cell, error: BaseException) -> None:
    """The actor failed, and its cell is in nobody's hands: decide, tell the parent, carry it out."""
    scheduler = cell.scheduler
    cell.mode = states.HELD
    if cell.order & states.FAIL:
        cell.order &= ~states.FAIL
        cell.extra().failure = None
    if cell.order & states.ENDING:
        drive(scheduler, finish(cell, "killed" if cell.order & states.KILL else "failed", error))
        return
    if cell.order & states.HALT:  # it restarts with its siblings anyway
        obey(cell)
        return
    parent = cell.parent
    assert parent is not None
    action = verdict(parent, cell, error)
    if action == "resume":
        cell.conclude()
    elif action == "stop":
        drive(scheduler, finish(cell, "failed", error))
    elif action == "escalate":
        cell.phase = states.FAILED
        fail(parent, error)
    else:
        cell.phase = states.RESTARTING
        _restart(parent, cell, error)


def verdict(parent: Cell, cell: Cell, error: BaseException) -> Action:
    """What the parent's strategy does about this failure, after counting it; the parent gets the signal."""
    strategy = _strategy(parent)
    extras = cell.extra()
    if extras.streak is None:
        extras.streak = Streak()
    now = cell.scheduler.loop.time()
    history = extras.streak.failed(strategy, now)
    try:
        action = strategy.verdict(error, history)
    except Exception as exc:
        log.exception("%s: the decider of %s failed; the failure is escalated", parent.path, cell.path)
        exc.__context__ = error
        action = "escalate"
    if action == "resume" and (cell.actor is None or _has_failed_children(cell)):
        action = "restart"  # there is nothing to resume, or a child has escalated and waits for its fate
    if action == "restart":
        if cell.restart == "temporary" or parent.phase not in (states.STARTING, states.RUNNING):
            action = "stop"
        else:
            mine = parent.extra()
            if mine.intensity is None:
                mine.intensity = Intensity()
            if mine.intensity.exceeded(strategy, now):
                error.add_note(
                    f"{cell.path} failed; {parent.path} allows {strategy.max_restarts} restarts within "
                    f"{strategy.within:g} s, and that was one more"
                )
                action = "escalate"
    parent.signal(Failed(cell.ref, error, action))
    if action == "escalate" or action == "stop":
        log.error("%s failed (%s)", cell.path, action, exc_info=error)
    else:
        log.warning("%s failed (%s): %r", cell.path, action, error)
    return action


def _has_failed_children(cell: Cell) -> bool:
    return any(child.phase == states.FAILED for child in (cell.children or {}).values())


def _strategy(parent: Cell) -> Strategy:
    return DEFAULT_STRATEGY if parent.actor is None else parent.actor.supervise


def _restart(parent: Cell, cell: Cell, error: BaseException) -> None:
    scheduler = cell.scheduler
    if isinstance(_strategy(parent), OneForOne):
        drive(scheduler, restart(parent, cell, error))
        return
    extras = parent.extra()
    if extras.group is not None:  # one group restart at a time: the running one takes this failure next
        extras.group.append((cell, error))
        return
    extras.group = deque([(cell, error)])
    drive(scheduler, _restart_groups(parent, extras))


def _restart_groups(parent: Cell, extras: Extras) -> Routine:
    assert extras.group is not None
    while extras.group:
        cell, error = extras.group.popleft()
        if cell.phase == states.RESTARTING and cell.mode == states.HELD:
            yield from restart(parent, cell, error)
    extras.group = None


def restart(parent: Cell, culprit: Cell, error: BaseException) -> Routine:
    """Restart `culprit` and whoever the strategy restarts with it, until they live or it is given up."""
    while True:
        strategy = _strategy(parent)
        members = _members(parent, strategy, culprit)
        for cell in reversed(members):
            yield from _halt(cell)
            if cell.phase == states.RESTARTING:
                yield from _dismantle(cell, error)
        yield from _back_off(culprit, strategy)
        retry: tuple[Cell, BaseException] | None = None
        for cell in members:
            if cell.phase != states.RESTARTING:
                continue
            if cell.order & states.ENDING:
                yield from _end(cell)
                continue
            if cell.restart == "temporary":
                yield from finish(cell, "stopped", None)
                continue
            fault = yield from build(cell)
            if cell.order & states.ENDING:
                yield from _end(cell)
            elif fault is None:
                _restarted(parent, cell)
            else:
                action = verdict(parent, cell, fault)
                if action == "stop":
                    yield from _dismantle(cell, fault)
                    yield from finish(cell, "failed", fault)
                elif action == "escalate":
                    for other in members:
                        if other.phase == states.RESTARTING and other.mode == states.HELD:
                            other.phase = states.FAILED
                            if other.order & states.ENDING:
                                yield from _end(other)
                    fail(parent, fault)
                    return
                else:
                    retry = cell, fault
                    break
        if retry is None:
            return
        culprit, error = retry


def _members(parent: Cell, strategy: Strategy, culprit: Cell) -> list[Cell]:
    """The living children that restart now, in start order."""
    if isinstance(strategy, OneForOne):
        return [culprit]
    siblings = list((parent.children or {}).values())
    if culprit not in siblings:
        return []
    affected = strategy.affected(siblings, culprit)
    return [cell for cell in affected if cell.phase in (states.RUNNING, states.RESTARTING)]


def _restarted(parent: Cell, cell: Cell) -> None:
    streak = cell.extra().streak
    if streak is None:
        streak = cell.extra().streak = Streak()
    streak.restarts += 1
    parent.signal(Restarted(cell.ref, streak.restarts))
    release(cell)


def _halt(cell: Cell) -> Routine:
    """Take the cell out of service after its message in hand, by force when its shutdown time is over."""
    if cell.phase != states.RUNNING:
        return
    extras = cell.extra()
    extras.halted = cell.scheduler.loop.create_future()
    cell.order |= states.HALT
    if cell.mode == states.IDLE:
        obey(cell)
    if not extras.halted.done() and cell.phase == states.RUNNING:
        ended = ended_future(cell)
        yield asyncio.wait((extras.halted, ended), timeout=cell.shutdown, return_when=asyncio.FIRST_COMPLETED)
        if not extras.halted.done() and cell.phase == states.RUNNING:
            _cancel(cell)
            yield asyncio.wait((extras.halted, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
    extras.halted = None


def _back_off(cell: Cell, strategy: Strategy) -> Routine:
    extras = cell.extra()
    delay = 0.0 if extras.streak is None else extras.streak.delay(strategy, cell.scheduler.random.random)
    if delay > 0 and not cell.order & states.ENDING:
        extras.wake = cell.scheduler.loop.create_future()
        yield _within(extras.wake, delay)
        extras.wake = None


def _dismantle(cell: Cell, error: BaseException) -> Routine:
    """Take the old instance apart: its hook, timers, children, owned work, context managers."""
    actor, cell.actor = cell.actor, None
    if actor is not None:
        fault = yield from _hook(cell, actor.on_restart, error)
        if fault is not None:
            log.error("%s: on_restart failed", cell.path, exc_info=fault)
    yield from _clear(cell, ActorStopped(f"{cell.path} failed and restarts before it answered"))
    yield from _close(cell)
    cell.urgent = None
    extras = cell.extras
    if extras is not None:
        unstash(cell)
        for target in extras.watching:
            if target.extras is not None:
                target.extras.watchers.pop(cell, None)
        extras.watching.clear()
        extras.muted.clear()


def _clear(cell: Cell, unanswered: ActorStopped) -> Routine:
    """End everything that an instance owns."""
    extras = cell.extras
    if extras is not None:
        for timer in extras.timers.values():
            timer.cancel()
        extras.timers.clear()
        if extras.idle is not None:
            extras.idle.cancel()
            extras.idle = None
    if cell.children:
        yield from _stop_children(cell)
    extras = cell.extras
    if extras is None:
        return
    for pipe in list(extras.pipes):
        pipe.cancel()
    for pipe in list(extras.pipes):
        yield _done(pipe.task)
    for question in list(extras.deferred):
        question.fail(ActorStopped(str(unanswered)))
    extras.deferred.clear()


def _close(cell: Cell) -> Routine:
    """Close the context managers that the instance entered; not cancelled by a kill, but not for ever."""
    extras = cell.extras
    if extras is None or extras.stack is None:
        return
    stack, extras.stack = extras.stack, None
    coroutine = stack.aclose()
    task = cell.scheduler.task(_caught(coroutine), cell.name, cell)
    yield _done(task, None if cell.shutdown is None else max(cell.shutdown, CLOSE_TIME))
    if not task.done():
        cell.scheduler.cancel(task)
        yield _done(task)
    coroutine.close()
    fault = None if task.cancelled() else task.result()
    if fault is not None:
        log.error("%s: closing a context manager failed", cell.path, exc_info=fault)


# Ending


def ended_future(cell: Cell) -> asyncio.Future[None]:
    """A future that is done when the cell is dead."""
    future: asyncio.Future[None] = cell.scheduler.loop.create_future()
    if cell.phase == states.DEAD:
        future.set_result(None)
    else:
        cell.extra().ended.append(future)
    return future


def _stop_children(cell: Cell) -> Routine:
    """Stop the children, the last started first, each within its shutdown time."""
    if cell.order & states.KILL:
        for child in reversed(list((cell.children or {}).values())):
            kill(child)
    while cell.children:
        child = next(reversed(cell.children.values()))
        yield from _stop_child(child)


def _stop_child(child: Cell) -> Routine:
    if child.phase == states.FAILED or (child.mode == states.IDLE and not child.children):
        child.order |= states.STOP
        shut(child)
        yield from finish(child, "stopped", None)
        return
    stop(child)
    if child.phase == states.DEAD:
        return
    ended = ended_future(child)
    yield _within(ended, child.shutdown)
    if not ended.done():
        kill(child)
        yield _within(ended, None)


def _end(cell: Cell) -> Routine:
    """Carry out a stop or a kill that came while a routine held the cell."""
    yield from finish(cell, "killed" if cell.order & states.KILL else "stopped", None)


def finish(
    cell: Cell, reason: EndReason, error: BaseException | None, *, tell_parent: bool = True
) -> Routine:
    """The end of an actor: children, hook, mailbox, name, watchers, parent, in this order."""
    cell.mode, cell.phase = states.HELD, states.STOPPING
    shut(cell)
    yield from _clear(cell, ActorStopped(f"{cell.path} stopped before it answered"))
    actor = cell.actor
    if actor is not None and not cell.order & states.KILL:
        fault = yield from _hook(cell, actor.on_stop)
        if fault is not None and not cell.order & states.KILL:
            log.error("%s: on_stop failed", cell.path, exc_info=fault)
    yield from _clear(cell, ActorStopped(f"{cell.path} stopped before it answered"))  # what on_stop began
    yield from _close(cell)
    if cell.order & states.KILL and error is None:
        reason = "killed"
    _bury(cell, Terminated(cell.ref, reason, error), tell_parent)


def _bury(cell: Cell, terminated: Terminated, tell_parent: bool) -> None:
    shut(cell)
    cell.phase = states.DEAD
    parent = cell.parent
    extras, cell.extras = cell.extras, None
    cell.actor = cell.urgent = cell.box = None
    if extras is not None:
        for envelope in (*(extras.leftover or ()), *extras.stash):
            cell.bury(envelope, "stopped")
        for target in extras.watching:
            if target.extras is not None:
                target.extras.watchers.pop(cell, None)
        for group in list(extras.groups):
            group.leave(cell.ref)
        if extras.grace is not None:
            extras.grace.cancel()
    if parent is not None and parent.children is not None:
        parent.children.pop(cell.name, None)
    if extras is not None:
        for watcher in extras.watchers:
            if watcher is not parent and watcher.extras is not None:
                watcher.extras.watching.pop(cell, None)
                watcher.signal(terminated)
        for peer in extras.links:
            if peer.extras is not None:
                peer.extras.links.pop(cell, None)
            if terminated.reason != "stopped":
                broken = LinkBroken(f"{cell.path}, linked with {peer.path}, {terminated.reason}")
                broken.__cause__ = terminated.error
                fail(peer, broken)
    if parent is not None and parent.phase != states.DEAD:
        mine = parent.extras
        if mine is not None:
            mine.watching.pop(cell, None)
        if mine is not None and cell in mine.muted:
            mine.muted.discard(cell)
        elif tell_parent:
            parent.signal(terminated)
    if extras is not None:
        for future in extras.ended:
            if not future.done():
                future.set_result(None)


def _hook(
    cell: Cell, hook: Callable[..., Any], *arguments: object
) -> Generator[Awaitable[object], None, BaseException | None]:
    """Call a hook, in a task if it awaits; returns what it raised."""
    scheduler = cell.scheduler
    try:
        result = scheduler.call(cell, hook, *arguments)
    except BaseException as exc:
        return _fault(cell, exc)
    if type(result) is not states.COROUTINE:
        return None
    cell.task = task = scheduler.task(_caught(result), cell.name, cell)
    yield _done(task)
    cell.task = None
    result.close()  # a task that was cancelled before its first step never began it
    fault = asyncio.CancelledError() if task.cancelled() else task.result()
    return None if fault is None else _fault(cell, fault)


def _fault(cell: Cell, exc: BaseException) -> BaseException:
    """What a hook's exception means."""
    if isinstance(exc, KeyboardInterrupt | SystemExit):
        cell.scheduler.crash(exc)
        cell.order |= states.KILL
        return ActorStopped("the system is stopping")
    if isinstance(exc, asyncio.CancelledError):
        if cell.order & states.FAIL:
            cell.order &= ~states.FAIL
            extras = cell.extra()
            failure, extras.failure = extras.failure, None
            if failure is not None:
                return failure
        cancelled = HandlerCancelled(f"{cell.path}: a hook was cancelled")
        cancelled.__cause__ = exc
        return cancelled
    return exc


def unstash(cell: Cell) -> None:
    """Return stashed messages to the head of the mailbox."""
    extras = cell.extras
    if extras is None or not extras.stash:
        return
    if cell.limit == states.CLOSED and not cell.order & states.DRAIN:
        return
    if cell.box is None:
        cell.box = cell.scheduler.new_box()
    for envelope in reversed(extras.stash):
        if isinstance(envelope[3], Question):
            envelope[3].deferred = False
        cell.box.appendleft(envelope)
    extras.stash.clear()
    cell.enqueue()


def stack_of(cell: Cell) -> AsyncExitStack:
    """The context managers that the actor entered."""
    extras = cell.extra()
    if extras.stack is None:
        extras.stack = AsyncExitStack()
    return extras.stack
