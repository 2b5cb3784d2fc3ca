"""Orders: what others ask of an actor. Stop, drain, kill, fail.

Each only notes the order and sees to it that the cell has a turn. What serves the actor at that time carries
the order out between two messages (`turn.ActorCell.obey`).
"""

from __future__ import annotations

from actors import states
from actors.errors import ActorStopped
from actors.kernel.cell import Cell

__all__ = ["cancel", "drain", "fail", "halt", "interrupt", "kill", "shut", "stop", "unpark"]


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
    subtree = [cell]
    for each in subtree:  # grows meanwhile; a loop, because trees can be deeper than the stack
        subtree.extend((each.children or {}).values())
    for each in reversed(subtree):
        if each.phase == states.DEAD or each.order & states.KILL:
            continue
        each.order |= states.KILL
        shut(each)
        cancel(each)
        _nudge(each)


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
    cancel(cell)
    _nudge(cell)


def interrupt(cell: Cell, error: BaseException) -> None:
    """Cancel the handler that runs, so that its actor fails with `error`; one that is to stop then ends."""
    if cell.order & (states.KILL | states.FAIL | states.HALT):
        return  # it is cancelled already
    cell.extra().failure = error
    cell.order |= states.FAIL
    cancel(cell)


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
            waiter = extras.waiters.pop(0)
            if not waiter.done():
                waiter.set_exception(ActorStopped(f"{cell.path} has stopped"))


def cancel(cell: Cell) -> None:
    """Cancel the user code that runs. A pump that has not begun sees the order in its first step instead."""
    task = cell.task
    extras = cell.extras
    if extras is not None and extras.closing is not None and cell.order & states.KILL:
        cell.scheduler.loop.call_later(states.CLOSE_TIME, cell.scheduler.cancel, extras.closing)
    if task is None:
        return
    if task.done() and cell.mode == states.BUSY:  # code outside cancelled the pump before its first step
        if cell.fresh is not None:
            cell.fresh.close()
            cell.fresh = None
            cell.give_back()
        cell.resume()
    elif cell.fresh is None:
        cell.scheduler.cancel(task)


def _nudge(cell: Cell) -> None:
    if cell.mode == states.IDLE:
        cell.enqueue()
    elif cell.mode == states.PARKED and cell.order & states.ENDING:
        unpark(cell)
    if cell.extras is not None and cell.extras.wake is not None and not cell.extras.wake.done():
        cell.extras.wake.set_result(None)


def unpark(cell: Cell) -> None:
    """Take a parked cell away from the routine that it waits for: it is to end now."""
    cell.mode = states.IDLE
    cell.enqueue()


def halt(cell: Cell) -> None:
    """Take a cell that serves no message out of service, for the group restart that asked for it."""
    cell.order &= ~states.HALT
    cell.mode, cell.phase = states.PARKED, states.RESTARTING
    extras = cell.extra()
    if extras.halted is not None and not extras.halted.done():
        extras.halted.set_result(None)
