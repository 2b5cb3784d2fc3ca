"""Start and end of actors.

A start makes the instance and calls `on_start`. An end, in this order: children (the last started first),
owned work, `on_stop`, entered context managers, mailbox, name, watchers, parent. While a routine of this
module owns a cell, the cell's mode is HELD and nothing else serves it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from typing import Any

from actors import states
from actors.behaviour import Behaviour
from actors.errors import ActorStopped, LinkBroken, SpecError
from actors.kernel import orders, routines
from actors.kernel.cell import Cell, Extras
from actors.kernel.routines import Routine
from actors.question import Question
from actors.signals import EndReason, Terminated
from actors.specs import ChildSpec

__all__ = [
    "adopt",
    "build",
    "clear",
    "close",
    "construct",
    "end",
    "end_at_once",
    "ended_future",
    "finish",
    "launch",
    "owns",
    "release",
    "stack_of",
    "unstash",
    "welcome",
]

log = logging.getLogger("actors")


def build(cell: Cell) -> Generator[Awaitable[object], None, BaseException | None]:
    """Make the actor and start it; returns what went wrong."""
    fault = construct(cell)
    if fault is not None:
        return fault
    return (yield from welcome(cell))


def construct(cell: Cell) -> BaseException | None:
    """Make the actor; returns what went wrong."""
    try:
        adopt(cell, cell.scheduler.call(cell, cell.factory))
    except BaseException as exc:
        return routines.fault_of(cell, exc)
    return None


def welcome(cell: Cell) -> Generator[Awaitable[object], None, BaseException | None]:
    """Call `on_start`; returns what went wrong."""
    actor = cell.actor
    assert actor is not None
    if type(actor).on_start is Behaviour.on_start:
        return None
    if cell.order & states.KILL:
        return ActorStopped(f"{cell.path} was killed while it started")
    fault = yield from routines.hook(cell, start_limit(cell), actor, "on_start")
    if fault is not None:
        cell.actor = None
    return fault


def start_limit(cell: Cell) -> float:
    """Return the seconds that `on_start` may take: the child spec's, or else the class's."""
    spec, actor = cell.spec, cell.actor
    if spec is not None and spec.start_timeout is not None:
        return spec.start_timeout
    return states.HOOK_TIME if actor is None else actor.__start_timeout__


def stop_limit(cell: Cell, actor: Behaviour[Any]) -> float:
    """Return the seconds that `on_stop` and `on_restart` may take: the class's, or else the shutdown time."""
    if actor.__stop_timeout__ is not None:
        return actor.__stop_timeout__
    return states.HOOK_TIME if cell.shutdown is None else cell.shutdown


def adopt(cell: Cell, actor: Behaviour[Any]) -> None:
    """Make `actor` the instance that this cell serves."""
    if not isinstance(actor, Behaviour):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"{cell.path}: the factory made {type(actor).__name__}, which is not an Actor")
    earlier = actor.__bound__()
    if earlier is not None and (earlier.cell is cell or earlier.cell.actor is actor):
        raise SpecError(f"{cell.path}: the factory gave the actor of {earlier.path}; make one each time")
    cell.actor = actor
    cell.context = actor.__bind__(cell, cell.context)
    cell.table = cell.scheduler.table(actor.__handlers__)
    cell.capacity = actor.__mailbox__
    cell.overflow = actor.__overflow__
    if cell.limit > 0:  # 0: senders wait, and have precedence
        cell.limit = cell.capacity


def release(cell: Cell) -> None:
    """Let the actor be served, because it has started."""
    cell.phase = states.RUNNING
    if cell.extras is None and cell.box is None and not cell.order:
        cell.mode = states.IDLE
        return
    if cell.limit >= 0 and cell.extras is not None:
        cell.limit = 0
        cell.grant()
    cell.resume()


def _begun(
    cell: Cell, fault: BaseException | None, started: Callable[[BaseException | None], None]
) -> Routine:
    if cell.order & states.ENDING:
        started(ActorStopped(f"{cell.path} was stopped while it started"))
        yield from end(cell)
    elif fault is None:
        release(cell)
        started(None)
    else:
        yield from finish(cell, "failed", fault, tell_parent=False)
        started(fault)


def launch(cell: Cell, started: Callable[[BaseException | None], None]) -> None:
    """Start now, in place as far as that goes."""
    fault = construct(cell)
    actor = cell.actor
    if actor is None:
        routines.drive(cell.scheduler, _begun(cell, fault, started))
    elif type(actor).on_start is Behaviour.on_start and not cell.order:
        release(cell)  # the common case, without a routine
        started(None)
    else:
        routines.drive(cell.scheduler, _launch(cell, started))


def _launch(cell: Cell, started: Callable[[BaseException | None], None]) -> Routine:
    fault = yield from welcome(cell)
    yield from _begun(cell, fault, started)


def finish(
    cell: Cell, reason: EndReason, error: BaseException | None, *, tell_parent: bool = True
) -> Routine:
    """End the actor: children, hook, mailbox, name, watchers, parent, in this order."""
    cell.mode, cell.phase = states.HELD, states.STOPPING
    orders.shut(cell)
    yield from clear(cell, ActorStopped(f"{cell.path} stopped before it answered"))
    actor = cell.actor
    if actor is not None and not cell.order & states.KILL and type(actor).on_stop is not Behaviour.on_stop:
        fault = yield from routines.hook(cell, stop_limit(cell, actor), actor, "on_stop")
        if fault is not None and not cell.order & states.KILL:
            log.error("%s: on_stop failed", cell.path, exc_info=fault)
    yield from clear(cell, ActorStopped(f"{cell.path} stopped before it answered"))  # what on_stop began
    yield from close(cell)
    if cell.order & states.KILL and error is None:
        reason = "killed"
    _bury(cell, reason, error, tell_parent)


def end(cell: Cell) -> Routine:
    """Carry out a stop or a kill that came while a routine held the cell."""
    yield from finish(cell, "killed" if cell.order & states.KILL else "stopped", None)


def _stop_children(cell: Cell) -> Routine:
    """Stop the children, the last started first, each within its shutdown time."""
    if cell.order & states.KILL:
        for child in reversed(list((cell.children or {}).values())):
            orders.kill(child)
    served = 0
    while cell.children:
        for child in reversed(list(cell.children.values())):
            if cell.phase == states.STOPPING and _has_no_more_to_say(child):
                _drop(cell, child)  # the common case
            else:
                yield from _stop_child(child)
            served += 1
            if served % states.BURST == 0:  # so that the end of very many does not freeze the loop
                yield asyncio.sleep(0)


def _stop_child(child: Cell) -> Routine:
    if child.phase == states.DEAD:
        return
    spec = child.spec
    if spec is not None and spec.drain:
        orders.drain(child)
    elif (
        child.mode == states.IDLE and not child.order and _ends_at_once(child)
    ):  # the common case, without a turn
        child.order |= states.STOP
        child.mode, child.phase = states.HELD, states.STOPPING
        _bury(child, "stopped", None, True)
        return
    else:
        orders.stop(child)
    if child.phase == states.DEAD:
        return
    ended = ended_future(child)
    yield routines.within(ended, child.shutdown)
    if not ended.done():
        yield asyncio.sleep(0)  # what ends in this very moment has ended in time
        yield asyncio.sleep(0)
    if not ended.done():
        orders.kill(child)
        yield routines.within(ended, None)


def _has_no_more_to_say(child: Cell) -> bool:
    """Return whether an idle child neither owns anything nor is watched, linked or drained."""
    if child.mode != states.IDLE or child.extras is not None or child.order or child.children:
        return False
    actor, spec = child.actor, child.spec
    if spec is not None and spec.drain:
        return False
    return actor is None or type(actor).on_stop is Behaviour.on_stop


def _ends_at_once(cell: Cell) -> bool:
    """Return True if the end of an idle actor runs no code of its own, which could take any time."""
    actor = cell.actor
    return (actor is None or type(actor).on_stop is Behaviour.on_stop) and not owns(cell)


def ended_future(cell: Cell) -> asyncio.Future[None]:
    """Return a future that is done when the cell is dead."""
    future: asyncio.Future[None] = cell.scheduler.loop.create_future()
    if cell.phase == states.DEAD:
        future.set_result(None)
    else:
        ended = cell.extra().ended
        ended[future] = None
        future.add_done_callback(lambda _: ended.pop(future, None))  # the waiter may have gone away
    return future


def owns(cell: Cell) -> bool:
    """Return whether there is anything that `clear` and `close` would end."""
    extras = cell.extras
    return bool(cell.children) or (
        extras is not None
        and bool(
            extras.timers
            or extras.pipes
            or extras.deferred
            or extras.limiters
            or extras.idle is not None
            or extras.stack is not None
        )
    )


def clear(cell: Cell, unanswered: ActorStopped) -> Routine:
    """End everything that an instance owns."""
    extras = cell.extras
    if extras is not None:
        for timer in extras.timers.values():
            timer.cancel()
        extras.timers.clear()
        if extras.idle is not None:
            extras.idle.cancel()
            extras.idle = None
        for limiter in extras.limiters:
            limiter.close()
        extras.limiters.clear()
    if cell.children:
        yield from _stop_children(cell)
    extras = cell.extras
    if extras is None:
        return
    while extras.pipes:  # one that ends may begin another
        pipes = list(extras.pipes)
        for pipe in pipes:
            pipe.end()
        for pipe in pipes:
            yield routines.settled(cell.scheduler, pipe.task)
            extras.pipes.pop(pipe, None)
    for question in list(extras.deferred):
        question.fail(ActorStopped(str(unanswered)))
    extras.deferred.clear()


def close(cell: Cell) -> Routine:
    """Close the context managers that the instance entered; not cancelled by a kill, but not for ever."""
    extras = cell.extras
    if extras is None or extras.stack is None:
        return
    stack, extras.stack = extras.stack, None
    coroutine = stack.aclose()
    extras.closing = task = cell.scheduler.task(routines.caught(coroutine), cell.name, cell)
    limit = states.HOOK_TIME if cell.shutdown is None else max(cell.shutdown, states.CLOSE_TIME)
    if cell.order & states.KILL:
        limit = min(limit, states.CLOSE_TIME)
    yield routines.settled(cell.scheduler, task, limit)
    if not task.done():
        cell.scheduler.cancel(task)
        yield routines.settled(cell.scheduler, task)
    extras.closing = None
    if not task.done():
        return
    coroutine.close()
    fault = None if task.cancelled() else routines.outcome(task)
    if fault is not None:
        log.error("%s: closing a context manager failed", cell.path, exc_info=fault)


def _bury(cell: Cell, reason: EndReason, error: BaseException | None, tell_parent: bool) -> None:
    """Complete the end: dead letters, name, watchers, links, parent, in this order."""
    orders.shut(cell)
    cell.phase = states.DEAD
    cell.fate = reason  # not the error, whose traceback would keep frames alive
    parent = cell.parent
    extras, cell.extras = cell.extras, None
    cell.actor = cell.urgent = cell.box = None
    if extras is not None:
        _let_go(cell, extras)
    if parent is not None and parent.children is not None:
        parent.children.pop(cell.name, None)
    if extras is not None:
        _tell_watchers(cell, extras, reason, error)
    if parent is not None and parent.phase != states.DEAD:
        mine = parent.extras
        if mine is not None:
            mine.watching.pop(cell, None)
        if mine is not None and cell in mine.muted:
            mine.muted.discard(cell)
        elif tell_parent and parent.wants(Terminated):
            parent.signal(Terminated(cell.ref, reason, error))
        if cell.spec is not None:
            _consult_spec(parent, cell.name, cell.spec)
    # A reference that outlives the actor keeps its cell: that must not keep what the actor was made from.
    cell.factory, cell.spec, cell.context = _gone, None, None
    if extras is not None:
        for future in list(extras.ended):
            if not future.done():
                future.set_result(None)


def _drop(parent: Cell, child: Cell) -> None:
    """Complete the end of an idle child without watchers, as `_bury` does: its parent is ending."""
    child.limit, child.mode, child.phase, child.fate = states.CLOSED, states.HELD, states.DEAD, "stopped"
    child.order |= states.STOP
    child.actor = child.urgent = child.box = None
    child.factory, child.spec, child.context = _gone, None, None
    assert parent.children is not None
    del parent.children[child.name]
    extras = parent.extras
    if extras is not None and extras.watching:
        extras.watching.pop(child, None)


def _gone() -> Behaviour[Any]:
    raise ActorStopped("an actor that has ended is not made again")


def _let_go(cell: Cell, extras: Extras) -> None:
    for envelope in (*(extras.leftover or ()), *extras.stash):
        cell.bury(envelope, "stopped")
    for target in extras.watching:
        if target.extras is not None:
            target.extras.watchers.pop(cell, None)
    for group in list(extras.groups):
        group.leave(cell.ref)
    if extras.grace is not None:
        extras.grace.cancel()


def _tell_watchers(cell: Cell, extras: Extras, reason: EndReason, error: BaseException | None) -> None:
    terminated = Terminated(cell.ref, reason, error) if extras.watchers else None
    for watcher in extras.watchers:
        if watcher is not cell.parent and watcher.extras is not None:
            watcher.extras.watching.pop(cell, None)
            watcher.signal(terminated)
    for peer in extras.links:
        if peer.extras is not None:
            peer.extras.links.pop(cell, None)
        if reason != "stopped":
            broken = LinkBroken(f"{cell.path}, linked with {peer.path}, {reason}")
            broken.__cause__ = error
            orders.fail(peer, broken)


def _consult_spec(parent: Cell, name: str, spec: ChildSpec[Any]) -> None:
    """Keep the spec of a child that has ended, and stop a parent whose significant children have."""
    if parent.phase != states.RUNNING or parent.order & states.ENDING:
        return
    if spec.keep:
        parent.extra().kept[name] = spec
    if not spec.significant or parent.actor is None:
        return
    others = (parent.children or {}).values()
    if parent.actor.supervise.auto_shutdown == "any" or not any(
        other.spec is not None and other.spec.significant for other in others
    ):
        orders.stop(parent)


def end_at_once(cell: Cell) -> bool:
    """End a stopped actor that waits for its turn in place, if that runs no code of its own; else false."""
    if cell.order != states.STOP or cell.mode != states.QUEUED or not _ends_at_once(cell):
        return False
    cell.mode, cell.phase = states.HELD, states.STOPPING
    _bury(cell, "stopped", None, True)
    return True


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
    """Return the context managers that the actor entered."""
    extras = cell.extra()
    if extras.stack is None:
        extras.stack = AsyncExitStack()
    return extras.stack
