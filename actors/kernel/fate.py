"""Failure of an actor: the strategy decides, and the runtime carries it out at once.

The supervisor's own handlers take no part in it; it learns of it by signals. A restart keeps the cell, and
with it ref, mailbox and watchers, and makes a new instance.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Generator

from actors import states
from actors.behaviour import Behaviour
from actors.errors import ActorStopped
from actors.kernel import life, orders, routines
from actors.kernel.cell import Cell, Envelope, Extras
from actors.kernel.routines import Routine
from actors.signals import Failed, Restarted
from actors.supervision import DEFAULT_STRATEGY, Action, Intensity, OneForOne, Strategy, Streak

__all__ = ["begin", "failed", "start"]

log = logging.getLogger("actors")


def begin(cell: Cell) -> Routine:
    """Start an actor whose spawner does not wait; a failure is one of a running actor."""
    cell.mode, cell.phase = states.HELD, states.STARTING
    yield from _begin(cell, life.construct(cell))


def start(cell: Cell) -> None:
    """Do as `begin` at once, as far as that goes."""
    fault, actor = life.construct(cell), cell.actor
    if actor is not None and not cell.order and type(actor).on_start is Behaviour.on_start:
        life.release(cell)  # the common case, without a routine
    else:
        routines.drive(cell.scheduler, _begin(cell, fault))


def _begin(cell: Cell, fault: BaseException | None) -> Routine:
    if fault is None:
        fault = yield from life.welcome(cell)
    if cell.order & states.ENDING:
        yield from life.end(cell)
    elif fault is None:
        life.release(cell)
    else:
        failed(cell, fault)


def failed(cell: Cell, error: BaseException, hand: Envelope = states.NOTHING) -> None:
    """Decide about a failure of an actor that no one serves, tell the parent, and carry it out.

    `hand` is the message whose handler failed.
    """
    scheduler = cell.scheduler
    cell.mode = states.HELD
    if cell.order & states.FAIL:
        cell.order &= ~states.FAIL
        cell.extra().failure = None
    if cell.order & states.ENDING:
        routines.drive(
            scheduler, life.finish(cell, "killed" if cell.order & states.KILL else "failed", error)
        )
        return
    if cell.order & states.HALT:  # it restarts with its siblings anyway
        cell.resume()
        return
    parent = cell.parent
    assert parent is not None
    action = verdict(parent, cell, error, hand)
    if action == "resume":
        cell.resume()
    elif action == "stop":
        routines.drive(scheduler, life.finish(cell, "failed", error))
    elif action == "escalate":
        cell.phase, cell.mode = states.FAILED, states.PARKED
        orders.fail(parent, error)
    else:
        cell.phase, cell.mode = states.RESTARTING, states.PARKED
        _restart(parent, cell, error)


def verdict(parent: Cell, cell: Cell, error: BaseException, hand: Envelope = states.NOTHING) -> Action:
    """Count, report and signal a failure; return what the parent's strategy does about it."""
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
    if parent.wants(Failed):
        parent.signal(Failed(cell.ref, error, action))
    level = logging.ERROR if action in ("escalate", "stop") else logging.WARNING
    if log.isEnabledFor(level):
        _report(level, cell, action, error, hand)
    return action


def _report(level: int, cell: Cell, action: Action, error: BaseException, hand: Envelope) -> None:
    """Log one record about a crash: who, what is done, the last message, and the traceback."""
    message = ""
    if hand is not states.NOTHING:
        try:
            message = f" on {cell.scheduler.show(hand[0])}"
        except Exception as exc:
            message = f" on {type(hand[0]).__name__} (its repr raised {type(exc).__name__})"
    try:
        log.log(level, "%s failed (%s)%s: %r", cell.path, action, message, error, exc_info=error)
    except Exception as exc:  # the error's own repr
        log.log(level, "%s failed (%s)%s: %s, %r", cell.path, action, message, type(error).__name__, exc)


def _has_failed_children(cell: Cell) -> bool:
    return any(child.phase == states.FAILED for child in (cell.children or {}).values())


def _strategy(parent: Cell) -> Strategy:
    return DEFAULT_STRATEGY if parent.actor is None else parent.actor.supervise


def _restart(parent: Cell, cell: Cell, error: BaseException) -> None:
    scheduler = cell.scheduler
    strategy = _strategy(parent)
    if isinstance(strategy, OneForOne):
        if strategy.backoff is None and not cell.order and cell.restart != "temporary" and _is_plain(cell):
            _restart_in_place(parent, cell)
        else:
            routines.drive(scheduler, restart(parent, cell, error))
        return
    extras = parent.extra()
    if extras.group is not None:  # one group restart at a time: the running one takes this failure next
        extras.group.append((cell, error))
        return
    extras.group = deque([(cell, error)])
    routines.drive(scheduler, _restart_groups(parent, extras))


def _is_plain(cell: Cell) -> bool:
    """Return true if a restart of this actor runs none of its code but the constructor."""
    if cell.actor is None or not isinstance(cell.factory, type) or life.owns(cell):
        return False
    kind = type(cell.actor)
    return kind.on_restart is Behaviour.on_restart and kind.on_start is Behaviour.on_start


def _restart_in_place(parent: Cell, cell: Cell) -> None:
    """Restart an actor without a routine: the common case, in which nothing waits."""
    cell.mode = states.HELD
    cell.actor = None
    _forget(cell)
    fault = life.construct(cell)
    if fault is None:
        _restarted(parent, cell)
    else:
        routines.drive(cell.scheduler, _fail_again(cell, fault))


def _fail_again(cell: Cell, fault: BaseException) -> Routine:
    yield asyncio.sleep(0)  # one that never starts must not freeze the loop
    failed(cell, fault)


def _restart_groups(parent: Cell, extras: Extras) -> Routine:
    assert extras.group is not None
    while extras.group:
        cell, error = extras.group.popleft()
        if cell.phase == states.RESTARTING and cell.mode == states.PARKED:
            yield from restart(parent, cell, error)
    extras.group = None


def restart(parent: Cell, culprit: Cell, error: BaseException) -> Routine:
    """Restart `culprit` and those that the strategy restarts with it, until they live or it is given up.

    A member is held only while its own hooks and parts are at work, and parked for the rest of the time, so
    that an order to end it is obeyed at once, whatever the others do.
    """
    while True:
        strategy = _strategy(parent)
        members = _members(parent, strategy, culprit)
        for cell in reversed(members):
            if cell.phase == states.RUNNING:
                yield from _halt(cell)
            if _take(cell):
                yield from _dismantle(cell, error)
                _park(cell)
        if strategy.backoff is not None:
            yield from _back_off(culprit, strategy)
        retry = yield from _start_again(parent, members)
        if retry is None:
            return
        culprit, error = retry
        yield asyncio.sleep(0)  # one that never starts must not freeze the loop


def _start_again(
    parent: Cell, members: list[Cell]
) -> Generator[Awaitable[object], None, tuple[Cell, BaseException] | None]:
    """Start each member; return the first that fails again and is to be restarted, with its error."""
    for cell in members:
        if not _take(cell):
            continue
        if cell.restart == "temporary":
            yield from life.finish(cell, "stopped", None)
            continue
        fault = yield from life.build(cell)
        if cell.order & states.ENDING:
            yield from life.end(cell)
        elif fault is None:
            _restarted(parent, cell)
        else:
            action = verdict(parent, cell, fault)
            if action == "stop":
                yield from life.finish(cell, "failed", fault)
            elif action == "escalate":
                _park(cell)
                for other in members:
                    if other.phase == states.RESTARTING:
                        other.phase = states.FAILED
                orders.fail(parent, fault)
                return None
            else:
                _park(cell)
                return cell, fault
    return None


def _take(cell: Cell) -> bool:
    """Hold a parked member; false if it has ended, or ends."""
    if cell.phase != states.RESTARTING or cell.mode != states.PARKED:
        return False
    cell.mode = states.HELD
    return True


def _park(cell: Cell) -> None:
    """Let go of a member; it ends at once if that was ordered meanwhile."""
    cell.mode = states.PARKED
    if cell.order & states.ENDING:
        orders.unpark(cell)


def _members(parent: Cell, strategy: Strategy, culprit: Cell) -> list[Cell]:
    """Return the living children that restart now, in start order."""
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
    if parent.wants(Restarted):
        parent.signal(Restarted(cell.ref, streak.restarts))
    for watcher in cell.extra().watchers:
        if watcher is not parent:
            watcher.signal(Restarted(cell.ref, streak.restarts))
    life.release(cell)


def _halt(cell: Cell) -> Routine:
    """Take the cell out of service after its message in hand, by force when its shutdown time is over."""
    extras = cell.extra()
    extras.halted = cell.scheduler.loop.create_future()
    cell.order |= states.HALT
    if cell.mode == states.IDLE and cell.order == states.HALT:
        orders.halt(cell)
    if not extras.halted.done() and cell.phase == states.RUNNING:
        ended = life.ended_future(cell)
        yield asyncio.wait((extras.halted, ended), timeout=cell.shutdown, return_when=asyncio.FIRST_COMPLETED)
        if not extras.halted.done() and cell.phase == states.RUNNING:
            orders.cancel(cell)
            yield asyncio.wait((extras.halted, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
    extras.halted = None


def _back_off(cell: Cell, strategy: Strategy) -> Routine:
    extras = cell.extra()
    delay = 0.0 if extras.streak is None else extras.streak.delay(strategy, cell.scheduler.random.random)
    if delay > 0 and not cell.order & states.ENDING:
        extras.wake = wake = cell.scheduler.loop.create_future()
        yield routines.within(wake, delay)
        extras.wake = None  # also of a cell that has ended meanwhile


def _dismantle(cell: Cell, error: BaseException) -> Routine:
    """Take the old instance apart: its hook, timers, children, owned work, context managers."""
    actor, cell.actor = cell.actor, None
    if actor is not None and type(actor).on_restart is not Behaviour.on_restart:
        limit = life.stop_limit(cell, actor)
        fault = yield from routines.hook(cell, limit, actor, "on_restart", error)
        if fault is not None:
            log.error("%s: on_restart failed", cell.path, exc_info=fault)
    if life.owns(cell):
        yield from life.clear(cell, ActorStopped(f"{cell.path} failed and restarts before it answered"))
        yield from life.close(cell)
    _forget(cell)


def _forget(cell: Cell) -> None:
    """Drop what the old instance left in the cell: signals that wait, stash, watches, kept specs."""
    cell.urgent = None
    extras = cell.extras
    if extras is not None:
        life.unstash(cell)
        for target in extras.watching:
            if target.extras is not None:
                target.extras.watchers.pop(cell, None)
        extras.watching.clear()
        extras.muted.clear()
        extras.kept.clear()
